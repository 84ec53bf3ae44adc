//! What one job may hold, and that another does not feel it.

mod support;

use std::net::TcpListener;
use std::process::Command;

use support::{Daemon, Rank, SCENARIO, scenarios, serve_rendezvous, start_ranks};

/// The ranks of the test below; nothing when started as a test.
#[test]
fn rank_process() {
    if let Ok(scenario) = std::env::var(SCENARIO) {
        scenarios::run(&scenario);
    }
}

fn of_job(job: u32) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "rank_process", "--nocapture", "--test-threads", "1"]);
    command.env("OUTBOARD_JOB", job.to_string());
    command
}

#[test]
fn a_job_at_its_quotas_is_told_so_and_harms_no_other() {
    let daemon = Daemon::start(&["--job-groups", "4", "--job-requests", "2", "--job-ranges", "3"]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let mut hoarders = start_ranks("hoard", &[&daemon, &daemon], &address, |_| of_job(1));
    serve_rendezvous(&listener, 2);
    assert_eq!(hoarders[1].line(), "ready");
    assert_eq!(hoarders[0].line(), "full");
    let mut other = Rank::spawn(of_job(2).env(SCENARIO, "alone").env("OUTBOARD_SOCKET", daemon.socket()));
    assert_eq!(other.line(), "ready");
    other.go_on();
    other.finish();
    hoarders.iter_mut().for_each(Rank::go_on);
    hoarders.into_iter().for_each(Rank::finish);
}
