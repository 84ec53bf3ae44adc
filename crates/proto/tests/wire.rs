//! The wire codec: what is written is read back, and no bytes whatever make a decoder panic or over-read.

use outboard_plan::{Rank, Reduction};
use outboard_proto::wire::{
    DatagramHeader, Filled, FrameHeader, FrameKind, MAX_BLOCKS, MAX_FILLED, MAX_FRAME_HEADER, MAX_NUMBERS, MAX_POSTED,
    MAX_RANGES, MAX_SOURCES, MAX_TERMS, Message, Posted, TaggedMessage, Terms, Wanted,
};
use outboard_proto::{
    Absentee, Absentees, CallKind, CollectiveError, DeadlineMissed, GroupHandle, InstanceId, MAX_ABSENT, Signature,
    SpId,
};
use proptest::prelude::*;

fn reduction() -> impl Strategy<Value = Reduction> {
    proptest::sample::select(Reduction::all().collect::<Vec<_>>())
}

fn signature() -> impl Strategy<Value = Signature> {
    let kind = prop_oneof![
        Just(CallKind::Allgather),
        any::<u32>().prop_map(|root| CallKind::Broadcast { root: Rank(root) }),
        Just(CallKind::Alltoall),
        any::<u64>().prop_map(|sizes| CallKind::Allgatherv { sizes }),
        any::<u32>().prop_map(|root| CallKind::Gather { root: Rank(root) }),
        any::<u32>().prop_map(|root| CallKind::Scatter { root: Rank(root) }),
        (any::<u32>(), reduction()).prop_map(|(root, reduction)| CallKind::Reduce { root: Rank(root), reduction }),
        reduction().prop_map(|reduction| CallKind::Allreduce { reduction }),
        (reduction(), any::<u64>()).prop_map(|(reduction, sizes)| CallKind::ReduceScatter { reduction, sizes }),
        reduction().prop_map(|reduction| CallKind::ReduceScatterBlock { reduction }),
        reduction().prop_map(|reduction| CallKind::Scan { reduction, inclusive: true }),
        reduction().prop_map(|reduction| CallKind::Scan { reduction, inclusive: false }),
    ];
    let uneven = prop_oneof![
        Just(CallKind::Alltoallv),
        Just(CallKind::Barrier),
        any::<u32>().prop_map(|root| CallKind::Gatherv { root: Rank(root) }),
        any::<u32>().prop_map(|root| CallKind::Scatterv { root: Rank(root) }),
    ];
    let uneven = uneven.prop_map(|kind| Signature { kind, bytes: 0 });
    prop_oneof![(kind, any::<u64>()).prop_map(|(kind, bytes)| Signature { kind, bytes }), uneven]
}

fn exchange() -> impl Strategy<Value = Signature> {
    signature().prop_filter("exchanges are announced", |signature| signature.kind.is_exchange())
}

fn rank() -> impl Strategy<Value = Rank> {
    any::<u32>().prop_map(Rank)
}

fn group() -> impl Strategy<Value = GroupHandle> {
    any::<u32>().prop_map(GroupHandle)
}

fn instance() -> impl Strategy<Value = InstanceId> {
    (1..u64::MAX).prop_map(InstanceId)
}

fn ranges() -> impl Strategy<Value = Vec<(u32, u32)>> {
    prop::collection::vec((1u32..1000, 1u32..1000), 1..=MAX_RANGES).prop_map(|steps| {
        let mut at = 0;
        steps
            .into_iter()
            .map(|(gap, len)| {
                let first = at + gap;
                at = first + len;
                (first, len)
            })
            .collect()
    })
}

fn absentees() -> impl Strategy<Value = Absentees> {
    let absentee = (rank(), prop::option::of((instance(), signature())));
    let named = prop::collection::vec(absentee.prop_map(|(rank, last)| Absentee { rank, last }), 0..=MAX_ABSENT);
    (named, any::<u32>()).prop_map(|(named, more)| Absentees { named, more })
}

fn error() -> impl Strategy<Value = CollectiveError> {
    prop_oneof![
        rank().prop_map(CollectiveError::RankLost),
        (any::<u64>(), rank()).prop_map(|(sp, rank)| CollectiveError::PeerLost { sp: SpId(sp), rank }),
        (rank(), signature(), rank(), signature()).prop_map(|(a_rank, a, b_rank, b)| CollectiveError::Mismatch {
            a_rank,
            a,
            b_rank,
            b
        }),
        rank().prop_map(CollectiveError::Memory),
        (rank(), any::<u64>()).prop_map(|(rank, bytes)| CollectiveError::Staging { rank, bytes }),
        any::<u64>().prop_map(|sp| CollectiveError::Protocol(SpId(sp))),
        any::<[u64; 4]>().prop_map(|[a, a_digest, b, b_digest]| CollectiveError::Configuration {
            a: SpId(a),
            a_digest,
            b: SpId(b),
            b_digest
        }),
        group().prop_map(CollectiveError::HandleTaken),
        (instance(), signature(), any::<u64>(), absentees(), prop::option::of(rank())).prop_map(
            |(instance, signature, after_ms, missing, awaited)| {
                let missed = DeadlineMissed { instance, signature, after_ms, missing, awaited };
                CollectiveError::Deadline(Box::new(missed))
            }
        ),
        (rank(), any::<u64>(), rank(), any::<u64>()).prop_map(|(source_rank, sent, destination, expected)| {
            CollectiveError::Block { source_rank, sent, destination, expected }
        }),
        (rank(), rank(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
            |(source_rank, destination, tag, sent, expected)| {
                CollectiveError::Message { source_rank, destination, tag, sent, expected }
            }
        ),
    ]
}

fn absence() -> impl Strategy<Value = Message> {
    let answer = |(group, instance, ranks)| Message::Absent { group, instance, ranks };
    prop_oneof![
        (group(), instance()).prop_map(|(group, instance)| Message::Inquire { group, instance }),
        (group(), instance(), absentees()).prop_map(answer),
    ]
}

fn tagged() -> impl Strategy<Value = TaggedMessage> {
    let numbers = || prop::collection::vec(any::<u64>(), 1..=MAX_NUMBERS);
    let posted = (rank(), any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>())
        .prop_map(|(destination, tag, occurrence, bytes, eager)| Posted { destination, tag, occurrence, bytes, eager });
    let post = (rank(), 1..u32::MAX, 1..u64::MAX, any::<u32>(), prop::collection::vec(posted, 1..=MAX_POSTED));
    let single = (rank(), rank(), any::<u32>(), any::<u64>(), any::<bool>()).prop_map(
        |(source, destination, tag, bytes, eager)| {
            let messages = vec![Posted { destination, tag, occurrence: 0, bytes, eager }];
            TaggedMessage::Post { source, recording: 0, call: 0, first: 1, messages }
        },
    );
    prop_oneof![
        post.prop_map(|(source, recording, call, first, messages)| TaggedMessage::Post {
            source,
            recording,
            call,
            first: first.into(),
            messages
        }),
        single,
        numbers().prop_map(|numbers| TaggedMessage::Took { numbers }),
        numbers().prop_map(|numbers| TaggedMessage::Pull { numbers }),
        (any::<u64>(), any::<u64>()).prop_map(|(number, offset)| TaggedMessage::Part { number, offset }),
        asked(),
    ]
}

/// What goes without announcement.
fn asked() -> impl Strategy<Value = TaggedMessage> {
    let wanted = (rank(), any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>())
        .prop_map(|(source, tag, occurrence, bytes, room)| Wanted { source, tag, occurrence, bytes, room });
    let ask = (rank(), 1..u32::MAX, 2..u64::MAX, any::<u32>(), prop::collection::vec(wanted, 1..=MAX_POSTED));
    let ask = ask.prop_map(|(destination, recording, call, first, messages)| TaggedMessage::Ask {
        destination,
        recording,
        call,
        first: first.into(),
        messages,
    });
    let filled =
        (any::<u64>(), any::<u64>(), 1..u32::MAX).prop_map(|(number, offset, bytes)| Filled { number, offset, bytes });
    prop_oneof![ask, prop::collection::vec(filled, 1..=MAX_FILLED).prop_map(|pieces| TaggedMessage::Fill { pieces })]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        1 => (group(), tagged()).prop_map(|(group, tagged)| Message::Tagged { group, tagged }),
        1 => Just(Message::Void),
        5 => of_groups_and_barriers(),
        6 => of_streams(),
        4 => of_blocks(),
    ]
}

fn of_groups_and_barriers() -> impl Strategy<Value = Message> {
    prop_oneof![
        (group(), any::<u8>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(group, step, sp, digest, fingerprint)| Message::Create { group, step, sp: SpId(sp), digest, fingerprint }
        ),
        (group(), instance(), any::<u8>(), signature(), rank()).prop_map(|(group, instance, step, signature, rank)| {
            Message::Ready { group, instance, step, signature, rank }
        }),
        absence(),
        (group(), any::<u64>(), rank(), any::<bool>()).prop_map(|(group, after, rank, well)| {
            let after = InstanceId(after);
            Message::Lost { group, rank, after, well }
        }),
        (group(), any::<u64>(), error()).prop_map(|(group, fingerprint, error)| Message::Abort {
            group,
            fingerprint,
            error
        }),
    ]
}

fn of_streams() -> impl Strategy<Value = Message> {
    let ranges = || (group(), instance(), rank(), ranges());
    prop_oneof![
        (group(), instance(), rank(), rank(), any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
            |(group, instance, source, destination, index, offset, more)| {
                let (total, offset) = (u64::from(offset) + u64::from(more), offset.into());
                Message::Data { group, instance, source, destination, index, total, offset }
            }
        ),
        ranges().prop_map(|(group, instance, source, ranges)| Message::Want { group, instance, source, ranges }),
        ranges().prop_map(|(group, instance, source, ranges)| Message::Miss { group, instance, source, ranges }),
        ranges().prop_map(|(group, instance, source, ranges)| Message::Repair { group, instance, source, ranges }),
        (group(), instance(), prop::collection::vec(rank(), 1..=MAX_SOURCES))
            .prop_map(|(group, instance, sources)| Message::Have { group, instance, sources }),
        (group(), instance()).prop_map(|(group, instance)| Message::Complete { group, instance }),
    ]
}

fn of_blocks() -> impl Strategy<Value = Message> {
    let terms =
        (rank(), any::<u64>(), 1u64.., any::<u64>(), any::<bool>()).prop_map(|(with, sends, expects, up_to, asks)| {
            if asks {
                Terms { with, sends, expects, up_to: up_to.clamp(1, expects) }
            } else {
                Terms { with, sends: sends.max(1), expects: 0, up_to: 0 }
            }
        });
    let terms = prop::collection::vec(terms, 1..=MAX_TERMS);
    prop_oneof![
        (group(), instance(), exchange(), rank(), terms).prop_map(|(group, instance, signature, rank, terms)| {
            Message::Announce { group, instance, signature, rank, terms }
        }),
        (group(), instance(), prop::collection::vec((rank(), rank(), any::<u64>()), 1..=MAX_BLOCKS))
            .prop_map(|(group, instance, blocks)| Message::Pull { group, instance, blocks }),
        (group(), instance()).prop_map(|(group, instance)| Message::AskSizes { group, instance }),
        (group(), instance(), any::<u32>(), prop::collection::vec(any::<u64>(), 1..=MAX_BLOCKS))
            .prop_map(|(group, instance, first, sizes)| Message::Sizes { group, instance, first, sizes }),
    ]
}

proptest! {
    #[test]
    fn every_message_round_trips_and_fits_a_frame(message in message()) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        prop_assert!(bytes.len() + outboard_proto::wire::FRAME_HEADER_BYTES <= MAX_FRAME_HEADER);
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
        for cut in 0..bytes.len() {
            prop_assert!(Message::decode(&bytes[..cut]).is_err(), "cut to {} bytes it is still read", cut);
        }
        bytes.push(0);
        prop_assert!(Message::decode(&bytes).is_err(), "a trailing byte goes unnoticed");
    }

    #[test]
    fn every_frame_header_round_trips(
        bare in any::<bool>(), ack_now in any::<bool>(), fields in any::<[u32; 6]>(), body in any::<Vec<u8>>(),
    ) {
        let kind = if bare { FrameKind::Bare } else { FrameKind::Message };
        let [seq, ack, len, clock, echo, echo_age] = fields;
        let payload_len = if bare { 0 } else { len };
        let body = if bare { Vec::new() } else { body };
        let header = FrameHeader { kind, ack_now, seq, ack, payload_len, clock, echo, echo_age };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.extend_from_slice(&body);
        prop_assert_eq!(FrameHeader::decode(&bytes, payload_len), Ok((header, &body[..])));
        prop_assert!(FrameHeader::decode(&bytes, payload_len.wrapping_add(1)).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Message::decode(&bytes);
        let _ = FrameHeader::decode(&bytes, 0);
        let _ = DatagramHeader::parse(&bytes);
        let _ = DatagramHeader::check(&bytes, [1, 2]);
    }

    #[test]
    fn damaged_messages_never_panic(message in message(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(read) = Message::decode(&bytes) {
            let mut again = Vec::new();
            read.encode(&mut again);
            prop_assert_eq!(again, bytes, "what is read means just these bytes");
        }
    }
}
