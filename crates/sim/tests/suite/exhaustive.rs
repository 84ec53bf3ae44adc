//! Every single and every double loss of a datagram or frame in short runs (P <= 4).

use std::time::Duration;

use outboard_sim::{Pattern, Scenario, exhaust_losses};

/// Pairs are half of `deliveries` squared; runs that end early after a first loss have fewer, so a quarter is asked
/// for.
const LEAST_PAIRS: u64 = 4;

/// One short allgather, heartbeats too far apart to matter.
fn short(ranks: usize, per_host: usize, chunks: u64) -> Scenario {
    let mut scenario = Scenario::allgather(ranks, chunks * 64).ranks_per_host(per_host);
    scenario.config.chunk_bytes = 64;
    scenario.config.fragment_bytes = 64;
    scenario.config.heartbeat = Duration::from_secs(10);
    scenario.config.dead_after = Duration::from_secs(35);
    scenario.network.train = 1;
    scenario
}

fn exhaust(scenario: &Scenario) {
    let tried = exhaust_losses(scenario, 1, true).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(tried.singles, tried.deliveries, "every delivery was lost once");
    assert!(tried.doubles > tried.deliveries * (tried.deliveries - 1) / LEAST_PAIRS, "and many pairs: {tried:?}");
}

#[test]
fn mc_6_two_ranks_survive_every_double_loss() {
    exhaust(&short(2, 1, 2));
    exhaust(&short(2, 1, 2).multicast(false));
}

#[test]
fn mc_6_three_ranks_survive_every_double_loss() {
    exhaust(&short(3, 1, 4));
    exhaust(&short(3, 1, 2).multicast(false));
}

#[test]
fn mc_6_four_ranks_survive_every_double_loss() {
    exhaust(&short(4, 1, 3));
    exhaust(&short(4, 1, 2).multicast(false));
}

#[test]
fn sp_6_four_ranks_on_two_hosts_survive_every_double_loss() {
    exhaust(&short(4, 2, 2));
    exhaust(&short(4, 2, 1).multicast(false));
}

#[test]
fn mc_6_broadcasts_survive_every_double_loss() {
    for multicast in [true, false] {
        for (ranks, per_host) in [(3, 1), (4, 2)] {
            let mut scenario = short(ranks, per_host, 3).multicast(multicast);
            scenario.groups[0].calls[0].pattern = Pattern::Broadcast { root: 1 };
            exhaust(&scenario);
        }
    }
}

#[test]
fn sp_5_exchanges_survive_every_double_loss() {
    let all_to_all = [Pattern::Alltoall, Pattern::Alltoallv { seed: 5 }];
    let gathers = [Pattern::Gather { root: 1 }, Pattern::Gatherv { root: 1, seed: 5 }];
    let scatters = [Pattern::Scatter { root: 1 }, Pattern::Scatterv { root: 1, seed: 5 }];
    for pattern in [all_to_all, gathers, scatters].concat() {
        for (ranks, per_host) in [(3, 1), (4, 2)] {
            let mut scenario = short(ranks, per_host, 3);
            scenario.groups[0].calls[0].pattern = pattern;
            exhaust(&scenario);
        }
    }
}

#[test]
fn mc_6_uneven_allgathers_survive_every_double_loss() {
    for multicast in [true, false] {
        for (ranks, per_host) in [(3, 1), (4, 2)] {
            let mut scenario = short(ranks, per_host, 4).multicast(multicast);
            scenario.groups[0].calls[0].pattern = Pattern::Allgatherv { seed: 2 };
            exhaust(&scenario);
        }
    }
}
