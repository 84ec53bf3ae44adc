//! Messages, frames and datagrams put together from the tape.

use outboard_plan::Rank;
use outboard_proto::wire::{
    Cts, DATAGRAM_HEADER_BYTES, DatagramHeader, EarlyCts, Few, FrameHeader, FrameKind, Message, MulticastKey, Number,
    Origin, PayloadHash, Piece, Rts, TransferMessage,
};
use outboard_proto::{GroupHandle, InstanceId};

use crate::cluster::handle;
use crate::sequences::{size, tag};
use crate::tape::Tape;

/// Most bytes that come with one message from rank to rank.
const MOST_PAYLOAD: u64 = 1 << 16;
/// Ranks of the larger group.
const RANKS: u8 = 4;

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

fn group(tape: &mut Tape<'_>) -> GroupHandle {
    match tape.below(8) {
        0..=1 => handle(0),
        2..=6 => handle(1),
        _ => GroupHandle(tape.number32()),
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

fn number(tape: &mut Tape<'_>) -> Number {
    if tape.flip() { Number::Rts(tape.number()) } else { Number::Early(tape.number()) }
}

fn cts(tape: &mut Tape<'_>) -> Cts {
    Cts { number: number(tape), up_to: if tape.flip() { size(tape) } else { tape.number() } }
}

fn few<T, All: FromIterator<T>>(tape: &mut Tape<'_>, one: impl Fn(&mut Tape<'_>) -> T) -> All {
    (0..=tape.below(3)).map(|_| one(tape)).collect()
}

fn offer(tape: &mut Tape<'_>) -> (TransferMessage, u32) {
    let rank = Rank(u32::from(tape.below(RANKS + 1)));
    let origin = match u32::from(tape.below(3)) {
        0 => Origin::Single,
        recording => Origin::Recorded { recording, call: 1 + u64::from(tape.below(3)) },
    };
    let first_ready = tape.number().clamp(1, u64::MAX - 32);
    let ready: Few<Rts> = few(tape, |tape| Rts {
        destination: Rank(u32::from(tape.below(RANKS))),
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

fn early(tape: &mut Tape<'_>) -> TransferMessage {
    let rank = Rank(u32::from(tape.below(RANKS + 1)));
    let origin = Origin::Recorded { recording: 1 + u32::from(tape.below(3)), call: 2 + u64::from(tape.below(3)) };
    let first = tape.number().clamp(1, u64::MAX - 32);
    let early = few(tape, |tape| {
        let bytes = if tape.byte() < 0xf0 { size(tape).max(1) } else { tape.number().max(1) };
        EarlyCts {
            source: Rank(u32::from(tape.below(RANKS))),
            tag: tag(tape),
            occurrence: u32::from(tape.below(3)),
            bytes,
            up_to: if tape.flip() { bytes } else { 0 },
        }
    });
    TransferMessage::Offer { origin, rank, first_ready: 0, ready: Few::new(), first_early: first, early }
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

/// A message about messages from rank to rank, and how many bytes come with it.
pub(super) fn transfer(tape: &mut Tape<'_>) -> (Message, u32) {
    let group = group(tape);
    let (transfer, payload) = match tape.below(9) {
        0..=2 => offer(tape),
        3 => (TransferMessage::Done(few(tape, |tape| tape.number())), 0),
        4 => (TransferMessage::Cts(few(tape, cts)), 0),
        5 | 6 => (early(tape), 0),
        _ => pieces(tape),
    };
    (Message::transfer(group, transfer), payload)
}

/// Writes a number over one to eight bytes of a message that was sent before.
pub(super) fn spoil(tape: &mut Tape<'_>, body: &mut [u8]) {
    let at = usize::from(tape.byte()) % body.len();
    let (bytes, number) = (1 << tape.below(4), tape.number().to_le_bytes());
    body[at..].iter_mut().zip(&number[..bytes]).for_each(|(byte, new)| *byte = *new);
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
