//! What the conductor sleeps on: epoll with a token per descriptor.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

/// Wake-ups taken per sleep; the rest come with the next.
const BATCH: usize = 64;

/// Which descriptor woke the conductor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The caller wants the daemon to end.
    Stop,
    Fabric,
    /// The mailbox of the datapath threads.
    Mailbox,
    Datapath,
    /// The engine beside the service process has something to tell.
    Engine,
    /// A connection waits at the attach socket.
    Attach,
    /// A connection waits at the statistics socket.
    Statistics,
    /// A rank's message, or its end.
    Channel(u64),
    Process(u64),
    /// A rank submitted while we slept.
    Doorbell(u64),
}

const KIND_SHIFT: u32 = 56;
/// Tokens without a number, by what stands for them.
const PLAIN: [Token; 7] =
    [Token::Stop, Token::Fabric, Token::Mailbox, Token::Attach, Token::Statistics, Token::Engine, Token::Datapath];

impl Token {
    fn encode(self) -> u64 {
        match self {
            Token::Channel(id) => 1 << KIND_SHIFT | id,
            Token::Process(id) => 2 << KIND_SHIFT | id,
            Token::Doorbell(id) => 3 << KIND_SHIFT | id,
            plain => PLAIN.iter().zip(0..).find(|(token, _)| **token == plain).expect("all of them are listed").1,
        }
    }

    fn decode(word: u64) -> Token {
        let id = word & ((1 << KIND_SHIFT) - 1);
        match word >> KIND_SHIFT {
            0 => PLAIN[id as usize],
            1 => Token::Channel(id),
            2 => Token::Process(id),
            _ => Token::Doorbell(id),
        }
    }
}

/// When a descriptor wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// As long as it is readable or hung up.
    Level,
    Edge,
}

/// What a thread sleeps on.
pub struct Poller {
    epoll: OwnedFd,
    woken: Vec<epoll::Event>,
}

impl Poller {
    pub fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poller { epoll, woken: Vec::with_capacity(BATCH) })
    }

    /// From now on this descriptor wakes with this token.
    pub fn watch(&self, fd: impl AsFd, token: Token, trigger: Trigger) -> Result<(), Errno> {
        let flags = match trigger {
            Trigger::Level => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            Trigger::Edge => epoll::EventFlags::IN | epoll::EventFlags::ET,
        };
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token.encode()), flags)
    }

    /// Needed before a descriptor is closed that another process shares: closing ours alone does not end the watch.
    pub fn unwatch(&self, fd: impl AsFd) {
        if let Err(errno) = epoll::delete(&self.epoll, fd) {
            tracing::warn!(%errno, "cannot stop watching a descriptor");
        }
    }

    /// Sleeps until something is readable or `limit` has passed, for ever without one.
    pub fn sleep(&mut self, limit: Option<Duration>) -> Result<Vec<Token>, Errno> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        self.woken.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.woken), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::NOSYS) => return self.sleep_in_two_steps(limit.as_ref()),
            Err(errno) => return Err(errno),
        }
        Ok(self.woken.iter().map(|event| Token::decode(event.data.u64())).collect())
    }

    /// The same for kernels before 5.11, which DPUs may have, whose `epoll_wait` counts in milliseconds.
    fn sleep_in_two_steps(&self, limit: Option<&Timespec>) -> Result<Vec<Token>, Errno> {
        let mut watched = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut watched, limit) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        let mut woken = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        // SAFETY: the array has room for as many events as the call is told.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), woken.as_mut_ptr(), BATCH as libc::c_int, 0) };
        match usize::try_from(count) {
            Ok(count) => Ok(woken[..count].iter().map(|event| Token::decode(event.u64)).collect()),
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

    /// As on kernels before 5.11.
    #[test]
    fn two_steps_see_what_one_sees() {
        let poller = Poller::new().expect("a descriptor");
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor");
        poller.watch(&bell, Token::Doorbell(3), Trigger::Edge).expect("watched");
        let now = Timespec::default();
        assert_eq!(poller.sleep_in_two_steps(Some(&now)), Ok(Vec::new()));
        rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("rung");
        assert_eq!(poller.sleep_in_two_steps(None), Ok(vec![Token::Doorbell(3)]));
        assert_eq!(poller.sleep_in_two_steps(Some(&now)), Ok(Vec::new()), "an edge is told once");
    }

    #[test]
    fn tokens_come_back_as_they_went() {
        for token in PLAIN.into_iter().chain([Token::Channel(7), Token::Process(1 << 40), Token::Doorbell(0)]) {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
