//! Descriptors that another process made. Whose close is the last one waits for whatever the file wants then: a socket
//! lingers until its peer reads, a file in user space until its server answers. So another thread closes them.
//!
//! Invariants: nobody who drops a [`Foreign`] waits for its file; at most [`MOST`] threads wait, and what is to be
//! closed beyond that waits for them. They end when they have nothing to do.

use crate::memory::is_of_procfs;
use rustix::fs::fcntl_get_seals;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads that close. Whoever keeps all of them waiting keeps descriptors open, and nobody else.
const MOST: usize = 64;
/// How long a thread waits for another descriptor.
const REST: Duration = Duration::from_secs(1);

/// A descriptor that another process made.
#[derive(Debug)]
pub struct Foreign(Option<OwnedFd>);

impl From<OwnedFd> for Foreign {
    fn from(descriptor: OwnedFd) -> Self {
        Foreign(Some(descriptor))
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("taken out by `drop` alone").as_fd()
    }
}

/// Whether a descriptor is of a kind that ranks and service processes hand over, none of which keeps anybody waiting:
/// memory of the kernel's, an address space, a counter. Told from what the kernel knows by itself.
pub(super) fn is_known(descriptor: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap_or_default();
    link.ends_with("mem") && is_of_procfs(descriptor)
        || link == Path::new("anon_inode:[eventfd]")
        || fcntl_get_seals(descriptor).is_ok()
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(close);
    }
}

struct Closers {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    idle: usize,
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers { waiting: VecDeque::new(), threads: 0, idle: 0 });
static WAKE: Condvar = Condvar::new();

fn closers() -> MutexGuard<'static, Closers> {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close(descriptor: OwnedFd) {
    let mut closers = closers();
    closers.waiting.push_back(descriptor);
    if closers.waiting.len() > closers.idle && closers.threads < MOST {
        let thread = std::thread::Builder::new().name("closer".to_owned()).spawn(close_all);
        closers.threads += usize::from(thread.is_ok());
    }
    WAKE.notify_one();
}

/// Closes what waits until nothing has come for a while.
fn close_all() {
    let mut closers = closers();
    loop {
        if let Some(descriptor) = closers.waiting.pop_front() {
            drop(closers);
            drop(descriptor);
            closers = self::closers();
            continue;
        }
        closers.idle += 1;
        let (guard, rest) = WAKE.wait_timeout(closers, REST).unwrap_or_else(PoisonError::into_inner);
        closers = guard;
        closers.idle -= 1;
        if rest.timed_out() && closers.waiting.is_empty() {
            closers.threads -= 1;
            return;
        }
    }
}
