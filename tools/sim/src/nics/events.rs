//! Pending events on the clock of NICs: the earliest first, and events of one time in the order in which they were put
//! in.

use std::collections::BTreeMap;

use outboard_nic::{Executor, NodeId};

use super::trace::{TraceRow, WaitCause};

pub(super) struct TimedPacket<P> {
    pub(super) by: Executor,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) packet: P,
    pub(super) payload: Vec<u8>,
    pub(super) bytes: u64,
    pub(super) over_bus: bool,
    /// The cause for which the sending NIC waited.
    pub(super) cause: Option<WaitCause>,
    /// The row that was busy with sending the packet, and the start of that work.
    pub(super) sent: Option<(TraceRow, f64)>,
}

pub(super) enum NicEvent<P> {
    /// A rank of a job posts its next call.
    Call(usize, usize),
    /// The NIC has a packet to send.
    Depart(TimedPacket<P>),
    /// The first byte is at the end of the last link; the last byte comes the given number of nanoseconds later.
    Near(TimedPacket<P>, f64),
    /// The whole packet is at the NIC.
    Receive(TimedPacket<P>),
    /// The NIC has finished with the packet.
    Arrive(TimedPacket<P>),
    Timeout(NodeId),
    /// A rank of a job notices the end of its call.
    End(usize, usize),
}

/// Events by time and number. Times are not negative, so the bits of times have the order of the times.
pub(super) struct NicEventQueue<P> {
    coming: BTreeMap<(u64, u64), NicEvent<P>>,
    pushed: u64,
}

impl<P> Default for NicEventQueue<P> {
    fn default() -> Self {
        NicEventQueue { coming: BTreeMap::new(), pushed: 0 }
    }
}

impl<P> NicEventQueue<P> {
    pub(super) fn push(&mut self, at: f64, event: NicEvent<P>) {
        debug_assert!(at.is_sign_positive(), "{at}");
        self.pushed += 1;
        self.coming.insert((at.to_bits(), self.pushed), event);
    }

    pub(super) fn pop(&mut self) -> Option<(f64, NicEvent<P>)> {
        self.coming.pop_first().map(|((at, _), event)| (f64::from_bits(at), event))
    }
}
