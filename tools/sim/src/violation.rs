//! Every way in which a machine can break its contract with the driver or the ranks. Oracles report these.
//!
//! Invariant: a violation names what was seen and where. [`crate::RunFailure`] adds the seed and the state around it.

use std::time::Duration;

use outboard_plan::Rank;
use outboard_proto::{CallId, GroupHandle, InstanceId, MemRef, MulticastChannel, SpId, StagingId};

/// A broken promise of the machine, found by an oracle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("names {at:?}, but that call is unknown or completed: its buffers belong to the rank")]
    RegionGone { at: MemRef },
    #[error("names {at:?}, but that staging does not exist")]
    StagingGone { at: MemRef },
    #[error("names {at:?}, but the region has {size} bytes")]
    OutOfBounds { at: MemRef, size: u64 },
    #[error("writes to {at:?}, a send buffer")]
    WritesInput { at: MemRef },
    /// Only the provenance store detects this.
    #[error("reads {at:?}, of which nobody has written {holes} bytes")]
    ReadsUndefined { at: MemRef, holes: u64 },
    #[error("copies {from:?} to {to:?}: unequal or overlapping")]
    BadCopy { from: MemRef, to: MemRef },
    #[error("combines {from:?} into {into:?}: unequal, not whole elements or overlapping")]
    BadReduce { from: MemRef, into: MemRef },
    #[error("delivers {len} bytes from {offset} of payload {payload}, which is not there")]
    BadDeliver { payload: u32, offset: u32, len: u64 },
    #[error("delivers a payload elsewhere than it said before the frame came: {at:?}")]
    Misplaced { at: MemRef },
    #[error("makes {0:?} twice")]
    StagedTwice(StagingId),
    #[error("gives back {0:?}, which does not exist")]
    UnstagedTwice(StagingId),
    #[error("holds {held} bytes of staging, the quota is {quota}")]
    StagingQuota { held: u64, quota: u64 },
    #[error("lets go of memory that multicast batch {token} may still read ({memory:?})")]
    StillRead { token: u64, memory: MemRef },
    #[error("multicast batch {token} is malformed: {what}")]
    BadBatch { token: u64, what: &'static str },
    #[error("a frame header of {0} bytes, the fabric takes {max}", max = outboard_proto::wire::MAX_FRAME_HEADER)]
    LongHeader(usize),
    #[error("sends to {0} without having asked for a connection")]
    NotConnected(SpId),
    #[error("connects or disconnects {0} out of turn")]
    ConnectTurn(SpId),
    #[error("joins or leaves {0:?} out of turn")]
    JoinTurn(MulticastChannel),
    #[error("answers the making of {group} to {rank} without being asked")]
    UnaskedReady { group: GroupHandle, rank: Rank },
    #[error("refuses {group} to {rank} for a wrong reason: {reason}")]
    FalseGroupError { group: GroupHandle, rank: Rank, reason: String },
    #[error("makes {group} {after:?} after {rank} was the last to ask for it, when nothing went wrong any more")]
    LateGroup { group: GroupHandle, rank: Rank, after: Duration },
    #[error("makes {group} although its service processes are configured differently")]
    MissedConfiguration { group: GroupHandle },
    #[error("completes {0:?}, which is not open")]
    CompletedTwice(CallId),
    #[error("{rank} of {group} ends instance {instance} with wrong bytes: {what}", instance = instance.0)]
    WrongBytes { group: GroupHandle, rank: Rank, instance: InstanceId, what: String },
    #[error("{rank} of {group} ends instance {instance} well although the ranks disagree", instance = instance.0)]
    MissedMismatch { group: GroupHandle, rank: Rank, instance: InstanceId },
    #[error("{rank} of {group} has passed the barrier of instance {instance} before all have called", instance = instance.0)]
    PassedBarrier { group: GroupHandle, rank: Rank, instance: InstanceId },
    #[error("{rank} of {group} ends instance {instance} with a false error: {reason}", instance = instance.0)]
    FalseError { group: GroupHandle, rank: Rank, instance: InstanceId, reason: String },
    #[error("{rank} of {group} is said not to have called instance {instance}, or its last call is not so", instance = instance.0)]
    FalseAbsence { group: GroupHandle, rank: Rank, instance: InstanceId },
    #[error("{rank} of {group}, recording {what}")]
    Recorded { group: GroupHandle, rank: Rank, what: String },
    #[error("ends {group} for one reason, but some members are told {one}, others {other}")]
    Verdicts { group: GroupHandle, one: String, other: String },
    #[error("reports a violation although nobody misbehaves: {0}")]
    FalseViolation(&'static str),
    #[error("the timer stays due: handled {0} times at one instant")]
    TimerSpins(u32),
    #[error("{sp} has {messages} messages queued on its links, the bound is {bound}")]
    Backlog { sp: SpId, messages: usize, bound: usize },
    #[error("{sent} bytes on the wire where {bound} bound any sensible run")]
    Storm { sent: u64, bound: u64 },
    #[error("{open} calls or groups are still open {after:?} after faults and ranks gave the machine leave to finish")]
    NotLive { open: usize, after: Duration },
    #[error("when all groups are gone, {sp} still has {what}")]
    LeftOver { sp: SpId, what: String },
    #[error("{sp} has counted {what}")]
    WrongCounters { sp: SpId, what: String },
    #[error("panic: {0}")]
    Panic(String),
}
