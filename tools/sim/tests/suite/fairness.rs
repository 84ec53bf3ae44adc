//! Small collectives of one group beside a stream of another (MC-13), in virtual time.

use std::time::Duration;

use outboard_sim::{CallPlan, GroupPlan, Pattern, RunOutcome, Scenario, StoreKind};

use crate::play;

const SMALL: u64 = 4 << 10;
const LARGE: u64 = 4 << 20;
const SMALL_CALLS: u64 = 20;
const STREAM: usize = 0;
const OTHER: usize = 1;
/// Time of a small call beside a stream, on average and at most, relative to the call alone. Each message of the call
/// waits for one small turn of the stream on each path.
const MOST_TIMES: (u32, u32) = (7, 10);
/// [`MOST_TIMES`] if some hosts have no rank in the small group. These hosts do not know of the small group, and send
/// as if alone.
const MOST_TIMES_UNTOLD: (u32, u32) = (16, 35);
/// The stream's first call alone takes more than this many times as long as the first small call beside the stream.
const LEAST_BEFORE_STREAM: u32 = 4;
/// Time of the stream beside small calls, relative to the stream alone. The stream gives up an eighth of its rate, and
/// sends small pieces.
const MOST_STREAM_TIME: f64 = 1.5;
/// Fragments of groups of large calls, in percent of full pieces. The last piece of a request is shorter.
const MOST_FRAGMENTS_PERCENT: u64 = 120;
/// Time of groups of large calls, relative to the link time of the payload.
const MOST_GRID_TIME: f64 = 1.2;
/// [`MOST_TIMES`] beside the groups of [`grid`]: each row and column has two calls in flight.
const MOST_TIMES_IN_GRID: (u32, u32) = (6, 10);
/// The link time of the large calls in flight is more than this many times the time of the first small call.
const LEAST_BEFORE_GRID: u32 = 3;
/// Fragments of large calls beside small calls, in percent of the fragments of large calls alone. Small calls cause
/// smaller pieces.
const LEAST_MORE_FRAGMENTS_PERCENT: u64 = 150;

/// Calls of 4 MiB by all four ranks, and calls of 4 KiB by `members`, all of one kind. `both` says whether to make the
/// large calls, and whether to make the small calls.
fn beside(pattern: Pattern, multicast: bool, members: &[usize], both: (bool, bool)) -> Scenario {
    let mut scenario = Scenario::allgather(4, 0).multicast(multicast);
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

/// How long each call of a group took from its start.
fn times(scenario: &Scenario, outcome: &RunOutcome, group: usize) -> Vec<Duration> {
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

/// The first small call waits for the data that the stream queued when it was alone. Later small calls wait for the
/// data that the stream may queue beside small calls.
fn a_stream_lets_small_calls_through(pattern: Pattern, multicast: bool) {
    for (members, (on_average, at_most)) in [(&[0, 1, 2, 3][..], MOST_TIMES), (&[2, 0], MOST_TIMES_UNTOLD)] {
        let kind = format!("multicast {multicast} {pattern:?} {members:?}");
        let [quiet, stream, both] =
            [(false, true), (true, false), (true, true)].map(|which| beside(pattern, multicast, members, which));
        let alone = mean(&times(&quiet, &play(&quiet, 1), OTHER));
        let undisturbed = times(&stream, &play(&stream, 1), STREAM);
        let together = play(&both, 1);
        let small = times(&both, &together, OTHER);
        let (average, first) = (mean(&small), small[0]);
        let longest = small[1..].iter().max().expect("there are more");
        assert!(average < alone * on_average, "{kind}: {average:?} on average, {alone:?} alone");
        assert!(*longest < alone * at_most, "{kind}: {longest:?} at most, {alone:?} alone");
        assert!(
            first < undisturbed[0] / LEAST_BEFORE_STREAM,
            "{kind}: the first took {first:?} beside a call of {:?}",
            undisturbed[0]
        );
        let (before, now) = (mean(&undisturbed), mean(&times(&both, &together, STREAM)));
        assert!(now < before.mul_f64(MOST_STREAM_TIME), "{kind}: the stream takes {now:?}, {before:?} alone");
        assert_eq!(together.retransmitted_bytes(), 0, "{kind}: nobody takes waiting for loss");
    }
}

#[test]
fn mc_13_a_stream_of_multicasts_lets_small_calls_through() {
    a_stream_lets_small_calls_through(Pattern::Allgather, true);
    a_stream_lets_small_calls_through(Pattern::Broadcast { root: 0 }, true);
}

#[test]
fn mc_13_a_stream_of_messages_lets_small_calls_through() {
    a_stream_lets_small_calls_through(Pattern::Allgather, false);
    a_stream_lets_small_calls_through(Pattern::Broadcast { root: 0 }, false);
    a_stream_lets_small_calls_through(Pattern::Alltoall, true);
}

/// Bytes of one block of [`grid`].
const BLOCK: u64 = 1 << 20;
const GRID_CALLS: u64 = 6;

/// Ranks of four hosts in rows and columns, as in a transform by pencils. Each row and each column makes all-to-alls of
/// large blocks, two at a time. If `small` is set, all ranks make small all-to-alls beside the large ones.
fn grid(small: bool) -> Scenario {
    let mut scenario = beside(Pattern::Alltoall, true, &[0, 1, 2, 3], (false, small));
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
fn fragments(outcome: &RunOutcome) -> u64 {
    outcome.counters.iter().map(|c| c.frames - c.control_frames).sum()
}

#[test]
fn mc_13_groups_of_large_calls_alone_move_large_pieces() {
    let scenario = grid(false);
    let outcome = play(&scenario, 1);
    let sent_by_each = 2 * GRID_CALLS * BLOCK;
    let in_large_pieces = 4 * sent_by_each / u64::from(scenario.config.fragment_bytes) * MOST_FRAGMENTS_PERCENT / 100;
    let limit = Duration::from_secs_f64(sent_by_each as f64 * 8.0 / scenario.network.rate as f64);
    assert!(fragments(&outcome) < in_large_pieces, "{}: nobody small waits for them", fragments(&outcome));
    assert!(
        outcome.in_collectives < limit.mul_f64(MOST_GRID_TIME),
        "{:?}, the links alone {limit:?}",
        outcome.in_collectives
    );
}

#[test]
fn mc_13_small_calls_pass_groups_of_large_calls() {
    let quiet = beside(Pattern::Alltoall, true, &[0, 1, 2, 3], (false, true));
    let [large, both] = [false, true].map(grid);
    let alone = mean(&times(&quiet, &play(&quiet, 1), OTHER));
    let together = play(&both, 1);
    let small = times(&both, &together, both.groups.len() - 1);
    let (average, longest) = (mean(&small[1..]), small[1..].iter().max().expect("there are more"));
    assert!(
        average < alone * MOST_TIMES_IN_GRID.0 && *longest < alone * MOST_TIMES_IN_GRID.1,
        "{average:?}, at most {longest:?}; {alone:?} alone"
    );
    let in_flight = Duration::from_secs_f64((4 * BLOCK * 8) as f64 / both.network.rate as f64);
    assert!(
        small[0] < in_flight / LEAST_BEFORE_GRID,
        "the first took {:?}, and {in_flight:?} was to be moved by each",
        small[0]
    );
    assert!(
        fragments(&together) > fragments(&play(&large, 1)) * LEAST_MORE_FRAGMENTS_PERCENT / 100,
        "what comes later is in small pieces"
    );
}
