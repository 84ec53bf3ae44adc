//! Lifetime of a service process: until a stop is requested, or while ranks of its job are attached.
//!
//! A rank starts the service process of its job (`client`'s job_daemon), and that rank may die before the process is
//! ready. So the process also ends if no rank attaches within [`FIRST_RANK`].
//!
//! Invariant: the files of a job's directory are removed under a lock, which ranks hold while they look for a service
//! process. So no rank loses a service process that it has just found. If a rank holds the lock, the files stay for the
//! service process that this rank starts.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time within which the first rank must attach.
const FIRST_RANK: Duration = Duration::from_secs(30);

/// With `None` the process never ends of its own accord. Otherwise the process ends with its last rank, or at this time
/// if no rank has attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime(Option<Instant>);

impl Lifetime {
    pub(crate) fn new(exit_when_idle: bool) -> Lifetime {
        Lifetime(exit_when_idle.then(|| Instant::now() + FIRST_RANK))
    }

    /// Whether the lifetime is over, given that no rank is connected now. `attached` says whether a rank has ever
    /// attached.
    pub(crate) fn over(self, attached: bool) -> bool {
        self.0.is_some_and(|first_until| attached || Instant::now() >= first_until)
    }

    /// Time until the lifetime may end without any event. `attached` says whether a rank has ever attached.
    pub(crate) fn limit(self, attached: bool) -> Option<Duration> {
        let first_until = self.0.filter(|_| !attached)?;
        Some(first_until.saturating_duration_since(Instant::now()))
    }
}

/// The directory of a job's own service process, with its lock held.
#[derive(Debug)]
pub(crate) struct LockedJobDirectory {
    directory: PathBuf,
    /// Closing this descriptor releases the lock.
    _lock: OwnedFd,
}

impl LockedJobDirectory {
    /// Takes the lock; returns `None` if a rank holds it.
    pub(crate) fn begin(directory: &Path) -> Option<LockedJobDirectory> {
        let lock = outboard_shm::lock::lock(&directory.join("lock"), Instant::now()).ok()?;
        Some(LockedJobDirectory { directory: directory.to_owned(), _lock: lock })
    }

    /// Removes the remaining files and the directory, after the socket has been removed.
    pub(crate) fn finish(self) {
        for name in ["log", "lock"] {
            if let Err(error) = std::fs::remove_file(self.directory.join(name)) {
                tracing::warn!(directory = %self.directory.display(), name, %error, "cannot remove a file of the job");
            }
        }
        // Fails if the directory holds files of other processes.
        let _ = std::fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_s_service_process_waits_for_its_first_rank_and_ends_with_its_last() {
        let lifetime = Lifetime::new(true);
        assert!(!lifetime.over(false) && lifetime.over(true));
        assert!(lifetime.limit(false).is_some_and(|left| left <= FIRST_RANK));
        assert_eq!(lifetime.limit(true), None);
        let expired = Lifetime(Some(Instant::now()));
        assert!(expired.over(false));
        assert!(!Lifetime::new(false).over(true) && Lifetime::new(false).limit(false).is_none());
    }

    #[test]
    fn the_job_directory_is_removed_unless_a_rank_holds_its_lock() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("job");
        std::fs::create_dir(&directory).expect("fresh");
        let lock = outboard_shm::lock::lock(&directory.join("lock"), Instant::now()).expect("free");
        std::fs::write(directory.join("log"), "x").expect("fresh");
        assert!(LockedJobDirectory::begin(&directory).is_none());
        drop(lock);
        LockedJobDirectory::begin(&directory).expect("free again").finish();
        assert!(!directory.exists());
    }
}
