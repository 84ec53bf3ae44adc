//! The bounded queue from the datapath threads to the conductor, which sleeps in epoll.
//!
//! Invariants: never more than `capacity` items; a post to a sleeping conductor makes the descriptor readable; posts to
//! an awake one make no system call. Flag and queue change under one lock, so no wake-up is lost. Never drops an item
//! while the conductor lives: a full mailbox makes the poster wait, and the kernel's socket buffer absorbs meanwhile.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    capacity: usize,
    /// The conductor sleeps or is about to.
    asleep: bool,
    /// The conductor is gone: items are refused.
    closed: bool,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    room: Condvar,
    bell: OwnedFd,
}

impl<T> Shared<T> {
    /// A poisoned state is whole: no code panics while it holds the lock half way through a change.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The conductor's end.
#[derive(Debug)]
pub(crate) struct Mailbox<T>(Arc<Shared<T>>);

/// A datapath thread's end.
#[derive(Debug)]
pub(crate) struct Poster<T>(Arc<Shared<T>>);

impl<T> Clone for Poster<T> {
    fn clone(&self) -> Self {
        Poster(Arc::clone(&self.0))
    }
}

/// The conductor is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the conductor has ended")]
pub(crate) struct Closed;

impl<T> Mailbox<T> {
    /// An empty mailbox for at most `capacity` items.
    ///
    /// # Errors
    /// When no descriptor is left for the bell.
    pub(crate) fn new(capacity: usize) -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = State { queue: VecDeque::with_capacity(capacity), capacity, asleep: false, closed: false };
        Ok(Mailbox(Arc::new(Shared { state: Mutex::new(state), room: Condvar::new(), bell })))
    }

    pub(crate) fn poster(&self) -> Poster<T> {
        Poster(Arc::clone(&self.0))
    }

    /// The oldest item.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.0.lock();
        let item = state.queue.pop_front();
        if item.is_some() && state.queue.len() + 1 == state.capacity {
            drop(state);
            self.0.room.notify_all();
        }
        item
    }

    /// `true`: nothing waits, the next post rings. `false`: [`take`](Self::take) again.
    #[must_use]
    pub(crate) fn prepare_sleep(&self) -> bool {
        let mut state = self.0.lock();
        state.asleep = state.queue.is_empty();
        state.asleep
    }

    /// After every sleep, whatever ended it.
    pub(crate) fn stay_awake(&self) {
        self.0.lock().asleep = false;
    }

    /// When the bell has ended a sleep.
    pub(crate) fn silence(&self) {
        // Fails only when there is nothing to read, and then the bell is silent.
        let _ = rustix::io::read(&self.0.bell, &mut [0; 8]);
    }

    /// Readable when a post found the conductor asleep.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.queue.clear();
        drop(state);
        self.0.room.notify_all();
    }
}

impl<T> Poster<T> {
    /// Appends an item, waiting for room.
    ///
    /// # Errors
    /// [`Closed`] when nobody will take it.
    pub(crate) fn post(&self, item: T) -> Result<(), Closed> {
        let mut state = self.0.lock();
        while state.queue.len() >= state.capacity && !state.closed {
            state = self.0.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Err(Closed);
        }
        state.queue.push_back(item);
        let ring = std::mem::take(&mut state.asleep);
        drop(state);
        if ring {
            // Fails only when the counter is at its end, and then the bell is ringing.
            let _ = rustix::io::write(&self.0.bell, &1u64.to_ne_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn rung(mailbox: &Mailbox<u32>) -> bool {
        let mut watched = [PollFd::from_borrowed_fd(mailbox.bell(), PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).expect("poll") == 1
    }

    #[test]
    fn the_bell_rings_for_a_sleeper_alone() {
        let mailbox = Mailbox::new(4).expect("eventfd");
        let poster = mailbox.poster();
        poster.post(1).expect("open");
        assert!(!rung(&mailbox));
        assert!(!mailbox.prepare_sleep(), "an item waits");
        assert_eq!(mailbox.take(), Some(1));
        assert!(mailbox.prepare_sleep());
        poster.post(2).expect("open");
        assert!(rung(&mailbox));
        mailbox.stay_awake();
        mailbox.silence();
        assert!(!rung(&mailbox));
        assert_eq!((mailbox.take(), mailbox.take()), (Some(2), None));
    }

    #[test]
    fn a_full_mailbox_makes_posters_wait_and_loses_nothing() {
        let mailbox = Mailbox::new(2).expect("eventfd");
        let poster = mailbox.poster();
        let thread = std::thread::spawn(move || (0..1000).try_for_each(|item| poster.post(item)));
        let mut expected = 0;
        while expected < 1000 {
            match mailbox.take() {
                Some(item) => {
                    assert_eq!(item, expected);
                    expected += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        assert_eq!(thread.join().expect("no panic"), Ok(()));
    }

    #[test]
    fn a_poster_that_waits_learns_of_the_end() {
        let mailbox = Mailbox::new(1).expect("eventfd");
        let poster = mailbox.poster();
        poster.post(1).expect("open");
        let thread = std::thread::spawn(move || poster.post(2));
        drop(mailbox);
        assert_eq!(thread.join().expect("no panic"), Err(Closed));
    }
}
