//! The handshake that precedes all other bytes of a connection: Noise IKpsk2 (noiseprotocol.org, revision 34), then one
//! confirmation and one welcome under its keys. A pure machine: bytes in, bytes out.
//!
//! The dialer knows the listener's key beforehand. The listener learns the dialer's key from the first message and
//! trusts it after the third, which a replay cannot make. The shared key is mixed in, so only its holders pass. Each
//! end's first message states, under the keys, the end's address and whether it encrypts later bytes. If the ends
//! disagree on encryption, the dialer ends the handshake, and the listener never completes it.
//!
//! | state | on | goes to | sends |
//! |---|---|---|---|
//! | `Greeted` (dialer) | answer | `Confirmed` | confirmation |
//! | `Confirmed` (dialer) | welcome | ended: [`Step::Welcome`] | |
//! | `Listening` | hello | `Answered` | answer |
//! | `Answered` (listener) | confirmation | ended: [`Step::Proven`] | the welcome, if the connection is wanted |
//! | any | anything else | ended: [`HandshakeError`] | |
//!
//! Invariant: every message has one length, so a reader never reads bytes after it. Never does IO.

use std::net::SocketAddrV4;

use snow::params::NoiseParams;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState};

use crate::PeerId;
use crate::secured::identity::{Identity, KEY, PublicKey, SOCKET, SharedKey, id_of, socket_bytes, socket_of};
use crate::secured::records::{Forged, Keys, TAG};

/// The only protocol that both ends accept.
const PROTOCOL: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
/// The end's address, and one byte: 1 if it encrypts later bytes, else 0.
const WISH: usize = SOCKET + 1;
/// Ephemeral key, encrypted static key, wish.
const HELLO: usize = KEY + KEY + TAG + WISH + TAG;
/// Ephemeral key, wish.
const ANSWER: usize = KEY + WISH + TAG;
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

impl From<Forged> for HandshakeError {
    fn from(_: Forged) -> Self {
        HandshakeError::Refused
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    pub own: &'a Identity,
    pub shared: &'a SharedKey,
    /// The protocol after the handshake and its version. Ends with another purpose are refused.
    pub purpose: &'static [u8],
    pub encrypts: bool,
}

impl Terms<'_> {
    fn builder(&self) -> Result<Builder<'_>, snow::Error> {
        let builder = Builder::new(protocol()).prologue(self.purpose)?;
        builder.local_private_key(&self.own.private)?.psk(2, &self.shared.0)
    }

    fn wish(&self) -> Wish {
        Wish { at: self.own.at, encrypts: self.encrypts }
    }
}

/// The statements of one end: its address, and whether it encrypts.
#[derive(Clone, Copy)]
struct Wish {
    at: SocketAddrV4,
    encrypts: bool,
}

impl Wish {
    /// The message that carries this wish.
    fn say(self, state: &mut HandshakeState, length: usize) -> Result<Vec<u8>, HandshakeError> {
        let mut said = [0; WISH];
        said[..SOCKET].copy_from_slice(&socket_bytes(self.at));
        said[SOCKET] = self.encrypts.into();
        let mut bytes = vec![0; length];
        let written = state.write_message(&said, &mut bytes)?;
        assert_eq!(written, length, "messages of this protocol have one length each");
        Ok(bytes)
    }

    fn hear(state: &mut HandshakeState, message: &[u8]) -> Result<Wish, HandshakeError> {
        let mut said = [0; WISH];
        state.read_message(message, &mut said)?;
        let [socket @ .., encrypts] = said;
        Ok(Wish { at: socket_of(socket), encrypts: encrypts != 0 })
    }

    fn disagreement(self, state: &HandshakeState, theirs: Wish) -> Option<HandshakeError> {
        let key = state.get_remote_static()?.try_into().ok()?;
        let Wish { at, encrypts } = theirs;
        (encrypts != self.encrypts).then(|| HandshakeError::Encryption { other: id_of(&key, at), encrypts })
    }
}

enum Handshake {
    /// Dialer: waits for the answer.
    Greeted { state: Box<HandshakeState>, own: Wish },
    /// Dialer: waits for the welcome.
    Confirmed(Keys),
    /// Listener: waits for a hello.
    Listening { state: Box<HandshakeState>, own: Wish },
    /// Listener: waits for the confirmation.
    Answered { keys: Keys, at: SocketAddrV4, disagreement: Option<HandshakeError> },
}

/// A handshake in progress, with the received part of its next message.
pub struct Greeting {
    handshake: Handshake,
    heard: [u8; LONGEST],
    have: usize,
}

pub enum Step {
    Wait(Greeting),
    /// The handshake continues once these bytes are sent.
    Say(Greeting, Vec<u8>),
    /// Listener: the dialer holds `key`. Its address is `at` if its id is the hash of both.
    Proven {
        key: PublicKey,
        at: SocketAddrV4,
        /// The bytes to send if the connection is wanted.
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

impl Greeting {
    fn new(handshake: Handshake) -> Greeting {
        Greeting { handshake, heard: [0; LONGEST], have: 0 }
    }

    /// The dialer's end, and its hello to the holder of `key`.
    ///
    /// # Errors
    /// When a key is not valid.
    pub fn dial(terms: &Terms<'_>, key: &PublicKey) -> Result<(Greeting, Vec<u8>), HandshakeError> {
        let mut state = terms.builder()?.remote_public_key(key)?.build_initiator()?;
        let own = terms.wish();
        let hello = own.say(&mut state, HELLO)?;
        Ok((Greeting::new(Handshake::Greeted { state: Box::new(state), own }), hello))
    }

    /// The listener's end.
    ///
    /// # Errors
    /// When a key is not valid.
    pub fn listen(terms: &Terms<'_>) -> Result<Greeting, HandshakeError> {
        let state = Box::new(terms.builder()?.build_responder()?);
        Ok(Greeting::new(Handshake::Listening { state, own: terms.wish() }))
    }

    /// Listener: whether the other end has sent a hello, which requires knowledge of the listener's key.
    #[must_use]
    pub fn was_greeted(&self) -> bool {
        matches!(self.handshake, Handshake::Answered { .. })
    }

    /// Dialer: whether the listener has received the hello and not refused it.
    #[must_use]
    pub fn was_answered(&self) -> bool {
        matches!(self.handshake, Handshake::Confirmed(_))
    }

    /// Listener: why the dialer ends the handshake, if known.
    #[must_use]
    pub fn disagreement(&self) -> Option<HandshakeError> {
        match self.handshake {
            Handshake::Answered { disagreement, .. } => disagreement,
            Handshake::Greeted { .. } | Handshake::Confirmed(_) | Handshake::Listening { .. } => None,
        }
    }

    /// The buffer for the next bytes: the missing part of the next message, at least one byte.
    pub fn room(&mut self) -> &mut [u8] {
        let whole = match self.handshake {
            Handshake::Greeted { .. } => ANSWER,
            Handshake::Listening { .. } => HELLO,
            Handshake::Confirmed(_) | Handshake::Answered { .. } => TAG,
        };
        &mut self.heard[self.have..whole]
    }

    /// Accepts `taken` bytes that were put into `room`.
    ///
    /// # Errors
    /// When the bytes do not belong to a handshake with these terms. The connection is then useless.
    pub fn advance(mut self, taken: usize) -> Result<Step, HandshakeError> {
        self.have += taken;
        if !self.room().is_empty() {
            return Ok(Step::Wait(self));
        }
        let message = &self.heard[..self.have];
        match self.handshake {
            Handshake::Greeted { mut state, own } => {
                let theirs = Wish::hear(&mut state, message)?;
                own.disagreement(&state, theirs).map_or(Ok(()), Err)?;
                let mut keys = Keys::new(state.into_stateless_transport_mode()?);
                let confirmation = keys.sealer.sign();
                Ok(Step::Say(Greeting::new(Handshake::Confirmed(keys)), confirmation))
            }
            Handshake::Confirmed(mut keys) => {
                keys.opener.check(message)?;
                Ok(Step::Welcome(keys))
            }
            Handshake::Listening { mut state, own } => {
                let theirs = Wish::hear(&mut state, message)?;
                let disagreement = own.disagreement(&state, theirs);
                let answer = own.say(&mut state, ANSWER)?;
                let keys = Keys::new(state.into_stateless_transport_mode()?);
                Ok(Step::Say(Greeting::new(Handshake::Answered { keys, at: theirs.at, disagreement }), answer))
            }
            Handshake::Answered { mut keys, at, disagreement } => {
                keys.opener.check(message)?;
                disagreement.map_or(Ok(()), Err)?;
                let key = keys.other().and_then(|key| key.try_into().ok()).ok_or(HandshakeError::Refused)?;
                Ok(Step::Proven { key, at, welcome: keys.sealer.sign(), keys })
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn terms<'a>(own: &'a Identity, shared: &'a SharedKey) -> Terms<'a> {
        Terms { own, shared, purpose: b"test 1", encrypts: true }
    }

    fn hear(mut greeting: Greeting, message: &[u8]) -> Result<Step, HandshakeError> {
        greeting.room().copy_from_slice(message);
        greeting.advance(message.len())
    }

    fn say(step: Result<Step, HandshakeError>) -> (Greeting, Vec<u8>) {
        match step {
            Ok(Step::Say(next, bytes)) => (next, bytes),
            _ => panic!("the handshake goes on"),
        }
    }

    /// Runs both ends up to the confirmation. Returns the dialer's identity, listener, dialer and confirmation.
    fn confirmed(shared: &SharedKey) -> (Identity, Greeting, Greeting, Vec<u8>) {
        let (a, b) = (Identity::generate(), Identity::generate());
        let (dialer, hello) = Greeting::dial(&terms(&a, shared), &b.public).expect("keys are good");
        let (listener, answer) = say(hear(Greeting::listen(&terms(&b, shared)).expect("a good key"), &hello));
        let (dialer, confirmation) = say(hear(dialer, &answer));
        (a, listener, dialer, confirmation)
    }

    /// The keys of dialer and listener.
    pub(in crate::secured) fn keys() -> (Keys, Keys) {
        let (_, listener, dialer, confirmation) = confirmed(&SharedKey::default());
        let Ok(Step::Proven { welcome, keys, .. }) = hear(listener, &confirmation) else { panic!("it is proven") };
        let Ok(Step::Welcome(own)) = hear(dialer, &welcome) else { panic!("it is welcome") };
        (own, keys)
    }

    #[test]
    fn both_ends_prove_their_keys() {
        for shared in [SharedKey::default(), SharedKey::of(b"ours")] {
            let (a, listener, dialer, confirmation) = confirmed(&shared);
            let Ok(Step::Proven { key, welcome, .. }) = hear(listener, &confirmation) else { panic!("it is proven") };
            assert_eq!(key, a.public);
            assert!(matches!(hear(dialer, &welcome), Ok(Step::Welcome(_))));
        }
    }

    #[test]
    fn another_key_another_secret_another_purpose_and_garbage_are_refused() {
        let (a, b, c) = (Identity::generate(), Identity::generate(), Identity::generate());
        let (ours, none) = (SharedKey::of(b"ours"), SharedKey::default());
        let listen = |terms: &Terms<'_>| Greeting::listen(terms).expect("a good key");
        let (_, hello) = Greeting::dial(&terms(&a, &none), &c.public).expect("keys are good");
        assert!(hear(listen(&terms(&b, &none)), &hello).is_err(), "meant for another");
        let (dialer, hello) = Greeting::dial(&terms(&a, &none), &b.public).expect("keys are good");
        let (_, answer) = say(hear(listen(&terms(&b, &ours)), &hello));
        assert!(hear(dialer, &answer).is_err(), "the shared key differs");
        assert!(hear(listen(&Terms { purpose: b"test 2", ..terms(&b, &none) }), &hello).is_err());
        assert!(hear(listen(&terms(&b, &none)), &[7; HELLO]).is_err());
        let (_, listener, _, mut confirmation) = confirmed(&none);
        confirmation[3] ^= 1;
        assert!(hear(listener, &confirmation).is_err());
    }

    /// A recorded conversation, replayed to the listener, fails at the confirmation: the listener's keys are fresh.
    #[test]
    fn a_replay_is_refused() {
        let none = SharedKey::default();
        let (a, b) = (Identity::generate(), Identity::generate());
        let (dialer, hello) = Greeting::dial(&terms(&a, &none), &b.public).expect("keys are good");
        let listen = || Greeting::listen(&terms(&b, &none)).expect("a good key");
        let (_, answer) = say(hear(listen(), &hello));
        let (_, confirmation) = say(hear(dialer, &answer));
        let (again, _) = say(hear(listen(), &hello));
        assert!(hear(again, &confirmation).is_err());
    }

    /// An encrypting end and a plain end never connect, and both can name the reason, even if the dialer goes on.
    #[test]
    fn ends_that_disagree_on_encryption_part_by_name() {
        let (a, b) = (Identity::generate(), Identity::generate());
        let none = SharedKey::default();
        for encrypts in [false, true] {
            let theirs = Terms { encrypts: !encrypts, ..terms(&b, &none) };
            let (dialer, hello) =
                Greeting::dial(&Terms { encrypts, ..terms(&a, &none) }, &b.public).expect("keys are good");
            let (listener, answer) = say(hear(Greeting::listen(&theirs).expect("a good key"), &hello));
            let why = hear(dialer, &answer).err();
            assert_eq!(why, Some(HandshakeError::Encryption { other: b.id(), encrypts: !encrypts }));
            assert!(why.is_some_and(|why| why.to_string().contains("--encrypt")));
            assert_eq!(listener.disagreement(), Some(HandshakeError::Encryption { other: a.id(), encrypts }));
        }
        let theirs = Terms { encrypts: false, ..terms(&b, &none) };
        let (dialer, hello) = Greeting::dial(&terms(&a, &none), &b.public).expect("keys are good");
        let (listener, answer) = say(hear(Greeting::listen(&theirs).expect("a good key"), &hello));
        let Handshake::Greeted { state, own } = dialer.handshake else { panic!("it has greeted") };
        let own = Wish { encrypts: false, ..own };
        let mut lying = Greeting::new(Handshake::Greeted { state, own });
        lying.room().copy_from_slice(&answer);
        let (_, confirmation) = say(lying.advance(answer.len()));
        assert!(matches!(hear(listener, &confirmation), Err(HandshakeError::Encryption { encrypts: true, .. })));
    }
}
