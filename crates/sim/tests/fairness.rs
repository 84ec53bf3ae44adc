//! Small collectives of one group beside a stream of another (MC-13), in virtual time.

use std::time::Duration;

use outboard_proto::config::AllgatherAlgorithm;
use outboard_sim::{CallPlan, GroupPlan, Outcome, Pattern, Scenario, StoreKind, run};

const SMALL: u64 = 4 << 10;
const LARGE: u64 = 4 << 20;
const SMALL_CALLS: u64 = 20;
const STREAM: usize = 0;
const OTHER: usize = 1;

/// Calls of 4 MiB by all four ranks, and of 4 KiB by `members`, all of one kind; without the one or the other where told so.
fn beside(pattern: Pattern, algorithm: AllgatherAlgorithm, members: &[usize], both: (bool, bool)) -> Scenario {
    let mut scenario = Scenario::allgather(4, 0).by(algorithm);
    scenario.store = StoreKind::Provenance;
    // The unicast fabric of real hosts waits for room instead of dropping.
    scenario.network.queue_bytes = 16 << 20;
    let large = if pattern == Pattern::Alltoall { LARGE / 4 } else { LARGE };
    let stream = CallPlan { at: Duration::from_millis(5), ..CallPlan::of(pattern, large) };
    let small = |i| CallPlan { at: Duration::from_micros(8000 + 500 * i), ..CallPlan::of(pattern, SMALL) };
    let (mut first, mut second) = (GroupPlan::new(vec![0, 1, 2, 3]), GroupPlan::new(members));
    first.calls = vec![stream; if both.0 { 2 } else { 0 }];
    second.calls = (0..if both.1 { SMALL_CALLS } else { 0 }).map(small).collect();
    scenario.groups = vec![first, second];
    scenario
}

fn outcome(scenario: &Scenario) -> Outcome {
    run(scenario, 1).unwrap_or_else(|failure| panic!("{failure}"))
}

/// How long each call of a group took, from when it was made.
fn times(scenario: &Scenario, outcome: &Outcome, group: usize) -> Vec<Duration> {
    let plan = &scenario.groups[group];
    let mut before = Duration::ZERO;
    let calls = plan.calls.iter().zip(1..).map(|(call, instance)| {
        let ends = (0..plan.members.len()).map(|member| outcome.ends[&(group, member, instance)]);
        let start = before.max(call.at);
        before = ends.max().expect("a group has members");
        before - start
    });
    calls.collect()
}

fn mean(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / times.len() as u32
}

/// The first small call meets what the stream queued when it was alone, the others what company may queue.
fn a_stream_lets_small_calls_through(pattern: Pattern, algorithm: AllgatherAlgorithm) {
    // Hosts without a rank in the small group do not know that somebody else is about, and send as if alone.
    for (members, on_average, at_most) in [(&[0, 1, 2, 3][..], 7, 10), (&[2, 0], 16, 35)] {
        let kind = format!("{algorithm:?} {pattern:?} {members:?}");
        let [quiet, stream, both] =
            [(false, true), (true, false), (true, true)].map(|which| beside(pattern, algorithm, members, which));
        let alone = mean(&times(&quiet, &outcome(&quiet), OTHER));
        let undisturbed = times(&stream, &outcome(&stream), STREAM);
        let together = outcome(&both);
        let small = times(&both, &together, OTHER);
        let (average, first) = (mean(&small), small[0]);
        let longest = small[1..].iter().max().expect("there are more");
        assert!(average < alone * on_average, "{kind}: {average:?} on average, {alone:?} alone");
        assert!(*longest < alone * at_most, "{kind}: {longest:?} at most, {alone:?} alone");
        assert!(first < undisturbed[0] / 4, "{kind}: the first took {first:?} beside a call of {:?}", undisturbed[0]);
        let (before, now) = (mean(&undisturbed), mean(&times(&both, &together, STREAM)));
        assert!(now < before * 3 / 2, "{kind}: the stream takes {now:?}, {before:?} alone");
        assert_eq!(together.retransmitted_bytes(), 0, "{kind}: nobody takes waiting for loss");
    }
}

#[test]
fn mc_13_a_stream_of_allgathers_lets_small_ones_through() {
    a_stream_lets_small_calls_through(Pattern::Allgather, AllgatherAlgorithm::Multicast);
    a_stream_lets_small_calls_through(Pattern::Allgather, AllgatherAlgorithm::Ring);
}

#[test]
fn mc_13_a_stream_of_broadcasts_lets_small_ones_through() {
    a_stream_lets_small_calls_through(Pattern::Broadcast { root: 0 }, AllgatherAlgorithm::Multicast);
    a_stream_lets_small_calls_through(Pattern::Broadcast { root: 0 }, AllgatherAlgorithm::Ring);
}

#[test]
fn mc_13_a_stream_of_all_to_alls_lets_small_ones_through() {
    a_stream_lets_small_calls_through(Pattern::Alltoall, AllgatherAlgorithm::Multicast);
}

/// Bytes of one block of [`grid`].
const BLOCK: u64 = 1 << 20;
const GRID_CALLS: u64 = 6;

/// Ranks of four hosts in rows and columns, as in a transform by pencils: all-to-alls of large blocks in each row and each
/// column, two at a time, beside small ones of all ranks where told so.
fn grid(small: bool) -> Scenario {
    let mut scenario = beside(Pattern::Alltoall, AllgatherAlgorithm::Multicast, &[0, 1, 2, 3], (false, small));
    let large = CallPlan { at: Duration::from_millis(5), ..CallPlan::of(Pattern::Alltoall, BLOCK) };
    let pairs = [[0, 1], [2, 3], [0, 2], [1, 3]].map(|members| GroupPlan {
        window: 2,
        calls: vec![large.clone(); GRID_CALLS as usize],
        ..GroupPlan::new(members)
    });
    scenario.groups.splice(STREAM..OTHER, pairs);
    scenario
}

/// Frames with payload.
fn fragments(outcome: &Outcome) -> u64 {
    outcome.counters.iter().map(|c| c.frames - c.control_frames).sum()
}

#[test]
fn mc_13_groups_of_large_calls_alone_move_large_pieces() {
    let scenario = grid(false);
    let outcome = outcome(&scenario);
    let sent_by_each = 2 * GRID_CALLS * BLOCK;
    // Of what a block is asked for at once the last piece is a small one.
    let in_large_pieces = 4 * sent_by_each / u64::from(scenario.config.fragment_bytes) * 6 / 5;
    let limit = Duration::from_secs_f64(sent_by_each as f64 * 8.0 / scenario.network.rate as f64);
    assert!(fragments(&outcome) < in_large_pieces, "{}: nobody small waits for them", fragments(&outcome));
    assert!(outcome.in_collectives < limit * 6 / 5, "{:?}, the links alone {limit:?}", outcome.in_collectives);
}

#[test]
fn mc_13_small_calls_pass_groups_of_large_calls() {
    let quiet = beside(Pattern::Alltoall, AllgatherAlgorithm::Multicast, &[0, 1, 2, 3], (false, true));
    let [large, both] = [false, true].map(grid);
    let alone = mean(&times(&quiet, &outcome(&quiet), OTHER));
    let together = outcome(&both);
    let small = times(&both, &together, both.groups.len() - 1);
    let (average, longest) = (mean(&small[1..]), small[1..].iter().max().expect("there are more"));
    assert!(average < alone * 6 && *longest < alone * 10, "{average:?}, at most {longest:?}; {alone:?} alone");
    let in_flight = Duration::from_secs_f64((4 * BLOCK * 8) as f64 / both.network.rate as f64);
    assert!(small[0] < in_flight / 3, "the first took {:?}, and {in_flight:?} was to be moved by each", small[0]);
    assert!(fragments(&together) > fragments(&outcome(&large)) * 3 / 2, "what comes later is in small pieces");
}
