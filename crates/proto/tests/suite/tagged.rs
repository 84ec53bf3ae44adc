//! Sequences of recordings, calls and messages of ranks beside a hostile service process: nothing panics, staging stays
//! within its quota, and every call ends once, at the latest when its rank leaves (GP-1, GP-2).

use std::collections::BTreeSet;

use outboard_plan::{ProgramBuilder, Rank, Span};
use outboard_proto::wire::{
    Cts, DataPiece, EarlyCts, Few, GroupMessage, Message, MessageNumber, OfferOrigin, Rts, TransferMessage,
};
use outboard_proto::{
    CallId, CallKind, Config, Endpoint, Event, Instant, Order, Recording, Signature, SpId, TaggedCall,
};
use proptest::prelude::*;

use crate::support::{self, GROUP, frame};

const NOW: Instant = Instant(1);
const QUOTA: u64 = 10_000;
/// Bytes of every recording.
const BYTES: u64 = 40_000;

#[derive(Debug, Clone)]
enum Recorded {
    Send { to: u32, tag: u32, bytes: u64 },
    Receive { from: u32, tag: u32, bytes: u64 },
    Barrier,
}

#[derive(Debug, Clone)]
enum Step {
    Record { rank: u32, number: u32, steps: Vec<Recorded> },
    Free { rank: u32, number: u32 },
    Call { rank: u32, call: TaggedCall, bytes: u64 },
    Hear { message: TransferMessage, payload: u32 },
    Leave { rank: u32 },
}

/// Sizes of messages that travel with their announcement, and larger sizes.
fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0u64), Just(100), Just(BYTES), Just(BYTES + 1)]
}

fn tag() -> impl Strategy<Value = u32> {
    0u32..2
}

fn recorded() -> impl Strategy<Value = Recorded> {
    prop_oneof![
        (0u32..4, tag(), bytes()).prop_map(|(to, tag, bytes)| Recorded::Send { to, tag, bytes }),
        (0u32..4, tag(), bytes()).prop_map(|(from, tag, bytes)| Recorded::Receive { from, tag, bytes }),
        Just(Recorded::Barrier),
    ]
}

fn heard() -> impl Strategy<Value = (TransferMessage, u32)> {
    let rts = (0u32..4, tag(), 0u32..2, bytes(), any::<bool>()).prop_map(|(to, tag, occurrence, bytes, eager)| Rts {
        destination: Rank(to),
        tag,
        occurrence,
        bytes,
        eager,
    });
    let offer = (0u32..4, 0u32..3, 1u64..4, 1u64..9, prop::collection::vec(rts, 1..4), any::<bool>());
    let offer = offer.prop_map(|(rank, recording, call, first_ready, mut ready, honest)| {
        let origin = if recording == 0 { OfferOrigin::Single } else { OfferOrigin::Recorded { recording, call } };
        if origin == OfferOrigin::Single {
            ready.iter_mut().for_each(|rts| rts.occurrence = 0);
        }
        let eager: u64 = ready.iter().filter(|rts| rts.eager).map(|rts| rts.bytes).sum();
        let rank = Rank(rank);
        let offer = TransferMessage::Offer {
            origin,
            rank,
            first_ready,
            ready: ready.into(),
            first_early: 0,
            early: Vec::new(),
        };
        (offer, if honest { eager as u32 } else { 100 })
    });
    let up_to = prop_oneof![Just(0u64), Just(5000), Just(BYTES), Just(BYTES + 1)];
    let cts = (number(), up_to).prop_map(|(number, up_to)| Cts { number, up_to });
    prop_oneof![
        2 => offer,
        1 => prop::collection::vec(0u64..6, 1..3).prop_map(|numbers| (TransferMessage::Done(numbers.into()), 0)),
        1 => prop::collection::vec(cts, 1..3).prop_map(|all| (TransferMessage::Cts(all), 0)),
        2 => data(),
        1 => early(),
    ]
}

fn number() -> impl Strategy<Value = MessageNumber> {
    prop_oneof![(0u64..8).prop_map(MessageNumber::Rts), (0u64..8).prop_map(MessageNumber::Early)]
}

/// Bytes of messages, requested or not.
fn data() -> impl Strategy<Value = (TransferMessage, u32)> {
    let offset = prop_oneof![Just(0u64), Just(5000)];
    let piece = (number(), offset, prop_oneof![Just(5000u32), Just(BYTES as u32), Just(1)])
        .prop_map(|(number, offset, bytes)| DataPiece { number, offset, bytes });
    (prop::collection::vec(piece, 1..3), any::<bool>()).prop_map(|(pieces, honest)| {
        let payload = pieces.iter().map(|piece| piece.bytes).sum();
        (TransferMessage::Data(pieces), if honest { payload } else { 100 })
    })
}

/// Early CTS for messages of recordings.
fn early() -> impl Strategy<Value = (TransferMessage, u32)> {
    let cts = (0u32..4, tag(), 0u32..2, bytes(), any::<bool>()).prop_map(|(source, tag, occurrence, bytes, room)| {
        let bytes = bytes.max(1);
        EarlyCts { source: Rank(source), tag, occurrence, bytes, up_to: if room { bytes } else { 0 } }
    });
    let offer = (0u32..4, 1u32..4, 2u64..4, 1u64..9, prop::collection::vec(cts, 1..4));
    offer.prop_map(|(rank, recording, call, first_early, early)| {
        let (origin, rank) = (OfferOrigin::Recorded { recording, call }, Rank(rank));
        (TransferMessage::Offer { origin, rank, first_ready: 0, ready: Few::new(), first_early, early }, 0)
    })
}

fn step() -> impl Strategy<Value = Step> {
    let call = prop_oneof![
        (1u32..4).prop_map(|recording| TaggedCall::Recorded { recording }),
        (0u32..5, tag()).prop_map(|(to, tag)| TaggedCall::Send { to: Rank(to), tag }),
        (0u32..5, tag()).prop_map(|(from, tag)| TaggedCall::Receive { from: Rank(from), tag }),
    ];
    prop_oneof![
        2 => (0u32..2, 0u32..4, prop::collection::vec(recorded(), 0..6))
            .prop_map(|(rank, number, steps)| Step::Record { rank, number, steps }),
        1 => (0u32..2, 0u32..4).prop_map(|(rank, number)| Step::Free { rank, number }),
        6 => (0u32..2, call, bytes()).prop_map(|(rank, call, bytes)| Step::Call { rank, call, bytes }),
        6 => heard().prop_map(|(message, payload)| Step::Hear { message, payload }),
        1 => (0u32..2).prop_map(|rank| Step::Leave { rank }),
    ]
}

struct Driver {
    sp: Endpoint,
    seq: u32,
    made: usize,
    open: BTreeSet<CallId>,
    calls: u64,
    staged: u64,
    staging: std::collections::BTreeMap<u64, u64>,
}

impl Driver {
    /// A made group with ranks 0 and 1 here, 2 and 3 at the hostile service process.
    fn new() -> Driver {
        let config = Config { staging_quota: QUOTA, ..Config::default() };
        let spec = support::spec(&[10, 10, 11, 11]);
        let (digest, fingerprint) = (config.digest(), spec.fingerprint());
        let sp = Endpoint::new(SpId(10), config, 1);
        let staging = std::collections::BTreeMap::new();
        let mut driver = Driver { sp, seq: 0, made: 0, open: BTreeSet::new(), calls: 0, staged: 0, staging };
        (0..2).for_each(|rank| driver.sp.handle_create_group(NOW, &spec, Rank(rank)));
        let create = GroupMessage::Create { step: 0, digest, fingerprint };
        driver.hear(&Message::Group { group: GROUP, body: create }, 0);
        driver.drain();
        assert_eq!(driver.made, 2, "both ranks are in the group");
        driver
    }

    fn hear(&mut self, message: &Message, payload_len: u32) {
        let bytes = frame(self.seq, message, payload_len);
        self.seq += 1;
        self.sp.handle_frame(NOW, SpId(11), &bytes, payload_len);
    }

    fn drain(&mut self) {
        for _ in 0..10_000 {
            while let Some(order) = self.sp.poll_order() {
                match order {
                    Order::Stage { id, bytes, .. } => {
                        self.staged += bytes;
                        assert!(self.staging.insert(id.0, bytes).is_none() && self.staged <= QUOTA);
                    }
                    Order::Unstage { id } => self.staged -= self.staging.remove(&id.0).expect("it was staged"),
                    _ => {}
                }
            }
            match self.sp.poll_event() {
                Some(Event::Completed { call, .. }) => assert!(self.open.remove(&call), "{call:?} ends once"),
                Some(Event::GroupReady { result, .. }) => self.made += usize::from(result.is_ok()),
                Some(_) => {}
                None if self.sp.poll_transmit(NOW).is_none() => return,
                None => {}
            }
        }
        panic!("it never comes to rest");
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Record { rank, number, steps } => {
                let mut builder = ProgramBuilder::new(Rank(*rank), 4);
                builder.buffers(0, BYTES, 0);
                for step in steps {
                    match *step {
                        Recorded::Send { to, tag, bytes } => {
                            builder.send(Rank(to), tag, Span::output(0, bytes), &[]);
                        }
                        Recorded::Receive { from, tag, bytes } => {
                            builder.recv(Rank(from), tag, Span::output(0, bytes), &[]);
                        }
                        Recorded::Barrier => builder.barrier(),
                    }
                }
                let recording = Recording { program: builder.build().into(), reductions: Vec::new() };
                let sound = recording.check(Rank(*rank), 4).is_ok();
                let recorded = self.sp.handle_record(GROUP, Rank(*rank), *number, recording);
                assert!(sound || recorded.is_err());
            }
            Step::Free { rank, number } => {
                let _ = self.sp.handle_free(GROUP, Rank(*rank), *number);
            }
            Step::Call { rank, call, bytes } => {
                self.calls += 1;
                let id = CallId(self.calls);
                self.open.insert(id);
                let bytes = if matches!(call, TaggedCall::Recorded { .. }) { BYTES } else { *bytes };
                let signature = Signature { kind: CallKind::Tagged(*call), bytes };
                self.sp.handle_call(NOW, support::call(id.0, *rank, 0, signature));
            }
            Step::Hear { message, payload } => {
                self.hear(&Message::transfer(GROUP, message.clone()), *payload);
            }
            Step::Leave { rank } => self.sp.handle_leave(NOW, GROUP, Rank(*rank)),
        }
        self.drain();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_every_call_ends_once(steps in prop::collection::vec(step(), 0..60)) {
        let mut driver = Driver::new();
        steps.iter().for_each(|step| driver.apply(step));
        (0..2).for_each(|rank| driver.apply(&Step::Leave { rank }));
        prop_assert!(driver.open.is_empty(), "{:?}", driver.open);
        prop_assert_eq!(driver.staged, 0);
        let (groups, in_flight, _) = driver.sp.load();
        prop_assert_eq!((groups, in_flight), (0, 0));
    }
}
