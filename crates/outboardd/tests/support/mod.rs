//! Daemons and ranks as separate processes, for the tests of this crate.
//!
//! A rank is a process of this test program, started with the scenario in the environment. A rank reports by lines that
//! start with `@`, and continues when it receives a line. No process outlives its handle.

#![allow(dead_code, reason = "the two test programs use their parts")]

pub(crate) mod cluster;
pub(crate) mod conformance;
pub(crate) mod exchanges;
pub(crate) mod forger;
mod life;
pub(crate) mod offloaded;
mod program_memory;
mod rank_copies;
pub(crate) mod recorded;
mod reductions;
pub(crate) mod refusable;
mod rooted;
pub(crate) mod scenarios;
mod survivors;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use outboard::bootstrap::tcp_server::{JobToken, TOKEN_VARIABLE};
use outboard::{Context, Group};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Environment variable with the name of a rank's scenario; see [`scenarios`].
pub(crate) const SCENARIO: &str = "OUTBOARD_TEST_SCENARIO";

/// A command that runs only the test `another_process` of this program. The environment must name the scenario.
pub(crate) fn again() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(AGAIN);
    command
}

/// Arguments by which a test program runs only the test `another_process`.
pub(crate) const AGAIN: [&str; 5] = ["--exact", "another_process", "--nocapture", "--test-threads", "1"];

/// Copies a program to `directory`, because root's directories may be closed to other users. Returns a command that
/// runs the copy as `user` without privileges.
pub(crate) fn as_user(user: &str, program: &Path, directory: &Path) -> Command {
    let copy = directory.join(program.file_name().expect("a program"));
    std::fs::copy(program, &copy).expect("room");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs"]);
    for set in ["--bounding-set", "--inh-caps", "--ambient-caps"] {
        command.args([set, "-all"]);
    }
    command.arg(copy);
    command
}

/// Makes a socket that listens for ranks, as a service manager does.
pub(crate) fn listening(path: &Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).expect("short")).expect("free");
    rustix::net::listen(&socket, 8).expect("bound");
    socket
}

/// Passes a descriptor to a program as a service manager does. The first argument added to the command must be the
/// program.
pub(crate) fn activated(passed: impl Into<Stdio>) -> Command {
    let mut command = Command::new("/bin/sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=a exec \"$0\" \"$@\" 3<&0 0</dev/null";
    command.args(["-c", script]).stdin(passed);
    command
}

/// Runs the scenario in the environment, as a rank or daemon of a test. Returns false if the environment names none.
pub(crate) fn run_scenario() -> bool {
    std::env::var(SCENARIO).inspect(|scenario| scenarios::run(scenario)).is_ok()
}

/// The secret that the ranks of tests share.
pub(crate) const SECRET: &str = "known to tests alone";

pub(crate) const DAEMON: &str = env!("CARGO_BIN_EXE_outboardd");

/// A running `outboardd` in its own directory.
pub(crate) struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
    /// Pipes to and from a daemon that accepts orders of the test ([`refusable`]).
    orders: Option<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Daemon {
    /// Starts a daemon and waits until ranks may attach.
    pub(crate) fn start(flags: &[&str]) -> Daemon {
        Daemon::start_by(Command::new(DAEMON), flags)
    }

    /// Starts a daemon by `command`, whose last word so far is the path of the daemon, and waits until ranks may
    /// attach.
    pub(crate) fn start_by(command: Command, flags: &[&str]) -> Daemon {
        Daemon::start_in(tempfile::tempdir().expect("a directory"), command, flags)
    }

    /// Starts a daemon by `command`, with its sockets in `directory`, and waits until ranks may attach.
    pub(crate) fn start_in(directory: tempfile::TempDir, mut command: Command, flags: &[&str]) -> Daemon {
        let mut child = command
            .arg("--socket")
            .arg(directory.path().join("socket"))
            .arg("--stats")
            .arg(directory.path().join("stats"))
            .args(if flags.contains(&"--log") { &[][..] } else { &["--log", "warn"] })
            .args(["--ready-fd", "1"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let mut byte = [0];
        let mut output = child.stdout.take().expect("piped");
        output.read_exact(&mut byte).expect("the daemon says that it is ready");
        Daemon { child, directory, orders: None }
    }

    /// Starts a daemon for which the test can make the kernel refuse system calls ([`refusable`]). The command must
    /// start this test program, which then runs the scenario in the environment.
    pub(crate) fn start_refusable(mut command: Command, flags: &[&str]) -> Daemon {
        let directory = tempfile::tempdir().expect("a directory");
        let mut child = command
            .env(SCENARIO, refusable::NAME)
            .env(refusable::FLAGS, flags.join(" "))
            .env("OUTBOARD_SOCKET", directory.path().join("socket"))
            .env("OUTBOARD_STATS", directory.path().join("stats"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let orders = (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
        let mut daemon = Daemon { child, directory, orders: Some(orders) };
        assert_eq!(daemon.answer(), "ready");
        daemon
    }

    fn answer(&mut self) -> String {
        next_line(&mut self.orders.as_mut().expect("it takes orders").1)
    }

    /// Makes the kernel refuse these system calls to the daemon with this error. The daemon must accept orders.
    pub(crate) fn refuse(&mut self, calls: refusable::Calls, errno: i32) {
        let (input, _) = self.orders.as_mut().expect("it takes orders");
        writeln!(input, "{calls:?} {errno}").expect("it waits");
        assert_eq!(self.answer(), "refused");
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub(crate) fn statistics(&self) -> serde_json::Value {
        let stream = UnixStream::connect(self.directory.path().join("stats")).expect("the statistics socket");
        serde_json::from_reader(stream).expect("JSON")
    }

    pub(crate) fn await_statistics(&self, holds: impl Fn(&serde_json::Value) -> bool) {
        let deadline = Instant::now() + scenarios::LIMIT;
        loop {
            let statistics = self.statistics();
            if holds(&statistics) {
                return;
            }
            assert!(Instant::now() < deadline, "still {statistics}");
            std::thread::yield_now();
        }
    }

    /// Processor time of all threads of the daemon, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let statistics = self.statistics();
        ["cpu_user_s", "cpu_system_s"].iter().map(|name| statistics[name].as_f64().expect("a number")).sum()
    }

    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it lives").count()
    }

    /// Waits until the daemon has at most `most` descriptors. Its threads close descriptors of ranks in the background.
    pub(crate) fn await_descriptors(&self, most: usize) {
        let deadline = Instant::now() + scenarios::LIMIT;
        while self.descriptors() > most {
            assert!(Instant::now() < deadline, "{} descriptors are open, {most} were", self.descriptors());
            std::thread::yield_now();
        }
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it was ours");
    }

    /// Orders the daemon to end in good order.
    pub(crate) fn request_stop(&self) {
        // No code has waited for the child, so its process number is not reused.
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it lives");
    }

    pub(crate) fn ends_within(&self, limit: Duration) -> bool {
        let process = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).expect("it was ours");
        let limit = Timespec::try_from(limit).expect("short");
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)).expect("poll") > 0
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it was ours")
    }

    /// Starts another daemon at the sockets of the first daemon, which must have ended.
    pub(crate) fn restart(&mut self) {
        let mut child = Command::new(DAEMON)
            .args(["--log", "warn", "--ready-fd", "1", "--socket"])
            .arg(self.socket())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        child.stdout.take().expect("piped").read_exact(&mut [0]).expect("the daemon says that it is ready");
        self.child = child;
    }

    /// Ends the daemon in good order; returns its exit status.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.request_stop();
        self.wait()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.stop();
        }
    }
}

/// Reads the next line that starts with `@`; returns the line without the `@`.
fn next_line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    while output.read_line(&mut line).expect("it writes text") > 0 {
        // The test harness may have written to this line before the `@`.
        if let Some(at) = line.find('@') {
            return line[at + 1..].trim_end().to_owned();
        }
        line.clear();
    }
    panic!("it ended without saying more");
}

pub(crate) struct Rank {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    /// Starts a rank; the environment of `command` names the scenario.
    pub(crate) fn spawn(command: &mut Command) -> Rank {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.expect("this program starts again");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Rank { child, input, output }
    }

    /// Reads the rank's next line that starts with `@`; returns the line without the `@`.
    pub(crate) fn line(&mut self) -> String {
        next_line(&mut self.output)
    }

    pub(crate) fn go_on(&mut self) {
        writeln!(self.input).expect("it waits");
    }

    /// Lets the rank continue, and waits until it has ended successfully.
    pub(crate) fn let_go(mut self) {
        self.go_on();
        self.finish();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it was ours");
    }

    /// Waits until the rank has ended, which must be a success.
    pub(crate) fn finish(mut self) {
        drop(self.input);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        let status = self.child.wait().expect("it was ours");
        assert!(status.success(), "a rank ended with {status}: {rest}");
    }
}

/// Starts a rank of this scenario at the socket `socket`.
pub(crate) fn rank_at(socket: &Path, scenario: &str) -> Rank {
    Rank::spawn(again().env(SCENARIO, scenario).env("OUTBOARD_SOCKET", socket))
}

/// Starts a rank that has attached at `socket`. When the rank continues, it makes a group on its own.
pub(crate) fn alone_at(socket: &Path) -> Rank {
    let mut rank = rank_at(socket, "alone");
    assert_eq!(rank.line(), "ready");
    rank
}

/// Returns the last line of a rank, and waits for the rank's successful end.
pub(crate) fn last_words(mut rank: Rank) -> String {
    let said = rank.line();
    rank.finish();
    said
}

/// Checks that the next line of each rank is `what`.
pub(crate) fn expect_line_from_all(ranks: &mut [Rank], what: &str) {
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), what));
}

/// Lets all ranks continue, and waits until they have ended successfully.
pub(crate) fn let_go(mut ranks: Vec<Rank>) {
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.into_iter().for_each(Rank::finish);
}

/// Kills the last rank after the others have called. The others end successfully if they get the error.
pub(crate) fn kill_the_last(mut ranks: Vec<Rank>) {
    let mut last = ranks.pop().expect("several");
    assert_eq!(last.line(), "ready");
    expect_line_from_all(&mut ranks, "posted");
    last.kill();
    ranks.into_iter().for_each(Rank::finish);
}

/// Starts ranks of `scenario`. Rank `i` is started by `command(i)` and attaches to `daemons[i]`; the ranks meet at
/// `rendezvous`.
pub(crate) fn start_ranks(
    scenario: &str,
    daemons: &[&Daemon],
    rendezvous: &str,
    command: impl Fn(usize) -> Command,
) -> Vec<Rank> {
    let ranks = daemons.len();
    (0..ranks)
        .map(|rank| {
            Rank::spawn(
                command(rank)
                    .env(SCENARIO, scenario)
                    .env("OUTBOARD_SOCKET", daemons[rank].socket())
                    .env("OUTBOARD_RENDEZVOUS", rendezvous)
                    .env(TOKEN_VARIABLE, SECRET)
                    .env("OUTBOARD_RANK", rank.to_string())
                    .env("OUTBOARD_WORLD_SIZE", ranks.to_string()),
            )
        })
        .collect()
}

/// Starts `ranks` ranks of `scenario` at `daemon`; the ranks meet at a rendezvous in this process.
pub(crate) fn ranks(scenario: &str, daemon: &Daemon, ranks: usize) -> Vec<Rank> {
    ranks_by(again, scenario, daemon, ranks)
}

/// Starts ranks as [`ranks`] does, but by `command`.
pub(crate) fn ranks_by(command: impl Fn() -> Command, scenario: &str, daemon: &Daemon, ranks: usize) -> Vec<Rank> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let started = start_ranks(scenario, &vec![daemon; ranks], &address, |_| command());
    serve_rendezvous(&listener, ranks);
    started
}

/// Makes a group of `ranks` ranks in this process; returns the group's handle of each rank.
pub(crate) fn group(daemon: &Daemon, ranks: u32) -> Vec<Group> {
    group_at(Some(&daemon.socket()), ranks)
}

/// Makes a group as [`group`] does, at the socket `socket` or the socket in the environment.
pub(crate) fn group_at(socket: Option<&Path>, ranks: u32) -> Vec<Group> {
    let contexts: Vec<_> = (0..ranks).map(|_| Context::attach(socket).expect("room")).collect();
    make_group(&contexts)
}

pub(crate) fn make_group(contexts: &[Context]) -> Vec<Group> {
    let offers: Vec<u8> = contexts.iter().flat_map(|context| *context.offer().expect("an offer")).collect();
    let (offers, ranks) = (&offers[..], contexts.len() as u32);
    std::thread::scope(|scope| {
        let make = |(context, rank): (&Context, u32)| context.create_group(offers, ranks, rank).expect("it is made");
        let makers: Vec<_> = contexts.iter().zip(0..).map(|member| scope.spawn(move || make(member))).collect();
        makers.into_iter().map(|maker| maker.join().expect("no panic")).collect()
    })
}

pub(crate) fn serve_rendezvous(listener: &TcpListener, ranks: usize) {
    let deadline = Instant::now() + scenarios::LIMIT;
    let token = JobToken::new(SECRET.as_bytes(), "");
    outboard::bootstrap::tcp_server::serve(listener, ranks as u32, &token, deadline).expect("all ranks met");
}
