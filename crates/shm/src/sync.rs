//! The atomics and the futex on which the protocols of this crate are built: the real ones, or loom's models.
//!
//! Invariant: nothing outside this module names `std::sync::atomic` or `loom` in code that loom checks.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use std::time::Duration;

/// A 32-bit word that threads of several processes can sleep on.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Futex(AtomicU32);

#[cfg(not(loom))]
impl Futex {
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Sleeps while the word holds `expected`, at most `timeout`; may return early.
    pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|limit| rustix::thread::Timespec::try_from(limit).ok());
        // The caller checks its condition after every outcome (woken, changed, interrupted, timed out).
        #[cfg(not(miri))]
        let _ = rustix::thread::futex::wait(&self.0, rustix::thread::futex::Flags::empty(), expected, timeout.as_ref());
        // Miri requires the word's pointer type, which rustix does not pass.
        #[cfg(miri)]
        {
            let timeout = timeout.map(|limit| libc::timespec { tv_sec: limit.tv_sec, tv_nsec: limit.tv_nsec });
            let limit = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: the word and the limit outlive the call.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAIT, expected, limit) };
        }
    }

    pub(crate) fn wake_all(&self) {
        // A wake fails only for an unmapped or unaligned word, and this one is neither.
        #[cfg(not(miri))]
        let _ = rustix::thread::futex::wake(&self.0, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
        #[cfg(miri)]
        // SAFETY: the word outlives the call.
        unsafe {
            libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE, i32::MAX)
        };
    }
}

/// Loom's model of a futex: compare and sleep are one step under a lock, as in the kernel.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Futex {
    word: AtomicU32,
    bucket: loom::sync::Mutex<()>,
    sleepers: loom::sync::Condvar,
}

#[cfg(loom)]
impl Futex {
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// The model never times out, so that a lost wake-up shows as a deadlock.
    pub(crate) fn wait(&self, expected: u32, _timeout: Option<Duration>) {
        let bucket = self.bucket.lock().expect("model lock");
        if self.word.load(Ordering::Relaxed) == expected {
            drop(self.sleepers.wait(bucket).expect("model lock"));
        }
    }

    pub(crate) fn wake_all(&self) {
        drop(self.bucket.lock().expect("model lock"));
        self.sleepers.notify_all();
    }
}

/// Keeps its content on separate cache lines (two, since prefetchers fetch pairs).
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

/// Makes loom explore every order of steps with at most three preemptions.
#[cfg(all(test, loom))]
pub(crate) fn check_model(story: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(story);
}
