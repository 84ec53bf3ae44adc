//! A directory for files of a run beside its output, removed with the run; and the end of a run on a signal.
//!
//! A run that was killed leaves its directory; the next run removes it, by the process id in its name.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::error::CliError;

const PREFIX: &str = "outboard-run-";

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
/// cleans up.
pub(crate) fn end_on_signals() -> Result<(), CliError> {
    let handler = || {
        let processes = FOREGROUND.lock().map(|p| p.clone()).unwrap_or_default();
        if processes.is_empty() {
            std::process::exit(130);
        }
        for pid in processes {
            // The process may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    };
    ctrlc::set_handler(handler).map_err(|e| CliError::Failed(format!("signals cannot be handled: {e}")))
}

/// Sets the processes that signals end. No process among them has been reaped yet.
pub(crate) fn set_foreground(pids: impl IntoIterator<Item = u32>) {
    if let Ok(mut foreground) = FOREGROUND.lock() {
        *foreground = pids.into_iter().filter_map(|p| i32::try_from(p).ok()).filter_map(Pid::from_raw).collect();
    }
}
