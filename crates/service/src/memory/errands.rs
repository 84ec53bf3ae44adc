//! Copies between ranks of this host that the receiving rank does itself while it waits in the library (SP-6).
//!
//! | a copy is | on | goes to |
//! |---|---|---|
//! | planned | its turn, its rank waits and has a free slot | offered |
//! | planned | its turn otherwise | done by the conductor ([`crate::memory::planned`]) |
//! | offered | the rank's report | done; after a failure planned, for the conductor |
//! | offered | the rank stops waiting, or does not take it within [`PATIENCE`] | withdrawn: planned |
//! | planned, or offered | a rank has copied memory that it names (GP-9) | planned, for the conductor |
//! | offered, and taken | no report within [`STALL`] | held: its bytes are copied to this process, its source is free |
//! | held | the rank's report | done: its bytes are delivered again from here, with all work that waited for it |
//! | held | other work needs its bytes for [`LIMIT`] | the rank's call fails by name |
//! | any | the end of its call | forgotten; a slot that is taken becomes free with its report |
//!
//! The machine counts an ordered copy as done. So a copy stands in the [`backlog`](crate::memory::backlog) until its
//! bytes are in place, where later work on its bytes finds it. A rank's report matters for its own buffers only. A
//! false report, or a missing one, harms the rank's call alone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_fabric::limited;
use outboard_proto::{CallId, MemRef};
use outboard_shm::control;
use outboard_shm::memory::{Tier, TieredMemory};
use outboard_shm::rank_copy::{CopyOutcome, RANK_COPIES, RankCopy};
use rustix::process::Pid;

use crate::memory::backlog::{Backlog, Entry, Holder, Work};
use crate::memory::{Buffers, Cause, Fault, Memory, Place};
use crate::ranks::ConnectionId;
use crate::telemetry::statistics::Copies;

#[cfg(test)]
mod tests;

/// A waiting rank may leave an errand for this long: the rank may have no processor.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 5 });
/// Time limit of an errand, plus a nanosecond for each byte of this errand and of the errands before it.
const STALL: Duration = Duration::from_millis(100);
/// Time that the conductor waits for an errand whose bytes it needs; most errands take less.
const MOMENT: Duration = Duration::from_millis(1);
/// Time for which a rank that was stopped in the middle of an errand may delay others.
const LIMIT: Duration = Duration::from_secs(10);

/// A rank that can do errands.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) id: ConnectionId,
    pub(crate) pid: Pid,
    pub(crate) errands: control::RankCopies,
}

/// A copy that may become an errand.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// The rank that would copy, and the rank whose memory it would read.
    runner: Arc<Runner>,
    reads: ConnectionId,
    errand: RankCopy,
}

/// State of work that is not done.
#[derive(Debug)]
pub(super) enum State {
    /// Work that waits for a rank's copy, or for work before it.
    Waiting,
    /// Work whose turn has not come. A copy with a task may be offered to its rank.
    Planned(Option<Task>),
    /// A copy that is offered to its rank.
    Offered(Offered),
    /// The bytes of a copy, kept until the rank releases its own buffer.
    Held(Held),
}

#[derive(Debug)]
pub(super) struct Offered {
    task: Task,
    place: u32,
    since: Instant,
    taken: bool,
}

#[derive(Debug)]
pub(super) struct Held {
    runner: Arc<Runner>,
    place: u32,
    /// Time since when other work needs the bytes of the errand.
    pub(super) wanted: Option<Instant>,
}

/// Slots that were written and must be offered, one bit each.
pub(super) type Fresh = HashMap<ConnectionId, (Arc<Runner>, u64)>;

/// State of the ranks' errands, beside the [`Backlog`].
#[derive(Debug, Default)]
pub(crate) struct Errands {
    /// Smallest copy that is left to a rank; 0 disables such copies.
    pub(crate) least: u64,
    /// Errands that were taken for calls which have ended.
    forgotten: Vec<(Arc<Runner>, u32)>,
    /// Slots that are not free, one bit each.
    used: HashMap<ConnectionId, u64>,
    /// Pairs of source and reader whose copies failed.
    refused: HashSet<(ConnectionId, ConnectionId)>,
    pub(crate) copies: Copies,
}

impl State {
    /// Whether the service process may do the work itself at once.
    pub(super) fn may_be_done(&self) -> bool {
        match self {
            State::Planned(_) | State::Offered(_) => true,
            State::Waiting | State::Held(_) => false,
        }
    }

    /// The rank that may have the errand, and its slot.
    fn taken_by(&self) -> Option<(Arc<Runner>, u32)> {
        match self {
            State::Waiting | State::Planned(_) => None,
            State::Offered(Offered { task: Task { runner, .. }, place, .. })
            | State::Held(Held { runner, place, .. }) => Some((Arc::clone(runner), *place)),
        }
    }

    /// The rank's report on the errand.
    fn report(&self) -> Option<CopyOutcome> {
        let (runner, place) = self.taken_by()?;
        runner.errands.table().outcome(place)
    }
}

impl Task {
    /// The task for a part of its bytes.
    pub(super) fn piece(&self, start: u64, bytes: u64) -> Task {
        let RankCopy { source, target, .. } = self.errand;
        Task {
            errand: RankCopy { source: source + start, target: target + start, bytes, ..self.errand },
            ..self.clone()
        }
    }
}

impl Errands {
    fn free_place(&mut self, runner: &Runner, place: u32) {
        if let Some(used) = self.used.get_mut(&runner.id) {
            *used &= !(1 << place);
        }
    }

    /// Writes a planned errand into the rank's table. Does nothing if the rank does not wait, cannot read the source,
    /// or has no free slot.
    pub(super) fn write(&mut self, state: &mut State, fresh: &mut Fresh) {
        let State::Planned(Some(task)) = state else { return };
        let Task { runner, reads, errand } = task;
        if self.refused.contains(&(*reads, runner.id)) || !runner.errands.table().has_waiters() {
            return;
        }
        let used = self.used.entry(runner.id).or_default();
        let place = used.trailing_ones();
        if place as usize >= RANK_COPIES {
            return;
        }
        *used |= 1 << place;
        runner.errands.table().write(place, errand);
        fresh.entry(runner.id).or_insert_with(|| (Arc::clone(runner), 0)).1 |= 1 << place;
        *state = State::Offered(Offered { task: task.clone(), place, since: Instant::now(), taken: false });
    }

    /// Withdraws an offer, so that it is planned as before. Returns false if the rank has taken the errand.
    fn withdraw(&mut self, state: &mut State) -> bool {
        let State::Offered(Offered { task, place, taken, .. }) = state else { return true };
        *taken |= !task.runner.errands.table().withdraw(*place);
        if *taken {
            return false;
        }
        self.copies.taken_back += 1;
        self.free_place(&task.runner, *place);
        *state = State::Planned(Some(task.clone()));
        true
    }

    /// The work is not needed any more. If a rank has taken it as an errand, its slot stays in use until the report.
    pub(super) fn forget(&mut self, mut state: State) {
        if !self.withdraw(&mut state) || matches!(state, State::Held(_)) {
            self.forgotten.extend(state.taken_by());
        }
    }

    /// The rank is gone.
    pub(crate) fn forget_runner(&mut self, id: ConnectionId) {
        self.used.remove(&id);
        self.refused.retain(|(reads, runs)| *reads != id && *runs != id);
        self.forgotten.retain(|(runner, _)| runner.id != id);
    }
}

impl Offered {
    /// Time from the offer to the conductor's reaction.
    fn due(&self) -> Duration {
        if !self.taken {
            return PATIENCE;
        }
        STALL + Duration::from_nanos(self.task.errand.bytes) * RANK_COPIES as u32
    }
}

impl Backlog {
    /// Whether a rank has left news for [`Memory::attend`]. A conductor that is about to sleep checks this behind a
    /// fence.
    pub(crate) fn has_news(&self) -> bool {
        self.entries().iter().any(|entry| {
            let left = match &entry.state {
                State::Offered(offered) => !offered.taken && !offered.task.runner.errands.table().has_waiters(),
                State::Waiting | State::Planned(_) | State::Held(_) => false,
            };
            left || entry.state.report().is_some()
        })
    }

    /// Time until planned work or an errand is due; none if neither is.
    pub(crate) fn timer(&self) -> Option<Duration> {
        let due = |state: &State| match state {
            State::Waiting => None,
            State::Planned(_) => Some(Duration::ZERO),
            State::Offered(offered) => Some(offered.due().saturating_sub(offered.since.elapsed())),
            State::Held(held) => held.wanted.map(|since| LIMIT.saturating_sub(since.elapsed())),
        };
        self.entries().iter().filter_map(|entry| due(&entry.state)).min()
    }
}

impl Memory {
    /// The task of a copy between ranks of this host, if not all of the memory is mapped.
    pub(super) fn task(&self, from: MemRef, to: MemRef) -> Option<Task> {
        let bytes = from.len;
        if self.errands.least == 0 || bytes < self.errands.least {
            return None;
        }
        let (source, target) = (self.place(from).ok()?, self.place(to).ok()?);
        let (Place::Rank { call, memory, address }, Place::Rank { call: other, memory: receiver, address: to }) =
            (source, target)
        else {
            return None;
        };
        let runner = |call| self.calls.get(&call).and_then(|buffers| buffers.runner.clone());
        let (reads, runner) = (runner(call)?, runner(other)?);
        let reached = |tier| matches!(tier, Tier::CrossMemory | Tier::MemoryDescriptor);
        let lies_here = |memory: &TieredMemory, at| memory.ranges().find(at, bytes).is_some();
        let mapped = lies_here(&memory, address) && lies_here(&receiver, to);
        if !reached(memory.tier()) || !reached(receiver.tier()) || mapped {
            return None;
        }
        let (proof, pid) = (memory.proof()?, reads.pid.as_raw_nonzero().get().unsigned_abs());
        let errand = RankCopy { pid, source: address, target: to, bytes, mark: proof.address, nonce: proof.nonce };
        Some(Task { reads: reads.id, runner, errand })
    }

    /// Memory of a piece that is read for others.
    pub(crate) fn place_to_read(&mut self, piece: MemRef) -> Result<Place, Fault> {
        if self.must_wait([Some(piece), None]) {
            return Err(Fault::Awaited);
        }
        let place = self.place(piece)?;
        // A piece with a fault is not sent: the fault is reported to the machine first.
        if self.faults.is_empty() { Ok(place) } else { Err(Fault::Awaited) }
    }

    /// This memory has moved: errands that name its old place are not offered any more. An errand that is taken stays
    /// valid if it reads the old place, and is done again if it writes there.
    pub(super) fn recall(&mut self, holder: Holder) {
        for at in 0..self.backlog.entries().len() {
            if self.backlog.entries()[at].touches(holder)
                && self.errands.withdraw(self.backlog.state(at))
                && let State::Planned(task) = self.backlog.state(at)
            {
                *task = None;
            }
        }
    }

    pub(super) fn finish_now(&mut self, at: usize) {
        if self.errands.withdraw(self.backlog.state(at)) {
            return self.do_here(at);
        }
        match report_within_a_moment(self.backlog.state(at)) {
            Some(report) => {
                if !self.finish(at, report) {
                    self.do_here(at);
                }
            }
            None => self.hold(at),
        }
    }

    /// Handles the rank's report on an errand. Returns false if the conductor must copy; the copy is planned then.
    fn finish(&mut self, at: usize, report: CopyOutcome) -> bool {
        let Entry { work, state, .. } = &self.backlog.entries()[at];
        let State::Offered(Offered { task, place, .. }) = state else { unreachable!("it was reported") };
        self.errands.free_place(&task.runner, *place);
        match report {
            // The errand wrote to memory that the rank replaces by its copy (GP-9).
            CopyOutcome::Done if work.calls()[1].is_some_and(|call| self.moved(call)) => {}
            CopyOutcome::Done => {
                self.errands.copies.by_ranks += 1;
                self.errands.copies.bytes_by_ranks += task.errand.bytes;
                self.backlog.remove(at);
                return true;
            }
            CopyOutcome::Failed => {
                tracing::debug!(pid = ?task.runner.pid, "a rank cannot copy from another");
                self.errands.copies.failed += 1;
                self.errands.refused.insert((task.reads, task.runner.id));
            }
        }
        *self.backlog.state(at) = State::Planned(None);
        false
    }

    /// Whether the buffers of the call are, or will be, in the rank's copy.
    fn moved(&self, call: CallId) -> bool {
        let staged = |buffers: &Buffers| buffers.memory.as_ref().is_some_and(|memory| memory.tier() == Tier::Staging);
        self.backlog.awaits(call)
            || self.calls.get(&call).is_some_and(|buffers| buffers.copied.is_some() || staged(buffers))
    }

    /// Copies the bytes of an errand to this process, because the rank has begun it and does not end it.
    fn hold(&mut self, at: usize) {
        let Entry { work, state, .. } = self.backlog.remove(at);
        let Work::Copy { from, to } = work else { unreachable!("errands are copies") };
        let (runner, place) = state.taken_by().expect("it was taken");
        tracing::debug!(pid = ?runner.pid, "a rank does not end an errand");
        let held = State::Held(Held { runner, place, wanted: None });
        let mut bytes = vec![0; usize::try_from(from.len).expect("a piece")];
        // The source may have moved since.
        match self.place(from).and_then(|source| source.read(&mut bytes)) {
            Ok(()) => self.put_off(at, Work::Deliver { bytes, to }, held),
            Err(fault) => {
                self.note(fault);
                self.put_off(at, work, held);
            }
        }
    }

    /// Begins a turn: polls the ranks' errands, does withdrawn ones, and continues planned work. Returns whether
    /// anything was done.
    pub(crate) fn attend(&mut self) -> bool {
        let mut found = false;
        for at in (0..self.backlog.entries().len()).rev() {
            found |= self.attend_to(at);
        }
        found |= self.go_on();
        if found {
            self.retry();
        }
        let errands = &mut self.errands;
        for (runner, place) in std::mem::take(&mut errands.forgotten) {
            match runner.errands.table().outcome(place) {
                Some(_) => errands.free_place(&runner, place),
                None => errands.forgotten.push((runner, place)),
            }
        }
        found
    }

    /// Polls one errand; returns whether anything was done.
    fn attend_to(&mut self, at: usize) -> bool {
        let state = self.backlog.state(at);
        let report = state.report();
        match (state, report) {
            (State::Waiting | State::Planned(_), _) => return false,
            (State::Offered(_), Some(report)) => {
                self.finish(at, report);
            }
            (State::Offered(offered), None) => {
                let (waits, age) = (offered.task.runner.errands.table().has_waiters(), offered.since.elapsed());
                if offered.taken && age >= offered.due() {
                    self.hold(at);
                } else if offered.taken || (waits && age < PATIENCE) || !self.errands.withdraw(self.backlog.state(at)) {
                    return false;
                } else {
                    // It is not offered again: a stopped rank waits for ever.
                    *self.backlog.state(at) = State::Planned(None);
                }
            }
            (state @ State::Held(_), Some(_)) => {
                let (runner, place) = state.taken_by().expect("it is held for a rank");
                *state = State::Waiting;
                self.errands.free_place(&runner, place);
            }
            (State::Held(held), None) => {
                if held.wanted.is_none_or(|since| since.elapsed() < LIMIT) {
                    return false;
                }
                held.wanted = None;
                limited!(warn, pid = ?held.runner.pid, "a rank that has stopped in a copy holds others up");
                let receiver = self.backlog.entries()[at].work.calls()[1].expect("errands go to ranks");
                self.faults.push((receiver, Cause::Buffer));
            }
        }
        true
    }

    /// The call has failed. With `gone` its rank is gone, and its buffers are not accessed any more. Returns the calls
    /// of others that will never receive its bytes.
    pub(crate) fn cut_off(&mut self, call: CallId, gone: bool) -> Vec<CallId> {
        if let Some(buffers) = self.calls.get_mut(&call).filter(|_| gone) {
            buffers.memory = None;
            self.withdrawn = true;
        }
        for at in (0..self.backlog.entries().len()).rev().filter(|_| gone) {
            if self.backlog.entries()[at].is_for_another_than(call)
                && !self.errands.withdraw(self.backlog.state(at))
                && report_within_a_moment(self.backlog.state(at)) == Some(CopyOutcome::Done)
            {
                self.finish(at, CopyOutcome::Done);
            }
        }
        let (dropped, missing) = self.backlog.cut_off(call);
        if !dropped.is_empty() {
            dropped.into_iter().for_each(|entry| self.errands.forget(entry.state));
            self.retry();
        }
        missing
    }
}

/// Offers errands. The next turn notices a rank that has stopped waiting meanwhile.
pub(super) fn offer(fresh: Fresh) {
    for (runner, places) in fresh.into_values() {
        runner.errands.offer(places);
    }
}

/// Waits at most `MOMENT` for the report on an errand.
fn report_within_a_moment(state: &State) -> Option<CopyOutcome> {
    let until = Instant::now() + MOMENT;
    loop {
        let report = state.report();
        if report.is_some() || Instant::now() >= until {
            return report;
        }
        std::thread::yield_now();
    }
}
