//! Other users at a daemon: they get no further than a refusal. Root only; skipped with a printed reason for others.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{AGAIN, Daemon, Rank, SCENARIO};

const NOBODY: &str = "65534";

fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").expect("there").uid() == 0;
    if !root {
        eprintln!("skipped: only root may start ranks as another user");
    }
    root
}

/// A daemon whose socket somebody has opened to all, and a copy of this program beside the socket.
fn open_daemon(flags: &[&str]) -> (Daemon, PathBuf) {
    let daemon = Daemon::start(flags);
    let directory = daemon.socket().parent().expect("a directory").to_owned();
    for (path, mode) in [(&directory, 0o755), (&daemon.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    }
    let program = directory.join("ranks");
    std::fs::copy(std::env::current_exe().expect("a path"), &program).expect("room");
    (daemon, program)
}

/// A rank of another user.
fn of_nobody(scenario: &str, daemon: &Daemon, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program);
    command.args(AGAIN);
    command.env(SCENARIO, scenario).env("OUTBOARD_SOCKET", daemon.socket());
    command
}

#[test]
fn another_user_is_refused_although_the_socket_is_open() {
    if !is_root() {
        return;
    }
    let (daemon, program) = open_daemon(&[]);
    let mut rank = Rank::spawn(&mut of_nobody("refused", &daemon, &program));
    let why = rank.line();
    assert!(why.contains("serves user 0 alone") && why.contains("start one as user 65534"), "{why}");
    rank.finish();
    assert_eq!(daemon.statistics()["ranks"], 0);
}
