//! Pending events on the clock of NICs: the earliest first, and events of one time in the order in which they were put
//! in.

use std::collections::BTreeMap;

use outboard_nic::{Node, Worker};

use super::trace::{Cause, Row};

pub(super) struct Flight<P> {
    pub(super) by: Worker,
    pub(super) from: Node,
    pub(super) to: Node,
    pub(super) packet: P,
    pub(super) payload: Vec<u8>,
    pub(super) bytes: u64,
    pub(super) over_bus: bool,
    /// The cause for which the sending NIC waited.
    pub(super) cause: Option<Cause>,
    /// The row that was busy with sending it, and since when.
    pub(super) sent: Option<(Row, f64)>,
}

pub(super) enum What<P> {
    /// A rank of a job posts its next call.
    Call(usize, usize),
    /// The NIC has a packet to send.
    Depart(Flight<P>),
    /// The first byte is at the end of the last link; the last byte comes so many nanoseconds later.
    Near(Flight<P>, f64),
    /// The whole packet is at the NIC.
    Receive(Flight<P>),
    /// The NIC has finished with the packet.
    Arrive(Flight<P>),
    Timeout(Node),
    /// A rank of a job notices the end of its call.
    End(usize, usize),
}

/// Events by time and number. Times are not negative, so their bits are in the same order.
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

    pub(super) fn pop(&mut self) -> Option<(f64, What<P>)> {
        self.coming.pop_first().map(|((at, _), what)| (f64::from_bits(at), what))
    }
}
