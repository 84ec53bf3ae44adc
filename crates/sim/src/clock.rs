//! Virtual time: the queue of what is going to happen.
//!
//! Invariants: time never runs backwards; what is due at the same instant happens in the order in which it was put in,
//! so that a run depends on its seed alone. Never looks at a real clock.

use std::collections::BTreeMap;

use outboard_proto::Instant;

/// When something is due, and which of what is due then it is.
pub(crate) type Due = (Instant, u64);

/// What is going to happen, by virtual time.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    coming: BTreeMap<Due, E>,
    /// When what was taken out last was due.
    due: Due,
    put_in: u64,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        EventQueue { coming: BTreeMap::new(), due: (Instant(0), 0), put_in: 0 }
    }

    /// The instant of what was taken out last.
    pub(crate) fn now(&self) -> Instant {
        self.due.0
    }

    /// When what was taken out last was due.
    pub(crate) fn due(&self) -> Due {
        self.due
    }

    /// The place of something that happens without being an event.
    pub(crate) fn pass(&mut self, at: Instant) -> Due {
        self.put_in += 1;
        (at.max(self.now()), self.put_in)
    }

    /// Puts in an event; one that should have happened already happens now.
    pub(crate) fn put(&mut self, at: Instant, event: E) -> Due {
        let due = self.pass(at);
        self.coming.insert(due, event);
        due
    }

    /// Takes out the next event and moves the clock to it.
    pub(crate) fn take(&mut self) -> Option<E> {
        let (due, event) = self.coming.pop_first()?;
        self.due = due;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_out_by_time_then_by_order_put_in() {
        let mut q = EventQueue::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (6, 'e'), (3, 'b')] {
            q.put(Instant(at), event);
        }
        let taken: String = std::iter::from_fn(|| q.take()).collect();
        assert_eq!((taken.as_str(), q.now()), ("abcde", Instant(6)));
        q.put(Instant(2), 'f');
        assert_eq!((q.take(), q.now()), (Some('f'), Instant(6)), "the past happens now");
    }
}
