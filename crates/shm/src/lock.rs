//! Locks between processes of one user. No other user can open the lock file, so no other user can hold the lock.
//!
//! A process removes the file only with the lock held. A lock on a file that has lost its name is not valid.

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, lstat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval at which a held lock is tried again, since a holder that is stopped must not block others for ever.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    #[error("it is no file of this user alone")]
    Occupied,
    #[error("another process holds it")]
    Held,
    #[error(transparent)]
    Kernel(#[from] Errno),
}

/// Takes the lock at `path`; creates the file if there is none. The lock is held until the descriptor is closed.
///
/// # Errors
/// [`LockError`]; [`LockError::Held`] after at least one try.
pub fn lock(path: &Path, until: Instant) -> Result<OwnedFd, LockError> {
    loop {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::LOOP | Errno::ACCESS | Errno::PERM | Errno::ISDIR | Errno::NXIO)
                if path.is_symlink() || path.exists() =>
            {
                return Err(LockError::Occupied);
            }
            Err(errno) => return Err(errno.into()),
        };
        let found = fstat(&file)?;
        let regular = FileType::from_raw_mode(found.st_mode).is_file();
        if !regular || found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
            return Err(LockError::Occupied);
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if lstat(path).is_ok_and(|named| (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino)) => {
                return Ok(file);
            }
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => std::thread::sleep(RETRY_INTERVAL),
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(LockError::Held),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "locks files")]
    fn one_process_holds_a_lock_and_only_the_named_file_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = lock(&path, Instant::now()).unwrap();
        assert_eq!(lock(&path, Instant::now()).unwrap_err(), LockError::Held);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lock(&path, Instant::now() + Duration::from_secs(60)).unwrap());
            std::fs::remove_file(&path).unwrap();
            drop(held);
            let next = waits.join().unwrap();
            assert_eq!(fstat(&next).unwrap().st_ino, lstat(&path).unwrap().st_ino);
        });
        let nowhere = lock(&directory.path().join("no/lock"), Instant::now());
        assert_eq!(nowhere.unwrap_err(), LockError::Kernel(Errno::NOENT));
    }
}
