//! Ranks that wait in the library themselves copy the bytes of other ranks of their host (SP-6).

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::conformance::{self, Moment, Service};
use crate::support::refusable::Calls;
use crate::support::{self, Daemon, again, expect_line_from_all, kill_the_last, let_go, ranks, ranks_by};

fn copies(daemon: &Daemon) -> Value {
    daemon.statistics()["datapath"]["copies"].clone()
}

/// Returns the counters of copies while four ranks run the scenario.
fn copied(scenario: &str, flags: &[&str]) -> Value {
    copied_by(again, scenario, flags)
}

fn copied_by(command: impl Fn() -> Command, scenario: &str, flags: &[&str]) -> Value {
    let daemon = Daemon::start(flags);
    let mut ranks = ranks_by(command, scenario, &daemon, 4);
    expect_line_from_all(&mut ranks, "done");
    let copies = copies(&daemon);
    let_go(ranks);
    copies
}

#[test]
fn sp_6_ranks_that_wait_copy_for_themselves() {
    let copies = copied("errands", &[]);
    assert!(copies["by_ranks"].as_u64() > Some(0), "{copies}");
    assert_eq!(copies["failed"], 0, "{copies}");
}

#[test]
fn for_ranks_that_do_not_wait_the_service_process_copies() {
    let copies = copied("errands-looking", &[]);
    assert_eq!(copies["by_ranks"], 0, "{copies}");
    assert!(copies["by_service"].as_u64() > Some(0), "{copies}");
}

#[test]
fn no_errands_are_given_where_none_are_wanted() {
    let copies = copied("errands", &["--errand-bytes", "0"]);
    assert_eq!(copies["by_ranks"], 0, "{copies}");
}

/// The service process takes over the copies that were offered to the stopped rank, so other ranks need not wait.
#[test]
fn a_rank_that_is_stopped_while_it_waits_holds_up_nobody() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("errands-stopped", &daemon, 3);
    expect_line_from_all(&mut ranks, "ready");
    let mut last = ranks.pop().expect("three");
    // A rank that waits has posted its call, so the daemon counts the call.
    assert!((0..100_000).any(|_| daemon.statistics()["calls"] == 1), "it has called");
    let pid = Pid::from_raw(last.id() as i32).expect("a process");
    kill_process(pid, Signal::STOP).expect("it lives");
    ranks.iter_mut().for_each(support::Rank::go_on);
    expect_line_from_all(&mut ranks, "done");
    kill_process(pid, Signal::CONT).expect("it lives");
    assert_eq!(last.line(), "done");
    ranks.push(last);
    let_go(ranks);
    assert_eq!(daemon.statistics()["failed"], 0);
}

/// If a rank dies during its copies, the calls of the other ranks fail with an error that names the dead rank. The
/// service process continues.
#[test]
fn a_rank_that_is_killed_among_errands_is_missed_by_name() {
    let daemon = Daemon::start(&[]);
    kill_the_last(ranks("errands-one-dies", &daemon, 4));
    let mut ranks = ranks("errands", &daemon, 2);
    expect_line_from_all(&mut ranks, "done");
    let_go(ranks);
}

/// Flags by which ranks do every possible copy.
const ALL: [&str; 2] = ["--errand-bytes", "1"];

#[test]
fn every_kind_of_call_is_right_where_all_copies_may_be_errands() {
    let service: Service = Daemon::start(&ALL).into();
    conformance::collectives(&service, "cross_memory_attach");
    conformance::many_calls_in_flight(&service);
    let before = copies(&service.daemon)["by_ranks"].as_u64();
    conformance::recordings_and_messages(&service);
    conformance::starts_follow_one_another(&service);
    let copies = copies(&service.daemon);
    assert!(before > Some(0) && copies["by_ranks"].as_u64() > before && copies["failed"] == 0, "{copies}");
}

#[test]
fn deaths_faults_and_programs_that_follow_ranks_are_named_where_all_copies_may_be_errands() {
    let service: Service = Daemon::start(&[&ALL[..], &["--log", "error"]].concat()).into();
    conformance::deaths_and_disagreements(&service);
    conformance::faults_are_blamed_on_their_rank(&service);
    conformance::another_program_follows(&service);
}

/// GP-9: a rank that must copy its own buffers may still have rank copies into these buffers.
#[test]
fn memory_that_is_withdrawn_among_errands_loses_no_byte() {
    let refused = [(Calls::Descriptor, libc::EPERM), (Calls::CrossMemory, libc::EPERM)];
    for moment in [Moment::Awaited, Moment::UnderWay, Moment::Recorded] {
        let mut service = Daemon::start_refusable(again(), &ALL).into();
        conformance::withdraw(&mut service, moment, 3, &refused, "staging");
    }
}

/// Each rank has its own process namespace, in which the process numbers of the other ranks mean nothing.
#[test]
fn a_rank_that_cannot_see_another_process_is_served() {
    let apart = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().expect("a path"));
        command.args(support::AGAIN);
        command
    };
    if !Command::new("unshare").args(["--pid", "--fork", "true"]).status().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: no process namespaces for this user");
    }
    let copies = copied_by(apart, "errands", &[]);
    assert!(copies["failed"].as_u64() > Some(0) && copies["by_service"].as_u64() > Some(0), "{copies}");
}
