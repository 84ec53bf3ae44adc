//! Groups of ranks, and posting collectives on them.

use crate::attachment::Attachment;
use crate::bootstrap::environment;
use crate::call_sequence::CallSequence;
use crate::error::Error;
use crate::lock::lock;
use crate::request::Request;
use crate::staging::RequestBuffers;
use crate::tagged::TaggedMessages;
use outboard_call::{Call, CallError, CallKind, Rank};
use outboard_shm::attach::{self, GroupReady};
use std::sync::Arc;
use std::time::Duration;

mod reductions;
mod rooted;
mod tagged;

pub use reductions::ReductionOutcome;
pub use rooted::Destination;

/// Name of the variable with the default deadline in seconds.
const DEADLINE: &str = "OUTBOARD_DEADLINE";

/// A group of ranks, as held by one of them. All posts have the errors of [`Group::iallgather`].
#[derive(Debug)]
pub struct Group {
    attachment: Arc<Attachment>,
    ready: GroupReady,
    ranks: u32,
    rank: u32,
    /// Counts the offloaded calls: equal on all ranks, since all ranks post in the same order.
    collectives: CallSequence,
    tagged: Arc<TaggedMessages>,
    destroyed: bool,
}

/// The place of a rank's contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contribution {
    /// In a separate buffer.
    At(*const u8),
    /// In its place in the receive buffer, as with `MPI_IN_PLACE`.
    InPlace,
}

/// The blocks of one buffer of an alltoallv, by rank.
#[derive(Debug, Clone, Copy)]
pub struct BlockList<'a> {
    /// Bytes of each block.
    pub bytes: &'a [u64],
    /// The start of each block, in bytes from the start of the buffer.
    pub offsets: &'a [u64],
}

impl BlockList<'_> {
    /// The lists in the format of a call's table.
    fn numbers(&self, ranks: u32, argument: &'static str) -> Result<Vec<u64>, Error> {
        if self.bytes.len() != ranks as usize || self.offsets.len() != ranks as usize {
            let (bytes, offsets) = (self.bytes.len(), self.offsets.len());
            let problem = format!("has {bytes} counts and {offsets} offsets: the group has {ranks} ranks");
            return Err(Error::argument(argument, problem));
        }
        Ok([self.bytes, self.offsets].concat())
    }
}

impl Group {
    pub(crate) fn new(attachment: Arc<Attachment>, ready: GroupReady, ranks: u32, rank: u32) -> Group {
        let collectives = CallSequence::new(attachment.clone(), ready.group);
        let tagged = Arc::new(TaggedMessages::new(CallSequence::new(attachment.clone(), ready.group), ranks, rank));
        Group { attachment, ready, ranks, rank, collectives, tagged, destroyed: false }
    }

    /// This rank's number in the group.
    pub fn rank(&self) -> Result<u32, Error> {
        self.attachment.parts().map(|_| self.rank)
    }

    /// Number of ranks.
    pub fn size(&self) -> Result<u32, Error> {
        self.attachment.parts().map(|_| self.ranks)
    }

    /// The number of the group in reports of the service processes.
    pub fn handle(&self) -> u32 {
        self.ready.handle
    }

    /// Sets a deadline for collectives that this rank posts from now on. A collective that has not ended in time fails
    /// on all ranks with [`Status::Deadline`](outboard_shm::status::Status::Deadline), and so does the group (SP-9).
    /// The error names the ranks that had not called. Without a deadline, lateness is no error. Local, rounded to
    /// milliseconds.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::ServiceLost`].
    pub fn set_deadline(&self, after: Option<Duration>) -> Result<(), Error> {
        let parts = self.attachment.parts()?;
        let milliseconds = after.map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1));
        let group = self.ready.group;
        parts.connection.execute(&attach::AttachRequest::SetDeadline { group, milliseconds }, &[])
    }

    /// Whether the group's agreed configuration offloads calls of this size: bytes that a rank contributes (allgathers,
    /// reductions), or that move between the root and a rank (broadcasts, gathers, scatters). Equal on all ranks.
    pub fn offloads(&self, bytes_per_rank: u64) -> bool {
        (self.ready.offloads_from..=self.ready.offloads_up_to).contains(&bytes_per_rank)
    }

    /// Whether the group offloads calls of any size. Barriers have no size, and no rank knows all blocks of an
    /// alltoallv, gatherv or scatterv. Equal on all ranks.
    pub fn offloads_any_size(&self) -> bool {
        self.ready.offloads_up_to > 0
    }

    /// The most bytes that each rank may contribute to a reduction, by the scratch of this rank's service process.
    /// Hosts with other ranks or quotas have other limits; the least limit of all ranks applies to the group.
    pub fn reduction_most(&self) -> u64 {
        self.ready.reduction_most
    }

    /// Posts an allgather of `bytes_per_rank` bytes from each rank into `bytes_per_rank * ranks` bytes at `receive`.
    /// Never blocks on other ranks (MC-9).
    ///
    /// # Errors
    /// [`Error::Argument`], [`Error::Forked`], [`Error::ServiceLost`], [`Error::Resource`] when too many requests are
    /// in flight; nothing was posted then. [`Error::Memory`] for a buffer that the program may not access: of the post
    /// where the service process cannot find out, else of the request.
    ///
    /// # Safety
    /// Both buffers are valid and left alone until the request has completed, also when the request is dropped before.
    pub unsafe fn iallgather(
        &self,
        contribution: Contribution,
        receive: *mut u8,
        bytes_per_rank: u64,
    ) -> Result<Request, Error> {
        let call = Call { bytes: bytes_per_rank, ..Call::new(CallKind::Allgather) };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.post(call, contribution, Destination::At(receive), &[], "bytes_per_rank") }
    }

    /// Posts a broadcast of `bytes` bytes at `buffer` of rank `root` into `buffer` of all other ranks. Never blocks on
    /// other ranks.
    ///
    /// # Safety
    /// The buffer is valid and left alone until the request has completed, also when the request is dropped before.
    pub unsafe fn ibroadcast(&self, root: u32, buffer: *mut u8, bytes: u64) -> Result<Request, Error> {
        if buffer.is_null() && bytes > 0 {
            return Err(Error::argument("buffer", "is NULL"));
        }
        let call = Call { bytes, ..Call::new(CallKind::Broadcast { root: Rank(root) }) };
        // SAFETY: the caller's promise about the buffer.
        unsafe { self.post(call, Contribution::At(buffer), Destination::At(buffer), &[], "bytes") }
    }

    /// Whether the group's agreed configuration offloads an allgather of blocks of this many bytes together. Equal on
    /// all ranks.
    pub fn offloads_allgatherv(&self, total_bytes: u64) -> bool {
        let least = self.ready.offloads_from.saturating_mul(u64::from(self.ranks));
        (least..=self.ready.offloads_up_to).contains(&total_bytes)
    }

    /// Posts an allgather of blocks of different sizes: the block of rank `i` goes to place `i` of `received` at
    /// `receive`. All ranks pass the same block sizes, and each rank its own offsets; gaps between the blocks stay
    /// untouched. The contribution has the bytes of this rank's block. Otherwise as [`Group::iallgather`].
    ///
    /// # Errors
    /// As for [`Group::iallgather`]; a list without one entry for each rank is an [`Error::Argument`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`], for all blocks; no two blocks share a byte.
    pub unsafe fn iallgatherv(
        &self,
        contribution: Contribution,
        receive: *mut u8,
        received: BlockList<'_>,
    ) -> Result<Request, Error> {
        let table = &received.numbers(self.ranks, "receive")?;
        let call = Call::new(CallKind::Allgatherv { sizes: 0 });
        // SAFETY: the caller's promise about the blocks.
        unsafe { self.post(call, contribution, Destination::At(receive), table, "receive") }
    }

    /// Whether the group's agreed configuration offloads an alltoall of blocks of this size: equal on all ranks.
    pub fn offloads_alltoall(&self, bytes_per_pair: u64) -> bool {
        let bytes = bytes_per_pair.checked_mul(u64::from(self.ranks));
        bytes.is_some_and(|bytes| self.offloads(bytes))
    }

    /// Posts an alltoall: block `i` of `bytes_per_pair` bytes at `send` goes to rank `i`, whose block for this rank
    /// goes to place `i` of `receive`. Never blocks on other ranks; a rank that posts late delays only ranks that wait
    /// for its blocks (SP-5).
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn ialltoall(&self, send: *const u8, receive: *mut u8, bytes_per_pair: u64) -> Result<Request, Error> {
        let call = Call { bytes: bytes_per_pair, ..Call::new(CallKind::Alltoall) };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.post(call, Contribution::At(send), Destination::At(receive), &[], "bytes_per_pair") }
    }

    /// Posts an alltoallv: block `i` of `sent` goes to rank `i`, block `i` of `received` comes from rank `i`. Sender
    /// and receiver must pass the same size of a block. Gaps between the blocks stay untouched. Otherwise as
    /// [`Group::ialltoall`].
    ///
    /// # Errors
    /// As for [`Group::iallgather`]; a list without one entry for each rank is an [`Error::Argument`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`], for all blocks; no two blocks of `received` share a byte.
    pub unsafe fn ialltoallv(
        &self,
        send: *const u8,
        sent: BlockList<'_>,
        receive: *mut u8,
        received: BlockList<'_>,
    ) -> Result<Request, Error> {
        let table = &[sent.numbers(self.ranks, "send")?, received.numbers(self.ranks, "receive")?].concat();
        let (call, send) = (Call::new(CallKind::Alltoallv), Contribution::At(send));
        // SAFETY: the caller's promise about the blocks.
        unsafe { self.post(call, send, Destination::At(receive), table, "send or receive") }
    }

    /// Posts a call with these buffers; `sizes` names the argument with the sizes of its blocks.
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    unsafe fn post(
        &self,
        call: Call,
        send: Contribution,
        receive: Destination,
        table: &[u64],
        sizes: &'static str,
    ) -> Result<Request, Error> {
        let (call, buffers) = self.checked(call, send, receive, table, sizes)?;
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.collectives.post(&buffers, call, table) }.map(|posted| posted.request)
    }

    /// The call of this rank and its buffers, after checks.
    fn checked(
        &self,
        call: Call,
        send: Contribution,
        receive: Destination,
        table: &[u64],
        sizes: &'static str,
    ) -> Result<(Call, RequestBuffers), Error> {
        let in_place = send == Contribution::InPlace || receive == Destination::InPlace;
        let from = if let Contribution::At(send) = send { send } else { std::ptr::null() };
        let to = if let Destination::At(receive) = receive { receive } else { std::ptr::null_mut() };
        let call = Call { in_place, send: from.addr() as u64, receive: to.addr() as u64, ..call };
        let footprint = call.footprint(Rank(self.rank), self.ranks, table).map_err(|error| match error {
            CallError::Root { root: Rank(root), ranks } => {
                Error::argument("root", format!("is {root}: the group has ranks 0 to {}", ranks - 1))
            }
            CallError::InPlace { .. } => {
                let argument = if send == Contribution::InPlace { "send" } else { "receive" };
                let root = call.kind.root().map_or(String::new(), |root| format!(" on the root, {root}, alone"));
                Error::argument(argument, format!("is in place, which it can be{root}"))
            }
            problem => Error::argument(sizes, format!("does not fit: {problem}")),
        })?;
        Ok((call, RequestBuffers::of(footprint, from, to)?))
    }

    /// Forgets the group, after waiting for its requests in flight. Local.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::ServiceLost`]; the group is gone also after an error.
    pub fn destroy(mut self) -> Result<(), Error> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.destroyed, true) {
            return Ok(());
        }
        let parts = self.attachment.parts()?;
        let ended = || {
            let in_flight = lock(&parts.slots).calls_of_group(self.ready.group);
            in_flight.iter().all(|call| parts.control.result(call.slot).is_some())
        };
        let waited = parts.wait_until(None, None, ended).map(drop);
        parts.progress();
        let calls = lock(&parts.slots).calls_of_group(self.ready.group);
        parts.drain(&calls);
        *lock(&parts.groups) -= 1;
        waited?;
        parts.connection.execute(&attach::AttachRequest::DestroyGroup { group: self.ready.group }, &[])
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A program that needs the error calls `destroy`.
        let _ = self.close();
    }
}

/// A deadline in seconds from the caller; 0 means none.
pub(crate) fn deadline(argument: &'static str, seconds: f64) -> Result<Option<Duration>, Error> {
    let wrong = |_| Error::argument(argument, format!("is {seconds}; give seconds, or 0 for no deadline"));
    Duration::try_from_secs_f64(seconds).map(|after| Some(after).filter(|after| !after.is_zero())).map_err(wrong)
}

pub(crate) fn deadline_of_environment() -> Result<Option<Duration>, Error> {
    let Some(text) = environment::process(DEADLINE) else { return Ok(None) };
    let after = outboard_units::Duration::seconds(&text).map_err(|error| {
        let problem = format!("is wrong: {error}; 0 is for no deadline");
        Error::Environment { variable: DEADLINE.to_owned(), problem }
    })?;
    Ok(Some(after).filter(|after| !after.is_zero()))
}
