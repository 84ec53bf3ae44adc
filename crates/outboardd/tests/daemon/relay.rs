//! Ranks that attach through a relay: what they find with a daemon of their own, on one machine.

use std::io::{Read, Write};
use std::net::TcpStream;

use outboard_fabric::secured::{Greeting, Keys, Step, Terms, Unsealing};
use outboard_fabric::{Identity, SharedKey};

use crate::support::conformance::{self, Moment, Service};
use crate::support::refusable::Calls;
use crate::support::{Daemon, Rank, SCENARIO, again, all_say, let_go, ranks};

/// An address where nobody listens.
fn free_address() -> String {
    format!("127.0.0.1:{}", outboard_lab::free_port().expect("a port"))
}

/// A key file, for as long as daemons start.
struct Key(tempfile::NamedTempFile);

impl Key {
    fn name(&self) -> &str {
        self.0.path().to_str().expect("ASCII")
    }
}

fn key(content: &str) -> Key {
    let mut file = tempfile::NamedTempFile::new().expect("a file that its owner alone can read");
    file.write_all(content.as_bytes()).expect("room");
    Key(file)
}

/// A daemon and a relay to it, which takes orders.
fn pair(flags: &[&str]) -> (Daemon, Daemon) {
    let address = free_address();
    let ours = key("ours");
    let daemon = Daemon::start(&[&["--dock", &address, "--relay-key", ours.name()], flags].concat());
    let relay = Daemon::start_refusable(again(), &["--log", "warn", "--relay", &address, "--relay-key", ours.name()]);
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
    let _daemon = Daemon::start(&["--dock", &address, "--relay-key", key("ours").name(), "--log", "error"]);
    let theirs = key("theirs");
    for without in [&[&address[..], "--relay-key", theirs.name()][..], &[&address]] {
        let said = refused(without);
        assert!(said.contains("OUTBOARD_RELAY_KEY"), "{said}");
    }
}

/// Garbage, half a handshake and connections that say nothing, more than may be unproven at once, end by themselves;
/// ranks that are attached go on, and others attach behind them.
#[test]
fn strangers_at_a_dock_hold_up_nobody_for_long() {
    let address = free_address();
    let daemon = Daemon::start(&["--dock", &address, "--log", "error"]);
    let relay = Daemon::start_refusable(again(), &["--log", "error", "--relay", &address]);
    let service = Service { daemon, relay: Some(relay) };
    let mut attached = service.ranks("attached", 2);
    all_say(&mut attached, "ready");
    let mut strangers: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    for (at, stranger) in strangers.iter_mut().enumerate() {
        // Those that made way are closed already.
        let _ = match at % 3 {
            0 => stranger.write_all(&[7; 4096]),
            1 => stranger.write_all(b"half"),
            _ => Ok(()),
        };
    }
    for mut stranger in strangers {
        // Returns when the dock has closed it.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    let_go(attached);
    service.run_and_count("allgather", 2);
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

/// What a dock answers to a relay made by hand, which says these bytes behind its handshake.
fn answered(address: &str, bytes: &[u8]) -> String {
    let (own, key) = (Identity::generate(), SharedKey::default());
    let terms = Terms { own: &own, shared: &key, purpose: b"outboard relay 1", encrypts: true };
    let (mut greeting, hello) = Greeting::dial(&terms, Identity::of(&key).public()).expect("good keys");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(&hello).expect("it reads");
    let Keys { mut sealer, opener } = loop {
        let taken = stream.read(greeting.room()).expect("it answers");
        greeting = match greeting.advance(taken).expect("it holds the key") {
            Step::Wait(greeting) => greeting,
            Step::Say(greeting, message) => {
                stream.write_all(&message).expect("it reads");
                greeting
            }
            Step::Welcome(keys) => break keys,
            Step::Proven { .. } => unreachable!("we have dialled"),
        };
    };
    let (mut sealed, mut answer, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    sealer.seal([bytes], &mut Vec::new(), &mut sealed);
    stream.write_all(&sealed).expect("it reads");
    // A connection that is cut off may have lost the answer.
    let _ = stream.read_to_end(&mut answer);
    let opened = Unsealing::new(opener).take(&answer, |record| {
        let start = plain.len();
        plain.resize(start + record.len(), 0);
        record.open(&mut plain[start..])
    });
    opened.expect("it is the dock's");
    String::from_utf8_lossy(&plain).into_owned()
}

/// A relay that holds the key and says what cannot be is told so, and costs nobody else anything.
#[test]
fn garbage_at_the_dock_is_refused() {
    let address = free_address();
    let daemon = Daemon::start(&["--dock", &address, "--log", "error"]);
    let said = |bytes: &[u8]| answered(&address, bytes);
    // Process 7 of host `h`, bound nowhere, of user and job 0.
    let rank = [&[7, 0, 0, 0][..], &[0; 12], &[0xff; 8], &[1, 0, b'h']].concat();
    let greeting = |version: u16| [&[34, 0, 0, 0, 1][..], b"OBRL", &version.to_le_bytes(), &rank].concat();
    assert!(said(&greeting(77)).contains("version 77"));
    assert!(said(&[0xff; 64]).contains("bad value in field length"));
    // Attached, and then a call of a group that it has not.
    let call = [&[145u8, 0, 0, 0, 5], &[0xee; 144][..]].concat();
    assert!(said(&[greeting(4), call].concat()).contains("bad call"));
    assert_eq!(daemon.statistics()["failed"], 0);
}
