//! Why a collective, or the making of a group, failed.
//!
//! Service processes send these values to each other, so that every rank names the same culprit.

mod absentees;

use outboard_call::{Rank, Signature};

use crate::config::Difference;
use crate::ids::{GroupHandle, SpId};
pub use absentees::{Absentee, Absentees, DeadlineMissed, MAX_ABSENT};

/// Why a message of another service process, or the call that the message names, is rejected: the group breaks.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// No service process sends such a message now.
    Violation(&'static str),
    /// Members disagree, or a resource is missing.
    Error(CollectiveError),
}

impl Rejection {
    /// A violation unless `sound`.
    pub(crate) fn unless(sound: bool, violation: &'static str) -> Result<(), Rejection> {
        if sound { Ok(()) } else { Err(Rejection::Violation(violation)) }
    }
}

impl From<&'static str> for Rejection {
    fn from(violation: &'static str) -> Self {
        Rejection::Violation(violation)
    }
}

impl From<CollectiveError> for Rejection {
    fn from(error: CollectiveError) -> Self {
        Rejection::Error(error)
    }
}

/// Why a collective ended without its bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// A rank's process died or detached while the group needs it.
    #[error("{0} of the group died or left; end the program or make a group without it")]
    RankLost(Rank),
    /// A service process died, its host stopped answering, or the two service processes do not communicate.
    #[error(
        "{sp} (that of {rank}) died, stopped answering or refuses us: logs say which; restart it and the ranks it served"
    )]
    PeerLost { sp: SpId, rank: Rank },
    /// A service process was stopped, or one of its turns took so long, that others may have declared it dead.
    #[error(
        "{sp} (that of {rank}) did nothing for {ms} ms and was given up: its host is overloaded, was stopped, or a turn \
         of it took too long (its log says what); restart the program"
    )]
    Stalled { sp: SpId, rank: Rank, ms: u64 },
    /// Two ranks called the same instance of the group differently.
    #[error(
        "ranks disagree: {a_rank} called {a}, {b_rank} called {b}; all ranks of a group must make the same calls in the same order"
    )]
    Mismatch { a_rank: Rank, a: Signature, b_rank: Rank, b: Signature },
    /// Two ranks of an all-to-all do not agree on the bytes of their block.
    #[error(
        "{source_rank} sends {sent} bytes to {destination}, which expects {expected} from it; both must name the same count"
    )]
    Block { source_rank: Rank, sent: u64, destination: Rank, expected: u64 },
    /// The ends of a tagged message disagree on its bytes; only a single receive may expect more than is sent (GP-1).
    #[error(
        "{source_rank} sends {sent} bytes with tag {tag} to {destination}, whose receive takes {expected}; both must name the same count"
    )]
    Message { source_rank: Rank, destination: Rank, tag: u32, sent: u64, expected: u64 },
    /// A buffer that a rank handed over cannot be read or written.
    #[error(
        "a buffer of {0} cannot be accessed; it must stay mapped, writable where received, until the request completes"
    )]
    Memory(Rank),
    #[error("{0} sent what the protocol does not allow; check that all hosts run the same version")]
    Protocol(SpId),
    /// Two service processes are configured differently.
    #[error(
        "{a} and {b} are configured differently: {}",
        Difference { a: *a_digest, b: *b_digest }
    )]
    Configuration { a: SpId, a_digest: u64, b: SpId, b_digest: u64 },
    /// Another group on a host of this group uses the same handle.
    #[error(
        "{0} exists already with other members on a host of the group; make the group again, it draws a new handle"
    )]
    HandleTaken(GroupHandle),
    /// A rank has not requested the group in time, so the group cannot be made.
    #[error(
        "{rank}, or another rank of its service process, has not asked for the group {after_ms} ms after the first; it hangs, ended, or could not make the group: see what it says itself (outboardd --group-timeout)"
    )]
    GroupNotRequested {
        /// The rank. If its service process does not know the group: the lowest rank of that service process.
        rank: Rank,
        after_ms: u64,
    },
    /// The service process of a rank refuses it the group.
    #[error("{rank} cannot be in the group: {why}")]
    Refused { rank: Rank, why: GroupRefusal },
    /// A call needs more memory of the service process than the quotas or the host have left: a reduction for its
    /// bytes, a multicast for the bitmap of its chunks. Waiting for other groups could last for ever, since the other
    /// groups may wait for this call on another host.
    #[error(
        "the service process of {rank} needs {bytes} bytes of memory for this call, more than its quota or its host \
         has left; raise --scratch-quota or --tables-quota of its outboardd, or make calls on less or fewer at once"
    )]
    Staging {
        /// The lowest rank of the group that the service process serves.
        rank: Rank,
        bytes: u64,
    },
    /// The engine beside a service process failed in a call, or has no resources left for the call.
    #[error(
        "the engine of the service process of {0} gave a call up: its log says why; fewer calls at once may help, or \
         --engine service-process on all hosts"
    )]
    Engine(Rank),
    /// A rank set a deadline for its call, and the deadline has passed (SP-9).
    #[error("{0}")]
    Deadline(Box<DeadlineMissed>),
}

impl CollectiveError {
    /// Whether only a call can cause this error. If so, the group had been made on all hosts.
    pub(crate) fn is_from_call(&self) -> bool {
        match self {
            CollectiveError::Mismatch { .. }
            | CollectiveError::Block { .. }
            | CollectiveError::Message { .. }
            | CollectiveError::Memory(_)
            | CollectiveError::Staging { .. }
            | CollectiveError::Engine(_)
            | CollectiveError::Deadline(_) => true,
            CollectiveError::RankLost(_)
            | CollectiveError::PeerLost { .. }
            | CollectiveError::Stalled { .. }
            | CollectiveError::Protocol(_)
            | CollectiveError::Configuration { .. }
            | CollectiveError::GroupNotRequested { .. }
            | CollectiveError::Refused { .. }
            | CollectiveError::HandleTaken(_) => false,
        }
    }
}

/// Why a service process refuses a group to a local rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GroupRefusal {
    /// The ranks of the service process have reached the limit of memberships in groups.
    #[error(
        "the ranks of its service process are in as many groups as they may be; destroy some groups, or raise \
         --max-groups of its outboardd"
    )]
    Groups,
    /// The tables of groups and recordings have reached the memory limit of the service process.
    #[error(
        "its service process has no memory left for groups and recordings; destroy some of them, or raise \
         --tables-quota of its outboardd"
    )]
    Tables,
    /// The service process cannot accept the descriptors that the rank passes.
    #[error(
        "its service process is out of descriptors; raise its limit on them (`ulimit -n`, LimitNOFILE in its unit)"
    )]
    Descriptors,
    /// The service process has reached the limit of known peers.
    #[error(
        "its service process cannot meet so many others; destroy some groups, or raise --max-peers of its outboardd"
    )]
    Peers,
    /// The rank has made so many later offers that this offer is forgotten.
    #[error("it has made too many offers since; make the group of new ones")]
    Forgotten,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error("group refused: {0}")]
    Invalid(&'static str),
    /// The members could not agree, or a member was lost while the group was being made.
    #[error(transparent)]
    Failed(#[from] CollectiveError),
}
