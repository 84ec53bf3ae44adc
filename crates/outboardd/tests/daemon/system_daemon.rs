//! The daemon as `packaging/systemd/outboardd.service` starts it, as far as that can be shown without systemd.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::{AGAIN, DAEMON, Daemon, Rank, SCENARIO};

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

/// SP-4: no privilege is needed to reach the memory of the user's ranks. Skipped with a printed reason for those who are
/// not root.
#[test]
fn a_daemon_without_a_capability_reaches_its_user_s_ranks() {
    if std::fs::metadata("/proc/self").expect("there").uid() != 0 {
        eprintln!("skipped: only root may start the daemon as another user");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::chown(directory.path(), Some(12_345), Some(12_345)).expect("root may");
    // They need not find their programs by themselves, as root's directories may be closed to them.
    let unprivileged = |program: &Path, name: &str| {
        let copy = directory.path().join(name);
        std::fs::copy(program, &copy).expect("room");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "12345", "--regid", "12345", "--clear-groups", "--no-new-privs"]);
        for set in ["--bounding-set", "--inh-caps", "--ambient-caps"] {
            command.args([set, "-all"]);
        }
        command.arg(copy);
        command
    };
    let (socket, stats) = (directory.path().join("socket"), directory.path().join("stats"));
    let mut child = unprivileged(Path::new(DAEMON), "outboardd")
        .args(["--die-with-parent", "--ready-fd", "1", "--log", "warn", "--socket"])
        .arg(&socket)
        .arg("--stats")
        .arg(&stats)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("setpriv, of util-linux");
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut byte).expect("it is ready");
    let mut rank = unprivileged(&std::env::current_exe().expect("a path"), "ranks");
    let mut rank = Rank::spawn(rank.args(AGAIN).env(SCENARIO, "alone").env("OUTBOARD_SOCKET", &socket));
    assert_eq!(rank.line(), "ready");
    let said: serde_json::Value =
        serde_json::from_reader(UnixStream::connect(&stats).expect("it listens")).expect("JSON");
    assert_eq!(said["memory_tiers"]["cross_memory_attach"], 1, "{said}");
    rank.go_on();
    rank.finish();
    child.kill().expect("it lives");
    child.wait().expect("ours");
}
