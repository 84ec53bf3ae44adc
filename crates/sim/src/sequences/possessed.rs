//! A service process that is not ours: it sends what the script says, numbered so that the link takes it.
//!
//! Nonsense alone is refused at once. So it also answers what it is told, and does its ranks' part in what ours have
//! recorded, as an honest one would, and the script spoils that here and there: repeats it, says it of another message,
//! moves its bytes, says more or less than there is (GP-5). Invariant: what it keeps of what it was told is bounded.

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::{Op, Rank};
use outboard_proto::wire::{Filled, FrameHeader, FrameKind, Message, Posted, TaggedMessage, Wanted};
use outboard_proto::{GroupHandle, GroupSpec, Recording};

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
    heard: VecDeque<(usize, GroupHandle, TaggedMessage)>,
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

    /// What makes a group ready, as it would have said it, and some more.
    pub(super) fn create(&self, spec: &GroupSpec, digest: u64) -> Vec<Said> {
        let (group, fingerprint, sp) = (spec.handle, spec.fingerprint(), sp_id(self.at));
        let all = (0..self.at).flat_map(|to| (0..2).map(move |step| (to, step)));
        let create =
            |(to, step)| Said { to, message: Message::Create { group, step, sp, digest, fingerprint }, payload: 0 };
        all.map(create).collect()
    }

    /// Something was sent to it, which it acknowledges.
    pub(super) fn heard(&mut self, by: usize, header: &[u8], payload_len: u32) {
        let Ok((header, message)) = FrameHeader::decode(header, payload_len) else { return };
        if header.kind != FrameKind::Message {
            return;
        }
        self.ends[by].expected = self.ends[by].expected.max(header.seq.wrapping_add(1));
        if let Ok(Message::Tagged { group, tagged }) = Message::decode(message) {
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
        let frame = FrameHeader { kind, ack_now: false, seq, ack, payload_len, clock: 1, echo: 2, echo_age: 3 };
        let mut header = Vec::new();
        frame.encode(&mut header);
        message.encode(&mut header);
        let payload = Payload::Bytes(vec![0x5a; payload_len as usize]);
        Frame { from: self.at, to, header, payload, payload_len, wire_bytes: 0 }
    }

    /// Something that nobody asked for.
    pub(super) fn any(&mut self, tape: &mut Tape<'_>, to: usize) -> Said {
        let group = usize::from(tape.below(2));
        let (tagged, payload) = tagged_message(tape, GROUPS[group].len() as u8);
        Said { to, message: Message::Tagged { group: handle(group), tagged }, payload }
    }

    /// An answer to the first thing that it was told.
    pub(super) fn answer(&mut self, tape: &mut Tape<'_>) -> Vec<Said> {
        let Some((to, group, told)) = self.heard.pop_front() else { return Vec::new() };
        let answers = match told {
            TaggedMessage::Post { first, messages, .. } => {
                let numbers = |eager| {
                    let these = messages.iter().zip(first..).filter(move |(posted, _)| posted.eager == eager);
                    these.map(|(_, number)| number).collect::<Vec<u64>>()
                };
                let answers = [
                    (TaggedMessage::Took { numbers: numbers(true) }, 0),
                    (TaggedMessage::Pull { numbers: numbers(false) }, 0),
                ];
                answers.to_vec()
            }
            TaggedMessage::Pull { numbers } => {
                let part = |number: &u64| {
                    let bytes = self.posted.get(number).copied().unwrap_or(100);
                    pieces(tape, bytes)
                        .map(|(offset, bytes)| (TaggedMessage::Part { number: *number, offset }, bytes))
                        .to_vec()
                };
                numbers.iter().flat_map(part).collect()
            }
            TaggedMessage::Ask { destination, recording, call, first, messages } => {
                let mut answers = Vec::new();
                for (wanted, number) in messages.iter().zip(first..) {
                    let Wanted { source, tag, occurrence, bytes, room } = *wanted;
                    if room {
                        let fill =
                            |(offset, bytes)| TaggedMessage::Fill { pieces: vec![Filled { number, offset, bytes }] };
                        answers.extend(pieces(tape, bytes).map(|piece| (fill(piece), piece.1)));
                    } else {
                        let posted = Posted { destination, tag, occurrence, bytes, eager: false };
                        answers.push(self.post((source, recording, call), vec![posted]));
                    }
                }
                answers
            }
            // Nothing but the acknowledgement.
            TaggedMessage::Took { .. } | TaggedMessage::Part { .. } | TaggedMessage::Fill { .. } => {
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
        for (step, occurrence) in program.steps.iter().zip(occurrences(recording)) {
            match step.op {
                Op::Recv { from: source, index: tag, span } if !asks && theirs(source) => {
                    let eager = span.len <= 32 << 10 && tape.below(4) > 0;
                    let posted = Posted { destination: program.rank, tag, occurrence, bytes: span.len, eager };
                    said.push(self.post((source, number, call), vec![posted]));
                }
                Op::Send { to: destination, index: tag, span } if asks && theirs(destination) => {
                    let (source, bytes) = (program.rank, span.len);
                    let wanted = Wanted { source, tag, occurrence, bytes, room: tape.below(4) > 0 };
                    self.last += 1;
                    let (first, messages) = (self.last, vec![wanted]);
                    said.push((TaggedMessage::Ask { destination, recording: number, call, first, messages }, 0));
                }
                _ => {}
            }
        }
        said.truncate(FEW);
        spoil(tape, to, said)
    }

    fn post(&mut self, (source, recording, call): (Rank, u32, u64), messages: Vec<Posted>) -> (TaggedMessage, u32) {
        let first = self.last + 1;
        self.posted.extend((first..).zip(messages.iter().map(|posted| posted.bytes)));
        self.last += messages.len() as u64;
        let eager: u64 = messages.iter().filter(|posted| posted.eager).map(|posted| posted.bytes).sum();
        (TaggedMessage::Post { source, recording, call, first, messages }, eager as u32)
    }
}

/// So many bytes in one piece or two: offset and bytes, none if there are none.
fn pieces(tape: &mut Tape<'_>, bytes: u64) -> [(u64, u32); 2] {
    let first = if tape.flip() { bytes / 2 } else { bytes };
    [(0, first as u32), (first, (bytes - first) as u32)]
}

/// What is said after all: as a rule all of it as it is, as far as it says anything.
fn spoil(tape: &mut Tape<'_>, (to, group): (usize, GroupHandle), all: Vec<(TaggedMessage, u32)>) -> Vec<Said> {
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
            TaggedMessage::Took { numbers } | TaggedMessage::Pull { numbers } => !numbers.is_empty(),
            TaggedMessage::Fill { pieces } => pieces.iter().all(|piece| piece.bytes > 0),
            TaggedMessage::Part { .. } => payload > 0,
            TaggedMessage::Post { .. } | TaggedMessage::Ask { .. } => true,
        };
        let message = Message::Tagged { group, tagged };
        said.extend((0..times).filter(|_| says).map(|_| Said { to, message: message.clone(), payload }));
    }
    said
}

/// Makes it mean something else; the bytes that come with it.
fn twist(tape: &mut Tape<'_>, tagged: &mut TaggedMessage, payload: u32) -> u32 {
    match tagged {
        TaggedMessage::Took { numbers } | TaggedMessage::Pull { numbers } => numbers.push(tape.number()),
        TaggedMessage::Part { number, offset } => {
            *(if tape.flip() { number } else { offset }) = tape.number();
        }
        TaggedMessage::Fill { pieces } => {
            let piece = pieces[0];
            match tape.below(4) {
                0 => pieces[0].number = tape.number(),
                1 => pieces[0].offset = tape.number(),
                2 => pieces[0].bytes = size(tape).max(1) as u32,
                _ => pieces.push(piece),
            }
            let bytes = pieces.iter().fold(0u32, |sum, piece| sum.saturating_add(piece.bytes));
            return if tape.flip() { bytes } else { payload };
        }
        TaggedMessage::Post { source, call, messages, .. } => match tape.below(4) {
            0 => *source = Rank(tape.number32()),
            1 => *call = call.saturating_add(1),
            2 => messages[0].bytes = size(tape),
            _ => messages[0].eager ^= true,
        },
        TaggedMessage::Ask { destination, call, first, messages, .. } => match tape.below(6) {
            0 => *destination = Rank(tape.number32()),
            1 => *call = call.saturating_add(1),
            2 => *first = tape.number().min(u64::MAX - 1),
            3 => messages[0].bytes = tape.number(),
            4 => messages[0].source = Rank(tape.number32()),
            _ => messages.extend_from_within(..1),
        },
    }
    payload
}

fn numbers(tape: &mut Tape<'_>) -> Vec<u64> {
    (0..=tape.below(3)).map(|_| tape.number()).collect()
}

fn post(tape: &mut Tape<'_>, ranks: u8) -> (TaggedMessage, u32) {
    let source = Rank(u32::from(tape.below(ranks + 1)));
    let recording = u32::from(tape.below(3));
    let call = if recording == 0 { 0 } else { 1 + u64::from(tape.below(3)) };
    let first = tape.number();
    let posted = |tape: &mut Tape<'_>| Posted {
        destination: Rank(u32::from(tape.below(ranks))),
        tag: tag(tape),
        occurrence: if recording == 0 { 0 } else { u32::from(tape.below(3)) },
        bytes: if tape.byte() < 0xf0 { size(tape) } else { tape.number() },
        eager: tape.flip(),
    };
    let messages: Vec<Posted> = (0..=tape.below(3)).map(|_| posted(tape)).collect();
    let eager = messages.iter().filter(|posted| posted.eager).fold(0u64, |sum, p| sum.saturating_add(p.bytes));
    let payload = if tape.byte() < 0xe0 { eager } else { size(tape) };
    (TaggedMessage::Post { source, recording, call, first, messages }, payload.min(MOST_PAYLOAD) as u32)
}

fn wanted(tape: &mut Tape<'_>, ranks: u8) -> TaggedMessage {
    let destination = Rank(u32::from(tape.below(ranks + 1)));
    let (recording, call, first) = (1 + u32::from(tape.below(3)), 2 + u64::from(tape.below(3)), tape.number());
    let wanted = |tape: &mut Tape<'_>| Wanted {
        source: Rank(u32::from(tape.below(ranks))),
        tag: tag(tape),
        occurrence: u32::from(tape.below(3)),
        bytes: if tape.byte() < 0xf0 { size(tape) } else { tape.number() },
        room: tape.flip(),
    };
    let messages = (0..=tape.below(3)).map(|_| wanted(tape)).collect();
    TaggedMessage::Ask { destination, recording, call, first, messages }
}

fn filled(tape: &mut Tape<'_>) -> (TaggedMessage, u32) {
    let piece = |tape: &mut Tape<'_>| Filled {
        number: tape.number(),
        offset: if tape.flip() { 0 } else { tape.number() },
        bytes: size(tape).clamp(1, MOST_PAYLOAD / 4) as u32,
    };
    let pieces: Vec<Filled> = (0..=tape.below(3)).map(|_| piece(tape)).collect();
    let payload = if tape.byte() < 0xe0 { pieces.iter().map(|piece| piece.bytes).sum() } else { size(tape) as u32 };
    (TaggedMessage::Fill { pieces }, payload)
}

/// A message about messages of a group, and how many bytes come with it.
pub fn tagged_message(tape: &mut Tape<'_>, ranks: u8) -> (TaggedMessage, u32) {
    match tape.below(9) {
        0..=2 => post(tape, ranks),
        3 => (TaggedMessage::Took { numbers: numbers(tape) }, 0),
        4 => (TaggedMessage::Pull { numbers: numbers(tape) }, 0),
        5 => {
            let offset = if tape.flip() { 0 } else { size(tape) };
            (TaggedMessage::Part { number: tape.number(), offset }, size(tape) as u32)
        }
        6 | 7 => (wanted(tape, ranks), 0),
        _ => filled(tape),
    }
}
