//! Daemons that are ordered to end, daemons whose log is not read, and ranks that outlive their daemon.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use outboard::{Context, Status};
use outboard_service::NamedSocket;
use outboard_shm::attach::{ATTACH_VERSION, AttachChannel};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::SocketType;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::support::scenarios::LIMIT;
use crate::support::{DAEMON, Daemon, conformance, expect_line_from_all, let_go, rank_at, ranks};

#[test]
fn a_rank_attaches_again_when_its_daemon_is_back() {
    let mut daemon = Daemon::start(&[]);
    let mut rank = rank_at(&daemon.socket(), "reattaches");
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

/// Tests the message of the library. `hostile.rs` tests the daemon's message to a library of another release.
#[test]
fn a_daemon_of_another_version_is_told_with_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let listener = NamedSocket::listen(&socket, SocketType::SEQPACKET).expect("free");
    let theirs = ATTACH_VERSION + 1;
    let daemon = std::thread::spawn(move || {
        let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
        rustix::event::poll(&mut waiting, None).expect("a rank comes");
        let channel = AttachChannel::from(listener.accept().expect("descriptors").expect("it waits"));
        assert!(channel.wait(LIMIT).expect("poll"), "no greeting");
        // In messages of every release the magic number and the version come first.
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

/// A full pipe: its two ends, and the number of bytes that it holds.
fn full_pipe() -> (File, OwnedFd, usize) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("descriptors");
    let flags = fcntl_getfl(&writer).expect("open");
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("open");
    let mut writer = File::from(writer);
    let mut bytes = 0;
    for size in [4096, 1] {
        while writer.write(&[b'.'; 4096][..size]).inspect(|written| bytes += written).is_ok() {}
    }
    fcntl_setfl(&writer, flags).expect("open");
    (reader.into(), writer.into(), bytes)
}

fn with_stderr(stderr: OwnedFd) -> Command {
    let mut command = Command::new(DAEMON);
    command.stderr(stderr);
    command
}

#[test]
fn a_daemon_whose_log_nobody_reads_serves_and_ends_when_told_to() {
    let (_unread, writer, _) = full_pipe();
    let mut daemon = Daemon::start_by(with_stderr(writer), &["--log", "trace"]);
    let_go(ranks("in-flight", &daemon, 3));
    let status = daemon.stop();
    assert!(status.success(), "{status}");
}

#[test]
fn a_log_that_is_read_late_has_all_lines_that_the_queue_had_room_for() {
    let (mut log, writer, before) = full_pipe();
    let mut daemon = Daemon::start_by(with_stderr(writer), &["--log", "info"]);
    let_go(ranks("in-flight", &daemon, 2));
    assert_eq!(daemon.statistics()["log_lines_lost"], 0);
    log.read_exact(&mut vec![0; before]).expect("what filled it");
    let status = daemon.stop();
    assert!(status.success(), "{status}");
    let mut text = String::new();
    log.read_to_string(&mut text).expect("text");
    for words in ["serving", "a rank attached", "told to end"] {
        assert!(text.contains(words), "{words} is missing: {text}");
    }
}

/// The process of the daemon at a statistics socket.
fn pid_at(statistics: &Path) -> Pid {
    let mut answer = String::new();
    UnixStream::connect(statistics).expect("it listens").read_to_string(&mut answer).expect("text");
    let statistics: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    let pid = statistics["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a number");
    Pid::from_raw(pid).expect("a process")
}

/// A shell that reads the output of `outboardd --background` continues when ranks may attach.
#[test]
fn a_background_daemon_lets_go_of_its_starter_s_output_and_keeps_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let start = |name: &str| {
        let path = |end: &str| directory.path().join(format!("{name}{end}"));
        let mut command = Command::new(DAEMON);
        command.args(["--background", "--log", "info", "--socket"]).arg(path("")).arg("--stats").arg(path(".stats"));
        (command, path(".stats"))
    };
    let (mut command, statistics) = start("piped");
    let (ended, output) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(command.output()));
    let output = output.recv_timeout(LIMIT).map(|output| output.expect("it runs"));
    let daemon = pid_at(&statistics);
    kill_process(daemon, Signal::TERM).expect("it lives");
    let output = output.expect("the pipes stay open while the daemon lives");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("serving"), "lines of the start are the starter's");

    let (mut command, statistics) = start("file");
    let log = directory.path().join("log");
    let started = command.stderr(File::create(&log).expect("fresh")).stdout(Stdio::null()).status().expect("it runs");
    assert!(started.success(), "{started}");
    let daemon = pid_at(&statistics);
    let handle = pidfd_open(daemon, PidfdFlags::empty()).expect("it lives");
    kill_process(daemon, Signal::TERM).expect("it lives");
    let limit = Timespec::try_from(LIMIT).expect("seconds");
    assert_eq!(rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)), Ok(1));
    let log = std::fs::read_to_string(log).expect("text");
    assert!(log.contains("told to end"), "lines of the end are in the file: {log}");
}

#[test]
fn a_background_daemon_that_cannot_start_says_why() {
    let command = ["--background", "--socket", "/nowhere/socket"];
    let failed = Command::new(DAEMON).args(command).output().expect("it runs");
    assert!(!failed.status.success());
    let text = String::from_utf8(failed.stderr).expect("text");
    assert!(text.contains("/nowhere/socket"), "{text}");
}

#[test]
fn an_unknown_variable_is_named_in_the_log_with_the_nearest() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let mut command = Command::new(DAEMON);
    command.env("OUTBOARD_INTERFCAE", "eth0").stderr(File::create(&log).expect("fresh"));
    let mut daemon = Daemon::start_by(command, &[]);
    assert!(daemon.stop().success());
    let log = std::fs::read_to_string(log).expect("text");
    assert_eq!(log.matches("OUTBOARD_INTERFCAE has no effect").count(), 1, "{log}");
    assert!(log.contains("did you mean OUTBOARD_INTERFACE?"), "{log}");
}

#[test]
fn why_a_daemon_does_not_start_is_the_last_line_of_its_log() {
    let failed =
        Command::new(DAEMON).args(["--socket", "/nowhere/socket", "--log", "trace"]).output().expect("it runs");
    assert!(!failed.status.success());
    let text = String::from_utf8(failed.stderr).expect("text");
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("outboardd: ") && last.contains("/nowhere"), "{text}");
}

/// A time longer than the silence after which a host counts as dead.
const STOPPED: Duration = Duration::from_secs(4);

#[test]
fn a_daemon_that_was_stopped_for_too_long_says_so_once_and_why() {
    let (mut log, writer) = std::io::pipe().expect("descriptors");
    let mut daemon = Daemon::start_by(with_stderr(writer.into()), &["--log", "error", "--poll", "always"]);
    let mut ranks = ranks("attached", &daemon, 1);
    expect_line_from_all(&mut ranks, "ready");
    let pid = Pid::from_raw(daemon.id().cast_signed()).expect("it lives");
    kill_process(pid, Signal::STOP).expect("it lives");
    // The daemon is stopped for this time; the test waits for no event.
    std::thread::sleep(STOPPED);
    kill_process(pid, Signal::CONT).expect("it lives");
    let turns = daemon.statistics()["turns"].take();
    let longest = |name: &str| turns["longest"][name].as_f64().expect("a number") / 1e9;
    assert!(longest("ns") > 3.5 && longest("off_processor_ns") > 3.0, "{turns}");
    let long = &turns["counts"].as_array().expect("counts")[22..];
    assert!(long.iter().any(|count| count.as_u64() > Some(0)), "none of 2 s or more: {turns}");
    let_go(ranks);
    daemon.stop();
    drop(daemon);
    let mut text = String::new();
    log.read_to_string(&mut text).expect("text");
    assert_eq!(text.matches("this service process stalled for").count(), 1, "{text}");
}
