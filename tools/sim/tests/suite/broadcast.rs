//! One broadcast as the daemon runs it: its time and traffic. A late leaf delays nobody.

use std::time::Duration;

use outboard_sim::Pattern;

use crate::{crosses_each_link_once, one_call, play};

const LATE: Duration = Duration::from_secs(1);
/// Half of the window of instances. The window is not fully used while completions are on their way.
const LEAST_AHEAD: usize = 512;

#[test]
fn mc_1_the_root_sends_once_and_the_time_does_not_depend_on_the_ranks() {
    let bytes = 4 << 20;
    for ranks in [2u64, 8] {
        let scenario = one_call(ranks as usize, Pattern::Broadcast { root: 1 }, bytes);
        crosses_each_link_once(&scenario, bytes + (ranks - 1) * bytes, bytes);
    }
}

/// SP-6, SP-9: the service process of a leaf that has not called plays the leaf's part, and counts the lateness.
#[test]
fn sp_6_a_late_leaf_delays_nobody() {
    for multicast in [true, false] {
        for (ranks_per_host, late) in [(1, 2), (2, 2), (2, 3), (4, 1)] {
            let scenario = one_call(8, Pattern::Broadcast { root: 0 }, 300_000);
            let mut scenario = scenario.multicast(multicast).ranks_per_host(ranks_per_host);
            scenario.groups[0].calls[0].late.push((late, LATE));
            let outcome = play(&scenario, 1);
            for ((_, member, _), end) in &outcome.ends {
                assert_eq!(*end >= LATE, *member == late, "multicast {multicast}: rank {member} ends at {end:?}");
            }
            assert_eq!(outcome.late, 1, "multicast {multicast}");
        }
    }
}

/// Other ranks get ahead of a late leaf by the window of the group, and then wait; nothing is refused and nothing is
/// lost. The bound also holds behind a barrier, and for small calls with and without bytes (MC-9).
#[test]
fn sp_6_a_late_leaf_bounds_how_far_others_get_ahead() {
    for (bytes, eager_bytes, calls, window) in [(10, 0, 1300, 1300), (10, 16 << 10, 3500, 8), (0, 16 << 10, 3500, 8)] {
        let mut scenario = one_call(3, Pattern::Broadcast { root: 0 }, bytes);
        scenario.config.eager_bytes = eager_bytes;
        let call = scenario.groups[0].calls[0].clone();
        scenario.groups[0].calls = vec![call; calls];
        scenario.groups[0].calls[0].late.push((2, LATE));
        scenario.groups[0].window = window;
        let outcome = play(&scenario, 1);
        let before = |member| outcome.ends.iter().filter(|((_, m, _), end)| *m == member && **end < LATE).count();
        let ahead = LEAST_AHEAD..LEAST_AHEAD * 2 + window;
        assert!(ahead.contains(&before(0)), "the root ended {} calls ahead of the leaf", before(0));
        assert_eq!((before(2), outcome.errors), (0, 0));
    }
}
