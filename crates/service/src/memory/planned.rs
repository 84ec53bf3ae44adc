//! Long work on memory, done in pieces over several turns. So attaching, the death of a rank, requests and stops wait
//! for no more than a turn's bytes.
//!
//! Planned work stands in the [`backlog`](crate::memory::backlog) in its order, and calls that it names end after it.
//! Copies that the receiving rank may do itself ([`errands`](crate::memory::errands)) are planned whatever their
//! length. At the end of the orders all are offered at once. Receivers take turns, so the gigabytes of one receiver do
//! not delay another.
//!
//! | planned work | on | goes to |
//! |---|---|---|
//! | is a copy of a rank that waits and has a free slot | its turn | offered |
//! | other | its turn | done |
//! | any | [`TURN`] bytes of this turn are done | planned, for the next turn |
//! | must follow work that waits for a rank | its turn | waiting |
//! | any | its bytes are sent, or overwritten by a payload | done at once, with the work before it |
//!
//! Invariant: work is done after all work that must precede it.

use std::collections::BTreeMap;
use std::ops::Bound;

use outboard_shm::rank_copy::RANK_COPIES;

use crate::memory::Memory;
use crate::memory::backlog::{Entry, Holder, Work};
use crate::memory::combine::{self, Unfinished};
use crate::memory::errands::{Fresh, State, offer};

#[cfg(test)]
mod tests;

/// Bytes of one piece, unless that makes more pieces than a rank has slots for errands.
const PIECE: u64 = 4 << 20;
/// From this many unfinished pieces on work is not cut, because each piece is compared with all others.
const MOST: usize = 1024;
/// Bytes of a turn: some milliseconds.
const TURN: u64 = 8 << 20;
/// Shorter work is done even in a full turn, because ranks can request only so much in a turn.
const SHORT: u64 = 64 << 10;

/// Progress of this turn.
#[derive(Debug, Default)]
pub(super) struct Planned {
    /// Bytes that were copied and combined.
    done: u64,
    /// Receiver of the last of these bytes.
    served: Option<Holder>,
}

impl Planned {
    fn left(&self) -> u64 {
        TURN.saturating_sub(self.done)
    }

    pub(super) fn note_done(&mut self, work: &Work) {
        self.done += work.bytes();
    }
}

impl Memory {
    /// Plans a copy that the receiving rank may do. Plans work, too, that exceeds the rest of this turn together with
    /// the planned work before it. Returns false if the work must be done now, or waits.
    pub(super) fn plan(&mut self, work: &Work) -> bool {
        let bytes = match work {
            Work::Copy { .. } | Work::Reduce(_) | Work::Unstage { .. } => work.bytes(),
            // A deferred delivery would have to keep its payload.
            Work::Deliver { .. } => return false,
        };
        let Some(before) = self.planned_before(work) else { return false };
        let full = self.backlog.entries().len() >= MOST;
        let task = match work {
            Work::Copy { from, to } if before == 0 && !full => self.task(*from, *to),
            _ => None,
        };
        let long = before + bytes > self.planned.left() && (before > 0 || bytes > SHORT);
        if task.is_none() && !long {
            return false;
        }
        // As many pieces as a rank has slots at most, of whole elements.
        let most = PIECE.max(bytes.div_ceil(RANK_COPIES as u64)).next_multiple_of(combine::PIECE);
        let most = if full { bytes } else { most };
        let end = self.backlog.entries().len();
        match work {
            Work::Unstage { id } => self.put_off(end, Work::Unstage { id: *id }, State::Planned(None)),
            _ => (0..bytes).step_by(most as usize).zip(end..).for_each(|(start, at)| {
                let len = (bytes - start).min(most);
                let task = task.as_ref().map(|task| task.piece(start, len));
                self.put_off(at, work.piece(start, len), State::Planned(task));
            }),
        }
        true
    }

    /// Bytes of the planned work and errands that must precede the work; at least one if there are any. None if the
    /// work waits for other work.
    fn planned_before(&self, work: &Work) -> Option<u64> {
        if self.backlog.is_empty() {
            return Some(0);
        }
        if self.is_awaited(work.touched()) {
            return None;
        }
        let extents = self.extents(work.touched());
        self.backlog.before(&extents).try_fold(0, |bytes, entry| match entry.state {
            State::Planned(_) | State::Offered(_) => Some(bytes + entry.work.bytes().max(1)),
            State::Waiting | State::Held(_) => None,
        })
    }

    /// Begins a turn; returns whether anything was done.
    pub(super) fn go_on(&mut self) -> bool {
        self.planned.done = 0;
        self.set_out()
    }

    /// Offers planned copies to waiting ranks, all at once, and does other planned work as far as this turn goes. Ranks
    /// that begin to wait meanwhile are offered theirs. Returns whether anything was done.
    pub(super) fn set_out(&mut self) -> bool {
        if self.backlog.entries().is_empty() || self.planned.left() == 0 {
            return false;
        }
        let mut fresh = Fresh::new();
        for at in 0..self.backlog.entries().len() {
            if matches!(self.backlog.entries()[at].state, State::Planned(Some(_))) && !self.backlog.is_behind(at) {
                self.errands.write(self.backlog.state(at), &mut fresh);
            }
        }
        offer(fresh);
        let mut moved = false;
        while self.planned.left() > 0 {
            let Some(at) = self.next_planned() else {
                // The rest must follow work that waits for ranks.
                let planned = self.backlog.states().filter(|state| matches!(state, State::Planned(_)));
                planned.for_each(|state| *state = State::Waiting);
                return moved;
            };
            let mut fresh = Fresh::new();
            self.errands.write(self.backlog.state(at), &mut fresh);
            offer(fresh);
            if let State::Planned(_) = self.backlog.state(at) {
                self.do_here(at);
                moved = true;
            }
        }
        moved
    }

    /// The first planned work of the receiver whose turn it is.
    fn next_planned(&mut self) -> Option<usize> {
        let mut firsts = BTreeMap::new();
        for (at, entry) in self.backlog.entries().iter().enumerate() {
            let receiver = entry.extents[1].map(|extent| extent.holder);
            let planned = matches!(entry.state, State::Planned(_)) && !firsts.contains_key(&receiver);
            if planned && !self.backlog.is_behind(at) {
                firsts.insert(receiver, at);
            }
        }
        let later = firsts.range((Bound::Excluded(self.planned.served), Bound::Unbounded)).next();
        let (receiver, at) = later.or_else(|| firsts.first_key_value())?;
        self.planned.served = *receiver;
        Some(*at)
    }

    /// Does work that no other work must precede. If it has to wait, it keeps its place.
    pub(super) fn do_here(&mut self, at: usize) {
        let work = self.backlog.remove(at).work;
        if let Err(Unfinished { fault, left }) = self.attempt(work) {
            self.note(fault);
            if self.passes(fault) {
                left.into_iter().rev().for_each(|work| self.put_off(at, work, State::Waiting));
            }
        }
    }

    /// Does this work now, errands too, after all work that must precede it. If a rank is copying, the bytes are copied
    /// to this process instead. Work behind work that waits for a rank is left.
    pub(super) fn do_now(&mut self, which: impl Fn(&Entry) -> bool) {
        let count = self.backlog.entries().len();
        for at in self.backlog.needed(which) {
            let at = at + self.backlog.entries().len() - count;
            if self.backlog.entries()[at].state.may_be_done() && !self.backlog.is_behind(at) {
                self.finish_now(at);
            }
        }
    }
}
