//! Deferred work on memory, in the machine's order. Only this module knows which work must precede other work.
//!
//! Work is done at once or deferred for one of four reasons:
//! - it waits until a rank has copied memory that nobody else can reach (GP-9),
//! - it waits for earlier work,
//! - it is a copy that a rank does itself ([`crate::memory::rank_copies`]),
//! - it is planned for a later turn ([`crate::memory::turn_budget`]).
//!
//! Two pieces of work keep their order if they share bytes that one of them writes. Bytes are identified by the address
//! that the rank posted, whichever call names them, and even after the rank has copied them. The address identifies
//! them because the starts of a recording share memory, and so do input and output of a call in place.
//!
//! | work is | on | goes to |
//! |---|---|---|
//! | waiting | no copy of its calls is awaited, no conflicting work is before it | done, planned, or waiting again |
//! | planned, rank copy | see these modules | done, or waiting |
//! | any | the end of a call that the work names | gone |
//!
//! | a call is | on | goes to |
//! |---|---|---|
//! | reached | an access to memory that was withdrawn, or that only its rank can reach | awaited |
//! | awaited | `Restage` of its rank | reached, in shared memory; waiting work is tried again |
//! | any | the call's failure, the end of its rank | gone; calls that were to receive its bytes are cut off |
//!
//! Only local work waits here. A transmission from withdrawn memory counts as lost on the way. The protocol repairs the
//! loss once the memory can be read; until then the link to that peer makes no progress beyond the lost transmission.
//!
//! Invariants: deferred work keeps its place. A call that deferred work names has not completed for its rank. At most
//! [`MAX_HELD_BYTES`] of payload are held.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use outboard_proto::{CallId, MemRef, MemRegion, StagingId};

use crate::memory::combine::OrderedReduction;
use crate::memory::rank_copies::WorkState;

#[cfg(test)]
mod tests;

/// Most payload held for ranks that are not in a call of this library and so do not copy.
const MAX_HELD_BYTES: usize = 256 << 20;

#[derive(Debug)]
pub(crate) enum MemoryWork {
    /// A copy as the machine ordered it.
    Copy { from: MemRef, to: MemRef },
    /// A reduction as the machine ordered it, or the rest of such a reduction.
    Reduce(OrderedReduction),
    /// Writes received payload or a result.
    Deliver { bytes: Vec<u8>, to: MemRef },
    /// Releases staging memory, which is not needed once the work before this is done.
    Unstage { id: StagingId },
}

/// First the entry for the piece that work reads, then the entry for the piece that work writes.
pub(super) type ReadAndWritten<T> = [Option<T>; 2];

impl MemoryWork {
    pub(super) fn read_and_written(&self) -> ReadAndWritten<MemRef> {
        match self {
            MemoryWork::Copy { from, to } | MemoryWork::Reduce(OrderedReduction { from, into: to, .. }) => {
                [Some(*from), Some(*to)]
            }
            MemoryWork::Deliver { to, .. } => [None, Some(*to)],
            MemoryWork::Unstage { id } => {
                [None, Some(MemRef { region: MemRegion::Staging(*id), offset: 0, len: u64::MAX })]
            }
        }
    }

    fn regions(&self) -> ReadAndWritten<MemRegion> {
        self.read_and_written().map(|piece| piece.map(|piece| piece.region))
    }

    /// The calls whose buffers the work reads and writes.
    pub(super) fn calls(&self) -> ReadAndWritten<CallId> {
        self.regions().map(|region| region.and_then(call_of))
    }

    /// Bytes that the work copies or combines.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            MemoryWork::Copy { to, .. } | MemoryWork::Deliver { to, .. } => to.len,
            MemoryWork::Reduce(combination) => combination.into.len,
            MemoryWork::Unstage { .. } => 0,
        }
    }

    /// The part of this work on `len` bytes from `start` on; a part of a reduction must be whole elements.
    pub(super) fn piece(&self, start: u64, len: u64) -> MemoryWork {
        let piece = |whole: MemRef| MemRef { offset: whole.offset + start, len, ..whole };
        match self {
            MemoryWork::Copy { from, to } => MemoryWork::Copy { from: piece(*from), to: piece(*to) },
            MemoryWork::Reduce(all) => MemoryWork::Reduce(all.piece(start, len)),
            MemoryWork::Deliver { .. } | MemoryWork::Unstage { .. } => unreachable!("done whole"),
        }
    }

    fn payload(&self) -> usize {
        match self {
            MemoryWork::Deliver { bytes, .. } => bytes.len(),
            MemoryWork::Copy { .. } | MemoryWork::Reduce(_) | MemoryWork::Unstage { .. } => 0,
        }
    }
}

pub(super) fn call_of(region: MemRegion) -> Option<CallId> {
    match region {
        MemRegion::Input(call) | MemRegion::Output(call) => Some(call),
        MemRegion::Staging(_) => None,
    }
}

/// The process that owns bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum MemoryOwner {
    /// A rank, by the address of its `TieredMemory` in this process, which stays while the rank has calls in flight.
    Rank(usize),
    Staging(StagingId),
}

/// Bytes of an owner, wherever they lie now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) owner: MemoryOwner,
    /// Address as the rank posted it.
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Extent {
    fn overlaps(&self, other: &Extent) -> bool {
        let begins_within = |one: &Extent, other: &Extent| one.start.wrapping_sub(other.start) < other.len;
        let both = self.len > 0 && other.len > 0;
        both && self.owner == other.owner && (begins_within(self, other) || begins_within(other, self))
    }
}

/// Whether two pieces of work must keep their order, because they share bytes that one of them writes.
fn keep_order([read, written]: &ReadAndWritten<Extent>, [reads, writes]: &ReadAndWritten<Extent>) -> bool {
    let meet = |one: &Option<Extent>, other: &Option<Extent>| {
        one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one.overlaps(other))
    };
    meet(written, writes) || meet(written, reads) || meet(read, writes)
}

/// A piece of unfinished work.
#[derive(Debug)]
pub(super) struct DeferredEntry {
    pub(super) work: MemoryWork,
    pub(super) extents: ReadAndWritten<Extent>,
    pub(super) state: WorkState,
}

impl DeferredEntry {
    /// Whether this entry must precede work on these extents.
    pub(super) fn precedes(&self, extents: &ReadAndWritten<Extent>) -> bool {
        keep_order(&self.extents, extents)
    }

    pub(super) fn touches(&self, owner: MemoryOwner) -> bool {
        self.extents.iter().flatten().any(|extent| extent.owner == owner)
    }

    fn names_call(&self, call: CallId) -> bool {
        self.work.calls().contains(&Some(call))
    }

    /// Whether this entry reads bytes of `call` for another call.
    pub(super) fn is_for_another_than(&self, call: CallId) -> bool {
        let [read, written] = self.work.calls();
        read == Some(call) && written != Some(call)
    }
}

#[derive(Debug, Default)]
pub(crate) struct DeferredOps {
    awaited: HashSet<CallId>,
    entries: Vec<DeferredEntry>,
    /// Number of entries that touch the memory of each owner. Most new work touches memory without entries.
    touching: HashMap<MemoryOwner, u32>,
    bytes: usize,
}

impl DeferredOps {
    /// Whether no work is deferred and no rank's copy is awaited.
    pub(super) fn is_empty(&self) -> bool {
        // Nearly always true if no rank copies for itself.
        self.entries.is_empty() && self.awaited.is_empty()
    }

    pub(super) fn entries(&self) -> &[DeferredEntry] {
        &self.entries
    }

    pub(super) fn states(&mut self) -> impl DoubleEndedIterator<Item = &mut WorkState> {
        self.entries.iter_mut().map(|entry| &mut entry.state)
    }

    pub(super) fn state(&mut self, at: usize) -> &mut WorkState {
        &mut self.entries[at].state
    }

    /// Whether the rank of this call must still copy the call's buffers.
    pub(super) fn awaits(&self, call: CallId) -> bool {
        self.awaited.contains(&call)
    }

    /// Whether any deferred work names the call.
    pub(crate) fn names_call(&self, call: CallId) -> bool {
        self.entries.iter().any(|entry| entry.names_call(call))
    }

    /// Whether the call cannot end yet, because deferred work names it. A failed call is held back only while calls
    /// that have not failed can still get its bytes. `failed` says whether a call has failed.
    pub(crate) fn holds_back(&self, call: CallId, failed: impl Fn(CallId) -> bool) -> bool {
        if self.entries.is_empty() || !failed(call) {
            return self.names_call(call);
        }
        let needs =
            |entry: &DeferredEntry| entry.is_for_another_than(call) && !entry.work.calls()[1].is_some_and(&failed);
        self.entries.iter().any(|entry| needs(entry) && self.proceeds_unaided(entry))
    }

    /// Whether the entry and all work before it can be done without a further action of a rank.
    fn proceeds_unaided(&self, entry: &DeferredEntry) -> bool {
        let stuck = |entry: &DeferredEntry| {
            let awaited = entry.work.calls().into_iter().flatten().any(|call| self.awaits(call));
            awaited || matches!(entry.state, WorkState::HeldCopy(_))
        };
        let chain = self.needed(|other| std::ptr::eq(entry, other));
        !chain.into_iter().any(|at| stuck(&self.entries[at]))
    }

    /// Unfinished work that must precede work on these extents.
    pub(super) fn before(&self, extents: &ReadAndWritten<Extent>) -> impl Iterator<Item = &DeferredEntry> {
        let read_and_written = extents.iter().flatten().any(|extent| self.touching.contains_key(&extent.owner));
        let entries = if read_and_written { &self.entries[..] } else { &[] };
        entries.iter().filter(|entry| entry.precedes(extents))
    }

    /// Whether unfinished work must precede work on these extents.
    pub(super) fn precedes(&self, extents: &ReadAndWritten<Extent>) -> bool {
        self.before(extents).next().is_some()
    }

    /// Whether the entry at `at` must wait for an earlier entry.
    pub(super) fn is_behind(&self, at: usize) -> bool {
        self.entries[..at].iter().any(|entry| entry.precedes(&self.entries[at].extents))
    }

    /// Ascending indices of the entries that match, and of all entries that must precede them.
    pub(super) fn needed(&self, which: impl Fn(&DeferredEntry) -> bool) -> Vec<usize> {
        let mut needed: Vec<usize> = Vec::new();
        for (at, entry) in self.entries.iter().enumerate().rev() {
            if which(entry) || needed.iter().any(|later| entry.precedes(&self.entries[*later].extents)) {
                needed.push(at);
            }
        }
        needed.reverse();
        needed
    }

    /// Starts the time limits of ranks that delay work on these extents, because other work waits for that work.
    pub(super) fn start_time_limits(&mut self, extents: &ReadAndWritten<Extent>) {
        for at in self.needed(|entry| entry.precedes(extents)) {
            if let WorkState::HeldCopy(held) = self.state(at) {
                held.needed_since.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Notes that the buffers of a call cannot be accessed until the call's rank copies them. Returns false if that was
    /// known.
    pub(super) fn await_copy(&mut self, call: CallId) -> bool {
        self.awaited.insert(call)
    }

    /// Notes that the call's buffers can be accessed, or that the call has ended. Returns whether a copy was awaited.
    pub(super) fn end_await(&mut self, call: CallId) -> bool {
        self.awaited.remove(&call)
    }

    /// Whether the payload of the work fits the limit on held bytes.
    pub(super) fn has_room(&self, work: &MemoryWork) -> bool {
        self.bytes + work.payload() <= MAX_HELD_BYTES
    }

    pub(super) fn insert(&mut self, at: usize, entry: DeferredEntry) {
        self.bytes += entry.work.payload();
        for extent in entry.extents.iter().flatten() {
            *self.touching.entry(extent.owner).or_default() += 1;
        }
        self.entries.insert(at, entry);
    }

    pub(super) fn push(&mut self, entry: DeferredEntry) {
        self.insert(self.entries.len(), entry);
    }

    pub(super) fn remove(&mut self, at: usize) -> DeferredEntry {
        let entry = self.entries.remove(at);
        self.bytes -= entry.work.payload();
        for extent in entry.extents.iter().flatten() {
            let count = self.touching.get_mut(&extent.owner).expect("counted when it came");
            *count -= 1;
            if *count == 0 {
                self.touching.remove(&extent.owner);
            }
        }
        entry
    }

    /// Removes all entries, to be put back or done in order.
    pub(super) fn take(&mut self) -> Vec<DeferredEntry> {
        self.touching.clear();
        self.bytes = 0;
        std::mem::take(&mut self.entries)
    }

    /// Drops the work that depends on a call, which has failed or whose rank has ended. Returns the dropped entries,
    /// which name the call or depend on its bytes, and the other calls that will never receive their bytes.
    pub(super) fn drop_call_work(&mut self, call: CallId) -> (Vec<DeferredEntry>, Vec<CallId>) {
        self.end_await(call);
        let mut lost = HashSet::from([MemRegion::Input(call), MemRegion::Output(call)]);
        let (mut dropped, mut missing) = (Vec::new(), Vec::new());
        for entry in self.take() {
            let [read, written] = entry.work.regions();
            if read.is_some_and(|region| lost.contains(&region)) {
                lost.extend(written);
            } else if !entry.names_call(call) {
                self.push(entry);
                continue;
            }
            if let Some(other) = entry.work.calls()[1]
                && other != call
                && !missing.contains(&other)
            {
                missing.push(other);
            }
            dropped.push(entry);
        }
        (dropped, missing)
    }
}
