//! Virtual time: the queue of pending events.
//!
//! Invariants: time never runs backwards. Events due at the same instant happen in the order in which they were put in,
//! so a run depends on its seed alone. Never reads a real clock.

use std::collections::BTreeMap;

use outboard_proto::Instant;

/// The instant of an event, and its place among the events of that instant.
pub(crate) type Due = (Instant, u64);

/// Pending events by virtual time.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    coming: BTreeMap<Due, E>,
    /// When the event taken out last was due.
    due: Due,
    scheduled: u64,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        EventQueue { coming: BTreeMap::new(), due: (Instant(0), 0), scheduled: 0 }
    }

    /// The instant of the event taken out last.
    pub(crate) fn now(&self) -> Instant {
        self.due.0
    }

    /// When the event taken out last was due.
    pub(crate) fn due(&self) -> Due {
        self.due
    }

    /// Assigns a place in the order to something that happens without being an event.
    pub(crate) fn reserve(&mut self, at: Instant) -> Due {
        self.scheduled += 1;
        (at.max(self.now()), self.scheduled)
    }

    /// Schedules an event. An event whose time has passed happens now.
    pub(crate) fn schedule(&mut self, at: Instant, event: E) -> Due {
        let due = self.reserve(at);
        self.coming.insert(due, event);
        due
    }

    /// Takes out the next event and moves the clock to it.
    pub(crate) fn pop(&mut self) -> Option<E> {
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
            q.schedule(Instant(at), event);
        }
        let taken: String = std::iter::from_fn(|| q.pop()).collect();
        assert_eq!((taken.as_str(), q.now()), ("abcde", Instant(6)));
        q.schedule(Instant(2), 'f');
        assert_eq!((q.pop(), q.now()), (Some('f'), Instant(6)), "the past happens now");
    }
}
