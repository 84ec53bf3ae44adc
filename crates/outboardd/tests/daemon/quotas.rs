//! What one job may hold, and that another does not feel it.

use std::process::Command;

use crate::support::{Daemon, Rank, SCENARIO, again, let_go, ranks_by};

fn of_job(job: u32) -> Command {
    let mut command = again();
    command.env("OUTBOARD_JOB", job.to_string());
    command
}

#[test]
fn a_job_at_its_quotas_is_told_so_and_harms_no_other() {
    let daemon = Daemon::start(&["--job-groups", "4", "--job-requests", "2", "--job-ranges", "3"]);
    let mut hoarders = ranks_by(|| of_job(1), "hoard", &daemon, 2);
    assert_eq!(hoarders[1].line(), "ready");
    assert_eq!(hoarders[0].line(), "full");
    let mut other = Rank::spawn(of_job(2).env(SCENARIO, "alone").env("OUTBOARD_SOCKET", daemon.socket()));
    assert_eq!(other.line(), "ready");
    other.go_on();
    other.finish();
    let_go(hoarders);
}
