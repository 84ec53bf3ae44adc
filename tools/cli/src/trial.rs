//! Trials: emulated clusters whose daemons are killed, stopped and cut off at known moments; ranks carry out acts.
//!
//! ```text
//!  bench verdicts, chaos --Trial--> lab: hosts with a daemon of each user   signals by the process ids of this machine
//!                        --TrialRank, line of acts--> outboard __rank    links by ip and nft on the host
//! ```
//!
//! Invariants: everything that was started ends with the [`Trial`]. A process is signalled by its pidfd, never by a
//! number that may belong to another process by now. Never judges.

mod faults;
mod leftovers;
pub(crate) mod rank;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_bench::LoggedProcess;
use outboard_lab::{Lab, LabNode, LabSpec};
use outboard_service::statistics::StatisticsReport;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::time::Timespec;
use tempfile::TempDir;

use crate::error::CliError;
use crate::launch::{self, DaemonArgs};
use crate::{places, reports, work};
use leftovers::Inventory;
use rank::{ActAnswer, RankAct};

const START_LIMIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
const END_LIMIT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// Modes for directories and sockets that ranks of all users access.
const FOR_ALL: u32 = 0o755;
const CONNECTED_BY_ALL: u32 = 0o666;

/// A user by number; `None` is our own user.
pub(crate) type User = Option<u32>;

/// Everything that one trial has started. Fields are dropped in order: daemons before their hosts, hosts before their
/// files.
#[derive(Debug)]
pub(crate) struct Trial {
    /// Daemons by host and user.
    daemons: Mutex<BTreeMap<(u16, User), TrialDaemon>>,
    users: Vec<User>,
    lab: Lab,
    directory: TempDir,
    args: DaemonArgs,
    /// The inventory of each host before anything was started.
    before: Vec<Inventory>,
    /// Number of ranks started so far.
    ranks: AtomicU64,
}

#[derive(Debug)]
struct TrialDaemon {
    process: LoggedProcess,
    user: User,
    stats: PathBuf,
    /// Process id on this machine.
    id: Pid,
    pidfd: OwnedFd,
}

/// A rank that carries out acts.
#[derive(Debug)]
pub(crate) struct TrialRank {
    /// Number of the host, from 1.
    pub(crate) host: u16,
    line: BufReader<UnixStream>,
    /// The received part of an answer.
    partial: String,
    pidfd: Arc<OwnedFd>,
    process: LoggedProcess,
}

/// Why a rank has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The time limit is over.
    Late,
    /// The rank's process has ended.
    Ended,
}

impl Trial {
    /// Starts the cluster with daemons on each host, one of our own user and one of each of `others`.
    pub(crate) fn start(spec: &LabSpec, args: DaemonArgs, others: Vec<u32>) -> Result<Self, CliError> {
        let directory = work::directory()?;
        set_mode(directory.path(), FOR_ALL)?;
        let lab = Lab::start(spec)?;
        let users = std::iter::once(None).chain(others.into_iter().map(Some)).collect();
        let (daemons, before, ranks) = (Mutex::default(), Vec::new(), AtomicU64::new(0));
        let mut trial = Trial { daemons, users, lab, directory, args, before, ranks };
        for user in trial.users.iter().flatten() {
            let files = trial.files_of(Some(*user));
            let made = std::fs::create_dir(&files).and_then(|()| chown(&files, Some(*user), Some(*user)));
            made.map_err(CliError::system(format!("make {}", files.display())))?;
        }
        for host in 1..=spec.hosts() {
            trial.within(host, "chmod", &[&format!("{FOR_ALL:o}"), launch::HOST_DIRECTORY])?;
            for user in trial.users.iter().flatten() {
                let directory = launch::user_directory(Some(*user)).display().to_string();
                trial.within(host, "install", &["-d", "-m", "700", "-o", &user.to_string(), &directory])?;
            }
        }
        trial.before = trial.lab.host_pids().iter().map(|first| Inventory::of(*first)).collect();
        for host in 1..=trial.hosts() {
            trial.users.iter().try_for_each(|user| trial.restart_daemon(host, *user))?;
        }
        Ok(trial)
    }

    /// Number of hosts, which count from 1.
    pub(crate) fn hosts(&self) -> u16 {
        self.lab.spec().hosts()
    }

    /// The users that have a daemon on each host.
    pub(crate) fn users(&self) -> &[User] {
        &self.users
    }

    fn daemons(&self) -> MutexGuard<'_, BTreeMap<(u16, User), TrialDaemon>> {
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory, outside of the hosts, for files of a user's daemons.
    fn files_of(&self, user: User) -> PathBuf {
        let own = self.directory.path();
        user.map_or_else(|| own.to_owned(), |user| own.join(format!("user-{user}")))
    }

    fn start_daemon(&self, host: u16, user: User) -> Result<TrialDaemon, CliError> {
        let (process, stats) = launch::start_daemon(&self.lab, host, user, &self.files_of(user), &self.args)?;
        let failed = || CliError::system(format!("find the process of {}", process.name()));
        let (id, pidfd) = UnixStream::connect(&stats).and_then(|line| behind(&line)).map_err(failed())?;
        Ok(TrialDaemon { process, user, stats, id, pidfd })
    }

    /// Runs a tool on a host; its failure is an error.
    fn within(&self, host: u16, tool: &str, arguments: &[&str]) -> Result<(), CliError> {
        let mut command = self.lab.command(&LabNode::Host(host).to_string(), tool)?;
        places::run_tool(command.args(arguments), &format!("{tool} {} on h{host} failed", arguments.join(" ")))
    }

    /// The report of the daemon of a user on a host.
    pub(crate) fn statistics(&self, host: u16, user: User) -> Result<StatisticsReport, CliError> {
        let stats = self.daemons()[&(host, user)].stats.clone();
        reports::request_report(&stats).map_err(CliError::system(format!("ask the daemon at {}", stats.display())))
    }

    /// Starts a rank on each of these hosts, as `user` or as our own user.
    pub(crate) fn start_ranks(
        &self,
        hosts: &[u16],
        user: User,
        environment: &[(String, String)],
    ) -> Result<Vec<TrialRank>, CliError> {
        let started: Vec<_> = hosts.iter().map(|host| self.start_rank(*host, user, environment)).collect();
        started.into_iter().map(|started| started.and_then(StartedRank::await_line)).collect()
    }

    fn start_rank(&self, host: u16, user: User, environment: &[(String, String)]) -> Result<StartedRank, CliError> {
        let number = self.ranks.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.path().join(format!("line-{number}"));
        let listener = UnixListener::bind(&path).map_err(CliError::system(format!("listen at {}", path.display())))?;
        set_mode(&path, CONNECTED_BY_ALL)?;
        let own = std::env::current_exe().map_err(CliError::system("find this program"))?;
        let node = LabNode::Host(host);
        let mut command = launch::enter(&self.lab, node, user, own)?;
        command.arg("__rank").arg(&path).env("OUTBOARD_SOCKET", launch::host_socket(user));
        command.envs(environment.iter().cloned());
        let process = LoggedProcess::start(format!("rank {number} on {node}"), command, self.directory.path())?;
        Ok(StartedRank { host, listener, path, process })
    }
}

/// A rank that has not connected yet.
struct StartedRank {
    host: u16,
    listener: UnixListener,
    path: PathBuf,
    process: LoggedProcess,
}

impl StartedRank {
    fn await_line(self) -> Result<TrialRank, CliError> {
        let StartedRank { host, listener, path, process } = self;
        let silent = || CliError::Failed(format!("{} does not call in: {}", process.name(), process.output_end()));
        let called = {
            let mut fds =
                [PollFd::new(&listener, PollFlags::IN), PollFd::from_borrowed_fd(process.ended_fd(), PollFlags::IN)];
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&START_LIMIT)))
                .map_err(|error| CliError::system("wait for a rank")(error.into()))?;
            !fds[0].revents().is_empty()
        };
        if !called {
            return Err(silent());
        }
        let failed = || CliError::system(format!("the line of {}", process.name()));
        let (line, _) = listener.accept().map_err(failed())?;
        let (_, pidfd) = behind(&line).map_err(failed())?;
        std::fs::remove_file(&path).map_err(CliError::system(format!("remove {}", path.display())))?;
        Ok(TrialRank { host, line: BufReader::new(line), partial: String::new(), pidfd: Arc::new(pidfd), process })
    }
}

impl TrialRank {
    /// Sends an act. If the rank has ended, its answer will be missing.
    pub(crate) fn send_act(&mut self, act: &RankAct) {
        let text = serde_json::to_string(act).expect("an act is plain data");
        let _ = writeln!(self.line.get_mut(), "{text}");
    }

    /// Waits for the answer to the last act.
    pub(crate) fn await_answer(&mut self, limit: Duration) -> Result<ActAnswer, Silence> {
        // A Unix socket accepts any timeout but zero.
        let _ = self.line.get_ref().set_read_timeout(Some(limit.max(Duration::from_millis(1))));
        match self.line.read_line(&mut self.partial) {
            Ok(1..) if self.partial.ends_with('\n') => {
                let answer = serde_json::from_str(&self.partial);
                self.partial.clear();
                answer.map_err(|_| Silence::Ended)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(Silence::Late)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(Silence::Late),
            _ => Err(Silence::Ended),
        }
    }

    /// The descriptor for signals to the rank.
    pub(crate) fn handle(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.pidfd)
    }

    /// Kills the rank, like `kill -9`.
    pub(crate) fn kill(&self) {
        signal(&self.pidfd, Signal::KILL);
    }

    /// Waits until the rank has ended after its last act. The error says how the rank failed.
    pub(crate) fn end(mut self) -> Result<(), String> {
        drop(self.line);
        let ended = {
            let mut fds = [PollFd::from_borrowed_fd(self.process.ended_fd(), PollFlags::IN)];
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&END_LIMIT)))
        };
        if ended != Ok(1) {
            return Err(format!("{} does not end: {}", self.process.name(), self.process.output_end()));
        }
        match self.process.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{} ended with {status}: {}", self.process.name(), self.process.output_end())),
            Err(error) => Err(format!("{}: {error}", self.process.name())),
        }
    }
}

/// Signals a process; a process that has ended needs no signal.
pub(crate) fn signal(pidfd: &impl AsFd, signal: Signal) {
    let _ = rustix::process::pidfd_send_signal(pidfd, signal);
}

/// The living process at the other end of a line.
fn behind(line: &UnixStream) -> io::Result<(Pid, OwnedFd)> {
    let id = rustix::net::sockopt::socket_peercred(line)?.pid;
    Ok((id, rustix::process::pidfd_open(id, PidfdFlags::empty())?))
}

fn set_mode(path: &Path, mode: u32) -> Result<(), CliError> {
    let set = std::fs::set_permissions(path, Permissions::from_mode(mode));
    set.map_err(CliError::system(format!("set the mode of {}", path.display())))
}
