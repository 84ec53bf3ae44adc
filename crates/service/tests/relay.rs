//! Ranks that attach through a relay: the same scenarios as with a daemon of their own, on one machine.

mod support;

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use outboard::{Context, Status};
use support::recorded::CALLS;
use support::refusable::Calls;
use support::{Daemon, Rank, SCENARIO, scenarios, serve_rendezvous, start_ranks};

/// The ranks and relays of the tests below; nothing when started as a test.
#[test]
fn another_process() {
    if let Ok(scenario) = std::env::var(SCENARIO) {
        scenarios::run(&scenario);
    }
}

fn again() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "another_process", "--nocapture", "--test-threads", "1"]);
    command
}

/// An address where nobody listens.
fn free_address() -> String {
    format!("127.0.0.1:{}", outboard_lab::free_port().expect("a port"))
}

/// A daemon and a relay to it, which takes orders.
fn pair(flags: &[&str]) -> (Daemon, Daemon) {
    let address = free_address();
    let daemon = Daemon::start(&[&["--dock", &address, "--relay-key", "ours"], flags].concat());
    let relay = Daemon::start_refusable(again(), &["--log", "warn", "--relay", &address, "--relay-key", "ours"]);
    (daemon, relay)
}

fn start(scenario: &str, relay: &Daemon, ranks: usize) -> Vec<Rank> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let started = start_ranks(scenario, &vec![relay; ranks], &address, |_| again());
    serve_rendezvous(&listener, ranks);
    started
}

/// Runs a scenario whose ranks wait to be let go; returns what the daemon counted.
fn run(scenario: &str, ranks: usize) -> serde_json::Value {
    let (daemon, relay) = pair(&[]);
    let mut ranks = start(scenario, &relay, ranks);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
    let statistics = daemon.statistics();
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.into_iter().for_each(Rank::finish);
    statistics
}

/// GP-9: every byte right, all of it staged.
#[test]
fn relayed_ranks_gather_broadcast_exchange_and_reduce() {
    for (scenario, ranks, calls) in [
        ("allgather", 4, 14),
        ("broadcast", 3, 24),
        ("alltoall", 4, 16),
        ("allgatherv", 4, 18),
        ("rooted", 4, 50),
        ("reductions", 3, 120),
        ("own-operators", 3, 120),
    ] {
        let statistics = run(scenario, ranks);
        assert_eq!(statistics["completed"], ranks * calls, "{scenario}: {statistics}");
        assert_eq!(statistics["failed"], 0, "{scenario}: {statistics}");
        assert_eq!(statistics["memory_tiers"]["staging"], ranks, "{scenario}: {statistics}");
    }
}

/// SP-1: a rank runs where it runs, not where its service process does.
#[test]
fn sockets_and_cores_of_relayed_ranks_are_told() {
    let (daemon, relay) = pair(&[]);
    let allowed = rustix::thread::sched_getaffinity(None).expect("a few processors");
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("one at least");
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &first.to_string()]).arg(std::env::current_exe().expect("a path"));
    command.args(["--exact", "another_process", "--nocapture", "--test-threads", "1"]);
    let mut rank = Rank::spawn(command.env(SCENARIO, "alone").env("OUTBOARD_SOCKET", relay.socket()));
    assert_eq!(rank.line(), "ready");
    let statistics = daemon.statistics();
    let (place, pid) = (&statistics["seated"][0]["place"], &statistics["seated"][0]["pid"]);
    assert!(place["socket"].is_number() && place["core"].is_number(), "{statistics}");
    assert!(pid.as_u64().is_some_and(|pid| pid != u64::from(daemon.id())), "{statistics}");
    rank.go_on();
    rank.finish();
}

/// MC-9.
#[test]
fn many_relayed_calls_in_flight_end_with_the_right_bytes() {
    let (_daemon, relay) = pair(&[]);
    start("in-flight", &relay, 4).into_iter().for_each(Rank::finish);
    start("in-flight", &relay, 1).into_iter().for_each(Rank::finish);
}

/// GP-1, GP-2, GP-8: recordings are kept at the service process, their bytes and those of messages cross.
#[test]
fn relayed_ranks_record_and_send_messages() {
    for (scenario, ranks) in
        [("recorded", 4), ("recorded", 1), ("messages", 3), ("recorded-sums", 3), ("recorded-in-flight", 2)]
    {
        let statistics = run(scenario, ranks);
        assert_eq!(statistics["failed"], 0, "{scenario}: {statistics}");
    }
    let (_daemon, relay) = pair(&[]);
    for (scenario, ranks) in [("crossed", 4), ("truncated", 3), ("recorded-mismatch", 3)] {
        start(scenario, &relay, ranks).into_iter().for_each(Rank::finish);
    }
}

/// GP-5: what was recorded does not cross again.
#[test]
fn a_start_of_relayed_ranks_is_one_call_to_the_service_process() {
    let (daemon, relay) = pair(&[]);
    let mut ranks = start("repeated", &relay, 4);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "ready"));
    let submissions = || daemon.statistics()["submissions"].as_u64().expect("a number");
    let before = submissions();
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
    assert_eq!(submissions() - before, (4 * CALLS) as u64);
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.into_iter().for_each(Rank::finish);
}

#[test]
fn starts_end_with_the_daemon_those_that_wait_for_others_too() {
    let (mut daemon, relay) = pair(&[]);
    let mut rank = start("recorded-service-dies", &relay, 1).pop().expect("one");
    assert_eq!(rank.line(), "posted");
    daemon.kill();
    for _ in 0..3 {
        let said = rank.line();
        assert!(said.contains("127.0.0.1:") && said.contains("is lost"), "{said}");
    }
    rank.finish();
}

/// Two ranks of which one has called and the other has not, and a relay that has been told to end.
fn told_to_end(scenario: &str, drain: &str) -> (Daemon, Daemon, [Rank; 2]) {
    let address = free_address();
    let daemon = Daemon::start(&["--dock", &address]);
    let relay = Daemon::start(&["--relay", &address, "--drain", drain, "--log", "error"]);
    let Ok([mut first, mut second]) = <[Rank; 2]>::try_from(start(scenario, &relay, 2)) else {
        unreachable!("two were started")
    };
    assert_eq!((first.line(), second.line()), ("posted".to_owned(), "ready".to_owned()));
    relay.tell_to_end();
    (daemon, relay, [first, second])
}

/// As a daemon: calls in flight end well, those that others have yet to make among them; nobody new is let in.
#[test]
fn a_relay_that_is_told_to_end_lets_calls_end() {
    let (_daemon, mut relay, [first, mut second]) = told_to_end("drained", "60");
    let deadline = Instant::now() + Duration::from_secs(30);
    let refused = loop {
        // It may not have heard yet.
        match Context::attach(Some(&relay.socket())) {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "ranks may attach to a relay that ends"),
        }
    };
    assert!(refused.status() == Status::NoService && refused.to_string().contains("told to end"), "{refused}");
    second.go_on();
    first.finish();
    second.finish();
    let status = relay.wait();
    assert!(status.success() && !relay.socket().exists(), "{status}");
}

#[test]
fn calls_that_do_not_end_are_lost_with_their_relay() {
    let (_daemon, mut relay, [mut first, mut second]) = told_to_end("given-up", "1");
    let status = relay.wait();
    assert!(status.success(), "{status}");
    assert!(!first.line().is_empty());
    second.go_on();
    first.finish();
    second.finish();
}

#[test]
fn jobs_behind_a_relay_have_quotas_of_their_own() {
    let (_daemon, relay) = pair(&["--job-groups", "2"]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let of_job = |job: &str| {
        let mut command = again();
        command.env("OUTBOARD_JOB", job);
        command
    };
    let mut full = start_ranks("attached", &[&relay, &relay], &address, |_| of_job("1"));
    serve_rendezvous(&listener, 2);
    full.iter_mut().for_each(|rank| assert_eq!(rank.line(), "ready"));
    let mut other = Rank::spawn(of_job("2").env(SCENARIO, "alone").env("OUTBOARD_SOCKET", relay.socket()));
    assert_eq!(other.line(), "ready");
    other.go_on();
    other.finish();
    full.iter_mut().for_each(Rank::go_on);
    full.into_iter().for_each(Rank::finish);
}

#[test]
fn relayed_ranks_hear_of_deaths_and_disagreements() {
    let (_daemon, relay) = pair(&[]);
    for scenario in ["one-dies", "recorded-one-dies"] {
        let mut ranks = start(scenario, &relay, 4);
        let mut last = ranks.pop().expect("four");
        assert_eq!(last.line(), "ready");
        ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "posted"));
        last.kill();
        ranks.into_iter().for_each(Rank::finish);
    }
    for scenario in ["mismatch", "exchange-mismatch", "rooted-mismatch"] {
        start(scenario, &relay, 3).into_iter().for_each(Rank::finish);
    }
}

/// A buffer to send is blamed on its rank by the service process, to all; one to receive into by the relay, to its rank.
#[test]
fn a_buffer_that_is_nowhere_is_blamed_on_its_relayed_rank() {
    let (_daemon, relay) = pair(&[]);
    for scenario in ["send-fault", "receive-fault"] {
        start(scenario, &relay, 3).into_iter().for_each(Rank::finish);
    }
}

/// SP-4, GP-9: while calls are in flight the kernel withdraws the relay's access to its ranks, in one step or two.
#[test]
fn a_relay_that_loses_access_loses_no_byte() {
    let (cross, descriptor) = ((Calls::CrossMemory, libc::EPERM), (Calls::Descriptor, libc::EPERM));
    for (refusals, tier) in [(&[cross][..], "memory descriptor"), (&[descriptor, cross][..], "staging")] {
        for scenario in ["withdrawn", "withdrawn-under-way"] {
            let (daemon, mut relay) = pair(&[]);
            let mut ranks = start(scenario, &relay, 3);
            ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "ready"));
            refusals.iter().for_each(|&(calls, errno)| relay.refuse(calls, errno));
            let waiting = if scenario == "withdrawn" { 3 } else { 1 };
            ranks[..waiting].iter_mut().for_each(Rank::go_on);
            ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), tier, "{scenario}"));
            assert_eq!(daemon.statistics()["failed"], 0, "{scenario}");
            ranks.iter_mut().for_each(Rank::go_on);
            ranks.into_iter().for_each(Rank::finish);
        }
    }
}

/// What a rank hears that attaches alone through a relay with these flags.
fn refused(flags: &[&str]) -> String {
    let relay = Daemon::start_refusable(again(), &[&["--log", "error", "--relay"], flags].concat());
    let mut rank = Rank::spawn(again().env(SCENARIO, "refused").env("OUTBOARD_SOCKET", relay.socket()));
    let said = rank.line();
    rank.finish();
    said
}

#[test]
fn who_may_not_attach_is_told_why() {
    let address = free_address();
    let said = refused(&[&address]);
    assert!(said.contains(&address) && said.contains("refused"), "{said}");
    let _daemon = Daemon::start(&["--dock", &address, "--relay-key", "ours", "--log", "error"]);
    let said = refused(&[&address, "--relay-key", "theirs"]);
    assert!(said.contains("OUTBOARD_RELAY_KEY"), "{said}");
}

/// A rank that has asked for more than the daemon keeps for it goes on without it, and hears why.
#[test]
fn a_call_beyond_the_quota_costs_its_rank_the_daemon() {
    let (_daemon, relay) = pair(&["--relay-memory", "16K", "--log", "error"]);
    let mut rank = Rank::spawn(again().env(SCENARIO, "beyond").env("OUTBOARD_SOCKET", relay.socket()));
    let said = rank.line();
    assert!(said.contains("--relay-memory"), "{said}");
    rank.finish();
}

/// The daemon's end reaches a relayed rank that is in a call, and one that makes none.
#[test]
fn the_end_of_the_daemon_is_told_with_its_address() {
    let (mut daemon, relay) = pair(&[]);
    let mut rank = Rank::spawn(again().env(SCENARIO, "outlives").env("OUTBOARD_SOCKET", relay.socket()));
    assert_eq!(rank.line(), "ready");
    daemon.kill();
    rank.go_on();
    let said = rank.line();
    assert!(said.contains("127.0.0.1:") && said.contains("is lost"), "{said}");
    rank.finish();
}

/// A stranger at the dock costs nobody else anything.
#[test]
fn garbage_at_the_dock_is_refused() {
    use std::io::{Read, Write};
    let address = free_address();
    let daemon = Daemon::start(&["--dock", &address, "--log", "error"]);
    let said = |bytes: &[u8]| {
        let mut stream = std::net::TcpStream::connect(&address).expect("it listens");
        stream.write_all(bytes).expect("it reads");
        let mut answer = Vec::new();
        // A connection that is cut off may have lost the answer.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    // Process 7 of host `h`, bound nowhere, of user and job 0, without a key.
    let rank = [&[7, 0, 0, 0][..], &[0xff; 8], &[0; 12], &[1, b'h']].concat();
    let greeting = |version: u16| [&[33, 0, 0, 0, 1][..], b"OBRL", &version.to_le_bytes(), &rank].concat();
    assert!(said(&greeting(77)).contains("version 77"));
    assert!(said(&[0xff; 64]).contains("bad length"));
    // Attached, and then a call of a group that it has not.
    let call = [&[145u8, 0, 0, 0, 5], &[0xee; 144][..]].concat();
    assert!(said(&[greeting(2), call].concat()).contains("bad call"));
    assert_eq!(daemon.statistics()["failed"], 0);
}
