//! Descriptors that another process made. Whose close is the last one waits for whatever the file wants then: a socket
//! lingers until its peer reads, a file in user space until its server answers. So another thread closes them.
//!
//! Invariants: nobody who drops a [`Foreign`] waits for its file; at most twice [`MOST`] threads do this, and what is
//! to be closed beyond that waits for them. They end when they have nothing to do.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::fs::fcntl_get_seals;
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, sockopt};

use crate::memory::is_of_procfs;

/// Threads of each kind.
const MOST: usize = 64;
/// How long a thread waits for something else to do.
const REST: Duration = Duration::from_secs(1);
/// Messages of a connection that are taken out before it is closed; the rest of them are the kernel's to close.
const MOST_MESSAGES: usize = 1024;
/// Descriptors of one message, as the kernel bounds them (`SCM_MAX_FD`).
pub(super) const MOST_DESCRIPTORS: usize = 253;

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

/// Whether a descriptor is of a kind that ranks hand over, whose close keeps nobody waiting: memory of the kernel's, an
/// address space. A service process hands over a counter, too; a rank could have it waited for by its own poller. Told
/// from what the kernel knows by itself.
pub(super) fn is_known(descriptor: BorrowedFd<'_>, of_rank: bool) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap_or_default();
    link.ends_with("mem") && is_of_procfs(descriptor)
        || !of_rank && link == Path::new("anon_inode:[eventfd]")
        || fcntl_get_seals(descriptor).is_ok()
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let Some(descriptor) = self.0.take() else { return };
        match sockopt::socket_domain(&descriptor) {
            Ok(AddressFamily::UNIX) => BOUNDED.put(Box::new(move || empty(&descriptor))),
            _ => UNBOUNDED.put(Box::new(move || close(descriptor))),
        }
    }
}

/// Drops what takes the kernel a while, such as memory whose pages it takes back, in a thread beside this one.
pub(crate) fn drop_elsewhere<T: Send + 'static>(what: T) {
    BOUNDED.put(Box::new(move || drop(what)));
}

/// Takes out what has been sent along a connection and not been received: the kernel would close that with it.
fn empty(connection: &OwnedFd) {
    let mut bytes = [0; 4096];
    for _ in 0..MOST_MESSAGES {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
                rights.map(Foreign::from).for_each(drop);
            }
        }
        // An empty message looks like the end.
        if received.is_err() {
            return;
        }
    }
}

/// Closes what may be anything. A socket whose peer does not read is not waited for.
fn close(descriptor: OwnedFd) {
    // Of what is no socket there is nothing to set.
    let _ = sockopt::set_socket_linger(&descriptor, None);
    drop(descriptor);
}

type Closing = Box<dyn FnOnce() + Send>;

/// Threads that do what others must not wait for.
struct Threads {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    waiting: VecDeque<Closing>,
    threads: usize,
    idle: usize,
}

/// What ends by itself: connections, once they are empty, and memory.
static BOUNDED: Threads = Threads::new();
/// What may wait for as long as somebody else likes, as a file in user space may whose server does not answer. Whoever
/// keeps all of these threads waiting keeps descriptors open that were sent here, and no connection.
static UNBOUNDED: Threads = Threads::new();

impl Threads {
    const fn new() -> Self {
        let state = State { waiting: VecDeque::new(), threads: 0, idle: 0 };
        Threads { state: Mutex::new(state), wake: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&'static self, closing: Closing) {
        let mut state = self.state();
        state.waiting.push_back(closing);
        if state.waiting.len() > state.idle && state.threads < MOST {
            let thread = std::thread::Builder::new().name("closer".to_owned()).spawn(|| self.work());
            state.threads += usize::from(thread.is_ok());
        }
        self.wake.notify_one();
    }

    /// Does what waits until nothing has come for a while.
    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(closing) = state.waiting.pop_front() {
                drop(state);
                closing();
                state = self.state();
                continue;
            }
            state.idle += 1;
            let (guard, rest) = self.wake.wait_timeout(state, REST).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if rest.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
