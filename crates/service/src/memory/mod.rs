//! From the machine's names of memory to memory: buffers of calls (by tiers, SP-4) and staging.
//!
//! Deliveries are gathered and written with as few system calls as their destinations allow (MC-11). Invariants: memory
//! of a rank that is gone is never touched again ([`Memory::forget_rank`]); a reference beyond its region is a broken
//! invariant of the machine. An access that a rank's own doing makes fail is a fault of its call, nothing more; one
//! that the kernel has withdrawn is done when the rank has copied ([`crate::memory::deferred`]).

pub(crate) mod combine;
pub(crate) mod deferred;
pub(crate) mod errands;
pub(crate) mod pieces;
pub(crate) mod staging;

use std::collections::HashMap;
use std::sync::Arc;

use outboard_proto::{CallId, Endpoint, GroupHandle, MemRef, Order, Region, StagingId};
use outboard_shm::memory::{AccessError, RankMemory, Side, TieredMemory, WritePiece, copy_between};

use crate::memory::combine::{Bounces, Combination, Unfinished};
use crate::memory::deferred::{Deferred, Work};
use crate::memory::errands::{Errands, Runner};
pub(crate) use crate::memory::pieces::Pieces;
use crate::memory::staging::{Staging, StagingPool};

/// Received payloads that orders deliver from, by their index within what was handed to the machine.
pub(crate) type Payloads<'a> = &'a [&'a [u8]];

/// The buffers that a rank handed over with a call.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Gone when the rank is.
    memory: Option<Arc<TieredMemory>>,
    input: (u64, u64),
    output: (u64, u64),
    /// Where the output lies if not in one piece.
    pieces: Option<Arc<Pieces>>,
    /// They lie where the rank has copied them to, no longer where it posted them.
    restaged: bool,
    /// The rank, if it can do errands.
    runner: Option<Arc<Runner>>,
}

impl Buffers {
    /// `input` and `output` are address and length in the rank.
    pub(crate) fn new(memory: Arc<TieredMemory>, input: (u64, u64), output: (u64, u64)) -> Self {
        Buffers { memory: Some(memory), input, output, pieces: None, restaged: false, runner: None }
    }

    /// What a rank has recorded: all of it is output, some of it is read, too.
    pub(crate) fn recorded(memory: Arc<TieredMemory>, pieces: Arc<Pieces>) -> Self {
        let output = (0, pieces.total());
        Buffers { pieces: Some(pieces), ..Buffers::new(memory, (0, 0), output) }
    }

    /// Those of a rank that can do errands.
    pub(crate) fn of(self, runner: Option<Arc<Runner>>) -> Self {
        Buffers { runner, ..self }
    }

    /// Whether the address lies in one of the buffers.
    fn hold(&self, address: u64) -> bool {
        let lies_in = |(start, length): (u64, u64)| address.checked_sub(start).is_some_and(|at| at < length);
        match &self.pieces {
            None => lies_in(self.input) || lies_in(self.output),
            Some(pieces) => pieces.iter().any(lies_in),
        }
    }

    /// Where a byte of the output lies.
    fn output_address(&self, offset: u64) -> u64 {
        self.pieces.as_ref().map_or(self.output.0 + offset, |pieces| pieces.address(offset))
    }

    /// Bytes of the receive buffer.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.output.1
    }
}

/// Why a piece of memory could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The buffers of this call cannot be accessed.
    #[error("{error}")]
    Call { call: CallId, error: AccessError },
    /// The rank is gone, or there was no memory; the machine knows.
    #[error("the rank has gone, or memory has")]
    Gone,
    /// The kernel has withdrawn access: the rank's own copy is awaited.
    #[error("the rank's copy is awaited")]
    Awaited,
}

/// What a failed access shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The rank handed over a bad buffer.
    Buffer,
    /// The rank has died, which the access saw before the pidfd told.
    RankGone,
}

/// A piece of memory, held so that any thread may read it.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// In a rank, as part of the buffers of this call, from an address on.
    Rank { call: CallId, memory: Arc<TieredMemory>, address: u64 },
    /// In this process, from an offset on.
    Staging { buffer: Arc<Staging>, offset: u64 },
}

impl Place {
    /// The call whose buffers it is in.
    fn call(&self) -> Option<CallId> {
        match self {
            Place::Rank { call, .. } => Some(*call),
            Place::Staging { .. } => None,
        }
    }

    /// Copies out.
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

    /// The same place without its first bytes.
    pub(crate) fn behind(&self, bytes: u64) -> Place {
        match self.clone() {
            Place::Rank { call, memory, address } => Place::Rank { call, memory, address: address + bytes },
            Place::Staging { buffer, offset } => Place::Staging { buffer, offset: offset + bytes },
        }
    }

    /// Whether the first `bytes` bytes of both have some in common; ranks' memory is not looked into.
    pub(crate) fn overlaps(&self, other: &Place, bytes: u64) -> bool {
        match (self, other) {
            (Place::Staging { buffer, offset }, Place::Staging { buffer: other, offset: start }) => {
                Arc::ptr_eq(buffer, other) && offset.abs_diff(*start) < bytes
            }
            (Place::Staging { .. } | Place::Rank { .. }, _) => false,
        }
    }

    fn copy_to(&self, to: &Place, bytes: u64, bounce: &mut Vec<u8>) -> Result<(), Fault> {
        let length = usize::try_from(bytes).expect("staging lies in memory");
        match (self, to) {
            (Place::Rank { call, memory, address }, Place::Rank { call: other, memory: target, address: to }) => {
                let copied = copy_between((&**memory, *address), (&**target, *to), bytes, bounce);
                copied.map_err(|(side, error)| match side {
                    Side::Source => Fault::Call { call: *call, error },
                    Side::Target => Fault::Call { call: *other, error },
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
    /// None of what there was no memory for: its group has failed, and what names it is left undone.
    staging: HashMap<StagingId, Option<Arc<Staging>>>,
    pool: StagingPool,
    gathered: Vec<Delivery>,
    faults: Vec<(CallId, Cause)>,
    /// Groups for which there was no memory, and how much.
    unmet: Vec<(GroupHandle, u64)>,
    deferred: Deferred,
    pub(crate) errands: Errands,
    bounce: Vec<u8>,
    bounces: Bounces,
}

impl Memory {
    pub(crate) fn insert(&mut self, call: CallId, buffers: Buffers) {
        self.calls.insert(call, buffers);
    }

    /// The call has ended.
    pub(crate) fn remove(&mut self, call: CallId) {
        self.calls.remove(&call);
        self.deferred.forget(call);
    }

    /// The rank is gone: the buffers of this call are not touched any more. Returns the calls of others that will never
    /// have the bytes that only it could copy.
    pub(crate) fn forget_rank(&mut self, call: CallId) -> Vec<CallId> {
        if let Some(buffers) = self.calls.get_mut(&call) {
            buffers.memory = None;
        }
        let mut missing = self.forget_copies(call, true);
        missing.extend(self.deferred.cut_off(call));
        missing
    }

    /// The call ends in failure: the calls of others that will never have the bytes that only its rank could copy.
    pub(crate) fn cut_off(&mut self, call: CallId) -> Vec<CallId> {
        let mut missing = self.forget_copies(call, false);
        missing.extend(self.deferred.cut_off(call));
        missing
    }

    /// Whether the call has work left to do here, whatever the machine knows.
    pub(crate) fn defers(&self, call: CallId) -> bool {
        self.deferred.holds_call(call) || self.errands.holds_call(call)
    }

    /// The rank has copied the buffers of this call to other addresses (GP-9): does what waited for them. False when
    /// they would not fit there.
    #[must_use]
    pub(crate) fn restage(&mut self, call: CallId, send: u64, receive: u64) -> bool {
        let Some(buffers) = self.calls.get_mut(&call) else { return false };
        let fits = |address: u64, length: u64| address.checked_add(length).is_some();
        if !fits(send, buffers.input.1) || !fits(receive, buffers.output.1) {
            return false;
        }
        if let Some(memory) = buffers.memory.clone() {
            self.finish_copies(&memory);
        }
        let Some(buffers) = self.calls.get_mut(&call) else { return false };
        (buffers.input.0, buffers.output.0, buffers.restaged) = (send, receive, true);
        // The copy is one piece.
        buffers.pieces = None;
        for work in self.deferred.reached(call) {
            self.work(work);
        }
        true
    }

    /// Calls whose buffers could not be accessed since the last time.
    pub(crate) fn take_faults(&mut self) -> Vec<(CallId, Cause)> {
        std::mem::take(&mut self.faults)
    }

    /// Groups for which there was no memory since the last time, and how much.
    pub(crate) fn take_unmet(&mut self) -> Vec<(GroupHandle, u64)> {
        std::mem::take(&mut self.unmet)
    }

    /// A datapath thread met a fault.
    pub(crate) fn note(&mut self, fault: Fault) {
        match fault {
            Fault::Call { call, error } => {
                let Some(buffers) = self.calls.get(&call) else { return };
                if let AccessError::Withdrawn { address, .. } = error
                    && (!buffers.restaged || !buffers.hold(address))
                {
                    // What was under way when the rank copied is late news.
                    if !buffers.restaged {
                        self.deferred.await_copy(call);
                    }
                } else if !self.faults.iter().any(|(known, _)| *known == call) {
                    tracing::warn!(call = call.0, %error, "a rank's buffer cannot be accessed");
                    let gone = matches!(error, AccessError::Gone { .. });
                    self.faults.push((call, if gone { Cause::RankGone } else { Cause::Buffer }));
                }
            }
            Fault::Gone | Fault::Awaited => {}
        }
    }

    /// Where a piece lies.
    /// The machine names no memory that it was never given, and nothing beyond its end.
    pub(crate) fn place(&self, piece: MemRef) -> Result<Place, Fault> {
        let within = |length: u64| {
            let end = piece.offset.checked_add(piece.len);
            assert!(end.is_some_and(|end| end <= length), "{piece:?} reaches beyond {length} bytes");
        };
        if self.deferred.holds(piece.region) {
            return Err(Fault::Awaited);
        }
        match piece.region {
            Region::Input(call) | Region::Output(call) => {
                let buffers = self.calls.get(&call).unwrap_or_else(|| panic!("{piece:?} is of no call in flight"));
                let input = matches!(piece.region, Region::Input(_));
                within(if input { buffers.input.1 } else { buffers.output.1 });
                let memory = Arc::clone(buffers.memory.as_ref().ok_or(Fault::Gone)?);
                let address = if input { buffers.input.0 + piece.offset } else { buffers.output_address(piece.offset) };
                Ok(Place::Rank { call, memory, address })
            }
            Region::Staging(id) => {
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
            if let Order::Deliver { payload, offset, to } = order {
                self.gathered.push(Delivery { payload, offset, to });
                continue;
            }
            self.flush(payloads);
            match order {
                Order::Stage { id, bytes, group } => {
                    let buffer = self.pool.take(bytes);
                    if buffer.is_none() {
                        tracing::error!(%group, bytes, "no memory is left for a group; lower --staging-quota or --job-scratch");
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

    /// Does a piece of work, now or when its memory is within reach.
    fn work(&mut self, work: Work) {
        let done = match &work {
            Work::Copy { from, to } => self.copy(*from, *to),
            Work::Reduce(combination) => return self.reduce(*combination),
            Work::Deliver { bytes, to } => self.put(bytes, *to),
            Work::Unstage { id } if self.deferred.holds(Region::Staging(*id)) => Err(Fault::Awaited),
            Work::Unstage { id } => {
                let buffer = self.staging.remove(id).unwrap_or_else(|| panic!("{id:?} is not staged"));
                buffer.into_iter().for_each(|buffer| self.pool.give_back(buffer));
                Ok(())
            }
        };
        if let Err(fault) = done {
            self.postpone(fault, work);
        }
    }

    /// Notes a fault, and keeps the work for later if a copy by the rank can still mend it.
    fn postpone(&mut self, fault: Fault, work: Work) {
        self.keep(fault, work, Deferred::push);
    }

    fn keep(&mut self, fault: Fault, work: Work, push: fn(&mut Deferred, Work) -> bool) {
        self.note(fault);
        match fault {
            Fault::Awaited => {}
            Fault::Call { call, error: AccessError::Withdrawn { .. } } if self.deferred.awaits(call) => {}
            Fault::Call { .. } | Fault::Gone => return,
        }
        work.others().into_iter().flatten().for_each(|call| self.errands.want(call));
        let Work::Deliver { to: MemRef { region: Region::Output(receiver), .. }, .. } = work else {
            let kept = push(&mut self.deferred, work);
            return assert!(kept, "only payload takes room");
        };
        if !push(&mut self.deferred, work) {
            tracing::warn!(call = receiver.0, "no more can be held for a rank that does not copy");
            self.faults.push((receiver, Cause::Buffer));
        }
    }

    /// Combines, now or as far as memory is within reach.
    fn reduce(&mut self, combination: Combination) {
        let Combination { from, into, .. } = combination;
        let done = self
            .make_way(Some(from), Some(into))
            .and_then(|()| Ok((self.place(from)?, self.place(into)?)))
            .map_err(|fault| Unfinished { fault, left: vec![Work::Reduce(combination)] })
            .and_then(|(from, into)| combination.perform(&from, &into, &mut self.bounces));
        if let Err(Unfinished { fault, left }) = done {
            left.into_iter().for_each(|work| self.postpone(fault, work));
        }
    }

    fn copy(&mut self, from: MemRef, to: MemRef) -> Result<(), Fault> {
        assert_eq!(from.len, to.len, "copies have equal lengths");
        self.make_way(Some(from), Some(to))?;
        let (source, target) = (self.place(from)?, self.place(to)?);
        if self.plan((from, to), (&source, &target)) { Ok(()) } else { self.copy_between(&source, &target, from.len) }
    }

    fn copy_between(&mut self, source: &Place, target: &Place, bytes: u64) -> Result<(), Fault> {
        if let (Place::Rank { .. }, Place::Rank { .. }) = (source, target) {
            self.errands.copies.by_service += 1;
            self.errands.copies.bytes_by_service += bytes;
        }
        source.copy_to(target, bytes, &mut self.bounce)
    }

    fn put(&mut self, bytes: &[u8], to: MemRef) -> Result<(), Fault> {
        self.make_way(None, Some(to))?;
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

    /// Carries the gathered deliveries out, one batch per region: where a host has several ranks each datagram goes to
    /// all of them in turn. Within a region the order stays.
    fn flush(&mut self, payloads: Payloads<'_>) {
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.sort_by_key(|delivery| delivery.to.region);
        for run in gathered.chunk_by(|one, next| one.to.region == next.to.region) {
            let Err(fault) = self.deliver(run, payloads) else { continue };
            for delivery in run {
                let (bytes, to) = (delivery.bytes(payloads).to_vec(), delivery.to);
                self.postpone(fault, Work::Deliver { bytes, to });
            }
        }
        self.gathered = gathered;
        self.gathered.clear();
    }

    fn deliver(&mut self, run: &[Delivery], payloads: Payloads<'_>) -> Result<(), Fault> {
        run.iter().try_for_each(|delivery| self.make_way(None, Some(delivery.to)))?;
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
                        let end = delivery.to.offset.checked_add(delivery.to.len);
                        assert!(end.is_some_and(|end| end <= self.length(delivery.to.region)), "{delivery:?}");
                        let address = match delivery.to.region {
                            Region::Output(_) => buffers.output_address(delivery.to.offset),
                            Region::Input(_) | Region::Staging(_) => {
                                unreachable!("deliveries to a rank go to its output")
                            }
                        };
                        WritePiece { local: delivery.bytes(payloads), address }
                    })
                    .collect();
                memory.writev(&batch).map_err(|error| Fault::Call { call, error })
            }
        }
    }

    fn length(&self, region: Region) -> u64 {
        match region {
            Region::Input(call) => self.calls[&call].input.1,
            Region::Output(call) => self.calls[&call].output.1,
            Region::Staging(_) => unreachable!("staging has no call"),
        }
    }
}
