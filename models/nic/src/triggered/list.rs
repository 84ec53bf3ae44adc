//! Task lists without addresses, which ranks post to their triggered NICs.
//!
//! A plan becomes a [`ListTemplate`] for each rank, which is kept (CD-3). Its places become addresses when a rank
//! calls. A rank posts its list in order, each request to a queue; then the NIC works:
//!
//! | request | goes to | done when |
//! |---|---|---|
//! | receive | the receive queue of its queue pair | a message has filled it |
//! | send | the send queue of its queue pair, which holds it | enabled and delivered |
//! | wait | the management queue | so many completions have come, which it consumes |
//! | send-enable, receive-enable | the management queue | at once: so many more requests of the queue may run |
//!
//! The management queue runs its requests strictly in order. Send queues hold every request until it is enabled, and so
//! do the receive queues of data by rendezvous. Other receive queues hold nothing, because a peer may send before this
//! rank has called. Their receives are posted one call ahead: first when the queue pair is made, then by each list for
//! the next call.
//!
//! Ranks of one host have no queue pairs for each other. They exchange data through a shared region, in which a flag
//! for each part reports its arrival. A call has three phases (CD Sec. IV-B). The host fills the region and waits for
//! the flags of its siblings; the NIC carries out the list; the host fills and reads the region again.
//!
//! Invariants: a queue pair carries the messages between two ranks in one order on both ends. Each message takes as
//! many receives as sends. The list waits for every completion before it ends. The host does copies and reductions,
//! before or after the list.

use outboard_plan::{Rank, Span};

/// The way a message gets memory at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransferProtocol {
    /// Into preposted buffers, from which the host copies when the collective is complete (CD-4).
    Eager {
        /// Bytes of a buffer, in units of the plan; a message takes as many buffers as it needs.
        buffer: u64,
    },
    /// Straight to their place, which the receiver declares ready by a clear-to-send (CD-5).
    Rendezvous,
    /// Straight to their place; if the receiver is not ready, the sender tries again.
    Retry,
}

/// The traffic of a queue pair. Each purpose has its own queue pair, because a NIC that waits sees on which queue
/// something arrived, but not what arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Messages into preposted buffers (CD-4).
    Eager,
    /// Clear-to-sends, by which a receiver declares itself ready (CD-5).
    ClearToSend,
    /// Messages to a receiver that is ready (CD-5).
    Data,
}

impl Purpose {
    pub const ALL: [Purpose; 3] = [Purpose::Eager, Purpose::ClearToSend, Purpose::Data];
}

/// The messages of a plan that a connection serves, as the owner of the connection sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServedDirection {
    Both,
    /// Messages to the peer. The peer sees the connection as incoming.
    Outgoing,
    /// Messages from the peer. The peer sees the connection as outgoing.
    Incoming,
}

/// A connection of a rank: a queue pair for each [`Purpose`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerConnection {
    pub peer: Rank,
    pub serves: ServedDirection,
}

impl PeerConnection {
    /// This connection of `rank` as its peer sees it.
    pub const fn seen_from_peer(self, rank: Rank) -> PeerConnection {
        let serves = match self.serves {
            ServedDirection::Both => ServedDirection::Both,
            ServedDirection::Outgoing => ServedDirection::Incoming,
            ServedDirection::Incoming => ServedDirection::Outgoing,
        };
        PeerConnection { peer: rank, serves }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePairId {
    pub connection: PeerConnection,
    pub purpose: Purpose,
}

/// Memory that a request of a template reads or writes. Eager buffers count from 0; bytes are in units of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TemplatePlace {
    /// Part of a buffer of the plan.
    Memory(Span),
    /// Part of the eager buffer `slot`, in which a message of this call arrives.
    Arrived { slot: u32, offset: u64, len: u64 },
    /// The whole eager buffer `slot` of the next call.
    Next { slot: u32 },
    /// Part of the region that ranks of a host share.
    Shared { offset: u64, len: u64 },
}

impl TemplatePlace {
    /// Length in units of the plan; `None` for a buffer of the next call, whose length the NIC knows.
    pub const fn bytes(&self) -> Option<u64> {
        match self {
            TemplatePlace::Memory(span) => Some(span.len),
            TemplatePlace::Arrived { len, .. } | TemplatePlace::Shared { len, .. } => Some(*len),
            TemplatePlace::Next { .. } => None,
        }
    }
}

/// A work request (CD-1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkRequest {
    /// The round of the request's messages, from 0; the waits that end the list are in a round after the last.
    pub round: u32,
    /// The queue pair of the request, with its completion queues.
    pub on: QueuePairId,
    pub action: WorkAction,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WorkAction {
    /// Receives one message into a place; `None` for an empty message.
    Receive(Option<TemplatePlace>),
    /// Sends one message.
    Send {
        /// The places from which the message is gathered, in order; empty for an empty message.
        from: Vec<TemplatePlace>,
        /// Whether all bytes are present when the list is posted, so that they may be sent with the request.
        present: bool,
    },
    /// Waits until so many more messages have arrived.
    WaitReceived(u32),
    /// Waits until so many more messages are delivered.
    WaitSent(u32),
    /// Enables so many more sends.
    SendEnable(u32),
    /// Enables so many more receives.
    ReceiveEnable(u32),
}

/// A step of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostStep {
    /// Copies bytes.
    Copy { from: TemplatePlace, to: TemplatePlace },
    /// Combines bytes, as [`outboard_plan::Op::Reduce`].
    Reduce { from: TemplatePlace, into: TemplatePlace, from_left: bool },
    /// Notifies the other ranks of the host that a part of the shared region has arrived.
    Raise { flag: u32 },
    /// Waits until a part of the shared region has arrived.
    Await { flag: u32 },
}

/// Resources that the first call on a connection makes with its queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prepost {
    pub connection: PeerConnection,
    /// Eager buffers that the peer may fill before this rank has called. The next call has as many buffers again.
    pub buffers: u32,
    /// Number of receives posted for clear-to-sends.
    pub clears: u32,
}

/// The way ranks of a host share memory in a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct HostSharing {
    /// Ranks of the host that share memory; 0 if this rank does not.
    pub ranks: u32,
    /// Bytes of the region, in units of the plan.
    pub bytes: u64,
}

/// The task list of one rank, without addresses and sizes (CD-3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListTemplate {
    pub rank: Rank,
    pub protocol: TransferProtocol,
    /// The connections that the list uses, sorted.
    pub connections: Vec<Prepost>,
    /// Steps of the host before it posts the list.
    pub before: Vec<HostStep>,
    /// The list, in the order of posting.
    pub tasks: Vec<WorkRequest>,
    /// Steps of the host after the last task is complete.
    pub after: Vec<HostStep>,
    /// The queue pair on which each eager buffer of the call is posted.
    pub slots: Vec<QueuePairId>,
    pub sharing: HostSharing,
}
