//! Plans as task lists of a triggered NIC (CORE-Direct): the NIC carries a collective on by itself, the host only posts
//! the list and takes the last completion (CD-1).
//!
//! A rank posts its list in order, each request to a queue, when it calls; then the NIC works:
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
//! rank has called. For these, receives are posted one call ahead: once when the communicator is set up, then by each
//! list for the call after.
//!
//! A [`Lowering`] makes a [`Template`] for each rank, which is kept (CD-3): its places become addresses only when a
//! rank calls, and the template of a plan for blocks of 1 byte serves blocks of any size where the plan scales with
//! them. Inside a round, all that a rank waits for is sent by ranks that wait for earlier rounds only (see
//! [`crate::rounds`]), so that the strict order cannot deadlock.
//!
//! Invariants: a queue pair carries the messages between two ranks in one order on both ends; each message takes as
//! many receives as sends; every completion is waited for by the end of the list. Copies and reductions are the host's
//! work, before the list starts or behind its end, so a plan that forwards what it has combined has no list.

mod lower;
mod print;
mod queues;

pub use lower::{LowerError, Lowering};
pub use print::TableLine;
pub use queues::{Connection, Purpose, QueuePair, Serves};

use outboard_plan::{Rank, Span};

/// How messages find memory at their receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Into buffers that were posted before, from where the host copies when the collective is complete (CD-4).
    Eager {
        /// Bytes of a buffer, in units of the plan; a message takes as many buffers as it needs.
        buffer: u64,
    },
    /// Straight to their place, which the receiver declares ready by a clear-to-send (CD-5).
    Rendezvous,
}

/// Block sizes from here on are worth a rendezvous (CD-5).
pub const RENDEZVOUS_BYTES: u64 = 16 << 10;

/// Memory that a request of a template reads or writes. Eager buffers count from 0, bytes are in units of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Place {
    /// Part of a buffer of the plan.
    Memory(Span),
    /// Part of the eager buffer `slot`, in which a message of this call arrives.
    Arrived { slot: u32, offset: u64, len: u64 },
    /// The whole eager buffer `slot` of the next call.
    Next { slot: u32 },
}

/// A work request (CD-1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    /// The round of the messages that it is about, from 0; the one behind the last for waits that end the list.
    pub round: u32,
    /// The queue pair whose queues and completions it is about.
    pub on: QueuePair,
    /// What the NIC is asked to do.
    pub action: Action,
}

/// What a [`Request`] asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// To take one message into a place; there is none for a message without bytes.
    Receive(Option<Place>),
    /// To send one message, gathered from places in this order; there are none for a message without bytes.
    Send(Vec<Place>),
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
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum HostStep {
    /// Copies bytes.
    Copy { from: Place, to: Place },
    /// Combines bytes, as [`outboard_plan::Op::Reduce`].
    Reduce { from: Place, into: Place, from_left: bool },
}

/// The task list of one rank without addresses and sizes (CD-3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Whose list.
    pub rank: Rank,
    /// How messages find memory.
    pub protocol: Protocol,
    /// What the host does before it posts the list.
    pub before: Vec<HostStep>,
    /// The list, in the order of posting.
    pub tasks: Vec<Request>,
    /// What the host does when the last task is complete.
    pub after: Vec<HostStep>,
    /// Eager buffers that a call takes; there are twice as many, for this call and the next.
    pub slots: u32,
}
