//! The handshake before any other byte of a connection is looked at: Noise IKpsk2 (noiseprotocol.org, revision 34),
//! then one confirmation and one welcome under its keys. A pure machine: bytes in, bytes out.
//!
//! The dialer knows the listener's key from its address, the listener learns the dialer's key from the first message
//! and believes it with the third, which a replay cannot make. The cluster key is mixed in, so that only its holders
//! pass.
//!
//! | state | on | goes to | says |
//! |---|---|---|---|
//! | `Greeted` (dialer) | answer | `Confirmed` | confirmation |
//! | `Confirmed` (dialer) | welcome | ended: [`Step::Welcome`] | |
//! | `Listening` | hello | `Answered` | answer |
//! | `Answered` (listener) | confirmation | ended: [`Step::Proven`] | the welcome, if the connection is wanted |
//! | any | anything else | ended: [`HandshakeError`] | |
//!
//! Invariant: every message has one length, so a reader never takes bytes that follow it. Never does IO.

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, TransportState};

use crate::tcp::identity::{ClusterKey, Identity, KEY, PublicKey};

/// The one protocol that both ends speak.
const PROTOCOL: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
/// Bound into the handshake: another version of the framing does not pass.
const PROLOGUE: &[u8] = b"outboard tcp 1";
/// An authentication tag.
const TAG: usize = 16;
/// Ephemeral key, encrypted static key, tag.
const HELLO: usize = KEY + KEY + TAG + TAG;
/// Ephemeral key, tag.
const ANSWER: usize = KEY + TAG;
/// Longest message.
pub(super) const LONGEST: usize = HELLO;

/// Why a connection is not that of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the handshake fails: not the key that was expected, another cluster key, or another version")]
pub(super) struct HandshakeError;

impl From<snow::Error> for HandshakeError {
    fn from(_: snow::Error) -> Self {
        HandshakeError
    }
}

/// A handshake on its way.
pub(super) enum Handshake {
    /// Dialer: waits for the answer.
    Greeted(Box<HandshakeState>),
    /// Dialer: waits for the welcome.
    Confirmed(Box<TransportState>),
    /// Listener: waits for a hello.
    Listening(Box<HandshakeState>),
    /// Listener: waits for the confirmation.
    Answered(Box<TransportState>),
}

/// What a message led to.
pub(super) enum Step {
    /// The handshake goes on once this is said.
    Say(Handshake, Vec<u8>),
    /// Listener: the dialer has this key; the bytes welcome it.
    Proven { key: PublicKey, welcome: Vec<u8> },
    /// Dialer: the listener has proven its key and wants the connection.
    Welcome,
}

fn protocol() -> NoiseParams {
    PROTOCOL.parse().expect("a protocol that snow is built with")
}

/// A fresh public and private key.
pub(super) fn key_pair() -> (PublicKey, [u8; KEY]) {
    let pair = Builder::new(protocol()).generate_keypair().expect("the kernel has random numbers");
    let key = |bytes: Vec<u8>| bytes.try_into().expect("keys of X25519");
    (key(pair.public), key(pair.private))
}

fn builder<'a>(own: &'a Identity, cluster: &'a ClusterKey) -> Result<Builder<'a>, snow::Error> {
    Builder::new(protocol()).prologue(PROLOGUE)?.local_private_key(&own.private)?.psk(2, &cluster.0)
}

impl Handshake {
    /// The dialer's end, and its hello to the holder of `key`.
    pub(super) fn dial(
        own: &Identity,
        cluster: &ClusterKey,
        key: &PublicKey,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let mut state = builder(own, cluster)?.remote_public_key(key)?.build_initiator()?;
        let hello = write(HELLO, |bytes| state.write_message(&[], bytes))?;
        Ok((Handshake::Greeted(Box::new(state)), hello))
    }

    /// The listener's end.
    pub(super) fn listen(own: &Identity, cluster: &ClusterKey) -> Result<Self, HandshakeError> {
        Ok(Handshake::Listening(Box::new(builder(own, cluster)?.build_responder()?)))
    }

    /// Length of the message that comes next.
    pub(super) fn awaits(&self) -> usize {
        match self {
            Handshake::Greeted(_) => ANSWER,
            Handshake::Listening(_) => HELLO,
            Handshake::Confirmed(_) | Handshake::Answered(_) => TAG,
        }
    }

    /// Takes the message that comes next, as long as [`Self::awaits`] says.
    pub(super) fn handle(self, message: &[u8]) -> Result<Step, HandshakeError> {
        let nothing = &mut [];
        match self {
            Handshake::Greeted(mut state) => {
                state.read_message(message, nothing)?;
                let mut keys = state.into_transport_mode()?;
                let confirmation = write(TAG, |bytes| keys.write_message(&[], bytes))?;
                Ok(Step::Say(Handshake::Confirmed(Box::new(keys)), confirmation))
            }
            Handshake::Confirmed(mut keys) => {
                keys.read_message(message, nothing)?;
                Ok(Step::Welcome)
            }
            Handshake::Listening(mut state) => {
                state.read_message(message, nothing)?;
                let answer = write(ANSWER, |bytes| state.write_message(&[], bytes))?;
                Ok(Step::Say(Handshake::Answered(Box::new(state.into_transport_mode()?)), answer))
            }
            Handshake::Answered(mut keys) => {
                keys.read_message(message, nothing)?;
                let key = keys.get_remote_static().ok_or(HandshakeError)?.try_into().map_err(|_| HandshakeError)?;
                Ok(Step::Proven { key, welcome: write(TAG, |bytes| keys.write_message(&[], bytes))? })
            }
        }
    }
}

fn write(
    length: usize,
    message: impl FnOnce(&mut [u8]) -> Result<usize, snow::Error>,
) -> Result<Vec<u8>, HandshakeError> {
    let mut bytes = vec![0; length];
    let written = message(&mut bytes)?;
    assert_eq!(written, length, "messages of this protocol have one length each");
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(step: Result<Step, HandshakeError>) -> (Handshake, Vec<u8>) {
        match step {
            Ok(Step::Say(next, bytes)) => (next, bytes),
            _ => panic!("the handshake goes on"),
        }
    }

    /// Both ends up to the confirmation; returns the listener, the dialer and the confirmation.
    fn confirmed(cluster: &ClusterKey) -> (Identity, Handshake, Handshake, Vec<u8>) {
        let (a, b) = (Identity::generate(), Identity::generate());
        let (dialer, hello) = Handshake::dial(&a, cluster, &b.public).expect("keys are good");
        let (listener, answer) = say(Handshake::listen(&b, cluster).expect("a good key").handle(&hello));
        let (dialer, confirmation) = say(dialer.handle(&answer));
        (a, listener, dialer, confirmation)
    }

    #[test]
    fn both_ends_prove_their_keys() {
        for cluster in [ClusterKey::default(), ClusterKey::of(b"ours")] {
            let (a, listener, dialer, confirmation) = confirmed(&cluster);
            let Ok(Step::Proven { key, welcome }) = listener.handle(&confirmation) else { panic!("it is proven") };
            assert_eq!(key, a.public);
            assert!(matches!(dialer.handle(&welcome), Ok(Step::Welcome)));
        }
    }

    #[test]
    fn another_key_another_cluster_and_garbage_are_refused() {
        let (a, b, c) = (Identity::generate(), Identity::generate(), Identity::generate());
        let (ours, none) = (ClusterKey::of(b"ours"), ClusterKey::default());
        let (_, hello) = Handshake::dial(&a, &none, &c.public).expect("keys are good");
        assert!(Handshake::listen(&b, &none).expect("a good key").handle(&hello).is_err(), "meant for another");
        let (dialer, hello) = Handshake::dial(&a, &none, &b.public).expect("keys are good");
        let (_, answer) = say(Handshake::listen(&b, &ours).expect("a good key").handle(&hello));
        assert!(dialer.handle(&answer).is_err(), "the cluster key differs");
        assert!(Handshake::listen(&b, &none).expect("a good key").handle(&[7; HELLO]).is_err());
        let (_, listener, _, mut confirmation) = confirmed(&none);
        confirmation[3] ^= 1;
        assert!(listener.handle(&confirmation).is_err());
    }

    /// A recorded conversation, played to the listener again, ends at the confirmation: the listener's keys are fresh.
    #[test]
    fn a_replay_is_refused() {
        let none = ClusterKey::default();
        let (a, b) = (Identity::generate(), Identity::generate());
        let (dialer, hello) = Handshake::dial(&a, &none, &b.public).expect("keys are good");
        let (_, answer) = say(Handshake::listen(&b, &none).expect("a good key").handle(&hello));
        let (_, confirmation) = say(dialer.handle(&answer));
        let (again, _) = say(Handshake::listen(&b, &none).expect("a good key").handle(&hello));
        assert!(again.handle(&confirmation).is_err());
    }
}
