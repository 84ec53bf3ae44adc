//! Virtual time: the queue of what is going to happen.
//!
//! What arrives over one link arrives in order, so it waits in a lane of its own, of which the heap knows the first
//! event alone: the heap grows with the hosts, not with what is under way.
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
    /// The lanes that are not empty, each once, by their first events or by ones that are gone already.
    heads: BinaryHeap<Entry<usize>>,
    has_head: Vec<bool>,
    /// When what was taken out last was due.
    due: Due,
    put_in: u64,
}

/// When something is due, and which of what is due then it is.
pub(crate) type Due = (Instant, u64);

#[derive(Debug)]
struct Entry<E> {
    due: Due,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new(lanes: usize) -> Self {
        let has_head = vec![false; lanes];
        let lanes = (0..lanes).map(|_| VecDeque::new()).collect();
        let (heap, heads) = (BinaryHeap::new(), BinaryHeap::new());
        EventQueue { heap, lanes, heads, has_head, due: (Instant(0), 0), put_in: 0 }
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
        self.heap.push(Entry { due, event });
        due
    }

    /// The same, of an event that happens behind those of its lane as a rule.
    pub(crate) fn put_in_lane(&mut self, lane: usize, at: Instant, event: E) {
        if self.lanes[lane].back().is_some_and(|last| at < last.due.0) {
            self.put(at, event);
            return;
        }
        let due = self.pass(at);
        let waiting = &mut self.lanes[lane];
        if !std::mem::replace(&mut self.has_head[lane], true) {
            self.heads.push(Entry { due, event: lane });
        }
        waiting.push_back(Entry { due, event });
    }

    /// Takes the first event out of a lane ahead of its time, if it is due before this.
    pub(crate) fn take_ahead(&mut self, lane: usize, before: Due) -> Option<(Due, E)> {
        let lane = &mut self.lanes[lane];
        let entry = if lane.front()?.due < before { lane.pop_front()? } else { return None };
        Some((entry.due, entry.event))
    }

    /// Lanes whose first events were taken ahead get the place of what they have now.
    fn mend_heads(&mut self) {
        while let Some(mut head) = self.heads.peek_mut() {
            match self.lanes[head.event].front() {
                Some(first) if first.due == head.due => return,
                Some(first) => head.due = first.due,
                None => self.has_head[PeekMut::pop(head).event] = false,
            }
        }
    }

    /// Takes out the next event and moves the clock to it.
    pub(crate) fn take(&mut self) -> Option<E> {
        self.mend_heads();
        let taken = match self.heads.peek() {
            Some(head) if self.heap.peek().is_none_or(|first| head.due < first.due) => {
                self.lanes[head.event].pop_front()?
            }
            _ => self.heap.pop()?,
        };
        self.due = taken.due;
        Some(taken.event)
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
        other.due.cmp(&self.due)
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
        q.put_in_lane(0, Instant(7), 'j');
        q.put_in_lane(0, Instant(9), 'l');
        let wake = q.put(Instant(8), 'k');
        assert_eq!(q.take_ahead(0, wake).map(|(_, event)| event), Some('j'));
        assert_eq!(q.take_ahead(0, wake), None);
        assert_eq!([q.take(), q.take(), q.take()], [Some('k'), Some('l'), None]);
    }
}
