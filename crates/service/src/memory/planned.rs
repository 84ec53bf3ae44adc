//! Long work on memory, done piece by piece and turn by turn: whoever attaches, dies, asks or stops us meanwhile waits
//! for no more than a turn's bytes.
//!
//! What is planned stands in the [`backlog`](crate::memory::backlog) in its order; the calls that it names end behind
//! it. Copies that the receiving rank may do itself ([`errands`](crate::memory::errands)) are planned whatever their
//! length, until the end of the orders, so that all are offered at once. Receivers have their turns one after another:
//! somebody's gigabytes hold up nobody else's.
//!
//! | planned work | on | goes to |
//! |---|---|---|
//! | is a copy of a rank that waits and has a place free | its turn | offered |
//! | else | its turn | done |
//! | any | [`TURN`] bytes of this turn are done | planned, for the next turn |
//! | comes behind what waits for a rank | its turn | waiting |
//! | any | others need its bytes: they are sent, or overwritten by what came | done at once, with what comes before it |
//!
//! Invariant: work is done behind all that comes before it.

use std::collections::BTreeMap;
use std::ops::Bound;

use outboard_shm::errand::ERRANDS;

use crate::memory::Memory;
use crate::memory::backlog::{Entry, Holder, Work};
use crate::memory::combine::{self, Unfinished};
use crate::memory::errands::{Fresh, State, offer};

#[cfg(test)]
mod tests;

/// Bytes of one piece, where that makes no more pieces than a rank has places for errands.
const PIECE: u64 = 4 << 20;
/// Pieces that are not done from which on work is not cut any more: each piece of work is compared with all of them.
const MOST: usize = 1024;
/// Bytes of a turn: some milliseconds.
const TURN: u64 = 8 << 20;
/// What is no longer than this is done however much this turn has done: ranks can only ask for so much in a turn.
const SHORT: u64 = 64 << 10;

/// How far this turn has come.
#[derive(Debug, Default)]
pub(super) struct Planned {
    /// Bytes that were copied and combined.
    done: u64,
    /// Who received the last of them.
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
    /// Plans a copy that the receiving rank may do, and work that is longer than what is left of this turn, with the
    /// planned work that comes before it. False if it is to be done now, or waits.
    pub(super) fn plan(&mut self, work: &Work) -> bool {
        let bytes = match work {
            Work::Copy { .. } | Work::Reduce(_) | Work::Unstage { .. } => work.bytes(),
            // Its payload would have to be kept.
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
        // No more than a rank has places for, however long it is; whole elements.
        let most = PIECE.max(bytes.div_ceil(ERRANDS as u64)).next_multiple_of(combine::PIECE);
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

    /// Bytes of the planned work and the errands that come before, at least one where there are some; none where the
    /// work waits for something else.
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

    /// A turn begins; whether anything was done.
    pub(super) fn go_on(&mut self) -> bool {
        self.planned.done = 0;
        self.set_out()
    }

    /// Offers what is planned to the ranks that wait, all at once, and does the rest, whose ranks may have come to wait
    /// meanwhile, as far as this turn goes; whether anything was done.
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
                // What is left comes behind what waits for ranks.
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

    /// The first of the receiver whose turn it is.
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

    /// Does work that nothing comes before. It keeps its place where it has to wait.
    pub(super) fn do_here(&mut self, at: usize) {
        let work = self.backlog.remove(at).work;
        if let Err(Unfinished { fault, left }) = self.attempt(work) {
            self.note(fault);
            if self.passes(fault) {
                left.into_iter().rev().for_each(|work| self.put_off(at, work, State::Waiting));
            }
        }
    }

    /// Does this work now, errands too, behind all that comes before it; or brings the bytes here that a rank is
    /// copying. Work behind something that waits for a rank is left.
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
