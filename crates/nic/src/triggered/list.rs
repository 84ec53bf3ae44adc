//! Task lists: what a rank posts to its triggered NIC, without addresses.
//!
//! A plan becomes a [`Template`] for each rank, which is kept (CD-3): its places become addresses when a rank calls. A
//! rank posts its list in order, each request to a queue; then the NIC works:
//!
//! | request | goes to | done when |
//! |---|---|---|
//! | receive | the receive queue of its queue pair | a message has filled it |
//! | send | the send queue of its queue pair, which holds it | enabled and delivered |
//! | wait | the management queue | that many completions were there, which it takes away |
//! | send-enable, receive-enable | the management queue | at once: so many more requests of that queue may run |
//!
//! The management queue runs its requests strictly in order. Send queues hold every request until it is enabled, and so
//! do receive queues for data by rendezvous; other receive queues hold nothing, because a peer may send before this
//! rank has called. For these, receives are posted one call ahead: once when the queue pair is made, then by each list
//! for the call after.
//!
//! Ranks of one host have no queue pairs for each other. What they exchange goes through a region that they share, and
//! a flag for each part of it says that it has arrived. A call has three phases (CD Sec. IV-B): the host fills the
//! region and waits for the flags of its siblings, the NIC carries out the list, the host fills and reads the region
//! again.
//!
//! Invariants: a queue pair carries the messages between two ranks in one order on both ends; each message takes as
//! many receives as sends; every completion is waited for by the end of the list. Copies and reductions are the host's
//! work, before the list or behind it.

use outboard_plan::{Rank, Span};

/// How messages find memory at their receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Into buffers that were posted before, from where the host copies when the collective is complete (CD-4).
    Eager {
        /// Bytes of a buffer, in units of the plan; a message takes as many buffers as it needs.
        buffer: u64,
    },
    /// Straight to their place, which the receiver declares ready by a clear-to-send (CD-5).
    Rendezvous,
    /// Straight to their place; where the receiver is not ready the sender tries again.
    Retry,
}

/// What a queue pair carries. Each purpose has its own, because a NIC that waits sees on which queue something arrived
/// but not what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Messages into buffers that were posted before (CD-4).
    Eager,
    /// That a receiver is ready (CD-5).
    ClearToSend,
    /// Messages to a receiver that is ready (CD-5).
    Data,
}

impl Purpose {
    /// All of them, in their order.
    pub const ALL: [Purpose; 3] = [Purpose::Eager, Purpose::ClearToSend, Purpose::Data];
}

/// Which messages of a plan a connection serves, as its owner sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Serves {
    Both,
    /// Those to the peer. On the peer it is the connection for incoming messages.
    Outgoing,
    /// Those from the peer. On the peer it is the connection for outgoing messages.
    Incoming,
}

/// A connection of a rank: a queue pair for each [`Purpose`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection {
    pub peer: Rank,
    pub serves: Serves,
}

impl Connection {
    /// The same connection as the peer of `rank` sees it.
    pub const fn seen_from_peer(self, rank: Rank) -> Connection {
        let serves = match self.serves {
            Serves::Both => Serves::Both,
            Serves::Outgoing => Serves::Incoming,
            Serves::Incoming => Serves::Outgoing,
        };
        Connection { peer: rank, serves }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePair {
    pub connection: Connection,
    pub purpose: Purpose,
}

/// Memory that a request of a template reads or writes. Eager buffers count from 0, bytes are in units of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Part of a buffer of the plan.
    Memory(Span),
    /// Part of the eager buffer `slot`, in which a message of this call arrives.
    Arrived { slot: u32, offset: u64, len: u64 },
    /// The whole eager buffer `slot` of the next call.
    Next { slot: u32 },
    /// Part of the region that ranks of a host share.
    Shared { offset: u64, len: u64 },
}

impl Place {
    /// Bytes, in units of the plan; those of a buffer of the next call are for the NIC to say.
    pub const fn bytes(&self) -> Option<u64> {
        match self {
            Place::Memory(span) => Some(span.len),
            Place::Arrived { len, .. } | Place::Shared { len, .. } => Some(*len),
            Place::Next { .. } => None,
        }
    }
}

/// A work request (CD-1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    /// The round of the messages that it is about, from 0; the one behind the last for waits that end the list.
    pub round: u32,
    /// The queue pair whose queues and completions it is about.
    pub on: QueuePair,
    pub action: Action,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// To take one message into a place; there is none for a message without bytes.
    Receive(Option<Place>),
    /// To send one message.
    Send {
        /// What it is gathered from, in this order; nothing for a message without bytes.
        from: Vec<Place>,
        /// Whether all of it is there when the list is posted, so that it may go along with the request.
        present: bool,
    },
    /// To wait until so many more messages have arrived.
    WaitReceived(u32),
    /// To wait until so many more messages are delivered.
    WaitSent(u32),
    /// To let so many more sends run.
    SendEnable(u32),
    /// To let so many more receives take messages.
    ReceiveEnable(u32),
}

/// What the host does itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostStep {
    /// Copies bytes.
    Copy { from: Place, to: Place },
    /// Combines bytes, as [`outboard_plan::Op::Reduce`].
    Reduce { from: Place, into: Place, from_left: bool },
    /// Tells the other ranks of the host that a part of the shared region has arrived.
    Raise { flag: u32 },
    /// Waits until a part of the shared region has arrived.
    Await { flag: u32 },
}

/// What is made with the queue pairs of a connection, by its first call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prepost {
    pub connection: Connection,
    /// Eager buffers that its peer finds without this rank having called; there are twice as many, for this call and
    /// the next.
    pub buffers: u32,
    /// Receives for clear-to-sends that are posted.
    pub clears: u32,
}

/// How the ranks of a host share memory in a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sharing {
    /// Ranks of the host that do; 0 where this one does not.
    pub ranks: u32,
    /// Bytes of the region, in units of the plan.
    pub bytes: u64,
}

/// The task list of one rank without addresses and sizes (CD-3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub rank: Rank,
    pub protocol: Protocol,
    /// The connections that it uses, sorted.
    pub connections: Vec<Prepost>,
    /// What the host does before it posts the list.
    pub before: Vec<HostStep>,
    /// The list, in the order of posting.
    pub tasks: Vec<Request>,
    /// What the host does when the last task is complete.
    pub after: Vec<HostStep>,
    /// By eager buffer that the call takes, the queue pair on which it is posted.
    pub slots: Vec<QueuePair>,
    pub sharing: Sharing,
}
