//! The memory that the machine names: buffers of calls (by tiers, SP-4) and staging.
//!
//! Deliveries are gathered and written with as few system calls as their destinations allow (MC-11). If the kernel has
//! withdrawn a rank's memory, an access is done once the rank has copied its buffers. [`deferred_ops`] keeps deferred
//! work in order.
//!
//! Invariants: memory of a rank that is gone is never accessed again ([`EndpointMemory::drop_call_work`]). An access
//! that fails by the rank's own fault fails the rank's call, nothing more. A reference beyond its region is a bug of
//! the machine, and panics.

pub(crate) mod combine;
pub(crate) mod deferred_ops;
pub(crate) mod pieces;
mod posted_buffers;
pub(crate) mod rank_copies;
pub(crate) mod staging;
pub(crate) mod turn_budget;

use std::collections::HashMap;
use std::sync::Arc;

use outboard_fabric::limited;
use outboard_proto::{CallId, Endpoint, FramePayload, GroupHandle, MemRef, MemRegion, Order, StagingId};
use outboard_shm::memory::{
    AccessError, CopySide, MappedBytes, RankMemory, ScatterList, TieredMemory, WritePiece, copy_between,
};

use crate::memory::combine::{BounceBuffers, OrderedReduction, UnfinishedWork};
use crate::memory::deferred_ops::{
    DeferredEntry, DeferredOps, Extent, MemoryOwner, MemoryWork, ReadAndWritten, call_of,
};
pub(crate) use crate::memory::pieces::MemoryPieces;
pub(crate) use crate::memory::posted_buffers::PostedBuffers;
use crate::memory::rank_copies::{CopyOffers, WorkState};
use crate::memory::staging::{StagingBuffer, StagingBufferPool};
use crate::memory::turn_budget::TurnBudget;

/// Received payloads, which orders name by their index in the machine's input.
pub(crate) type ReceivedPayloads<'a> = &'a [&'a [u8]];

/// Reason why memory could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MemoryFault {
    #[error("{error}")]
    Call { call: CallId, error: AccessError },
    #[error("the rank has gone, or memory has")]
    Gone,
    #[error("the rank's copy is awaited")]
    Awaited,
}

/// Cause of a failed access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultCause {
    /// The rank passed a bad buffer.
    Buffer,
    /// The rank has died; the access failed before the pidfd reported the death.
    RankGone,
}

/// Location of a piece of memory, which keeps the memory alive so that any thread may read it.
#[derive(Debug, Clone)]
pub(crate) enum MemoryLocation {
    /// Memory of a rank from `address` on, in the buffers of this call.
    Rank { call: CallId, memory: Arc<TieredMemory>, address: u64 },
    /// Memory of this process from `offset` on.
    Staging { buffer: Arc<StagingBuffer>, offset: u64 },
}

impl MemoryLocation {
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), MemoryFault> {
        match self {
            MemoryLocation::Rank { call, memory, address } => {
                memory.read(*address, into).map_err(|error| MemoryFault::Call { call: *call, error })
            }
            MemoryLocation::Staging { buffer, offset } => {
                buffer.copy_out(*offset, into);
                Ok(())
            }
        }
    }

    /// This location without its first `bytes` bytes.
    pub(crate) fn behind(&self, bytes: u64) -> MemoryLocation {
        match self.clone() {
            MemoryLocation::Rank { call, memory, address } => {
                MemoryLocation::Rank { call, memory, address: address + bytes }
            }
            MemoryLocation::Staging { buffer, offset } => MemoryLocation::Staging { buffer, offset: offset + bytes },
        }
    }

    /// Whether the first `bytes` bytes of both locations overlap. Always false for the memory of a rank.
    pub(crate) fn overlaps(&self, other: &MemoryLocation, bytes: u64) -> bool {
        match (self, other) {
            (MemoryLocation::Staging { buffer, offset }, MemoryLocation::Staging { buffer: other, offset: start }) => {
                Arc::ptr_eq(buffer, other) && offset.abs_diff(*start) < bytes
            }
            (MemoryLocation::Staging { .. } | MemoryLocation::Rank { .. }, _) => false,
        }
    }

    /// The bytes in this process, for the kernel to write to; `None` if the memory is not mapped here.
    pub(crate) fn resident(&self, bytes: u64) -> Option<MappedBytes> {
        match self {
            MemoryLocation::Rank { memory, address, .. } => memory.placement(*address, bytes),
            MemoryLocation::Staging { buffer, offset } => buffer.resident(*offset, usize::try_from(bytes).ok()?),
        }
    }

    /// The bytes in this process, for the kernel to read; `None` if the memory is not mapped here.
    pub(crate) fn readable(&self, bytes: usize) -> Option<MappedBytes> {
        match self {
            MemoryLocation::Rank { memory, address, .. } => memory.resident(*address, bytes as u64),
            MemoryLocation::Staging { buffer, offset } => buffer.resident(*offset, bytes),
        }
    }

    fn copy_to(&self, to: &MemoryLocation, bytes: u64, bounce: &mut Vec<u8>) -> Result<(), MemoryFault> {
        let length = usize::try_from(bytes).expect("staging lies in memory");
        match (self, to) {
            (
                MemoryLocation::Rank { call, memory, address },
                MemoryLocation::Rank { call: other, memory: target, address: to },
            ) => {
                let copied = copy_between(&**memory, *address, &**target, *to, bytes, bounce);
                copied.map_err(|(side, error)| match side {
                    CopySide::Source => MemoryFault::Call { call: *call, error },
                    CopySide::Target => MemoryFault::Call { call: *other, error },
                })
            }
            (MemoryLocation::Rank { call, memory, address }, MemoryLocation::Staging { buffer, offset }) => {
                let read = |into: &mut [u8]| memory.read(*address, into);
                buffer.fill(*offset, length, read).map_err(|error| MemoryFault::Call { call: *call, error })
            }
            (MemoryLocation::Staging { buffer, offset }, MemoryLocation::Rank { call, memory, address }) => {
                let write = |from: &[u8]| memory.write(*address, from);
                buffer.lend(*offset, length, write).map_err(|error| MemoryFault::Call { call: *call, error })
            }
            (
                MemoryLocation::Staging { buffer, offset },
                MemoryLocation::Staging { buffer: to_buffer, offset: to_offset },
            ) => {
                buffer.lend(*offset, length, |from| to_buffer.copy_in(*to_offset, from));
                Ok(())
            }
        }
    }
}

/// A delivery that waits for its batch.
#[derive(Debug, Clone, Copy)]
struct PendingDelivery {
    payload: u32,
    offset: u32,
    to: MemRef,
}

impl PendingDelivery {
    fn bytes<'a>(&self, payloads: ReceivedPayloads<'a>) -> &'a [u8] {
        let start = self.offset as usize;
        let length = usize::try_from(self.to.len).expect("payloads lie in memory");
        &payloads[self.payload as usize][start..start + length]
    }
}

/// All memory that the machine can name.
#[derive(Debug, Default)]
pub(crate) struct EndpointMemory {
    calls: HashMap<CallId, PostedBuffers>,
    /// A buffer is `None` if memory ran out: its group has failed, and work on the buffer is skipped.
    staging: HashMap<StagingId, Option<Arc<StagingBuffer>>>,
    pool: StagingBufferPool,
    gathered: Vec<PendingDelivery>,
    /// Pieces that already hold the payload of the current input.
    placed: FramePayload,
    pub(crate) bytes_landed: u64,
    /// Whether memory for incoming payloads was withdrawn since the last check.
    withdrawn: bool,
    faults: Vec<(CallId, FaultCause)>,
    /// The first failed access to the buffers of calls that have not ended.
    first_faults: HashMap<CallId, AccessError>,
    /// Calls whose ranks must be requested to copy the buffers.
    to_be_staged: Vec<CallId>,
    /// Groups whose memory could not be allocated, and the bytes that they needed.
    unallocated: Vec<(GroupHandle, u64)>,
    pub(crate) deferred_ops: DeferredOps,
    pub(crate) copy_offers: CopyOffers,
    turn_budget: TurnBudget,
    bounce: Vec<u8>,
    bounce_buffers: BounceBuffers,
}

impl EndpointMemory {
    pub(crate) fn insert(&mut self, call: CallId, buffers: PostedBuffers) {
        self.calls.insert(call, buffers);
    }

    /// Removes a call that has ended, and on whose memory no work is left.
    pub(crate) fn remove(&mut self, call: CallId) {
        debug_assert!(!self.deferred_ops.names_call(call), "{call:?} has ended before its work");
        self.deferred_ops.end_await(call);
        self.first_faults.remove(&call);
        self.calls.remove(&call);
    }

    /// The failed access because of which this call fails, if its rank's buffers are the reason.
    pub(crate) fn first_fault(&self, call: CallId) -> Option<AccessError> {
        self.first_faults.get(&call).copied()
    }

    /// Removes and returns the calls whose ranks must be requested to copy the buffers.
    pub(crate) fn take_to_be_staged(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.to_be_staged)
    }

    /// Notes that the rank cannot access the buffers of this call either. The call fails, as the rank's fault.
    pub(crate) fn refuse_restage(&mut self, call: CallId) {
        if self.calls.contains_key(&call) {
            self.faults.push((call, FaultCause::Buffer));
        }
    }

    /// Notes that the rank has copied the buffers of this call to other addresses (GP-9). Does the work that waited for
    /// the copies. Returns false if the buffers would exceed the address space there.
    #[must_use]
    pub(crate) fn restage(&mut self, call: CallId, send: u64, receive: u64) -> bool {
        let Some(buffers) = self.calls.get_mut(&call) else { return false };
        let fits = |address: u64, length: u64| address.checked_add(length).is_some();
        if !fits(send, buffers.input.1) || !fits(receive, buffers.output.1) {
            return false;
        }
        buffers.copied = Some((send, receive));
        if let Some(owner) = buffers.memory.as_ref().map(owner) {
            self.recall(owner);
        }
        if self.deferred_ops.end_await(call) {
            self.retry();
        }
        true
    }

    /// Removes and returns the calls whose buffers could not be accessed.
    pub(crate) fn take_faults(&mut self) -> Vec<(CallId, FaultCause)> {
        std::mem::take(&mut self.faults)
    }

    /// Removes and returns the groups whose memory could not be allocated, with the bytes that they needed.
    pub(crate) fn take_unallocated(&mut self) -> Vec<(GroupHandle, u64)> {
        std::mem::take(&mut self.unallocated)
    }

    /// Notes a failed access.
    pub(crate) fn note_fault(&mut self, fault: MemoryFault) {
        match fault {
            MemoryFault::Call { call, error } => {
                let Some(buffers) = self.calls.get(&call) else { return };
                if let Some(address) = only_rank_reaches(buffers, error) {
                    // If the rank has copied, the access began before the copy, and its fault is out of date.
                    if buffers.copied.is_some() || !self.deferred_ops.await_copy(call) {
                        return;
                    }
                    if matches!(error, AccessError::Fault { .. }) {
                        tracing::debug!(call = call.0, address, "a rank is requested to copy its buffers");
                        self.first_faults.insert(call, error);
                        self.to_be_staged.push(call);
                    }
                } else if !self.faults.iter().any(|(known, _)| *known == call) {
                    limited!(warn, call = call.0, %error, "a rank's buffer cannot be accessed");
                    let gone = matches!(error, AccessError::Gone { .. });
                    self.first_faults.entry(call).or_insert(error);
                    self.faults.push((call, if gone { FaultCause::RankGone } else { FaultCause::Buffer }));
                }
            }
            MemoryFault::Gone | MemoryFault::Awaited => {}
        }
    }

    /// Location of a piece. The machine never names memory that was not passed to it, nor a byte beyond the end of a
    /// region.
    pub(crate) fn locate(&self, piece: MemRef) -> Result<MemoryLocation, MemoryFault> {
        let within = |length: u64| {
            let end = piece.offset.checked_add(piece.len);
            assert!(end.is_some_and(|end| end <= length), "{piece:?} reaches beyond {length} bytes");
        };
        match piece.region {
            MemRegion::Input(call) | MemRegion::Output(call) => {
                if self.deferred_ops.awaits(call) {
                    return Err(MemoryFault::Awaited);
                }
                let buffers = self.calls.get(&call).unwrap_or_else(|| panic!("{piece:?} is of no call in flight"));
                within(buffers.length(piece.region));
                let memory = Arc::clone(buffers.memory.as_ref().ok_or(MemoryFault::Gone)?);
                Ok(MemoryLocation::Rank { call, memory, address: buffers.address(piece.region, piece.offset) })
            }
            MemRegion::Staging(id) => {
                let buffer = self.staging.get(&id).unwrap_or_else(|| panic!("{piece:?} is not staged"));
                let buffer = buffer.as_ref().ok_or(MemoryFault::Gone)?;
                within(buffer.len());
                Ok(MemoryLocation::Staging { buffer: Arc::clone(buffer), offset: piece.offset })
            }
        }
    }

    /// Does all work on memory that the machine has ordered, in order.
    pub(crate) fn perform(&mut self, machine: &mut Endpoint, payloads: ReceivedPayloads<'_>) {
        while let Some(order) = machine.poll_order() {
            if let Order::Deliver { to, .. } = order
                && !self.placed.is_empty()
            {
                self.note_placed(to);
                continue;
            }
            if let Order::Deliver { payload, offset, to } = order {
                self.gathered.push(PendingDelivery { payload, offset, to });
                continue;
            }
            self.flush(payloads);
            match order {
                Order::Stage { id, bytes, group } => {
                    let buffer = self.pool.take(bytes);
                    if buffer.is_none() {
                        limited!(error, %group, bytes, "no memory is left for a group; lower --staging-quota or --scratch-quota");
                        self.unallocated.push((group, bytes));
                    }
                    let taken = self.staging.insert(id, buffer);
                    assert!(taken.is_none(), "{id:?} is staged twice");
                }
                Order::Unstage { id } => self.do_or_defer(MemoryWork::Unstage { id }),
                Order::Copy { from, to } => self.do_or_defer(MemoryWork::Copy { from, to }),
                Order::Reduce { from, into, reduction, from_left } => {
                    self.do_or_defer(MemoryWork::Reduce(OrderedReduction { from, into, reduction, from_left }));
                }
                Order::Deliver { .. } => unreachable!("gathered above"),
            }
        }
        self.flush(payloads);
        self.advance_planned_work();
    }

    /// Locations into which an arriving payload can be read. All of these pieces must be mapped here, and no unfinished
    /// work may have to precede the payload.
    pub(crate) fn direct_placement(&self, pieces: &[MemRef]) -> Option<ScatterList> {
        let place = |piece: &MemRef| {
            let waits =
                !self.deferred_ops.is_empty() && self.deferred_ops.precedes(&self.extents([None, Some(*piece)]));
            if waits { None } else { self.locate(*piece).ok()?.resident(piece.len) }
        };
        pieces.iter().map(place).collect()
    }

    /// Declares that the next payload is already placed at `pieces`; empty means that it was not placed.
    pub(crate) fn set_placed(&mut self, pieces: FramePayload) {
        self.placed = pieces;
    }

    fn note_placed(&mut self, to: MemRef) {
        assert!(self.placed.contains(&to), "{to:?} is not where its bytes were said to belong: {:?}", self.placed);
        self.bytes_landed += to.len;
        if let Ok(MemoryLocation::Rank { memory, .. }) = self.locate(to) {
            memory.count_placed(to.len as usize);
        }
    }

    /// Whether memory was withdrawn since the last check.
    pub(crate) fn take_withdrawn(&mut self) -> bool {
        std::mem::take(&mut self.withdrawn)
    }

    /// Owner and posted address of each piece. Memory of ranks that are gone has no owner.
    fn extents(&self, read_and_written: ReadAndWritten<MemRef>) -> ReadAndWritten<Extent> {
        let extent = |MemRef { region, offset, len }| {
            let (owner, start) = match region {
                MemRegion::Staging(id) => (MemoryOwner::Staging(id), offset),
                MemRegion::Input(call) | MemRegion::Output(call) => {
                    let buffers = self.calls.get(&call).filter(|_| len > 0)?;
                    (owner(buffers.memory.as_ref()?), buffers.posted(region, offset))
                }
            };
            Some(Extent { owner, start, len })
        };
        read_and_written.map(|piece| piece.and_then(extent))
    }

    /// Does a piece of work now, plans it, or defers it behind unfinished work.
    fn do_or_defer(&mut self, work: MemoryWork) {
        if self.plan(&work) {
            return;
        }
        let done = match self.must_wait(work.read_and_written()) {
            true => Err(UnfinishedWork { fault: MemoryFault::Awaited, left: vec![work] }),
            false => self.attempt(work),
        };
        if let Err(UnfinishedWork { fault, left }) = done {
            self.note_fault(fault);
            left.into_iter().for_each(|work| self.defer(fault, work));
        }
    }

    /// Tries waiting work again, in order.
    fn retry(&mut self) {
        if !self.deferred_ops.states().any(|state| matches!(state, WorkState::Waiting)) {
            return;
        }
        for entry in self.deferred_ops.take() {
            match entry.state {
                WorkState::Waiting => self.do_or_defer(entry.work),
                WorkState::Planned(_) | WorkState::OfferedCopy(_) | WorkState::HeldCopy(_) => {
                    self.deferred_ops.push(entry)
                }
            }
        }
    }

    /// Whether a rank must still copy one of these pieces.
    fn is_awaited(&self, read_and_written: ReadAndWritten<MemRef>) -> bool {
        let mut calls = read_and_written.iter().flatten().filter_map(|piece| call_of(piece.region));
        calls.any(|call| self.deferred_ops.awaits(call))
    }

    /// Whether work on these pieces must wait, because a rank's copy is awaited or because work before it cannot be
    /// done. As far as possible, first does the work before it, including rank copies.
    fn must_wait(&mut self, read_and_written: ReadAndWritten<MemRef>) -> bool {
        if self.deferred_ops.is_empty() {
            return false;
        }
        if self.is_awaited(read_and_written) {
            return true;
        }
        let extents = self.extents(read_and_written);
        if !self.deferred_ops.precedes(&extents) {
            return false;
        }
        self.do_needed(|entry| entry.precedes(&extents));
        let waits = self.deferred_ops.precedes(&extents);
        // A waiting reader delays its own call, perhaps a call of another rank.
        if waits && extents[0].is_some() {
            self.deferred_ops.start_time_limits(&extents);
        }
        waits
    }

    /// Does work that no other work must precede.
    fn attempt(&mut self, work: MemoryWork) -> Result<(), UnfinishedWork> {
        self.turn_budget.note_done(&work);
        let done = match &work {
            MemoryWork::Copy { from, to } => self.copy(*from, *to),
            MemoryWork::Reduce(combination) => return self.reduce(*combination),
            MemoryWork::Deliver { bytes, to } => self.deliver_one(bytes, *to),
            MemoryWork::Unstage { id } => {
                let buffer = self.staging.remove(id).unwrap_or_else(|| panic!("{id:?} is not staged"));
                self.withdrawn |= buffer.as_ref().is_some_and(|buffer| Arc::strong_count(buffer) > 1);
                buffer.into_iter().for_each(|buffer| self.pool.give_back(buffer));
                Ok(())
            }
        };
        done.map_err(|fault| UnfinishedWork { fault, left: vec![work] })
    }

    /// Whether the fault can still be resolved by the rank's copy, or by earlier work.
    fn is_mendable(&self, fault: MemoryFault) -> bool {
        match fault {
            MemoryFault::Awaited => true,
            MemoryFault::Call { call, error: AccessError::Withdrawn { .. } | AccessError::Fault { .. } } => {
                self.deferred_ops.awaits(call)
            }
            MemoryFault::Call { .. } | MemoryFault::Gone => false,
        }
    }

    /// Defers work behind all unfinished work, if its fault can be resolved.
    fn defer(&mut self, fault: MemoryFault, work: MemoryWork) {
        if self.is_mendable(fault) {
            self.defer_at(self.deferred_ops.entries().len(), work, WorkState::Waiting);
        }
    }

    fn defer_at(&mut self, at: usize, work: MemoryWork, state: WorkState) {
        if let Some(receiver) = work.calls()[1].filter(|_| !self.deferred_ops.has_room(&work)) {
            limited!(warn, call = receiver.0, "no more can be held for a rank that does not copy");
            self.faults.push((receiver, FaultCause::Buffer));
            return self.copy_offers.forget(state);
        }
        let extents = self.extents(work.read_and_written());
        self.deferred_ops.insert(at, DeferredEntry { work, extents, state });
    }

    /// Combines as far as the memory can be accessed.
    fn reduce(&mut self, combination: OrderedReduction) -> Result<(), UnfinishedWork> {
        let operands = self.locate(combination.from).and_then(|from| Ok((from, self.locate(combination.into)?)));
        let unfinished = |fault| UnfinishedWork { fault, left: vec![MemoryWork::Reduce(combination)] };
        let (from, into) = operands.map_err(unfinished)?;
        combination.perform(&from, &into, &mut self.bounce_buffers)
    }

    fn copy(&mut self, from: MemRef, to: MemRef) -> Result<(), MemoryFault> {
        assert_eq!(from.len, to.len, "copies have equal lengths");
        let (source, target) = (self.locate(from)?, self.locate(to)?);
        if let (MemoryLocation::Rank { .. }, MemoryLocation::Rank { .. }) = (&source, &target) {
            self.copy_offers.copies.by_service += 1;
            self.copy_offers.copies.bytes_by_service += from.len;
        }
        source.copy_to(&target, from.len, &mut self.bounce)
    }

    fn deliver_one(&mut self, bytes: &[u8], to: MemRef) -> Result<(), MemoryFault> {
        match self.locate(to)? {
            MemoryLocation::Staging { buffer, offset } => {
                buffer.copy_in(offset, bytes);
                Ok(())
            }
            MemoryLocation::Rank { call, memory, address } => {
                memory.write(address, bytes).map_err(|error| MemoryFault::Call { call, error })
            }
        }
    }

    /// Carries out the gathered deliveries, one batch per region. Deliveries of different regions alternate, because
    /// each datagram goes to all ranks of the host in turn. The order within a region is kept.
    fn flush(&mut self, payloads: ReceivedPayloads<'_>) {
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.sort_by_key(|delivery| delivery.to.region);
        for run in gathered.chunk_by(|one, next| one.to.region == next.to.region) {
            let waits = run.iter().any(|delivery| self.must_wait([None, Some(delivery.to)]));
            let done = if waits { Err(MemoryFault::Awaited) } else { self.deliver_batch(run, payloads) };
            let Err(fault) = done else { continue };
            self.note_fault(fault);
            for delivery in run {
                let (bytes, to) = (delivery.bytes(payloads).to_vec(), delivery.to);
                self.defer(fault, MemoryWork::Deliver { bytes, to });
            }
        }
        self.gathered = gathered;
        self.gathered.clear();
    }

    fn deliver_batch(&mut self, run: &[PendingDelivery], payloads: ReceivedPayloads<'_>) -> Result<(), MemoryFault> {
        match self.locate(run[0].to)? {
            MemoryLocation::Staging { buffer, .. } => {
                for delivery in run {
                    buffer.copy_in(delivery.to.offset, delivery.bytes(payloads));
                }
                Ok(())
            }
            MemoryLocation::Rank { call, memory, .. } => {
                let buffers = &self.calls[&call];
                let batch: Vec<WritePiece<'_>> = run
                    .iter()
                    .map(|delivery| {
                        let MemRef { region, offset, len } = delivery.to;
                        let end = offset.checked_add(len);
                        assert!(end.is_some_and(|end| end <= buffers.length(region)), "{delivery:?}");
                        WritePiece { local: delivery.bytes(payloads), address: buffers.address(region, offset) }
                    })
                    .collect();
                memory.writev(&batch).map_err(|error| MemoryFault::Call { call, error })
            }
        }
    }
}

/// The address of the failed access, if the rank can still reach these buffers by a copy of its own.
fn only_rank_reaches(buffers: &PostedBuffers, error: AccessError) -> Option<u64> {
    match error {
        AccessError::Withdrawn { address, .. } => Some(address),
        AccessError::Fault { address, .. } if buffers.can_be_staged => Some(address),
        AccessError::Fault { .. }
        | AccessError::Refused { .. }
        | AccessError::Gone { .. }
        | AccessError::Unreachable { .. }
        | AccessError::Kernel { .. } => None,
    }
    .filter(|address| !buffers.lies_in_copy(*address))
}

/// The owner of this memory.
fn owner(memory: &Arc<TieredMemory>) -> MemoryOwner {
    MemoryOwner::Rank(Arc::as_ptr(memory).addr())
}
