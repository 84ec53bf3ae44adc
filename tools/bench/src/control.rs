//! The control lines to the measuring and calibrating programs: text lines over Unix sockets. Every wait for a line
//! also ends when a process ends or the time limit is over.

use crate::BenchError;
use crate::job::{LoggedProcess, RunningJob};
use rustix::event::{PollFd, PollFlags};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// The longest line of a program, with the samples of very many repetitions.
const MAX_LINE: usize = 64 << 20;

/// A socket to which programs connect.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    pub(crate) fn listen(directory: &Path, name: &str) -> Result<Self, BenchError> {
        let path = directory.join(name);
        let listen = || -> io::Result<UnixListener> {
            if path.exists() {
                std::fs::remove_file(&path)?;
            }
            let listener = UnixListener::bind(&path)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(BenchError::system(format!("listen at {}", path.display())))?;
        Ok(Self { listener, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next program to connect.
    pub(crate) fn accept(&self, watch: &mut LaunchWatch<'_>) -> Result<ControlLine, BenchError> {
        loop {
            watch.wait_readable(self.listener.as_fd(), "waiting for its ranks to start")?;
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true).map_err(BenchError::system("set up the control line"))?;
                    return Ok(ControlLine { stream, pending: Vec::new() });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(BenchError::system("accept a control line")(error)),
            }
        }
    }
}

/// The connection to one program.
#[derive(Debug)]
pub(crate) struct ControlLine {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl ControlLine {
    /// Sends one line. Lines to programs are short, and each is answered before the next, so a line always fits the
    /// socket.
    pub(crate) fn send(&mut self, text: &str) -> Result<(), BenchError> {
        self.stream.write_all(format!("{text}\n").as_bytes()).map_err(BenchError::system("write to the control line"))
    }

    /// Waits for a line of a program that has more to send. If the program has failed, the error names the cause.
    pub(crate) fn receive_more(&mut self, watch: &mut LaunchWatch<'_>, during: &str) -> Result<String, BenchError> {
        match self.receive(watch, during)? {
            Some(text) => Ok(text),
            None => {
                watch.wait_end()?;
                Err(watch.protocol_error("the end of the line"))
            }
        }
    }

    /// Waits for a line; `None` when the program has closed its end.
    pub(crate) fn receive(&mut self, watch: &mut LaunchWatch<'_>, during: &str) -> Result<Option<String>, BenchError> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.pending[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(searched + at + 1);
                let line = std::mem::replace(&mut self.pending, rest);
                return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
            }
            searched = self.pending.len();
            let mut bytes = [0; 64 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(read) if searched + read <= MAX_LINE => self.pending.extend_from_slice(&bytes[..read]),
                Ok(_) => return Err(watch.protocol_error("a line without end")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    watch.wait_readable(self.stream.as_fd(), during)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(BenchError::system("read the control line")(error)),
            }
        }
    }
}

/// The processes and the time limit of one launch, checked during every wait.
#[derive(Debug)]
pub(crate) struct LaunchWatch<'a> {
    system: &'a str,
    running: &'a mut RunningJob,
    started: Instant,
    limit: Duration,
}

impl<'a> LaunchWatch<'a> {
    pub(crate) fn new(system: &'a str, running: &'a mut RunningJob, limit: Duration) -> Self {
        Self { system, running, started: Instant::now(), limit }
    }

    pub(crate) fn running(&mut self) -> &mut RunningJob {
        self.running
    }

    pub(crate) fn system(&self) -> &str {
        self.system
    }

    /// The error for a line that no program sends.
    pub(crate) fn protocol_error(&self, line: &str) -> BenchError {
        BenchError::Protocol { system: self.system.to_owned(), line: line.to_owned() }
    }

    /// Returns when `fd` has something to read, or with the error of a process that ended instead.
    pub(crate) fn wait_readable(&mut self, fd: BorrowedFd<'_>, during: &str) -> Result<(), BenchError> {
        loop {
            if self.poll(Some(fd), during)? {
                return Ok(());
            }
            if self.reap()? {
                // The last rank's final line may still be unread.
                return if self.readable_now(fd)? { Ok(()) } else { Err(self.ended_silently()) };
            }
        }
    }

    /// Waits until all ranks have ended, with success.
    pub(crate) fn wait_end(&mut self) -> Result<(), BenchError> {
        while !self.reap()? {
            self.poll(None, "waiting for its ranks to end")?;
        }
        Ok(())
    }

    /// Waits until `fd` is readable (true), a process ends (false), or the time limit is over (error).
    fn poll(&self, fd: Option<BorrowedFd<'_>>, during: &str) -> Result<bool, BenchError> {
        let left = self.limit.checked_sub(self.started.elapsed()).ok_or_else(|| self.timed_out(during))?;
        let left = left.try_into().map_err(|_| self.timed_out(during))?;
        // Processes that had not ended at the last check; if one has ended since then, this poll returns at once.
        let alive =
            self.running.ranks.iter().chain(&self.running.services).filter(|process| !process.was_seen_to_end());
        let mut fds: Vec<PollFd<'_>> = fd.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        fds.extend(alive.map(|process| PollFd::from_borrowed_fd(process.ended_fd(), PollFlags::IN)));
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&left)))
            .map_err(|error| BenchError::system("wait for the control line")(error.into()))?;
        Ok(fd.is_some() && !fds[0].revents().is_empty())
    }

    fn readable_now(&self, fd: BorrowedFd<'_>) -> Result<bool, BenchError> {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now)))
            .map(|ready| ready > 0)
            .map_err(|error| BenchError::system("look at the control line")(error.into()))
    }

    /// True when all ranks have ended with success; an error when a rank failed or a service ended.
    fn reap(&mut self) -> Result<bool, BenchError> {
        let mut all = true;
        let wait = || BenchError::system("wait for a process");
        for service in &mut self.running.services {
            if let Some(status) = service.status().map_err(wait())? {
                return Err(ended(self.system, service, status));
            }
        }
        for rank in &mut self.running.ranks {
            match rank.status().map_err(wait())? {
                Some(status) if !status.success() => return Err(ended(self.system, rank, status)),
                Some(_) => {}
                None => all = false,
            }
        }
        Ok(all)
    }

    fn ended_silently(&self) -> BenchError {
        BenchError::Ended {
            system: self.system.to_owned(),
            process: "the measuring program".into(),
            how: "ended without its report".into(),
            output: self.outputs(),
        }
    }

    fn timed_out(&self, during: &str) -> BenchError {
        BenchError::TimedOut {
            system: self.system.to_owned(),
            seconds: self.limit.as_secs(),
            during: during.to_owned(),
            output: self.outputs(),
        }
    }

    fn outputs(&self) -> String {
        let all = self.running.ranks.iter().chain(&self.running.services);
        let lines: Vec<String> = all.map(|process| format!("{}: {}", process.name(), process.output_end())).collect();
        lines.join("\n")
    }
}

fn ended(system: &str, process: &LoggedProcess, status: ExitStatus) -> BenchError {
    BenchError::Ended {
        system: system.to_owned(),
        process: process.name().to_owned(),
        how: format!("ended early ({status})"),
        output: process.output_end(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const LONG: Duration = Duration::from_secs(30);

    fn running(script: &str, directory: &Path) -> RunningJob {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let process = LoggedProcess::start("a shell on h1", command, directory).unwrap();
        RunningJob { ranks: vec![process], services: Vec::new(), stats: None }
    }

    #[test]
    fn silent_or_failed_program_is_named_with_its_output() {
        let error = |script, limit| {
            let directory = tempfile::tempdir().unwrap();
            let socket = ControlSocket::listen(directory.path(), "control").unwrap();
            let mut running = running(script, directory.path());
            let began = Instant::now();
            while script.contains("busy") && running.ranks[0].output_end() != "busy" {
                assert!(began.elapsed() < LONG, "the shell says nothing");
                std::thread::yield_now();
            }
            socket.accept(&mut LaunchWatch::new("mpich", &mut running, limit)).unwrap_err()
        };
        let error_text = |script| error(script, LONG).to_string();
        let late = error("echo busy; exec sleep 1000", Duration::from_millis(10));
        let is_told = |system: &str, output: &str| system == "mpich" && output.contains("busy");
        assert!(matches!(&late, BenchError::TimedOut { system, output, .. } if is_told(system, output)), "{late}");
        let failed = error_text("echo no such fabric >&2; exit 7");
        let named = ["a shell on h1", "no such fabric", "7"].iter().all(|word| failed.contains(word));
        assert!(named, "{failed}");
        let silent = error_text("exit 0");
        assert!(silent.contains("without its report"), "{silent}");
    }

    #[test]
    fn process_that_ends_between_two_polls_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let mut running = running("exit 0", directory.path());
        let ended = PollFd::from_borrowed_fd(running.ranks[0].ended_fd(), PollFlags::IN);
        rustix::event::poll(&mut [ended], None).unwrap();
        let mut watch = LaunchWatch::new("mpich", &mut running, LONG);
        // No check has seen the end of the rank yet, as if an earlier check had found the rank running.
        watch.poll(None, "a test").unwrap();
        assert!(watch.started.elapsed() < watch.limit, "the limit ran out");
        watch.wait_end().unwrap();
    }

    #[test]
    fn lines_arrive_whole_and_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let socket = ControlSocket::listen(directory.path(), "control").unwrap();
        let mut running = running("exec sleep 1000", directory.path());
        let mut watch = LaunchWatch::new("mpich", &mut running, LONG);
        let mut program = UnixStream::connect(socket.path()).unwrap();
        let mut line = socket.accept(&mut watch).unwrap();
        program.write_all(b"first\nsec").unwrap();
        assert_eq!(line.receive(&mut watch, "a test").unwrap().as_deref(), Some("first"));
        program.write_all(b"ond\n").unwrap();
        assert_eq!(line.receive(&mut watch, "a test").unwrap().as_deref(), Some("second"));
        line.send("ok").unwrap();
        let mut answer = [0; 3];
        program.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ok\n");
        drop(program);
        assert_eq!(line.receive(&mut watch, "a test").unwrap(), None);
    }
}
