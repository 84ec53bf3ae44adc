//! A directory for files of a run beside its output, removed with the run; and the signals that a run receives.
//!
//! A run that was killed leaves its directory; the next run removes it, by the process id in its name.
//!
//! Signals that end a run are sent to the foreground processes as SIGTERM. The code that waits for these processes then
//! cleans up, and the exit status is 128 and the number of the signal.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use rustix::event::EventfdFlags;
use rustix::fs::Access;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGABRT, SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::error::CliError;

const PREFIX: &str = "outboard-run-";
/// The longest path of a directory in which all sockets of a run have paths short enough for the kernel (107 bytes).
const LONGEST_PARENT: usize = 55;
/// The least room that a run needs in its directory.
static ROOM: [u8; 1 << 16] = [0; 1 << 16];
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// The signals that mpirun forwards to all ranks.
const FORWARDED: [i32; 6] = [SIGUSR1, SIGUSR2, SIGALRM, SIGABRT, SIGTSTP, SIGCONT];

/// The processes that receive this process's signals.
static FOREGROUND: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
/// The first signal that ended this run.
static ENDED_BY: OnceLock<u8> = OnceLock::new();
/// Readable once a signal has ended the run.
static END: OnceLock<OwnedFd> = OnceLock::new();

/// Directories for files of runs: that of temporary files, then directories with short paths.
pub(crate) fn parents() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut parents = vec![std::env::temp_dir()];
    for parent in runtime.into_iter().chain(["/tmp", "/dev/shm", "/var/tmp"].map(PathBuf::from)) {
        if !parents.contains(&parent) {
            parents.push(parent);
        }
    }
    parents
}

/// The first of [`parents`] that is there and has a short path: jobs of this environment have their directories there.
pub(crate) fn parent() -> Option<PathBuf> {
    let serves = |parent: &PathBuf| {
        parent.as_os_str().len() <= LONGEST_PARENT
            && rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    };
    parents().into_iter().find(serves)
}

/// A new directory of this process, in the first of [`parents`] that is there, has a short path, and has room.
pub(crate) fn directory() -> Result<TempDir, CliError> {
    let mut failures = Vec::new();
    for parent in parents() {
        sweep(&parent);
        match directory_in(&parent) {
            Ok(directory) => return Ok(directory),
            Err(reason) => failures.push(format!("{}: {reason}", parent.display())),
        }
    }
    let reasons = failures.join("; ");
    Err(CliError::Failed(format!("no directory for the files of this run ({reasons}); set TMPDIR to a short path")))
}

fn directory_in(parent: &Path) -> Result<TempDir, String> {
    if parent.as_os_str().len() > LONGEST_PARENT {
        return Err("the path is too long for sockets".to_owned());
    }
    let directory = TempDir::with_prefix_in(format!("{PREFIX}{}.", std::process::id()), parent);
    let has_room = |directory: TempDir| {
        let probe = directory.path().join("room");
        fs::File::create(&probe).and_then(|mut file| file.write_all(&ROOM))?;
        fs::remove_file(&probe)?;
        Ok(directory)
    };
    directory.and_then(has_room).map_err(|error: std::io::Error| error.to_string())
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

/// From now on SIGINT, SIGTERM and SIGHUP end the foreground processes. Without such processes, a signal ends this
/// process at once.
pub(crate) fn end_on_signals() -> Result<(), CliError> {
    handle(&ENDING)
}

/// As [`end_on_signals`], and the foreground processes receive the signals that mpirun forwards to ranks.
pub(crate) fn forward_signals() -> Result<(), CliError> {
    handle(&[&ENDING[..], &FORWARDED].concat())
}

/// Whether the starter of this process ignores SIGHUP, as nohup does. A handler would undo that.
pub(crate) fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The mask has one bit for each signal, and SIGHUP is the first.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

fn handle(handled: &[i32]) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::Failed(format!("signals cannot be handled: {error}"));
    let end = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let end = END.get_or_init(|| end);
    let mut signals = Signals::new(handled).map_err(failed)?;
    let serve = move || signals.forever().for_each(|number| receive(number, end));
    std::thread::Builder::new().name("signals".to_owned()).spawn(serve).map(drop).map_err(failed)
}

fn receive(number: i32, end: &OwnedFd) {
    let processes = FOREGROUND.lock().map(|processes| processes.clone()).unwrap_or_default();
    if !ENDING.contains(&number) {
        send(&processes, Signal::from_named_raw(number));
        return;
    }
    let number = u8::try_from(number).expect("a signal of ENDING");
    if processes.is_empty() {
        std::process::exit(i32::from(status_of(number)));
    }
    // Only the first signal counts.
    let _ = ENDED_BY.set(number);
    // The counter of an eventfd has room for more signals than a process can receive.
    let _ = rustix::io::write(end, &1u64.to_ne_bytes());
    send(&processes, Some(Signal::TERM));
}

/// Sends a signal to processes. A process that has ended meanwhile needs no signal.
fn send(processes: &[Pid], signal: Option<Signal>) {
    for pid in processes {
        let _ = signal.map(|signal| rustix::process::kill_process(*pid, signal));
    }
}

/// The exit status of a process that a signal has ended, as shells report it.
pub(crate) fn status_of(signal: u8) -> u8 {
    128 + signal
}

/// The exit status of this run, if a signal has ended it.
pub(crate) fn status_of_end() -> Option<u8> {
    ENDED_BY.get().copied().map(status_of)
}

/// Readable once a signal has ended the run; `None` before signals are handled.
pub(crate) fn end_fd() -> Option<&'static OwnedFd> {
    END.get()
}

/// Sets the processes that receive signals. No process among them has been reaped yet.
pub(crate) fn set_foreground(pids: impl IntoIterator<Item = u32>) {
    if let Ok(mut foreground) = FOREGROUND.lock() {
        *foreground = pids.into_iter().filter_map(|p| i32::try_from(p).ok()).filter_map(Pid::from_raw).collect();
    }
}

/// Kills all foreground processes.
pub(crate) fn kill_foreground() {
    let processes = FOREGROUND.lock().map(|processes| processes.clone()).unwrap_or_default();
    send(&processes, Some(Signal::KILL));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_whose_path_is_too_long_for_sockets_is_passed_over() {
        let parent = tempfile::tempdir().expect("a directory");
        let long = parent.path().join("x".repeat(LONGEST_PARENT));
        fs::create_dir(&long).expect("fresh");
        assert!(directory_in(&long).is_err_and(|reason| reason.contains("too long")));
        assert!(directory_in(&parent.path().join("missing")).is_err());
        assert!(directory_in(parent.path()).is_ok_and(|directory| directory.path().starts_with(parent.path())));
    }
}
