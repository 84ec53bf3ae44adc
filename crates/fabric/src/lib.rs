//! What carries bytes between service processes (daemons), and nothing else.
//!
//! Three roles, three shapes:
//! - **Unicast**, the trait [`Fabric`]: reliable messages in order per peer, owned by the one conductor thread of a
//!   service process. Kinds: [`Tcp`] between hosts of an Ethernet, [`Ucx`] where there is RDMA, [`Loopback`] where there
//!   is nobody else.
//! - **Deferred work** ([`ofi`]): lists of messages that a libfabric provider carries out by itself.
//! - **Multicast**, UDP datagrams that may be lost, sent and received by datapath threads of their own
//!   (MC-9).
//!
//! Invariants: every queue and pool is bounded and refuses with [`SendError::Full`] instead of growing; an idle fabric
//! that is armed uses no processor time; a peer that dies is an event, never a panic.
//!
//! Never done here: reading what a header means, choosing a peer, retrying a message for a lost peer. Only the
//! engine of libfabric ([`ofi`]) starts threads.

#![allow(missing_docs, reason = "a comment here says more than the name, or is not there")]

mod buffer;
pub mod conformance;
mod foreign;
pub mod hostile;
mod loopback;
pub mod multicast;
pub mod ofi;
mod option;
mod outstanding;
mod probe;
mod refusals;
pub mod secured;
mod tcp;
mod ucx;

pub use buffer::SendBuffer;
pub use loopback::Loopback;
pub use probe::{Check, probe};
pub use refusals::{Limit, Refusals};
pub use secured::{Identity, SharedKey};
pub use tcp::{Tcp, TcpSettings};
pub use ucx::{Ucx, UcxError, UcxSettings, UcxTransport, rdma_device, rdma_is_asked_for, ucx_version};

use outboard_shm::memory::Residents;
use std::fmt;
use std::os::fd::BorrowedFd;

/// Longest header of a message, in bytes.
pub const MAX_HEADER: usize = outboard_proto::wire::MAX_FRAME_HEADER;
/// Longest payload of a message, in bytes.
pub const MAX_PAYLOAD: usize = 256 * 1024;
/// Longest address blob that [`Fabric::local_address`] returns, in bytes.
pub const MAX_ADDRESS: usize = 512;

/// Names one service process to all others; drawn by the daemons, opaque here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u64);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service process {:016x}", self.0)
    }
}

/// Bounds of one fabric. Reached bounds refuse work; they never queue it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Messages to one peer that were accepted but have not left yet.
    pub outstanding_messages: usize,
    /// Payload bytes to one peer that were accepted but have not left yet; one message always fits.
    pub outstanding_bytes: usize,
    /// Bytes of all payload buffers together, free and in use.
    pub pool_bytes: usize,
    pub peers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { outstanding_messages: 64, outstanding_bytes: 4 << 20, pool_bytes: 64 << 20, peers: 4096 }
    }
}

#[derive(Debug)]
pub enum Payload<'a> {
    Empty,
    /// Bytes that the fabric copies before [`Fabric::send`] returns: for small control messages.
    Bytes(&'a [u8]),
    /// A buffer from [`Fabric::payload_buffer`], sent without a copy and returned to its pool on completion.
    Buffer(SendBuffer),
    /// Bytes that are read before [`Fabric::flush`] returns: by the kernel, without a copy, where the fabric
    /// [reads in place](Fabric::reads_in_place). Until then they have to stay as they are.
    Resident(Residents),
}

impl Payload<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Buffer(buffer) => buffer.len(),
            Self::Resident(places) => places.bytes(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What [`Fabric::progress`] reports. Borrowed bytes are valid during the call of the sink only.
#[derive(Debug)]
pub enum FabricEvent<'a> {
    /// A whole message arrived, in the order in which `from` sent it. `from` need not be connected: a peer that knows
    /// our address may speak first.
    Message {
        from: PeerId,
        /// At most [`MAX_HEADER`] bytes.
        header: &'a [u8],
        /// At most [`MAX_PAYLOAD`] bytes.
        payload: &'a [u8],
    },
    /// The path to a connected peer broke. Reported once; the peer is unknown from then on and may be connected anew.
    /// Messages accepted for it and not yet delivered are gone.
    PeerLost { peer: PeerId, why: PeerLoss },
    /// Something refused as full since the last such event (a send, a payload buffer) may succeed now.
    Room,
}

/// Whoever takes what arrives. Whatever takes events alone is one, and has payloads brought to it with their messages.
pub trait Receiver {
    fn event(&mut self, event: FabricEvent<'_>);

    /// Where the `length` bytes of payload behind this header belong, of which some are still to come. The fabric lets
    /// the kernel put them there. It asks before each read, so the answer need not hold any longer; where it is another
    /// than before, the bytes that have come follow. Without one the fabric keeps the bytes.
    fn landing(&mut self, from: PeerId, header: &[u8], length: usize) -> Option<Residents> {
        let _ = (from, header, length);
        None
    }

    /// As [`FabricEvent::Message`], of a message whose payload lies where [`Self::landing`] has just said.
    fn landed(&mut self, from: PeerId, header: &[u8], length: usize) {
        unreachable!("{length} bytes behind {header:?} of {from} landed nowhere")
    }
}

impl<F: FnMut(FabricEvent<'_>)> Receiver for F {
    fn event(&mut self, event: FabricEvent<'_>) {
        self(event);
    }
}

/// Evidence that a peer cannot be reached any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerLoss {
    #[error("the connection broke: the service process there has ended or its link is down; see its log, restart it")]
    Reset,
    #[error("no service process answers at its address; start outboardd on that host and check the network")]
    Unreachable,
    #[error("the transport timed out; check the link to that host")]
    TimedOut,
    /// It is not whom it should be, or does not agree on how to talk.
    #[error("{0}")]
    Handshake(String),
    /// A message was missing or repeated, or its prefix was malformed.
    #[error("the stream of messages broke: {0}; both ends must run the same version")]
    Protocol(String),
    #[error("no descriptor is left here; raise the limit on descriptors (`ulimit -n`, LimitNOFILE in the unit)")]
    Descriptors,
    #[error("the transport failed: {0}")]
    Transport(String),
}

/// Why [`Fabric::connect`] refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the address of {peer} ({length} bytes) is not one of this fabric; all daemons must use the same fabric")]
    Address { peer: PeerId, length: usize },
    #[error("{0} is connected by another address; disconnect it first")]
    AddressChanged(PeerId),
    #[error("no room for {peer}: {limit} peers are connected; raise the fabric's limit of peers")]
    TooManyPeers { peer: PeerId, limit: usize },
    #[error("cannot connect {peer}: {why}")]
    Transport { peer: PeerId, why: PeerLoss },
}

/// Why [`Fabric::send`] refused; the message was not sent and its buffer is back in the pool.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// Too much is on its way to this peer, or the pool is empty: try again after [`FabricEvent::Room`].
    #[error("too much is on its way to {0}; send again when there is room")]
    Full(PeerId),
    #[error("{0} is not connected; connect it first")]
    Unknown(PeerId),
    /// [`FabricEvent::PeerLost`] follows or was reported.
    #[error("the path to {0} is lost")]
    Lost(PeerId),
    #[error("a message of {header} + {payload} bytes is longer than {MAX_HEADER} + {MAX_PAYLOAD}; cut it")]
    TooLong { header: usize, payload: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "sleeping while the fabric is busy loses the wake-up"]
pub enum Armed {
    /// Whatever happens next makes [`Fabric::event_fd`] readable: look at the other queues once more, then sleep.
    Armed,
    /// Something is pending: call [`Fabric::progress`] and arm again.
    Busy,
}

/// Reliable messages in order per peer.
///
/// Owned and called by one thread. The wake rule of that thread: [`progress`](Fabric::progress) until nothing is left,
/// [`arm`](Fabric::arm), look at all other queues, then wait for [`event_fd`](Fabric::event_fd).
pub trait Fabric {
    fn id(&self) -> PeerId;

    /// Where peers reach us: at most [`MAX_ADDRESS`] bytes, opaque, constant for the life of the fabric.
    fn local_address(&self) -> &[u8];

    /// Makes `peer` known. Returns before the path is up; sends may follow at once. Connecting a connected peer by the
    /// same address does nothing.
    ///
    /// # Errors
    /// See [`ConnectError`]. That nobody answers is found out later and reported as [`FabricEvent::PeerLost`].
    fn connect(&mut self, peer: PeerId, address: &[u8]) -> Result<(), ConnectError>;

    /// Forgets `peer`; messages on their way are delivered if the peer takes them within a bounded time, and before it
    /// is connected again. Does nothing for an unknown peer. The other end may report us as lost.
    fn disconnect(&mut self, peer: PeerId);

    /// A buffer of `length` bytes to fill and send, or none when the pool is used up or `length` exceeds
    /// [`MAX_PAYLOAD`]. It still holds the bytes of its last use.
    fn payload_buffer(&mut self, length: usize) -> Option<SendBuffer>;

    /// Whether [`Payload::Resident`] spares a copy.
    fn reads_in_place(&self) -> bool {
        false
    }

    /// Whether a payload of `length` bytes would be accepted for `peer` now: asked before reading rank memory.
    fn ready(&mut self, peer: PeerId, length: usize) -> Result<(), SendError>;

    /// Accepts one message for `peer`. It leaves with the next [`flush`](Fabric::flush) at the latest.
    fn send(&mut self, peer: PeerId, header: &[u8], payload: Payload<'_>) -> Result<(), SendError>;

    /// Lets all messages leave that have been accepted, as far as there is room: several at once cost less than one by
    /// one. [`progress`](Fabric::progress) does it, too.
    fn flush(&mut self) {}

    /// Moves what can be moved and reports each event to `sink`; never blocks, bounded work per call. Returns how much
    /// was done; zero means that there is nothing to do now.
    fn progress(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> usize;

    /// The same, and payloads go where the receiver says, as far as this kind of fabric can do that.
    fn progress_into(&mut self, receiver: &mut dyn Receiver) -> usize {
        self.progress(&mut |event| receiver.event(event))
    }

    /// Memory was withdrawn where payloads may be on their way to: asks anew where they belong, and lets go of it.
    fn review(&mut self, receiver: &mut dyn Receiver) {
        let _ = receiver;
    }

    /// Connections refused since the start: of strangers, and of peers that said what cannot be.
    fn refused(&self) -> u64 {
        0
    }

    /// Readable when an armed fabric has something to do. Valid for poll and epoll; never read by the caller.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Asks for a wake-up by [`event_fd`](Fabric::event_fd).
    fn arm(&mut self) -> Armed;
}
