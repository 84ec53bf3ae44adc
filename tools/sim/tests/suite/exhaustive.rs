//! Every single and every double loss of a datagram or frame in short runs (P <= 4).

use std::time::Duration;

use outboard_sim::{Pattern, Scenario};

use crate::play;

/// The square of `deliveries` divided by this number is the least number of pairs. All pairs are half of the square.
/// Runs that end early after a first loss have fewer pairs, so the test requires a quarter.
const LEAST_PAIRS: u64 = 4;
const EVEN: [(usize, usize, u64); 2] = [(3, 1, 3), (4, 2, 3)];
const UNEVEN: [(usize, usize, u64); 2] = [(3, 1, 4), (4, 2, 4)];

/// One short allgather, with heartbeats too far apart to matter.
fn short(ranks: usize, per_host: usize, chunks: u64) -> Scenario {
    let mut scenario = Scenario::allgather(ranks, chunks * 64).ranks_per_host(per_host);
    scenario.config.chunk_bytes = 64;
    scenario.config.fragment_bytes = 64;
    scenario.config.heartbeat = Duration::from_secs(10);
    scenario.config.dead_after = Duration::from_secs(35);
    scenario.network.train = 1;
    scenario
}

/// Loses every delivery (a datagram to one receiver, or a frame) of one seed, for each (ranks, ranks on a host, chunks
/// of a block). Each first loss is combined with each later loss, so that every answer to the first loss is lost once,
/// too.
fn exhaust(pattern: Pattern, multicast: bool, groups: &[(usize, usize, u64)]) {
    for (ranks, per_host, chunks) in groups {
        let mut scenario = short(*ranks, *per_host, *chunks).multicast(multicast);
        scenario.groups[0].calls[0].pattern = pattern;
        let deliveries = play(&scenario, 1).deliveries;
        let mut pairs = 0;
        for first in 0..deliveries {
            scenario.faults.drop = vec![first];
            let then = play(&scenario, 1).deliveries;
            for second in first + 1..then {
                scenario.faults.drop = vec![first, second];
                play(&scenario, 1);
                pairs += 1;
            }
        }
        assert!(pairs > deliveries * (deliveries - 1) / LEAST_PAIRS, "{pairs} pairs of {deliveries}");
    }
}

#[test]
fn mc_6_multicast_allgathers_survive_every_double_loss() {
    exhaust(Pattern::Allgather, true, &[(2, 1, 2), (3, 1, 4), (4, 1, 3)]);
    exhaust(Pattern::Allgatherv { seed: 2 }, true, &UNEVEN);
}

#[test]
fn mc_6_ring_allgathers_survive_every_double_loss() {
    exhaust(Pattern::Allgather, false, &[(2, 1, 2), (3, 1, 2), (4, 1, 2)]);
    exhaust(Pattern::Allgatherv { seed: 2 }, false, &UNEVEN);
}

#[test]
fn sp_6_four_ranks_on_two_hosts_survive_every_double_loss() {
    exhaust(Pattern::Allgather, true, &[(4, 2, 2)]);
    exhaust(Pattern::Allgather, false, &[(4, 2, 1)]);
}

#[test]
fn mc_6_broadcasts_survive_every_double_loss() {
    for multicast in [true, false] {
        exhaust(Pattern::Broadcast { root: 1 }, multicast, &EVEN);
    }
}

#[test]
fn sp_5_exchanges_survive_every_double_loss() {
    let all_to_all = [Pattern::Alltoall, Pattern::Alltoallv { seed: 5 }];
    let gathers = [Pattern::Gather { root: 1 }, Pattern::Gatherv { root: 1, seed: 5 }];
    let scatters = [Pattern::Scatter { root: 1 }, Pattern::Scatterv { root: 1, seed: 5 }];
    for pattern in [all_to_all, gathers, scatters].concat() {
        exhaust(pattern, true, &EVEN);
    }
}
