//! The daemon's log: a thread takes lines from a bounded queue and writes them to standard error.
//!
//! Invariants: no logging thread waits for standard error. Lines that find the queue full are lost and counted
//! ([`LOST_LINES`]). At its end the daemon waits for its last lines only while standard error accepts bytes, so a pipe
//! that nobody reads does not keep the process alive.
//!
//! tracing-appender has such a queue, but blocks at the end of the process: if nobody reads, its guard waits for more
//! than a second. The guard also prints to standard output, where a rank's pipe may be full or closed.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outboard_service::statistics::LOST_LINES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::stdio::stderr;

const MOST_LINES: usize = 4096;
/// Longest wait for the last lines while standard error accepts bytes.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Interval of checks whether standard error accepts bytes again.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

struct DaemonLog {
    queue: Mutex<Queue>,
    /// Signals that a line was queued, or that the last line is written.
    changed: Condvar,
}

struct Queue {
    lines: VecDeque<Vec<u8>>,
    started: bool,
    writing: bool,
    /// Lines lost since the log last reported lost lines.
    lost: u64,
}

static LOG: DaemonLog = DaemonLog::new();

/// Starts the thread. The daemon's signals must be blocked already.
pub(crate) fn start() -> io::Result<()> {
    std::thread::Builder::new().name("log".into()).spawn(|| LOG.write_lines(stderr()))?;
    LOG.queue().started = true;
    Ok(())
}

pub(crate) struct LogWriter;

impl Write for LogWriter {
    /// The write never fails, so a full disk or queue causes no further log line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.put(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs the reason for the daemon's end, after all other lines.
pub(crate) fn log_final_error(text: &str) {
    let line = format!("outboardd: {text}\n").into_bytes();
    if LOG.queue().started {
        LOG.put(line);
    } else {
        // If this write fails as well, there is no output left.
        let _ = io::stderr().write_all(&line);
    }
}

/// Waits until all lines are written, or until standard error accepts no more bytes.
pub(crate) fn finish() {
    let until = Instant::now() + LAST_LINES;
    let mut queue = LOG.queue();
    while queue.started && (queue.writing || !queue.lines.is_empty()) && accepts_bytes() && Instant::now() < until {
        queue = LOG.changed.wait_timeout(queue, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
    }
}

impl DaemonLog {
    const fn new() -> Self {
        let queue = Queue { lines: VecDeque::new(), started: false, writing: false, lost: 0 };
        DaemonLog { queue: Mutex::new(queue), changed: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: Vec<u8>) {
        let mut queue = self.queue();
        if queue.lines.len() < MOST_LINES {
            queue.lines.push_back(line);
            self.changed.notify_all();
        } else {
            queue.lose();
        }
    }

    fn write_lines(&self, output: BorrowedFd<'_>) -> ! {
        let mut queue = self.queue();
        loop {
            let Some(line) = queue.lines.pop_front() else {
                self.changed.notify_all();
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.writing = true;
            drop(queue);
            let written = write_all(output, &line);
            queue = self.queue();
            queue.writing = false;
            match written {
                Ok(()) => queue.report_loss(),
                Err(_) => queue.lose(),
            }
        }
    }
}

impl Queue {
    fn lose(&mut self) {
        self.lost += 1;
        LOST_LINES.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports lost lines once all earlier lines are written.
    fn report_loss(&mut self) {
        if self.lost > 0 && self.lines.is_empty() {
            let lost = std::mem::take(&mut self.lost);
            let text = format!("outboardd: lost {lost} lines of the log, which standard error did not take in time\n");
            self.lines.push_back(text.into_bytes());
        }
    }
}

/// Writes a whole line. Waits for a reader even if another process has made standard error non-blocking.
fn write_all(output: BorrowedFd<'_>, mut line: &[u8]) -> Result<(), Errno> {
    while !line.is_empty() {
        match rustix::io::write(output, line) {
            Ok(written) => line = &line[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(output, PollFlags::OUT)], None);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn accepts_bytes() -> bool {
    let now = Timespec::default();
    poll(&mut [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)], Some(&now)) != Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::os::fd::AsFd;

    use super::*;

    /// Fills the pipe first, whatever the size of the pipe.
    #[test]
    fn lines_beyond_the_queue_are_lost_and_counted_once_the_others_are_written() {
        let (reader, writer) = io::pipe().expect("descriptors");
        let (log, writer): (&'static DaemonLog, &'static File) = (
            Box::leak(Box::new(DaemonLog::new())),
            Box::leak(Box::new(File::from(std::os::fd::OwnedFd::from(writer)))),
        );
        let long = [&[b'x'; 1 << 17][..], b"\n"].concat();
        std::thread::spawn(|| log.write_lines(writer.as_fd()));
        log.put(long);
        let lines = 2 * MOST_LINES;
        (0..lines).for_each(|_| log.put(b"short\n".to_vec()));
        let mut written = 0;
        for line in BufReader::new(reader).lines().map(|line| line.expect("text")).skip(1) {
            if line == "short" {
                written += 1;
                continue;
            }
            assert_eq!(
                line,
                format!(
                    "outboardd: lost {} lines of the log, which standard error did not take in time",
                    lines - written
                )
            );
            break;
        }
        assert!((MOST_LINES - 1..=MOST_LINES).contains(&written), "{written}");
    }
}
