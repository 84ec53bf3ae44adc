//! Descriptors that another process made. Whose close is the last one waits for whatever the file wants then: a socket
//! lingers until its peer reads, a file in user space until its server answers, the kernel takes the pages of memory
//! back. So another thread closes them.
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

/// For whoever has seen what it is, and answers for its close from then on.
impl From<Foreign> for OwnedFd {
    fn from(mut foreign: Foreign) -> Self {
        foreign.0.take().expect("taken out here or by `drop`, which both end it")
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("taken out with its end").as_fd()
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
            // Memory of the kernel's does not wait for what may wait for ever.
            _ if fcntl_get_seals(&descriptor).is_ok() => drop_elsewhere(descriptor),
            _ => UNBOUNDED.put(Box::new(move || close(descriptor))),
        }
    }
}

/// Drops what takes the kernel a while, such as memory whose pages it takes back, in a thread beside this one.
pub fn drop_elsewhere<T: Send + 'static>(what: T) {
    elsewhere(move || drop(what));
}

/// Does what takes the kernel a while and ends by itself in a thread beside this one.
pub fn elsewhere(act: impl FnOnce() + Send + 'static) {
    BOUNDED.put(Box::new(act));
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

/// What ends by itself: connections, once they are empty, refusals, and memory.
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;
    use crate::memory::{MemfdRanges, MemoryDescriptor};
    use crate::region::{Sealed, sealed};

    const LINGER: Duration = Duration::from_secs(3);

    /// A socket whose close takes as long, since its other end, which is kept, does not read.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
        (socket.into(), other)
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs sockets")]
    fn whoever_refuses_a_descriptor_does_not_wait_for_its_close() {
        let (sockets, _others): (Vec<OwnedFd>, Vec<TcpStream>) = (0..6).map(|_| lingering()).unzip();
        let [unsealed, empty, surplus, message, memory, unused] = <[OwnedFd; 6]>::try_from(sockets).unwrap();
        let ranges = MemfdRanges::bounded(1, 1);
        let before = Instant::now();
        assert!(ranges.register(0x1000, 4096, unsealed).is_err());
        assert!(ranges.register(0x1000, 0, empty).is_err());
        ranges.register(0x1000, 4096, sealed("test", 4096).unwrap()).unwrap();
        assert!(ranges.register(0x2000, 4096, surplus).is_err());
        assert!(Sealed::check(message, 4096).is_err());
        assert!(MemoryDescriptor::attach(memory, 1).is_err());
        drop(Foreign::from(unused));
        assert!(before.elapsed() < LINGER);
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memfd_create")]
    fn what_is_taken_out_stays_open() {
        let memory = OwnedFd::from(Foreign::from(sealed("test", 4096).unwrap()));
        assert_eq!(rustix::fs::fstat(&memory).unwrap().st_size, 4096);
    }
}
