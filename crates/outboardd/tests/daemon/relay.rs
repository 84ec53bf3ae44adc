//! Ranks that attach through a relay, on one machine: they get the service that a local daemon gives.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;

use outboard::Context;
use outboard_fabric::secured::{Handshake, HandshakeStep, HandshakeTerms, Keys, RecordReader, Sealer};
use outboard_fabric::{Identity, SharedKey};

use crate::support::conformance::{self, Moment, Service};
use crate::support::refusable::Calls;
use crate::support::scenarios::LIMIT;
use crate::support::{
    DAEMON, Daemon, Rank, activated, again, expect_line_from_all, last_words, let_go, rank_at, ranks,
};

fn free_address() -> String {
    format!("127.0.0.1:{}", outboard_lab::free_port().expect("a port"))
}

/// A key file, which must exist while daemons start.
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

/// Starts a daemon with a dock, and a relay to that daemon. The relay accepts orders of the test.
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

/// GP-9: every byte is right, and all bytes move through staging.
#[test]
fn relayed_ranks_gather_broadcast_exchange_and_reduce() {
    conformance::collectives(&service(), "staging");
}

#[test]
fn a_program_that_follows_a_relayed_rank_is_no_rank() {
    conformance::another_program_follows(&service());
}

/// The placement of a rank describes the rank's own host, not the host of its service process.
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

/// The service process stores recordings. The payloads of recordings and messages cross the relay.
#[test]
fn relayed_ranks_record_and_send_messages() {
    conformance::recordings_and_messages(&service());
}

/// A recording does not cross the relay again.
#[test]
fn a_start_of_relayed_ranks_is_one_call_to_the_service_process() {
    conformance::a_start_is_one_call(&service());
}

/// Starts a daemon and a relay. Once it is ordered to end, the relay waits `drain` seconds for calls.
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
fn deaths_and_mismatches_are_reported_to_relayed_ranks() {
    conformance::deaths_and_disagreements(&service());
}

/// If a send buffer is bad, the service process reports it to all ranks. If a receive buffer is bad, the relay reports
/// it to its rank.
#[test]
fn a_buffer_that_is_nowhere_is_blamed_on_its_relayed_rank() {
    conformance::faults_are_blamed_on_their_rank(&service());
}

/// SP-4, GP-9: the kernel withdraws the relay's access to the memory of its ranks, in one step or two, while calls are
/// in flight.
#[test]
fn a_relay_that_loses_access_loses_no_byte() {
    let (cross, descriptor) = ((Calls::CrossMemory, libc::EPERM), (Calls::Descriptor, libc::EPERM));
    for (refusals, tier) in [(&[cross][..], "memory descriptor"), (&[descriptor, cross][..], "staging")] {
        for moment in [Moment::Awaited, Moment::UnderWay, Moment::Recorded] {
            conformance::withdraw(&mut service(), moment, 3, refusals, tier);
        }
    }
}

/// Starts a rank that attaches alone through a relay with these flags; returns the rank's error.
fn refused(flags: &[&str]) -> String {
    let relay = Daemon::start_refusable(again(), &[&["--log", "error", "--relay"], flags].concat());
    last_words(rank_at(&relay.socket(), "refused"))
}

#[test]
fn a_rank_that_may_not_attach_receives_the_reason() {
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

/// Strangers send garbage, half a handshake or nothing, on more connections than may be unauthenticated. These
/// connections end by themselves. Attached ranks continue, and others attach after them.
#[test]
fn strangers_at_a_dock_hold_up_nobody_for_long() {
    let address = free_address();
    let daemon = Daemon::start(&["--dock", &address, "--log", "error"]);
    let relay = Daemon::start_refusable(again(), &["--log", "error", "--relay", &address]);
    let service = Service { daemon, relay: Some(relay) };
    let mut attached = service.ranks("attached", 2);
    expect_line_from_all(&mut attached, "ready");
    let mut strangers: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    for (at, stranger) in strangers.iter_mut().enumerate() {
        // The dock has already closed the oldest connections for new ones.
        let _ = match at % 3 {
            0 => stranger.write_all(&[7; 4096]),
            1 => stranger.write_all(b"half"),
            _ => Ok(()),
        };
    }
    for mut stranger in strangers {
        // The read returns when the dock has closed the connection.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    let_go(attached);
    service.run_and_count("allgather", 2);
}

/// A rank whose calls need more memory than the daemon keeps for it loses the daemon, gets the reason and continues.
#[test]
fn a_call_beyond_the_quota_costs_its_rank_the_daemon() {
    let (_daemon, relay) = pair(&["--relay-memory", "16K", "--log", "error"]);
    let said = last_words(rank_at(&relay.socket(), "beyond"));
    assert!(said.contains("--relay-memory"), "{said}");
}

/// The end of the daemon is reported to a rank without calls, and to a rank with starts of a recording that wait for
/// one another.
#[test]
fn the_end_of_the_daemon_is_told_with_its_address() {
    let (mut daemon, relay) = pair(&[]);
    let mut idle = rank_at(&relay.socket(), "outlives");
    assert_eq!(idle.line(), "ready");
    let mut waiting = ranks("recorded-service-dies", &relay, 1).pop().expect("one");
    assert_eq!(waiting.line(), "posted");
    daemon.kill();
    idle.go_on();
    for said in [idle.line(), waiting.line(), waiting.line(), waiting.line()] {
        assert!(said.contains("127.0.0.1:") && said.contains("is lost"), "{said}");
    }
    [idle, waiting].into_iter().for_each(Rank::finish);
}

/// A relay, or a rank behind a relay, that this test implements.
struct RawRelay {
    stream: TcpStream,
    sealer: Sealer,
    unsealing: RecordReader,
    /// Decrypted bytes that no caller has consumed.
    plain: Vec<u8>,
}

impl RawRelay {
    fn dial(address: &str, key: SharedKey) -> RawRelay {
        RawRelay::try_dial(address, key).expect("the same key")
    }

    /// Connects; returns `None` if nobody with this key answers.
    fn try_dial(address: &str, key: SharedKey) -> Option<RawRelay> {
        let own = Identity::generate();
        let terms = HandshakeTerms { own: &own, shared: &key, purpose: b"outboard relay 1", encrypts: true };
        let (mut greeting, hello) = Handshake::dial(&terms, Identity::of(&key).public()).expect("good keys");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(&hello).expect("it reads");
        let Keys { sealer, opener } = loop {
            let taken = stream.read(greeting.room()).ok().filter(|taken| *taken > 0)?;
            greeting = match greeting.advance(taken).expect("it holds the key") {
                HandshakeStep::Wait(greeting) => greeting,
                HandshakeStep::Send(greeting, message) => {
                    stream.write_all(&message).expect("it reads");
                    greeting
                }
                HandshakeStep::Welcome(keys) => break keys,
                HandshakeStep::Proven { .. } => unreachable!("we have dialled"),
            };
        };
        Some(RawRelay { stream, sealer, unsealing: RecordReader::new(opener), plain: Vec::new() })
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        let mut sealed = Vec::new();
        self.sealer.seal([bytes], &mut Vec::new(), &mut sealed);
        self.stream.write_all(&sealed).expect("it reads");
    }

    /// Receives more bytes; returns false at the end of the stream. An aborted connection may have lost its last bytes.
    fn receive_more(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let taken = self.stream.read(&mut bytes).unwrap_or(0);
        let plain = &mut self.plain;
        let opened = self.unsealing.take(&bytes[..taken], |record| {
            let start = plain.len();
            plain.resize(start + record.len(), 0);
            record.open(&mut plain[start..])
        });
        opened.expect("it is the dock's");
        taken > 0
    }

    /// The next frame, without its length.
    fn frame(&mut self) -> Vec<u8> {
        loop {
            if let Some((length, rest)) = self.plain.split_first_chunk() {
                let length = u32::from_le_bytes(*length) as usize;
                if rest.len() >= length {
                    let frame = rest[..length].to_vec();
                    self.plain.drain(..4 + length);
                    return frame;
                }
            }
            assert!(self.receive_more(), "the connection ends");
        }
    }

    /// All bytes until the end of the stream.
    fn rest(mut self) -> String {
        while self.receive_more() {}
        String::from_utf8_lossy(&self.plain).into_owned()
    }
}

fn open(version: u16) -> Vec<u8> {
    [&[7, 0, 0, 0, 1][..], b"OBRL", &version.to_le_bytes()].concat()
}

/// Connects a relay that the dock then serves; returns it with the address and key at which its ranks connect.
fn served(address: &str) -> (RawRelay, String, SharedKey) {
    let mut relay = RawRelay::dial(address, SharedKey::default());
    relay.send_bytes(&open(5));
    let opened = relay.frame();
    assert_eq!((opened[0], opened.len()), (12, 35), "{:?}", String::from_utf8_lossy(&opened));
    let port = u16::from_le_bytes([opened[1], opened[2]]);
    (relay, format!("127.0.0.1:{port}"), SharedKey::of(&opened[3..]))
}

/// A relay that holds the key and breaks the protocol gets an error, and disturbs no other relay or rank.
#[test]
fn garbage_at_the_dock_is_refused() {
    let address = free_address();
    let daemon = Daemon::start(&["--dock", &address, "--log", "error"]);
    let said = |bytes: &[u8]| {
        let mut relay = RawRelay::dial(&address, SharedKey::default());
        relay.send_bytes(bytes);
        relay.rest()
    };
    assert!(said(&open(77)).contains("version 77"));
    assert!(said(&[0xff; 64]).contains("bad value in field length"));
    // A greeting of process 7 of host `h`, which is bound to no processor.
    let greeting = [&[16, 0, 0, 0, 13][..], &[7, 0, 0, 0], &[0xff; 8], &[1, 0, b'h']].concat();
    assert!(said(&greeting).contains("control connection opens it"));
    let (relay, at, key) = served(&address);
    // The rank attaches, then calls in a group that it is not in.
    let call = [&[145u8, 0, 0, 0, 5], &[0xee; 144][..]].concat();
    let mut rank = RawRelay::dial(&at, key);
    rank.send_bytes(&[greeting, call].concat());
    assert!(rank.rest().contains("bad call"));
    drop(relay);
    assert_eq!(daemon.statistics()["failed"], 0);
}

#[test]
fn a_second_relay_at_a_busy_dock_is_refused_until_the_first_has_ended() {
    let address = free_address();
    let _daemon = Daemon::start(&["--dock", &address, "--log", "error"]);
    let (first, at, key) = served(&address);
    let from = first.stream.local_addr().expect("connected").to_string();
    let said = refused(&[&address]);
    assert!(said.contains(&format!("serves the relay at {from}")) && said.contains("start one more dock"), "{said}");
    // The dock accepts only the key of this relay's ranks, and not even the relay key.
    assert!(RawRelay::try_dial(&at, SharedKey::default()).is_none(), "a rank of nobody's is let in");
    drop(RawRelay::dial(&at, key));
    drop(first);
    let relay = Daemon::start_refusable(again(), &["--log", "error", "--relay", &address]);
    // The dock may not yet have noticed the end of the first relay.
    let deadline = Instant::now() + LIMIT;
    while let Err(error) = Context::attach(Some(&relay.socket())) {
        assert!(error.to_string().contains("serves the relay") && Instant::now() < deadline, "{error}");
    }
}

/// A dock for one relay, started as a service manager starts it for a connection that the manager has accepted.
fn dock_of(connection: TcpStream) -> Command {
    let mut command = activated(std::os::fd::OwnedFd::from(connection));
    command.args([DAEMON, "--dock", "passed"]);
    command
}

/// Each relay has its own dock process, which ends with the relay.
#[test]
fn a_dock_of_a_passed_connection_serves_its_relay_and_ends_with_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let accept = || Daemon::start_by(dock_of(listener.accept().expect("a relay").0), &["--log", "error"]);
    let serve = || {
        let mut relay = Daemon::start(&["--relay", &address, "--log", "error"]);
        let (mut ranks, mut dock) = std::thread::scope(|scope| {
            let dock = scope.spawn(accept);
            (ranks("allgather", &relay, 2), dock.join().expect("it starts"))
        });
        expect_line_from_all(&mut ranks, "done");
        assert_eq!((dock.statistics()["ranks"].as_u64(), dock.statistics()["failed"].as_u64()), (Some(2), Some(0)));
        let_go(ranks);
        relay.request_stop();
        assert!(relay.wait().success());
        assert!(dock.wait().success());
        assert!(!dock.socket().exists());
    };
    // Two relays of different users at once, then another relay.
    serve();
    let mut first = Daemon::start(&["--relay", &address, "--log", "error"]);
    let mut rank = rank_at(&first.socket(), "outlives");
    let mut dock = accept();
    assert_eq!(rank.line(), "ready");
    serve();
    first.kill();
    rank.go_on();
    rank.line();
    rank.finish();
    assert!(dock.wait().success(), "it ends with its relay, whatever the ranks do");
}

#[test]
fn a_dock_without_a_relay_behind_it_says_so_and_ends() {
    let refused = |command: &mut Command| {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        let ended = command.arg("--socket").arg(&socket).output().expect("it starts");
        let said = String::from_utf8(ended.stderr).expect("text");
        assert!(!ended.status.success() && said.matches("outboardd: ").count() == 1, "{said}");
        assert_eq!(std::fs::read_dir(directory.path()).expect("there").count(), 0);
        said
    };
    let none = refused(Command::new(DAEMON).args(["--dock", "passed"]));
    assert!(none.contains("none is passed") && none.contains("outboardd-dock.socket"), "{none}");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listens = std::os::fd::OwnedFd::from(listener.try_clone().expect("descriptors"));
    let pair = std::os::unix::net::UnixStream::pair().expect("sockets");
    for wrong in [listens, pair.0.into(), std::fs::File::open("/dev/null").expect("there").into()] {
        let said = refused(activated(wrong).args([DAEMON, "--dock", "passed"]));
        assert!(said.contains("no connected TCP socket") && said.contains("Accept=yes"), "{said}");
    }
    let mut stranger = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    stranger.write_all(&[7; 4096]).expect("room");
    let said = refused(&mut dock_of(listener.accept().expect("connected").0));
    assert!(said.contains("no relay is at 127.0.0.1:"), "{said}");
    let wrong = Command::new(DAEMON).args(["--dock", "nowhere"]).output().expect("it starts");
    assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("`passed`"));
}
