//! One daemon and the ranks of one host, through the real client library.

use std::process::Command;

use crate::support::conformance::{self, Service};
use crate::support::{DAEMON, Daemon, Rank, expect_line_from_all, let_go, ranks};

fn service() -> Service {
    Daemon::start(&[]).into()
}

#[test]
fn ranks_of_one_host_gather_broadcast_exchange_and_reduce() {
    let mut service = service();
    conformance::collectives(&service, "cross_memory_attach");
    let (socket, status) = (service.daemon.socket(), service.daemon.stop());
    assert!(status.success(), "{status}");
    assert!(!socket.exists(), "the socket is removed");
}

#[test]
fn sockets_and_cores_of_ranks_are_told() {
    conformance::a_rank_is_placed(&mut service());
}

#[test]
fn many_calls_in_flight_end_with_the_right_bytes() {
    conformance::many_calls_in_flight(&service());
}

#[test]
fn deaths_and_mismatches_are_reported_to_ranks() {
    conformance::deaths_and_disagreements(&service());
}

#[test]
fn a_buffer_that_is_nowhere_is_blamed_on_its_rank() {
    conformance::faults_are_blamed_on_their_rank(&service());
}

#[test]
fn ranks_learn_of_the_daemons_death() {
    let mut daemon = Daemon::start(&[]);
    let mut ranks = ranks("daemon-dies", &daemon, 3);
    assert_eq!(ranks[0].line(), "ready");
    expect_line_from_all(&mut ranks[1..], "posted");
    daemon.kill();
    ranks[0].go_on();
    ranks.into_iter().for_each(Rank::finish);
}

fn sleeps(daemon: &Daemon) -> u64 {
    daemon.statistics()["datapath"]["sleeps"].as_u64().expect("a number")
}

#[test]
fn an_idle_daemon_with_ranks_sleeps() {
    let daemon = Daemon::start(&["--poll", "auto"]);
    let mut ranks = ranks("attached", &daemon, 4);
    expect_line_from_all(&mut ranks, "ready");
    let looks = |daemon: &Daemon| daemon.statistics()["datapath"]["looks"]["in_vain"].as_u64().expect("a number");
    let (looked, slept) = (looks(&daemon), sleeps(&daemon));
    // The test measures idleness for this time; it waits for no event.
    std::thread::sleep(std::time::Duration::from_secs(3));
    // A request for statistics ends a sleep.
    let wakes = sleeps(&daemon) - slept;
    assert!((1..30).contains(&wakes), "an idle daemon wakes {wakes} times in three seconds");
    // After each request the daemon may poll for another request.
    assert!(looks(&daemon) < looked + 10, "it looks for what does not come");
    let_go(ranks);
}

#[test]
fn a_daemon_that_always_looks_sleeps_when_the_last_rank_has_gone() {
    let daemon = Daemon::start(&["--poll", "always"]);
    let mut ranks = ranks("attached", &daemon, 2);
    expect_line_from_all(&mut ranks, "ready");
    let before = sleeps(&daemon);
    assert!((0..10).all(|_| sleeps(&daemon) == before), "it sleeps while ranks are attached");
    let_go(ranks);
    // The kernel reports each rank's end to the daemon. After these reports each reply to the test ends a sleep.
    assert!((0..1000).any(|_| sleeps(&daemon) > before), "it never sleeps again");
}

#[test]
fn a_daemon_told_not_to_look_sleeps_at_once() {
    let daemon = Daemon::start(&["--poll", "off"]);
    let_go(ranks("in-flight", &daemon, 3));
    let looks = &daemon.statistics()["datapath"]["looks"];
    assert_eq!(looks, &serde_json::json!({ "found": 0, "in_vain": 0, "given_up": 0 }));
}

#[test]
fn a_second_daemon_at_the_same_socket_is_refused() {
    let daemon = Daemon::start(&[]);
    let second = Command::new(DAEMON).arg("--socket").arg(daemon.socket()).output().expect("it starts");
    assert!(!second.status.success());
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(text.contains(&format!("(process {} of user", daemon.id())), "{text}");
    assert!(daemon.socket().exists(), "the first one's socket stays");
}
