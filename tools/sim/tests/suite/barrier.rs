//! Barriers. The oracle knows which ranks have called when a rank passes.

use std::time::Duration;

use outboard_sim::{CallPlan, Faults, Pattern, Scenario};

use crate::{one_call, play};

const LATE: Duration = Duration::from_secs(1);

fn barrier(ranks: usize) -> Scenario {
    one_call(ranks, Pattern::Barrier, 0)
}

#[test]
fn groups_of_any_size_pass() {
    for ranks in 1..=17 {
        for (ranks_per_host, siblings) in [(1, 1), (3, 1), (2, 2)] {
            let scenario = barrier(ranks).ranks_per_host(ranks_per_host).siblings(siblings);
            let outcome = play(&scenario, 1);
            assert_eq!((outcome.calls, outcome.errors), (ranks as u64, 0));
        }
    }
}

/// SP-6: no service process passes on the arrival of a rank that has not arrived.
#[test]
fn sp_6_nobody_passes_before_the_late_rank() {
    for ranks_per_host in [1, 2, 4] {
        for late in 0..8 {
            let mut scenario = barrier(8).ranks_per_host(ranks_per_host);
            scenario.groups[0].calls[0].late.push((late, LATE));
            scenario.groups[0].calls.push(CallPlan::new(1000));
            let outcome = play(&scenario, 1);
            assert!(outcome.ends.iter().all(|(_, end)| *end >= LATE), "{:?}", outcome.ends);
            assert_eq!(outcome.late, 1);
        }
    }
}

/// The notification of a call is repeated until it arrives, whatever is lost.
#[test]
fn barrier_ends_after_lost_frames() {
    for seed in 0..50 {
        let faults = Faults { frame_loss: 0.3, ..Faults::none() };
        let mut scenario = barrier(7).ranks_per_host(2).with_faults(faults);
        scenario.groups[0].calls = vec![CallPlan::of(Pattern::Barrier, 0); 4];
        scenario.groups[0].window = 4;
        play(&scenario, seed);
    }
}

/// A barrier costs latency alone: every rank ends `ceil(log2 n)` one-way times after the last call and no later, for
/// any number of hosts.
#[test]
fn mc_4_a_barrier_takes_as_many_one_way_times_as_hosts_double() {
    for hosts in 2..=33usize {
        let mut scenario = barrier(hosts);
        // A frame takes no time on a link, so one way takes two links' latency.
        scenario.network.rate = u64::MAX;
        let one_way = 2 * scenario.network.latency;
        let rounds = hosts.next_power_of_two().ilog2();
        scenario.groups[0].window = 2;
        let last = LATE + Duration::from_micros(7);
        for at in [LATE, 2 * LATE] {
            let late = vec![(hosts - 1, last - LATE)];
            scenario.groups[0].calls.push(CallPlan { at, late, ..CallPlan::of(Pattern::Barrier, 0) });
        }
        scenario.groups[0].calls.remove(0);
        let outcome = play(&scenario, 1);
        let ends = |instance: u64| outcome.ends.iter().filter(move |((.., n), _)| *n == instance).map(|(_, end)| *end);
        for (instance, since) in [(1, last), (2, last + LATE)] {
            assert_eq!(ends(instance).count(), hosts);
            assert_eq!(ends(instance).max(), Some(since + one_way * rounds), "barrier {instance} among {hosts}");
        }
    }
}
