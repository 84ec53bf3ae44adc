//! A directory for files of a run beside its output, removed with the run; and the end of a run on a signal.
//!
//! A run that was killed leaves its directory; the next run removes it, by the process id in its name.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::error::CliError;

const PREFIX: &str = "outboard-run-";

/// Exit status after a signal that ended the command.
pub(crate) const INTERRUPTED: u8 = 130;

/// Whether a signal has come.
static SIGNALLED: AtomicBool = AtomicBool::new(false);

/// The processes to end when a signal ends this process.
static FOREGROUND: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// A new directory of this process.
pub(crate) fn directory() -> Result<TempDir, CliError> {
    let parent = std::env::temp_dir();
    sweep(&parent);
    let made = TempDir::with_prefix_in(format!("{PREFIX}{}.", std::process::id()), &parent);
    made.map_err(CliError::system(format!("make a directory in {}", parent.display())))
}

/// Removes the directories of runs that have ended without removing them.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // A directory of another user cannot be removed, and stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP end the foreground processes. The code that waits for these processes then
/// cleans up. Without such processes the signal ends this command. Either way the exit status is [`INTERRUPTED`].
pub(crate) fn end_on_signals() -> Result<(), CliError> {
    static HANDLED: AtomicBool = AtomicBool::new(false);
    if HANDLED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let handler = || {
        SIGNALLED.store(true, Ordering::Relaxed);
        let processes = FOREGROUND.lock().map(|p| p.clone()).unwrap_or_default();
        if processes.is_empty() {
            std::process::exit(INTERRUPTED.into());
        }
        for pid in processes {
            // The process may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    };
    ctrlc::set_handler(handler).map_err(|e| CliError::Failed(format!("signals cannot be handled: {e}")))
}

/// Whether the starter of this process ignores SIGHUP, as nohup does. A handler would undo that.
pub(crate) fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The mask has one bit for each signal, and SIGHUP is the first.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Whether a signal has ended this command.
pub(crate) fn is_interrupted() -> bool {
    SIGNALLED.load(Ordering::Relaxed)
}

/// Sets the processes that signals end. No process among them has been reaped yet.
pub(crate) fn set_foreground(pids: impl IntoIterator<Item = u32>) {
    if let Ok(mut foreground) = FOREGROUND.lock() {
        *foreground = pids.into_iter().filter_map(|p| i32::try_from(p).ok()).filter_map(Pid::from_raw).collect();
    }
}
