//! A service process that is not ours: it sends what the script says, numbered so that the link takes it.

use outboard_plan::Rank;
use outboard_proto::GroupSpec;
use outboard_proto::wire::{FrameHeader, FrameKind, Message, Posted, TaggedMessage};

use super::GROUPS;
use super::recordings::{size, tag};
use crate::network::Frame;
use crate::oracle::{handle, sp_id};
use crate::store::Payload;
use crate::tape::Tape;

/// Most bytes that come with one message.
const MOST_PAYLOAD: u64 = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Possessed {
    seq: u32,
    /// The message of the honest that it waits for.
    expected: u32,
}

impl Possessed {
    /// What makes a group ready, as it would have said it.
    pub(super) fn create(spec: &GroupSpec, digest: u64) -> Message {
        let (group, fingerprint) = (spec.handle, spec.fingerprint());
        Message::Create { group, step: 0, sp: sp_id(1), digest, fingerprint }
    }

    /// Something was sent to it, which it acknowledges.
    pub(super) fn heard(&mut self, header: &[u8], payload_len: u32) {
        if let Ok((header, _)) = FrameHeader::decode(header, payload_len)
            && header.kind == FrameKind::Message
        {
            self.expected = self.expected.max(header.seq.wrapping_add(1));
        }
    }

    /// The next thing that it says.
    pub(super) fn says(&mut self, message: &Message, payload_len: u32) -> Frame {
        let (kind, seq, ack) = (FrameKind::Message, self.seq, self.expected);
        self.seq += 1;
        let frame = FrameHeader { kind, ack_now: false, seq, ack, payload_len, clock: 1, echo: 2, echo_age: 3 };
        let mut header = Vec::new();
        frame.encode(&mut header);
        message.encode(&mut header);
        let payload = Payload::Bytes(vec![0x5a; payload_len as usize]);
        Frame { from: 1, to: 0, header, payload, payload_len, wire_bytes: 0 }
    }
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

/// A message about messages of a group, and how many bytes come with it.
pub fn tagged_message(tape: &mut Tape<'_>, ranks: u8) -> (TaggedMessage, u32) {
    match tape.below(6) {
        0..=2 => post(tape, ranks),
        3 => (TaggedMessage::Took { numbers: numbers(tape) }, 0),
        4 => (TaggedMessage::Pull { numbers: numbers(tape) }, 0),
        _ => {
            let offset = if tape.flip() { 0 } else { size(tape) };
            (TaggedMessage::Part { number: tape.number(), offset }, size(tape) as u32)
        }
    }
}

/// The same of one of the groups here.
pub(super) fn message(tape: &mut Tape<'_>) -> (Message, u32) {
    let group = usize::from(tape.below(2));
    let (tagged, payload) = tagged_message(tape, GROUPS[group].len() as u8);
    (Message::Tagged { group: handle(group), tagged }, payload)
}
