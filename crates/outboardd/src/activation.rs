//! A descriptor that a service manager passes, as sd_listen_fds(3) describes.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::Failure;

/// Takes the descriptor that was passed to this process, if any. Called once, before there are threads.
pub(crate) fn descriptor() -> Result<Option<OwnedFd>, Failure> {
    let passed: Vec<_> = sd_notify::listen_fds().map_err(Failure::Passed)?.collect();
    // SAFETY: this process has no other thread yet that could read the environment.
    unsafe { std::env::remove_var("LISTEN_FDNAMES") };
    match passed[..] {
        [] => Ok(None),
        // SAFETY: it is open, as it was just marked to be closed at exec, and the service manager passed it to us.
        [number] => Ok(Some(unsafe { OwnedFd::from_raw_fd(number) })),
        _ => Err(Failure::Several(passed.len())),
    }
}
