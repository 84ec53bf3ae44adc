//! Sockets at which a daemon listens for its user, at the default path or passed to it, and reasons to refuse such a
//! socket.

use std::fs::Permissions;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::support::{DAEMON, Daemon, Rank, SCENARIO, activated, again, alone_at, listening};

/// A directory that only this user can access.
fn directory_in(parent: &Path) -> tempfile::TempDir {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir_in(parent).expect("a directory")
}

fn directory() -> tempfile::TempDir {
    directory_in(&std::env::temp_dir())
}

/// A daemon without `--socket`, in a session of the user with this runtime directory.
fn at_home(runtime: &Path) -> Command {
    let mut command = Command::new(DAEMON);
    command.env("XDG_RUNTIME_DIR", runtime).env_remove("OUTBOARD_SOCKET");
    command
}

/// Starts a daemon that must fail; returns its error.
fn refused(command: &mut Command) -> String {
    let ended = command.output().expect("it starts");
    let said = String::from_utf8(ended.stderr).expect("text");
    assert!(!ended.status.success(), "{said}");
    let mut sentences = said.lines().filter(|line| line.starts_with("outboardd: "));
    let sentence = sentences.next().unwrap_or_else(|| panic!("no sentence: {said}")).to_owned();
    assert_eq!(sentences.next(), None);
    sentence
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).expect("there").next().is_none()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("there").permissions().mode() & 0o777
}

#[test]
fn ranks_find_the_daemon_in_the_runtime_directory_of_any_file_system() {
    for runtime in [directory(), directory_in(Path::new("/dev/shm"))] {
        let mut command = at_home(runtime.path());
        let mut daemon =
            command.args(["--ready-fd", "1", "--log", "warn"]).stdout(Stdio::piped()).spawn().expect("it starts");
        daemon.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("it is ready");
        let home = runtime.path().join("outboard");
        assert_eq!((mode(&home), mode(&home.join("outboardd.sock"))), (0o700, 0o600));
        let mut rank = again();
        rank.env("XDG_RUNTIME_DIR", runtime.path()).env_remove("OUTBOARD_SOCKET").env("OUTBOARD_DAEMON", "off");
        let mut rank = Rank::spawn(rank.env(SCENARIO, "alone"));
        assert_eq!(rank.line(), "ready");
        rank.let_go();
        let twice = refused(&mut at_home(runtime.path()));
        assert!(twice.contains(&format!("outboardd (process {} of user", daemon.id())), "{twice}");
        rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), rustix::process::Signal::TERM)
            .expect("it lives");
        assert!(daemon.wait().expect("ours").success());
        assert!(is_empty(&home));
    }
}

#[test]
fn a_runtime_directory_that_is_not_the_user_s_alone_is_refused() {
    let runtime = directory();
    std::fs::set_permissions(runtime.path(), Permissions::from_mode(0o755)).expect("ours");
    let wide = refused(&mut at_home(runtime.path()));
    assert!(wide.contains("has mode 755") && wide.contains("XDG_RUNTIME_DIR") && wide.contains("--socket"), "{wide}");
    assert!(is_empty(runtime.path()));
    let missing = refused(&mut at_home(&runtime.path().join("none")));
    assert!(missing.contains("cannot use the directory"), "{missing}");
    std::fs::set_permissions(runtime.path(), Permissions::from_mode(0o700)).expect("ours");
    let within = runtime.path().join("outboard");
    std::fs::write(&within, "").expect("fresh");
    let file = refused(&mut at_home(runtime.path()));
    assert!(file.contains("is no directory"), "{file}");
    std::fs::remove_file(&within).expect("there");
    std::fs::create_dir(&within).expect("fresh");
    std::fs::set_permissions(&within, Permissions::from_mode(0o770)).expect("ours");
    let wide = refused(&mut at_home(runtime.path()));
    assert!(wide.contains("outboard has mode 770"), "{wide}");
    // Only root can change a directory's owner.
    if std::os::unix::fs::chown(runtime.path(), Some(12_345), None).is_ok() {
        let theirs = refused(&mut at_home(runtime.path()));
        assert!(theirs.contains("belongs to user 12345"), "{theirs}");
    }
}

#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn without_a_session_the_daemon_says_what_to_set() {
    let place = directory();
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o755)).expect("ours");
    let program = place.path().join("outboardd");
    std::fs::copy(DAEMON, &program).expect("room");
    for runtime in [None, Some("relative/path")] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "12345", "--regid", "12345", "--clear-groups"]).arg(&program);
        command.env_remove("XDG_RUNTIME_DIR").env_remove("OUTBOARD_SOCKET");
        runtime.map(|runtime| command.env("XDG_RUNTIME_DIR", runtime));
        let why = refused(&mut command);
        assert!(why.contains("/run/user/12345") && why.contains("set XDG_RUNTIME_DIR"), "{why}");
    }
}

#[test]
fn a_path_that_is_no_socket_s_is_refused_and_a_stale_socket_replaced() {
    let place = directory();
    let at = |path: &Path| {
        let mut command = Command::new(DAEMON);
        command.arg("--socket").arg(path);
        command
    };
    let long = refused(&mut at(&place.path().join("s".repeat(120))));
    assert!(long.contains("too long"), "{long}");
    let list = refused(&mut at(Path::new("/a:/b")));
    assert!(list.contains("`/a:/b` names several sockets"), "{list}");
    let nowhere = refused(&mut at(&place.path().join("no/such/socket")));
    assert!(nowhere.contains("give a path in a directory that exists"), "{nowhere}");
    assert!(is_empty(place.path()));
    let mut daemon = Daemon::start(&[]);
    daemon.kill();
    assert!(daemon.socket().exists(), "nobody has removed it");
    daemon.restart();
    alone_at(&daemon.socket()).let_go();
}

fn bound(path: &Path, kind: SocketType) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, kind, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).expect("short")).expect("free");
    socket
}

/// A rank that connected before the daemon started is served, and the service manager's socket remains.
#[test]
fn a_passed_socket_is_served_and_stays() {
    let place = directory();
    let path = place.path().join("passed");
    let socket = listening(&path);
    let early = || Rank::spawn(again().env(SCENARIO, "alone").env("OUTBOARD_SOCKET", &path));
    for _ in 0..2 {
        let mut rank = early();
        let mut command = activated(socket.try_clone().expect("descriptors"));
        command.arg(DAEMON);
        let mut daemon = Daemon::start_by(command, &[]);
        assert_eq!(rank.line(), "ready");
        assert_eq!(daemon.statistics()["ranks"], 1);
        rank.let_go();
        daemon.request_stop();
        assert!(daemon.wait().success());
        assert!(!daemon.socket().exists(), "it has made none");
        assert!(path.exists());
    }
}

#[test]
fn a_passed_descriptor_that_is_no_socket_for_ranks_is_refused() {
    let place = directory();
    let deaf = bound(&place.path().join("deaf"), SocketType::SEQPACKET);
    let stream = bound(&place.path().join("stream"), SocketType::STREAM);
    rustix::net::listen(&stream, 8).expect("bound");
    let file = std::fs::File::open("/dev/null").expect("there").into();
    for wrong in [deaf, stream, file] {
        let why = refused(activated(wrong).arg(DAEMON));
        assert!(why.contains("ListenSequentialPacket="), "{why}");
    }
    let mut closed = Command::new("/bin/sh");
    closed.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" 3<&-", DAEMON]);
    let why = refused(&mut closed);
    assert!(why.contains("service manager"), "{why}");
    let mut several = Command::new("/bin/sh");
    several.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" 3</dev/null 4</dev/null", DAEMON]);
    let why = refused(&mut several);
    assert!(why.contains("passes 2 descriptors"), "{why}");
}

/// The daemon ignores descriptors that were passed to another process.
#[test]
fn descriptors_passed_to_another_process_are_left_alone() {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "LISTEN_PID=1 LISTEN_FDS=3 LISTEN_FDNAMES=a:b:c exec \"$0\" \"$@\"", DAEMON]);
    drop(Daemon::start_by(command, &[]));
}
