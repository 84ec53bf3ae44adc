//! Shows the lines of the daemons' watchdogs on standard error while a job runs (SP-9).
//!
//! The kernel notifies of growing logs; nothing is polled. All service processes report the same late collective, so
//! only the lines of the first host to report it are shown. Never changes a log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify;

/// Marks the watchdog's lines in a daemon's log.
const MARK: &str = " outboard_service::telemetry::overdue: ";
/// The most collectives for which the reporting host is remembered.
const MOST_REPORTED: usize = 1024;

/// A log that grows.
struct FollowedLog {
    host: String,
    file: File,
    /// The beginning of a line that is being written.
    rest: Vec<u8>,
}

/// Follows logs until it is dropped, then prints their remaining lines.
#[derive(Debug)]
pub(crate) struct Notices {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Notices {
    /// Follows the log of each host's daemon.
    pub(crate) fn follow(logs: impl IntoIterator<Item = (String, PathBuf)>) -> io::Result<Notices> {
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let grown = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let mut open = Vec::new();
        for (host, path) in logs {
            inotify::add_watch(&grown, &path, inotify::WatchFlags::MODIFY)?;
            open.push(FollowedLog { host, file: File::open(path)?, rest: Vec::new() });
        }
        let end_signal = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("notices".to_owned()).spawn(move || {
            let mut reported = BTreeMap::new();
            loop {
                let mut fds = [PollFd::new(&grown, PollFlags::IN), PollFd::new(&*end_signal, PollFlags::IN)];
                let woken = rustix::io::retry_on_intr(|| poll(&mut fds, None));
                let ends = woken.is_err() || !fds[1].revents().is_empty();
                // If any log has grown, all logs are read, because they are short.
                while rustix::io::read(&grown, &mut [0u8; 4096]).is_ok_and(|bytes| bytes > 0) {}
                open.iter_mut().for_each(|log| log.print_new_lines(&mut reported));
                if ends {
                    return;
                }
            }
        })?;
        Ok(Notices { end, thread: Some(thread) })
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // The counter of a new eventfd has room for 1, so the write does not block.
        let _ = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
        // A panic of the thread has already been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl FollowedLog {
    /// Prints the watchdog's new lines.
    fn print_new_lines(&mut self, reported: &mut BTreeMap<String, String>) {
        // A log that cannot be read has no lines to show.
        if self.file.read_to_end(&mut self.rest).is_err() {
            return;
        }
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return };
        let lines: Vec<u8> = self.rest.drain(..=end).collect();
        for line in String::from_utf8_lossy(&lines).lines() {
            if let Some((_, text)) = line.split_once(MARK)
                && is_first(reported, &self.host, text)
            {
                eprintln!("outboard: {}: {text}", self.host);
            }
        }
    }
}

/// Whether no other host has reported this collective.
fn is_first(reported: &mut BTreeMap<String, String>, host: &str, text: &str) -> bool {
    let collective = text.split_once(", in flight for").map_or(text, |(collective, _)| collective);
    if reported.len() >= MOST_REPORTED && !reported.contains_key(collective) {
        reported.clear();
    }
    reported.entry(collective.to_owned()).or_insert_with(|| host.to_owned()) == host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sp_9_one_daemon_reports_a_collective() {
        let mut reported = BTreeMap::new();
        let text = |seconds| format!("allgather, call 7 of group 1, in flight for {seconds} s: not called by rank 1");
        assert!(is_first(&mut reported, "h1", &text(30)));
        assert!(!is_first(&mut reported, "h2", &text(31)));
        assert!(is_first(&mut reported, "h1", &text(60)));
        assert!(is_first(&mut reported, "h2", "another"));
    }
}
