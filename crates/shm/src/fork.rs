//! Detects a fork without a system call: the kernel wipes a page in children.
//!
//! Invariant: the page holds its mark in the process that made the guard and zero in every child.

use crate::sync::{AtomicU32, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;

const PAGE: usize = 4096;
const MARK: u32 = 0x5eed_cafe;

/// Distinguishes the process that made the guard from children forked later.
#[derive(Debug)]
pub struct ForkGuard {
    page: NonNull<AtomicU32>,
}

// SAFETY: the page holds an atomic that is written once, before the guard is shared.
unsafe impl Send for ForkGuard {}
// SAFETY: shared access only reads the atomic.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// A guard for the calling process.
    ///
    /// # Errors
    /// If the kernel gives no page or, before Linux 4.14, cannot wipe the page on fork.
    pub fn new() -> rustix::io::Result<ForkGuard> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let guard = ForkGuard { page: NonNull::new(page.cast()).ok_or(rustix::io::Errno::NOMEM)? };
        // SAFETY: the page is ours and private; the advice concerns children only.
        unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) }?;
        guard.word().store(MARK, Ordering::Relaxed);
        Ok(guard)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped while the guard lives, zeroed or marked, aligned.
        unsafe { self.page.as_ref() }
    }

    /// Whether the calling process is a child, forked after the guard was made.
    pub fn forked(&self) -> bool {
        self.word().load(Ordering::Relaxed) != MARK
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the page is ours and the borrow of its word has ended.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn the_child_sees_the_fork_and_the_parent_does_not() {
        let guard = ForkGuard::new().unwrap();
        assert!(!guard.forked());
        // SAFETY: the child only reads a word and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: leaves without running the parent's destructors.
            unsafe { libc::_exit(if guard.forked() { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `child` is our own child, `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(!guard.forked());
    }
}
