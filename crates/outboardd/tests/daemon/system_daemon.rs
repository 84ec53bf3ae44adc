//! The daemon as `packaging/systemd/outboardd.service` starts it, as far as can be tested without systemd.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::{AGAIN, DAEMON, Daemon, Rank, SCENARIO, as_user};

#[test]
fn systemd_hears_when_ranks_may_attach() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("notify");
    let notified = UnixDatagram::bind(&path).expect("fresh");
    notified.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let mut command = Command::new(DAEMON);
    command.env("NOTIFY_SOCKET", &path);
    let daemon = Daemon::start_by(command, &[]);
    let mut message = [0; 64];
    let bytes = notified.recv(&mut message).expect("a message");
    assert_eq!(String::from_utf8_lossy(&message[..bytes]).trim(), "READY=1");
    let mode = std::fs::metadata(daemon.socket()).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// SP-4: the daemon needs no privilege to reach its user's ranks.
#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn a_daemon_without_a_capability_reaches_its_user_s_ranks() {
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::chown(directory.path(), Some(12_345), Some(12_345)).expect("root may");
    let unprivileged = |program: &Path| as_user("12345", program, directory.path());
    let mut rank = unprivileged(&std::env::current_exe().expect("a path"));
    let daemon = unprivileged(Path::new(DAEMON));
    let daemon = Daemon::start_in(directory, daemon, &["--die-with-parent"]);
    let mut rank = Rank::spawn(rank.args(AGAIN).env(SCENARIO, "alone").env("OUTBOARD_SOCKET", daemon.socket()));
    assert_eq!(rank.line(), "ready");
    let said = daemon.statistics();
    assert_eq!(said["memory_tiers"]["cross_memory_attach"], 1, "{said}");
    rank.let_go();
}
