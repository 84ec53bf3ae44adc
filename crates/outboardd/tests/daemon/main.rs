//! A daemon as a separate process, with its ranks beside it on this host.

mod busy;
mod churn;
mod errands;
mod exhaustion;
mod hostile;
mod intruders;
mod life;
mod making;
mod one_host;
mod own_daemon;
mod recorded;
mod relay;
mod soak;
mod sockets;
mod survivors;
mod system_daemon;
mod unserved;
mod users;
mod withdrawn;

#[path = "../support/mod.rs"]
mod support;

/// Runs ranks and daemons of the other tests; does nothing when started as a test.
#[test]
fn another_process() {
    support::run_scenario();
}
