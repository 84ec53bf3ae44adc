//! Posting: takes a completion word, places the buffers, and adds an entry to the ring.
//!
//! Never blocks on other ranks (MC-9). Invariant: calls that share a count reach the service process in the order of
//! their numbers.

use crate::attachment::{Attachment, AttachmentParts};
use crate::error::Error;
use crate::lock::lock;
use crate::request::Request;
use crate::slots::{BufferPlacement, PostedCall};
use crate::staging::{RankStaging, RequestBuffers};
use outboard_call::Call;
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::memory::Tier;
use std::sync::{Arc, Mutex, MutexGuard};

/// Calls on a group that are numbered by one count.
#[derive(Debug)]
pub(crate) struct CallSequence {
    pub(crate) attachment: Arc<Attachment>,
    /// The group's number at the service process.
    pub(crate) group: u64,
    count: Mutex<u64>,
}

/// A request and its call.
pub(crate) struct PostedRequest {
    pub(crate) request: Request,
    pub(crate) call: PostedCall,
}

impl CallSequence {
    pub(crate) fn new(attachment: Arc<Attachment>, group: u64) -> CallSequence {
        CallSequence { attachment, group, count: Mutex::default() }
    }

    /// Posts a call with the addresses at which the service process finds the call's buffers and table.
    ///
    /// # Safety
    /// As for [`crate::Group::iallgather`].
    pub(crate) unsafe fn post(
        &self,
        buffers: &RequestBuffers,
        call: Call,
        table: &[u64],
    ) -> Result<PostedRequest, Error> {
        let parts = self.attachment.parts()?;
        if parts.known_lost() {
            return Err(parts.connection.lost());
        }
        parts.progress();
        // SAFETY: the caller's promise about the buffers.
        let (placement, pool) = unsafe { place_buffers(parts, buffers) }?;
        let (send, receive) = match &placement {
            BufferPlacement::Staged(staged) => (staged.send_address(), staged.receive_address()),
            BufferPlacement::Direct(_) | BufferPlacement::Shared => {
                (buffers.contribution as u64, buffers.receive as u64)
            }
        };
        let mut instance = lock(&self.count);
        let group = self.group;
        let taken = lock(&parts.slots).acquire(group, *instance + 1);
        // The count is unlocked before the pool: a call of a recording holds the pool while it waits for the count.
        let Some(posted @ PostedCall { slot, .. }) = taken else {
            drop((instance, pool));
            parts.release(placement);
            return Err(in_flight_limit(parts));
        };
        let table = match parts.put_table(slot, table) {
            Ok(table) => table,
            Err(error) => {
                drop((instance, pool));
                parts.release(placement);
                lock(&parts.slots).release(slot);
                return Err(error);
            }
        };
        let entry =
            SubmissionEntry { group, instance: *instance + 1, slot, call: Call { send, receive, table, ..call } };
        parts.control.arm(slot);
        // Locked until the call is posted, so that no thread notifies the service process of a call unknown to it.
        let mut slots = lock(&parts.slots);
        slots.set_placement(slot, placement);
        if let Err(full) = parts.control.post(&entry) {
            let placement = slots.remove_placement(slot);
            slots.release(slot);
            drop((slots, instance, pool));
            parts.release(placement);
            return Err(Error::Resource(full.to_string()));
        }
        slots.record_post(slot);
        drop(slots);
        *instance += 1;
        Ok(PostedRequest { request: Request::new(self.attachment.clone(), slot), call: posted })
    }
}

fn in_flight_limit(parts: &AttachmentParts) -> Error {
    let limit = lock(&parts.slots).count();
    Error::Resource(format!("{limit} requests of this rank are in flight, the limit; test or wait for some"))
}

/// Stages the buffers if the service process cannot reach them in place. For a recording the pool stays locked until
/// the call is posted, so an earlier call that ends meanwhile leaves the segment to this call.
///
/// # Safety
/// As for [`crate::Group::iallgather`].
unsafe fn place_buffers<'a>(
    parts: &'a AttachmentParts,
    buffers: &RequestBuffers,
) -> Result<(BufferPlacement, Option<MutexGuard<'a, RankStaging>>), Error> {
    let tier = parts.tier();
    parts.check_protections(tier, buffers)?;
    match tier {
        Tier::Memfd | Tier::CrossMemory | Tier::MemoryDescriptor => {
            Ok((BufferPlacement::Direct(buffers.clone()), None))
        }
        Tier::Staging if parts.shares(buffers) => Ok((BufferPlacement::Shared, None)),
        Tier::Staging => {
            let mut pool = lock(&parts.staging);
            // SAFETY: the caller's promise.
            let staged = unsafe { pool.stage((&parts.connection, &parts.own), buffers) }?;
            Ok((BufferPlacement::Staged(staged), buffers.are_recorded().then_some(pool)))
        }
    }
}
