//! A daemon that is told to end, and ranks that outlive theirs.

mod support;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use outboard::{Context, Status};
use outboard_shm::attach::{ATTACH_VERSION, Channel};
use rustix::event::{PollFd, PollFlags};
use support::{Daemon, Rank, SCENARIO, again, ranks};

#[test]
fn another_process() {
    support::another_process();
}

fn two_ranks(scenario: &str, daemon: &Daemon) -> [Rank; 2] {
    ranks(scenario, daemon, 2).try_into().unwrap_or_else(|_| unreachable!("two were started"))
}

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

/// Calls in flight end well, those that others have yet to make among them; nobody new is let in.
#[test]
fn a_daemon_that_is_told_to_end_lets_calls_end() {
    let mut daemon = Daemon::start(&["--drain", "60"]);
    let [mut first, mut second] = two_ranks("drained", &daemon);
    assert_eq!((first.line(), second.line()), ("posted".to_owned(), "ready".to_owned()));
    daemon.tell_to_end();
    let deadline = Instant::now() + Duration::from_secs(30);
    let refused = loop {
        // It may not have heard yet.
        match Context::attach(Some(&daemon.socket())) {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "ranks may attach to a daemon that ends"),
        }
    };
    assert_eq!(refused.status(), Status::NoService, "{refused}");
    assert!(refused.to_string().contains("told to end"), "{refused}");
    second.go_on();
    first.finish();
    second.finish();
    let status = daemon.wait();
    assert!(status.success() && !daemon.socket().exists(), "{status}");
}

/// What a daemon says to a library of another release is in `hostile.rs`; this is what the library says.
#[test]
fn a_daemon_of_another_version_is_told_with_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let listener = Channel::listen(&socket).expect("free");
    let theirs = ATTACH_VERSION + 1;
    let daemon = std::thread::spawn(move || {
        let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
        rustix::event::poll(&mut waiting, None).expect("a rank comes");
        let channel = Channel::accept(listener.as_fd()).expect("descriptors").expect("it waits");
        assert!(channel.wait(Duration::from_secs(60)).expect("poll"), "no greeting");
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
    let mut daemon = Daemon::start(&["--drain", "1"]);
    let [mut first, mut second] = two_ranks("given-up", &daemon);
    assert_eq!((first.line(), second.line()), ("posted".to_owned(), "ready".to_owned()));
    daemon.tell_to_end();
    let why = first.line();
    assert!(why.contains("told to end before the call had ended"), "{why}");
    let status = daemon.wait();
    assert!(status.success(), "{status}");
    second.go_on();
    first.finish();
    second.finish();
}
