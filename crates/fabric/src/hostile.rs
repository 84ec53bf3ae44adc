//! Scripted attacks of a peer or of a man in the middle on a TCP connection, for fuzzing and tests. The attacks run
//! against the machines that parse the connection's bytes. No sockets, no waiting.
//!
//! A script begins with the kind of connection; acts follow. An honest other end talks to the machine, and the script
//! handles every byte of that end. Panics when something arrives that the other end has not sent.

use crate::secured::{Greeting, HandshakeError, Identity, Sealer, SharedKey, Step, Terms};
use crate::tcp::frames::{Sink, prefix};
use crate::tcp::incoming::{Buffers, Incoming};
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
    /// The other end, once it may, sends a frame: the next bytes give its header in bytes and its payload in KiB.
    pub const FRAME: u8 = 4;
    /// The other end itself sends script bytes instead of a frame, as many as the next byte gives.
    pub const LIE: u8 = 5;
}

/// Flag in a script's first byte: the connection is encrypted.
pub const ENCRYPTED: u8 = 1;
/// Flag in a script's first byte: the machine under test has dialled.
pub const DIALLED: u8 = 2;

const READ: usize = 4096;

/// One end of the connection. An open end is the machine that parses its bytes, or the one that seals them.
enum End<Open> {
    Greeting(Greeting),
    Open(Open),
    Ended,
}

struct Attack {
    encrypts: bool,
    victim: End<Incoming>,
    other: End<Sealer>,
    buffers: Buffers,
    /// Bytes that the other end has sent and the script has not delivered.
    said: Vec<u8>,
    /// Frames that the other end has sent and that have not arrived: header and payload lengths.
    frames: Vec<(usize, usize)>,
    /// Some byte was changed, dropped or inserted on the way.
    harmed: bool,
    /// The other end has sent bytes that are no frame.
    lied: bool,
}

/// Takes up to `most` bytes from the front.
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
/// When the connection accepts something that the other end has not sent, or its bookkeeping breaks.
pub fn play(mut script: &[u8]) {
    let kind = byte(&mut script) as u8;
    let encrypts = kind & ENCRYPTED != 0;
    let (shared, own, theirs) = (SharedKey::default(), Identity::generate(), Identity::generate());
    let terms = |own| Terms { own, shared: &shared, purpose: b"hostile", encrypts };
    let dial = |own, to: &Identity| Greeting::dial(&terms(own), to.public()).expect("good keys");
    let listen = |own| Greeting::listen(&terms(own)).expect("good keys");
    let (victim, other, said) = if kind & DIALLED == 0 {
        let (other, hello) = dial(&theirs, &own);
        (listen(&own), other, hello)
    } else {
        let (victim, hello) = dial(&own, &theirs);
        (victim, listen(&theirs), hello)
    };
    let (victim, other) = (End::Greeting(victim), End::Greeting(other));
    let buffers = Buffers::new(READ, encrypts);
    let mut attack =
        Attack { encrypts, victim, other, buffers, said: Vec::new(), frames: Vec::new(), harmed: false, lied: false };
    if kind & DIALLED == 0 {
        attack.said = said
    } else {
        attack.answer(&said)
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
                let count = if count == usize::from(u8::MAX) { self.said.len() } else { count.min(self.said.len()) };
                let passed: Vec<u8> = self.said.drain(..count).collect();
                self.hear(&passed);
            }
            acts::FLIP if !self.said.is_empty() => {
                let flipped = self.said.remove(0) ^ count as u8;
                self.harmed |= count != 0;
                self.hear(&[flipped]);
            }
            acts::SKIP => self.harmed |= self.said.drain(..count.min(self.said.len())).count() > 0,
            acts::RAW => {
                let raw = take(script, count);
                self.harmed |= !raw.is_empty();
                self.hear(raw);
            }
            acts::FRAME => {
                let (header, payload) = (count, byte(script) << 10);
                if self.say(&[&prefix(header, payload)[..], &vec![7; header + payload]].concat()) {
                    self.frames.push((header, payload));
                }
            }
            _ => {
                let lie = take(script, count);
                self.lied |= self.say(lie) && !lie.is_empty();
            }
        }
    }

    /// The other end sends bytes of the stream of frames, if it may.
    fn say(&mut self, bytes: &[u8]) -> bool {
        let End::Open(sealer) = &mut self.other else { return false };
        if self.encrypts {
            sealer.seal([bytes], &mut Vec::new(), &mut self.said);
        } else {
            self.said.extend_from_slice(bytes);
        }
        true
    }

    /// The other end receives a handshake message of the machine.
    fn answer(&mut self, message: &[u8]) {
        let End::Greeting(mut greeting) = std::mem::replace(&mut self.other, End::Ended) else { return };
        assert_eq!(greeting.room().len(), message.len(), "messages have one length each");
        greeting.room().copy_from_slice(message);
        self.other = match greeting.advance(message.len()) {
            Ok(Step::Wait(_)) => unreachable!("the message is whole"),
            Ok(Step::Say(greeting, message)) => {
                self.said.extend(message);
                End::Greeting(greeting)
            }
            Ok(Step::Proven { welcome, keys, .. }) => {
                self.said.extend(welcome);
                End::Open(keys.sealer)
            }
            Ok(Step::Welcome(keys)) => End::Open(keys.sealer),
            // The bytes received before were no valid handshake.
            Err(_) => End::Ended,
        };
    }

    fn hear(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match std::mem::replace(&mut self.victim, End::Ended) {
                End::Greeting(mut greeting) => {
                    let room = greeting.room();
                    let now = take(&mut bytes, room.len());
                    room[..now.len()].copy_from_slice(now);
                    self.go_on(greeting.advance(now.len()));
                }
                End::Open(mut incoming) => {
                    let room = incoming.room(&mut self.buffers);
                    let now = take(&mut bytes, room.len());
                    room[..now.len()].copy_from_slice(now);
                    if self.arrived(&mut incoming, now.len()) {
                        self.victim = End::Open(incoming);
                    }
                }
                End::Ended => return,
            }
        }
    }

    fn go_on(&mut self, step: Result<Step, HandshakeError>) {
        let keys = match step {
            Ok(Step::Wait(greeting)) => return self.victim = End::Greeting(greeting),
            Ok(Step::Say(greeting, message)) => {
                self.victim = End::Greeting(greeting);
                return self.answer(&message);
            }
            Ok(Step::Proven { welcome, keys, .. }) => {
                self.answer(&welcome);
                keys
            }
            Ok(Step::Welcome(keys)) => keys,
            Err(_) => return assert!(self.harmed, "an honest handshake is refused"),
        };
        assert!(!self.harmed, "a handshake that was tampered with succeeds");
        self.victim = End::Open(Incoming::new(self.encrypts.then_some(keys.opener)));
    }

    /// `taken` bytes are in place. Returns whether the connection goes on.
    fn arrived(&mut self, incoming: &mut Incoming, taken: usize) -> bool {
        let mut arrived = Vec::new();
        let receiver = &mut |event: FabricEvent<'_>| match event {
            FabricEvent::Message { header, payload, .. } => arrived.push((header.len(), payload.len())),
            other => panic!("{other:?} comes from no stream"),
        };
        let taken = incoming.advance(taken, &mut self.buffers, &mut Sink { from: PeerId(1), receiver });
        if !self.lied && (self.encrypts || !self.harmed) {
            assert!(self.frames.starts_with(&arrived), "{arrived:?} of {:?}", self.frames);
            self.frames.drain(..arrived.len());
            assert!(taken.is_ok() || self.harmed, "an honest frame is refused: {taken:?}");
        }
        taken.is_ok()
    }
}

/// Seed scripts: honest conversations, each also with one act inserted at every position.
#[must_use]
pub fn scripts() -> Vec<Vec<u8>> {
    use acts::{FLIP, FRAME, LIE, PASS, RAW, SKIP};
    let all = [PASS, u8::MAX];
    let honest = [&all[..], &all, &[FRAME, 9, 0], &all, &[FRAME, 40, 200, PASS, 200], &[FRAME, 0, 3], &all];
    let bad: [&[u8]; 7] = [
        &[FLIP, 1],
        &[PASS, 1, FLIP, 128],
        &[SKIP, 16],
        &[RAW, 4, 255, 255, 255, 255],
        &[RAW, 2, 16, 0],
        &[LIE, 8, 0, 0, 0, 1, 0, 0, 0, 1],
        &[LIE, 9, 1, 0, 0, 0, 1, 0, 0, 0, 7],
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
    fn no_script_makes_a_connection_believe_what_was_not_said() {
        scripts().iter().for_each(|script| play(script));
    }
}
