//! Ranks that die while their process or their descriptors live on: others get an error, and no foreign memory is
//! accessed.

use std::process::Command;

use crate::support::{self, AGAIN, Daemon, Rank, again, conformance, expect_line_from_all, ranks, ranks_by};

#[test]
fn a_program_that_follows_a_rank_is_no_rank() {
    conformance::another_program_follows(&Daemon::start(&["--log", "error"]).into());
}

/// The last rank leaves a child and dies.
fn one_dies(mut ranks: Vec<Rank>) {
    let mut last = ranks.pop().expect("several");
    assert_eq!(last.line(), "ready");
    expect_line_from_all(&mut ranks, "posted");
    last.go_on();
    ranks.into_iter().for_each(Rank::finish);
    last.kill();
}

#[test]
fn a_child_with_the_socket_of_a_dead_rank_is_not_taken_for_it() {
    one_dies(ranks("survived-one-dies", &Daemon::start(&[]), 3));
}

/// A command that runs in a new process namespace, but not as the first process of the namespace.
fn apart() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c", "exec 3<&0; \"$0\" \"$@\" <&3 & wait $!"]);
    command.arg(std::env::current_exe().expect("a path")).args(AGAIN);
    command
}

/// SP-4: ranks work and die in process namespaces in which their numbers differ from the daemon's.
#[test]
#[ignore = "needs process namespaces: make test as root"]
fn ranks_of_other_process_namespaces_are_served_until_they_die() {
    one_dies(ranks_by(apart, "survived-one-dies", &Daemon::start(&[]), 3));
}

/// The ranks are outside of the daemon's process namespace, so the daemon has no numbers for their processes.
#[test]
#[ignore = "needs process namespaces: make test as root"]
fn a_daemon_in_a_process_namespace_of_its_own_sees_its_ranks_die() {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", support::DAEMON]);
    let mut daemon = Daemon::start_by(command, &[]);
    one_dies(ranks_by(again, "survived-one-dies", &daemon, 3));
    daemon.kill();
}
