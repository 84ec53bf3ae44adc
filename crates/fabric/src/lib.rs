//! Transports that carry bytes between service processes (daemons), and nothing else.
//!
//! Three roles, three shapes:
//! - **Unicast**, the trait [`Fabric`]: reliable messages in order per peer. The conductor thread of a service process
//!   owns it. Kinds: [`Tcp`] between hosts of an Ethernet, [`Ucx`] with RDMA, [`Loopback`] on a single host.
//! - **Deferred work** ([`ofi`]): lists of messages that a libfabric provider carries out by itself.
//! - **Multicast**: UDP datagrams that may be lost. Separate datapath threads send and receive them (MC-9).
//!
//! Invariants: every queue and pool is bounded and refuses with [`SendError::Full`] instead of growing. An idle, armed
//! fabric uses no processor time. A peer that dies is an event, never a panic.
//!
//! Never done here: reading what a header means, choosing a peer, retrying a message for a lost peer. Only the
//! libfabric engine ([`ofi`]) starts threads.

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
pub use probe::{FabricCheck, probe};
pub use refusals::{LogLimit, Refusals};
pub use secured::{Identity, SharedKey};
pub use tcp::{Tcp, TcpSettings};
pub use ucx::{Ucx, UcxError, UcxSettings, UcxTransport, rdma_device, rdma_is_asked_for, ucx_version};

use outboard_shm::memory::ScatterList;
use std::fmt;
use std::os::fd::BorrowedFd;

/// Longest header of a message, in bytes.
pub const MAX_HEADER: usize = outboard_proto::wire::MAX_FRAME_HEADER;
/// Longest payload of a message, in bytes.
pub const MAX_PAYLOAD: usize = 256 * 1024;
/// Longest address blob that [`Fabric::local_address`] returns, in bytes.
pub const MAX_ADDRESS: usize = 512;

/// Identifies one service process to all others. Each daemon draws its own id; this crate does not interpret ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u64);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service process {:016x}", self.0)
    }
}

/// Bounds of one fabric. At its bound the fabric refuses work; it never queues the excess.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FabricLimits {
    /// Messages to one peer that were accepted and have not left yet.
    pub outstanding_messages: usize,
    /// Payload bytes to one peer that were accepted and have not left yet. One message always fits.
    pub outstanding_bytes: usize,
    /// Bytes of all payload buffers together, free and in use.
    pub pool_bytes: usize,
    pub peers: usize,
}

impl Default for FabricLimits {
    fn default() -> Self {
        Self { outstanding_messages: 64, outstanding_bytes: 4 << 20, pool_bytes: 64 << 20, peers: 4096 }
    }
}

#[derive(Debug)]
pub enum SendPayload<'a> {
    Empty,
    /// Bytes that [`Fabric::send`] copies before it returns: for small control messages.
    Bytes(&'a [u8]),
    /// A buffer from [`Fabric::payload_buffer`], which is sent without a copy and returns to its pool on completion.
    Buffer(SendBuffer),
    /// Bytes that are read before [`Fabric::flush`] returns and must not change until then. A fabric that [reads in
    /// place](Fabric::reads_in_place) lets the kernel read them without a copy.
    Mapped(ScatterList),
}

impl SendPayload<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Buffer(buffer) => buffer.len(),
            Self::Mapped(places) => places.bytes(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A report of [`Fabric::progress`]. Borrowed bytes are valid only during the call of the sink.
#[derive(Debug)]
pub enum FabricEvent<'a> {
    /// A whole message arrived, in the order in which `from` sent its messages. `from` need not be connected: a peer
    /// that knows the local address may send first.
    Message {
        from: PeerId,
        /// At most [`MAX_HEADER`] bytes.
        header: &'a [u8],
        /// At most [`MAX_PAYLOAD`] bytes.
        payload: &'a [u8],
    },
    /// The path to a connected peer broke. Reported once. The peer is then unknown and may be connected again. Messages
    /// that were accepted for the peer and not delivered are lost.
    PeerLost { peer: PeerId, why: PeerLoss },
    /// A send or a payload buffer that was refused as full since the last `Room` may succeed now.
    Room,
}

/// Receives events. A closure over events is a receiver too, and gets each payload with its message.
pub trait MessageReceiver {
    fn event(&mut self, event: FabricEvent<'_>);

    /// Returns the memory into which the kernel writes the `length` bytes of payload behind this header. Part of the
    /// payload has yet to arrive. The fabric asks before each read, so an answer holds for one read only. When the
    /// answer changes, the fabric moves the bytes that have arrived. Without an answer the fabric buffers the payload.
    fn placement(&mut self, from: PeerId, header: &[u8], length: usize) -> Option<ScatterList> {
        let _ = (from, header, length);
        None
    }

    /// Reports a message like [`FabricEvent::Message`], whose payload lies where [`Self::placement`] last placed it.
    fn handle_placed(&mut self, from: PeerId, header: &[u8], length: usize) {
        unreachable!("{length} bytes behind {header:?} of {from} have no place")
    }
}

impl<F: FnMut(FabricEvent<'_>)> MessageReceiver for F {
    fn event(&mut self, event: FabricEvent<'_>) {
        self(event);
    }
}

/// Evidence that a peer is out of reach.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerLoss {
    #[error("the connection broke: the service process there has ended or its link is down; see its log, restart it")]
    Reset,
    #[error("no service process answers at its address; start outboardd on that host and check the network")]
    Unreachable,
    #[error("the transport timed out; check the link to that host")]
    TimedOut,
    /// The peer proved another identity, or both ends do not agree on the protocol or on encryption.
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

/// Why [`Fabric::connect`] failed.
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

/// Why [`Fabric::send`] failed. The message was not sent, and its buffer is back in the pool.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// Too many messages or bytes are on their way to this peer, or the pool is empty. Try again after
    /// [`FabricEvent::Room`].
    #[error("too much is on its way to {0}; send again when there is room")]
    Full(PeerId),
    #[error("{0} is not connected; connect it first")]
    Unknown(PeerId),
    /// [`FabricEvent::PeerLost`] was reported or follows.
    #[error("the path to {0} is lost")]
    Lost(PeerId),
    #[error("a message of {header} + {payload} bytes is longer than {MAX_HEADER} + {MAX_PAYLOAD}; cut it")]
    TooLong { header: usize, payload: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "sleeping while the fabric is busy loses the wake-up"]
pub enum Armed {
    /// The next event makes [`Fabric::event_fd`] readable. Check the other queues once more, then sleep.
    Armed,
    /// Work is pending: call [`Fabric::progress`] and arm again.
    Busy,
}

/// Reliable messages in order per peer.
///
/// One thread owns and calls a fabric. Wake rule of that thread: call [`progress`](Fabric::progress) until nothing is
/// left, [`arm`](Fabric::arm), check all other queues, then wait for [`event_fd`](Fabric::event_fd).
pub trait Fabric {
    fn id(&self) -> PeerId;

    /// The address at which peers reach this fabric: at most [`MAX_ADDRESS`] bytes, opaque, constant.
    fn local_address(&self) -> &[u8];

    /// Makes `peer` known. Returns before the path is up; sends may follow at once. Connecting a connected peer by its
    /// present address does nothing.
    ///
    /// # Errors
    /// See [`ConnectError`]. An unreachable peer is found later and reported as [`FabricEvent::PeerLost`].
    fn connect(&mut self, peer: PeerId, address: &[u8]) -> Result<(), ConnectError>;

    /// Forgets `peer`. Messages on their way are still delivered if the peer accepts them within a bounded time and
    /// before the peer is connected again. Does nothing for an unknown peer. The peer may report this end as lost.
    fn disconnect(&mut self, peer: PeerId);

    /// A buffer of `length` bytes to fill and send. None if the pool is used up or `length` exceeds [`MAX_PAYLOAD`].
    /// The buffer still holds the bytes of its last use.
    fn payload_buffer(&mut self, length: usize) -> Option<SendBuffer>;

    /// Whether [`SendPayload::Mapped`] saves a copy.
    fn reads_in_place(&self) -> bool {
        false
    }

    /// Whether the fabric would accept `length` bytes of payload for `peer` now. Called before rank memory is read.
    fn ready(&mut self, peer: PeerId, length: usize) -> Result<(), SendError>;

    /// Accepts one message for `peer`. The message leaves with the next [`flush`](Fabric::flush) at the latest.
    fn send(&mut self, peer: PeerId, header: &[u8], payload: SendPayload<'_>) -> Result<(), SendError>;

    /// Sends all accepted messages, as far as there is room. One flush of several messages costs less than a flush of
    /// each message. [`progress`](Fabric::progress) flushes, too.
    fn flush(&mut self) {}

    /// Advances all work that can proceed, and reports each event to `sink`. Never blocks; the work per call is
    /// bounded. Returns how much was done; zero means that nothing can be done now.
    fn progress(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> usize;

    /// Does the work of `progress`, and reads payloads into the receiver's memory if this kind of fabric can.
    fn progress_into(&mut self, receiver: &mut dyn MessageReceiver) -> usize {
        self.progress(&mut |event| receiver.event(event))
    }

    /// Requests the place of each arriving payload again and drops old places. To be called after memory was withdrawn
    /// that payloads may be on their way to.
    fn recheck_placements(&mut self, receiver: &mut dyn MessageReceiver) {
        let _ = receiver;
    }

    /// Connections refused since the start, of strangers and of peers that broke the protocol.
    fn refused(&self) -> u64 {
        0
    }

    /// Readable when an armed fabric has work. Valid for poll and epoll; the caller never reads it.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Requests a wake-up through [`event_fd`](Fabric::event_fd).
    fn arm(&mut self) -> Armed;
}
