//! The interface between every engine and its driver, and the types that both use.
//!
//! The driver hands in events, then polls until no output is left. It carries out orders at once and in order. The
//! payload of a packet is gathered when the packet is polled, so later orders may reuse its places.

use std::fmt;

use outboard_plan::Reduction;
use thiserror::Error;

/// A NIC, by its number in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A virtual port: the share of a NIC that one process of a host uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u16);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressSpace {
    /// Memory of the process behind a port.
    Host(Port),
    /// Memory of the host that is registered with its NIC: every process of the host and the NIC reach it.
    Shared,
    /// The NIC's own memory.
    Nic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemorySegment {
    pub region: AddressSpace,
    pub address: u64,
    pub len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NicOrder {
    /// Writes the payload of the packet that was handed in last to `to`.
    Deliver { to: MemorySegment },
    /// Writes the first bytes of a little-endian word, up to 8, to `to`.
    Write { word: u64, to: MemorySegment },
    /// Copies between places of equal length, which are the same place or do not overlap.
    Copy { from: MemorySegment, to: MemorySegment },
    /// Sets `into = from * into` where `from_left`, else `into = into * from`, element by element.
    Reduce { reduction: Reduction, from: MemorySegment, into: MemorySegment, from_left: bool },
}

/// The reason why the calls of a job end on all its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum JobFailure {
    #[error("node {} is dead", node.0)]
    Dead { node: NodeId },
    #[error(
        "node {} has {counters} DMA counters in a unit, all taken by other tasks, of {tasks}, for too long: give it \
         more counters, or use fewer groups at once",
        node.0
    )]
    Counters { node: NodeId, counters: usize, tasks: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobCompletion {
    pub job: u8,
    pub result: Result<(), JobFailure>,
}

/// The part that does the work, so that a driver with a clock knows what waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Executor {
    /// The processor of the process behind a port.
    Processor(Port),
    /// A part of the NIC that works by itself.
    Nic(u16),
}

/// Output of an engine for its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<P> {
    /// Work on memory.
    Order { by: Executor, order: NicOrder },
    /// Sends a packet to a node, which may be this one, with the bytes of these places as payload.
    Transmit { by: Executor, to: NodeId, packet: P, payload: Vec<MemorySegment> },
    /// Sends a packet to each of these nodes, which may include this one. The packet may be lost on the way to any
    /// node.
    Multicast { to: Vec<NodeId>, packet: P, payload: MemorySegment },
    /// A call of a process has ended.
    Completed { port: Port, completion: JobCompletion },
}

impl<P> Output<P> {
    /// Work of the NIC on memory.
    pub(crate) const fn by_nic(order: NicOrder) -> Self {
        Output::Order { by: Executor::Nic(0), order }
    }

    /// A call of the process behind `port` has ended.
    pub(crate) const fn completed((job, port): (u8, u16), result: Result<(), JobFailure>) -> Self {
        Output::Completed { port: Port(port), completion: JobCompletion { job, result } }
    }

    /// Work of the process behind `port` on memory.
    pub(crate) const fn by_process(port: u16, order: NicOrder) -> Self {
        Output::Order { by: Executor::Processor(Port(port)), order }
    }
}

/// A NIC that carries out collectives. Times are in nanoseconds of the driver's clock, which never goes back.
pub trait NicEngine {
    /// The work request that a host posts to have collectives carried out.
    type Post: ?Sized;
    /// The error of a rejected post; no part of the post is carried out then.
    type Error;
    /// The packet that NICs send each other, without its payload.
    type Packet: Clone;

    /// Takes a post of the process behind `port`.
    ///
    /// # Errors
    /// When the post makes no sense, or exceeds the NIC's capacity.
    fn post(&mut self, now: u64, port: Port, post: &Self::Post) -> Result<(), Self::Error>;

    /// The flow that a packet belongs to. Only multicast packets are lost between NICs. Packets of one flow from one
    /// node to another arrive in the order in which they were sent. Packets of different flows may overtake each other,
    /// and so may packets without a flow.
    fn flow(_packet: &Self::Packet) -> Option<u64> {
        None
    }

    fn handle_packet(&mut self, now: u64, from: NodeId, packet: Self::Packet);

    /// A node is dead: it sends nothing any more.
    fn handle_dead(&mut self, now: u64, node: NodeId);

    /// The time of [`NicEngine::poll_timeout`] has come, or is past.
    fn handle_timeout(&mut self, now: u64);

    /// The time at which the driver has to call `handle_timeout`.
    fn poll_timeout(&self) -> Option<u64>;

    fn poll(&mut self) -> Option<Output<Self::Packet>>;
}
