//! Recorded groups and tagged messages under mixed faults: random graphs end like their reference, and messages arrive
//! as sent, whatever goes wrong (GP-1, GP-2, GP-6).

use std::time::Duration;

use outboard_sim::{
    CallPlan, GroupPlan, HostDeath, Pattern, RankFault, Scenario, mixed_messages, mixed_recorded, sweep,
};

use crate::mixed::{seeds, threads};
use crate::play;

/// Least number of graphs of a scenario, on average. Most groups of a scenario have up to three graphs.
const LEAST_GRAPHS: u64 = 2;
/// Least number of messages of a scenario, on average. One message of a scenario is too long.
const LEAST_MESSAGES: u64 = 10;
/// More than this many of the 100 scenarios must have graphs of the largest messages. A third of the scenarios has
/// them.
const LEAST_LARGE: u64 = 10;
/// The scale of the largest messages.
const LARGE: u64 = 40_000;

/// Every seed's scenario ends as it should, and some scenarios have faults. Returns the groups of all scenarios.
fn sweep_all(seeds: u64, scenario: fn(u64) -> Scenario) -> impl Iterator<Item = GroupPlan> {
    let summary = sweep(0..seeds, threads(), scenario, |_| {});
    if let Some(failure) = summary.failures.first() {
        panic!("seeds {:?} fail; the first:\n{failure}", summary.failed_seeds);
    }
    assert!(summary.errors > 0 && summary.dropped > 0, "the faults reach the machines");
    (0..seeds).flat_map(move |seed| scenario(seed).groups)
}

/// Every scenario has several graphs, so 500 scenarios have more than 1,000 graphs.
#[test]
fn gp_2_random_graphs_agree_with_their_reference() {
    let seeds = seeds(500);
    let graphs: usize = sweep_all(seeds, mixed_recorded).map(|group| group.recordings()).sum();
    assert!(graphs as u64 >= LEAST_GRAPHS * seeds, "{graphs} graphs");
}

/// Groups exchange messages beside their recordings. Messages have every size; some have two of one name under way,
/// some are too long.
#[test]
fn gp_1_messages_arrive_in_order_or_fail_alone() {
    let seeds = seeds(500);
    let calls = sweep_all(seeds, mixed_messages).flat_map(|group| group.calls);
    let messages: Vec<_> = calls.filter(|call| matches!(call.pattern, Pattern::Message { .. })).collect();
    let too_long = messages.iter().filter(|call| call.is_disputed()).count() as u64;
    let messages = messages.len() as u64;
    assert!(messages > LEAST_MESSAGES * seeds && too_long > seeds, "{messages} {too_long}");
}

/// GP-9: a message for which the receiver has no room waits at its source, and is pulled when it is received.
#[test]
fn messages_without_room_wait_with_their_sources() {
    for seed in 0..100 {
        let mut scenario = mixed_messages(seed);
        scenario.config.staging_quota = 1000;
        // This test is not about standing in for late ranks of other collectives.
        scenario.groups.retain(|group| group.recordings() > 0);
        if !scenario.groups.is_empty() {
            play(&scenario, seed);
        }
    }
}

/// SP-5, GP-6: a message too large to request at once is announced instead, in any call of a recording.
#[test]
fn large_messages_beyond_the_credit_are_announced() {
    let mut large = 0;
    for seed in 0..100 {
        let mut scenario = mixed_recorded(seed);
        scenario.config.pull_bytes = 2000;
        large += u64::from(scenario.groups.iter().any(|group| group.recordings() > 0 && group.calls[0].bytes == LARGE));
        play(&scenario, seed);
    }
    assert!(large > LEAST_LARGE, "{large}");
}

/// GP-1: a receive waits as long as its source may still send, and no longer. The source's rank or service process may
/// die, reported or silently, as a neighbour in the ring or not. If a rank has died alone, other messages go on.
#[test]
fn gp_1_a_receive_ends_when_its_source_dies() {
    let (dies, never) = (Duration::from_secs(1), Duration::from_secs(1000));
    let message = |from, to, tag| CallPlan::of(Pattern::Message { from, to, tag }, 20_000);
    for (ranks_per_host, source) in [1, 2, 6].into_iter().flat_map(|hosts| [1, 3, 5].map(|source| (hosts, source))) {
        let mut scenario = Scenario::allgather(6, 1000).ranks_per_host(ranks_per_host);
        scenario.groups[0].calls = vec![CallPlan { late: vec![(source, never)], ..message(source, 0, 1) }];
        let mut rank_dies = scenario.clone();
        rank_dies.groups[0].calls.push(CallPlan { at: dies * 2, ..message(2, 4, 1) });
        rank_dies.faults.dead_ranks.push(RankFault { rank: source, at: dies });
        let host = source / ranks_per_host;
        let host_dies = [None, Some(Duration::from_millis(10))].map(|reported_after| {
            let mut scenario = scenario.clone();
            scenario.faults.dead_hosts.push(HostDeath { host, at: dies, reported_after });
            scenario
        });
        // Host 0 is the receiver's.
        for scenario in [rank_dies].into_iter().chain(host_dies.into_iter().filter(|_| host > 0)) {
            assert_eq!(play(&scenario, 1).errors, 1, "{source} of {ranks_per_host} ranks on each host");
        }
    }
}
