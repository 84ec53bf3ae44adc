//! A system under measurement, and the processes that run during the measurement.
//!
//! Invariant: a [`LoggedProcess`] that is dropped has ended. Programs that launchers start on other hosts end with the
//! cluster at the latest.

use crate::{BenchCall, Layout, Toolchain};
use outboard_lab::Lab;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::time::Timespec;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use thiserror::Error;

/// How long a process may take to end after SIGTERM, before it is killed.
const GRACE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How much of a program's output an error shows.
const OUTPUT_SHOWN: u64 = 4096;

/// A system that can be measured: an MPI library, or one of Outboard's own interfaces.
pub trait System {
    /// Name in the report.
    fn name(&self) -> String;
    /// The algorithm that carries out a call; `auto` where the system does not report it.
    fn algorithm(&self, call: &BenchCall) -> String;
    /// How the measuring program is built for this system.
    fn toolchain(&self) -> Toolchain;
    /// Whether a launch leaves results behind that change the next launch.
    fn learns(&self) -> bool {
        false
    }
    /// Starts the program's ranks on the hosts that [`BenchJob::host_of`] names, and returns at once.
    fn launch(&self, job: &BenchJob<'_>) -> Result<RunningJob, LaunchError>;
}

/// The job to start.
#[derive(Clone, Copy, Debug)]
pub struct BenchJob<'a> {
    /// The cluster.
    pub lab: &'a Lab,
    /// Number of ranks.
    pub ranks: u32,
    /// How the ranks are assigned to hosts.
    pub layout: Layout,
    /// The measuring program, built with the system's toolchain.
    pub program: &'a Path,
    /// The arguments of the program.
    pub arguments: &'a [String],
    /// Service processes and progress threads belong on core 1, ranks on core 0. The program binds itself to core 0.
    pub comm_core: bool,
    /// All calls are blocking, so a progress thread would only take processor time.
    pub blocking: bool,
    /// The program makes one-sided calls, too.
    pub one_sided: bool,
    /// A directory for the outputs of the programs and other files of the launch; removed after the run.
    pub directory: &'a Path,
}

impl BenchJob<'_> {
    /// Number of hosts, each of which has at least one rank.
    pub(crate) fn hosts(&self) -> u32 {
        u32::from(self.lab.spec().hosts()).min(self.ranks)
    }

    /// Whether a host has more than one rank.
    pub(crate) fn share_hosts(&self) -> bool {
        self.ranks > self.hosts()
    }

    /// Whether a library's progress threads have work and a free core to run on.
    pub(crate) fn progress_threads_pay(&self) -> bool {
        !self.blocking && (self.comm_core || !self.share_hosts())
    }

    /// Number (from 1) of the host of a rank.
    pub fn host_of(&self, rank: u32) -> u32 {
        self.layout.host_of(rank, self.ranks, self.hosts())
    }
}

/// The processes of a launch. Dropping it ends them all: ranks first, then services.
#[derive(Debug)]
pub struct RunningJob {
    /// The ranks, or the launcher that represents the ranks. All of these processes must end with success.
    pub ranks: Vec<LoggedProcess>,
    /// Processes that must outlive the ranks, such as `outboardd` on every host.
    pub services: Vec<LoggedProcess>,
    /// Reads the services' counters, if they have any.
    pub stats: Option<Box<dyn ServiceStats>>,
}

/// Reads the counters of a system's service processes.
pub trait ServiceStats: std::fmt::Debug {
    /// Sums over all service processes since they started.
    fn read(&mut self) -> Result<ServiceCounters, LaunchError>;
}

/// Counters of service processes, which only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceCounters {
    /// Processor time in seconds.
    pub cpu_s: f64,
    /// Collectives completed, counted once for each of their ranks.
    pub completed: u64,
    /// Payload bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// Messages that came for ranks that had not called yet (SP-9).
    pub late_arrivals: u64,
    /// Entries that ranks have put into their rings (GP-5).
    pub entries: u64,
    /// Frames between service processes.
    pub frames: u64,
    /// Frames without payload, also counted in `frames`.
    pub control_frames: u64,
}

impl ServiceCounters {
    /// The counters' growth since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, |now, then| now - then, u64::saturating_sub)
    }

    /// The sums of both.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.with(other, |one, other| one + other, |one, other| one + other)
    }

    fn with(&self, other: &Self, seconds: fn(f64, f64) -> f64, whole: fn(u64, u64) -> u64) -> Self {
        Self {
            cpu_s: seconds(self.cpu_s, other.cpu_s),
            completed: whole(self.completed, other.completed),
            retransmitted_bytes: whole(self.retransmitted_bytes, other.retransmitted_bytes),
            late_arrivals: whole(self.late_arrivals, other.late_arrivals),
            entries: whole(self.entries, other.entries),
            frames: whole(self.frames, other.frames),
            control_frames: whole(self.control_frames, other.control_frames),
        }
    }
}

/// A program that could not be started, or counters that could not be read.
#[derive(Debug, Error)]
#[error("{what}: {source}")]
pub struct LaunchError {
    what: String,
    source: Box<dyn Error + Send + Sync>,
}

impl LaunchError {
    /// `what` names the program and the host.
    pub fn new(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { what: what.into(), source: source.into() }
    }
}

/// A running program, its output in a file.
#[derive(Debug)]
pub struct LoggedProcess {
    name: String,
    child: Child,
    pidfd: OwnedFd,
    output: PathBuf,
    /// Whether the harness has seen the program end.
    ended: bool,
}

impl LoggedProcess {
    /// Starts `command` without input and with its output in a file of `directory`. `name` states the program and its
    /// host: "outboardd on h2".
    pub fn start(name: impl Into<String>, mut command: Command, directory: &Path) -> Result<Self, LaunchError> {
        let name = name.into();
        let output = directory.join(format!("{}.log", name.replace(['/', ' '], "-")));
        let mut start = || -> io::Result<(Child, OwnedFd)> {
            let file = File::create(&output)?;
            command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
            let child = command.spawn()?;
            let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
            Ok((child, pidfd))
        };
        match start() {
            Ok((child, pidfd)) => Ok(Self { name, child, pidfd, output, ended: false }),
            Err(source) => Err(LaunchError::new(name, source)),
        }
    }

    /// The program and its host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id in the harness's PID namespace; the host's namespace has another id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.ended = true;
        Ok(status)
    }

    /// The file that holds the output.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// Readable when the process has ended.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// How the process ended, if it has.
    pub(crate) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        self.ended = status.is_some();
        Ok(status)
    }

    /// Whether [`Self::status`] has seen the end.
    pub(crate) fn was_seen_to_end(&self) -> bool {
        self.ended
    }

    /// The last part of the program's output.
    pub fn output_end(&self) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&self.output)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_SHOWN)))?;
            let mut bytes = Vec::new();
            file.take(OUTPUT_SHOWN).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) => format!("({} cannot be read: {error})", self.output.display()),
        }
    }

    /// Waits for the end, at most for `limit`; true if the process has ended.
    fn await_end(&self, limit: &Timespec) -> bool {
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(limit))) == Ok(1)
    }
}

impl Drop for LoggedProcess {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // A process that has ended meanwhile needs no signal.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::TERM);
        if !self.await_end(&GRACE) {
            tracing::warn!(process = self.name, "does not end when asked, is killed");
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Runs a tool without input; its output is the error when it fails or takes longer than `limit`.
pub(crate) fn run_tool(command: Command, limit: &Timespec) -> Result<(), String> {
    let line = format!("{command:?}");
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut process =
        LoggedProcess::start("tool", command, directory.path()).map_err(|error| format!("{line}: {error}"))?;
    let how = if process.await_end(limit) {
        match process.status() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(status) => status.map_or_else(String::new, |status| status.to_string()),
            Err(error) => error.to_string(),
        }
    } else {
        format!("not done after {} s", limit.tv_sec)
    };
    Err(format!("{line}: {how}: {}", process.output_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, directory: &Path) -> LoggedProcess {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        LoggedProcess::start("shell on h1", command, directory).unwrap()
    }

    #[test]
    fn a_dropped_process_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let process = shell("exec sleep 1000", directory.path());
        let id = process.id();
        drop(process);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn output_is_kept_for_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = shell("echo on stdout; echo on stderr >&2; exit 3", directory.path());
        let mut ended = [PollFd::from_borrowed_fd(process.ended_fd(), PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut ended, Some(&GRACE)), Ok(1));
        assert_eq!(process.status().unwrap().unwrap().code(), Some(3));
        assert_eq!(process.output_end(), "on stdout\non stderr");
    }

    #[test]
    fn a_tool_that_fails_or_hangs_is_an_error() {
        let tool = |script| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            run_tool(command, &Timespec { tv_sec: 1, tv_nsec: 0 })
        };
        assert_eq!(tool("exit 0"), Ok(()));
        assert!(tool("echo because >&2; exit 1").unwrap_err().ends_with("because"));
        assert!(tool("exec sleep 1000").unwrap_err().contains("not done after 1 s"));
    }

    #[test]
    fn counters_are_subtracted_and_added_one_by_one() {
        let now = ServiceCounters { cpu_s: 2.0, completed: 9, retransmitted_bytes: 10, ..ServiceCounters::default() };
        let then = ServiceCounters { cpu_s: 0.5, retransmitted_bytes: 4, ..ServiceCounters::default() };
        let since = ServiceCounters { cpu_s: 1.5, completed: 9, retransmitted_bytes: 6, ..ServiceCounters::default() };
        assert_eq!((now.since(&then), then.plus(&since)), (since, now));
    }
}
