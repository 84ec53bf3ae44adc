//! What every engine is to its driver, and the words that both use.
//!
//! The driver hands in what happened, then polls until nothing comes. It carries out orders at once and in the order in
//! which they come; the payload of a packet is gathered when the packet is polled, so that later orders may reuse its
//! places.

use std::fmt;

use outboard_plan::Reduction;
use thiserror::Error;

/// A NIC, by its number in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u32);

/// A virtual port: what one process of a host has of its NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u16);

impl fmt::Display for Node {
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
pub enum Region {
    /// Of the process behind a port.
    Host(Port),
    /// Of the host, registered with its NIC: every process of the host and the NIC reach it.
    Shared,
    /// The NIC's own.
    Nic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    pub region: Region,
    pub address: u64,
    pub len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The payload of the packet that was handed in last goes there.
    Deliver { to: Place },
    /// The first bytes of a little-endian word go there, up to 8.
    Write { word: u64, to: Place },
    /// Copies between places of equal length, which are the same or do not overlap.
    Copy { from: Place, to: Place },
    /// `into = from * into` where `from_left`, else `into = into * from`, element by element.
    Reduce { reduction: Reduction, from: Place, into: Place, from_left: bool },
}

/// Why the calls of a job end on all its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Failure {
    #[error("node {} is dead", node.0)]
    Dead { node: Node },
    #[error(
        "node {} has {counters} DMA counters in a unit, all taken by other tasks, of {tasks}, for too long: give it \
         more counters, or use fewer groups at once",
        node.0
    )]
    Counters { node: Node, counters: usize, tasks: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    pub job: u8,
    pub result: Result<(), Failure>,
}

/// Who does something, so that whoever plays an engine on a clock knows what waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Worker {
    /// The processor of the process behind a port.
    Processor(Port),
    /// A part of the NIC that works by itself.
    Nic(u16),
}

/// What an engine asks of its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<P> {
    /// Work on memory.
    Order { by: Worker, order: Order },
    /// A packet for a node, which may be this one, with what lies at these places behind it.
    Transmit { by: Worker, to: Node, packet: P, payload: Vec<Place> },
    /// A packet for each of these nodes, which may be this one; on its way to any of them it may be lost.
    Multicast { to: Vec<Node>, packet: P, payload: Place },
    /// A call of a process has ended.
    Completed { port: Port, completion: Completion },
}

impl<P> Output<P> {
    /// The NIC works on memory.
    pub(crate) const fn by_nic(order: Order) -> Self {
        Output::Order { by: Worker::Nic(0), order }
    }

    /// A call of the process behind `port` has ended.
    pub(crate) const fn completed((job, port): (u8, u16), result: Result<(), Failure>) -> Self {
        Output::Completed { port: Port(port), completion: Completion { job, result } }
    }

    /// The process behind `port` does.
    pub(crate) const fn by_process(port: u16, order: Order) -> Self {
        Output::Order { by: Worker::Processor(Port(port)), order }
    }
}

/// A NIC that carries out collectives. Times are in nanoseconds of the driver's clock, which never goes back.
pub trait Engine {
    /// What a host posts to have collectives carried out.
    type Post: ?Sized;
    /// Why a NIC does not take a post; nothing of it is carried out then.
    type Refusal;
    /// What NICs send each other, without payload.
    type Packet: Clone;

    /// The process behind `port` posts.
    ///
    /// # Errors
    /// When what is posted makes no sense, or exceeds what the NIC has.
    fn post(&mut self, now: u64, port: Port, post: &Self::Post) -> Result<(), Self::Refusal>;

    /// The flow that a packet belongs to. Nothing but multicast is lost between NICs, and packets of one flow from one
    /// node to another arrive in the order in which they were sent; all others overtake each other, as do those without
    /// a flow.
    fn flow(_packet: &Self::Packet) -> Option<u64> {
        None
    }

    fn handle_packet(&mut self, now: u64, from: Node, packet: Self::Packet);

    /// A node is dead: nothing comes from there any more.
    fn handle_dead(&mut self, now: u64, node: Node);

    /// It is as late as [`Engine::poll_timeout`] says, or later.
    fn handle_timeout(&mut self, now: u64);

    /// When the engine wants to be told that time has passed.
    fn poll_timeout(&self) -> Option<u64>;

    fn poll(&mut self) -> Option<Output<Self::Packet>>;
}
