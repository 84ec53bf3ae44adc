//! What passes between the machine and its driver.
//!
//! The driver owns memory and sockets; the machine names them: a [`Region`] is a buffer, a [`MemRef`] a piece of one,
//! an [`Order`] work on memory that the driver does at once and in order, a [`Transmit`] something to send, an
//! [`Event`] something the driver acts on or reports.

use std::hash::Hasher;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use outboard_call::{Blocks, Rank, Reduction};
pub use outboard_call::{CallKind, Class, Moves, Pairs, Signature, Sizes, TaggedCall, sizes_digest};
use outboard_plan::deferred::List;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use crate::error::{CollectiveError, GroupError};
use crate::group::lateness::Overdue;
use crate::ids::{CallId, Channel, GroupHandle, HostId, InstanceId, OfferId, SpId, StagingId};
use crate::wire::{MulticastKey, PayloadHash};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostedCall {
    /// The driver's name of the call and of its buffers.
    pub id: CallId,
    pub group: GroupHandle,
    /// The caller's rank in the group.
    pub rank: Rank,
    /// The caller's count of its calls on this group, from 1; 0 of tagged messages, which are none of its instances.
    pub instance: InstanceId,
    pub signature: Signature,
    /// The contribution lies in the output already: of an allgather in its place, of a reduction from the start (of a
    /// reduce on its root alone); of the root of a gather or scatter of even blocks: its own block stays where it is.
    pub in_place: bool,
    /// Where the blocks lie, of calls with blocks of different sizes only. An allgatherv sends one block; a
    /// reduce-scatter receives one and sends those of all ranks, one after the other. A block that the root of a
    /// gatherv or scatterv leaves where it is counts as empty.
    pub blocks: Option<Arc<Blocks>>,
    /// Opt-in: the collective and its group fail on all ranks if this call lasts longer (SP-9).
    pub deadline: Option<Duration>,
}

/// One rank of a group and who serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub sp: SpId,
    pub host: HostId,
    /// Its unicast address, opaque.
    pub address: Arc<[u8]>,
    /// From where its datagrams come; none where nobody knows.
    pub sends_from: Option<Ipv4Addr>,
    /// What its host's link carries, in bit/s.
    pub link_rate: u64,
    /// Where the engine beside the service process is reached, opaque; empty where there is none.
    pub engine: Arc<[u8]>,
    /// The rank's own offer: its service process knows whether the rank can still ask for the group.
    pub offer: OfferId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// The handle that the lowest rank drew.
    pub handle: GroupHandle,
    /// The secret that the keys of datagrams follow from.
    pub key: [u64; 2],
    /// By rank.
    pub members: Vec<Member>,
}

impl GroupSpec {
    /// Tells two groups apart whose handles collide.
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
pub enum Region {
    /// The send buffer of a call.
    Input(CallId),
    /// The receive buffer of a call.
    Output(CallId),
    /// Memory of the service process.
    Staging(StagingId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemRef {
    pub region: Region,
    /// Bytes from its start.
    pub offset: u64,
    pub len: u64,
}

/// Least that is allocated for any staging.
const LEAST_STAGING: u64 = 256;

/// What is allocated, and counts to quotas, where `bytes` of staging are asked for: an eighth more at most, in eight
/// steps from one power of two to the next, so that what is given back serves others of about its size. None beyond
/// all memory.
pub fn staging_size(bytes: u64) -> Option<u64> {
    let bytes = bytes.max(LEAST_STAGING);
    bytes.checked_next_multiple_of(bytes.checked_next_power_of_two()? / 16)
}

/// Work on memory. The driver drains [`crate::Endpoint::poll_order`] after every `handle_*` and does each order
/// before it takes the next and before it gives up what it passed in (the payload of a frame, the batch of datagrams).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Provide [`staging_size`] of `bytes` of memory under this name. The order promises nothing about contents, so
    /// the driver clears nothing. A driver without memory reports that ([`crate::Endpoint::handle_no_memory`]) and
    /// leaves orders undone that name it.
    Stage {
        id: StagingId,
        /// Bytes that are used.
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
        /// The operand that stays.
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
    /// To the other hosts; nobody else here wants them.
    Network,
    /// To the other hosts and to the siblings on this one.
    Everywhere,
    /// To the siblings on this host; all members are there.
    Host,
}

/// A run of chunks to multicast: chunk `first_chunk + i` of block `source` carries bytes
/// `i * chunk_bytes ..` of `memory`; only the last may be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MulticastBatch {
    /// To be handed back in [`crate::Endpoint::handle_multicast_done`] when the memory has been read.
    pub token: u64,
    pub channel: Channel,
    /// And how far. The sender itself never gets them back.
    pub reach: Reach,
    /// The header of the first datagram; that of datagram `i` has `chunk` greater by `i` ([`crate::wire`]).
    pub header: crate::wire::DatagramHeader,
    /// Which its epoch stands for.
    pub instance: InstanceId,
    pub key: MulticastKey,
    /// Datagrams, at least 1. A block of no bytes is never multicast.
    pub chunks: u32,
    /// Payload bytes of each but the last.
    pub chunk_bytes: u32,
    pub memory: MemRef,
}

/// A frame without payload: most are short, and need no allocation.
pub type FrameBytes = SmallVec<[u8; 96]>;

/// The pieces of memory that a frame carries. A copy of them costs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Payload {
    #[default]
    Empty,
    Piece(MemRef),
    /// Piece after piece.
    Pieces(Arc<[MemRef]>),
}

/// Bytes of all pieces together.
pub(crate) fn payload_bytes(pieces: &[MemRef]) -> u64 {
    pieces.iter().map(|piece| piece.len).sum()
}

impl Deref for Payload {
    type Target = [MemRef];

    fn deref(&self) -> &[MemRef] {
        match self {
            Payload::Empty => &[],
            Payload::Piece(piece) => std::slice::from_ref(piece),
            Payload::Pieces(pieces) => pieces,
        }
    }
}

impl From<MemRef> for Payload {
    fn from(piece: MemRef) -> Self {
        Payload::Piece(piece)
    }
}

impl From<&[MemRef]> for Payload {
    fn from(pieces: &[MemRef]) -> Self {
        match *pieces {
            [] => Payload::Empty,
            [piece] => Payload::Piece(piece),
            [..] => Payload::Pieces(pieces.into()),
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
        /// What follows it, piece after piece.
        payload: Payload,
    },
    /// Datagrams to a multicast channel; the memory may be read later, until `handle_multicast_done`.
    Multicast(MulticastBatch),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer will be sent to: have a connection.
    Connect { peer: SpId, address: Arc<[u8]> },
    /// No group with this peer is left.
    Disconnect { peer: SpId },
    /// Have the engine beside the service process carry this out ([`crate::Config::deferred`]), until
    /// [`crate::Endpoint::handle_offloaded`]. When its call ends with an error before, it is to be withdrawn, and its
    /// memory stays the engine's as long as that may touch it.
    Offload(Box<Offload>),
    /// Receive this channel for this group, and hash payloads by its key. Several groups may have one channel.
    Join { channel: Channel, group: GroupHandle, key: MulticastKey },
    /// This group receives this channel no more.
    Leave { channel: Channel, group: GroupHandle },
    /// The group that a local rank asked for is made, or cannot be: then the rank is not in it.
    GroupReady { group: GroupHandle, rank: Rank, result: Result<(), GroupError> },
    /// A call has ended; its buffers belong to the rank again and the machine names them no more.
    Completed { call: CallId, result: Result<(), CollectiveError> },
    /// A local rank called `by_ns` after the first news of the instance here, and longer after it than ranks are waited
    /// for ([`crate::Config::stand_in_after`]) (SP-9).
    Late {
        group: GroupHandle,
        rank: Rank,
        instance: InstanceId,
        kind: CallKind,
        /// How late, in nanoseconds.
        by_ns: u64,
    },
    /// A collective that a local rank waits for takes longer than the watchdog's time (SP-9). Nothing follows from it.
    Overdue(Box<Overdue>),
    /// A collective has come further. Only with [`crate::Config::narrate`].
    Step { group: GroupHandle, instance: InstanceId, step: Step },
    /// Somebody sent what the protocol does not allow. Already counted.
    Violation { peer: Option<SpId>, what: &'static str },
}

/// The task list of one call, for the engine beside the service process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offload {
    pub call: CallId,
    pub group: GroupHandle,
    pub instance: InstanceId,
    pub list: List,
    /// For each task the message that it sends or receives; `None` for tasks that only add to a counter.
    pub messages: Vec<Option<EngineMessage>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineMessage {
    /// Where the peer's engine is reached ([`Member::engine`]).
    pub peer: Arc<[u8]>,
    /// Its name, equal on both ends.
    pub tag: u64,
    /// What is sent, or where it goes, in memory of the service process; none without bytes.
    pub memory: Option<MemRef>,
}

/// A step in the life of a collective at one service process, for a timeline of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Known(Signature),
    /// This local rank has not called and is stood in for (SP-6).
    StoodIn(Rank),
    /// All local ranks have called or are stood in for: the ready barrier is entered (MC-4).
    Entered,
    /// All service processes are ready: blocks may move.
    Ready,
    Ended,
}

/// A collective in flight at one service process, for people who ask what it waits for (SP-9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    pub group: GroupHandle,
    pub instance: InstanceId,
    pub signature: Signature,
    /// Nanoseconds since the first news of it here.
    pub age_ns: u64,
    pub absent: Vec<Rank>,
    /// Ranks of other hosts that are waited for here: the lowest of the host whose step of the ready barrier is
    /// missing, and behind the barrier those whose bytes are.
    pub awaits: Vec<Rank>,
}

/// One datagram of a received batch, without its payload.
#[derive(Debug, Clone, Copy)]
pub struct ReceivedDatagram<'a> {
    /// The first bytes of the datagram, [`crate::wire::DATAGRAM_HEADER_BYTES`] or fewer when it was too short.
    pub header: &'a [u8],
    /// Bytes behind the header.
    pub payload_len: u32,
    /// Their hash by the key of the group that the header names ([`Event::Join`]); any where there is none.
    pub payload: PayloadHash,
    pub from: Ipv4Addr,
}

/// What a service process has counted since its start; it is reported under the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Collectives completed on local ranks.
    pub completed: u64,
    /// Collectives that ended with an error on local ranks.
    pub failed: u64,
    /// Calls that were late, see [`Event::Late`] (SP-9).
    pub late_arrivals: u64,
    /// Sum of how late they were, nanoseconds.
    pub late_ns: u64,
    /// Multicast payload bytes sent, first time.
    pub multicast_bytes: u64,
    /// Payload bytes sent again, by repair or re-multicast.
    pub retransmitted_bytes: u64,
    /// Datagrams received that brought something new.
    pub datagrams_new: u64,
    /// Datagrams received that were known or not wanted any more.
    pub datagrams_stale: u64,
    /// Datagrams refused, and so among the violations: malformed, with a wrong tag, from another address than their
    /// sender's, or for a collective that has no place for them.
    pub datagrams_refused: u64,
    /// Of these, datagrams of a member before anybody can have passed the ready barrier.
    pub datagrams_early: u64,
    /// Frames or datagrams refused: malformed, wrong tag, not allowed.
    pub violations: u64,
    /// Frames sent again by a link.
    pub link_retransmissions: u64,
    /// Frames sent to other service processes, those sent again among them.
    pub frames: u64,
    /// Those of them without payload: announcements, requests, acknowledgements.
    pub control_frames: u64,
    /// Most bytes of staging and scratch ever held at once.
    pub staging_peak: u64,
}
