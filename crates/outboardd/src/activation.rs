//! A descriptor passed by a service manager, as sd_listen_fds(3) describes.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::DaemonError;

/// Takes the descriptor passed to this process, if any. Must be called only once, before there are other threads.
pub(crate) fn descriptor() -> Result<Option<OwnedFd>, DaemonError> {
    let passed: Vec<_> = sd_notify::listen_fds().map_err(DaemonError::Passed)?.collect();
    // SAFETY: this process has no other thread that could read the environment.
    unsafe { std::env::remove_var("LISTEN_FDNAMES") };
    match passed[..] {
        [] => Ok(None),
        // SAFETY: the descriptor is open, since it was just set to close at exec, and the service manager passed it to
        // this process.
        [number] => Ok(Some(unsafe { OwnedFd::from_raw_fd(number) })),
        _ => Err(DaemonError::Several(passed.len())),
    }
}
