//! Proof by visitor and server that they have the job's token, and sealed messages between them: Noise NNpsk0
//! (noiseprotocol.org, revision 34). Pure: bytes in, bytes out.
//!
//! The prologue binds the earlier plain text. The first record authenticates the visitor, since a replay cannot make
//! it; the answer to the handshake authenticates the server.

use std::io;

use snow::{Builder, HandshakeState, TransportState};

use super::nonsense;
use super::token::Token;

const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of the authentication tag of a record.
pub(super) const TAG: usize = 16;
/// Bytes of either message of the handshake: an ephemeral key and a tag.
pub(super) const GREETING: usize = 32 + TAG;

pub(super) type Greeting = [u8; GREETING];

/// The visitor's state while it waits for the answer.
pub(super) struct Greeted(Box<HandshakeState>);

/// The state of either end after the handshake.
pub(super) struct Sealed(Box<TransportState>);

fn handshake(token: &Token, header: &[u8], visits: bool) -> HandshakeState {
    let protocol = PROTOCOL.parse().expect("well formed");
    let builder = Builder::new(protocol).prologue(header).and_then(|builder| builder.psk(0, &token.0));
    let state = builder.and_then(|builder| if visits { builder.build_initiator() } else { builder.build_responder() });
    state.expect("the protocol needs no more than the token")
}

fn say(state: &mut HandshakeState) -> Greeting {
    let mut greeting = [0; GREETING];
    let written = state.write_message(&[], &mut greeting).expect("it is its turn");
    assert_eq!(written, GREETING, "messages of this protocol have one length");
    greeting
}

fn hear(state: &mut HandshakeState, greeting: &Greeting) -> Option<()> {
    state.read_message(greeting, &mut [0; GREETING]).ok().map(drop)
}

fn begun(state: HandshakeState) -> Sealed {
    Sealed(Box::new(state.into_transport_mode().expect("two messages make it")))
}

/// Begins the visitor's handshake, after the header that it sends in plain text.
pub(super) fn greet(token: &Token, header: &[u8]) -> (Greeted, Greeting) {
    let mut state = handshake(token, header, true);
    let greeting = say(&mut state);
    (Greeted(Box::new(state)), greeting)
}

/// The server's answer; `None` if the visitor has another token.
pub(super) fn answer(token: &Token, header: &[u8], greeting: &Greeting) -> Option<(Sealed, Greeting)> {
    let mut state = handshake(token, header, false);
    hear(&mut state, greeting)?;
    let answer = say(&mut state);
    Some((begun(state), answer))
}

impl Greeted {
    /// Handles the server's answer; `None` if the server has another token.
    pub(super) fn finish(mut self, answer: &Greeting) -> Option<Sealed> {
        hear(&mut self.0, answer)?;
        Some(begun(*self.0))
    }
}

impl Sealed {
    /// Appends a record: its length (u32) and the sealed bytes.
    pub(super) fn seal(&mut self, what: &[u8], to: &mut Vec<u8>) {
        to.extend_from_slice(&((what.len() + TAG) as u32).to_le_bytes());
        let at = to.len();
        to.resize(at + what.len() + TAG, 0);
        self.0.write_message(what, &mut to[at..]).expect("blobs fit a message");
    }

    /// The content of a record without its length.
    pub(super) fn open(&mut self, record: &[u8]) -> io::Result<Vec<u8>> {
        let mut opened = vec![0; record.len()];
        let length = self.0.read_message(record, &mut opened).map_err(|_| nonsense("a forged record"))?;
        opened.truncate(length);
        Ok(opened)
    }
}
