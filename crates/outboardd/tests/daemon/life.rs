//! A daemon that is told to end, and ranks that outlive theirs.

use outboard::{Context, Status};
use outboard_service::NamedSocket;
use outboard_shm::attach::{ATTACH_VERSION, Channel};
use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketType;

use crate::support::scenarios::LIMIT;
use crate::support::{Daemon, Rank, SCENARIO, again, conformance};

#[test]
fn a_rank_attaches_again_when_its_daemon_is_back() {
    let mut daemon = Daemon::start(&[]);
    let mut rank = Rank::spawn(again().env(SCENARIO, "reattaches").env("OUTBOARD_SOCKET", daemon.socket()));
    assert_eq!(rank.line(), "ready");
    daemon.kill();
    daemon.restart();
    rank.go_on();
    assert_eq!(rank.line(), "done");
    rank.finish();
}

#[test]
fn a_daemon_that_is_told_to_end_lets_calls_end() {
    conformance::calls_end_well(Daemon::start(&["--drain", "60"]).into());
}

/// What a daemon says to a library of another release is in `hostile.rs`; this is what the library says.
#[test]
fn a_daemon_of_another_version_is_told_with_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let listener = NamedSocket::listen(&socket, SocketType::SEQPACKET).expect("free");
    let theirs = ATTACH_VERSION + 1;
    let daemon = std::thread::spawn(move || {
        let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
        rustix::event::poll(&mut waiting, None).expect("a rank comes");
        let channel = Channel::from(listener.accept().expect("descriptors").expect("it waits"));
        assert!(channel.wait(LIMIT).expect("poll"), "no greeting");
        // Of what another release says, the first numbers are where ours are: magic number and version.
        let mut message = [0; 6];
        rustix::net::recv(&channel, &mut message, rustix::net::RecvFlags::empty()).expect("it waits");
        message[4..].copy_from_slice(&theirs.to_le_bytes());
        rustix::net::send(&channel, &message, rustix::net::SendFlags::empty()).expect("sent");
    });
    let error = Context::attach(Some(&socket)).expect_err("another version");
    assert_eq!(error.status(), Status::Version, "{error}");
    let text = error.to_string();
    assert!([ATTACH_VERSION, theirs].iter().all(|version| text.contains(&version.to_string())), "{text}");
    daemon.join().expect("no panic");
}

#[test]
fn calls_that_do_not_end_are_given_up_with_the_reason() {
    let why = conformance::calls_are_given_up(Daemon::start(&["--drain", "1"]).into());
    assert!(why.contains("told to end before the call had ended"), "{why}");
}
