//! What is going to happen on the clock of NICs: the earliest first, and what is due at the same time in the order in
//! which it was put in.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use outboard_nic::{Node, Worker};

use super::trace::{Cause, Row};

/// A packet on its way.
pub(super) struct Flight<P> {
    pub(super) by: Worker,
    pub(super) from: Node,
    pub(super) to: Node,
    pub(super) packet: P,
    pub(super) payload: Vec<u8>,
    pub(super) bytes: u64,
    /// Whether its payload comes over the bus.
    pub(super) over_bus: bool,
    /// What the NIC waited for that sends it.
    pub(super) cause: Option<Cause>,
    /// Who was busy with sending it, and from when on.
    pub(super) sent: Option<(Row, f64)>,
}

pub(super) enum What<P> {
    /// A rank of a job posts what it calls next.
    Call(usize, usize),
    /// The NIC has a packet to send.
    Depart(Flight<P>),
    /// Its first byte is at the end of the last link, and its last one so many nanoseconds later.
    Near(Flight<P>, f64),
    /// All of it is at the NIC.
    Receive(Flight<P>),
    /// The NIC is done with it.
    Arrive(Flight<P>),
    Timeout(Node),
    /// A rank of a job sees the end of its call.
    End(usize, usize),
}

struct Event<P> {
    at: f64,
    number: u64,
    what: What<P>,
}

impl<P> Ord for Event<P> {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

impl<P> PartialOrd for Event<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for Event<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Event<P> {}

/// See the module.
pub(super) struct Events<P> {
    heap: BinaryHeap<Event<P>>,
    pushed: u64,
}

impl<P> Default for Events<P> {
    fn default() -> Self {
        Events { heap: BinaryHeap::new(), pushed: 0 }
    }
}

impl<P> Events<P> {
    pub(super) fn push(&mut self, at: f64, what: What<P>) {
        self.pushed += 1;
        self.heap.push(Event { at, number: self.pushed, what });
    }

    /// What happens next, and when.
    pub(super) fn pop(&mut self) -> Option<(f64, What<P>)> {
        self.heap.pop().map(|event| (event.at, event.what))
    }
}
