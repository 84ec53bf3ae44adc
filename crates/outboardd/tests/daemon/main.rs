//! A daemon in a separate process, with its ranks in other processes of this host.

mod blocked_page_faults;
mod busy;
mod churn;
mod exhaustion;
mod group_creation;
mod hostile;
mod intruders;
mod job_daemon;
mod life;
mod one_host;
mod program_memory;
mod rank_copies;
mod recorded;
mod relay;
mod soak;
mod sockets;
mod survivors;
mod system_daemon;
mod users;
mod withdrawn;

#[path = "../support/mod.rs"]
mod support;

/// Runs the ranks and daemons of the other tests. Does nothing if the environment names no scenario.
#[test]
fn another_process() {
    support::run_scenario();
}
