//! SP-9: ranks that have not called are found on all hosts. The watchdog only reports these ranks; a deadline ends the
//! call with an error on every rank.

use std::time::Duration;

use outboard_sim::{CallPlan, Pattern, Scenario};

use crate::{one_call, play};

const LATE: Duration = Duration::from_secs(10);
/// Bytes of the first and the second call.
const FIRST: u64 = 10_000;
const SECOND: u64 = 20_000;
/// Seconds of the watchdog's reports: 3 s, 6 s and 12 s after the first news at 1 s. The last rank calls at 21 s.
const REPORTS: [u64; 3] = [4, 7, 13];
/// A time at which the first call has ended. The second call has ended, too, except for the late ranks, which call
/// afterwards.
const ENDED: Duration = Duration::from_secs(5);

/// Eight ranks, two on each host, that call twice; ranks 2 and 7 come late to the second call.
fn two_late() -> Scenario {
    let mut scenario = Scenario::allgather(8, FIRST).ranks_per_host(2);
    let second = CallPlan { at: Duration::from_secs(1), late: vec![(2, LATE), (7, LATE * 2)], ..CallPlan::new(SECOND) };
    scenario.groups[0].calls.push(second);
    scenario
}

#[test]
fn sp_9_the_watchdog_names_the_missing_ranks_and_their_last_calls_on_all_hosts() {
    let mut scenario = two_late();
    scenario.config.watchdog = Some(Duration::from_secs(3));
    let outcome = play(&scenario, 1);
    assert_eq!(outcome.errors, 0, "lateness is no error");
    for host in 0..4 {
        let mine: Vec<_> = outcome.overdue.iter().filter(|(at, ..)| *at == host).collect();
        let seconds: Vec<u64> = mine.iter().map(|(_, at, _)| at.as_secs()).collect();
        assert_eq!(seconds, REPORTS);
        for (_, at, overdue) in mine {
            let missing: Vec<u32> = overdue.missing.named.iter().map(|one| one.rank.0).collect();
            let expected: &[u32] = if *at < LATE { &[2, 7] } else { &[7] };
            assert_eq!(missing, expected);
            let last = overdue.missing.named[0].last.expect("both have called once");
            assert_eq!((last.0.0, last.1.bytes), (1, FIRST));
            assert!(overdue.silent.is_empty() && overdue.flight.signature.bytes == SECOND, "{overdue:?}");
            let here: Vec<u32> = overdue.flight.absent.iter().map(|rank| rank.0).collect();
            assert!(here.iter().all(|rank| *rank as usize / 2 == host && missing.contains(rank)), "{overdue:?}");
        }
    }
}

/// On every rank that is notified, the oracle checks that the named ranks are late by more than the deadline.
#[test]
fn sp_9_a_deadline_ends_the_call_on_all_ranks_with_the_names_of_the_missing() {
    let runs = [1, 2, 8].map(|n| [(n, Pattern::Allgather), (n, Pattern::Alltoall)]);
    for (ranks_per_host, pattern) in runs.into_iter().flatten() {
        let mut scenario = two_late().ranks_per_host(ranks_per_host);
        scenario.groups[0].calls[1].pattern = pattern;
        scenario.groups[0].calls[1].deadline = Some(Duration::from_secs(2));
        let outcome = play(&scenario, 1);
        assert_eq!(outcome.errors, 8, "with {ranks_per_host} ranks on each host");
        for ((_, member, call), at) in &outcome.ends {
            let late = [2, 7].contains(member) && *call == 2;
            assert_eq!(*at > ENDED, late, "rank {member} ends call {call} at {at:?}");
        }
        assert_eq!(outcome.overdue, []);
    }
}

#[test]
fn sp_9_call_in_time_is_not_reported_and_misses_no_deadline() {
    let mut scenario = two_late();
    scenario.config.watchdog = Some(LATE * 3);
    scenario.groups[0].calls[1].deadline = Some(LATE * 3);
    let outcome = play(&scenario, 1);
    assert_eq!((outcome.errors, outcome.ends.len()), (0, 16));
    assert_eq!(outcome.overdue, []);
}

/// A late leaf of a broadcast holds nobody up, so the other ranks miss no deadline.
#[test]
fn sp_9_deadline_applies_to_waiting_ranks() {
    let mut scenario = one_call(4, Pattern::Broadcast { root: 0 }, 10_000);
    let call = &mut scenario.groups[0].calls[0];
    (call.deadline, call.late) = (Some(Duration::from_secs(1)), vec![(2, LATE)]);
    assert_eq!(play(&scenario, 1).errors, 0);
}
