//! Registration caches under churn: if an address gets new memory, no call reads or writes the memory that lay there
//! before (GP-4).

use crate::support::refusable::Calls;
use crate::support::{Daemon, again, let_go, ranks};

const RANKS: usize = 3;

/// Ranks use buffers of all kinds while the kernel refuses the calls `refused` to their daemon.
fn churn(refused: &[Calls], tier: &str) {
    let mut daemon = Daemon::start_refusable(again(), &[]);
    refused.iter().for_each(|&calls| daemon.refuse(calls, libc::EPERM));
    let mut ranks = ranks("churn", &daemon, RANKS);
    for rank in &mut ranks {
        let line = rank.line();
        let (reached, taken_over) = line.split_once(' ').expect("two words");
        assert_eq!(reached, tier);
        assert_ne!(taken_over, "0", "no private memory came where shared memory had been");
    }
    let statistics = daemon.statistics();
    assert_eq!(statistics["failed"], 0, "{statistics}");
    for name in ["registered_ranges", "mapped_ranges"] {
        assert!(statistics[name].as_u64() >= Some(1), "{statistics}");
    }
    let_go(ranks);
}

#[test]
fn gp_4_addresses_that_come_back_are_new_memory() {
    churn(&[], "direct");
}

#[test]
fn gp_4_addresses_that_come_back_are_new_memory_by_the_descriptor() {
    churn(&[Calls::CrossMemory], "direct");
}

#[test]
fn gp_4_addresses_that_come_back_are_new_memory_when_staged() {
    churn(&[Calls::CrossMemory, Calls::Descriptor], "staging");
}
