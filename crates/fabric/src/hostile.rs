//! Scripted attacks of a peer or of a man in the middle on a TCP connection, for fuzzing and tests. The attacks run
//! against the machines that parse the connection's bytes. No sockets, no waiting.
//!
//! A script begins with the kind of connection; acts follow. An honest other end sends bytes to the machine, and the
//! script decides what happens to each byte. Panics when something arrives that the other end has not sent.

use crate::secured::{Handshake, HandshakeError, HandshakeStep, HandshakeTerms, Identity, Sealer, SharedKey};
use crate::tcp::frame_reader::{FrameReader, ReadBuffers};
use crate::tcp::frames::{FrameSink, prefix};
use crate::{FabricEvent, PeerId};

/// The acts of a script, each named by one byte.
pub mod acts {
    /// Delivers bytes of the other end: all, or as many as the next byte gives.
    pub const PASS: u8 = 0;
    /// Delivers one byte of the other end with the bits of the next script byte flipped.
    pub const FLIP: u8 = 1;
    /// Drops bytes of the other end, as many as the next byte gives.
    pub const SKIP: u8 = 2;
    /// Delivers bytes of the script, as many as the next byte gives.
    pub const RAW: u8 = 3;
    /// The other end sends a frame if its handshake has ended. The next two bytes give the header's length in bytes and
    /// the payload's length in KiB.
    pub const FRAME: u8 = 4;
    /// The other end sends script bytes instead of a frame, as many as the next byte gives.
    pub const GARBAGE: u8 = 5;
}

/// Flag in a script's first byte: the connection is encrypted.
pub const ENCRYPTED: u8 = 1;
/// Flag in a script's first byte: the machine under test has dialled.
pub const DIALLED: u8 = 2;

const READ: usize = 4096;

/// One end of the connection. Once open, the machine under test is a reader of frames, and the other end is a sealer.
enum AttackEnd<Open> {
    Handshake(Handshake),
    Open(Open),
    Ended,
}

struct Attack {
    encrypts: bool,
    victim: AttackEnd<FrameReader>,
    other: AttackEnd<Sealer>,
    buffers: ReadBuffers,
    /// Bytes that the other end has sent and the script has not delivered.
    in_transit: Vec<u8>,
    /// Frames that the other end has sent and that have not arrived: header and payload lengths.
    frames: Vec<(usize, usize)>,
    /// Some byte was changed, dropped or inserted on the way.
    tampered: bool,
    /// The other end has sent bytes that are no frame.
    sent_garbage: bool,
}

/// Takes up to `most` bytes from the front of the script.
fn take<'a>(script: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = script.split_at(most.min(script.len()));
    *script = rest;
    taken
}

fn byte(script: &mut &[u8]) -> usize {
    take(script, 1).first().copied().unwrap_or(0).into()
}

/// Plays a script.
///
/// # Panics
/// When the connection accepts something that the other end has not sent, or the connection's bookkeeping breaks.
pub fn play(mut script: &[u8]) {
    let kind = byte(&mut script) as u8;
    let encrypts = kind & ENCRYPTED != 0;
    let (shared, own, theirs) = (SharedKey::default(), Identity::generate(), Identity::generate());
    let terms = |own| HandshakeTerms { own, shared: &shared, purpose: b"hostile", encrypts };
    let dial = |own, to: &Identity| Handshake::dial(&terms(own), to.public()).expect("good keys");
    let listen = |own| Handshake::listen(&terms(own)).expect("good keys");
    let (victim, other, in_transit) = if kind & DIALLED == 0 {
        let (other, hello) = dial(&theirs, &own);
        (listen(&own), other, hello)
    } else {
        let (victim, hello) = dial(&own, &theirs);
        (victim, listen(&theirs), hello)
    };
    let (victim, other) = (AttackEnd::Handshake(victim), AttackEnd::Handshake(other));
    let buffers = ReadBuffers::new(READ, encrypts);
    let mut attack = Attack {
        encrypts,
        victim,
        other,
        buffers,
        in_transit: Vec::new(),
        frames: Vec::new(),
        tampered: false,
        sent_garbage: false,
    };
    if kind & DIALLED == 0 {
        attack.in_transit = in_transit
    } else {
        attack.answer(&in_transit)
    }
    while !script.is_empty() {
        attack.act(byte(&mut script) as u8 % 6, &mut script);
    }
}

impl Attack {
    fn act(&mut self, act: u8, script: &mut &[u8]) {
        let count = byte(script);
        match act {
            acts::PASS => {
                let count = if count == usize::from(u8::MAX) {
                    self.in_transit.len()
                } else {
                    count.min(self.in_transit.len())
                };
                let passed: Vec<u8> = self.in_transit.drain(..count).collect();
                self.receive(&passed);
            }
            acts::FLIP if !self.in_transit.is_empty() => {
                let flipped = self.in_transit.remove(0) ^ count as u8;
                self.tampered |= count != 0;
                self.receive(&[flipped]);
            }
            acts::SKIP => self.tampered |= self.in_transit.drain(..count.min(self.in_transit.len())).count() > 0,
            acts::RAW => {
                let raw = take(script, count);
                self.tampered |= !raw.is_empty();
                self.receive(raw);
            }
            acts::FRAME => {
                let (header, payload) = (count, byte(script) << 10);
                if self.send(&[&prefix(header, payload)[..], &vec![7; header + payload]].concat()) {
                    self.frames.push((header, payload));
                }
            }
            _ => {
                let garbage = take(script, count);
                self.sent_garbage |= self.send(garbage) && !garbage.is_empty();
            }
        }
    }

    /// Sends bytes of the other end's stream of frames. Returns false if the other end's handshake has not succeeded.
    fn send(&mut self, bytes: &[u8]) -> bool {
        let AttackEnd::Open(sealer) = &mut self.other else { return false };
        if self.encrypts {
            sealer.seal([bytes], &mut Vec::new(), &mut self.in_transit);
        } else {
            self.in_transit.extend_from_slice(bytes);
        }
        true
    }

    /// Passes a handshake message of the machine to the other end.
    fn answer(&mut self, message: &[u8]) {
        let AttackEnd::Handshake(mut handshake) = std::mem::replace(&mut self.other, AttackEnd::Ended) else { return };
        assert_eq!(handshake.room().len(), message.len(), "messages have one length each");
        handshake.room().copy_from_slice(message);
        self.other = match handshake.advance(message.len()) {
            Ok(HandshakeStep::Wait(_)) => unreachable!("the message is whole"),
            Ok(HandshakeStep::Send(handshake, message)) => {
                self.in_transit.extend(message);
                AttackEnd::Handshake(handshake)
            }
            Ok(HandshakeStep::Proven { welcome, keys, .. }) => {
                self.in_transit.extend(welcome);
                AttackEnd::Open(keys.sealer)
            }
            Ok(HandshakeStep::Welcome(keys)) => AttackEnd::Open(keys.sealer),
            // The bytes received before were no valid handshake.
            Err(_) => AttackEnd::Ended,
        };
    }

    fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match std::mem::replace(&mut self.victim, AttackEnd::Ended) {
                AttackEnd::Handshake(mut handshake) => {
                    let room = handshake.room();
                    let now = take(&mut bytes, room.len());
                    room[..now.len()].copy_from_slice(now);
                    self.advance_victim(handshake.advance(now.len()));
                }
                AttackEnd::Open(mut frame_reader) => {
                    let room = frame_reader.room(&mut self.buffers);
                    let now = take(&mut bytes, room.len());
                    room[..now.len()].copy_from_slice(now);
                    if self.arrived(&mut frame_reader, now.len()) {
                        self.victim = AttackEnd::Open(frame_reader);
                    }
                }
                AttackEnd::Ended => return,
            }
        }
    }

    fn advance_victim(&mut self, step: Result<HandshakeStep, HandshakeError>) {
        let keys = match step {
            Ok(HandshakeStep::Wait(handshake)) => return self.victim = AttackEnd::Handshake(handshake),
            Ok(HandshakeStep::Send(handshake, message)) => {
                self.victim = AttackEnd::Handshake(handshake);
                return self.answer(&message);
            }
            Ok(HandshakeStep::Proven { welcome, keys, .. }) => {
                self.answer(&welcome);
                keys
            }
            Ok(HandshakeStep::Welcome(keys)) => keys,
            Err(_) => return assert!(self.tampered, "an honest handshake is refused"),
        };
        assert!(!self.tampered, "a handshake that was tampered with succeeds");
        self.victim = AttackEnd::Open(FrameReader::new(self.encrypts.then_some(keys.opener)));
    }

    /// Handles `taken` bytes in the reader's room. Returns whether the connection goes on.
    fn arrived(&mut self, frame_reader: &mut FrameReader, taken: usize) -> bool {
        let mut arrived = Vec::new();
        let receiver = &mut |event: FabricEvent<'_>| match event {
            FabricEvent::Message { header, payload, .. } => arrived.push((header.len(), payload.len())),
            other => panic!("{other:?} comes from no stream"),
        };
        let taken = frame_reader.advance(taken, &mut self.buffers, &mut FrameSink { from: PeerId(1), receiver });
        if !self.sent_garbage && (self.encrypts || !self.tampered) {
            assert!(self.frames.starts_with(&arrived), "{arrived:?} of {:?}", self.frames);
            self.frames.drain(..arrived.len());
            assert!(taken.is_ok() || self.tampered, "an honest frame is refused: {taken:?}");
        }
        taken.is_ok()
    }
}

/// Seed scripts: honest conversations, each also with one act inserted at every position.
#[must_use]
pub fn scripts() -> Vec<Vec<u8>> {
    use acts::{FLIP, FRAME, GARBAGE, PASS, RAW, SKIP};
    let all = [PASS, u8::MAX];
    let honest = [&all[..], &all, &[FRAME, 9, 0], &all, &[FRAME, 40, 200, PASS, 200], &[FRAME, 0, 3], &all];
    let bad: [&[u8]; 7] = [
        &[FLIP, 1],
        &[PASS, 1, FLIP, 128],
        &[SKIP, 16],
        &[RAW, 4, 255, 255, 255, 255],
        &[RAW, 2, 16, 0],
        &[GARBAGE, 8, 0, 0, 0, 1, 0, 0, 0, 1],
        &[GARBAGE, 9, 1, 0, 0, 0, 1, 0, 0, 0, 7],
    ];
    let mut scripts = Vec::new();
    for kind in 0..4 {
        scripts.push([&[kind], &honest.concat()[..]].concat());
        for act in bad {
            for place in 0..honest.len() {
                let [before, behind] = [&honest[..place], &honest[place..]].map(<[&[u8]]>::concat);
                scripts.push([&[kind][..], &before, act, &behind, &all].concat());
            }
        }
    }
    scripts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_makes_a_connection_accept_unsent_bytes() {
        scripts().iter().for_each(|script| play(script));
    }
}
