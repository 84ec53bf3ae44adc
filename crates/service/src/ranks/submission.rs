//! Checks submissions: turns an entry of a rank into a signature, its blocks and its memory.
//!
//! Invariants: an entry is untrusted, so every address, length, rank and number in it is checked before the machine
//! receives the entry. A table is copied out of the rank's memory, then checked, and never read again.

use std::sync::Arc;
use std::time::Duration;

use outboard_call::{Call, CallError, CallKind, Footprint, MemoryRange, Rank, TaggedCall};
use outboard_proto::{GroupHandle, InstanceId};
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::memory::{AccessError, RankMemory};
use outboard_shm::status::Status;

use super::{AttachedRank, Membership, MembershipStage};
use crate::driver::EndpointDriver;
use crate::memory::PostedBuffers;

/// A submission that is refused.
#[derive(Debug, thiserror::Error)]
pub enum SubmissionError {
    #[error("group {0} is not one of this rank's; use a group between its creation and its destruction")]
    Group(u64),
    #[error("call {found} of the group came where {expected} was due; a group's calls are posted in order")]
    Instance { found: u64, expected: u64 },
    #[error("the table of blocks at {address:#x} cannot be read: {error}")]
    Table { address: u64, error: AccessError },
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("recording {0} of the group is not one of this rank's; call a recording between its end and its freeing")]
    Recording(u32),
}

impl SubmissionError {
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            SubmissionError::Table { .. } => Status::Memory,
            SubmissionError::Group(_)
            | SubmissionError::Instance { .. }
            | SubmissionError::Call(_)
            | SubmissionError::Recording(_) => Status::Argument,
        }
    }
}

pub(super) struct AdmittedCall {
    pub(super) group: GroupHandle,
    pub(super) rank: Rank,
    pub(super) footprint: Footprint,
    pub(super) deadline: Option<Duration>,
    pub(super) buffers: PostedBuffers,
}

impl AttachedRank {
    /// Checks a submission against this rank's state, and against the machine's count of the rank's collectives.
    pub(super) fn admit(
        &mut self,
        entry: &SubmissionEntry,
        driver: &EndpointDriver,
    ) -> Result<AdmittedCall, SubmissionError> {
        let unknown = || SubmissionError::Group(entry.group);
        let Membership { handle, rank, ranks, deadline, stage } =
            self.groups.get_mut(&entry.group).ok_or_else(unknown)?;
        let MembershipStage::Made { recordings, in_flight } = stage else {
            return Err(unknown());
        };
        let mut call = entry.call;
        let counted = if matches!(call.kind, CallKind::Tagged(_)) {
            None
        } else {
            driver.machine().next_instance(*handle, *rank)
        };
        if let Some(InstanceId(expected)) = counted.filter(|due| due.0 != entry.instance) {
            return Err(SubmissionError::Instance { found: entry.instance, expected });
        }
        let mut recorded = None;
        if let CallKind::Tagged(TaggedCall::Recorded { recording }) = call.kind {
            let pieces = recordings.get(&recording).ok_or(SubmissionError::Recording(recording))?;
            call.bytes = pieces.total();
            recorded = Some(Arc::clone(pieces));
        }
        let footprint = footprint(&call, *rank, *ranks, &*self.memory)?;
        *in_flight += 1;
        let copy_agent = self.copy_agent.clone();
        let (memory, pair) = (Arc::clone(&self.memory), |side: MemoryRange| (side.address, side.bytes));
        let buffers = match (call.kind, recorded) {
            (_, Some(pieces)) => PostedBuffers::of_recording(
                memory,
                pieces,
                Some(footprint.writes.address).filter(|_| call.receive != 0),
            ),
            // A message has one buffer, which the machine treats as the output.
            (CallKind::Tagged(TaggedCall::Send { .. }), None) => {
                PostedBuffers::new(memory, (0, 0), pair(footprint.reads))
            }
            _ => {
                PostedBuffers::new(memory, pair(footprint.reads), (footprint.writes.address, footprint.output_bytes()))
            }
        };
        let buffers = buffers.with_copy_agent(copy_agent);
        // A dock cannot copy for the rank of another machine.
        let buffers = if self.seat.is_none() { buffers.stageable() } else { buffers };
        Ok(AdmittedCall { group: *handle, rank: *rank, footprint, deadline: *deadline, buffers })
    }
}

/// The data that a call of `rank` among `ranks` ranks moves. The numbers of the call's table are copied out of the
/// rank's memory before they are checked, because the rank may write to them.
///
/// # Errors
/// The table cannot be read, or the call is invalid.
pub fn footprint(call: &Call, rank: Rank, ranks: u32, memory: &dyn RankMemory) -> Result<Footprint, SubmissionError> {
    let mut table = vec![0; 8 * call.table_numbers(rank, ranks)];
    if !table.is_empty() {
        memory.read(call.table, &mut table).map_err(|error| SubmissionError::Table { address: call.table, error })?;
    }
    let numbers: Vec<u64> = table.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
    Ok(call.footprint(rank, ranks, &numbers)?)
}
