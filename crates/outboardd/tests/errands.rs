//! Ranks that wait in the library copy for themselves what other ranks of their host have for them (SP-6).

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{Daemon, all_say, kill_the_last, let_go, ranks};

#[test]
fn another_process() {
    support::another_process();
}

fn copies(daemon: &Daemon) -> Value {
    daemon.statistics()["datapath"]["copies"].clone()
}

/// What was copied while four ranks did as the scenario says.
fn copied(scenario: &str, flags: &[&str]) -> Value {
    let daemon = Daemon::start(flags);
    let mut ranks = ranks(scenario, &daemon, 4);
    all_say(&mut ranks, "done");
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

/// What it was offered is done in its place, so that the others need not wait for it.
#[test]
fn a_rank_that_is_stopped_while_it_waits_holds_up_nobody() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("errands-stopped", &daemon, 3);
    all_say(&mut ranks, "ready");
    let mut last = ranks.pop().expect("three");
    // It waits once its call has come.
    assert!((0..100_000).any(|_| daemon.statistics()["calls"] == 1), "it has called");
    let pid = Pid::from_raw(last.id() as i32).expect("a process");
    kill_process(pid, Signal::STOP).expect("it lives");
    ranks.iter_mut().for_each(support::Rank::go_on);
    all_say(&mut ranks, "done");
    kill_process(pid, Signal::CONT).expect("it lives");
    assert_eq!(last.line(), "done");
    ranks.push(last);
    let_go(ranks);
    assert_eq!(daemon.statistics()["failed"], 0);
}

/// Those of a rank that dies with errands fail by name, and the service process goes on.
#[test]
fn a_rank_that_is_killed_among_errands_is_missed_by_name() {
    let daemon = Daemon::start(&[]);
    kill_the_last(ranks("errands-one-dies", &daemon, 4));
    let mut ranks = ranks("errands", &daemon, 2);
    all_say(&mut ranks, "done");
    let_go(ranks);
}
