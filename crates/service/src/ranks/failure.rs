//! The one table from the protocol's errors to the status codes of ranks (`outboard.h`).

use outboard_proto::{CollectiveError, GroupError, RecordError};
use outboard_shm::status::Status;

use crate::ranks::offers::OfferError;

/// The status code of a collective's error.
pub(crate) fn collective(error: &CollectiveError) -> Status {
    match error {
        CollectiveError::RankLost(_) => Status::RankLost,
        CollectiveError::PeerLost { .. } | CollectiveError::Stalled { .. } => Status::PeerLost,
        // `HandleTaken`: the handle comes from a member's own offer, so two groups use one handle for different
        // members.
        CollectiveError::Mismatch { .. }
        | CollectiveError::Block { .. }
        | CollectiveError::Message { .. }
        | CollectiveError::Configuration { .. }
        | CollectiveError::HandleTaken(_) => Status::Mismatch,
        CollectiveError::Memory(_) => Status::Memory,
        CollectiveError::Staging { .. } | CollectiveError::Refused { .. } | CollectiveError::Engine(_) => {
            Status::Resource
        }
        CollectiveError::Deadline(_) | CollectiveError::GroupNotRequested { .. } => Status::Deadline,
        CollectiveError::Protocol(_) => Status::Protocol,
    }
}

/// The status code of a failure to make a group.
pub(crate) fn group(error: &GroupError) -> Status {
    match error {
        GroupError::Invalid(_) => Status::Argument,
        GroupError::Failed(failed) => collective(failed),
    }
}

/// The status code of a refused recording.
pub(crate) fn recording(error: &RecordError) -> Status {
    match error {
        RecordError::Limit { .. } | RecordError::Size { .. } | RecordError::Quota => Status::Resource,
        RecordError::Step { .. } | RecordError::Whole(_) | RecordError::Group | RecordError::Number { .. } => {
            Status::Argument
        }
    }
}

/// The status code of offers that do not form a group.
pub(crate) fn offer(error: &OfferError) -> Status {
    match error {
        OfferError::Damaged { .. } | OfferError::Stale { .. } | OfferError::NotOurs { .. } => Status::Argument,
        OfferError::Version { .. } => Status::Version,
        OfferError::Configuration { .. } => Status::Mismatch,
    }
}
