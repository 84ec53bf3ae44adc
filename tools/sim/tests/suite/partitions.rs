//! Partitions that last longer than any timer, and heal: lost groups stay lost, new ones work at once.

use std::collections::BTreeMap;
use std::time::Duration;

use outboard_proto::CollectiveError;
use outboard_sim::{AbandonedConnection, CallPlan, Faults, GroupPlan, HostPause, LinkCut, RunOutcome, Scenario};

use crate::play;

const AT: Duration = Duration::from_millis(1);
const LASTING: Duration = Duration::from_secs(10);

/// Two collectives of a group that `cuts` break, and one of a group that is requested as soon as the cuts are over.
fn story(hosts: usize, cuts: Vec<LinkCut>) -> Scenario {
    let mut scenario = Scenario::allgather(hosts, 10_000).with_faults(Faults { cuts, ..Faults::none() });
    let mut second = CallPlan::new(10_000);
    second.at = AT + Duration::from_millis(500);
    scenario.groups[0].calls.push(second);
    let after = GroupPlan {
        create: AT + LASTING,
        create_spread: Duration::from_secs(6),
        calls: vec![CallPlan::new(10_000)],
        ..scenario.groups[0].clone()
    };
    scenario.groups.push(after);
    scenario
}

/// A host that was cut off from all others loses the group. The next group is made, though nothing was restarted.
#[test]
fn a_host_that_was_cut_off_is_welcome_again() {
    for seed in 0..30 {
        let outcome = play(&story(4, LinkCut::off(2, 0..4, AT, LASTING)), seed);
        assert_eq!(
            (outcome.calls, outcome.errors),
            (12, 4),
            "the call in the partition fails on all, the last on none"
        );
    }
}

/// A cut in one direction suffices to end the group, and one end of the cut may not notice the cut.
#[test]
fn one_way_and_pairwise_partitions_end_what_crosses_them_and_heal() {
    for seed in 0..30 {
        for (from, to) in [(0, 1), (1, 0), (1, 3), (3, 0)] {
            let one_way = LinkCut { from, to, at: AT, lasting: LASTING };
            let back = LinkCut { from: to, to: from, ..one_way };
            for cuts in [vec![one_way], vec![one_way, back]] {
                assert_eq!(play(&story(4, cuts), seed).calls, 12, "the oracle has judged how each call ended");
            }
        }
    }
}

/// By member, how the first group failed: the rank that the error names, and whether the error says that the rank's
/// service process was stopped.
fn named(outcome: &RunOutcome) -> BTreeMap<usize, (u32, bool)> {
    let first = outcome.reported_errors.iter().filter(|((group, _), _)| *group == 0);
    let named = first.map(|((_, member), error)| match error {
        CollectiveError::PeerLost { rank, .. } => (*member, (rank.0, false)),
        CollectiveError::Stalled { rank, .. } => (*member, (rank.0, true)),
        other => panic!("{member} is told {other}"),
    });
    named.collect()
}

/// The end that receives nothing is the first to report the other end, at any time of the cut.
#[test]
fn all_ranks_name_the_silent_end_of_a_one_way_cut() {
    let mut failed = 0;
    for seed in 0..600 {
        let hosts = 3 + seed as usize % 6;
        let from = seed as usize / 6 % hosts;
        let to = (from + 1 + seed as usize / 40 % (hosts - 1)) % hosts;
        let at = Duration::from_secs(5) + Duration::from_millis(seed * 7 % 1000);
        let mut scenario = story(hosts, vec![LinkCut { from, to, at, lasting: LASTING }]).ranks_per_host(1);
        // The fabric retransmits by itself, so no retransmission of a link serves as a sign of life.
        scenario.config.retransmit_floor = Duration::from_secs(60);
        scenario.groups[0].calls = (0..40).map(|_| CallPlan::new(10_000)).collect();
        let calls = scenario.groups[0].calls.iter_mut();
        calls.zip(0..).for_each(|(call, number)| call.at = Duration::from_millis(200) * number);
        scenario.groups.truncate(1);
        let named = named(&play(&scenario, seed));
        let all_alike = named.values().all(|(rank, _)| *rank == from as u32);
        assert!(all_alike, "seed {seed}: {from} does not reach {to}, {named:?}");
        failed += usize::from(named.len() == hosts);
    }
    assert!(failed > 400, "{failed} of 600 groups failed on all ranks");
}

/// The hosts fall into two halves.
#[test]
fn two_halves_grow_together() {
    for seed in 0..30 {
        let cuts = [0, 1].into_iter().flat_map(|host| LinkCut::off(host, 2..5, AT, LASTING)).collect();
        let outcome = play(&story(5, cuts), seed);
        assert_eq!((outcome.calls, outcome.errors), (15, 5));
    }
}

/// A service process that was stopped for long resumes: its groups fail. Groups requested from then on are made, though
/// the service process does not know how long it was stopped.
#[test]
fn stopped_service_process_rejoins() {
    for seed in 0..200 {
        let mut scenario = story(4, Vec::new()).ranks_per_host(1);
        scenario.faults.stalls.push(HostPause { host: 3, at: AT, lasting: LASTING });
        scenario.groups[1].create = AT + LASTING + Duration::from_millis(seed % 20 * 20);
        scenario.groups[1].create_spread = Duration::from_millis(seed % 7 * 5);
        let outcome = play(&scenario, seed);
        assert_eq!((outcome.calls, outcome.errors), (12, 4), "seed {seed}");
        // The host's own ranks are notified that it was stopped, the other ranks that they lost it.
        let expected = (0..4).map(|member| (member, (3, member == 3))).collect();
        assert_eq!(named(&outcome), expected, "seed {seed}");
    }
}

/// A link has been silent nearly for too long when packets flow again, over a connection that resumes later still. The
/// silence of the cut does not count against groups that are requested after the cut.
#[test]
fn group_requested_behind_a_cut_is_made() {
    for seed in 0..400 {
        let hosts = 3 + seed as usize % 4;
        let lasting = Duration::from_millis(3300 + seed * 7);
        let mut scenario = story(hosts, LinkCut::off(hosts - 1, 0..hosts, AT, lasting));
        scenario.faults.backoff = Duration::from_millis(seed % 9 * 200);
        scenario.groups[1].create = AT + lasting + Duration::from_millis(seed % 5 * 50);
        scenario.groups[1].create_spread = Duration::from_millis(seed % 7 * 5);
        play(&scenario, seed);
    }
}

/// A group that is requested while no packet gets through is made when packets flow again, or is rejected on all ranks.
#[test]
fn a_group_of_the_partition_ends_somehow() {
    for seed in 0..60 {
        let mut scenario = story(4, LinkCut::off(3, 0..4, AT, LASTING));
        scenario.groups[1].create = AT + Duration::from_secs(seed % 10);
        play(&scenario, seed);
    }
}

/// With three hosts or more, any host's finding names the missing rank to all members. With no late rank the group is
/// made.
#[test]
fn too_late_group_request_is_named_on_all_ranks() {
    let mut refused = 0;
    for seed in 0..200 {
        let mut scenario = Scenario::allgather(2 + seed as usize % 11, 1000).ranks_per_host(1 + seed as usize % 3);
        scenario.config.group_timeout = Some(Duration::from_secs(5));
        scenario.groups[0].create_spread = Duration::from_secs(4 + seed % 4 * 2);
        refused += u32::from(play(&scenario, seed).calls == 0);
    }
    assert!((20..150).contains(&refused), "{refused} of 200 groups were not made");
}

/// The fabric may finally give up an attempt since a cut, just after a group was requested behind the cut. Then the
/// host requests a connection once more.
#[test]
fn late_connection_loss_costs_no_group() {
    for seed in 0..200 {
        let mut scenario = Scenario::allgather(2 + seed as usize % 5, 1000);
        let (host, at) = (seed as usize % 2, Duration::from_micros(seed * 5));
        scenario.faults.abandoned.push(AbandonedConnection { host, peer: 1 - host, at });
        scenario.groups[0].create_spread = Duration::from_millis(1);
        scenario.groups[0].calls[0].at = Duration::from_millis(2);
        play(&scenario, seed);
    }
}

/// A rank that has received all other requests for a group may leave before any rank has received its own request. When
/// packets flow again, ranks that still request are notified that the group was made, and that the rank has left.
#[test]
fn departure_during_a_cut_is_noticed_after_it() {
    for seed in 0..60 {
        let mut scenario = Scenario::allgather(2, 1000);
        scenario.groups[0].calls.clear();
        scenario.groups[0].create_spread = Duration::from_millis(seed % 3);
        let lasting = Duration::from_millis(3000 + seed * 30);
        let silent = LinkCut { from: 0, to: 1, at: Duration::ZERO, lasting };
        let deaf = LinkCut { from: 1, to: 0, at: Duration::from_millis(5), lasting };
        scenario.faults.cuts = vec![silent, deaf];
        // A host contacts only peers that it needs again.
        let create = Duration::from_millis(3550).max(lasting + deaf.at);
        scenario.groups.push(GroupPlan { create, ..scenario.groups[0].clone() });
        play(&scenario, seed);
    }
}
