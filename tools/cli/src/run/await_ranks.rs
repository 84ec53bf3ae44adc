//! Waits for the processes of a job. The first process that fails is named and determines the exit status.
//!
//! A job of ranks goes on without a rank that has failed: the others receive an error. A signal that ends the run is
//! sent to all processes by [`work`]; ranks that do not end in time are killed.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::CliError;
use crate::work;

/// How long ranks may take to end after a signal, before they are killed.
const GRACE: Duration = Duration::from_secs(5);

/// A process of the job, with its name in messages.
struct Process {
    name: String,
    child: Child,
    /// Readable when the process has ended.
    ended: OwnedFd,
}

/// The processes of a job that have not been reaped.
pub(super) struct Ranks {
    left: Vec<Process>,
    /// How long these processes may take to end after a signal.
    grace: Option<Duration>,
    /// When the remaining processes are killed.
    deadline: Option<Instant>,
}

impl Ranks {
    /// A launcher, which ends its ranks itself.
    pub(super) fn below_launcher(launcher: (String, Child)) -> Result<Self, CliError> {
        Self::new(vec![launcher], None)
    }

    pub(super) fn of_this_process(ranks: Vec<(String, Child)>) -> Result<Self, CliError> {
        Self::new(ranks, Some(GRACE))
    }

    fn new(children: Vec<(String, Child)>, grace: Option<Duration>) -> Result<Self, CliError> {
        let process = |(name, child): (String, Child)| {
            let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
            let ended = ended.map_err(|errno| CliError::System { what: name.clone(), source: errno.into() })?;
            Ok(Process { name, child, ended })
        };
        let left = children.into_iter().map(process).collect::<Result<_, CliError>>()?;
        Ok(Self { left, grace, deadline: None })
    }

    /// Waits for all processes, and returns the exit status of the job.
    pub(super) fn wait(mut self) -> Result<u8, CliError> {
        let mut first_failure = None;
        while !self.left.is_empty() {
            work::set_foreground(self.left.iter().map(|process| process.child.id()));
            for (name, status) in self.reap()? {
                if !status.success() && first_failure.is_none() {
                    eprintln!("outboard: {name}: {status}");
                    first_failure = Some(status);
                }
            }
        }
        work::set_foreground([]);
        Ok(first_failure.map_or(0, code_of))
    }

    /// Waits until processes have ended, and returns these. Processes that a signal has killed come first, because
    /// others may have failed for their death.
    fn reap(&mut self) -> Result<Vec<(String, ExitStatus)>, CliError> {
        let over = self.await_ends()?;
        let mut reaped = Vec::new();
        for at in over.into_iter().rev() {
            let mut process = self.left.swap_remove(at);
            // A reaped process must not receive signals, because another process may get its number.
            work::set_foreground(self.left.iter().map(|process| process.child.id()));
            let status = process.child.wait().map_err(CliError::system(process.name.clone()))?;
            reaped.push((process.name, status));
        }
        reaped.sort_by_key(|(_, status)| status.signal().is_none());
        Ok(reaped)
    }

    /// The positions of processes that have ended. Empty after a signal that ends the run.
    fn await_ends(&mut self) -> Result<Vec<usize>, CliError> {
        let end = work::end_fd().filter(|_| self.deadline.is_none() && self.grace.is_some());
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let ends = self.left.iter().map(|process| &process.ended).chain(end);
        let mut fds: Vec<PollFd<'_>> = ends.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))
            .map_err(|errno| CliError::System { what: "wait for the ranks".to_owned(), source: errno.into() })?;
        let readable: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if end.is_some() && readable.last() == Some(&true) {
            self.deadline = self.grace.map(|grace| Instant::now() + grace);
        }
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            work::kill_foreground();
            self.deadline = None;
            self.grace = None;
        }
        Ok((0..self.left.len()).filter(|at| readable[*at]).collect())
    }
}

/// Kills processes whose job could not be started completely.
pub(super) fn end(children: &mut [(String, Child)]) {
    for (_, child) in children {
        // A process that has ended needs no signal.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The exit status that shells and mpirun report for a process.
fn code_of(status: ExitStatus) -> u8 {
    let by_signal = status.signal().and_then(|signal| u8::try_from(signal).ok()).map(work::status_of);
    by_signal.or_else(|| status.code().and_then(|code| u8::try_from(code).ok())).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn shell(script: &str) -> (String, Child) {
        (script.to_owned(), Command::new("sh").args(["-c", script]).spawn().expect("sh"))
    }

    /// The first process of the list fails after the second has died.
    #[test]
    fn the_first_process_that_fails_determines_the_exit_status() {
        let directory = tempfile::tempdir().expect("a directory");
        let fifo = directory.path().join("order");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).expect("a pipe");
        let late = shell(&format!("read line < {}; exit 3", fifo.display()));
        let first = shell("kill -SEGV $$");
        let died = pidfd_open(Pid::from_child(&first.1), PidfdFlags::empty()).expect("our own child");
        let order = std::thread::spawn(move || {
            poll(&mut [PollFd::new(&died, PollFlags::IN)], None).expect("waits");
            std::fs::write(fifo, "go\n").expect("written");
        });
        let status = Ranks::of_this_process(vec![late, first]).expect("started").wait().expect("waits");
        order.join().expect("no panic");
        assert_eq!(status, 128 + 11);
    }
}
