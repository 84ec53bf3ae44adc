//! A large recording, or calls of many ranks of one host, must not block others: a limited part is done at once, and
//! the rest at the next timeout.

use std::collections::BTreeMap;

use outboard_plan::{Element, Op, Operator, ProgramBuilder, Rank, Reduction, Span};
use outboard_proto::{
    CallId, CallKind, Config, Endpoint, Event, GroupHandle, GroupSpec, Instant, MAX_STEPS, MemRef, MemRegion, OfferId,
    Order, RecordError, Recording, Signature, SpId, TaggedCall,
};

use crate::support::{self, GROUP};

const NOW: Instant = Instant(1);
/// Most steps of a turn, and most bytes including the last step.
const STEPS: usize = 1024;
const BYTES: u64 = 8 << 20;

/// The ranks of a group at one service process.
struct Driver {
    sp: Endpoint,
    calls: u64,
    ended: Vec<CallId>,
}

impl Driver {
    fn new() -> Driver {
        Driver::of(2)
    }

    fn of(ranks: u32) -> Driver {
        Driver::with(ranks, Config::default())
    }

    fn with(ranks: u32, config: Config) -> Driver {
        let mut sp = Endpoint::new(SpId(10), config, 1);
        let spec = support::spec(&vec![10; ranks as usize]);
        (0..ranks).for_each(|rank| sp.handle_create_group(NOW, &spec, Rank(rank)));
        let mut driver = Driver { sp, calls: 0, ended: Vec::new() };
        driver.drain();
        driver
    }

    fn record(&mut self, rank: u32, bytes: u64, steps: impl FnOnce(&mut ProgramBuilder)) -> Result<(), RecordError> {
        let mut builder = ProgramBuilder::new(Rank(rank), 2);
        builder.buffers(0, bytes, 0);
        steps(&mut builder);
        let program = builder.build();
        let combines = program.steps.iter().filter(|step| matches!(step.op, Op::Reduce { .. })).count();
        let sum = Reduction::new(Operator::Sum, Element::F64).expect("numbers are added");
        let recording = Recording { program: program.into(), reductions: vec![sum; combines] };
        self.sp.handle_record(GROUP, Rank(rank), 1, recording)
    }

    fn call(&mut self, rank: u32, call: TaggedCall, bytes: u64) -> CallId {
        self.calls += 1;
        let (id, signature) = (CallId(self.calls), Signature { kind: CallKind::Tagged(call), bytes });
        self.sp.handle_call(NOW, support::call(id.0, rank, 0, signature));
        id
    }

    fn start(&mut self, rank: u32, bytes: u64) -> CallId {
        self.call(rank, TaggedCall::Recorded { recording: 1 }, bytes)
    }

    /// Returns the memory that the copies and reductions ordered since the last call write.
    fn drain(&mut self) -> Vec<MemRef> {
        let mut written = Vec::new();
        while let Some(order) = self.sp.poll_order() {
            if let Order::Copy { to, .. } | Order::Reduce { into: to, .. } = order {
                written.push(to);
            }
        }
        while let Some(event) = self.sp.poll_event() {
            if let Event::Completed { call, result } = event {
                assert_eq!(result, Ok(()));
                self.ended.push(call);
            }
        }
        while self.sp.poll_transmit(NOW).is_some() {}
        written
    }

    fn is_unfinished(&self) -> bool {
        self.sp.poll_timeout().is_some_and(|at| at <= NOW)
    }

    /// Runs turn by turn to the end. Returns the written memory by turn.
    fn turns(&mut self) -> Vec<Vec<MemRef>> {
        let mut turns = vec![self.drain()];
        while self.is_unfinished() {
            self.sp.handle_timeout(NOW);
            turns.push(self.drain());
        }
        turns
    }
}

/// Each turn writes a bounded number of pieces and bytes, and each call's bytes are written once.
fn assert_bounded(turns: &[Vec<MemRef>], bytes: &BTreeMap<CallId, u64>) {
    for turn in turns {
        let moved: u64 = turn.iter().map(|to| to.len).sum();
        assert!(turn.len() <= STEPS && moved <= BYTES, "{} orders of {moved} bytes at once", turn.len());
    }
    let mut written: BTreeMap<CallId, Vec<(u64, u64)>> = BTreeMap::new();
    for to in turns.iter().flatten() {
        let MemRegion::Output(call) = to.region else { panic!("{to:?}") };
        written.entry(call).or_default().push((to.offset, to.len));
    }
    for (call, pieces) in &mut written {
        pieces.sort_unstable();
        let mut end = pieces[0].0;
        for (offset, len) in pieces {
            assert_eq!(*offset, end, "each byte once");
            end += *len;
        }
        assert_eq!(end, bytes[call]);
    }
    assert_eq!(written.len(), bytes.len());
}

#[test]
fn a_recording_of_many_steps_is_done_over_many_turns() {
    let mut driver = Driver::new();
    let half = MAX_STEPS as u64;
    for rank in 0..2 {
        let copies = |builder: &mut ProgramBuilder| {
            (0..half).for_each(|at| _ = builder.copy(Span::output(at, 1), Span::output(half + at, 1), &[]));
        };
        driver.record(rank, 2 * half, copies).expect("as many as one may have");
    }
    let calls = [0, 1].map(|rank| driver.start(rank, 2 * half));
    let first = driver.drain();
    assert!(first.len() <= STEPS && driver.is_unfinished(), "{} orders at once", first.len());
    // Calls made in between get their results at once.
    let small = driver.call(0, TaggedCall::Send { to: Rank(1), tag: 1 }, 100);
    let received = driver.call(1, TaggedCall::Receive { from: Rank(0), tag: 1 }, 100);
    driver.drain();
    assert_eq!(driver.ended, [small, received]);
    let turns: Vec<_> = [first].into_iter().chain(driver.turns()).collect();
    assert_eq!(driver.ended.len(), 4);
    assert_bounded(&turns, &calls.map(|call| (call, 2 * half)).into());
    // Both calls had their turns, however many steps the earlier call had left.
    let of = |call| turns.iter().position(|turn| turn.iter().any(|to| to.region == MemRegion::Output(call)));
    assert!(calls.into_iter().all(|call| of(call).is_some_and(|first| first < 4)), "{:?}", calls.map(of));
}

#[test]
fn a_step_of_many_bytes_is_done_piece_by_piece() {
    const LARGE: u64 = 100_000_008;
    for combines in [false, true] {
        let mut driver = Driver::new();
        let (from, to) = (Span::output(0, LARGE), Span::output(LARGE, LARGE));
        let step = if combines { Op::Reduce { from, into: to, from_left: true } } else { Op::Copy { from, to } };
        driver.record(0, 2 * LARGE, |builder| _ = builder.push(step, &[])).expect("sound");
        let call = driver.start(0, 2 * LARGE);
        let turns = driver.turns();
        assert_eq!(driver.ended, [call]);
        assert_bounded(&turns, &[(call, 2 * LARGE)].into());
        assert!(turns.iter().flatten().all(|to| to.len.is_multiple_of(Element::F64.bytes())), "whole elements");
    }
}

/// Small work takes no extra turn.
#[test]
fn small_recordings_are_done_at_once() {
    let mut driver = Driver::new();
    driver.record(0, 200, |builder| _ = builder.send(Rank(1), 1, Span::output(0, 100), &[])).expect("sound");
    driver.record(1, 200, |builder| _ = builder.recv(Rank(0), 1, Span::output(0, 100), &[])).expect("sound");
    for round in 1..=3 * STEPS {
        (0..2).for_each(|rank| _ = driver.start(rank, 200));
        driver.drain();
        assert_eq!((driver.ended.len(), driver.is_unfinished()), (2 * round, false));
    }
}

#[test]
fn queued_work_of_a_lost_rank_is_dropped() {
    let mut driver = Driver::new();
    let copies = |builder: &mut ProgramBuilder| {
        (0..5000).for_each(|at| _ = builder.copy(Span::output(at, 1), Span::output(5000 + at, 1), &[]));
    };
    driver.record(0, 10_000, copies).expect("sound");
    driver.start(0, 10_000);
    while driver.sp.poll_order().is_some() {}
    (0..2).for_each(|rank| driver.sp.handle_leave(NOW, GROUP, Rank(rank)));
    assert!(matches!(driver.sp.poll_event(), Some(Event::Completed { result: Err(_), .. })));
    assert!(driver.turns().iter().all(Vec::is_empty));
}

#[test]
fn more_than_one_recording_may_have_is_refused() {
    let mut driver = Driver::new();
    let copies = |builder: &mut ProgramBuilder| {
        (0..=MAX_STEPS).for_each(|_| _ = builder.copy(Span::output(0, 1), Span::output(1, 1), &[]));
    };
    assert_eq!(driver.record(0, 2, copies), Err(RecordError::Size { steps: MAX_STEPS + 1 }));
}

/// Among ranks of one host every step of a collective is done here.
#[test]
fn a_collective_of_many_ranks_of_one_host_is_done_over_many_turns() {
    let ranks = 150;
    let mut driver = Driver::of(ranks);
    for rank in 0..ranks {
        let signature = Signature { kind: CallKind::Allgather, bytes: 1 << 10 };
        driver.sp.handle_call(NOW, support::call(rank.into(), rank, 1, signature));
    }
    let turns: Vec<usize> = driver.turns().iter().map(Vec::len).collect();
    assert_eq!(driver.ended.len(), ranks as usize, "{turns:?}");
    // One step may copy to all ranks.
    assert!(turns.iter().all(|orders| *orders <= STEPS + ranks as usize), "{turns:?}");
    assert_eq!(turns.iter().sum::<usize>(), (ranks * ranks) as usize, "each has a block of each");
}

/// Beyond the staging quota the send of a message without a receive stays in flight.
#[test]
fn messages_without_bytes_count_to_the_staging_quota() {
    const ROOM: u64 = 100;
    let staging_quota = ROOM * 256;
    let mut driver = Driver::with(2, Config { staging_quota, ..Config::default() });
    let send = TaggedCall::Send { to: Rank(1), tag: 7 };
    let sent: Vec<CallId> = (0..2 * ROOM).map(|_| driver.call(0, send, 0)).collect();
    driver.drain();
    assert_eq!(driver.ended, sent[..ROOM as usize], "as many as there is room for");
    let receive = TaggedCall::Receive { from: Rank(0), tag: 7 };
    (0..2 * ROOM).for_each(|_| _ = driver.call(1, receive, 0));
    driver.drain();
    assert_eq!(driver.ended.len(), 4 * ROOM as usize, "all are received");
}

/// An endpoint that makes 20,000 groups of two ranks. Also the times to withdraw 10,000 offers that no rank has made:
/// before the first group, and after the last group.
fn endpoint_of_many_groups() -> (Endpoint, [std::time::Duration; 2]) {
    let mut here = Endpoint::new(SpId(10), Config::default(), 1);
    let withdrawals = |here: &mut Endpoint| {
        let before = std::time::Instant::now();
        (100_000..110_000).for_each(|offer| here.handle_offer_withdrawn(NOW, OfferId(offer), None));
        before.elapsed()
    };
    let of_none = withdrawals(&mut here);
    for number in 0..20_000 {
        let mut spec = GroupSpec { handle: GroupHandle(number), ..support::spec(&[10, 10]) };
        spec.members.iter_mut().zip([0, 1]).for_each(|(m, at)| m.offer = OfferId(2 * u64::from(number) + at));
        here.handle_create_group(NOW, &spec, Rank(0));
    }
    let of_many = withdrawals(&mut here);
    (here, [of_none, of_many])
}

#[test]
fn a_withdrawn_offer_concerns_its_group_alone() {
    let (mut here, _) = endpoint_of_many_groups();
    let failed = |here: &mut Endpoint| {
        std::iter::from_fn(|| here.poll_event())
            .filter_map(|event| match event {
                Event::GroupReady { group, result: Err(_), .. } => Some(group.0),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(failed(&mut here), []);
    here.handle_offer_withdrawn(NOW, OfferId(2 * 77), None);
    assert_eq!(failed(&mut here), [], "that rank has asked");
    here.handle_offer_withdrawn(NOW, OfferId(2 * 77 + 1), None);
    assert_eq!(failed(&mut here), [77]);
}

#[test]
#[ignore = "compares measured times: make soak"]
fn withdrawing_an_offer_costs_the_same_with_many_groups() {
    let (_, [of_none, of_many]) = endpoint_of_many_groups();
    assert!(of_many < of_none * 100, "{of_many:?} for what nobody waits for, {of_none:?} without groups");
}
