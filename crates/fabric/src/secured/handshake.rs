//! The handshake that precedes all other bytes of a connection: Noise IKpsk2 (noiseprotocol.org, revision 34), then one
//! confirmation and one welcome under its keys. A pure machine: bytes in, bytes out.
//!
//! The dialer knows the listener's key beforehand. The listener learns the dialer's key from the first message and
//! trusts the key after the third message, which a replay cannot contain. The shared key is mixed in, so only its
//! holders pass. Each end's first message states, under the keys, the end's address and whether the end encrypts later
//! bytes. If the ends disagree on encryption, the dialer ends the handshake, and the listener never completes it.
//!
//! | state | on | goes to | sends |
//! |---|---|---|---|
//! | `Greeted` (dialer) | answer | `Confirmed` | confirmation |
//! | `Confirmed` (dialer) | welcome | ended: [`HandshakeStep::Welcome`] | |
//! | `Listening` | hello | `Answered` | answer |
//! | `Answered` (listener) | confirmation | ended: [`HandshakeStep::Proven`] | the welcome, if wanted |
//! | any | anything else | ended: [`HandshakeError`] | |
//!
//! Invariant: every message has one length, so a reader never reads bytes beyond a message. Never does IO.

use std::net::SocketAddrV4;

use snow::params::NoiseParams;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState};

use crate::PeerId;
use crate::secured::identity::{Identity, KEY, PublicKey, SOCKET, SharedKey, id_of, socket_bytes, socket_of};
use crate::secured::records::{ForgedRecord, Keys, TAG};

/// The only protocol that both ends accept.
const PROTOCOL: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
/// The end's address, and one byte: 1 if the end encrypts later bytes, else 0.
const END_PAYLOAD: usize = SOCKET + 1;
/// Ephemeral key, encrypted static key, end payload.
const HELLO: usize = KEY + KEY + TAG + END_PAYLOAD + TAG;
/// Ephemeral key, end payload.
const ANSWER: usize = KEY + END_PAYLOAD + TAG;
const LONGEST: usize = HELLO;

/// Why the other end is not the expected one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the handshake fails: not the key that was expected, another shared key, or another version")]
    Refused,
    #[error(
        "{other} {}: give all of them --encrypt (OUTBOARD_ENCRYPT), or none",
        if *encrypts { "encrypts, and this end does not" } else { "does not encrypt, and this end does" }
    )]
    Encryption { other: PeerId, encrypts: bool },
}

impl From<snow::Error> for HandshakeError {
    fn from(_: snow::Error) -> Self {
        HandshakeError::Refused
    }
}

impl From<ForgedRecord> for HandshakeError {
    fn from(_: ForgedRecord) -> Self {
        HandshakeError::Refused
    }
}

#[derive(Clone, Copy, Debug)]
pub struct HandshakeTerms<'a> {
    pub own: &'a Identity,
    pub shared: &'a SharedKey,
    /// Name and version of the protocol after the handshake. Ends with another purpose are refused.
    pub purpose: &'static [u8],
    pub encrypts: bool,
}

impl HandshakeTerms<'_> {
    fn builder(&self) -> Result<Builder<'_>, snow::Error> {
        let builder = Builder::new(protocol()).prologue(self.purpose)?;
        builder.local_private_key(&self.own.private)?.psk(2, &self.shared.0)
    }

    fn payload(&self) -> EndPayload {
        EndPayload { at: self.own.at, encrypts: self.encrypts }
    }
}

/// The statements of one end: its address, and whether the end encrypts later bytes.
#[derive(Clone, Copy)]
struct EndPayload {
    at: SocketAddrV4,
    encrypts: bool,
}

impl EndPayload {
    /// The message that carries this payload.
    fn write(self, state: &mut HandshakeState, length: usize) -> Result<Vec<u8>, HandshakeError> {
        let mut payload = [0; END_PAYLOAD];
        payload[..SOCKET].copy_from_slice(&socket_bytes(self.at));
        payload[SOCKET] = self.encrypts.into();
        let mut bytes = vec![0; length];
        let written = state.write_message(&payload, &mut bytes)?;
        assert_eq!(written, length, "messages of this protocol have one length each");
        Ok(bytes)
    }

    fn read(state: &mut HandshakeState, message: &[u8]) -> Result<EndPayload, HandshakeError> {
        let mut payload = [0; END_PAYLOAD];
        state.read_message(message, &mut payload)?;
        let [socket @ .., encrypts] = payload;
        Ok(EndPayload { at: socket_of(socket), encrypts: encrypts != 0 })
    }

    fn disagreement(self, state: &HandshakeState, theirs: EndPayload) -> Option<HandshakeError> {
        let key = state.get_remote_static()?.try_into().ok()?;
        let EndPayload { at, encrypts } = theirs;
        (encrypts != self.encrypts).then(|| HandshakeError::Encryption { other: id_of(&key, at), encrypts })
    }
}

enum HandshakePhase {
    /// Dialer: waits for the answer.
    Greeted { state: Box<HandshakeState>, own: EndPayload },
    /// Dialer: waits for the welcome.
    Confirmed(Keys),
    /// Listener: waits for a hello.
    Listening { state: Box<HandshakeState>, own: EndPayload },
    /// Listener: waits for the confirmation.
    Answered { keys: Keys, at: SocketAddrV4, disagreement: Option<HandshakeError> },
}

/// A handshake in progress, with the received part of its next message.
pub struct Handshake {
    phase: HandshakePhase,
    received: [u8; LONGEST],
    have: usize,
}

pub enum HandshakeStep {
    Wait(Handshake),
    /// The handshake continues once these bytes are sent.
    Send(Handshake, Vec<u8>),
    /// Listener: the dialer holds `key`. The dialer's address is `at` if the dialer's id is the hash of `key` and `at`.
    Proven {
        key: PublicKey,
        at: SocketAddrV4,
        /// The message to send if this end wants the connection.
        welcome: Vec<u8>,
        keys: Keys,
    },
    /// Dialer: the listener has proven its key and wants the connection. The keys are for records.
    Welcome(Keys),
}

fn protocol() -> NoiseParams {
    PROTOCOL.parse().expect("a protocol that snow is built with")
}

pub(super) fn key_pair() -> (PublicKey, [u8; KEY]) {
    let pair = Builder::new(protocol()).generate_keypair().expect("the kernel has random numbers");
    let key = |bytes: Vec<u8>| bytes.try_into().expect("keys of X25519");
    (key(pair.public), key(pair.private))
}

/// The public key of a private key.
pub(super) fn public_of(private: &[u8; KEY]) -> PublicKey {
    let mut pair = DefaultResolver.resolve_dh(&protocol().dh).expect("a protocol that snow is built with");
    pair.set(private);
    pair.pubkey().try_into().expect("keys of X25519")
}

impl Handshake {
    fn new(phase: HandshakePhase) -> Handshake {
        Handshake { phase, received: [0; LONGEST], have: 0 }
    }

    /// The dialer's end, and its hello to the holder of `key`.
    ///
    /// # Errors
    /// When a key is not valid.
    pub fn dial(terms: &HandshakeTerms<'_>, key: &PublicKey) -> Result<(Handshake, Vec<u8>), HandshakeError> {
        let mut state = terms.builder()?.remote_public_key(key)?.build_initiator()?;
        let own = terms.payload();
        let hello = own.write(&mut state, HELLO)?;
        Ok((Handshake::new(HandshakePhase::Greeted { state: Box::new(state), own }), hello))
    }

    /// The listener's end.
    ///
    /// # Errors
    /// When a key is not valid.
    pub fn listen(terms: &HandshakeTerms<'_>) -> Result<Handshake, HandshakeError> {
        let state = Box::new(terms.builder()?.build_responder()?);
        Ok(Handshake::new(HandshakePhase::Listening { state, own: terms.payload() }))
    }

    /// Listener: whether the other end has sent a hello, which requires knowledge of the listener's key.
    #[must_use]
    pub fn was_greeted(&self) -> bool {
        matches!(self.phase, HandshakePhase::Answered { .. })
    }

    /// Dialer: whether the listener has received the hello and has not refused the hello.
    #[must_use]
    pub fn was_answered(&self) -> bool {
        matches!(self.phase, HandshakePhase::Confirmed(_))
    }

    /// Listener: why the dialer ends the handshake, if known.
    #[must_use]
    pub fn disagreement(&self) -> Option<HandshakeError> {
        match self.phase {
            HandshakePhase::Answered { disagreement, .. } => disagreement,
            HandshakePhase::Greeted { .. } | HandshakePhase::Confirmed(_) | HandshakePhase::Listening { .. } => None,
        }
    }

    /// The buffer for the next bytes: the missing part of the next message, at least one byte.
    pub fn room(&mut self) -> &mut [u8] {
        let whole = match self.phase {
            HandshakePhase::Greeted { .. } => ANSWER,
            HandshakePhase::Listening { .. } => HELLO,
            HandshakePhase::Confirmed(_) | HandshakePhase::Answered { .. } => TAG,
        };
        &mut self.received[self.have..whole]
    }

    /// Accepts `taken` bytes that were put into `room`.
    ///
    /// # Errors
    /// When the bytes do not belong to a handshake with these terms. The connection is then useless.
    pub fn advance(mut self, taken: usize) -> Result<HandshakeStep, HandshakeError> {
        self.have += taken;
        if !self.room().is_empty() {
            return Ok(HandshakeStep::Wait(self));
        }
        let message = &self.received[..self.have];
        match self.phase {
            HandshakePhase::Greeted { mut state, own } => {
                let theirs = EndPayload::read(&mut state, message)?;
                own.disagreement(&state, theirs).map_or(Ok(()), Err)?;
                let mut keys = Keys::new(state.into_stateless_transport_mode()?);
                let confirmation = keys.sealer.sign();
                Ok(HandshakeStep::Send(Handshake::new(HandshakePhase::Confirmed(keys)), confirmation))
            }
            HandshakePhase::Confirmed(mut keys) => {
                keys.opener.check(message)?;
                Ok(HandshakeStep::Welcome(keys))
            }
            HandshakePhase::Listening { mut state, own } => {
                let theirs = EndPayload::read(&mut state, message)?;
                let disagreement = own.disagreement(&state, theirs);
                let answer = own.write(&mut state, ANSWER)?;
                let keys = Keys::new(state.into_stateless_transport_mode()?);
                Ok(HandshakeStep::Send(
                    Handshake::new(HandshakePhase::Answered { keys, at: theirs.at, disagreement }),
                    answer,
                ))
            }
            HandshakePhase::Answered { mut keys, at, disagreement } => {
                keys.opener.check(message)?;
                disagreement.map_or(Ok(()), Err)?;
                let key = keys.other().and_then(|key| key.try_into().ok()).ok_or(HandshakeError::Refused)?;
                Ok(HandshakeStep::Proven { key, at, welcome: keys.sealer.sign(), keys })
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn terms<'a>(own: &'a Identity, shared: &'a SharedKey) -> HandshakeTerms<'a> {
        HandshakeTerms { own, shared, purpose: b"test 1", encrypts: true }
    }

    fn receive(mut handshake: Handshake, message: &[u8]) -> Result<HandshakeStep, HandshakeError> {
        handshake.room().copy_from_slice(message);
        handshake.advance(message.len())
    }

    fn sent(step: Result<HandshakeStep, HandshakeError>) -> (Handshake, Vec<u8>) {
        match step {
            Ok(HandshakeStep::Send(next, bytes)) => (next, bytes),
            _ => panic!("the handshake goes on"),
        }
    }

    /// Runs both ends up to the confirmation. Returns the dialer's identity, listener, dialer and confirmation.
    fn confirmed(shared: &SharedKey) -> (Identity, Handshake, Handshake, Vec<u8>) {
        let (a, b) = (Identity::generate(), Identity::generate());
        let (dialer, hello) = Handshake::dial(&terms(&a, shared), &b.public).expect("keys are good");
        let (listener, answer) = sent(receive(Handshake::listen(&terms(&b, shared)).expect("a good key"), &hello));
        let (dialer, confirmation) = sent(receive(dialer, &answer));
        (a, listener, dialer, confirmation)
    }

    /// The keys of dialer and listener.
    pub(in crate::secured) fn keys() -> (Keys, Keys) {
        let (_, listener, dialer, confirmation) = confirmed(&SharedKey::default());
        let Ok(HandshakeStep::Proven { welcome, keys, .. }) = receive(listener, &confirmation) else {
            panic!("it is proven")
        };
        let Ok(HandshakeStep::Welcome(own)) = receive(dialer, &welcome) else { panic!("it is welcome") };
        (own, keys)
    }

    #[test]
    fn both_ends_prove_their_keys() {
        for shared in [SharedKey::default(), SharedKey::of(b"ours")] {
            let (a, listener, dialer, confirmation) = confirmed(&shared);
            let Ok(HandshakeStep::Proven { key, welcome, .. }) = receive(listener, &confirmation) else {
                panic!("it is proven")
            };
            assert_eq!(key, a.public);
            assert!(matches!(receive(dialer, &welcome), Ok(HandshakeStep::Welcome(_))));
        }
    }

    #[test]
    fn another_key_another_secret_another_purpose_and_garbage_are_refused() {
        let (a, b, c) = (Identity::generate(), Identity::generate(), Identity::generate());
        let (ours, none) = (SharedKey::of(b"ours"), SharedKey::default());
        let listen = |terms: &HandshakeTerms<'_>| Handshake::listen(terms).expect("a good key");
        let (_, hello) = Handshake::dial(&terms(&a, &none), &c.public).expect("keys are good");
        assert!(receive(listen(&terms(&b, &none)), &hello).is_err(), "meant for another");
        let (dialer, hello) = Handshake::dial(&terms(&a, &none), &b.public).expect("keys are good");
        let (_, answer) = sent(receive(listen(&terms(&b, &ours)), &hello));
        assert!(receive(dialer, &answer).is_err(), "the shared key differs");
        assert!(receive(listen(&HandshakeTerms { purpose: b"test 2", ..terms(&b, &none) }), &hello).is_err());
        assert!(receive(listen(&terms(&b, &none)), &[7; HELLO]).is_err());
        let (_, listener, _, mut confirmation) = confirmed(&none);
        confirmation[3] ^= 1;
        assert!(receive(listener, &confirmation).is_err());
    }

    /// A recorded conversation, replayed to the listener, fails at the confirmation: the listener's keys are fresh.
    #[test]
    fn a_replay_is_refused() {
        let none = SharedKey::default();
        let (a, b) = (Identity::generate(), Identity::generate());
        let (dialer, hello) = Handshake::dial(&terms(&a, &none), &b.public).expect("keys are good");
        let listen = || Handshake::listen(&terms(&b, &none)).expect("a good key");
        let (_, answer) = sent(receive(listen(), &hello));
        let (_, confirmation) = sent(receive(dialer, &answer));
        let (again, _) = sent(receive(listen(), &hello));
        assert!(receive(again, &confirmation).is_err());
    }

    /// An encrypting end and a plain end never connect, and both can name the reason, even if the dialer goes on.
    #[test]
    fn ends_that_disagree_on_encryption_name_the_reason() {
        let (a, b) = (Identity::generate(), Identity::generate());
        let none = SharedKey::default();
        for encrypts in [false, true] {
            let theirs = HandshakeTerms { encrypts: !encrypts, ..terms(&b, &none) };
            let (dialer, hello) =
                Handshake::dial(&HandshakeTerms { encrypts, ..terms(&a, &none) }, &b.public).expect("keys are good");
            let (listener, answer) = sent(receive(Handshake::listen(&theirs).expect("a good key"), &hello));
            let why = receive(dialer, &answer).err();
            assert_eq!(why, Some(HandshakeError::Encryption { other: b.id(), encrypts: !encrypts }));
            assert!(why.is_some_and(|why| why.to_string().contains("--encrypt")));
            assert_eq!(listener.disagreement(), Some(HandshakeError::Encryption { other: a.id(), encrypts }));
        }
        let theirs = HandshakeTerms { encrypts: false, ..terms(&b, &none) };
        let (dialer, hello) = Handshake::dial(&terms(&a, &none), &b.public).expect("keys are good");
        let (listener, answer) = sent(receive(Handshake::listen(&theirs).expect("a good key"), &hello));
        let HandshakePhase::Greeted { state, own } = dialer.phase else { panic!("it has greeted") };
        let own = EndPayload { encrypts: false, ..own };
        let mut lying = Handshake::new(HandshakePhase::Greeted { state, own });
        lying.room().copy_from_slice(&answer);
        let (_, confirmation) = sent(lying.advance(answer.len()));
        assert!(matches!(receive(listener, &confirmation), Err(HandshakeError::Encryption { encrypts: true, .. })));
    }
}
