//! The conductor's epoll set, with a token for each descriptor.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

/// Wake-ups handled per sleep; the next sleep returns the rest at once.
const BATCH: usize = 64;

/// The descriptor that woke the conductor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeToken {
    /// The caller requests the end of the daemon.
    Stop,
    Fabric,
    /// The mailbox of the datapath threads.
    Mailbox,
    Datapath,
    /// The engine beside the service process has ended lists.
    Engine,
    /// A connection waits at the attach socket.
    Attach,
    /// A connection waits at the statistics socket.
    Statistics,
    /// A rank has sent a message or has disconnected.
    Channel(u64),
    Process(u64),
    /// A rank submitted a call while the conductor slept.
    Doorbell(u64),
}

const KIND_SHIFT: u32 = 56;
/// Tokens without a number; a token's index is its code.
const PLAIN: [WakeToken; 7] = [
    WakeToken::Stop,
    WakeToken::Fabric,
    WakeToken::Mailbox,
    WakeToken::Attach,
    WakeToken::Statistics,
    WakeToken::Engine,
    WakeToken::Datapath,
];

impl WakeToken {
    fn encode(self) -> u64 {
        match self {
            WakeToken::Channel(id) => 1 << KIND_SHIFT | id,
            WakeToken::Process(id) => 2 << KIND_SHIFT | id,
            WakeToken::Doorbell(id) => 3 << KIND_SHIFT | id,
            plain => PLAIN.iter().zip(0..).find(|(token, _)| **token == plain).expect("all of them are listed").1,
        }
    }

    fn decode(word: u64) -> WakeToken {
        let id = word & ((1 << KIND_SHIFT) - 1);
        match word >> KIND_SHIFT {
            0 => PLAIN[id as usize],
            1 => WakeToken::Channel(id),
            2 => WakeToken::Process(id),
            _ => WakeToken::Doorbell(id),
        }
    }
}

/// Condition under which a descriptor wakes the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Wakes the thread as long as the descriptor is readable or hung up.
    Level,
    Edge,
}

/// The epoll set that a thread sleeps on.
pub struct Poller {
    epoll: OwnedFd,
    woken: Vec<epoll::Event>,
}

impl Poller {
    pub fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poller { epoll, woken: Vec::with_capacity(BATCH) })
    }

    /// Watches a descriptor, which wakes the thread with this token from now on.
    pub fn watch(&self, fd: impl AsFd, token: WakeToken, trigger: Trigger) -> Result<(), Errno> {
        let flags = match trigger {
            Trigger::Level => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            Trigger::Edge => epoll::EventFlags::IN | epoll::EventFlags::ET,
        };
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token.encode()), flags)
    }

    /// Stops watching a descriptor. This must precede the close if another process shares the descriptor: a close here
    /// alone does not end the watch.
    pub fn unwatch(&self, fd: impl AsFd) {
        if let Err(errno) = epoll::delete(&self.epoll, fd) {
            tracing::warn!(%errno, "cannot stop watching a descriptor");
        }
    }

    /// Sleeps until a descriptor is readable or `limit` has passed; without a limit, until a descriptor is readable.
    pub fn sleep(&mut self, limit: Option<Duration>) -> Result<Vec<WakeToken>, Errno> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        self.woken.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.woken), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::NOSYS) => return self.sleep_in_two_steps(limit.as_ref()),
            Err(errno) => return Err(errno),
        }
        Ok(self.woken.iter().map(|event| WakeToken::decode(event.data.u64())).collect())
    }

    /// Replaces `sleep` on kernels before 5.11, which DPUs may have: their `epoll_wait` counts in milliseconds.
    fn sleep_in_two_steps(&self, limit: Option<&Timespec>) -> Result<Vec<WakeToken>, Errno> {
        let mut watched = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut watched, limit) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        let mut woken = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        // SAFETY: the array has room for the number of events that is passed.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), woken.as_mut_ptr(), BATCH as libc::c_int, 0) };
        match usize::try_from(count) {
            Ok(count) => Ok(woken[..count].iter().map(|event| WakeToken::decode(event.u64)).collect()),
            Err(_) => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::INTR) => Ok(Vec::new()),
                errno => Err(errno.unwrap_or(Errno::IO)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels before 5.11 take this path.
    #[test]
    fn sleep_in_two_steps_reports_each_edge_once() {
        let poller = Poller::new().expect("a descriptor");
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor");
        poller.watch(&bell, WakeToken::Doorbell(3), Trigger::Edge).expect("watched");
        let now = Timespec::default();
        assert_eq!(poller.sleep_in_two_steps(Some(&now)), Ok(Vec::new()));
        rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("rung");
        assert_eq!(poller.sleep_in_two_steps(None), Ok(vec![WakeToken::Doorbell(3)]));
        assert_eq!(poller.sleep_in_two_steps(Some(&now)), Ok(Vec::new()), "an edge is told once");
    }

    #[test]
    fn tokens_decode_to_what_was_encoded() {
        for token in
            PLAIN.into_iter().chain([WakeToken::Channel(7), WakeToken::Process(1 << 40), WakeToken::Doorbell(0)])
        {
            assert_eq!(WakeToken::decode(token.encode()), token);
        }
    }
}
