//! What an oracle can find: every way in which a machine can break its contract with the driver or the ranks.
//!
//! Invariant: a breach says what was seen and where; the seed and the state around it are added by
//! [`crate::Failure`].

use std::time::Duration;

use outboard_plan::Rank;
use outboard_proto::{CallId, Channel, GroupHandle, InstanceId, MemRef, SpId, StagingId};

/// A broken promise of the machine, found by an oracle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A memory reference to a call that is unknown or completed.
    #[error("names {at:?}, but that call is unknown or completed: its buffers belong to the rank")]
    RegionGone {
        /// What was named.
        at: MemRef,
    },
    /// A memory reference to staging that was never made or was given back.
    #[error("names {at:?}, but that staging does not exist")]
    StagingGone {
        /// What was named.
        at: MemRef,
    },
    /// A memory reference beyond the end of its region.
    #[error("names {at:?}, but the region has {size} bytes")]
    OutOfBounds {
        /// What was named.
        at: MemRef,
        /// Bytes of the region.
        size: u64,
    },
    /// An order that writes to a send buffer.
    #[error("writes to {at:?}, a send buffer")]
    WritesInput {
        /// What was named.
        at: MemRef,
    },
    /// A read of memory that nothing was ever written to. Seen by the provenance store only.
    #[error("reads {at:?}, of which nobody has written {holes} bytes")]
    ReadsUndefined {
        /// What was named.
        at: MemRef,
        /// Bytes without a source.
        holes: u64,
    },
    /// A copy between pieces of unequal length, or overlapping ones.
    #[error("copies {from:?} to {to:?}: unequal or overlapping")]
    BadCopy {
        /// Source.
        from: MemRef,
        /// Destination.
        to: MemRef,
    },
    /// Operands of unequal length, of broken elements, or overlapping ones.
    #[error("combines {from:?} into {into:?}: unequal, not whole elements or overlapping")]
    BadReduce {
        /// The operand that stays.
        from: MemRef,
        /// The operand that becomes the result.
        into: MemRef,
    },
    /// A delivery from a payload that does not exist or is shorter.
    #[error("delivers {len} bytes from {offset} of payload {payload}, which is not there")]
    BadDeliver {
        /// Index within the batch.
        payload: u32,
        /// Bytes from its start.
        offset: u32,
        /// Bytes wanted.
        len: u64,
    },
    /// Staging under a name that exists.
    #[error("makes {0:?} twice")]
    StagedTwice(StagingId),
    /// Staging given back that does not exist.
    #[error("gives back {0:?}, which does not exist")]
    UnstagedTwice(StagingId),
    /// More staging than the quota.
    #[error("holds {held} bytes of staging, the quota is {quota}")]
    StagingQuota {
        /// Bytes held.
        held: u64,
        /// Bytes allowed.
        quota: u64,
    },
    /// A region goes away while a multicast batch may still read it.
    #[error("lets go of memory that multicast batch {token} may still read ({memory:?})")]
    StillRead {
        /// The batch.
        token: u64,
        /// What it reads.
        memory: MemRef,
    },
    /// A multicast batch that contradicts itself or the configuration.
    #[error("multicast batch {token} is malformed: {what}")]
    BadBatch {
        /// The batch.
        token: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A frame header longer than the fabric takes.
    #[error("a frame header of {0} bytes, the fabric takes {max}", max = outboard_proto::wire::MAX_FRAME_HEADER)]
    LongHeader(usize),
    /// A frame to a peer without `Connect`.
    #[error("sends to {0} without having asked for a connection")]
    NotConnected(SpId),
    /// `Connect` or `Disconnect` out of turn.
    #[error("connects or disconnects {0} out of turn")]
    ConnectTurn(SpId),
    /// `Join` or `Leave` out of turn.
    #[error("joins or leaves {0:?} out of turn")]
    JoinTurn(Channel),
    /// `GroupReady` that nobody asked for, or a second one.
    #[error("answers the making of {group} to {rank} without being asked")]
    UnaskedReady {
        /// The group.
        group: GroupHandle,
        /// The rank.
        rank: Rank,
    },
    /// A group refused although nothing is wrong with it, or for a reason that is not so.
    #[error("refuses {group} to {rank} for a wrong reason: {reason}")]
    FalseGroupError {
        /// The group.
        group: GroupHandle,
        /// The rank.
        rank: Rank,
        /// What the machine said.
        reason: String,
    },
    /// A group made although its service processes are configured differently.
    #[error("makes {group} although its service processes are configured differently")]
    MissedConfiguration {
        /// The group.
        group: GroupHandle,
    },
    /// `Completed` for a call that is not open.
    #[error("completes {0:?}, which is not open")]
    CompletedTwice(CallId),
    /// A call that ended well with wrong bytes.
    #[error("{rank} of {group} ends instance {instance} with wrong bytes: {what}", instance = instance.0)]
    WrongBytes {
        /// The group.
        group: GroupHandle,
        /// The rank.
        rank: Rank,
        /// The collective.
        instance: InstanceId,
        /// Where and what.
        what: String,
    },
    /// A call that ended well although the ranks disagreed about it.
    #[error("{rank} of {group} ends instance {instance} well although the ranks disagree", instance = instance.0)]
    MissedMismatch {
        /// The group.
        group: GroupHandle,
        /// The rank.
        rank: Rank,
        /// The collective.
        instance: InstanceId,
    },
    /// A barrier that ended well before all had called.
    #[error("{rank} of {group} has passed the barrier of instance {instance} before all have called", instance = instance.0)]
    PassedBarrier {
        /// The group.
        group: GroupHandle,
        /// The rank.
        rank: Rank,
        /// The collective.
        instance: InstanceId,
    },
    /// A call that ended with an error that is not so.
    #[error("{rank} of {group} ends instance {instance} with a false error: {reason}", instance = instance.0)]
    FalseError {
        /// The group.
        group: GroupHandle,
        /// The rank.
        rank: Rank,
        /// The collective.
        instance: InstanceId,
        /// What the machine said.
        reason: String,
    },
    /// A rank reported as absent that has called, or as having called last what it has not.
    #[error("{rank} of {group} is said not to have called instance {instance}, or its last call is not so", instance = instance.0)]
    FalseAbsence {
        /// The group.
        group: GroupHandle,
        /// The rank.
        rank: Rank,
        /// The collective.
        instance: InstanceId,
    },
    /// A recording taken or freed, or refused, wrongly.
    #[error("{rank} of {group}, recording {what}")]
    Recorded {
        /// The group.
        group: GroupHandle,
        /// The rank.
        rank: Rank,
        /// Its number, and what was said.
        what: String,
    },
    /// A violation reported although nobody misbehaves.
    #[error("reports a violation although nobody misbehaves: {0}")]
    FalseViolation(&'static str),
    /// `poll_timeout` or `next_transmit` stays due whatever is done.
    #[error("the timer stays due: handled {0} times at one instant")]
    TimerSpins(u32),
    /// More messages queued on links than what is in flight can explain.
    #[error("{sp} has {messages} messages queued on its links, the bound is {bound}")]
    Backlog {
        /// Whose.
        sp: SpId,
        /// How many.
        messages: usize,
        /// The bound.
        bound: usize,
    },
    /// More on the wire than the work could ever need.
    #[error("{sent} bytes on the wire where {bound} bound any sensible run")]
    Storm {
        /// Bytes sent.
        sent: u64,
        /// The bound.
        bound: u64,
    },
    /// Not everything ended in time.
    #[error("{open} calls or groups are still open {after:?} after faults and ranks gave the machine leave to finish")]
    NotLive {
        /// How many.
        open: usize,
        /// Virtual time granted.
        after: Duration,
    },
    /// Something is left when all groups are gone.
    #[error("when all groups are gone, {sp} still has {what}")]
    LeftOver {
        /// Whose.
        sp: SpId,
        /// What.
        what: String,
    },
    /// The counters of a service process contradict what was seen.
    #[error("{sp} has counted {what}")]
    WrongCounters {
        /// Whose.
        sp: SpId,
        /// What.
        what: String,
    },
    /// The machine or the simulator panicked.
    #[error("panic: {0}")]
    Panic(String),
}
