//! Ranks that attach through a relay: what they find with a daemon of their own, on one machine.

mod support;

use support::conformance::{self, Moment, Service};
use support::refusable::Calls;
use support::{Daemon, Rank, SCENARIO, again, all_say, let_go, ranks, ranks_by};

#[test]
fn another_process() {
    support::another_process();
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

fn service() -> Service {
    let (daemon, relay) = pair(&[]);
    Service { daemon, relay: Some(relay) }
}

/// GP-9: every byte right, all of it staged.
#[test]
fn relayed_ranks_gather_broadcast_exchange_and_reduce() {
    conformance::collectives(&service(), "staging");
}

#[test]
fn a_program_that_follows_a_relayed_rank_is_no_rank() {
    conformance::another_program_follows(&service());
}

/// A rank runs where it runs, not where its service process does.
#[test]
fn sockets_and_cores_of_relayed_ranks_are_told() {
    let mut service = service();
    let seated = conformance::a_rank_is_placed(&mut service);
    assert!(seated["pid"].as_u64().is_some_and(|pid| pid != u64::from(service.daemon.id())), "{seated}");
}

#[test]
fn many_relayed_calls_in_flight_end_with_the_right_bytes() {
    conformance::many_calls_in_flight(&service());
}

/// Recordings are kept at the service process, their bytes and those of messages cross.
#[test]
fn relayed_ranks_record_and_send_messages() {
    let service = service();
    conformance::recordings_and_messages(&service);
    conformance::starts_follow_one_another(&service);
}

/// What was recorded does not cross again.
#[test]
fn a_start_of_relayed_ranks_is_one_call_to_the_service_process() {
    conformance::a_start_is_one_call(&service());
}

#[test]
fn starts_end_with_the_daemon_those_that_wait_for_others_too() {
    let (mut daemon, relay) = pair(&[]);
    let mut rank = ranks("recorded-service-dies", &relay, 1).pop().expect("one");
    assert_eq!(rank.line(), "posted");
    daemon.kill();
    for _ in 0..3 {
        let said = rank.line();
        assert!(said.contains("127.0.0.1:") && said.contains("is lost"), "{said}");
    }
    rank.finish();
}

/// A daemon and a relay that gives calls so many seconds once it is told to end.
fn ending(drain: &str) -> Service {
    let address = free_address();
    let daemon = Daemon::start(&["--dock", &address]);
    let relay = Daemon::start(&["--relay", &address, "--drain", drain, "--log", "error"]);
    Service { daemon, relay: Some(relay) }
}

#[test]
fn a_relay_that_is_told_to_end_lets_calls_end() {
    conformance::calls_end_well(ending("60"));
}

#[test]
fn calls_that_do_not_end_are_lost_with_their_relay() {
    let why = conformance::calls_are_given_up(ending("1"));
    assert!(!why.is_empty());
}

#[test]
fn jobs_behind_a_relay_have_quotas_of_their_own() {
    let (_daemon, relay) = pair(&["--job-groups", "2"]);
    let of_job = |job: &str| {
        let mut command = again();
        command.env("OUTBOARD_JOB", job);
        command
    };
    let mut full = ranks_by(|| of_job("1"), "attached", &relay, 2);
    all_say(&mut full, "ready");
    let mut other = Rank::spawn(of_job("2").env(SCENARIO, "alone").env("OUTBOARD_SOCKET", relay.socket()));
    assert_eq!(other.line(), "ready");
    other.go_on();
    other.finish();
    let_go(full);
}

#[test]
fn relayed_ranks_hear_of_deaths_and_disagreements() {
    conformance::deaths_and_disagreements(&service());
}

/// A buffer to send is blamed on its rank by the service process, to all; one to receive into by the relay, to its
/// rank.
#[test]
fn a_buffer_that_is_nowhere_is_blamed_on_its_relayed_rank() {
    conformance::faults_are_blamed_on_their_rank(&service());
}

/// SP-4, GP-9: while calls are in flight the kernel withdraws the relay's access to its ranks, in one step or two.
#[test]
fn a_relay_that_loses_access_loses_no_byte() {
    let (cross, descriptor) = ((Calls::CrossMemory, libc::EPERM), (Calls::Descriptor, libc::EPERM));
    for (refusals, tier) in [(&[cross][..], "memory descriptor"), (&[descriptor, cross][..], "staging")] {
        for moment in [Moment::Awaited, Moment::UnderWay, Moment::Recorded] {
            conformance::withdraw(&mut service(), (moment, 3), refusals, tier);
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
    let rank = [&[7, 0, 0, 0][..], &[0; 12], &[0xff; 8], &[1, 0, b'h']].concat();
    let greeting = |version: u16| [&[34, 0, 0, 0, 1][..], b"OBRL", &version.to_le_bytes(), &rank].concat();
    assert!(said(&greeting(77)).contains("version 77"));
    assert!(said(&[0xff; 64]).contains("bad value in field length"));
    // Attached, and then a call of a group that it has not.
    let call = [&[145u8, 0, 0, 0, 5], &[0xee; 144][..]].concat();
    assert!(said(&[greeting(3), call].concat()).contains("bad call"));
    assert_eq!(daemon.statistics()["failed"], 0);
}
