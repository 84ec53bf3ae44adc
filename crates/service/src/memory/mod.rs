//! The memory that the machine names: buffers of calls (by tiers, SP-4) and staging.
//!
//! Deliveries are gathered and written with as few system calls as their destinations allow (MC-11). Invariants: memory
//! of a rank that is gone is never accessed again ([`Memory::cut_off`]); a reference beyond its region is a broken
//! invariant of the machine. An access that fails by the rank's own fault fails its call, nothing more. If the kernel
//! has withdrawn the memory, the access is done once the rank has copied. [`backlog`] keeps deferred work in order.

pub(crate) mod backlog;
pub(crate) mod combine;
pub(crate) mod errands;
pub(crate) mod pieces;
pub(crate) mod planned;
pub(crate) mod staging;

use std::collections::HashMap;
use std::sync::Arc;

use outboard_fabric::limited;
use outboard_proto::{CallId, Endpoint, FramePayload, GroupHandle, MemRef, MemRegion, Order, StagingId};
use outboard_shm::memory::{
    AccessError, CopySide, MappedBytes, RankMemory, ScatterList, TieredMemory, WritePiece, copy_between,
};

use crate::memory::backlog::{Backlog, Entry, Extent, Holder, Touched, Work, call_of};
use crate::memory::combine::{Bounces, Combination, Unfinished};
use crate::memory::errands::{Errands, Runner, State};
pub(crate) use crate::memory::pieces::Pieces;
use crate::memory::planned::Planned;
use crate::memory::staging::{Staging, StagingPool};

/// Received payloads that orders deliver from, by their index in the machine's input.
pub(crate) type Payloads<'a> = &'a [&'a [u8]];

/// The buffers that a rank passed with a call.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// `None` once the rank is gone.
    memory: Option<Arc<TieredMemory>>,
    input: (u64, u64),
    output: (u64, u64),
    /// Pieces of the output, if it is not contiguous.
    pieces: Option<Arc<Pieces>>,
    /// Addresses of input and output, each contiguous, once the rank has copied them.
    copied: Option<(u64, u64)>,
    /// The rank, if it can do errands.
    runner: Option<Arc<Runner>>,
}

impl Buffers {
    /// `input` and `output` are address and length in the rank's memory.
    pub(crate) fn new(memory: Arc<TieredMemory>, input: (u64, u64), output: (u64, u64)) -> Self {
        Buffers { memory: Some(memory), input, output, pieces: None, copied: None, runner: None }
    }

    /// Buffers of a recording: all pieces are output, and some are read too. `copy` is the rank's copy, if any.
    pub(crate) fn recorded(memory: Arc<TieredMemory>, pieces: Arc<Pieces>, copy: Option<u64>) -> Self {
        let output = (0, pieces.total());
        let copied = copy.map(|address| (address, address));
        Buffers { pieces: Some(pieces), copied, ..Buffers::new(memory, (0, 0), output) }
    }

    /// Sets the rank that may do errands for these buffers, if it can.
    pub(crate) fn of(self, runner: Option<Arc<Runner>>) -> Self {
        Buffers { runner, ..self }
    }

    /// Whether the address lies in the rank's copy of the buffers.
    fn lies_in_copy(&self, address: u64) -> bool {
        let lies_in = |(start, length): (u64, u64)| address.wrapping_sub(start) < length;
        self.copied.is_some_and(|(input, output)| lies_in((input, self.input.1)) || lies_in((output, self.output.1)))
    }

    /// Address of a byte of the input or the output when the rank posted the call.
    fn posted(&self, region: MemRegion, offset: u64) -> u64 {
        match (region, &self.pieces) {
            (MemRegion::Input(_), _) => self.input.0 + offset,
            (MemRegion::Output(_), None) => self.output.0 + offset,
            (MemRegion::Output(_), Some(pieces)) => pieces.address(offset),
            (MemRegion::Staging(_), _) => unreachable!("staging has no call"),
        }
    }

    /// Current address of a byte of the input or the output.
    fn address(&self, region: MemRegion, offset: u64) -> u64 {
        match (self.copied, region) {
            (Some((input, _)), MemRegion::Input(_)) => input + offset,
            (Some((_, output)), MemRegion::Output(_)) => output + offset,
            (_, region) => self.posted(region, offset),
        }
    }

    /// Bytes of the input or the output.
    fn length(&self, region: MemRegion) -> u64 {
        match region {
            MemRegion::Input(_) => self.input.1,
            MemRegion::Output(_) => self.output.1,
            MemRegion::Staging(_) => unreachable!("staging has no call"),
        }
    }

    /// Bytes of the receive buffer.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.output.1
    }
}

/// Reason why memory could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{error}")]
    Call { call: CallId, error: AccessError },
    #[error("the rank has gone, or memory has")]
    Gone,
    #[error("the rank's copy is awaited")]
    Awaited,
}

/// Cause of a failed access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The rank passed a bad buffer.
    Buffer,
    /// The rank has died, and the access has noticed before the pidfd.
    RankGone,
}

/// A piece of memory, held so that any thread may read it.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Memory of a rank from an address on, in the buffers of this call.
    Rank { call: CallId, memory: Arc<TieredMemory>, address: u64 },
    /// Memory of this process from an offset on.
    Staging { buffer: Arc<Staging>, offset: u64 },
}

impl Place {
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), Fault> {
        match self {
            Place::Rank { call, memory, address } => {
                memory.read(*address, into).map_err(|error| Fault::Call { call: *call, error })
            }
            Place::Staging { buffer, offset } => {
                buffer.copy_out(*offset, into);
                Ok(())
            }
        }
    }

    /// The place without its first bytes.
    pub(crate) fn behind(&self, bytes: u64) -> Place {
        match self.clone() {
            Place::Rank { call, memory, address } => Place::Rank { call, memory, address: address + bytes },
            Place::Staging { buffer, offset } => Place::Staging { buffer, offset: offset + bytes },
        }
    }

    /// Whether the first `bytes` bytes of both places overlap. Memory of ranks is not compared.
    pub(crate) fn overlaps(&self, other: &Place, bytes: u64) -> bool {
        match (self, other) {
            (Place::Staging { buffer, offset }, Place::Staging { buffer: other, offset: start }) => {
                Arc::ptr_eq(buffer, other) && offset.abs_diff(*start) < bytes
            }
            (Place::Staging { .. } | Place::Rank { .. }, _) => false,
        }
    }

    /// The bytes in this process, for the kernel to write to; none if the memory is not mapped here.
    pub(crate) fn resident(&self, bytes: u64) -> Option<MappedBytes> {
        match self {
            Place::Rank { memory, address, .. } => memory.placement(*address, bytes),
            Place::Staging { buffer, offset } => buffer.resident(*offset, usize::try_from(bytes).ok()?),
        }
    }

    /// The bytes in this process, for the kernel to read; none if the memory is not mapped here.
    pub(crate) fn readable(&self, bytes: usize) -> Option<MappedBytes> {
        match self {
            Place::Rank { memory, address, .. } => memory.resident(*address, bytes as u64),
            Place::Staging { buffer, offset } => buffer.resident(*offset, bytes),
        }
    }

    fn copy_to(&self, to: &Place, bytes: u64, bounce: &mut Vec<u8>) -> Result<(), Fault> {
        let length = usize::try_from(bytes).expect("staging lies in memory");
        match (self, to) {
            (Place::Rank { call, memory, address }, Place::Rank { call: other, memory: target, address: to }) => {
                let copied = copy_between((&**memory, *address), (&**target, *to), bytes, bounce);
                copied.map_err(|(side, error)| match side {
                    CopySide::Source => Fault::Call { call: *call, error },
                    CopySide::Target => Fault::Call { call: *other, error },
                })
            }
            (Place::Rank { call, memory, address }, Place::Staging { buffer, offset }) => {
                let read = |into: &mut [u8]| memory.read(*address, into);
                buffer.fill(*offset, length, read).map_err(|error| Fault::Call { call: *call, error })
            }
            (Place::Staging { buffer, offset }, Place::Rank { call, memory, address }) => {
                let write = |from: &[u8]| memory.write(*address, from);
                buffer.lend(*offset, length, write).map_err(|error| Fault::Call { call: *call, error })
            }
            (Place::Staging { buffer, offset }, Place::Staging { buffer: to_buffer, offset: to_offset }) => {
                buffer.lend(*offset, length, |from| to_buffer.copy_in(*to_offset, from));
                Ok(())
            }
        }
    }
}

/// A delivery that waits for its batch.
#[derive(Debug, Clone, Copy)]
struct Delivery {
    payload: u32,
    offset: u32,
    to: MemRef,
}

impl Delivery {
    fn bytes<'a>(&self, payloads: Payloads<'a>) -> &'a [u8] {
        let start = self.offset as usize;
        let length = usize::try_from(self.to.len).expect("payloads lie in memory");
        &payloads[self.payload as usize][start..start + length]
    }
}

/// All memory that the machine can name.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    calls: HashMap<CallId, Buffers>,
    /// `None` if memory ran out: the group has failed, and work on that memory is skipped.
    staging: HashMap<StagingId, Option<Arc<Staging>>>,
    pool: StagingPool,
    gathered: Vec<Delivery>,
    /// Pieces that already hold the payload of the current input.
    landed: FramePayload,
    pub(crate) bytes_landed: u64,
    /// Memory that payload may be read into was withdrawn since the last check.
    withdrawn: bool,
    faults: Vec<(CallId, Cause)>,
    /// Groups whose memory could not be allocated, and the bytes that they needed.
    unmet: Vec<(GroupHandle, u64)>,
    pub(crate) backlog: Backlog,
    pub(crate) errands: Errands,
    planned: Planned,
    bounce: Vec<u8>,
    bounces: Bounces,
}

impl Memory {
    pub(crate) fn insert(&mut self, call: CallId, buffers: Buffers) {
        self.calls.insert(call, buffers);
    }

    /// The call has ended, and no work on its memory is left.
    pub(crate) fn remove(&mut self, call: CallId) {
        debug_assert!(!self.backlog.names(call), "{call:?} has ended before its work");
        self.backlog.reached(call);
        self.calls.remove(&call);
    }

    /// The rank has copied the buffers of this call to other addresses (GP-9). Does the work that waited for them.
    /// Returns false if the buffers would not fit there.
    #[must_use]
    pub(crate) fn restage(&mut self, call: CallId, send: u64, receive: u64) -> bool {
        let Some(buffers) = self.calls.get_mut(&call) else { return false };
        let fits = |address: u64, length: u64| address.checked_add(length).is_some();
        if !fits(send, buffers.input.1) || !fits(receive, buffers.output.1) {
            return false;
        }
        buffers.copied = Some((send, receive));
        if let Some(holder) = buffers.memory.as_ref().map(holder) {
            self.recall(holder);
        }
        if self.backlog.reached(call) {
            self.retry();
        }
        true
    }

    /// Removes and returns the calls whose buffers could not be accessed.
    pub(crate) fn take_faults(&mut self) -> Vec<(CallId, Cause)> {
        std::mem::take(&mut self.faults)
    }

    /// Removes and returns the groups whose memory could not be allocated, with the bytes that they needed.
    pub(crate) fn take_unmet(&mut self) -> Vec<(GroupHandle, u64)> {
        std::mem::take(&mut self.unmet)
    }

    /// Notes a failed access.
    pub(crate) fn note(&mut self, fault: Fault) {
        match fault {
            Fault::Call { call, error } => {
                let Some(buffers) = self.calls.get(&call) else { return };
                if let AccessError::Withdrawn { address, .. } = error
                    && !buffers.lies_in_copy(address)
                {
                    // An access that was under way when the rank copied is out of date.
                    if buffers.copied.is_none() {
                        self.backlog.await_copy(call);
                    }
                } else if !self.faults.iter().any(|(known, _)| *known == call) {
                    limited!(warn, call = call.0, %error, "a rank's buffer cannot be accessed");
                    let gone = matches!(error, AccessError::Gone { .. });
                    self.faults.push((call, if gone { Cause::RankGone } else { Cause::Buffer }));
                }
            }
            Fault::Gone | Fault::Awaited => {}
        }
    }

    /// The memory of a piece. The machine names no memory that it was never given, and no byte beyond its end.
    pub(crate) fn place(&self, piece: MemRef) -> Result<Place, Fault> {
        let within = |length: u64| {
            let end = piece.offset.checked_add(piece.len);
            assert!(end.is_some_and(|end| end <= length), "{piece:?} reaches beyond {length} bytes");
        };
        match piece.region {
            MemRegion::Input(call) | MemRegion::Output(call) => {
                if self.backlog.awaits(call) {
                    return Err(Fault::Awaited);
                }
                let buffers = self.calls.get(&call).unwrap_or_else(|| panic!("{piece:?} is of no call in flight"));
                within(buffers.length(piece.region));
                let memory = Arc::clone(buffers.memory.as_ref().ok_or(Fault::Gone)?);
                Ok(Place::Rank { call, memory, address: buffers.address(piece.region, piece.offset) })
            }
            MemRegion::Staging(id) => {
                let buffer = self.staging.get(&id).unwrap_or_else(|| panic!("{piece:?} is not staged"));
                let buffer = buffer.as_ref().ok_or(Fault::Gone)?;
                within(buffer.len());
                Ok(Place::Staging { buffer: Arc::clone(buffer), offset: piece.offset })
            }
        }
    }

    /// Does all work on memory that the machine has ordered, in order.
    pub(crate) fn perform(&mut self, machine: &mut Endpoint, payloads: Payloads<'_>) {
        while let Some(order) = machine.poll_order() {
            if let Order::Deliver { to, .. } = order
                && !self.landed.is_empty()
            {
                self.note_landed(to);
                continue;
            }
            if let Order::Deliver { payload, offset, to } = order {
                self.gathered.push(Delivery { payload, offset, to });
                continue;
            }
            self.flush(payloads);
            match order {
                Order::Stage { id, bytes, group } => {
                    let buffer = self.pool.take(bytes);
                    if buffer.is_none() {
                        limited!(error, %group, bytes, "no memory is left for a group; lower --staging-quota or --scratch-quota");
                        self.unmet.push((group, bytes));
                    }
                    let taken = self.staging.insert(id, buffer);
                    assert!(taken.is_none(), "{id:?} is staged twice");
                }
                Order::Unstage { id } => self.work(Work::Unstage { id }),
                Order::Copy { from, to } => self.work(Work::Copy { from, to }),
                Order::Reduce { from, into, reduction, from_left } => {
                    self.work(Work::Reduce(Combination { from, into, reduction, from_left }));
                }
                Order::Deliver { .. } => unreachable!("gathered above"),
            }
        }
        self.flush(payloads);
        self.set_out();
    }

    /// Memory to read an arriving payload into. All of these pieces must be mapped here, and no unfinished work may
    /// precede the payload.
    pub(crate) fn landing(&self, pieces: &[MemRef]) -> Option<ScatterList> {
        let place = |piece: &MemRef| {
            let waits = !self.backlog.is_empty() && self.backlog.precedes(&self.extents([None, Some(*piece)]));
            if waits { None } else { self.place(*piece).ok()?.resident(piece.len) }
        };
        pieces.iter().map(place).collect()
    }

    /// Declares that the next payload is already placed at `pieces`; empty means it was not placed.
    pub(crate) fn set_landed(&mut self, pieces: FramePayload) {
        self.landed = pieces;
    }

    fn note_landed(&mut self, to: MemRef) {
        assert!(self.landed.contains(&to), "{to:?} is not where its bytes were said to belong: {:?}", self.landed);
        self.bytes_landed += to.len;
        if let Ok(Place::Rank { memory, .. }) = self.place(to) {
            memory.count_placed(to.len as usize);
        }
    }

    /// Whether memory was withdrawn since the last check.
    pub(crate) fn take_withdrawn(&mut self) -> bool {
        std::mem::take(&mut self.withdrawn)
    }

    /// Holder and posted address of each piece. Memory of ranks that are gone has no holder.
    fn extents(&self, touched: Touched<MemRef>) -> Touched<Extent> {
        let extent = |MemRef { region, offset, len }| {
            let (holder, start) = match region {
                MemRegion::Staging(id) => (Holder::Staging(id), offset),
                MemRegion::Input(call) | MemRegion::Output(call) => {
                    let buffers = self.calls.get(&call).filter(|_| len > 0)?;
                    (holder(buffers.memory.as_ref()?), buffers.posted(region, offset))
                }
            };
            Some(Extent { holder, start, len })
        };
        touched.map(|piece| piece.and_then(extent))
    }

    /// Does a piece of work, plans it, or keeps it behind unfinished work.
    fn work(&mut self, work: Work) {
        if self.plan(&work) {
            return;
        }
        let done = match self.must_wait(work.touched()) {
            true => Err(Unfinished { fault: Fault::Awaited, left: vec![work] }),
            false => self.attempt(work),
        };
        if let Err(Unfinished { fault, left }) = done {
            self.note(fault);
            left.into_iter().for_each(|work| self.keep(fault, work));
        }
    }

    /// Tries waiting work again, in order.
    fn retry(&mut self) {
        if !self.backlog.states().any(|state| matches!(state, State::Waiting)) {
            return;
        }
        for entry in self.backlog.take() {
            match entry.state {
                State::Waiting => self.work(entry.work),
                State::Planned(_) | State::Offered(_) | State::Held(_) => self.backlog.push(entry),
            }
        }
    }

    /// Whether a rank must still copy one of these pieces.
    fn is_awaited(&self, touched: Touched<MemRef>) -> bool {
        let mut calls = touched.iter().flatten().filter_map(|piece| call_of(piece.region));
        calls.any(|call| self.backlog.awaits(call))
    }

    /// Whether work on these pieces must wait, because a rank's copy is awaited or work before it cannot be done. Does
    /// the work before it, errands too, as far as possible.
    fn must_wait(&mut self, touched: Touched<MemRef>) -> bool {
        if self.backlog.is_empty() {
            return false;
        }
        if self.is_awaited(touched) {
            return true;
        }
        let extents = self.extents(touched);
        if !self.backlog.precedes(&extents) {
            return false;
        }
        self.do_now(|entry| entry.precedes(&extents));
        let waits = self.backlog.precedes(&extents);
        // A waiting reader delays its own call, perhaps that of another rank.
        if waits && extents[0].is_some() {
            self.backlog.want(&extents);
        }
        waits
    }

    /// Does work whose turn has come.
    fn attempt(&mut self, work: Work) -> Result<(), Unfinished> {
        self.planned.note_done(&work);
        let done = match &work {
            Work::Copy { from, to } => self.copy(*from, *to),
            Work::Reduce(combination) => return self.reduce(*combination),
            Work::Deliver { bytes, to } => self.put(bytes, *to),
            Work::Unstage { id } => {
                let buffer = self.staging.remove(id).unwrap_or_else(|| panic!("{id:?} is not staged"));
                self.withdrawn |= buffer.as_ref().is_some_and(|buffer| Arc::strong_count(buffer) > 1);
                buffer.into_iter().for_each(|buffer| self.pool.give_back(buffer));
                Ok(())
            }
        };
        done.map_err(|fault| Unfinished { fault, left: vec![work] })
    }

    /// Whether a noted fault can still be mended by the rank's copy, or by work before it.
    fn passes(&self, fault: Fault) -> bool {
        match fault {
            Fault::Awaited => true,
            Fault::Call { call, error: AccessError::Withdrawn { .. } } => self.backlog.awaits(call),
            Fault::Call { .. } | Fault::Gone => false,
        }
    }

    /// Keeps work behind all unfinished work, if its fault can be mended.
    fn keep(&mut self, fault: Fault, work: Work) {
        if self.passes(fault) {
            self.put_off(self.backlog.entries().len(), work, State::Waiting);
        }
    }

    fn put_off(&mut self, at: usize, work: Work, state: State) {
        if let Some(receiver) = work.calls()[1].filter(|_| !self.backlog.has_room(&work)) {
            limited!(warn, call = receiver.0, "no more can be held for a rank that does not copy");
            self.faults.push((receiver, Cause::Buffer));
            return self.errands.forget(state);
        }
        let extents = self.extents(work.touched());
        self.backlog.insert(at, Entry { work, extents, state });
    }

    /// Combines as far as memory is within reach.
    fn reduce(&mut self, combination: Combination) -> Result<(), Unfinished> {
        let operands = self.place(combination.from).and_then(|from| Ok((from, self.place(combination.into)?)));
        let unfinished = |fault| Unfinished { fault, left: vec![Work::Reduce(combination)] };
        let (from, into) = operands.map_err(unfinished)?;
        combination.perform(&from, &into, &mut self.bounces)
    }

    fn copy(&mut self, from: MemRef, to: MemRef) -> Result<(), Fault> {
        assert_eq!(from.len, to.len, "copies have equal lengths");
        let (source, target) = (self.place(from)?, self.place(to)?);
        if let (Place::Rank { .. }, Place::Rank { .. }) = (&source, &target) {
            self.errands.copies.by_service += 1;
            self.errands.copies.bytes_by_service += from.len;
        }
        source.copy_to(&target, from.len, &mut self.bounce)
    }

    fn put(&mut self, bytes: &[u8], to: MemRef) -> Result<(), Fault> {
        match self.place(to)? {
            Place::Staging { buffer, offset } => {
                buffer.copy_in(offset, bytes);
                Ok(())
            }
            Place::Rank { call, memory, address } => {
                memory.write(address, bytes).map_err(|error| Fault::Call { call, error })
            }
        }
    }

    /// Carries the gathered deliveries out, one batch per region: if a host has several ranks, each datagram goes to
    /// all of them in turn. The order within a region stays.
    fn flush(&mut self, payloads: Payloads<'_>) {
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.sort_by_key(|delivery| delivery.to.region);
        for run in gathered.chunk_by(|one, next| one.to.region == next.to.region) {
            let waits = run.iter().any(|delivery| self.must_wait([None, Some(delivery.to)]));
            let done = if waits { Err(Fault::Awaited) } else { self.deliver(run, payloads) };
            let Err(fault) = done else { continue };
            self.note(fault);
            for delivery in run {
                let (bytes, to) = (delivery.bytes(payloads).to_vec(), delivery.to);
                self.keep(fault, Work::Deliver { bytes, to });
            }
        }
        self.gathered = gathered;
        self.gathered.clear();
    }

    fn deliver(&mut self, run: &[Delivery], payloads: Payloads<'_>) -> Result<(), Fault> {
        match self.place(run[0].to)? {
            Place::Staging { buffer, .. } => {
                for delivery in run {
                    buffer.copy_in(delivery.to.offset, delivery.bytes(payloads));
                }
                Ok(())
            }
            Place::Rank { call, memory, .. } => {
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
                memory.writev(&batch).map_err(|error| Fault::Call { call, error })
            }
        }
    }
}

/// The holder of this memory.
fn holder(memory: &Arc<TieredMemory>) -> Holder {
    Holder::Rank(Arc::as_ptr(memory).addr())
}
