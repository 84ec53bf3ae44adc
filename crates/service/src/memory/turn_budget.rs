//! Long work on memory, which is split into pieces and done over several turns. So attaching, the death of a rank,
//! requests and stops wait for one turn's bytes at most.
//!
//! Planned work stays in the [`deferred_ops`](crate::memory::deferred_ops) in its order, and calls that it names end
//! only after it. Copies that the receiving rank may do itself ([`rank_copies`](crate::memory::rank_copies)) are
//! planned whatever their length. They are all offered at once, after the machine's orders have been polled. Receivers
//! take turns, so gigabytes for one receiver do not delay other receivers.
//!
//! | planned work | on | goes to |
//! |---|---|---|
//! | a copy of a rank that waits and has a free slot | its turn | offered |
//! | other | its turn | done |
//! | any | [`TURN_BYTES`] bytes of this turn are done | planned, for the next turn |
//! | must follow work that waits for a rank | its turn | waiting |
//! | any | its bytes are sent, or overwritten by a payload | done at once, with the work before it |
//!
//! Invariant: work is done after all work that must precede it.

use std::collections::BTreeMap;
use std::ops::Bound;

use outboard_shm::rank_copy::RANK_COPIES;

use crate::memory::EndpointMemory;
use crate::memory::combine::{self, UnfinishedWork};
use crate::memory::deferred_ops::{DeferredEntry, MemoryOwner, MemoryWork};
use crate::memory::rank_copies::{NewOffers, WorkState, offer};

#[cfg(test)]
mod tests;

/// Bytes of one piece, unless there would be more pieces than a rank has slots for rank copies.
const PIECE_BYTES: u64 = 4 << 20;
/// If this many pieces are unfinished, new work is not split, because each piece is compared with all others.
const MAX_PIECES: usize = 1024;
/// Bytes that one turn copies and combines: some milliseconds of work.
const TURN_BYTES: u64 = 8 << 20;
/// Work up to this length is done even in a full turn, because ranks can request only a limited amount in a turn.
const SHORT_BYTES: u64 = 64 << 10;

/// Amount of work done in this turn.
#[derive(Debug, Default)]
pub(super) struct TurnBudget {
    /// Bytes that were copied and combined in this turn.
    done: u64,
    /// Receiver of the most recent bytes.
    served: Option<MemoryOwner>,
}

impl TurnBudget {
    fn left(&self) -> u64 {
        TURN_BYTES.saturating_sub(self.done)
    }

    pub(super) fn note_done(&mut self, work: &MemoryWork) {
        self.done += work.bytes();
    }
}

impl EndpointMemory {
    /// Plans a copy that the receiving rank may do. Also plans work whose bytes, together with the planned work before
    /// it, exceed the rest of this turn. Returns false if the work must be done now, or must wait.
    pub(super) fn plan(&mut self, work: &MemoryWork) -> bool {
        let bytes = match work {
            MemoryWork::Copy { .. } | MemoryWork::Reduce(_) | MemoryWork::Unstage { .. } => work.bytes(),
            // A deferred delivery would have to keep its payload, so deliveries are never planned.
            MemoryWork::Deliver { .. } => return false,
        };
        let Some(before) = self.planned_before(work) else { return false };
        let full = self.deferred_ops.entries().len() >= MAX_PIECES;
        let task = match work {
            MemoryWork::Copy { from, to } if before == 0 && !full => self.task(*from, *to),
            _ => None,
        };
        let long = before + bytes > self.turn_budget.left() && (before > 0 || bytes > SHORT_BYTES);
        if task.is_none() && !long {
            return false;
        }
        // The pieces hold whole elements, and there are at most as many pieces as a rank has slots.
        let most = PIECE_BYTES.max(bytes.div_ceil(RANK_COPIES as u64)).next_multiple_of(combine::PIECE_BYTES);
        let most = if full { bytes } else { most };
        let end = self.deferred_ops.entries().len();
        match work {
            MemoryWork::Unstage { id } => self.defer_at(end, MemoryWork::Unstage { id: *id }, WorkState::Planned(None)),
            _ => (0..bytes).step_by(most as usize).zip(end..).for_each(|(start, at)| {
                let len = (bytes - start).min(most);
                let task = task.as_ref().map(|task| task.piece(start, len));
                self.defer_at(at, work.piece(start, len), WorkState::Planned(task));
            }),
        }
        true
    }

    /// Sum of the bytes of the planned work and rank copies that must precede the work, counting at least one byte for
    /// each. `None` if the work must follow other deferred work.
    fn planned_before(&self, work: &MemoryWork) -> Option<u64> {
        if self.deferred_ops.is_empty() {
            return Some(0);
        }
        if self.is_awaited(work.read_and_written()) {
            return None;
        }
        let extents = self.extents(work.read_and_written());
        self.deferred_ops.before(&extents).try_fold(0, |bytes, entry| match entry.state {
            WorkState::Planned(_) | WorkState::OfferedCopy(_) => Some(bytes + entry.work.bytes().max(1)),
            WorkState::Waiting | WorkState::HeldCopy(_) => None,
        })
    }

    /// Begins a turn with a new budget; returns whether anything was done.
    pub(super) fn begin_turn(&mut self) -> bool {
        self.turn_budget.done = 0;
        self.advance_planned_work()
    }

    /// Offers planned copies to waiting ranks, all at once, and does other planned work within the turn's budget. Ranks
    /// that begin to wait meanwhile are also offered their copies. Returns whether anything was done.
    pub(super) fn advance_planned_work(&mut self) -> bool {
        if self.deferred_ops.entries().is_empty() || self.turn_budget.left() == 0 {
            return false;
        }
        let mut new_offers = NewOffers::new();
        for at in 0..self.deferred_ops.entries().len() {
            if matches!(self.deferred_ops.entries()[at].state, WorkState::Planned(Some(_)))
                && !self.deferred_ops.is_behind(at)
            {
                self.copy_offers.write(self.deferred_ops.state(at), &mut new_offers);
            }
        }
        offer(new_offers);
        let mut moved = false;
        while self.turn_budget.left() > 0 {
            let Some(at) = self.next_planned() else {
                // All remaining planned work must follow work that waits for ranks.
                let planned = self.deferred_ops.states().filter(|state| matches!(state, WorkState::Planned(_)));
                planned.for_each(|state| *state = WorkState::Waiting);
                return moved;
            };
            let mut new_offers = NewOffers::new();
            self.copy_offers.write(self.deferred_ops.state(at), &mut new_offers);
            offer(new_offers);
            if let WorkState::Planned(_) = self.deferred_ops.state(at) {
                self.attempt_at(at);
                moved = true;
            }
        }
        moved
    }

    /// Index of the first planned work of the receiver whose turn it is.
    fn next_planned(&mut self) -> Option<usize> {
        let mut firsts = BTreeMap::new();
        for (at, entry) in self.deferred_ops.entries().iter().enumerate() {
            let receiver = entry.extents[1].map(|extent| extent.owner);
            let planned = matches!(entry.state, WorkState::Planned(_)) && !firsts.contains_key(&receiver);
            if planned && !self.deferred_ops.is_behind(at) {
                firsts.insert(receiver, at);
            }
        }
        let later = firsts.range((Bound::Excluded(self.turn_budget.served), Bound::Unbounded)).next();
        let (receiver, at) = later.or_else(|| firsts.first_key_value())?;
        self.turn_budget.served = *receiver;
        Some(*at)
    }

    /// Does work that no other work must precede. Work that has to wait keeps its place.
    pub(super) fn attempt_at(&mut self, at: usize) {
        let work = self.deferred_ops.remove(at).work;
        if let Err(UnfinishedWork { fault, left }) = self.attempt(work) {
            self.note_fault(fault);
            if self.is_mendable(fault) {
                left.into_iter().rev().for_each(|work| self.defer_at(at, work, WorkState::Waiting));
            }
        }
    }

    /// Does this work now, including rank copies, after all work that must precede it. If a rank is in the middle of a
    /// copy, the bytes are copied to this process instead. Work is left undone if it must follow work that waits for a
    /// rank.
    pub(super) fn do_needed(&mut self, which: impl Fn(&DeferredEntry) -> bool) {
        let count = self.deferred_ops.entries().len();
        for at in self.deferred_ops.needed(which) {
            let at = at + self.deferred_ops.entries().len() - count;
            if self.deferred_ops.entries()[at].state.may_be_done() && !self.deferred_ops.is_behind(at) {
                self.finish_now(at);
            }
        }
    }
}
