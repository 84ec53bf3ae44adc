//! Barriers and reductions as the ranks of the tests call them (SP-6, TH-2).

use std::ops::Range;
use std::sync::Arc;

use outboard::{
    Contribution, Element, Group, Operator, Reduction, ReductionOperator, ReductionOutcome, Request, Status,
    UserOperator,
};

use super::scenarios::{LIMIT, me, pause, print_line, wait_for_death};

const UNTOUCHED: u32 = 0xeeee_eeee;

#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Sum,
    /// Composition of functions by an operator of the ranks, which does not commute.
    Composition,
}

impl By {
    /// Adds, or composes two functions `x -> a * x + b`. A function has `a` in the upper half of its bits and `b` in
    /// the lower half.
    fn combine(self, left: u32, right: u32) -> u32 {
        match self {
            By::Sum => left.wrapping_add(right),
            By::Composition => {
                let (factor, summand) = (left >> 16, left & 0xffff);
                let below = factor.wrapping_mul(right & 0xffff).wrapping_add(summand) & 0xffff;
                factor.wrapping_mul(right >> 16) << 16 | below
            }
        }
    }

    fn combination(self) -> ReductionOperator {
        match self {
            By::Sum => sum().into(),
            By::Composition => (&composition(())).into(),
        }
    }
}

/// An operator of this rank that composes functions. The operator keeps `held` alive.
fn composition(held: impl Send + Sync + 'static) -> UserOperator {
    let combine = move |left: &[u8], right: &mut [u8]| {
        let _kept = &held;
        for (left, right) in left.as_chunks::<4>().0.iter().zip(right.as_chunks_mut::<4>().0) {
            let combined = By::Composition.combine(u32::from_ne_bytes(*left), u32::from_ne_bytes(*right));
            *right = combined.to_ne_bytes();
        }
    };
    UserOperator::new(4, combine).expect("elements of some bytes")
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Result {
    Reduce { root: usize },
    Allreduce,
    Scatter,
    ScatterBlock,
    Scan,
    Exscan,
}

pub(crate) struct Posted {
    _send: Vec<u32>,
    receive: Vec<u32>,
    request: Request,
    expected: Vec<u32>,
    what: (Result, By, usize, usize),
}

/// Element `at` of the contribution of `rank` to call `call`.
fn number(rank: usize, call: usize, at: usize) -> u32 {
    (rank * 7919 + call * 104_729 + at * 31) as u32
}

fn sum() -> Reduction {
    Reduction::new(Operator::Sum, Element::U32).expect("defined by MPI")
}

/// Posts a reduction of vectors of `count` elements, or of blocks of at most twice `count` elements.
fn post(group: &Group, result: Result, by: By, call: usize, count: usize, in_place: bool) -> Posted {
    let (rank, ranks) = me(group);
    let counts: Vec<u64> = (0..ranks as u64).map(|rank| (rank + call as u64) % 3 * count as u64).collect();
    let start = |rank: usize| counts[..rank].iter().sum::<u64>() as usize;
    let length = match result {
        Result::Scatter => start(ranks),
        Result::ScatterBlock => count * ranks,
        Result::Reduce { .. } | Result::Allreduce | Result::Scan | Result::Exscan => count,
    };
    let (part, of): (Range<usize>, Range<usize>) = match result {
        Result::Reduce { root } => (0..if root == rank { count } else { 0 }, 0..ranks),
        Result::Allreduce => (0..count, 0..ranks),
        Result::Scatter => (start(rank)..start(rank) + counts[rank] as usize, 0..ranks),
        Result::ScatterBlock => (rank * count..(rank + 1) * count, 0..ranks),
        Result::Scan => (0..count, 0..rank + 1),
        Result::Exscan => (0..if rank == 0 { 0 } else { count }, 0..rank),
    };
    let numbers = |at| of.clone().map(move |rank| number(rank, call, at));
    let combined = |at| numbers(at).reduce(|left, right| by.combine(left, right)).expect("a rank takes part");
    let expected: Vec<u32> = part.map(combined).collect();
    let send: Vec<u32> = (0..length).map(|at| number(rank, call, at)).collect();
    let in_place = in_place && !matches!(result, Result::Reduce { root } if root != rank);
    let mut receive = if in_place { send.clone() } else { vec![UNTOUCHED; expected.len()] };
    let from = if in_place { Contribution::InPlace } else { Contribution::At(send.as_ptr().cast()) };
    let (to, each) = (receive.as_mut_ptr().cast(), count as u64);
    let outcome = match result {
        Result::Reduce { root } => ReductionOutcome::Reduce { root: root as u32, count: each },
        Result::Allreduce => ReductionOutcome::Allreduce { count: each },
        Result::Scatter => ReductionOutcome::ReduceScatter { counts: &counts },
        Result::ScatterBlock => ReductionOutcome::ReduceScatterBlock { count: each },
        Result::Scan => ReductionOutcome::Scan { count: each, inclusive: true },
        Result::Exscan => ReductionOutcome::Scan { count: each, inclusive: false },
    };
    // SAFETY: the buffers live in the result and are read after the request has ended.
    let posted = unsafe { group.ireduction(outcome, by.combination(), from, to) };
    Posted { _send: send, receive, request: posted.expect("posted"), expected, what: (result, by, call, count) }
}

/// Posts an allreduce, for the scenarios of other modules.
pub(crate) fn post_sums(group: &Group, call: usize, count: usize) -> Posted {
    post(group, Result::Allreduce, By::Sum, call, count, call.is_multiple_of(2))
}

pub(crate) fn check_sums(mut posted: Posted) {
    posted.request.wait(Some(LIMIT)).expect("within the limit").expect("success");
    let wrong = posted.receive.iter().zip(&posted.expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "{:?}", posted.what);
}

/// Sums of every kind and size, in place if possible. A barrier is in flight behind each sum.
pub(super) fn all(group: &Group) {
    all_by(group, By::Sum);
}

/// Reductions of every kind by an operator of the ranks.
pub(super) fn all_by_ranks(group: &Group) {
    all_by(group, By::Composition);
}

fn all_by(group: &Group, by: By) {
    let (_, ranks) = me(group);
    for (at, count) in [0, 1, 362, 25_001, 1 << 18].into_iter().enumerate() {
        let root = at % ranks;
        let results = [
            Result::Reduce { root },
            Result::Allreduce,
            Result::Scatter,
            Result::ScatterBlock,
            Result::Scan,
            Result::Exscan,
        ];
        for (call, result) in results.into_iter().enumerate() {
            for in_place in [false, true] {
                let posted = post(group, result, by, 6 * at + call, count, in_place);
                let mut barrier = group.ibarrier().expect("posted");
                check_sums(posted);
                barrier.wait(Some(LIMIT)).expect("within the limit").expect("success");
            }
        }
    }
    pause("done");
}

/// TH-2: sums of numbers that need rounding, computed repeatedly. All ranks compare their results.
pub(super) fn same_bits(group: &Group) {
    let (rank, ranks) = me(group);
    let sum = Reduction::new(Operator::Sum, Element::F32).expect("defined by MPI");
    for count in [100usize, 60_000] {
        let magnitude = |at: usize| f32::from_bits(((120 + (at + rank) % 20) as u32) << 23);
        let send: Vec<f32> = (0..count).map(|at| magnitude(at) / 3.0 + (rank * at) as f32 / 7.0).collect();
        let mut first = Vec::new();
        for _ in 0..5 {
            let mut receive = vec![0f32; count];
            let (from, to) = (Contribution::At(send.as_ptr().cast()), receive.as_mut_ptr().cast());
            let outcome = ReductionOutcome::Allreduce { count: count as u64 };
            // SAFETY: the buffers outlive the request.
            let mut request = unsafe { group.ireduction(outcome, sum, from, to) }.expect("posted");
            request.wait(Some(LIMIT)).expect("within the limit").expect("success");
            let bits: Vec<u32> = receive.iter().map(|sum| sum.to_bits()).collect();
            if first.is_empty() {
                first.clone_from(&bits);
            }
            assert!(bits == first, "another run, other bits");
        }
        let mut others = vec![0u32; count * ranks];
        let (from, to) = (Contribution::At(first.as_ptr().cast()), others.as_mut_ptr().cast());
        // SAFETY: the buffers outlive the request.
        let mut request = unsafe { group.iallgather(from, to, 4 * count as u64) }.expect("posted");
        request.wait(Some(LIMIT)).expect("within the limit").expect("success");
        assert!(others.chunks(count).all(|bits| bits == first), "another rank, other bits");
    }
    pause("done");
}

/// All ranks reduce except the last rank, which is killed.
pub(super) fn one_dies(group: &Group) {
    let (rank, ranks) = me(group);
    check_sums(post(group, Result::Allreduce, By::Composition, 0, 10_000, false));
    if rank == ranks - 1 {
        wait_for_death();
    }
    let held = Arc::new(());
    let operator = composition(Arc::clone(&held));
    let mut receive = vec![UNTOUCHED; 10_000];
    let (from, to) = (Contribution::InPlace, receive.as_mut_ptr().cast());
    // SAFETY: the buffer outlives the request.
    let posted = unsafe { group.ireduction(ReductionOutcome::Allreduce { count: 10_000 }, &operator, from, to) };
    let mut request = posted.expect("posted");
    drop(operator);
    print_line("posted");
    let error = request.wait(Some(LIMIT)).expect("within the limit").expect_err("one has died");
    assert_eq!(error.status(), Status::RankLost, "{error}");
    assert_eq!(Arc::strong_count(&held), 1, "a request that has failed keeps nothing");
    assert!(receive.iter().all(|number| *number == UNTOUCHED), "nothing was combined");
}

/// SP-6: the last rank posts only after all other ranks have the results that do not depend on it.
pub(super) fn late(group: &Group) {
    late_by(group, By::Sum);
}

/// Runs the scenario of [`late`] with an operator of the ranks.
pub(super) fn late_by_ranks(group: &Group) {
    late_by(group, By::Composition);
}

fn late_by(group: &Group, by: By) {
    let (rank, ranks) = me(group);
    let late = rank == ranks - 1;
    let early = (!late).then(|| post(group, Result::Scan, by, 1, 30_000, false));
    let Some(scan) = early else {
        pause("ready");
        check_sums(post(group, Result::Scan, by, 1, 30_000, false));
        let mut barrier = group.ibarrier().expect("posted");
        let sums = post(group, Result::Allreduce, by, 2, 30_000, true);
        barrier.wait(Some(LIMIT)).expect("within the limit").expect("success");
        return check_sums(sums);
    };
    check_sums(scan);
    let mut barrier = group.ibarrier().expect("posted");
    let sums = post(group, Result::Allreduce, by, 2, 30_000, true);
    assert!(barrier.test().is_none(), "one has not come");
    print_line("waits");
    barrier.wait(Some(LIMIT)).expect("within the limit").expect("success");
    check_sums(sums);
}
