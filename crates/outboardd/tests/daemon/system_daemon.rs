//! The daemon as `packaging/systemd/outboardd.service` starts it, as far as that can be shown without systemd.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use crate::support::{DAEMON, Daemon, Rank, SCENARIO, again};

#[test]
fn systemd_hears_when_ranks_may_attach() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("notify");
    let notified = UnixDatagram::bind(&path).expect("fresh");
    notified.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let mut command = Command::new(DAEMON);
    command.env("NOTIFY_SOCKET", &path);
    let daemon = Daemon::start_by(command, &["--socket-mode", "660"]);
    let mut message = [0; 64];
    let bytes = notified.recv(&mut message).expect("a message");
    assert_eq!(String::from_utf8_lossy(&message[..bytes]).trim(), "READY=1");
    let mode = std::fs::metadata(daemon.socket()).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

/// SP-4: no privilege is needed to reach the memory of another user's rank, where that is asked for. Skipped with a
/// printed reason for those who are not root.
#[test]
fn a_daemon_of_another_user_reaches_ranks_without_a_capability() {
    let own = std::fs::metadata("/proc/self").expect("there").uid();
    if own != 0 {
        eprintln!("skipped: only root may start the daemon as another user");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::chown(directory.path(), Some(65_534), Some(65_534)).expect("root may");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
    for set in ["--bounding-set", "--inh-caps", "--ambient-caps"] {
        command.args([set, "-all"]);
    }
    // It need not find its program by itself, as root's directories may be closed to it.
    let program = directory.path().join("outboardd");
    std::fs::copy(DAEMON, &program).expect("room");
    let socket = directory.path().join("socket");
    let mut child = command
        .arg(&program)
        .args(["--die-with-parent", "--socket-mode", "660", "--ready-fd", "1", "--log", "warn"])
        .args(["--reach", "any-user", "--socket"])
        .arg(&socket)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("setpriv, of util-linux");
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut byte).expect("it is ready");
    let tier = outboard::Context::attach(Some(&socket)).expect("it answers").memory_tier();
    assert_eq!(tier, outboard::Tier::MemoryDescriptor);
    let mut rank = Rank::spawn(again().env(SCENARIO, "alone").env("OUTBOARD_SOCKET", &socket));
    assert_eq!(rank.line(), "ready");
    rank.go_on();
    rank.finish();
    child.kill().expect("it lives");
    child.wait().expect("ours");
}
