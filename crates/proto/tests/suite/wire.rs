//! The wire codec: decoding inverts encoding, and no input makes a decoder panic or over-read.

use outboard_plan::{Rank, Reduction};
use outboard_proto::wire::{
    Cts, DataPiece, EarlyCts, Fragment, FrameHeader, FrameKind, GroupMessage, InstanceMessage, MAX_ADDRESS, MAX_BLOCKS,
    MAX_CTS, MAX_DONE, MAX_FRAME_HEADER, MAX_OFFERS, MAX_PIECES_OF_DATA, MAX_RANGES, MAX_SOURCES, Message,
    MessageNumber, MulticastMessage, OfferOrigin, Rts, TransferMessage,
};
use outboard_proto::{
    Absentee, Absentees, CallKind, CollectiveError, DeadlineMissed, GroupHandle, GroupRefusal, InstanceId, MAX_ABSENT,
    OfferId, Signature, SpId,
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
        rank().prop_map(CollectiveError::Engine),
        (any::<u64>(), rank(), any::<u64>()).prop_map(|(sp, rank, ms)| CollectiveError::Stalled {
            sp: SpId(sp),
            rank,
            ms
        }),
        (rank(), any::<u64>()).prop_map(|(rank, bytes)| CollectiveError::Staging { rank, bytes }),
        (rank(), any::<u64>()).prop_map(|(rank, after_ms)| CollectiveError::GroupNotRequested { rank, after_ms }),
        (
            rank(),
            prop_oneof![
                Just(GroupRefusal::Groups),
                Just(GroupRefusal::Descriptors),
                Just(GroupRefusal::Forgotten),
                Just(GroupRefusal::Peers),
                Just(GroupRefusal::Tables)
            ]
        )
            .prop_map(|(rank, why)| CollectiveError::Refused { rank, why }),
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

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        1 => Just(Message::Void),
        3 => (group(), of_groups()).prop_map(|(group, body)| Message::Group { group, body }),
        10 => (group(), instance(), of_instances())
            .prop_map(|(group, instance, body)| Message::instance(group, instance, body)),
        8 => (group(), of_transfers()).prop_map(|(group, body)| Message::transfer(group, body)),
    ]
}

fn offers() -> impl Strategy<Value = Vec<(Rank, OfferId)>> {
    prop::collection::vec((rank(), any::<u64>().prop_map(OfferId)), 1..=MAX_OFFERS)
}

fn of_groups() -> impl Strategy<Value = GroupMessage> {
    prop_oneof![
        (any::<u8>(), any::<u64>(), any::<u64>())
            .prop_map(|(step, digest, fingerprint)| { GroupMessage::Create { step, digest, fingerprint } }),
        (any::<u64>().prop_map(InstanceId), rank(), rank()).prop_map(|(after, rank, cause)| GroupMessage::Lost {
            rank,
            after,
            cause
        }),
        (any::<u64>(), error()).prop_map(|(fingerprint, error)| GroupMessage::Abort { fingerprint, error }),
        (any::<u64>(), prop::collection::vec(any::<u8>(), 0..=MAX_ADDRESS), offers()).prop_map(
            |(fingerprint, address, offers)| GroupMessage::RequestStep { fingerprint, address: address.into(), offers }
        ),
        (any::<u64>(), error()).prop_map(|(fingerprint, error)| GroupMessage::Refuse { fingerprint, error }),
        (
            any::<u64>(),
            any::<u64>().prop_map(InstanceId),
            prop::option::of((any::<u64>().prop_map(InstanceId), signature(), rank()))
        )
            .prop_map(|(fingerprint, newest, oldest)| GroupMessage::QueryFailures {
                fingerprint,
                newest,
                oldest
            }),
        (any::<u64>(), any::<u64>().prop_map(InstanceId), rank())
            .prop_map(|(fingerprint, after, cause)| GroupMessage::Failures { fingerprint, after, cause }),
    ]
}

fn of_instances() -> impl Strategy<Value = InstanceMessage> {
    prop_oneof![
        1 => (any::<u8>(), signature(), rank())
            .prop_map(|(step, signature, rank)| InstanceMessage::Ready { step, signature, rank }),
        1 => Just(InstanceMessage::RequestSizes),
        1 => (any::<u32>(), prop::collection::vec(any::<u64>(), 1..=MAX_BLOCKS))
            .prop_map(|(first, sizes)| InstanceMessage::Sizes { first, sizes }),
        1 => Just(InstanceMessage::Inquire),
        1 => absentees().prop_map(InstanceMessage::Absent),
        5 => of_multicast().prop_map(InstanceMessage::Multicast),
    ]
}

fn of_multicast() -> impl Strategy<Value = MulticastMessage> {
    let ranges = || (rank(), ranges());
    prop_oneof![
        ranges().prop_map(|(source, ranges)| MulticastMessage::Nak { source, ranges }),
        ranges().prop_map(|(source, ranges)| MulticastMessage::NakRoot { source, ranges }),
        ranges().prop_map(|(source, ranges)| MulticastMessage::Repair { source, ranges }),
        prop::collection::vec(rank(), 1..=MAX_SOURCES).prop_map(|sources| MulticastMessage::Have { sources }),
        Just(MulticastMessage::Complete),
    ]
}

fn number() -> impl Strategy<Value = MessageNumber> {
    prop_oneof![any::<u64>().prop_map(MessageNumber::Rts), any::<u64>().prop_map(MessageNumber::Early)]
}

fn of_transfers() -> impl Strategy<Value = TransferMessage> {
    let cts = (number(), any::<u64>()).prop_map(|(number, up_to)| Cts { number, up_to });
    let piece =
        (number(), any::<u64>(), 1..=u32::MAX).prop_map(|(number, offset, bytes)| DataPiece { number, offset, bytes });
    let fragment = (instance(), rank(), rank(), any::<u32>(), any::<u64>(), any::<u64>());
    prop_oneof![
        4 => offer(),
        1 => prop::collection::vec(cts, 1..=MAX_CTS).prop_map(TransferMessage::Cts),
        1 => prop::collection::vec(piece, 1..=MAX_PIECES_OF_DATA).prop_map(TransferMessage::Data),
        1 => fragment.prop_map(|(instance, source, destination, index, total, offset)| {
            let offset = offset.min(total);
            TransferMessage::Expected(Fragment { instance, source, destination, index, total, offset })
        }),
        1 => prop::collection::vec(any::<u64>(), 1..=MAX_DONE).prop_map(|numbers| TransferMessage::Done(numbers.into())),
    ]
}

/// Offers with the most entries that fit, and with fewer entries, in either list.
fn offer() -> impl Strategy<Value = TransferMessage> {
    let origin = prop_oneof![
        Just(OfferOrigin::Single),
        (1..=u32::MAX, 1..=u64::MAX).prop_map(|(recording, call)| OfferOrigin::Recorded { recording, call }),
        (instance(), exchange(), rank()).prop_map(|(instance, signature, first_caller)| OfferOrigin::Instance {
            instance,
            signature,
            first_caller
        }),
    ];
    let rts = (rank(), any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>())
        .prop_map(|(destination, tag, occurrence, bytes, eager)| Rts { destination, tag, occurrence, bytes, eager });
    let early = (rank(), any::<u32>(), any::<u32>(), 1..=u64::MAX, any::<u64>()).prop_map(
        |(source, tag, occurrence, bytes, up_to)| EarlyCts { source, tag, occurrence, bytes, up_to: up_to.min(bytes) },
    );
    let ready = prop_oneof![Just(Vec::new()), prop::collection::vec(rts, 1..40)];
    let early = prop_oneof![Just(Vec::new()), prop::collection::vec(early, 1..30)];
    let numbers = (1u64..u64::MAX - 40, 1u64..u64::MAX - 40);
    (origin, rank(), numbers, ready, early).prop_map(
        |(origin, rank, (first_ready, first_early), mut ready, mut early)| {
            if let OfferOrigin::Single | OfferOrigin::Recorded { call: 1, .. } = origin {
                early.clear();
            }
            while !origin.fits(ready.len(), early.len()) {
                _ = if early.len() > ready.len() { early.pop().is_some() } else { ready.pop().is_some() };
            }
            if ready.is_empty() && early.is_empty() {
                ready.push(Rts { destination: rank, tag: 0, occurrence: 0, bytes: 1, eager: false });
            }
            let of_ready = ready.iter_mut().map(|rts| (&mut rts.tag, &mut rts.occurrence));
            for (tag, occurrence) in of_ready.chain(early.iter_mut().map(|cts| (&mut cts.tag, &mut cts.occurrence))) {
                match origin {
                    OfferOrigin::Single => *occurrence = 0,
                    OfferOrigin::Recorded { .. } => {}
                    OfferOrigin::Instance { .. } => (*tag, *occurrence) = (0, 0),
                }
            }
            let first_ready = if ready.is_empty() { 0 } else { first_ready };
            let first_early = if early.is_empty() { 0 } else { first_early };
            TransferMessage::Offer { origin, rank, first_ready, ready: ready.into(), first_early, early }
        },
    )
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
        bare in any::<bool>(), ack_now in any::<bool>(), fields in any::<[u32; 8]>(), body in any::<Vec<u8>>(),
    ) {
        let kind = if bare { FrameKind::Bare } else { FrameKind::Message };
        let [link, to, seq, ack, len, clock, echo, echo_age] = fields;
        let link = link.max(1);
        let payload_len = if bare { 0 } else { len };
        let body = if bare { Vec::new() } else { body };
        let header = FrameHeader { kind, ack_now, link, to, seq, ack, payload_len, clock, echo, echo_age };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.extend_from_slice(&body);
        prop_assert_eq!(FrameHeader::decode(&bytes, payload_len), Ok((header, &body[..])));
        prop_assert!(FrameHeader::decode(&bytes, payload_len.wrapping_add(1)).is_err());
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
