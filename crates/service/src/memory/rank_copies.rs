//! Copies between ranks of this host that the receiving rank itself does while it waits in the library (SP-6).
//!
//! | a copy is | on | goes to |
//! |---|---|---|
//! | planned | its turn; its rank waits and has a free slot | offered |
//! | planned | its turn; no waiting rank, or no slot | done by the conductor ([`crate::memory::turn_budget`]) |
//! | offered | the rank's report | done; after a failure planned, for the conductor |
//! | offered | the rank stops waiting, or does not take the copy within [`OFFER_LIMIT`] | withdrawn: planned |
//! | planned, or offered | a rank has copied memory that the copy names (GP-9) | planned, for the conductor |
//! | offered, and taken | no report within [`COPY_LIMIT`] | held: its bytes are copied here, its source is free |
//! | held | the rank's report | done: its bytes are delivered again from here, with all work that waited for it |
//! | held | other work needs its bytes for [`HELD_LIMIT`] | the rank's call fails by name |
//! | any | the end of its call | forgotten; a slot that is taken becomes free with its report |
//!
//! The machine counts an ordered copy as done. So a copy stays in the [`deferred_ops`](crate::memory::deferred_ops)
//! until its bytes are in place, where later work on these bytes finds it. A rank's report affects only the rank's own
//! buffers. A false or missing report harms only the rank's own call.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_fabric::limited;
use outboard_proto::{CallId, MemRef};
use outboard_shm::control;
use outboard_shm::memory::{Tier, TieredMemory};
use outboard_shm::rank_copy::{CopyOutcome, RANK_COPIES, RankCopy};
use rustix::process::Pid;

use crate::ConnectionId;
use crate::memory::deferred_ops::{DeferredEntry, DeferredOps, MemoryOwner, MemoryWork};
use crate::memory::{EndpointMemory, FaultCause, MemoryFault, MemoryLocation, PostedBuffers};
use crate::telemetry::statistics::CopyCounters;

#[cfg(test)]
mod tests;

/// Time for which a waiting rank may leave a rank copy untouched: the rank may have no processor.
const OFFER_LIMIT: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 5 });
/// Time limit of a rank copy, to which one nanosecond is added for each byte of this rank copy and of the rank copies
/// before it.
const COPY_LIMIT: Duration = Duration::from_millis(100);
/// Time for which the conductor waits for a rank copy whose bytes it needs; most rank copies take less.
const REPORT_WAIT: Duration = Duration::from_millis(1);
/// Time for which a rank that was stopped in the middle of a rank copy may delay others.
const HELD_LIMIT: Duration = Duration::from_secs(10);

/// A rank that can do copies itself.
#[derive(Debug)]
pub(crate) struct CopyAgent {
    pub(crate) id: ConnectionId,
    pub(crate) pid: Pid,
    pub(crate) copies: control::RankCopies,
}

/// A copy that the receiving rank may do itself.
#[derive(Debug, Clone)]
pub(super) struct CopyTask {
    /// The rank that would copy; `reads` is the rank whose memory it would read.
    copy_agent: Arc<CopyAgent>,
    reads: ConnectionId,
    errand: RankCopy,
}

/// State of work that is not done.
#[derive(Debug)]
pub(super) enum WorkState {
    /// Work that waits for a rank to copy its buffers, or for earlier work.
    Waiting,
    /// Work whose turn has not come. A copy with a task may be offered to the receiving rank.
    Planned(Option<CopyTask>),
    /// A copy that is offered to the receiving rank.
    OfferedCopy(OfferedCopy),
    /// The bytes of a rank copy, held until the rank's report shows that it no longer writes to its buffer.
    HeldCopy(HeldCopy),
}

#[derive(Debug)]
pub(super) struct OfferedCopy {
    task: CopyTask,
    slot: u32,
    since: Instant,
    taken: bool,
}

#[derive(Debug)]
pub(super) struct HeldCopy {
    copy_agent: Arc<CopyAgent>,
    slot: u32,
    /// Time from which on other work has needed the bytes of the rank copy.
    pub(super) needed_since: Option<Instant>,
}

/// Slots that were written and must be offered to each rank, one bit each.
pub(super) type NewOffers = HashMap<ConnectionId, (Arc<CopyAgent>, u64)>;

/// State of the rank copies, in addition to the [`DeferredOps`].
#[derive(Debug, Default)]
pub(crate) struct CopyOffers {
    /// Smallest copy that is left to a rank; 0 disables such copies.
    pub(crate) min_bytes: u64,
    /// Agent and slot of rank copies that were taken for calls which have ended since.
    forgotten: Vec<(Arc<CopyAgent>, u32)>,
    /// Slots that are in use, one bit each.
    used: HashMap<ConnectionId, u64>,
    /// Pairs of the rank that is read and the rank that copies, whose copies have failed.
    refused: HashSet<(ConnectionId, ConnectionId)>,
    pub(crate) copies: CopyCounters,
}

impl WorkState {
    /// Whether the service process may do the work itself at once.
    pub(super) fn may_be_done(&self) -> bool {
        match self {
            WorkState::Planned(_) | WorkState::OfferedCopy(_) => true,
            WorkState::Waiting | WorkState::HeldCopy(_) => false,
        }
    }

    /// The rank to which the rank copy is offered or was given, and its slot.
    fn agent_and_slot(&self) -> Option<(Arc<CopyAgent>, u32)> {
        match self {
            WorkState::Waiting | WorkState::Planned(_) => None,
            WorkState::OfferedCopy(OfferedCopy { task: CopyTask { copy_agent, .. }, slot, .. })
            | WorkState::HeldCopy(HeldCopy { copy_agent, slot, .. }) => Some((Arc::clone(copy_agent), *slot)),
        }
    }

    /// The rank's report on the rank copy, if there is one.
    fn report(&self) -> Option<CopyOutcome> {
        let (copy_agent, slot) = self.agent_and_slot()?;
        copy_agent.copies.table().outcome(slot)
    }
}

impl CopyTask {
    /// The task for `bytes` bytes of this copy from `start` on.
    pub(super) fn piece(&self, start: u64, bytes: u64) -> CopyTask {
        let RankCopy { source, target, .. } = self.errand;
        CopyTask {
            errand: RankCopy { source: source + start, target: target + start, bytes, ..self.errand },
            ..self.clone()
        }
    }
}

impl CopyOffers {
    fn free_slot(&mut self, copy_agent: &CopyAgent, slot: u32) {
        if let Some(used) = self.used.get_mut(&copy_agent.id) {
            *used &= !(1 << slot);
        }
    }

    /// Writes a planned rank copy into the rank's table. Does nothing if the rank does not wait, cannot read the
    /// source, or has no free slot.
    pub(super) fn write(&mut self, state: &mut WorkState, new_offers: &mut NewOffers) {
        let WorkState::Planned(Some(task)) = state else { return };
        let CopyTask { copy_agent, reads, errand } = task;
        if self.refused.contains(&(*reads, copy_agent.id)) || !copy_agent.copies.table().has_waiters() {
            return;
        }
        let used = self.used.entry(copy_agent.id).or_default();
        let slot = used.trailing_ones();
        if slot as usize >= RANK_COPIES {
            return;
        }
        *used |= 1 << slot;
        copy_agent.copies.table().write(slot, errand);
        new_offers.entry(copy_agent.id).or_insert_with(|| (Arc::clone(copy_agent), 0)).1 |= 1 << slot;
        *state = WorkState::OfferedCopy(OfferedCopy { task: task.clone(), slot, since: Instant::now(), taken: false });
    }

    /// Withdraws an offer, so that its copy is planned again. Returns false if the rank has already taken the copy.
    fn withdraw(&mut self, state: &mut WorkState) -> bool {
        let WorkState::OfferedCopy(OfferedCopy { task, slot, taken, .. }) = state else { return true };
        *taken |= !task.copy_agent.copies.table().withdraw(*slot);
        if *taken {
            return false;
        }
        self.copies.taken_back += 1;
        self.free_slot(&task.copy_agent, *slot);
        *state = WorkState::Planned(Some(task.clone()));
        true
    }

    /// Drops work that is not needed any more. If a rank has taken the work as a rank copy, the slot stays in use until
    /// the report.
    pub(super) fn forget(&mut self, mut state: WorkState) {
        if !self.withdraw(&mut state) || matches!(state, WorkState::HeldCopy(_)) {
            self.forgotten.extend(state.agent_and_slot());
        }
    }

    /// Forgets a rank that is gone.
    pub(crate) fn forget_copy_agent(&mut self, id: ConnectionId) {
        self.used.remove(&id);
        self.refused.retain(|(reads, runs)| *reads != id && *runs != id);
        self.forgotten.retain(|(copy_agent, _)| copy_agent.id != id);
    }
}

impl OfferedCopy {
    /// Time after the offer at which the conductor reacts if there is no report.
    fn due(&self) -> Duration {
        if !self.taken {
            return OFFER_LIMIT;
        }
        COPY_LIMIT + Duration::from_nanos(self.task.errand.bytes) * RANK_COPIES as u32
    }
}

impl DeferredOps {
    /// Whether a rank has left a report for [`EndpointMemory::poll_rank_copies`], or has stopped waiting. A conductor
    /// that is about to sleep calls this behind a fence.
    pub(crate) fn has_reports(&self) -> bool {
        self.entries().iter().any(|entry| {
            let left = match &entry.state {
                WorkState::OfferedCopy(offered) => {
                    !offered.taken && !offered.task.copy_agent.copies.table().has_waiters()
                }
                WorkState::Waiting | WorkState::Planned(_) | WorkState::HeldCopy(_) => false,
            };
            left || entry.state.report().is_some()
        })
    }

    /// Time until planned work or a rank copy is due; `None` if there is neither.
    pub(crate) fn timer(&self) -> Option<Duration> {
        let due = |state: &WorkState| match state {
            WorkState::Waiting => None,
            WorkState::Planned(_) => Some(Duration::ZERO),
            WorkState::OfferedCopy(offered) => Some(offered.due().saturating_sub(offered.since.elapsed())),
            WorkState::HeldCopy(held) => held.needed_since.map(|since| HELD_LIMIT.saturating_sub(since.elapsed())),
        };
        self.entries().iter().filter_map(|entry| due(&entry.state)).min()
    }
}

impl EndpointMemory {
    /// The task of a copy between ranks of this host, if the copy may be left to the receiving rank and not all of its
    /// memory is mapped here.
    pub(super) fn task(&self, from: MemRef, to: MemRef) -> Option<CopyTask> {
        let bytes = from.len;
        if self.copy_offers.min_bytes == 0 || bytes < self.copy_offers.min_bytes {
            return None;
        }
        let (source, target) = (self.locate(from).ok()?, self.locate(to).ok()?);
        let (
            MemoryLocation::Rank { call, memory, address },
            MemoryLocation::Rank { call: other, memory: receiver, address: to },
        ) = (source, target)
        else {
            return None;
        };
        let copy_agent = |call| self.calls.get(&call).and_then(|buffers| buffers.copy_agent.clone());
        let (reads, copy_agent) = (copy_agent(call)?, copy_agent(other)?);
        let reached = |tier| matches!(tier, Tier::CrossMemory | Tier::MemoryDescriptor);
        let lies_here = |memory: &TieredMemory, at| memory.ranges().find(at, bytes).is_some();
        let mapped = lies_here(&memory, address) && lies_here(&receiver, to);
        if !reached(memory.tier()) || !reached(receiver.tier()) || mapped {
            return None;
        }
        let (proof, pid) = (memory.proof()?, reads.pid.as_raw_nonzero().get().unsigned_abs());
        let errand = RankCopy { pid, source: address, target: to, bytes, mark: proof.address, nonce: proof.nonce };
        Some(CopyTask { reads: reads.id, copy_agent, errand })
    }

    /// Location of a piece that is read for other ranks.
    pub(crate) fn locate_to_read(&mut self, piece: MemRef) -> Result<MemoryLocation, MemoryFault> {
        if self.must_wait([Some(piece), None]) {
            return Err(MemoryFault::Awaited);
        }
        let location = self.locate(piece)?;
        // While a fault is noted no piece is sent: the fault is reported to the machine first.
        if self.faults.is_empty() { Ok(location) } else { Err(MemoryFault::Awaited) }
    }

    /// Handles a rank's copy of its memory: rank copies that name the old addresses are not offered any more. A rank
    /// copy that is already taken stays valid if it reads the old memory, and is done again if it writes there.
    pub(super) fn recall(&mut self, owner: MemoryOwner) {
        for at in 0..self.deferred_ops.entries().len() {
            if self.deferred_ops.entries()[at].touches(owner)
                && self.copy_offers.withdraw(self.deferred_ops.state(at))
                && let WorkState::Planned(task) = self.deferred_ops.state(at)
            {
                *task = None;
            }
        }
    }

    pub(super) fn finish_now(&mut self, at: usize) {
        if self.copy_offers.withdraw(self.deferred_ops.state(at)) {
            return self.attempt_at(at);
        }
        match await_report(self.deferred_ops.state(at)) {
            Some(report) => {
                if !self.finish(at, report) {
                    self.attempt_at(at);
                }
            }
            None => self.hold_copy(at),
        }
    }

    /// Handles the rank's report on a rank copy. Returns false if the conductor must do the copy, which is planned
    /// then.
    fn finish(&mut self, at: usize, report: CopyOutcome) -> bool {
        let DeferredEntry { work, state, .. } = &self.deferred_ops.entries()[at];
        let WorkState::OfferedCopy(OfferedCopy { task, slot, .. }) = state else { unreachable!("it was reported") };
        self.copy_offers.free_slot(&task.copy_agent, *slot);
        match report {
            // The rank copy wrote to the old buffer, which the rank has replaced by a copy (GP-9).
            CopyOutcome::Done if work.calls()[1].is_some_and(|call| self.moved(call)) => {}
            CopyOutcome::Done => {
                self.copy_offers.copies.by_ranks += 1;
                self.copy_offers.copies.bytes_by_ranks += task.errand.bytes;
                self.deferred_ops.remove(at);
                return true;
            }
            CopyOutcome::Failed => {
                tracing::debug!(pid = ?task.copy_agent.pid, "a rank cannot copy from another");
                self.copy_offers.copies.failed += 1;
                self.copy_offers.refused.insert((task.reads, task.copy_agent.id));
            }
        }
        *self.deferred_ops.state(at) = WorkState::Planned(None);
        false
    }

    /// Whether the call uses the rank's copy of its buffers, or will use it.
    fn moved(&self, call: CallId) -> bool {
        let staged =
            |buffers: &PostedBuffers| buffers.memory.as_ref().is_some_and(|memory| memory.tier() == Tier::Staging);
        self.deferred_ops.awaits(call)
            || self.calls.get(&call).is_some_and(|buffers| buffers.copied.is_some() || staged(buffers))
    }

    /// Copies the bytes of a rank copy to this process, because the rank has begun the copy and does not end it.
    fn hold_copy(&mut self, at: usize) {
        let DeferredEntry { work, state, .. } = self.deferred_ops.remove(at);
        let MemoryWork::Copy { from, to } = work else { unreachable!("errands are copies") };
        let (copy_agent, slot) = state.agent_and_slot().expect("it was taken");
        tracing::debug!(pid = ?copy_agent.pid, "a rank does not end an errand");
        let held = WorkState::HeldCopy(HeldCopy { copy_agent, slot, needed_since: None });
        let mut bytes = vec![0; usize::try_from(from.len).expect("a piece")];
        // The source may have moved since the offer.
        match self.locate(from).and_then(|source| source.read(&mut bytes)) {
            Ok(()) => self.defer_at(at, MemoryWork::Deliver { bytes, to }, held),
            Err(fault) => {
                self.note_fault(fault);
                self.defer_at(at, work, held);
            }
        }
    }

    /// Begins a turn: polls the rank copies, does copies whose offer was withdrawn, and continues planned work. Returns
    /// whether anything was done.
    pub(crate) fn poll_rank_copies(&mut self) -> bool {
        let mut found = false;
        for at in (0..self.deferred_ops.entries().len()).rev() {
            found |= self.poll_rank_copy(at);
        }
        found |= self.begin_turn();
        if found {
            self.retry();
        }
        let copy_offers = &mut self.copy_offers;
        for (copy_agent, slot) in std::mem::take(&mut copy_offers.forgotten) {
            match copy_agent.copies.table().outcome(slot) {
                Some(_) => copy_offers.free_slot(&copy_agent, slot),
                None => copy_offers.forgotten.push((copy_agent, slot)),
            }
        }
        found
    }

    /// Polls the rank copy at `at`; returns whether anything was done.
    fn poll_rank_copy(&mut self, at: usize) -> bool {
        let state = self.deferred_ops.state(at);
        let report = state.report();
        match (state, report) {
            (WorkState::Waiting | WorkState::Planned(_), _) => return false,
            (WorkState::OfferedCopy(_), Some(report)) => {
                self.finish(at, report);
            }
            (WorkState::OfferedCopy(offered), None) => {
                let (waits, age) = (offered.task.copy_agent.copies.table().has_waiters(), offered.since.elapsed());
                if offered.taken && age >= offered.due() {
                    self.hold_copy(at);
                } else if offered.taken
                    || (waits && age < OFFER_LIMIT)
                    || !self.copy_offers.withdraw(self.deferred_ops.state(at))
                {
                    return false;
                } else {
                    // The copy is not offered again: a stopped rank would count as waiting for ever.
                    *self.deferred_ops.state(at) = WorkState::Planned(None);
                }
            }
            (state @ WorkState::HeldCopy(_), Some(_)) => {
                let (copy_agent, slot) = state.agent_and_slot().expect("it is held for a rank");
                *state = WorkState::Waiting;
                self.copy_offers.free_slot(&copy_agent, slot);
            }
            (WorkState::HeldCopy(held), None) => {
                if held.needed_since.is_none_or(|since| since.elapsed() < HELD_LIMIT) {
                    return false;
                }
                held.needed_since = None;
                limited!(warn, pid = ?held.copy_agent.pid, "a rank that has stopped in a copy holds others up");
                let receiver = self.deferred_ops.entries()[at].work.calls()[1].expect("errands go to ranks");
                self.faults.push((receiver, FaultCause::Buffer));
            }
        }
        true
    }

    /// Drops the work that depends on a failed call. With `gone` the call's rank is gone, and its buffers are not
    /// accessed any more. Returns the calls of other ranks that will never receive the bytes of this call.
    pub(crate) fn drop_call_work(&mut self, call: CallId, gone: bool) -> Vec<CallId> {
        if let Some(buffers) = self.calls.get_mut(&call).filter(|_| gone) {
            buffers.memory = None;
            self.withdrawn = true;
        }
        for at in (0..self.deferred_ops.entries().len()).rev().filter(|_| gone) {
            if self.deferred_ops.entries()[at].is_for_another_than(call)
                && !self.copy_offers.withdraw(self.deferred_ops.state(at))
                && await_report(self.deferred_ops.state(at)) == Some(CopyOutcome::Done)
            {
                self.finish(at, CopyOutcome::Done);
            }
        }
        let (dropped, missing) = self.deferred_ops.drop_call_work(call);
        if !dropped.is_empty() {
            dropped.into_iter().for_each(|entry| self.copy_offers.forget(entry.state));
            self.retry();
        }
        missing
    }
}

/// Offers rank copies to their ranks. The next turn notices a rank that has stopped waiting meanwhile.
pub(super) fn offer(new_offers: NewOffers) {
    for (copy_agent, slots) in new_offers.into_values() {
        copy_agent.copies.offer(slots);
    }
}

/// Waits for the report on a rank copy, at most `REPORT_WAIT`.
fn await_report(state: &WorkState) -> Option<CopyOutcome> {
    let until = Instant::now() + REPORT_WAIT;
    loop {
        let report = state.report();
        if report.is_some() || Instant::now() >= until {
            return report;
        }
        std::thread::yield_now();
    }
}
