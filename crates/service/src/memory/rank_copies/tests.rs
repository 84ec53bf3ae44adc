use outboard_proto::{MemRegion, StagingId};
use outboard_shm::control::{RankSide, ServiceSide};
use outboard_shm::memory::{CrossMemory, MemoryDescriptor, ProbePage, Proof, TieredMemory};

use super::*;
use crate::memory::PostedBuffers;

const BYTES: usize = 3 << 20;
/// A byte value that occurs in no source.
const EMPTY: u8 = 251;

/// A rank with one call in flight; this process acts as the rank's process.
struct Rank {
    call: CallId,
    side: RankSide,
    _probe: ProbePage,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// The memory of a service process and its ranks, each with a call. This process acts as all ranks but the strangers.
struct Host {
    memory: EndpointMemory,
    ranks: Vec<Rank>,
}

impl Host {
    /// The process number of a stranger belongs to another process.
    fn new(ranks: u64, strangers: &[u64]) -> Host {
        let mut memory = EndpointMemory::default();
        memory.copy_offers.min_bytes = 1000;
        let rank = |number: u64| {
            let service = ServiceSide::create().expect("memory");
            let [region, doorbell] = service.descriptors().map(|fd| fd.try_clone_to_owned().expect("descriptors"));
            let (probe, pid) = (ProbePage::new().expect("a page"), rustix::process::getpid());
            let own = MemoryDescriptor::attach(MemoryDescriptor::of_this_process().expect("/proc"), 1).expect("memory");
            let proof = Proof { address: &raw const *probe as u64, nonce: probe.nonce() };
            let reached = TieredMemory::proven(Some(CrossMemory::of(pid)), Some(own), proof);
            let input: Vec<u8> = (0..BYTES).map(|at| ((at as u64 * 7 + number) % u64::from(EMPTY)) as u8).collect();
            let output = vec![EMPTY; BYTES];
            let pair = |buffer: &[u8]| (buffer.as_ptr() as u64, buffer.len() as u64);
            // By now the number belongs to another process.
            let pid = if strangers.contains(&number) { rustix::process::getppid().expect("it has one") } else { pid };
            let copy_agent = CopyAgent { id: number, pid, copies: service.rank_copies() };
            let buffers = PostedBuffers::new(Arc::new(reached), pair(&input), pair(&output));
            memory.insert(CallId(number), buffers.with_copy_agent(Some(Arc::new(copy_agent))));
            let side = RankSide::attach(region, doorbell).expect("its layout");
            Rank { call: CallId(number), side, _probe: probe, input, output }
        };
        let ranks = (0..ranks).map(rank).collect();
        Host { memory, ranks }
    }

    /// Orders a copy of all bytes of a region to the output of rank `to`.
    fn copy(&mut self, from: MemRegion, to: usize) {
        let piece = |region| MemRef { region, offset: 0, len: BYTES as u64 };
        let to = MemRegion::Output(self.ranks[to].call);
        self.memory.do_or_defer(MemoryWork::Copy { from: piece(from), to: piece(to) });
    }

    fn input(&self, rank: usize) -> MemRegion {
        MemRegion::Input(self.ranks[rank].call)
    }

    /// Whether rank `rank` has received the contribution of rank `of`.
    fn has(&self, rank: usize, of: usize) -> bool {
        // The service process writes the output without the compiler's knowledge.
        std::hint::black_box(&self.ranks[rank].output) == &self.ranks[of].input
    }

    fn held(&self) -> Vec<usize> {
        (0..self.ranks.len()).filter(|rank| self.memory.deferred_ops.names_call(self.ranks[*rank].call)).collect()
    }

    /// Does all rank copies that the rank is offered; returns their number.
    fn run(&self, rank: usize) -> usize {
        let side = &self.ranks[rank].side;
        let done = std::iter::from_fn(|| side.claim_copy()).map(|(slot, errand)| {
            // SAFETY: the target is the rank's output, which lives in the host.
            side.report(slot, unsafe { CrossMemory::perform(&errand) });
        });
        done.count()
    }
}

#[test]
fn sp_6_a_waiting_rank_copies_and_both_calls_end_after_it() {
    let mut host = Host::new(3, &[]);
    host.ranks[1].side.begin_wait();
    host.copy(host.input(0), 1);
    host.copy(host.input(0), 2);
    host.memory.advance_planned_work();
    assert!(!host.has(1, 0) && host.has(2, 0), "nobody waits at rank 2");
    assert_eq!(host.held(), [0, 1]);
    assert!(!host.memory.poll_rank_copies() && host.memory.deferred_ops.timer().is_some());
    assert_eq!(host.run(1), 1);
    assert!(host.memory.deferred_ops.has_reports() && host.memory.poll_rank_copies());
    assert!(host.has(1, 0) && host.held().is_empty());
    let CopyCounters { by_ranks, bytes_by_ranks, by_service, .. } = host.memory.copy_offers.copies;
    assert_eq!((by_ranks, bytes_by_ranks, by_service), (1, BYTES as u64, 1));
    assert_eq!(host.memory.deferred_ops.timer(), None);
}

#[test]
fn copies_that_a_rank_does_not_begin_are_done_by_the_conductor() {
    let mut host = Host::new(2, &[]);
    host.ranks[1].side.begin_wait();
    host.copy(host.input(0), 1);
    host.memory.advance_planned_work();
    host.ranks[1].side.end_wait();
    assert!(host.memory.deferred_ops.has_reports() && host.memory.poll_rank_copies());
    assert!(host.has(1, 0) && host.held().is_empty());
    assert_eq!((host.run(1), host.memory.copy_offers.copies.taken_back), (0, 1));
}

#[test]
fn work_that_needs_the_bytes_of_a_copy_gets_them() {
    let mut host = Host::new(3, &[]);
    host.ranks[1].side.begin_wait();
    host.copy(host.input(0), 1);
    host.copy(MemRegion::Output(CallId(1)), 2);
    host.copy(host.input(2), 1);
    host.memory.advance_planned_work();
    assert!(host.has(2, 0), "what is passed on is there first");
    host.run(1);
    assert!(host.memory.poll_rank_copies() && host.has(1, 2), "what comes later stays");
    // Two ranks may read one source at once.
    host.ranks[2].side.begin_wait();
    host.copy(host.input(0), 1);
    host.copy(host.input(0), 2);
    host.memory.advance_planned_work();
    assert_eq!((host.run(2), host.run(1)), (1, 1));
    assert!(host.memory.poll_rank_copies() && host.has(1, 0) && host.has(2, 0));
    // A transmission reads bytes that a rank copy has yet to write.
    host.copy(host.input(2), 1);
    host.memory.advance_planned_work();
    let piece = MemRef { region: MemRegion::Output(CallId(1)), offset: 0, len: 8 };
    assert!(host.memory.locate_to_read(piece).is_ok() && host.has(1, 2));
}

#[test]
fn a_rank_that_stops_during_a_copy_delays_only_itself() {
    let mut host = Host::new(3, &[]);
    host.ranks[1].side.begin_wait();
    host.copy(host.input(0), 1);
    host.memory.advance_planned_work();
    let (slot, _) = host.ranks[1].side.claim_copy().expect("offered");
    // Another copy overwrites the source: the service process has read the source by then.
    host.copy(host.input(1), 2);
    let source = MemRegion::Input(CallId(0));
    let whole = MemRef { region: source, offset: 0, len: BYTES as u64 };
    assert!(!host.memory.must_wait([None, Some(whole)]), "it is read");
    assert_eq!(host.held(), [1, 2], "the call of rank 0 may end");
    host.memory.advance_planned_work();
    assert!(host.has(2, 1) && host.held() == [1]);
    // Work that reads the output of a stopped rank waits for that rank.
    host.copy(MemRegion::Output(CallId(1)), 2);
    host.memory.advance_planned_work();
    assert_eq!(host.held(), [1, 2]);
    assert!(host.memory.deferred_ops.timer().is_some(), "not for ever");
    host.ranks[1].output.fill(EMPTY);
    host.ranks[1].side.report(slot, CopyOutcome::Failed);
    assert!(host.memory.poll_rank_copies());
    host.memory.advance_planned_work();
    assert!(host.has(1, 0) && host.has(2, 0) && host.held().is_empty());
}

#[test]
fn memory_of_an_unproven_process_is_never_read() {
    let mut host = Host::new(3, &[0]);
    for round in 0..2 {
        host.ranks[1].side.begin_wait();
        host.copy(host.input(0), 1);
        host.memory.advance_planned_work();
        assert_eq!(host.run(1), 1 - round, "nobody tries twice");
        assert_eq!(host.memory.poll_rank_copies(), round == 0);
        host.memory.advance_planned_work();
        assert!(host.has(1, 0) && host.held().is_empty());
        host.ranks[1].output.fill(EMPTY);
    }
    assert_eq!((host.memory.copy_offers.copies.failed, host.memory.copy_offers.copies.by_service), (1, 2));
    host.copy(host.input(2), 1);
    host.memory.advance_planned_work();
    assert_eq!(host.run(1), 1, "others are");
}

#[test]
fn bytes_of_a_lost_rank_are_missed_and_bytes_of_a_failed_call_arrive() {
    for gone in [true, false] {
        let mut host = Host::new(4, &[]);
        for rank in 1..4 {
            host.ranks[rank].side.begin_wait();
            host.copy(host.input(0), rank);
        }
        host.memory.advance_planned_work();
        let begun = [2, 3].map(|rank: usize| host.ranks[rank].side.claim_copy().expect("offered"));
        // SAFETY: the target is the rank's output.
        host.ranks[2].side.report(begun[0].0, unsafe { CrossMemory::perform(&begun[0].1) });
        // The failure is not reported while other calls can still get the bytes of the failed call.
        while !gone && host.memory.deferred_ops.holds_back(CallId(0), |call| call == CallId(0)) {
            host.memory.poll_rank_copies();
        }
        let missing = host.memory.drop_call_work(CallId(0), gone);
        assert!(host.has(2, 0), "it was done");
        if gone {
            assert_eq!(missing, [CallId(1), CallId(3)]);
        } else {
            assert!(missing.is_empty() && host.has(1, 0));
            assert_eq!(host.held(), [3], "its bytes are kept for it");
        }
        host.ranks[3].side.report(begun[1].0, CopyOutcome::Failed);
        host.memory.poll_rank_copies();
        assert_eq!((host.has(3, 0), host.held()), (!gone, Vec::new()));
    }
}

/// A turn does the work that follows rank copies within the turn's budget, and leaves the rest to later turns.
#[test]
fn work_after_rank_copies_is_spread_over_turns() {
    let mut host = Host::new(6, &[]);
    let receivers = 1..5;
    for rank in receivers.clone() {
        host.ranks[rank].side.begin_wait();
        host.copy(host.input(0), rank);
    }
    host.memory.advance_planned_work();
    for rank in receivers.clone() {
        host.copy(host.input(5), rank);
    }
    host.memory.advance_planned_work();
    assert_eq!(host.memory.copy_offers.copies.by_service, 2, "one errand, and what comes behind it");
    receivers.clone().for_each(|rank| _ = host.run(rank));
    while !host.held().is_empty() {
        host.memory.poll_rank_copies();
    }
    assert!(receivers.into_iter().all(|rank| host.has(rank, 5)));
}

#[test]
fn a_failure_waits_for_live_readers_behind_a_copy_only() {
    let mut host = Host::new(5, &[]);
    let failed = |call| call == CallId(0);
    // These copies leave little of the turn's budget.
    host.copy(host.input(4), 3);
    host.copy(host.input(3), 4);
    host.memory.advance_planned_work();
    host.ranks[1].side.begin_wait();
    host.copy(host.input(2), 1);
    host.copy(host.input(0), 1);
    host.memory.advance_planned_work();
    let (slot, errand) = host.ranks[1].side.claim_copy().expect("offered");
    assert!(host.memory.deferred_ops.holds_back(CallId(0), failed), "what waits for the errand alone");
    assert!(!host.memory.deferred_ops.holds_back(CallId(0), |_| true), "nobody is left to need it");
    while host.held().contains(&2) {
        host.memory.poll_rank_copies();
    }
    assert!(!host.memory.deferred_ops.holds_back(CallId(0), failed), "rank 1 does not go on");
    // SAFETY: the target is the rank's output.
    host.ranks[1].side.report(slot, unsafe { CrossMemory::perform(&errand) });
    while !host.held().is_empty() {
        host.memory.poll_rank_copies();
    }
    assert!(host.has(1, 0));
}

#[test]
fn small_copies_and_staging_copies_are_done_by_the_service_process() {
    let mut host = Host::new(2, &[]);
    host.ranks[1].side.begin_wait();
    let piece = |region| MemRef { region, offset: 0, len: 999 };
    let (from, to) = (MemRegion::Input(CallId(0)), MemRegion::Output(CallId(1)));
    host.memory.do_or_defer(MemoryWork::Copy { from: piece(from), to: piece(to) });
    let staging = MemRegion::Staging(StagingId(3));
    let buffer = host.memory.pool.take(BYTES as u64).expect("memory");
    host.memory.staging.insert(StagingId(3), Some(buffer));
    host.copy(staging, 1);
    host.memory.advance_planned_work();
    assert_eq!((host.run(1), host.held().len()), (0, 0));
}
