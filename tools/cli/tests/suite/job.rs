//! One `outboard run` as a separate process, its output, and the processes that belong to it.
//!
//! Invariant: every process of a job carries the job's mark in its environment, or descends from a process that does. A
//! dropped job is killed. Every wait is bounded by [`LIMIT`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::program::{OUTBOARD, ranks_program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// The longest time of a job, or of the end of its processes.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest time that the processes of a job may take to end after a signal.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Variable whose value is unique to each job.
const MARK: &str = "OUTBOARD_TEST_JOB";

/// A running `outboard run`.
pub(crate) struct Job {
    child: Child,
    mark: String,
    /// The parent of the work directories, shared with later jobs.
    temporary: Rc<tempfile::TempDir>,
    lines: Receiver<String>,
    read: Vec<String>,
    errors: Option<thread::JoinHandle<String>>,
    deadline: Instant,
}

impl Job {
    /// Starts `ranks` ranks that play `part`, with further `options` of `outboard run`.
    pub(crate) fn start(ranks: u32, options: &[&str], part: &str) -> Job {
        let program = ranks_program().to_str().expect("a path of text");
        let ranks = ranks.to_string();
        let options = [&["-n", &ranks], options].concat();
        Job::start_command(&options, &[program, part])
    }

    pub(crate) fn start_command(options: &[&str], command: &[&str]) -> Job {
        Job::start_with(&[], options, command)
    }

    /// Starts ranks of any program, with further variables in the environment of `outboard run`.
    pub(crate) fn start_with(settings: &[(&str, &str)], options: &[&str], command: &[&str]) -> Job {
        Job::start_in(Rc::new(tempfile::tempdir().expect("a directory")), settings, options, command)
    }

    /// Starts another job with the work directory of this one.
    pub(crate) fn next(&self, options: &[&str], command: &[&str]) -> Job {
        Job::start_in(Rc::clone(&self.temporary), &[], options, command)
    }

    fn start_in(
        temporary: Rc<tempfile::TempDir>,
        settings: &[(&str, &str)],
        options: &[&str],
        command: &[&str],
    ) -> Job {
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
        let mut child = Command::new(OUTBOARD)
            .arg("run")
            .args(options)
            .arg("--")
            .args(command)
            .env(MARK, &mark)
            .env("TMPDIR", temporary.path())
            .env_remove("OUTBOARD_HOME")
            .env_remove("OUTBOARD_SOCKET")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        // The thread ends with the last process that writes, or when the job is gone and nothing reads its lines.
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut stderr = child.stderr.take().expect("piped");
        let errors = thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).expect("a pipe can be read");
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Job { child, mark, temporary, lines, read: Vec::new(), errors: Some(errors), deadline: Instant::now() + LIMIT }
    }

    /// Waits for a line that starts with `start`.
    pub(crate) fn await_line(&mut self, start: &str) {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no line {start:?} comes; read so far: {:#?}", self.read);
            };
            let found = line.starts_with(start);
            self.read.push(line);
            if found {
                return;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our own child");
    }

    /// Kills the one daemon or relay of this job whose command line has `words`.
    pub(crate) fn kill_daemon(&self, words: &str) {
        let of_words = |process: &Process| process.is_daemon() && process.command.contains(words);
        let found: Vec<Process> = self.processes().into_iter().filter(of_words).collect();
        let [one] = found.as_slice() else { panic!("daemons with {words:?}: {found:?}") };
        kill_process(Pid::from_raw(one.pid).expect("a number"), Signal::KILL).expect("it lives");
    }

    /// Reaps a job that has ended, as the shell that started it would.
    pub(crate) fn reap(&mut self) -> ExitStatus {
        self.child.wait().expect("our own child")
    }

    /// Waits for the end and for all output.
    pub(crate) fn finish(mut self) -> Outcome {
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).expect("our own child");
        if !ended(&pidfd, self.deadline) {
            self.signal(Signal::INT);
            let processes = self.processes();
            panic!("the job does not end: {processes:?} run on; read so far: {:#?}", self.rest());
        }
        let status = self.reap();
        let errors = self.errors.take().expect("finished once").join().expect("reading does not fail");
        Outcome { status, lines: self.rest(), errors }
    }

    /// All remaining output.
    fn rest(&mut self) -> Vec<String> {
        // Ends when the last writer has gone, at the latest after `LIMIT`.
        while let Ok(line) = self.lines.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            self.read.push(line);
        }
        std::mem::take(&mut self.read)
    }

    /// The work directories of this job and of the jobs before it.
    pub(crate) fn work_directories(&self) -> Vec<String> {
        let entries = fs::read_dir(self.temporary.path()).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("outboard-run-")).collect()
    }

    /// The output of `outboard top` for this job: one JSON value for each service process, in the order of hosts.
    pub(crate) fn top(&self) -> Vec<serde_json::Value> {
        let answer = Command::new(OUTBOARD)
            .args(["top", "--once", "--json"])
            .env("TMPDIR", self.temporary.path())
            .output()
            .expect("the command starts");
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        let text = String::from_utf8(answer.stdout).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The directory for temporary files of this job and of the jobs before it.
    pub(crate) fn temporary(&self) -> &Path {
        self.temporary.path()
    }

    /// Whether the time limit of this job is not over.
    pub(crate) fn in_time(&self) -> bool {
        Instant::now() < self.deadline
    }

    /// The processes of this job that have not ended.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let mark = format!("{MARK}={}", self.mark);
        let all: BTreeMap<i32, Process> =
            fs::read_dir("/proc").expect("procfs").flatten().filter_map(|entry| Process::of(&entry.path())).collect();
        let marked = |process: &Process| process.environment.split(|b| *b == 0).any(|v| v == mark.as_bytes());
        let belongs = |process: &Process| {
            // A process has fewer ancestors than there are processes.
            let line = std::iter::successors(Some(process), |process| all.get(&process.parent)).take(all.len());
            line.into_iter().any(marked)
        };
        let ours: Vec<i32> = all.iter().filter(|(_, process)| belongs(process)).map(|(pid, _)| *pid).collect();
        let mut all = all;
        ours.iter().filter_map(|pid| all.remove(pid)).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A process that has ended needs no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for process in self.processes() {
            if let Some(pid) = Pid::from_raw(process.pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Whether the process ends before the deadline.
fn ended(pidfd: &OwnedFd, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).expect("deadlines are near");
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&left)).expect("poll works") > 0
}

/// The processes that have not ended within [`END_LIMIT`].
pub(crate) fn left_of(processes: Vec<Process>) -> Vec<Process> {
    let deadline = Instant::now() + END_LIMIT;
    processes.into_iter().filter(|process| !ended(&process.pidfd, deadline)).collect()
}

/// A process, held by a descriptor, so that its number cannot pass to another process.
pub(crate) struct Process {
    pid: i32,
    parent: i32,
    name: String,
    environment: Vec<u8>,
    command: String,
    pidfd: OwnedFd,
}

impl Process {
    /// The live process that a directory of procfs shows, with its number.
    fn of(directory: &Path) -> Option<(i32, Process)> {
        let pid: i32 = directory.file_name()?.to_str()?.parse().ok()?;
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let stat = fs::read_to_string(directory.join("stat")).ok()?;
        let (before, after) = stat.rsplit_once(") ")?;
        let mut fields = after.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let (_, name) = before.split_once('(')?;
        let environment = fs::read(directory.join("environ")).unwrap_or_default();
        let command = fs::read(directory.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let process = Process { pid, parent, name: name.to_owned(), environment, command, pidfd };
        (!matches!(state, "Z" | "X")).then_some((pid, process))
    }

    pub(crate) fn is_daemon(&self) -> bool {
        self.name == "outboardd"
    }

    /// Multicast addresses that the host of this process receives, without the address of all hosts.
    pub(crate) fn multicasts(&self) -> usize {
        let groups = fs::read_to_string(format!("/proc/{}/net/igmp", self.pid)).expect("procfs");
        let addresses: BTreeSet<&str> = groups.lines().filter_map(|line| line.strip_prefix("\t\t\t\t")).collect();
        addresses.iter().filter(|address| !address.starts_with("010000E0")).count()
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.pid, self.name, self.command)
    }
}

/// How the last call of a rank ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) code: i32,
    /// Time on the machine's monotonic clock.
    pub(crate) at: Duration,
    pub(crate) sentence: String,
}

/// The output of a job that has ended, and its exit status.
#[derive(Debug)]
pub(crate) struct Outcome {
    status: ExitStatus,
    lines: Vec<String>,
    errors: String,
}

impl Outcome {
    pub(crate) fn succeeded(&self) -> bool {
        self.status.success()
    }

    pub(crate) fn exit_code(&self) -> Option<i32> {
        self.status.code()
    }

    pub(crate) fn assert_success(&self) {
        assert!(self.succeeded(), "the job ends well: {self:?}");
    }

    /// Whether a rank wrote this line.
    pub(crate) fn says(&self, line: &str) -> bool {
        self.lines.iter().any(|l| l == line)
    }

    /// How often this is in the standard error of `outboard run`.
    pub(crate) fn complaints(&self, text: &str) -> usize {
        self.errors.matches(text).count()
    }

    /// Whether a rank wrote a line that contains this.
    pub(crate) fn prints(&self, text: &str) -> bool {
        self.lines.iter().any(|line| line.contains(text))
    }

    /// The rest of the first line of a rank that starts so.
    pub(crate) fn line_after(&self, start: &str) -> Option<String> {
        self.lines.iter().find_map(|line| line.strip_prefix(start)).map(str::to_owned)
    }

    /// Whether `outboard run` wrote this to its standard error.
    pub(crate) fn complains(&self, text: &str) -> bool {
        self.errors.contains(text)
    }

    /// The number before `what` in the report of `outboard run`.
    pub(crate) fn counted(&self, what: &str) -> u64 {
        let counts = self.errors.lines().flat_map(|line| line.trim_start_matches("outboard: ").split(", "));
        let count = counts.into_iter().find_map(|count| count.strip_suffix(what)?.trim().parse().ok());
        count.unwrap_or_else(|| panic!("{what} is reported: {self:?}"))
    }

    /// Megabytes of ranks' memory that were moved in this `way`, in the report of `outboard run`; 0 where the report
    /// leaves the way out.
    pub(crate) fn megabytes(&self, way: &str) -> f64 {
        let moved = self.errors.lines().find_map(|line| line.trim().strip_prefix("moved to and from ranks: "));
        let ways = moved.into_iter().flat_map(|moved| moved.split(", "));
        let bytes = ways.filter_map(|moved| moved.split_once(" MB ")).find(|(_, found)| *found == way);
        bytes.map_or(0.0, |(bytes, _)| bytes.parse().unwrap_or_else(|_| panic!("{way} is reported: {self:?}")))
    }

    /// How the last call of `rank` ended.
    pub(crate) fn end_of(&self, rank: u32) -> End {
        let start = format!("@ended rank {rank} code ");
        let line = self.lines.iter().find_map(|line| line.strip_prefix(&start));
        let parse = |line: &str| {
            let (code, rest) = line.split_once(" at ")?;
            let (at, sentence) = rest.split_once(": ")?;
            let at = Duration::from_nanos(at.parse().ok()?);
            Some(End { code: code.parse().ok()?, at, sentence: sentence.to_owned() })
        };
        line.and_then(parse).unwrap_or_else(|| panic!("rank {rank} says how it ended: {self:?}"))
    }

    /// When the victim died or killed its daemon, on the machine's monotonic clock.
    pub(crate) fn fatal_at(&self) -> Duration {
        let at = self.lines.iter().find_map(|line| line.strip_prefix("@fatal at ")?.parse().ok());
        Duration::from_nanos(at.unwrap_or_else(|| panic!("the victim says when it strikes: {self:?}")))
    }
}
