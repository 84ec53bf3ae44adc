//! The kernel withdraws a tier of access to the memory of ranks during their calls (SP-4, GP-9).

use crate::support::conformance::{self, Moment};
use crate::support::refusable::Calls;
use crate::support::{Daemon, Rank, again, ranks};

const RANKS: usize = 3;

/// Ranks work while `refusals` take effect one after the other. Afterwards `tier` reaches the memory of each rank.
fn withdraw(moment: Moment, refusals: &[(Calls, i32)], tier: &str, counted: &str) -> serde_json::Value {
    let mut service = Daemon::start_refusable(again(), &[]).into();
    let statistics = conformance::withdraw(&mut service, moment, RANKS, refusals, tier);
    assert_eq!(statistics["memory_tiers"][counted], RANKS, "{statistics}");
    let withdrawn = statistics["tiers_withdrawn"].as_u64().expect("a number") as usize;
    assert!((RANKS..=2 * RANKS).contains(&withdrawn), "each step down of each rank counts once: {statistics}");
    statistics
}

#[test]
fn what_is_refused_goes_on_by_the_memory_descriptor() {
    for errno in [libc::EPERM, libc::EFAULT, libc::ENOSYS] {
        let refused = (Calls::CrossMemory, errno);
        withdraw(Moment::Awaited, &[refused], "memory descriptor", "memory_descriptor");
    }
}

#[test]
fn what_is_refused_under_way_loses_no_byte() {
    for errno in [libc::EPERM, libc::EFAULT] {
        let (cross, descriptor) = ((Calls::CrossMemory, errno), (Calls::Descriptor, errno));
        withdraw(Moment::UnderWay, &[cross], "memory descriptor", "memory_descriptor");
        withdraw(Moment::UnderWay, &[cross, descriptor], "staging", "staging");
    }
}

/// GP-9: only copies by the ranks themselves are left, also for calls in flight.
#[test]
fn what_is_refused_altogether_goes_on_by_staging() {
    for errno in [libc::EPERM, libc::EFAULT] {
        let refused = [(Calls::Descriptor, errno), (Calls::CrossMemory, errno)];
        let statistics = withdraw(Moment::Awaited, &refused, "staging", "staging");
        // All ranks except the late rank had nine calls in flight.
        let restaged = statistics["calls_restaged"].as_u64().expect("a number") as usize;
        assert!(restaged >= 9 * (RANKS - 1), "{statistics}");
    }
}

/// GP-2, GP-9: all starts in flight of one recording share one copy, because each start continues from the last result.
#[test]
fn starts_in_flight_follow_one_another_where_their_memory_is_withdrawn() {
    let refused = [(Calls::Descriptor, libc::EPERM), (Calls::CrossMemory, libc::EPERM)];
    withdraw(Moment::Recorded, &refused[1..], "memory descriptor", "memory_descriptor");
    withdraw(Moment::Recorded, &refused, "staging", "staging");
}

/// A buffer at an invalid address remains the fault of its rank, whichever tier is in use.
#[test]
fn a_buffer_that_is_nowhere_is_still_blamed_on_its_rank() {
    let mut daemon = Daemon::start_refusable(again(), &[]);
    daemon.refuse(Calls::CrossMemory, libc::EFAULT);
    for scenario in ["send-fault", "receive-fault"] {
        ranks(scenario, &daemon, RANKS).into_iter().for_each(Rank::finish);
    }
    assert_eq!(daemon.statistics()["tiers_withdrawn"], 0);
}
