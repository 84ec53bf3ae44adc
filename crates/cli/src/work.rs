//! A directory for what a run writes beside its output, gone with the run, and the end of the run on a signal.
//!
//! A run that was killed leaves its directory; the next run removes it, by the process id in its name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::process::{Pid, Signal};

use crate::error::CliError;

const PREFIX: &str = "outboard-run-";

/// The processes to end when this one is told to.
static FOREGROUND: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// A directory of this process.
#[derive(Debug)]
pub(crate) struct WorkDirectory {
    path: PathBuf,
}

impl WorkDirectory {
    pub(crate) fn make() -> Result<Self, CliError> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&path).map_err(CliError::system(format!("make {}", path.display())))?;
        Ok(WorkDirectory { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot be removed");
        }
    }
}

/// Removes the directories of runs that have ended without removing them.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix(PREFIX)).and_then(|n| n.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another user's is not ours to remove.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP end the foreground processes; what waits for them then cleans up and returns.
pub(crate) fn end_on_signals() -> Result<(), CliError> {
    let handler = || {
        let processes = FOREGROUND.lock().map(|p| p.clone()).unwrap_or_default();
        if processes.is_empty() {
            std::process::exit(130);
        }
        for pid in processes {
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    };
    ctrlc::set_handler(handler).map_err(|e| CliError::Failed(format!("signals cannot be handled: {e}")))
}

/// Names the processes that signals end, none of them reaped yet.
pub(crate) fn set_foreground(pids: impl IntoIterator<Item = u32>) {
    if let Ok(mut foreground) = FOREGROUND.lock() {
        *foreground = pids.into_iter().filter_map(|p| i32::try_from(p).ok()).filter_map(Pid::from_raw).collect();
    }
}
