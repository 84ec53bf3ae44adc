//! What the hostile send: messages, frames and datagrams put together from the tape.

use outboard_plan::{Rank, Reduction};
use outboard_proto::wire::{
    Cts, DATAGRAM_HEADER_BYTES, DatagramHeader, EarlyCts, Fragment, FrameHeader, FrameKind, GroupMessage,
    InstanceMessage, MAX_BLOCKS, MAX_OFFERS, MAX_RANGES, MAX_SOURCES, Message, MulticastKey, MulticastMessage, Number,
    Origin, PayloadHash, Rts, TransferMessage,
};
use outboard_proto::{
    Absentee, Absentees, CollectiveError, Config, GroupHandle, InstanceId, MAX_ABSENT, OfferId, Refusal, Signature,
    SpId,
};

use super::config;
use crate::cluster::{handle, sp_id};
use crate::pattern::Pattern;
use crate::scenario::CallPlan;
use crate::sequences::transfer_message;
use crate::tape::Tape;

/// Whatever the codec makes of the script; what decodes survives encoding.
pub(super) fn decode(script: &[u8]) {
    let _ = DatagramHeader::parse(script);
    let key = MulticastKey::new([1, 2], true);
    let _ = DatagramHeader::check(script, &key, InstanceId(1), key.hasher().hash(script));
    let _ = FrameHeader::decode(script, 0);
    if let Ok(message) = Message::decode(script) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(bytes, script, "{message:?} has two encodings");
    }
}

/// One that is there, as a rule.
fn sp(tape: &mut Tape<'_>) -> SpId {
    SpId(sp_id(0).0.wrapping_add(tape.number()))
}

fn group(tape: &mut Tape<'_>) -> GroupHandle {
    match tape.below(8) {
        0..=1 => handle(0),
        2..=6 => handle(1),
        _ => GroupHandle(tape.number32()),
    }
}

fn signature(tape: &mut Tape<'_>) -> Signature {
    // Whether there is such a reduction is the decoder's affair; most of these there are.
    let code = u16::from(tape.below(13)) << 8 | u16::from(tape.below(20));
    let reduction = Reduction::from_code(code).unwrap_or(super::sum());
    let all = Pattern::all(tape.number32() as usize, tape.number(), reduction);
    let bytes = match tape.below(4) {
        0 => tape.number(),
        1 => 2500,
        2 => 9000,
        _ => 1000,
    };
    CallPlan::of(all[usize::from(tape.byte()) % all.len()], bytes).signature_of(0, super::GROUPS[1].len())
}

fn ranges(tape: &mut Tape<'_>) -> Vec<(u32, u32)> {
    let count = match tape.byte() {
        0xff => MAX_RANGES,
        few => usize::from(few % 3),
    };
    (0..count).map(|_| (tape.number32(), tape.number32())).collect()
}

fn blocks(tape: &mut Tape<'_>) -> usize {
    match tape.byte() {
        0xff => MAX_BLOCKS,
        few => usize::from(few % 4),
    }
}

/// What a call without a barrier offers.
fn offer(tape: &mut Tape<'_>, instance: InstanceId, rank: Rank) -> TransferMessage {
    let origin = Origin::Instance { instance, signature: signature(tape), signer: rank };
    let rts = |tape: &mut Tape<'_>| Rts {
        destination: Rank(tape.number32()),
        tag: 0,
        occurrence: 0,
        bytes: tape.number(),
        eager: tape.below(8) == 0,
    };
    let early = |tape: &mut Tape<'_>| {
        let bytes = tape.number().max(1);
        let up_to = if tape.flip() { tape.number().min(bytes) } else { bytes.min(4096) };
        EarlyCts { source: Rank(tape.number32()), tag: 0, occurrence: 0, bytes, up_to }
    };
    let (n, most) = (blocks(tape).min(12), blocks(tape).min(12));
    let m = (0..=most).rev().find(|&m| origin.fits(n, m)).expect("twelve fit alone");
    let first = |tape: &mut Tape<'_>, entries| if entries == 0 { 0 } else { tape.number().clamp(1, u64::MAX - 32) };
    TransferMessage::Offer {
        origin,
        rank,
        first_ready: first(tape, n),
        ready: (0..n).map(|_| rts(tape)).collect(),
        first_early: first(tape, m),
        early: (0..m).map(|_| early(tape)).collect(),
    }
}

fn error(tape: &mut Tape<'_>) -> CollectiveError {
    let (rank, sp, another) = (Rank(tape.number32()), sp(tape), sp(tape));
    match tape.below(10) {
        9 => CollectiveError::Refused { rank, why: Refusal::Groups },
        8 => CollectiveError::Staging { rank, bytes: tape.number() },
        0 => CollectiveError::RankLost(rank),
        1 => CollectiveError::PeerLost { sp, rank },
        2 => {
            let (a, b) = (signature(tape), signature(tape));
            CollectiveError::Mismatch { a_rank: rank, a, b_rank: Rank(tape.number32()), b }
        }
        3 => CollectiveError::Memory(rank),
        7 => {
            let (sent, expected) = (tape.number(), tape.number());
            CollectiveError::Block { source_rank: rank, sent, destination: Rank(tape.number32()), expected }
        }
        4 => CollectiveError::Protocol(sp),
        5 => CollectiveError::Configuration { a: sp, a_digest: tape.number(), b: another, b_digest: tape.number() },
        _ => CollectiveError::HandleTaken(GroupHandle(tape.number32())),
    }
}

fn fingerprint(tape: &mut Tape<'_>) -> u64 {
    match tape.below(3) {
        0 => super::spec(1).fingerprint(),
        1 => super::spec(0).fingerprint(),
        _ => tape.word(),
    }
}

/// A message.
pub(super) fn message(tape: &mut Tape<'_>) -> (Message, u32) {
    let kind = tape.below(21);
    let group = group(tape);
    if kind == 15 {
        let (transfer, payload) = transfer_message(tape, 4);
        return (Message::transfer(group, transfer), payload);
    }
    (collective(tape, kind, group), payload(tape))
}

fn collective(tape: &mut Tape<'_>, kind: u8, group: GroupHandle) -> Message {
    let instance = InstanceId(tape.number().max(1));
    let source = Rank(tape.number32());
    let multicast = |multicast| Message::instance(group, instance, InstanceMessage::Multicast(multicast));
    match kind {
        0 => Message::Void,
        1 => {
            let step = tape.byte();
            let digest = match tape.below(3) {
                0 => config(false).digest(),
                1 => config(true).digest(),
                _ => Config::default().digest(),
            };
            let body = GroupMessage::Create { step, digest, fingerprint: fingerprint(tape) };
            Message::Group { group, body }
        }
        2 => {
            let ready = InstanceMessage::Ready { step: tape.byte(), signature: signature(tape), rank: source };
            Message::instance(group, instance, ready)
        }
        3 => {
            let (destination, index, total) = (Rank(tape.number32()), tape.number32(), signature(tape).bytes);
            let offset = if tape.flip() { 4000 } else { tape.number() }.min(total);
            let fragment = Fragment { instance, source, destination, index, total, offset };
            Message::transfer(group, TransferMessage::Expected(fragment))
        }
        4 => multicast(MulticastMessage::Nak { source, ranges: ranges(tape) }),
        5 => multicast(MulticastMessage::NakRoot { source, ranges: ranges(tape) }),
        6 => multicast(MulticastMessage::Repair { source, ranges: ranges(tape) }),
        7 => {
            let count = usize::from(tape.byte()) % (MAX_SOURCES + 1);
            multicast(MulticastMessage::Whole { sources: (0..count).map(|_| Rank(tape.number32())).collect() })
        }
        8 => multicast(MulticastMessage::Complete),
        11 => Message::transfer(group, offer(tape, instance, source)),
        12 => {
            let number = |tape: &mut Tape<'_>| {
                if tape.flip() { Number::Rts(tape.number()) } else { Number::Early(tape.number()) }
            };
            let cts = |tape: &mut Tape<'_>| Cts { number: number(tape), up_to: tape.number() };
            Message::transfer(group, TransferMessage::Cts((0..blocks(tape)).map(|_| cts(tape)).collect()))
        }
        13 => Message::instance(group, instance, InstanceMessage::AskSizes),
        14 => {
            let sizes = (0..blocks(tape)).map(|_| tape.number()).collect();
            Message::instance(group, instance, InstanceMessage::Sizes { first: source.0, sizes })
        }
        16 => Message::instance(group, instance, InstanceMessage::Inquire),
        17 => {
            let last = |tape: &mut Tape<'_>| tape.flip().then(|| (InstanceId(tape.number().max(1)), signature(tape)));
            let absentee = |tape: &mut Tape<'_>| Absentee { rank: Rank(tape.number32()), last: last(tape) };
            let named = (0..blocks(tape).min(MAX_ABSENT)).map(|_| absentee(tape)).collect();
            let absent = Absentees { named, more: tape.number32() };
            Message::instance(group, instance, InstanceMessage::Absent(absent))
        }
        9 => {
            let cause = if tape.flip() { source } else { Rank(0) };
            let body = GroupMessage::Lost { rank: source, after: instance, cause };
            Message::Group { group, body }
        }
        10 => {
            Message::Group { group, body: GroupMessage::Abort { fingerprint: fingerprint(tape), error: error(tape) } }
        }
        18 => {
            let (fingerprint, newest) = (fingerprint(tape), InstanceId(tape.number()));
            let oldest = (instance < newest).then(|| (instance, signature(tape), source));
            Message::Group { group, body: GroupMessage::Waits { fingerprint, newest, oldest } }
        }
        19 => {
            let body = GroupMessage::Fails { fingerprint: fingerprint(tape), after: instance, cause: source };
            Message::Group { group, body }
        }
        _ if tape.flip() => {
            let body = GroupMessage::Refuse { fingerprint: fingerprint(tape), error: error(tape) };
            Message::Group { group, body }
        }
        _ => {
            let asker = vec![tape.byte(); usize::from(tape.byte())].into();
            // The offers of the second group, or any.
            let offer = |tape: &mut Tape<'_>| (Rank(tape.number32()), OfferId(1 << 32 | u64::from(tape.below(8))));
            let offers = (0..blocks(tape).clamp(1, MAX_OFFERS)).map(|_| offer(tape)).collect();
            Message::Group { group, body: GroupMessage::Ask { fingerprint: fingerprint(tape), asker, offers } }
        }
    }
}

/// How many payload bytes come with it.
pub(super) fn payload(tape: &mut Tape<'_>) -> u32 {
    match tape.below(8) {
        0..=2 => 0,
        3 => 1000,
        4 => 2500,
        5 => 4000,
        6 => 500,
        // The fabric bounds payloads.
        _ => tape.number32() % (1 << 20),
    }
}

/// A frame header, and the payload that really comes.
pub(super) fn header(tape: &mut Tape<'_>, honest: FrameHeader) -> (FrameHeader, u32) {
    let real = payload(tape);
    let mut header = FrameHeader { payload_len: real, ..honest };
    let field = |tape: &mut Tape<'_>, honest: u32| match tape.below(4) {
        0 => honest.wrapping_add(1),
        1 => tape.number32(),
        _ => honest,
    };
    header.kind = if tape.flip() { FrameKind::Bare } else { FrameKind::Message };
    header.link = field(tape, honest.link).max(1);
    header.to = field(tape, honest.to);
    header.seq = field(tape, honest.seq);
    header.ack = field(tape, honest.ack);
    header.payload_len = field(tape, real);
    header.echo = field(tape, honest.echo);
    header.echo_age = field(tape, honest.echo_age);
    (header, real)
}

/// A datagram's header before a payload of this hash: with one of the keys, or bytes as they come.
pub(super) fn datagram(tape: &mut Tape<'_>, keys: [[u64; 2]; 3], payload: PayloadHash) -> [u8; DATAGRAM_HEADER_BYTES] {
    let key = keys[usize::from(tape.below(3))];
    let header = DatagramHeader {
        group: group(tape),
        epoch: tape.number() as u16,
        source: tape.number() as u16,
        chunk: tape.number32(),
    };
    let key = MulticastKey::new(key, true);
    let mut bytes = header.encode(&key, InstanceId(header.epoch.into()), payload);
    if tape.below(8) == 0 {
        let at = usize::from(tape.byte()) % bytes.len();
        bytes[at] = tape.byte();
    }
    bytes
}
