//! All-to-alls, gathers and scatters on the virtual network: which ranks a late rank holds up, and which it does not
//! (SP-5, SP-6).

use std::time::Duration;

use outboard_sim::{CallPlan, Pattern, Scenario};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{last_end, one_call, play};

const LATE: Duration = Duration::from_millis(50);
/// More than this many of 240 ends must be early, and as many late. A quarter needs nothing of the late rank.
const LEAST_SEEN: usize = 20;
/// Time relative to the link time of the late rank's own blocks: announcements and requests precede these blocks.
const MOST_TIMES_OF_LATE_BLOCKS: u32 = 2;
/// The link time of the longest piece.
const PIECE: Duration = Duration::from_nanos(524_288);
/// Fragments for each piece of full length: the last piece of a request is shorter.
const MOST_FRAGMENTS: u64 = 2;
/// Frames without payload for each frame with payload: requests, acknowledgements and announcements.
const MOST_CONTROL: f64 = 1.5;
/// Time relative to the link time of the payload: headers take 5 %, the first requests and the last pieces the rest.
const MOST_TIME: f64 = 1.14;
/// Time from the last call to the end, relative to the link time, if ranks call at different times. The first requests
/// went to early ranks, and did not ask for the bytes that the links need after the last call.
const MOST_TIME_APART: f64 = 1.25;
/// [`MOST_TIME_APART`] for long blocks, during which the links catch up, and for many hosts.
const MOST_TIME_APART_LONG: f64 = 1.15;
/// [`MOST_TIME_APART`] for blocks that a link carries in a few pieces.
const MOST_TIME_APART_SHORT: f64 = 1.3;
/// [`MOST_TIME_APART`] for calls that are up to two milliseconds apart.
const MOST_TIME_FAR_APART: f64 = 1.32;
/// [`MOST_TIME_APART`] for two hosts, where a call waits for one whole piece after another on both links of a path.
const MOST_TIME_OF_TWO: f64 = 1.35;
/// The first of two equal calls in flight ends within this fraction of the time that both take.
const FIRST_OF_TWO: f64 = 0.8;

/// Four ranks, of which the last is late.
fn with_a_late_rank(per_host: usize, pattern: Pattern, bytes: u64) -> Scenario {
    let mut scenario = one_call(4, pattern, bytes).ranks_per_host(per_host);
    scenario.groups[0].calls[0].late = vec![(3, LATE)];
    scenario
}

/// Time that the blocks of an all-to-all take on the link of a host.
fn limit(hosts: usize, bytes: u64, rate: u64) -> Duration {
    Duration::from_secs_f64((hosts as u64 - 1) as f64 * bytes as f64 * 8.0 / rate as f64)
}

/// Plays [`with_a_late_rank`]: members end before the late rank calls if they need nothing of it. Returns the number of
/// members that end early, and of members that end late.
fn early_and_late(per_host: usize, pattern: Pattern, bytes: u64, seed: u64) -> [usize; 2] {
    let scenario = with_a_late_rank(per_host, pattern, bytes);
    let outcome = play(&scenario, seed);
    let mut seen = [0; 2];
    for member in 0..3 {
        let ended = outcome.ends[&(0, member, 1)];
        let needs = scenario.groups[0].calls[0].sent(3, member, member) > 0;
        assert_eq!(ended >= LATE, needs, "member {member} of {pattern:?}, {per_host} per host, seed {seed}");
        seen[usize::from(needs)] += 1;
    }
    seen
}

/// A rank that expects nothing from the late rank ends before the late rank calls, even if it has blocks for the late
/// rank. A rank that stays away holds up no source (SP-6).
#[test]
fn sp_5_a_late_rank_holds_up_only_those_who_need_its_bytes() {
    let runs = (0..40).flat_map(|seed| [1, 2].map(|per_host| (seed, per_host)));
    let all = runs.map(|(seed, per_host)| early_and_late(per_host, Pattern::Alltoallv { seed }, 20_000, seed));
    let seen = all.fold([0; 2], |sum, seen| [sum[0] + seen[0], sum[1] + seen[1]]);
    assert!(seen.iter().all(|seen| *seen > LEAST_SEEN), "both kinds were seen: {seen:?}");
}

/// No rank waits for a rank with which it has no block. In a gather the root alone waits, and the others end even
/// before the root calls. In a scatter ranks wait for the root alone.
#[test]
fn sp_5_only_the_root_of_a_gather_waits_and_only_the_root_of_a_scatter_is_waited_for() {
    for (per_host, bytes) in [(1, 20_000), (2, 20_000), (4, 20_000), (2, 1)] {
        for root in [0, 3] {
            let even = [Pattern::Gather { root }, Pattern::Scatter { root }];
            let uneven = [Pattern::Gatherv { root, seed: 1 }, Pattern::Scatterv { root, seed: 1 }];
            for pattern in [even, uneven].concat() {
                early_and_late(per_host, pattern, bytes, 1);
            }
        }
    }
}

/// When the late rank calls, the blocks for the late rank lie at its host. So only the blocks that the late rank sends
/// have to move.
#[test]
fn sp_5_when_the_late_rank_calls_only_its_own_blocks_move() {
    let bytes = 200_000;
    let outcome = play(&with_a_late_rank(1, Pattern::Alltoall, bytes), 1);
    let ended = last_end(&outcome);
    // Three blocks leave on the late rank's link. Without staging three more blocks would arrive meanwhile, which full
    // duplex hides. So the test shows that nobody waits longer than the three blocks take.
    let blocks = Duration::from_secs_f64(3.0 * bytes as f64 * 8.0 / 1e9);
    assert!(ended < LATE + blocks * MOST_TIMES_OF_LATE_BLOCKS, "ended after {ended:?}");
    assert_eq!(outcome.late, 1, "SP-9: the late arrival is counted");
}

/// A quota of staging too small for the blocks only makes their sources wait.
#[test]
fn sp_6_late_rank_receives_all_bytes_without_staging() {
    for per_host in [1, 2] {
        let mut scenario = with_a_late_rank(per_host, Pattern::Alltoall, 10_000);
        scenario.config.staging_quota = 5_000;
        let outcome = play(&scenario, 1);
        assert_eq!(outcome.errors, 0);
    }
}

/// No switch port has to queue what all sources together could send (the bounded reads of SP-5).
#[test]
fn sp_5_many_sources_do_not_overflow_the_queue_of_one_port() {
    for pattern in [Pattern::Alltoall, Pattern::Gather { root: 0 }] {
        let mut scenario = one_call(12, pattern, 100_000);
        scenario.network.queue_bytes = 512 << 10;
        scenario.config.pull_bytes = 256 << 10;
        // A fabric accepts no more than its own queue holds.
        scenario.network.outstanding_frames = 4;
        let outcome = play(&scenario, 1);
        assert!(outcome.counters.iter().all(|c| c.link_retransmissions == 0), "nothing was dropped of {pattern:?}");
    }
}

/// All links are busy all the time, for any size: no rank receives requests from all ranks first and from none later,
/// and no rank receives data from all at once (SP-5). Virtual time makes the bound hold on any machine.
#[test]
fn sp_5_every_link_is_kept_busy() {
    for (hosts, rate, bytes) in [
        (4, 250_000_000, 1u64 << 20),
        (4, 1_000_000_000, 1 << 20),
        (4, 250_000_000, 256 << 10),
        (8, 1_000_000_000, 1 << 20),
        (16, 1_000_000_000, 256 << 10),
        (4, 10_000_000_000, 4 << 20),
        (16, 10_000_000_000, 1 << 20),
    ] {
        let mut scenario = one_call(hosts, Pattern::Alltoall, bytes).on_links(rate);
        // A fabric accepts no more than its own queue holds.
        scenario.network.outstanding_frames = 16;
        let outcome = play(&scenario, 1);
        let (limit, ended) = (limit(hosts, bytes, rate), last_end(&outcome));
        let (frames, control) = outcome.counters.iter().fold((0, 0), |(f, c), n| (f + n.frames, c + n.control_frames));
        let moved = (hosts * (hosts - 1)) as u64 * bytes;
        let fragment = u64::from(scenario.config.fragment_bytes).min((PIECE.as_micros() as u64) * rate / 8_000_000);
        assert!(frames - control < MOST_FRAGMENTS * moved / fragment, "fragments are whole mostly");
        assert!(
            (control as f64) < (frames - control) as f64 * MOST_CONTROL,
            "{hosts} hosts, {bytes} bytes: {control} of {frames} carry no bytes"
        );
        assert!(
            ended < limit.mul_f64(MOST_TIME),
            "{hosts} hosts, {bytes} bytes at {rate} bit/s: {ended:?} where {limit:?} is the limit"
        );
    }
}

/// A message of 1 MiB comes in longer pieces if few sources share the requested bytes (SP-5). A frame costs the
/// processors of both ends more than its bytes do.
#[test]
fn sp_5_long_messages_come_in_long_pieces() {
    for (hosts, bytes, long) in [(4, 1u64 << 20, true), (4, 256 << 10, false), (16, 1 << 20, false)] {
        let scenario = one_call(hosts, Pattern::Alltoall, bytes);
        let outcome = play(&scenario, 1);
        let data: u64 = outcome.counters.iter().map(|c| c.frames - c.control_frames).sum();
        let fragments = (hosts * (hosts - 1)) as u64 * bytes / u64::from(scenario.config.fragment_bytes);
        assert_eq!(data < fragments * 3 / 4, long, "{hosts} hosts, {bytes} bytes: {data} frames");
    }
}

/// Ranks never call exactly together. The first bytes of the last caller are already requested, and later requests wait
/// behind few bytes. No rank requests more from idle sources than a switch can queue (SP-5).
#[test]
fn sp_5_links_stay_busy_when_ranks_call_apart() {
    let gigabit = 1_000_000_000;
    for (hosts, rate, bytes, micros, most) in [
        (2, gigabit, 1u64 << 20, 500, MOST_TIME_OF_TWO),
        (2, gigabit, 4 << 20, 2000, MOST_TIME_OF_TWO),
        (2, gigabit * 10, 4 << 20, 500, MOST_TIME_APART),
        (4, gigabit, 1 << 20, 500, MOST_TIME_APART),
        (4, gigabit, 1 << 20, 2000, MOST_TIME_FAR_APART),
        (4, gigabit, 4 << 20, 500, MOST_TIME_APART_LONG),
        (4, gigabit, 4 << 20, 2000, MOST_TIME_APART_LONG),
        (4, gigabit / 4, 256 << 10, 500, MOST_TIME_APART_SHORT),
        (4, gigabit / 4, 1 << 20, 500, MOST_TIME_APART_LONG),
        (8, gigabit, 1 << 20, 500, MOST_TIME_APART_LONG),
        (8, gigabit, 1 << 20, 2000, MOST_TIME_APART),
        (16, gigabit, 256 << 10, 500, MOST_TIME_APART),
        (4, gigabit * 10, 4 << 20, 500, MOST_TIME_APART),
        (16, gigabit * 10, 1 << 20, 500, MOST_TIME_APART_LONG),
    ] {
        for seed in 0..4 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let late: Vec<_> =
                (0..hosts).map(|rank| (rank, Duration::from_micros(random.random_range(0..micros)))).collect();
            let last = late.iter().map(|(_, by)| *by).max().expect("some hosts");
            let mut scenario = one_call(hosts, Pattern::Alltoall, bytes).on_links(rate);
            scenario.groups[0].calls[0].late = late;
            let outcome = play(&scenario, 1);
            let (limit, took) = (limit(hosts, bytes, rate), last_end(&outcome) - last);
            let case = format!("{hosts} hosts, {bytes} bytes at {rate} bit/s, seed {seed}");
            assert!(outcome.counters.iter().all(|c| c.link_retransmissions == 0), "{case}: a queue overflowed");
            assert!(took < limit.mul_f64(most), "{case}: {took:?} from the last call on where {limit:?} is the limit");
        }
    }
}

/// A link may carry ten times its declared rate, as links of virtual machines do. The declared rate does not limit it.
#[test]
fn sp_5_a_link_may_be_faster_than_it_is_said_to_be() {
    for hosts in [2, 4] {
        let mut scenario = one_call(hosts, Pattern::Alltoall, 4 << 20).on_links(1_000_000_000);
        scenario.network.rate *= 10;
        scenario.network.queue_bytes *= 4;
        let outcome = play(&scenario, 1);
        let (limit, ended) = (limit(hosts, 4 << 20, scenario.network.rate), last_end(&outcome));
        assert!(ended < limit * 2, "{hosts} hosts: {ended:?} where {limit:?} is the limit");
    }
}

/// When each of two calls in flight ends. The second call is made `apart` after the first.
fn ends_of_two(hosts: usize, bytes: [u64; 2], apart: Duration) -> [Duration; 2] {
    let mut scenario = one_call(hosts, Pattern::Alltoall, bytes[0]).on_links(1_000_000_000);
    scenario.groups[0].window = 2;
    scenario.groups[0].calls.push(CallPlan { at: apart, ..CallPlan::of(Pattern::Alltoall, bytes[1]) });
    let outcome = play(&scenario, 1);
    [1, 2].map(|instance| (0..hosts).map(|rank| outcome.ends[&(0, rank, instance)]).max().expect("some hosts"))
}

/// In a pipeline of calls the first call ends as early as it can. A short call does not wait for a much longer call
/// (SP-5).
#[test]
fn sp_5_of_calls_in_flight_the_first_ends_first() {
    let apart = Duration::from_millis(1);
    for hosts in [2, 4] {
        let [first, second] = ends_of_two(hosts, [2 << 20; 2], apart);
        assert!(first < second.mul_f64(FIRST_OF_TWO), "{hosts} hosts: {first:?}, {second:?}");
        let [long, short] = ends_of_two(hosts, [16 << 20, 1 << 20], apart);
        assert!(short < long / 4, "{hosts} hosts: a short call waits {short:?} for a long one of {long:?}");
    }
}
