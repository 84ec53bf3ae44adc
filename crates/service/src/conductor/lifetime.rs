//! How long a service process lives: until it is told to stop, or while ranks of its job are attached.
//!
//! A job's own service process was started by a rank (`client`'s own_daemon), which may be dead by the time we are
//! ready: without a first rank within [`FIRST_RANK`] it ends too.
//!
//! Invariant: the files of a job's directory are removed under the lock that ranks look for a service process under, so
//! nobody loses what it has just found; who has the lock goes on to start the next service process, which inherits the
//! rest.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the first rank may take to attach.
const FIRST_RANK: Duration = Duration::from_secs(30);

/// When a service process ends of its own accord: never, or with its last rank, the first of which must have attached
/// by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime(Option<Instant>);

impl Lifetime {
    pub(crate) fn new(exit_when_idle: bool) -> Lifetime {
        Lifetime(exit_when_idle.then(|| Instant::now() + FIRST_RANK))
    }

    /// Whether it is over while nobody is connected; `attached` says whether a rank ever was.
    pub(crate) fn over(self, attached: bool) -> bool {
        self.0.is_some_and(|first_until| attached || Instant::now() >= first_until)
    }

    /// Time until it may be over without anything happening.
    pub(crate) fn limit(self, attached: bool) -> Option<Duration> {
        let first_until = self.0.filter(|_| !attached)?;
        Some(first_until.saturating_duration_since(Instant::now()))
    }
}

/// The directory of a job's own service process, with its lock held.
#[derive(Debug)]
pub(crate) struct Leaving {
    directory: PathBuf,
    /// Gives the lock up when it is closed.
    _lock: OwnedFd,
}

impl Leaving {
    /// Takes the lock; none where a rank has it.
    pub(crate) fn begin(directory: &Path) -> Option<Leaving> {
        let lock = outboard_shm::lock::lock(&directory.join("lock"), Instant::now()).ok()?;
        Some(Leaving { directory: directory.to_owned(), _lock: lock })
    }

    /// Removes what is left in the directory once the socket is gone, and the directory.
    pub(crate) fn finish(self) {
        for name in ["log", "lock"] {
            if let Err(error) = std::fs::remove_file(self.directory.join(name)) {
                tracing::warn!(directory = %self.directory.display(), name, %error, "cannot remove a file of the job");
            }
        }
        // Not ours alone if somebody put more there.
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
    fn the_directory_goes_unless_a_rank_holds_its_lock() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("job");
        std::fs::create_dir(&directory).expect("fresh");
        let lock = outboard_shm::lock::lock(&directory.join("lock"), Instant::now()).expect("free");
        std::fs::write(directory.join("log"), "x").expect("fresh");
        assert!(Leaving::begin(&directory).is_none());
        drop(lock);
        Leaving::begin(&directory).expect("free again").finish();
        assert!(!directory.exists());
    }
}
