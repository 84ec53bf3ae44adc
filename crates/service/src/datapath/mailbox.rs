//! The bounded queue from the datapath threads to the conductor, which sleeps in epoll.
//!
//! Invariants: a post to a sleeping conductor makes the descriptor readable; posts to an awake conductor make no system
//! call. No wake-up is lost: the conductor raises its flag before it checks the queue again, and a poster checks the
//! flag after it has queued its item. Both access the flag under the flag's lock. No item is dropped while the
//! conductor lives: a full mailbox blocks the poster, and the kernel's socket buffer absorbs datagrams meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// The flag and the bell with which posters wake the conductor.
#[derive(Debug)]
struct ConductorWaker {
    /// The conductor sleeps or is about to.
    asleep: Mutex<bool>,
    bell: OwnedFd,
}

impl ConductorWaker {
    fn asleep(&self) -> MutexGuard<'_, bool> {
        self.asleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The conductor's end of the mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    queue: Receiver<T>,
    /// An item found while the conductor was preparing to sleep.
    next: Option<T>,
    post: SyncSender<T>,
    waker: Arc<ConductorWaker>,
}

/// A datapath thread's end of the mailbox.
#[derive(Debug)]
pub(crate) struct Poster<T> {
    post: SyncSender<T>,
    waker: Arc<ConductorWaker>,
}

impl<T> Mailbox<T> {
    /// Makes an empty mailbox for at most `capacity` items. Fails if no descriptor is left for the bell.
    pub(crate) fn new(capacity: usize) -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (post, queue) = sync_channel(capacity);
        Ok(Mailbox { queue, next: None, post, waker: Arc::new(ConductorWaker { asleep: Mutex::default(), bell }) })
    }

    pub(crate) fn poster(&self) -> Poster<T> {
        Poster { post: self.post.clone(), waker: Arc::clone(&self.waker) }
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.next.take().or_else(|| self.queue.try_recv().ok())
    }

    /// Prepares a sleep. Returns true if the mailbox is empty and the next post rings the bell. Otherwise call
    /// [`take`](Self::take) again.
    #[must_use]
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let mut asleep = self.waker.asleep();
        self.next = self.next.take().or_else(|| self.queue.try_recv().ok());
        *asleep = self.next.is_none();
        *asleep
    }

    /// Lowers the flag; to be called after every sleep, whatever ended it.
    pub(crate) fn stay_awake(&self) {
        *self.waker.asleep() = false;
    }

    /// Empties the bell; to be called when the bell has ended a sleep.
    pub(crate) fn clear_bell(&self) {
        // Fails only if there is nothing to read, and then the bell is silent already.
        let _ = rustix::io::read(&self.waker.bell, &mut [0; 8]);
    }

    /// Becomes readable when a post finds the conductor asleep.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.waker.bell.as_fd()
    }
}

impl<T> Poster<T> {
    /// Appends an item and waits for room. Returns false if the conductor is gone.
    #[must_use]
    pub(crate) fn post(&self, item: T) -> bool {
        let posted = self.post.send(item).is_ok();
        if posted && std::mem::take(&mut *self.waker.asleep()) {
            // Fails only if the counter is at its maximum, and then the bell is readable already.
            let _ = rustix::io::write(&self.waker.bell, &1u64.to_ne_bytes());
        }
        posted
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
    fn a_post_rings_only_for_a_sleeping_conductor() {
        let mut mailbox = Mailbox::new(4).expect("eventfd");
        let poster = mailbox.poster();
        assert!(poster.post(1));
        assert!(!rung(&mailbox));
        assert!(!mailbox.prepare_sleep(), "an item waits");
        assert_eq!(mailbox.take(), Some(1));
        assert!(mailbox.prepare_sleep());
        assert!(poster.post(2));
        assert!(rung(&mailbox));
        mailbox.stay_awake();
        mailbox.clear_bell();
        assert!(!rung(&mailbox));
        assert_eq!((mailbox.take(), mailbox.take()), (Some(2), None));
    }

    #[test]
    fn a_full_mailbox_makes_posters_wait_and_loses_nothing() {
        let mut mailbox = Mailbox::new(2).expect("eventfd");
        let poster = mailbox.poster();
        let thread = std::thread::spawn(move || (0..1000).all(|item| poster.post(item)));
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
        assert!(thread.join().expect("no panic"));
    }

    #[test]
    fn a_blocked_poster_returns_when_the_mailbox_is_dropped() {
        let mailbox = Mailbox::new(1).expect("eventfd");
        let poster = mailbox.poster();
        assert!(poster.post(1));
        let thread = std::thread::spawn(move || poster.post(2));
        drop(mailbox);
        assert!(!thread.join().expect("no panic"));
    }
}
