//! Other users at the socket of a daemon or relay: they get a refusal and nothing else.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{AGAIN, DAEMON, Daemon, Rank, SCENARIO, alone_at, as_user, last_words, rank_at};

const OTHER: &str = "12345";

/// Lets all users open the socket of a daemon; returns the socket's directory.
pub(super) fn open_to_all(daemon: &Daemon) -> PathBuf {
    let directory = daemon.socket().parent().expect("a directory").to_owned();
    for (path, mode) in [(&directory, 0o755), (&daemon.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    }
    directory
}

/// Starts a rank of another user, who may open the socket.
fn of_another_user(scenario: &str, daemon: &Daemon) -> Rank {
    let mut command = as_user(OTHER, &std::env::current_exe().expect("a path"), &open_to_all(daemon));
    Rank::spawn(command.args(AGAIN).env(SCENARIO, scenario).env("OUTBOARD_SOCKET", daemon.socket()))
}

#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn another_user_is_refused_and_the_daemon_s_own_is_served() {
    let dock = format!("127.0.0.1:{}", outboard_lab::free_port().expect("a port"));
    let daemon = Daemon::start(&["--dock", &dock, "--log", "error"]);
    let relay = Daemon::start(&["--relay", &dock, "--log", "error"]);
    for served in [&daemon, &relay] {
        let why = last_words(of_another_user("other-user", served));
        assert!(why.contains("user 12345 may not attach") && why.contains("serves user 0 alone"), "{why}");
        assert!(why.contains("systemctl --user start outboardd.socket"), "{why}");
        let why = last_words(of_another_user("refused", served));
        assert!(why.contains("user 0 listens there"), "the library gives nothing away: {why}");
        alone_at(&served.socket()).let_go();
    }
}

#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn a_socket_that_is_closed_to_a_user_is_named_with_its_owner() {
    let daemon = Daemon::start(&["--log", "error"]);
    let open = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let mut command = as_user(OTHER, &std::env::current_exe().expect("a path"), open.path());
    let rank = Rank::spawn(command.args(AGAIN).env(SCENARIO, "refused").env("OUTBOARD_SOCKET", daemon.socket()));
    let why = last_words(rank);
    let socket = daemon.socket();
    assert!(why.starts_with(&format!("user 12345 may not attach at {} on host ", socket.display())), "{why}");
    assert!(why.contains("belongs to user 0 (Permission denied"), "{why}");
}

#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn root_is_refused_by_the_daemon_of_another_user() {
    let mut command = Command::new("setpriv");
    // This capability gives the daemon access to root's directory.
    let more = ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"];
    command.args(["--reuid", OTHER, "--regid", OTHER, "--clear-groups"]).args(more).arg(DAEMON);
    let daemon = Daemon::start_by(command, &["--log", "error"]);
    let stranger = rank_at(&daemon.socket(), "other-user");
    let why = last_words(stranger);
    assert!(why.contains("user 0 may not attach") && why.contains("serves user 12345 alone"), "{why}");
}

/// The kernel maps users unknown to a namespace to one number, which may be the daemon's own.
#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn a_user_unknown_to_the_daemon_s_namespace_is_refused() {
    for map in [&[][..], &["--map-root-user"]] {
        let mut command = Command::new("unshare");
        command.arg("--user").args(map).arg(DAEMON);
        let daemon = Daemon::start_by(command, &["--log", "error"]);
        let why = last_words(of_another_user("other-user", &daemon));
        assert!(why.contains("user 65534 may not attach"), "{map:?}: {why}");
    }
}
