//! A service process that is not ours: it sends what the script says, numbered so that the link takes it.
//!
//! Nonsense alone is refused at once. So it also answers what it is told, and does its ranks' part in what ours have
//! recorded, as an honest one would, and the script spoils that here and there: repeats it, says it of another message,
//! moves its bytes, says more or less than there is (GP-5). Invariant: what it keeps of what it was told is bounded.

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::{Op, Rank};
use outboard_proto::wire::{
    Cts, EarlyCts, Few, FrameHeader, FrameKind, GroupMessage, Message, Number, Origin, Piece, Rts, TransferMessage,
};
use outboard_proto::{Barrier, GroupHandle, GroupSpec, Recording, SpId};

use super::GROUPS;
use super::recordings::{size, tag};
use super::reference::occurrences;
use crate::cluster::{handle, sp_id};
use crate::network::Frame;
use crate::store::Payload;
use crate::tape::Tape;

/// Most bytes that come with one message that nobody asked for.
const MOST_PAYLOAD: u64 = 1 << 16;
/// Messages to it that it remembers.
const MOST_HEARD: usize = 64;
/// Messages in one of its own.
const FEW: usize = 20;

/// What it says to one of our service processes, and how many bytes come along.
#[derive(Debug, Clone)]
pub(super) struct Said {
    to: usize,
    message: Message,
    payload: u32,
}

/// The numbers of a link's next message and of the next of the other end.
#[derive(Debug, Default)]
struct End {
    seq: u32,
    expected: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Possessed {
    pub(super) at: usize,
    /// By service process of ours.
    ends: Vec<End>,
    /// What it has not answered, and who said it.
    heard: VecDeque<(usize, GroupHandle, TransferMessage)>,
    /// Bytes of the messages that it has posted.
    posted: BTreeMap<u64, u64>,
    /// The last number that it has given to a message.
    last: u64,
}

impl Possessed {
    /// Behind all that are ours.
    pub(super) fn new(at: usize) -> Possessed {
        let ends = (0..at).map(|_| End::default()).collect();
        Possessed { at, ends, heard: VecDeque::new(), posted: BTreeMap::new(), last: 0 }
    }

    /// What makes a group ready, as it would have said it, though all at once.
    pub(super) fn create(&self, spec: &GroupSpec, digest: u64) -> Vec<Said> {
        let (group, fingerprint) = (spec.handle, spec.fingerprint());
        let mut sps: Vec<SpId> = Vec::new();
        for member in &spec.members {
            if !sps.contains(&member.sp) {
                sps.push(member.sp);
            }
        }
        let place = |host| sps.iter().position(|sp| *sp == sp_id(host)).map(|at| at as u32);
        let round = |to| Barrier::round_between(sps.len() as u32, place(self.at)?, place(to)?);
        let all = (0..self.at).filter_map(|to| Some((to, round(to)?)));
        let create = |(to, step)| {
            let body = GroupMessage::Create { step, digest, fingerprint };
            Said { to, message: Message::Group { group, body }, payload: 0 }
        };
        all.map(create).collect()
    }

    /// Something was sent to it, which it acknowledges.
    pub(super) fn heard(&mut self, by: usize, header: &[u8], payload_len: u32) {
        let Ok((header, message)) = FrameHeader::decode(header, payload_len) else { return };
        if header.kind != FrameKind::Message {
            return;
        }
        self.ends[by].expected = self.ends[by].expected.max(header.seq.wrapping_add(1));
        if let Ok(Message::Group { group, body: GroupMessage::Transfer(tagged) }) = Message::decode(message) {
            if self.heard.len() == MOST_HEARD {
                self.heard.pop_front();
            }
            self.heard.push_back((by, group, tagged));
        }
    }

    /// What it says, as it travels.
    pub(super) fn frame(&mut self, said: &Said) -> Frame {
        let &Said { to, ref message, payload: payload_len } = said;
        let End { seq, expected: ack } = &mut self.ends[to];
        let (kind, seq, ack) = (FrameKind::Message, std::mem::replace(seq, *seq + 1), *ack);
        let frame =
            FrameHeader { kind, ack_now: false, link: 1, to: 0, seq, ack, payload_len, clock: 1, echo: 2, echo_age: 3 };
        let mut header = Vec::new();
        frame.encode(&mut header);
        message.encode(&mut header);
        let payload = Payload::Bytes(vec![0x5a; payload_len as usize]);
        Frame { from: self.at, to, header: header.into(), payload, payload_len, wire_bytes: 0 }
    }

    /// Something that nobody asked for.
    pub(super) fn any(&mut self, tape: &mut Tape<'_>, to: usize) -> Said {
        let group = usize::from(tape.below(2));
        let (tagged, payload) = transfer_message(tape, GROUPS[group].len() as u8);
        Said { to, message: Message::transfer(handle(group), tagged), payload }
    }

    /// An answer to the first thing that it was told.
    pub(super) fn answer(&mut self, tape: &mut Tape<'_>) -> Vec<Said> {
        let Some((to, group, told)) = self.heard.pop_front() else { return Vec::new() };
        let answers = match told {
            TransferMessage::Offer { origin, rank, first_ready, ready, first_early, early } => {
                let numbers = |eager| {
                    let these = ready.iter().zip(first_ready..).filter(move |(rts, _)| rts.eager == eager);
                    these.map(|(rts, number)| (rts.bytes, number))
                };
                let done = numbers(true).map(|(_, number)| number).collect();
                let cts = numbers(false).map(|(up_to, number)| Cts { number: Number::Rts(number), up_to }).collect();
                let mut answers = vec![(TransferMessage::Done(done), 0), (TransferMessage::Cts(cts), 0)];
                for (cts, number) in early.iter().zip(first_early..) {
                    let EarlyCts { source, tag, occurrence, bytes, up_to } = *cts;
                    if up_to > 0 {
                        answers.extend(data(tape, Number::Early(number), bytes));
                    } else {
                        let rts = Rts { destination: rank, tag, occurrence, bytes, eager: false };
                        answers.push(self.offer((origin, source), [rts].into_iter().collect()));
                    }
                }
                answers
            }
            TransferMessage::Cts(all) => {
                let bytes = |cts: &Cts| match cts.number {
                    Number::Rts(number) => self.posted.get(&number).copied().unwrap_or(100),
                    Number::Early(_) => cts.up_to,
                };
                all.iter().flat_map(|cts| data(tape, cts.number, bytes(cts))).collect()
            }
            // Nothing but the acknowledgement.
            TransferMessage::Done(_) | TransferMessage::Data(_) | TransferMessage::Expected(_) => {
                return vec![Said { to, message: Message::Void, payload: 0 }];
            }
        };
        spoil(tape, (to, group), answers)
    }

    /// What its ranks, of which `theirs` says so, send to or want of a rank of ours that has recorded this.
    pub(super) fn take_part(
        &mut self,
        tape: &mut Tape<'_>,
        to: (usize, GroupHandle),
        (number, recording): (u32, &Recording),
        theirs: impl Fn(Rank) -> bool,
    ) -> Vec<Said> {
        let (call, asks, program) = (1 + u64::from(tape.below(4)), tape.flip(), &recording.program);
        let mut said = Vec::new();
        let origin = Origin::Recorded { recording: number, call };
        for (step, occurrence) in program.steps.iter().zip(occurrences(recording)) {
            match step.op {
                Op::Recv { from: source, index: tag, span } if !asks && theirs(source) => {
                    let eager = span.len <= 32 << 10 && tape.below(4) > 0;
                    let rts = Rts { destination: program.rank, tag, occurrence, bytes: span.len, eager };
                    said.push(self.offer((origin, source), [rts].into_iter().collect()));
                }
                Op::Send { to: destination, index: tag, span } if asks && theirs(destination) && call > 1 => {
                    let (source, bytes) = (program.rank, span.len.max(1));
                    let up_to = if tape.below(4) > 0 { bytes } else { 0 };
                    self.last += 1;
                    let early = vec![EarlyCts { source, tag, occurrence, bytes, up_to }];
                    said.push((clear((origin, destination), self.last, early), 0));
                }
                _ => {}
            }
        }
        said.truncate(FEW);
        spoil(tape, to, said)
    }

    fn offer(&mut self, (origin, rank): (Origin, Rank), ready: Few<Rts>) -> (TransferMessage, u32) {
        let first_ready = self.last + 1;
        self.posted.extend((first_ready..).zip(ready.iter().map(|rts| rts.bytes)));
        self.last += ready.len() as u64;
        let eager: u64 = ready.iter().filter(|rts| rts.eager).map(|rts| rts.bytes).sum();
        let (first_early, early) = (0, Vec::new());
        (TransferMessage::Offer { origin, rank, first_ready, ready, first_early, early }, eager as u32)
    }
}

fn clear((origin, rank): (Origin, Rank), first_early: u64, early: Vec<EarlyCts>) -> TransferMessage {
    TransferMessage::Offer { origin, rank, first_ready: 0, ready: Few::new(), first_early, early }
}

/// So many bytes of a message in one piece or two.
fn data(tape: &mut Tape<'_>, number: Number, bytes: u64) -> [(TransferMessage, u32); 2] {
    let first = if tape.flip() { bytes / 2 } else { bytes };
    [(0, first as u32), (first, (bytes - first) as u32)]
        .map(|(offset, bytes)| (TransferMessage::Data(vec![Piece { number, offset, bytes }]), bytes))
}

/// What is said after all: as a rule all of it as it is, as far as it says anything.
fn spoil(tape: &mut Tape<'_>, (to, group): (usize, GroupHandle), all: Vec<(TransferMessage, u32)>) -> Vec<Said> {
    let mut said = Vec::new();
    for (mut tagged, mut payload) in all {
        let mut times = 1;
        match tape.byte() {
            0..=0xdf => {}
            0xe0..=0xe5 => times = 2,
            0xe6..=0xe9 => payload = size(tape) as u32,
            0xea..=0xec => times = 0,
            _ => payload = twist(tape, &mut tagged, payload),
        }
        let says = match &tagged {
            TransferMessage::Done(numbers) => !numbers.is_empty(),
            TransferMessage::Cts(all) => !all.is_empty(),
            TransferMessage::Data(pieces) => pieces.iter().all(|piece| piece.bytes > 0),
            TransferMessage::Offer { .. } | TransferMessage::Expected(_) => true,
        };
        let message = Message::transfer(group, tagged);
        said.extend((0..times).filter(|_| says).map(|_| Said { to, message: message.clone(), payload }));
    }
    said
}

/// Makes it mean something else; the bytes that come with it.
fn twist(tape: &mut Tape<'_>, transfer: &mut TransferMessage, payload: u32) -> u32 {
    match transfer {
        TransferMessage::Done(numbers) => numbers.push(tape.number()),
        TransferMessage::Cts(all) => all.push(cts(tape)),
        TransferMessage::Expected(fragment) => fragment.offset = tape.number().min(fragment.total),
        TransferMessage::Data(pieces) => {
            let piece = pieces[0];
            match tape.below(4) {
                0 => pieces[0].number = number(tape),
                1 => pieces[0].offset = tape.number(),
                2 => pieces[0].bytes = size(tape).max(1) as u32,
                _ => pieces.push(piece),
            }
            let bytes = pieces.iter().fold(0u32, |sum, piece| sum.saturating_add(piece.bytes));
            return if tape.flip() { bytes } else { payload };
        }
        TransferMessage::Offer { origin, rank, first_ready, ready, first_early, early } => match tape.below(7) {
            0 => *rank = Rank(tape.number32()),
            1 => {
                if let Origin::Recorded { call, .. } = origin {
                    *call = call.saturating_add(1);
                }
            }
            2 => {
                let first = if ready.is_empty() { first_early } else { first_ready };
                *first = tape.number().clamp(1, u64::MAX - 32);
            }
            3 => ready.iter_mut().for_each(|rts| rts.bytes = size(tape)),
            4 => ready.iter_mut().for_each(|rts| rts.eager ^= true),
            5 => early.iter_mut().for_each(|cts| (cts.bytes, cts.up_to) = (tape.number().max(1), 0)),
            _ => early.extend_from_within(..early.len().min(1)),
        },
    }
    payload
}

fn number(tape: &mut Tape<'_>) -> Number {
    if tape.flip() { Number::Rts(tape.number()) } else { Number::Early(tape.number()) }
}

fn cts(tape: &mut Tape<'_>) -> Cts {
    Cts { number: number(tape), up_to: if tape.flip() { size(tape) } else { tape.number() } }
}

fn few<T, All: FromIterator<T>>(tape: &mut Tape<'_>, one: impl Fn(&mut Tape<'_>) -> T) -> All {
    (0..=tape.below(3)).map(|_| one(tape)).collect()
}

fn offer(tape: &mut Tape<'_>, ranks: u8) -> (TransferMessage, u32) {
    let rank = Rank(u32::from(tape.below(ranks + 1)));
    let origin = match u32::from(tape.below(3)) {
        0 => Origin::Single,
        recording => Origin::Recorded { recording, call: 1 + u64::from(tape.below(3)) },
    };
    let first_ready = tape.number().clamp(1, u64::MAX - 32);
    let ready: Few<Rts> = few(tape, |tape| Rts {
        destination: Rank(u32::from(tape.below(ranks))),
        tag: tag(tape),
        occurrence: if origin == Origin::Single { 0 } else { u32::from(tape.below(3)) },
        bytes: if tape.byte() < 0xf0 { size(tape) } else { tape.number() },
        eager: tape.flip(),
    });
    let eager = ready.iter().filter(|rts| rts.eager).fold(0u64, |sum, rts| sum.saturating_add(rts.bytes));
    let payload = if tape.byte() < 0xe0 { eager } else { size(tape) };
    let offer = TransferMessage::Offer { origin, rank, first_ready, ready, first_early: 0, early: Vec::new() };
    (offer, payload.min(MOST_PAYLOAD) as u32)
}

fn early(tape: &mut Tape<'_>, ranks: u8) -> TransferMessage {
    let rank = Rank(u32::from(tape.below(ranks + 1)));
    let origin = Origin::Recorded { recording: 1 + u32::from(tape.below(3)), call: 2 + u64::from(tape.below(3)) };
    let first = tape.number().clamp(1, u64::MAX - 32);
    let early = few(tape, |tape| {
        let bytes = if tape.byte() < 0xf0 { size(tape).max(1) } else { tape.number().max(1) };
        EarlyCts {
            source: Rank(u32::from(tape.below(ranks))),
            tag: tag(tape),
            occurrence: u32::from(tape.below(3)),
            bytes,
            up_to: if tape.flip() { bytes } else { 0 },
        }
    });
    clear((origin, rank), first, early)
}

fn pieces(tape: &mut Tape<'_>) -> (TransferMessage, u32) {
    let pieces: Vec<Piece> = few(tape, |tape| Piece {
        number: number(tape),
        offset: if tape.flip() { 0 } else { tape.number() },
        bytes: size(tape).clamp(1, MOST_PAYLOAD / 4) as u32,
    });
    let payload = if tape.byte() < 0xe0 { pieces.iter().map(|piece| piece.bytes).sum() } else { size(tape) as u32 };
    (TransferMessage::Data(pieces), payload)
}

/// A message about messages of a group, and how many bytes come with it.
pub fn transfer_message(tape: &mut Tape<'_>, ranks: u8) -> (TransferMessage, u32) {
    match tape.below(9) {
        0..=2 => offer(tape, ranks),
        3 => (TransferMessage::Done(few(tape, |tape| tape.number())), 0),
        4 => (TransferMessage::Cts(few(tape, cts)), 0),
        5 | 6 => (early(tape, ranks), 0),
        _ => pieces(tape),
    }
}
