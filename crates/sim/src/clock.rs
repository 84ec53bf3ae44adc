//! Virtual time: the queue of what is going to happen.
//!
//! Invariants: time never runs backwards; what is due at the same instant happens in the order in which it was put
//! in, so that a run depends on its seed alone. Never looks at a real clock.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use outboard_proto::Instant;

/// What is going to happen, by virtual time.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    now: Instant,
    put_in: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Instant,
    number: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        EventQueue { heap: BinaryHeap::new(), now: Instant(0), put_in: 0 }
    }

    /// The instant of what was taken out last.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Puts in an event; one that should have happened already happens now.
    pub(crate) fn put(&mut self, at: Instant, event: E) {
        self.put_in += 1;
        self.heap.push(Entry { at: at.max(self.now), number: self.put_in, event });
    }

    /// Takes out the next event and moves the clock to it.
    pub(crate) fn take(&mut self) -> Option<E> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed: the heap yields the greatest, we want the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_out_by_time_then_by_order_put_in() {
        let mut q = EventQueue::new();
        q.put(Instant(5), 'c');
        q.put(Instant(1), 'a');
        q.put(Instant(5), 'd');
        q.put(Instant(3), 'b');
        let taken: String = std::iter::from_fn(|| q.take()).collect();
        assert_eq!(taken, "abcd");
        assert_eq!(q.now(), Instant(5));
        q.put(Instant(2), 'e');
        assert_eq!(q.take(), Some('e'));
        assert_eq!(q.now(), Instant(5), "the past happens now");
    }
}
