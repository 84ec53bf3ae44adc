//! The interface between the machine and its driver.
//!
//! The driver owns memory and sockets; the machine names them. A [`MemRegion`] is a buffer, a [`MemRef`] a piece of a
//! buffer. An [`Order`] is work on memory that the driver does at once and in order. A [`Transmit`] is something to
//! send, an [`Event`] something that the driver acts on or reports.

use std::hash::Hasher;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

pub use outboard_call::{
    BlockSizes, CallClass, CallKind, CallMovement, ExchangePairs, Signature, TaggedCall, sizes_digest,
};
use outboard_call::{Blocks, Rank, Reduction};
use outboard_plan::deferred::DeferredList;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::error::{Absentees, CollectiveError, GroupError};
use crate::ids::{CallId, GroupHandle, HostId, InstanceId, MulticastChannel, OfferId, SpId, StagingId};
use crate::wire::{DatagramHeader, FrameBytes, MulticastKey, PayloadHash};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankCall {
    /// The driver's name of the call and of its buffers.
    pub id: CallId,
    pub group: GroupHandle,
    /// The caller's rank in the group.
    pub rank: Rank,
    /// The caller's count of its calls on this group, from 1. Tagged messages are no instances of the group and have 0.
    pub instance: InstanceId,
    pub signature: Signature,
    /// `MPI_IN_PLACE`. Allgather: the contribution lies in its own slot of the output. Reduction: the contribution lies
    /// at the start of the output (reduce: on the root alone). Gather or scatter of even blocks: the root's own block
    /// stays in place.
    pub in_place: bool,
    /// Placement of the blocks; only for calls with blocks of different sizes. An allgatherv sends one block. A
    /// reduce-scatter receives one block and sends the blocks of all ranks, one after the other. A block that the root
    /// of a gatherv or scatterv leaves in place counts as empty.
    pub blocks: Option<Arc<Blocks>>,
    /// Opt-in: the collective and its group fail on all ranks if this call lasts longer (SP-9).
    pub deadline: Option<Duration>,
}

/// One rank of a group and its service process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    pub sp: SpId,
    pub host: HostId,
    /// Unicast address of the service process, opaque.
    pub address: Arc<[u8]>,
    /// Source address of the service process's datagrams; `None` if unknown.
    pub sends_from: Option<Ipv4Addr>,
    /// Rate of the host's link in bit/s.
    pub link_rate: u64,
    /// Address of the engine beside the service process, opaque; empty without an engine.
    pub engine: Arc<[u8]>,
    /// The rank's own offer, by which its service process knows whether the rank can still request the group.
    pub offer: OfferId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// The handle that the lowest rank drew.
    pub handle: GroupHandle,
    /// The secret from which the keys of datagrams are derived.
    pub key: [u64; 2],
    /// By rank.
    pub members: Vec<GroupMember>,
}

impl GroupSpec {
    /// Distinguishes two groups whose handles collide.
    pub fn fingerprint(&self) -> u64 {
        let mut h = SipHasher13::new_with_keys(self.key[0], self.key[1]);
        for m in &self.members {
            h.write_u64(m.sp.0);
            h.write_u64(m.host.0);
            h.write_u32(m.sends_from.map_or(0, u32::from));
            h.write_u64(m.link_rate);
        }
        h.finish()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemRegion {
    /// The send buffer of a call.
    Input(CallId),
    /// The receive buffer of a call.
    Output(CallId),
    /// Memory of the service process.
    Staging(StagingId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemRef {
    pub region: MemRegion,
    /// Bytes from the start of the region.
    pub offset: u64,
    pub len: u64,
}

/// Work on memory. The driver drains [`crate::Endpoint::poll_order`] after every `handle_*`. The driver completes each
/// order before it polls the next order, and before it releases the input (the payload of a frame, the batch of
/// datagrams).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Provide [`staging_size`](crate::staging_size) of `bytes` of memory under this ID. The contents are undefined, so
    /// the driver clears nothing. A driver without memory reports that ([`crate::Endpoint::handle_no_memory`]) and
    /// skips the orders that name this ID.
    Stage {
        id: StagingId,
        /// Bytes in use.
        bytes: u64,
        group: GroupHandle,
    },
    Unstage {
        id: StagingId,
    },
    /// Copy `from` to `to` (equal lengths, never overlapping).
    Copy {
        from: MemRef,
        to: MemRef,
    },
    /// Combine `from` into `into` element by element (equal lengths, whole elements, never overlapping).
    Reduce {
        /// The operand that is only read.
        from: MemRef,
        /// The operand that becomes the result.
        into: MemRef,
        reduction: Reduction,
        /// `from` is the left operand.
        from_left: bool,
    },
    /// Copy received payload to memory: `to.len` bytes from `offset` of payload `payload` (the index within the batch
    /// given to [`crate::Endpoint::handle_datagrams`], 0 for [`crate::Endpoint::handle_frame`]).
    Deliver {
        /// Index within the batch.
        payload: u32,
        /// Bytes from the start of that payload.
        offset: u32,
        to: MemRef,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reach {
    /// To the other hosts; no sibling on this host needs the datagrams.
    Network,
    /// To the other hosts and to the siblings on this host.
    Everywhere,
    /// To the siblings on this host; all members are on it.
    Host,
}

/// A run of chunks to multicast: chunk `first_chunk + i` of block `source` carries bytes `i * chunk_bytes ..` of
/// `memory`; only the last chunk may be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MulticastBatch {
    /// Returned in [`crate::Endpoint::handle_multicast_done`] when the memory has been read.
    pub token: u64,
    pub channel: MulticastChannel,
    /// How far the datagrams go. The sender itself never gets them back.
    pub reach: Reach,
    /// The header of the first datagram. In datagram `i` the `chunk` is greater by `i` ([`crate::wire`]).
    pub header: DatagramHeader,
    /// The full number whose low bits are the header's epoch.
    pub instance: InstanceId,
    pub key: MulticastKey,
    /// Datagrams, at least 1. A block of no bytes is never multicast.
    pub chunks: u32,
    /// Payload bytes of each datagram but the last.
    pub chunk_bytes: u32,
    pub memory: MemRef,
}

/// The pieces of memory that a frame carries. Cloning them costs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FramePayload {
    #[default]
    Empty,
    Piece(MemRef),
    /// Pieces in the order of sending.
    Pieces(Arc<[MemRef]>),
}

/// Sum of the bytes of all pieces.
pub(crate) fn payload_bytes(pieces: &[MemRef]) -> u64 {
    pieces.iter().map(|piece| piece.len).sum()
}

impl Deref for FramePayload {
    type Target = [MemRef];

    fn deref(&self) -> &[MemRef] {
        match self {
            FramePayload::Empty => &[],
            FramePayload::Piece(piece) => std::slice::from_ref(piece),
            FramePayload::Pieces(pieces) => pieces,
        }
    }
}

impl From<MemRef> for FramePayload {
    fn from(piece: MemRef) -> Self {
        FramePayload::Piece(piece)
    }
}

impl From<&[MemRef]> for FramePayload {
    fn from(pieces: &[MemRef]) -> Self {
        match *pieces {
            [] => FramePayload::Empty,
            [piece] => FramePayload::Piece(piece),
            [..] => FramePayload::Pieces(pieces.into()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transmit {
    /// A frame to a service process over the unicast fabric. The driver reads `payload` before its next call into the
    /// machine. The machine copes with a lossy fabric; over a reliable one its retransmissions stay silent.
    Frame {
        to: SpId,
        /// The frame without payload.
        header: FrameBytes,
        /// The payload behind the header, piece after piece.
        payload: FramePayload,
    },
    /// Datagrams to a multicast channel; the memory may be read later, until `handle_multicast_done`.
    Multicast(MulticastBatch),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The machine will send to a peer: open a connection.
    Connect { peer: SpId, address: Arc<[u8]> },
    /// No group with this peer is left.
    Disconnect { peer: SpId },
    /// Have the engine beside the service process execute this list ([`crate::Config::deferred`]) and report with
    /// [`crate::Endpoint::handle_offloaded`]. If the call ends with an error first, withdraw the list. The memory of
    /// the list stays reserved as long as the engine may access it.
    Offload(Box<Offload>),
    /// Receive this channel for this group, and hash payloads by the group's key. Several groups may share one channel.
    Join { channel: MulticastChannel, group: GroupHandle, key: MulticastKey },
    /// This group receives this channel no more.
    Leave { channel: MulticastChannel, group: GroupHandle },
    /// The group that a local rank requested is made, or cannot be made. On an error the rank is no member.
    GroupReady { group: GroupHandle, rank: Rank, result: Result<(), GroupError> },
    /// A call has ended. The buffers of the call belong to the rank again, and the machine names them no more.
    Completed { call: CallId, result: Result<(), CollectiveError> },
    /// A local rank called `by_ns` after the first news of the instance here. The delay exceeds
    /// [`crate::Config::stand_in_after`] (SP-9).
    Late {
        group: GroupHandle,
        rank: Rank,
        instance: InstanceId,
        kind: CallKind,
        /// How late, in nanoseconds.
        by_ns: u64,
    },
    /// A local rank waits for a collective for longer than the watchdog's time (SP-9). The event changes nothing else.
    Overdue(Box<Overdue>),
    /// A collective has reached a step. Only with [`crate::Config::narrate`].
    Milestone { group: GroupHandle, instance: InstanceId, step: Milestone },
    /// A peer sent a message that the protocol does not allow. The counters include it already.
    Violation { peer: Option<SpId>, what: &'static str },
}

/// A call whose task list the engine beside the service process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OffloadedCall {
    pub group: GroupHandle,
    pub instance: InstanceId,
    pub call: CallId,
}

/// The task list of one call, for the engine beside the service process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offload {
    pub of: OffloadedCall,
    pub list: DeferredList,
    /// For each task the message that it sends or receives; `None` for tasks that only increment a counter.
    pub messages: Vec<Option<EngineMessage>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineMessage {
    /// Address of the peer's engine ([`GroupMember::engine`]).
    pub peer: Arc<[u8]>,
    /// The tag of the message, equal on both ends.
    pub tag: u64,
    /// The bytes to send, or where to receive them, in memory of the service process. `None` without bytes.
    pub memory: Option<MemRef>,
}

/// A step of a collective at one service process, for a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Milestone {
    Known(Signature),
    /// This local rank has not called; the service process stands in for it (SP-6).
    StoodIn(Rank),
    /// All local ranks have called or have a stand-in: the service process enters the ready barrier (MC-4).
    Entered,
    /// All service processes are ready: blocks may move.
    Ready,
    Ended,
}

/// A collective in flight at one service process, for a report on what it waits for (SP-9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlightInstance {
    pub group: GroupHandle,
    pub instance: InstanceId,
    pub signature: Signature,
    /// Nanoseconds since the first news of the collective here.
    pub age_ns: u64,
    pub absent: Vec<Rank>,
    /// Remote ranks that this service process waits for: the lowest rank of the host whose step of the ready barrier is
    /// missing, and behind the barrier the ranks whose bytes are missing.
    pub awaits: Vec<Rank>,
}

/// A collective that takes longer than the watchdog's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    pub flight: InFlightInstance,
    pub missing: Absentees,
    /// The lowest rank of each service process that did not answer.
    pub silent: Vec<Rank>,
}

/// One datagram of a received batch, without its payload.
#[derive(Debug, Clone, Copy)]
pub struct ReceivedDatagram<'a> {
    /// The first bytes of the datagram, [`crate::wire::DATAGRAM_HEADER_BYTES`] or fewer when it was too short.
    pub header: &'a [u8],
    /// Bytes behind the header.
    pub payload_len: u32,
    /// Payload hash by the key of the group in the header ([`Event::Join`]). Ignored for an unknown group.
    pub payload: PayloadHash,
    pub from: Ipv4Addr,
}

/// Counters since the start of a service process. Reports use the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EndpointCounters {
    /// Collectives completed on local ranks.
    pub completed: u64,
    /// Collectives that ended with an error on local ranks.
    pub failed: u64,
    /// Late calls, see [`Event::Late`] (SP-9).
    pub late_arrivals: u64,
    /// Sum of the delays of late calls, nanoseconds.
    pub late_ns: u64,
    /// Multicast payload bytes sent, first time.
    pub multicast_bytes: u64,
    /// Payload bytes sent again, by repair or re-multicast.
    pub retransmitted_bytes: u64,
    /// Datagrams received that brought something new.
    pub datagrams_new: u64,
    /// Datagrams received that were known or not needed any more.
    pub datagrams_stale: u64,
    /// Datagrams refused, which count as violations too: malformed, with a wrong tag, from another address than their
    /// sender's, or for a collective without a place for them.
    pub datagrams_refused: u64,
    /// Refused datagrams of a member that came before any rank can have passed the ready barrier.
    pub datagrams_early: u64,
    /// Frames or datagrams refused: malformed, wrong tag, not allowed.
    pub violations: u64,
    /// Frames sent again by a link.
    pub link_retransmissions: u64,
    /// Frames sent to other service processes, including retransmissions.
    pub frames: u64,
    /// Frames without payload: announcements, requests, acknowledgements.
    pub control_frames: u64,
    /// Most bytes of staging and scratch ever held at once.
    pub staging_peak: u64,
}
