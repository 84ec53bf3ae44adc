//! Virtual time: the queue of what is going to happen.
//!
//! What arrives over one link arrives in order, so it waits in a lane of its own, of which the heap knows the first event
//! alone: the heap grows with the hosts, not with what is under way.
//!
//! Invariants: time never runs backwards; what is due at the same instant happens in the order in which it was put
//! in, lane or not, so that a run depends on its seed alone. Never looks at a real clock.

use std::cmp::Ordering;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

use outboard_proto::Instant;

/// What is going to happen, by virtual time.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    lanes: Vec<VecDeque<Entry<E>>>,
    /// The lanes that are not empty, by their first events.
    heads: BinaryHeap<Entry<usize>>,
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
    pub(crate) fn new(lanes: usize) -> Self {
        let lanes = (0..lanes).map(|_| VecDeque::new()).collect();
        EventQueue { heap: BinaryHeap::new(), lanes, heads: BinaryHeap::new(), now: Instant(0), put_in: 0 }
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

    /// The same, of an event that happens behind those of its lane as a rule.
    pub(crate) fn put_in_lane(&mut self, lane: usize, at: Instant, event: E) {
        let waiting = &mut self.lanes[lane];
        if waiting.back().is_some_and(|last| at < last.at) {
            return self.put(at, event);
        }
        self.put_in += 1;
        let entry = Entry { at: at.max(self.now), number: self.put_in, event };
        if waiting.is_empty() {
            self.heads.push(Entry { at: entry.at, number: entry.number, event: lane });
        }
        waiting.push_back(entry);
    }

    /// Takes out the next event and moves the clock to it.
    pub(crate) fn take(&mut self) -> Option<E> {
        let taken = match self.heads.peek_mut() {
            Some(mut head) if self.heap.peek().is_none_or(|first| head.due() < first.due()) => {
                let lane = &mut self.lanes[head.event];
                let taken = lane.pop_front()?;
                match lane.front() {
                    Some(next) => (head.at, head.number) = next.due(),
                    None => drop(PeekMut::pop(head)),
                }
                taken
            }
            _ => self.heap.pop()?,
        };
        self.now = taken.at;
        Some(taken.event)
    }
}

impl<E> Entry<E> {
    fn due(&self) -> (Instant, u64) {
        (self.at, self.number)
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
        other.due().cmp(&self.due())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_out_by_time_then_by_order_put_in() {
        let mut q = EventQueue::new(2);
        q.put(Instant(5), 'd');
        q.put(Instant(1), 'a');
        q.put_in_lane(1, Instant(5), 'e');
        q.put_in_lane(1, Instant(6), 'h');
        q.put_in_lane(1, Instant(4), 'c');
        q.put_in_lane(0, Instant(5), 'f');
        q.put(Instant(5), 'g');
        q.put(Instant(3), 'b');
        let taken: String = std::iter::from_fn(|| q.take()).collect();
        assert_eq!(taken, "abcdefgh");
        assert_eq!(q.now(), Instant(6));
        q.put(Instant(2), 'i');
        assert_eq!(q.take(), Some('i'));
        assert_eq!(q.now(), Instant(6), "the past happens now");
    }
}
