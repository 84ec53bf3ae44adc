//! Proof by client and server that they have the job's token, and sealed messages between them: Noise NNpsk0
//! (noiseprotocol.org, revision 34). Pure: bytes in, bytes out.
//!
//! The prologue binds the earlier plain text. The first record authenticates the client, since a replay cannot make
//! that record; the answer to the handshake authenticates the server.

use std::io;

use snow::{Builder, HandshakeState, TransportState};

use super::invalid_data;
use super::job_token::JobToken;

const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of the authentication tag of a record.
pub(super) const TAG_BYTES: usize = 16;
/// Bytes of either message of the handshake: an ephemeral key and a tag.
pub(super) const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;

pub(super) type HandshakeMessage = [u8; HANDSHAKE_BYTES];

/// The client's state while it waits for the answer.
pub(super) struct PendingHandshake(Box<HandshakeState>);

/// The state of either end after the handshake.
pub(super) struct SealedChannel(Box<TransportState>);

fn handshake(token: &JobToken, header: &[u8], initiates: bool) -> HandshakeState {
    let protocol = PROTOCOL.parse().expect("well formed");
    let builder = Builder::new(protocol).prologue(header).and_then(|builder| builder.psk(0, &token.0));
    let state =
        builder.and_then(|builder| if initiates { builder.build_initiator() } else { builder.build_responder() });
    state.expect("the protocol needs no more than the token")
}

fn write_handshake(state: &mut HandshakeState) -> HandshakeMessage {
    let mut greeting = [0; HANDSHAKE_BYTES];
    let written = state.write_message(&[], &mut greeting).expect("it is its turn");
    assert_eq!(written, HANDSHAKE_BYTES, "messages of this protocol have one length");
    greeting
}

fn read_handshake(state: &mut HandshakeState, greeting: &HandshakeMessage) -> Option<()> {
    state.read_message(greeting, &mut [0; HANDSHAKE_BYTES]).ok().map(drop)
}

fn into_channel(state: HandshakeState) -> SealedChannel {
    SealedChannel(Box::new(state.into_transport_mode().expect("two messages make it")))
}

/// Begins the client's handshake, after the header that it sends in plain text.
pub(super) fn initiate(token: &JobToken, header: &[u8]) -> (PendingHandshake, HandshakeMessage) {
    let mut state = handshake(token, header, true);
    let greeting = write_handshake(&mut state);
    (PendingHandshake(Box::new(state)), greeting)
}

/// The server's answer; `None` if the client has another token.
pub(super) fn respond(
    token: &JobToken,
    header: &[u8],
    greeting: &HandshakeMessage,
) -> Option<(SealedChannel, HandshakeMessage)> {
    let mut state = handshake(token, header, false);
    read_handshake(&mut state, greeting)?;
    let answer = write_handshake(&mut state);
    Some((into_channel(state), answer))
}

impl PendingHandshake {
    /// Handles the server's answer; `None` if the server has another token.
    pub(super) fn finish(mut self, answer: &HandshakeMessage) -> Option<SealedChannel> {
        read_handshake(&mut self.0, answer)?;
        Some(into_channel(*self.0))
    }
}

impl SealedChannel {
    /// Appends a record: its length (u32) and the sealed bytes.
    pub(super) fn seal(&mut self, what: &[u8], to: &mut Vec<u8>) {
        to.extend_from_slice(&((what.len() + TAG_BYTES) as u32).to_le_bytes());
        let at = to.len();
        to.resize(at + what.len() + TAG_BYTES, 0);
        self.0.write_message(what, &mut to[at..]).expect("blobs fit a message");
    }

    /// The content of a record without its length.
    pub(super) fn open(&mut self, record: &[u8]) -> io::Result<Vec<u8>> {
        let mut opened = vec![0; record.len()];
        let length = self.0.read_message(record, &mut opened).map_err(|_| invalid_data("a forged record"))?;
        opened.truncate(length);
        Ok(opened)
    }
}
