//! What is going to happen on the clock of NICs: the earliest first, and what is due at the same time in the order in
//! which it was put in.

use std::collections::BTreeMap;

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

/// By time, which is not negative, so that its bits are in the same order, and by number.
pub(super) struct Events<P> {
    coming: BTreeMap<(u64, u64), What<P>>,
    pushed: u64,
}

impl<P> Default for Events<P> {
    fn default() -> Self {
        Events { coming: BTreeMap::new(), pushed: 0 }
    }
}

impl<P> Events<P> {
    pub(super) fn push(&mut self, at: f64, what: What<P>) {
        debug_assert!(at.is_sign_positive(), "{at}");
        self.pushed += 1;
        self.coming.insert((at.to_bits(), self.pushed), what);
    }

    /// What happens next, and when.
    pub(super) fn pop(&mut self) -> Option<(f64, What<P>)> {
        self.coming.pop_first().map(|((at, _), what)| (f64::from_bits(at), what))
    }
}
