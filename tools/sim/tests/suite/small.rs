//! Small calls without a barrier end sooner than with one, and are right with any late rank and any losses. When ranks
//! disagree, a small call never stays silent.

use std::time::Duration;

use outboard_plan::Element;
use outboard_sim::{CallPlan, Faults, Pattern, ReductionKind, Scenario};

use crate::{play, sum};

const LATE: Duration = Duration::from_secs(1);
/// Mean time of small calls, relative to the same calls behind a barrier. Each call ends when its last messages are
/// acknowledged. Between two hosts that takes one round trip, and a barrier adds the time of one way.
const MOST_TIME: f64 = 0.8;

fn reduction(result: ReductionKind) -> Pattern {
    Pattern::Reduction { result, reduction: sum(Element::F64) }
}

fn patterns() -> [Pattern; 7] {
    let combined = [
        ReductionKind::Reduce { root: 1 },
        ReductionKind::Allreduce,
        ReductionKind::ReduceScatterBlock,
        ReductionKind::Scan,
    ];
    let [reduce, allreduce, scatter, scan] = combined.map(reduction);
    [Pattern::Allgather, Pattern::Alltoall, Pattern::Broadcast { root: 1 }, reduce, allreduce, scatter, scan]
}

fn small(ranks: usize, calls: &[Pattern], bytes: u64) -> Scenario {
    let mut scenario = Scenario::allgather(ranks, 0);
    scenario.config.eager_bytes = 16 << 10;
    scenario.groups[0].calls = calls.iter().map(|pattern| CallPlan::of(*pattern, bytes)).collect();
    scenario
}

/// MC-9: a call that fits one frame waits for no rank that has nothing to do with it.
#[test]
fn mc_9_small_calls_are_over_sooner_than_behind_a_barrier() {
    let mut ratios = Vec::new();
    for ranks in [2, 4, 8, 13] {
        for pattern in patterns() {
            let sooner = small(ranks, &[pattern], 256);
            let mut later = sooner.clone();
            later.config.eager_bytes = 0;
            let ratio = play(&sooner, 1).in_collectives.as_secs_f64() / play(&later, 1).in_collectives.as_secs_f64();
            assert!(ratio < 1.0, "{pattern:?} among {ranks}: {ratio} of the time with a barrier");
            ratios.push(ratio);
        }
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    assert!(mean < MOST_TIME, "{mean} of the time with a barrier: {ratios:.2?}");
}

/// SP-6: the service process stands in for a rank that only receives, and passes the message on without the rank.
#[test]
fn sp_6_late_leaf_of_a_small_broadcast_delays_nobody() {
    for late in [0, 2, 3, 7] {
        let mut scenario = small(8, &[Pattern::Broadcast { root: 1 }], 1000);
        scenario.groups[0].calls[0].late.push((late, LATE));
        for ((_, member, _), end) in play(&scenario, 1).ends {
            assert_eq!(end >= LATE, member == late, "rank {member} ends at {end:?} without rank {late}");
        }
    }
}

/// TH-2: the bits do not depend on the order of arrival, with and without a barrier between the calls of a run.
#[test]
fn th_2_small_reductions_keep_their_bits_under_lateness_and_loss() {
    let bits = |seed: u64, late: usize| {
        let faults = if seed == 0 { Faults::none() } else { Faults { frame_loss: 0.2, ..Faults::none() } };
        let calls: Vec<Pattern> = patterns().into_iter().cycle().take(18).collect();
        let mut scenario = small(7, &calls, 800).ranks_per_host(2).with_faults(faults);
        scenario.groups[0].window = 4;
        scenario.groups[0].calls[late].late.push((late % 7, LATE));
        let outcome = play(&scenario, seed);
        assert_eq!(outcome.errors, 0);
        outcome.bits
    };
    let expected = bits(0, 0);
    (1..40).for_each(|seed| assert_eq!(bits(seed, seed as usize % 18), expected, "seed {seed}"));
}

/// The staging has no room for a window of calls, so messages stay with their sources until they are received.
#[test]
fn small_calls_ahead_of_a_late_rank_take_no_more_staging_than_there_is() {
    for quota in [0, 5000] {
        let mut scenario = small(5, &[Pattern::Allgather; 40], 700);
        scenario.config.staging_quota = quota;
        scenario.groups[0].window = 40;
        scenario.groups[0].calls[0].late.push((3, LATE));
        let outcome = play(&scenario, 1);
        assert_eq!(outcome.errors, 0);
        assert!(outcome.counters.iter().all(|counters| counters.staging_peak <= quota), "{:?}", outcome.counters);
    }
}

/// A rank that calls another size is notified, even when all other ranks have ended and left meanwhile.
#[test]
fn rank_that_calls_another_size_ends() {
    for pattern in patterns() {
        for (bytes, other) in [(0, 1664), (8, 1664), (1664, 0), (64, 128)] {
            for odd in [0, 1, 4] {
                let mut scenario = small(5, &[pattern], bytes);
                let call = &mut scenario.groups[0].calls[0];
                (call.disagrees, call.late) = (Some((odd, other)), vec![(odd, LATE)]);
                assert!(play(&scenario, 1).errors > 0, "{pattern:?} of {bytes} bytes, {other} at rank {odd}");
            }
        }
    }
}
