//! Operation-sequence fuzzing: a service process fed with arbitrary calls, frames and datagrams of a hostile peer
//! never panics, keeps its bounds, and answers every call at most once.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Element, Operator, Rank, Reduction, Span};
use outboard_proto::wire::{
    Cts, DatagramHeader, EarlyCts, Fragment, GroupMessage, InstanceMessage, Message, MulticastKey, MulticastMessage,
    Number, Origin, PayloadHash, Piece, Rts, TransferMessage,
};
use outboard_proto::{
    Absentee, Absentees, CallId, CallKind, CollectiveError, Config, Endpoint, Event, GroupSpec, InstanceId, Instant,
    OfferId, PostedCall, ReceivedDatagram, Signature, SpId, Transmit, sizes_digest,
};
use proptest::prelude::*;

use crate::support::{self, GROUP, KEY, frame};

/// Quotas of staging for late ranks and of scratch.
const STAGING: u64 = 20_000;
const SCRATCH: u64 = 10_000;
/// The one group of this test, the window of instances of a group, and messages queued for the two peers.
const MOST_GROUPS: usize = 1;
const MOST_COLLECTIVES: usize = 1024;
const MOST_BACKLOG: usize = 8192;

#[derive(Debug, Clone)]
enum Step {
    Create(u8),
    Leave(u8),
    Call { rank: u8, instance: u8, kind: CallKind, bytes: u16 },
    Frame { from: u8, message: Message, payload: u16 },
    Datagram { epoch: u8, source: u8, chunk: u8, len: u16 },
    Fault(u8),
    PeerLost(u8),
    Wait(u32),
}

fn rank() -> impl Strategy<Value = Rank> {
    (0u32..5).prop_map(Rank)
}

fn instance() -> impl Strategy<Value = InstanceId> {
    (1u64..4).prop_map(InstanceId)
}

fn hostile_message() -> impl Strategy<Value = Message> {
    let group = |body| Message::Group { group: GROUP, body };
    let of_instances =
        (instance(), prop_oneof![4 => of_barriers(), 5 => of_multicast().prop_map(InstanceMessage::Multicast)]);
    prop_oneof![
        2 => of_groups().prop_map(group),
        9 => of_instances.prop_map(|(instance, body)| Message::instance(GROUP, instance, body)),
        4 => of_transfers().prop_map(|body| Message::transfer(GROUP, body)),
    ]
}

fn of_groups() -> impl Strategy<Value = GroupMessage> {
    prop_oneof![
        (barrier_step(), any::<bool>()).prop_map(|(step, good)| {
            let digest = if good { config().digest() } else { 9 };
            GroupMessage::Create { step, digest, fingerprint: spec().fingerprint() }
        }),
        (rank(), 0u64..3, rank()).prop_map(|(rank, after, cause)| GroupMessage::Lost {
            rank,
            after: InstanceId(after),
            cause
        }),
        (0u64..3, prop::option::of((instance(), signature(), rank()))).prop_map(|(newest, oldest)| {
            GroupMessage::Waits { fingerprint: spec().fingerprint(), newest: InstanceId(newest), oldest }
        }),
        (0u64..3, rank()).prop_map(|(after, cause)| {
            GroupMessage::Fails { fingerprint: spec().fingerprint(), after: InstanceId(after), cause }
        }),
        (rank(), rank(), 10u64..14).prop_map(|(rank, awaited, sp)| GroupMessage::Abort {
            fingerprint: spec().fingerprint(),
            error: [
                CollectiveError::PeerLost { sp: SpId(sp), rank },
                CollectiveError::RankLost(rank),
                CollectiveError::Memory(rank),
                CollectiveError::Block { source_rank: rank, sent: 1, destination: awaited, expected: 2 },
            ][sp as usize - 10]
                .clone(),
        }),
        (rank(), any::<bool>()).prop_map(|(rank, ask)| {
            let fingerprint = spec().fingerprint();
            match ask {
                true => GroupMessage::Ask { fingerprint, asker: [1].into(), offers: vec![(rank, OfferId(10))] },
                false => GroupMessage::Refuse { fingerprint, error: CollectiveError::RankLost(rank) },
            }
        }),
    ]
}

fn signature() -> impl Strategy<Value = Signature> {
    (kind(), 0u64..3).prop_map(|(kind, n)| match kind {
        CallKind::Allgatherv { .. } => uneven(2000),
        CallKind::Alltoallv | CallKind::Scatterv { .. } | CallKind::Barrier => Signature { kind, bytes: 0 },
        kind => Signature { kind, bytes: [0, 2000, u64::MAX][n as usize] },
    })
}

fn of_barriers() -> impl Strategy<Value = InstanceMessage> {
    prop_oneof![
        Just(InstanceMessage::Inquire),
        (rank(), any::<u32>()).prop_map(|(rank, more)| {
            let named = vec![Absentee { rank, last: None }];
            InstanceMessage::Absent(Absentees { named, more })
        }),
        (barrier_step(), signature(), rank()).prop_map(|(step, signature, rank)| InstanceMessage::Ready {
            step,
            signature,
            rank
        }),
        Just(InstanceMessage::AskSizes),
        (0u32..4, prop::collection::vec(prop_oneof![Just(2000u64), Just(u64::MAX)], 1..5))
            .prop_map(|(first, sizes)| InstanceMessage::Sizes { first, sizes }),
    ]
}

fn of_multicast() -> impl Strategy<Value = MulticastMessage> {
    let ranges = || (rank(), (0u32..6, 1u32..4).prop_map(|range| vec![range]));
    prop_oneof![
        ranges().prop_map(|(source, ranges)| MulticastMessage::Nak { source, ranges }),
        ranges().prop_map(|(source, ranges)| MulticastMessage::NakRoot { source, ranges }),
        ranges().prop_map(|(source, ranges)| MulticastMessage::Repair { source, ranges }),
        rank().prop_map(|source| MulticastMessage::Whole { sources: vec![source] }),
        Just(MulticastMessage::Complete),
    ]
}

/// Messages of collectives; those of recordings and single ones are in `tagged.rs`.
fn of_transfers() -> impl Strategy<Value = TransferMessage> {
    let number = || prop_oneof![(0u64..8).prop_map(Number::Rts), (0u64..8).prop_map(Number::Early)];
    let up_to = prop_oneof![Just(0u64), Just(1), Just(2000), Just(4096), Just(u64::MAX)];
    let fragment = (instance(), rank(), rank(), 0u32..3, 0u64..2000);
    let piece = (
        number(),
        prop_oneof![Just(0u64), Just(500), Just(u64::MAX)],
        prop_oneof![Just(500u32), Just(1000), Just(2000)],
    );
    prop_oneof![
        2 => offer(),
        1 => fragment.prop_map(|(instance, source, destination, index, offset)| {
            TransferMessage::Expected(Fragment { instance, source, destination, index, total: 2000, offset })
        }),
        1 => prop::collection::vec((number(), up_to).prop_map(|(number, up_to)| Cts { number, up_to }), 1..3)
            .prop_map(TransferMessage::Cts),
        1 => prop::collection::vec(piece.prop_map(|(number, offset, bytes)| Piece { number, offset, bytes }), 1..3)
            .prop_map(TransferMessage::Data),
        1 => prop::collection::vec(0u64..8, 1..3).prop_map(|numbers| TransferMessage::Done(numbers.into())),
    ]
}

fn offer() -> impl Strategy<Value = TransferMessage> {
    let signature = prop_oneof![
        Just(Signature { kind: CallKind::Alltoall, bytes: 2000 }),
        Just(Signature { kind: CallKind::Alltoallv, bytes: 0 }),
        Just(Signature { kind: GATHER, bytes: 2000 }),
        Just(Signature { kind: SCATTERV, bytes: 0 }),
    ];
    let bytes = || prop_oneof![8 => Just(2000u64), 4 => Just(1), 4 => Just(u64::MAX), 1 => Just(0)];
    let rts = (rank(), bytes(), prop::bool::weighted(0.1)).prop_map(|(destination, bytes, eager)| Rts {
        destination,
        tag: 0,
        occurrence: 0,
        bytes,
        eager,
    });
    let early = (rank(), bytes(), 0u64..3000).prop_map(|(source, bytes, up_to)| {
        let bytes = bytes.max(1);
        EarlyCts { source, tag: 0, occurrence: 0, bytes, up_to: up_to.min(bytes) }
    });
    let lists = (prop::collection::vec(rts, 0..3), prop::collection::vec(early, 0..3));
    let lists = lists.prop_filter("an offer says something", |(ready, early)| !ready.is_empty() || !early.is_empty());
    (instance(), signature, rank(), (1u64..8, 1u64..8), lists).prop_map(
        |(instance, signature, rank, (first_ready, first_early), (ready, early))| TransferMessage::Offer {
            origin: Origin::Instance { instance, signature, signer: rank },
            rank,
            first_ready: if ready.is_empty() { 0 } else { first_ready },
            ready: ready.into(),
            first_early: if early.is_empty() { 0 } else { first_early },
            early,
        },
    )
}

const GATHER: CallKind = CallKind::Gather { root: Rank(0) };
const SCATTERV: CallKind = CallKind::Scatterv { root: Rank(2) };

fn kind() -> impl Strategy<Value = CallKind> {
    let uneven = CallKind::Allgatherv { sizes: 0 };
    let reduction = Reduction::new(Operator::Sum, Element::U32).expect("defined by MPI");
    let gathers = [CallKind::Allgather, uneven, GATHER];
    let exchanges = [CallKind::Alltoall, CallKind::Alltoallv, SCATTERV];
    let reductions =
        [CallKind::Barrier, CallKind::Allreduce { reduction }, CallKind::Scan { reduction, inclusive: true }];
    prop::sample::select([gathers, exchanges, reductions].concat())
}

/// What all four ranks call with blocks of these bytes.
fn uneven(bytes: u64) -> Signature {
    let sizes = sizes_digest([bytes; 4].into_iter());
    Signature { kind: CallKind::Allgatherv { sizes }, bytes: 4 * bytes }
}

fn barrier_step() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0u8), Just(1), Just(2), Just(0xff)]
}

/// What brings the group, and then the first collective, behind their barriers.
fn opening() -> Vec<Step> {
    let signature = Signature { kind: CallKind::Allgather, bytes: 2000 };
    let create = |from, step| Step::Frame {
        from,
        message: Message::Group {
            group: GROUP,
            body: GroupMessage::Create { step, digest: config().digest(), fingerprint: spec().fingerprint() },
        },
        payload: 0,
    };
    let ready = |from, step| Step::Frame {
        from,
        message: Message::instance(GROUP, InstanceId(1), InstanceMessage::Ready { step, signature, rank: Rank(2) }),
        payload: 0,
    };
    let call = |rank| Step::Call { rank, instance: 1, kind: CallKind::Allgather, bytes: 2000 };
    vec![Step::Create(0), Step::Create(1), create(1, 0), create(0, 1), call(0), call(1), ready(1, 0), ready(0, 1)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u8..2).prop_map(Step::Create),
        (0u8..2).prop_map(Step::Leave),
        (0u8..3, 1u8..4, kind(), prop_oneof![Just(0u16), Just(2000)])
            .prop_map(|(rank, instance, kind, bytes)| Step::Call { rank, instance, kind, bytes }),
        (0u8..3, hostile_message(), prop_oneof![Just(0u16), Just(500), Just(1000), Just(2000)])
            .prop_map(|(from, message, payload)| Step::Frame { from, message, payload }),
        (0u8..3, 0u8..5, 0u8..4, prop_oneof![Just(500u16), Just(1000)])
            .prop_map(|(epoch, source, chunk, len)| Step::Datagram { epoch, source, chunk, len }),
        any::<u8>().prop_map(Step::Fault),
        (1u8..3).prop_map(Step::PeerLost),
        (0u32..10_000_000).prop_map(Step::Wait),
    ]
}

fn config() -> Config {
    let watchdog = Some(Duration::from_millis(3));
    Config {
        chunk_bytes: 1000,
        staging_quota: STAGING,
        scratch_quota: SCRATCH,
        watchdog,
        narrate: true,
        ..Config::default()
    }
}

fn spec() -> GroupSpec {
    // Ranks 0 and 1 here, 2 and 3 at two others.
    support::spec(&[10, 10, 11, 12])
}

struct Driver {
    sp: Endpoint,
    now: Instant,
    seq: [u32; 3],
    next_call: u64,
    called: BTreeSet<CallId>,
    batches: Vec<u64>,
}

impl Driver {
    fn drain(&mut self) {
        while self.sp.poll_order().is_some() {}
        for _ in 0..10_000 {
            match self.sp.poll_transmit(self.now) {
                None => break,
                Some(Transmit::Frame { .. }) => {}
                Some(Transmit::Multicast(b)) => self.batches.push(b.token),
            }
        }
        while let Some(event) = self.sp.poll_event() {
            if let Event::Completed { call, .. } = event {
                assert!(self.called.remove(&call), "{call:?} completes although it is not in flight");
            }
        }
        let (groups, collectives, backlog) = self.sp.load();
        assert!(
            groups <= MOST_GROUPS && collectives <= MOST_COLLECTIVES && backlog <= MOST_BACKLOG,
            "bounds: {:?}",
            self.sp.load()
        );
        assert!(self.sp.counters().staging_peak <= STAGING + SCRATCH, "the quotas hold");
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Create(rank) => self.sp.handle_create_group(self.now, &spec(), Rank((*rank).into())),
            Step::Leave(rank) => self.sp.handle_leave(self.now, GROUP, Rank((*rank).into())),
            Step::Call { rank, instance, kind, bytes } => {
                let id = CallId(self.next_call);
                self.next_call += 1;
                self.called.insert(id);
                let even = || Blocks::even(4, (*bytes).into()).expect("small");
                let own = |blocks: Blocks| Blocks { send: vec![Span::input(0, (*bytes).into())], ..blocks };
                let (signature, blocks) = match kind {
                    CallKind::Allgatherv { .. } => (uneven((*bytes).into()), Some(own(even()))),
                    CallKind::Barrier => (Signature { kind: *kind, bytes: 0 }, None),
                    CallKind::Alltoallv => (Signature { kind: *kind, bytes: 0 }, Some(even())),
                    CallKind::Scatterv { root } => {
                        let blocks = Blocks::scatter((4, *root), Rank((*rank).into()), (*bytes).into(), true);
                        (Signature { kind: *kind, bytes: 0 }, blocks)
                    }
                    kind => (Signature { kind: *kind, bytes: (*bytes).into() }, None),
                };
                let call = PostedCall {
                    in_place: *kind == CallKind::Allgather && id.0.is_multiple_of(2),
                    blocks: blocks.map(Into::into),
                    deadline: id.0.is_multiple_of(3).then_some(Duration::from_millis(5)),
                    ..support::call(id.0, (*rank).into(), (*instance).into(), signature)
                };
                self.sp.handle_call(self.now, call);
            }
            Step::Frame { from, message, payload } => {
                let seq = self.seq[usize::from(*from)];
                self.seq[usize::from(*from)] += 1;
                let payload_len = (*payload).into();
                let bytes = frame(seq, message, payload_len);
                self.sp.handle_frame(self.now, SpId(11 + u64::from(*from)), &bytes, payload_len);
            }
            Step::Datagram { epoch, source, chunk, len } => {
                let header = DatagramHeader {
                    group: GROUP,
                    epoch: (*epoch).into(),
                    source: (*source).into(),
                    chunk: (*chunk).into(),
                };
                let payload = PayloadHash::default();
                let bytes = header.encode(&MulticastKey::new(KEY, true), InstanceId((*epoch).into()), payload);
                let from = Ipv4Addr::LOCALHOST;
                let datagram = ReceivedDatagram { header: &bytes, payload_len: (*len).into(), payload, from };
                self.sp.handle_datagrams(self.now, &[datagram]);
            }
            Step::Fault(n) => self.sp.handle_memory_fault(self.now, CallId((*n).into())),
            Step::PeerLost(n) => self.sp.handle_peer_lost(self.now, SpId(10 + u64::from(*n))),
            Step::Wait(ns) => {
                self.now = self.now + Duration::from_nanos((*ns).into());
                for token in std::mem::take(&mut self.batches) {
                    self.sp.handle_multicast_done(self.now, token);
                    self.drain();
                }
                self.sp.handle_timeout(self.now);
            }
        }
        self.drain();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn nothing_a_peer_does_breaks_a_service_process(
        opened in 0usize..12, steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut d = Driver {
            sp: Endpoint::new(SpId(10), config(), 1),
            now: Instant(1),
            seq: [0; 3],
            next_call: 0,
            called: BTreeSet::new(),
            batches: Vec::new(),
        };
        for s in opening().iter().take(opened).chain(&steps) {
            d.apply(s);
        }
        // Everybody else dies: what is in flight ends, with an error.
        for peer in [11, 12] {
            d.sp.handle_peer_lost(d.now, SpId(peer));
            d.drain();
        }
        d.apply(&Step::Wait(1));
        for rank in [0, 1] {
            d.apply(&Step::Leave(rank));
        }
        d.apply(&Step::Wait(1));
        prop_assert!(d.called.is_empty(), "calls never answered: {:?}", d.called);
    }
}
