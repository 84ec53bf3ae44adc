//! `--background`: runs the daemon as an independent process, for starters that continue meanwhile. A rank of a job
//! needs this option, systemd does not.
//!
//! This process starts the real daemon, waits until the daemon is ready, and exits. The parent of this process gets one
//! exit status, and init adopts the daemon. The daemon does not inherit a rank's session and terminal, descriptors, or
//! processor affinity. The daemon keeps the starter's standard error until ranks may attach, for the reason of a
//! failure, and then releases it, so that a reader of the starter's output sees its end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr};
use rustix::thread::CpuSet;

use crate::{DaemonError, kernel, log};

/// Time limit for the daemon's start, until ranks may attach.
pub(crate) const READY_LIMIT: Duration = Duration::from_secs(20);

/// Starts this program again without `--background`; returns when the new process is ready.
pub(crate) fn start() -> Result<(), DaemonError> {
    // SAFETY: the call only marks descriptors and closes none of them.
    unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
    // The call fails for the leader of a process group; the daemon then gets only a new process group.
    let _ = rustix::process::setsid();
    let mut every = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| every.set(processor));
    // The call fails if a policy forbids it; the daemon then keeps the processors of its starter.
    let _ = rustix::thread::sched_setaffinity(None, &every);
    let own = std::env::current_exe().map_err(kernel("find this program"))?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).filter(|word| word != "--background").collect();
    let mut daemon = Command::new(own)
        .args(arguments)
        .args(["--ready-fd", "1", "--release-output"])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(kernel("start the daemon"))?;
    await_ready(&mut daemon).inspect_err(|_| {
        // The kill fails if the daemon has ended already.
        let _ = daemon.kill();
        let _ = daemon.wait();
    })
}

/// Replaces the standard streams by /dev/null. A file as standard error stays, because the starter wants the log there
/// and no reader waits for its end.
pub(crate) fn release_output() -> io::Result<()> {
    log::finish();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    let kind = rustix::fs::fstat(stderr()).map(|found| FileType::from_raw_mode(found.st_mode));
    if kind != Ok(FileType::RegularFile) {
        dup2_stderr(&null)?;
    }
    Ok(())
}

fn await_ready(daemon: &mut Child) -> Result<(), DaemonError> {
    let mut ready = daemon.stdout.take().expect("piped");
    let until = Instant::now() + READY_LIMIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).expect("seconds");
        match poll(&mut [PollFd::new(&ready, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(DaemonError::Slow),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(kernel("wait for the daemon")(errno)),
        }
    }
    match ready.read(&mut [0]) {
        Ok(1) => Ok(()),
        Ok(_) => Err(DaemonError::Early(daemon.wait().map_err(kernel("wait for the daemon"))?)),
        Err(error) => Err(kernel("hear from the daemon")(error)),
    }
}
