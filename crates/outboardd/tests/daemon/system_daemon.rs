//! The daemon as `packaging/systemd/outboardd.service` starts it, as far as that can be shown without systemd.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use crate::support::{DAEMON, Daemon};

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
