//! Posting: takes a completion word, places the buffers, and adds an entry to the ring.
//!
//! Never blocks on other ranks (MC-9). Invariant: calls that share a count reach the service process in the order of
//! their numbers.

use crate::context::{Attachment, Parts, lock};
use crate::error::Error;
use crate::request::Request;
use crate::slots::Lent;
use crate::staging::{Buffers, StagingPool};
use outboard_call::Call;
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::memory::Tier;
use std::sync::{Arc, Mutex, MutexGuard};

/// Calls on a group that share a count.
#[derive(Debug)]
pub(crate) struct Posting {
    pub(crate) attachment: Arc<Attachment>,
    /// The group's number at the service process.
    pub(crate) group: u64,
    posted: Mutex<u64>,
}

/// A request, with its completion word and its number in the count.
pub(crate) struct Posted {
    pub(crate) request: Request,
    pub(crate) slot: u32,
    pub(crate) instance: u64,
}

impl Posting {
    pub(crate) fn new(attachment: Arc<Attachment>, group: u64) -> Posting {
        Posting { attachment, group, posted: Mutex::default() }
    }

    /// Posts a call with the addresses at which the service process finds its buffers and its table.
    ///
    /// # Safety
    /// As for [`crate::Group::iallgather`].
    pub(crate) unsafe fn post(&self, buffers: &Buffers, call: Call, table: &[u64]) -> Result<Posted, Error> {
        let parts = self.attachment.parts()?;
        if parts.known_lost() {
            return Err(parts.connection.lost());
        }
        parts.tend();
        // SAFETY: the caller's promise about the buffers.
        let (lent, pool) = unsafe { lend(parts, buffers) }?;
        let (send, receive) = match &lent {
            Lent::Staged(staged) => (staged.send_address(), staged.receive_address()),
            Lent::Direct(_) | Lent::Shared => (buffers.contribution as u64, buffers.receive as u64),
        };
        let mut instance = lock(&self.posted);
        let group = self.group;
        let taken = lock(&parts.slots).take(group, *instance + 1);
        // The number is released before the memory: a caller of a recording holds the memory and waits for the number.
        let Some(slot) = taken else {
            drop((instance, pool));
            parts.release(lent);
            return Err(in_flight_limit(parts));
        };
        let table = match parts.put_table(slot, table) {
            Ok(table) => table,
            Err(error) => {
                drop((instance, pool));
                parts.release(lent);
                lock(&parts.slots).give_back(slot);
                return Err(error);
            }
        };
        let entry =
            SubmissionEntry { group, instance: *instance + 1, slot, call: Call { send, receive, table, ..call } };
        parts.control.arm(slot);
        // Held until the call is posted, so that no thread notifies the service process of a call unknown to it.
        let mut slots = lock(&parts.slots);
        slots.lend(slot, lent);
        if let Err(full) = parts.control.post(&entry) {
            let lent = slots.take_lent(slot);
            slots.give_back(slot);
            drop((slots, instance, pool));
            parts.release(lent);
            return Err(Error::Resource(full.to_string()));
        }
        slots.posted(slot);
        drop(slots);
        *instance += 1;
        Ok(Posted { request: Request::new(self.attachment.clone(), slot), slot, instance: *instance })
    }
}

fn in_flight_limit(parts: &Parts) -> Error {
    let limit = lock(&parts.slots).count();
    Error::Resource(format!("{limit} requests of this rank are in flight, the limit; test or wait for some"))
}

/// Stages the buffers if the service process cannot reach them in place. For a recording the pool stays locked until
/// its start is posted: an earlier start that ends meanwhile leaves the segment to this one.
///
/// # Safety
/// As for [`crate::Group::iallgather`].
unsafe fn lend<'a>(parts: &'a Parts, buffers: &Buffers) -> Result<(Lent, Option<MutexGuard<'a, StagingPool>>), Error> {
    match parts.tier() {
        Tier::Memfd | Tier::CrossMemory | Tier::MemoryDescriptor => Ok((Lent::Direct(buffers.clone()), None)),
        Tier::Staging if parts.shares(buffers) => Ok((Lent::Shared, None)),
        Tier::Staging => {
            let mut pool = lock(&parts.staging);
            // SAFETY: the caller's promise.
            let staged = unsafe { pool.stage(&parts.connection, buffers) }?;
            Ok((Lent::Staged(staged), buffers.are_recorded().then_some(pool)))
        }
    }
}
