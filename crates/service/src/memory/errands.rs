//! Copies between ranks of this host that the receiving rank does itself while it waits in the library (SP-6).
//!
//! | a copy is | on | goes to |
//! |---|---|---|
//! | planned | the end of the orders, its rank waits and has a place free | offered |
//! | planned | the end of the orders, else | done by the conductor |
//! | offered | the rank's report | done, or done by the conductor when it failed |
//! | offered | the rank waits no more, or has not taken it within [`PATIENCE`] | withdrawn, done by the conductor |
//! | offered, and taken | no report within [`STALL`] | held: its bytes are copied to here, its source is free |
//! | held | the rank's report | done: delivered again from here, with all that waited for it |
//! | held | others need what it delivers for [`LIMIT`] | the rank's call fails by name |
//! | any | the end of its call | forgotten; a place that is taken is free with its report |
//!
//! The machine believes a copy done that it has ordered. So whatever is to read what a copy writes, or to write what it
//! reads or writes, has it done first ([`Memory::make_way`]), and a call with a copy in flight has not ended. Nothing
//! that a rank writes is believed beyond its own buffers: a report that lies, or none, harms the rank's call alone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_proto::{CallId, MemRef, Region};
use outboard_shm::control;
use outboard_shm::errand::{ERRANDS, Errand, Report};
use outboard_shm::memory::{Tier, TieredMemory};
use rustix::process::Pid;

use crate::memory::deferred::{Deferred, Work};
use crate::memory::{Cause, Fault, Memory, Place};
use crate::ranks::ConnectionId;
use crate::telemetry::statistics::Copies;

#[cfg(test)]
mod tests;

/// Bytes of one errand at most, so that the conductor can help a rank that has many.
const PIECE: u64 = 4 << 20;
/// Copies that are not done, at most: each piece of work is compared with all of them.
const MOST: usize = 512;
/// How long a rank that waits may leave an errand: it may have no processor.
const PATIENCE: Duration = Duration::from_millis(5);
/// How long an errand may take, beside a nanosecond for each byte and those of the errands before it.
const STALL: Duration = Duration::from_millis(100);
/// How long the conductor waits for an errand whose bytes it needs: most take less.
const MOMENT: Duration = Duration::from_millis(1);
/// How long a rank that was stopped in the middle of an errand may hold others up.
const LIMIT: Duration = Duration::from_secs(10);

/// A rank that can do errands.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) id: ConnectionId,
    /// Its user, who may read the memory of his other ranks.
    pub(crate) user: u32,
    pub(crate) pid: Pid,
    pub(crate) errands: control::Errands,
}

/// A copy as the machine ordered it, or a piece of it, and the errand that it can be.
#[derive(Debug)]
struct Copying {
    from: MemRef,
    to: MemRef,
    source: Place,
    target: Place,
    /// The rank that would do it, and the one whose memory it would read.
    runner: Arc<Runner>,
    reads: ConnectionId,
    errand: Errand,
}

#[derive(Debug)]
struct Offered {
    copying: Copying,
    place: u32,
    since: Instant,
    taken: bool,
}

/// A copy whose bytes are in [`crate::memory::deferred`], until the rank lets go of its own buffer.
#[derive(Debug)]
struct Held {
    copying: Copying,
    place: u32,
    /// Since when somebody needs what it delivers.
    wanted: Option<Instant>,
}

/// Places that were written and are to be offered, one bit each.
type Fresh = HashMap<ConnectionId, (Arc<Runner>, u64)>;

/// What is in the way of a piece of work.
#[derive(Debug, Clone, Copy)]
enum Obstacle {
    Planned(usize),
    Offered(usize),
}

/// Copies that are not done.
#[derive(Debug, Default)]
pub(crate) struct Errands {
    /// Smallest copy that is left to a rank; 0 for none.
    pub(crate) least: u64,
    planned: VecDeque<Copying>,
    offered: Vec<Offered>,
    held: Vec<Held>,
    /// Errands that were taken for calls which have ended.
    forgotten: Vec<(Arc<Runner>, u32)>,
    /// Places that are not free, one bit each.
    used: HashMap<ConnectionId, u64>,
    /// Who could not read whose memory.
    refused: HashSet<(ConnectionId, ConnectionId)>,
    pub(crate) copies: Copies,
}

/// Whether two ranges of ranks' memory have bytes in common.
fn meet((one, bytes): (&Place, u64), (other, length): (&Place, u64)) -> bool {
    match (one, other) {
        (Place::Rank { memory, address, .. }, Place::Rank { memory: beside, address: start, .. }) => {
            Arc::ptr_eq(memory, beside) && *address < start + length && *start < address + bytes
        }
        (Place::Rank { .. } | Place::Staging { .. }, _) => false,
    }
}

impl Copying {
    fn calls(&self) -> [Option<CallId>; 2] {
        [&self.source, &self.target].map(Place::call)
    }

    /// Whether work that reads and writes there, so many bytes, comes before or behind this, but not beside it.
    fn meets(&self, (read, written): (Option<&Place>, Option<&Place>), bytes: u64) -> bool {
        let len = self.to.len;
        let written_here = |place: &Place| meet((&self.target, len), (place, bytes));
        read.is_some_and(written_here)
            || written.is_some_and(|place| written_here(place) || meet((&self.source, len), (place, bytes)))
    }
}

impl Errands {
    /// Whether nothing is in the way of anything.
    pub(super) fn is_empty(&self) -> bool {
        self.planned.is_empty() && self.offered.is_empty() && self.held.is_empty()
    }

    /// Whether the call cannot end yet.
    pub(crate) fn holds_call(&self, call: CallId) -> bool {
        let named = |copying: &Copying| copying.calls().contains(&Some(call));
        self.planned.iter().any(named) || self.offered.iter().any(|offered| named(&offered.copying))
    }

    fn obstacle(&self, places: (Option<&Place>, Option<&Place>), bytes: u64) -> Option<Obstacle> {
        let planned = || self.planned.iter().position(|copying| copying.meets(places, bytes)).map(Obstacle::Planned);
        let offered = || self.offered.iter().position(|o| o.copying.meets(places, bytes)).map(Obstacle::Offered);
        planned().or_else(offered)
    }

    fn free_place(&mut self, runner: &Runner, place: u32) {
        if let Some(used) = self.used.get_mut(&runner.id) {
            *used &= !(1 << place);
        }
    }

    /// Writes an errand where its rank will find it; gives the copy back if that does not wait, cannot read the source,
    /// or has no place free.
    fn write(&mut self, copying: Copying, fresh: &mut Fresh) -> Option<Copying> {
        let Copying { runner, reads, errand, .. } = &copying;
        if self.refused.contains(&(*reads, runner.id)) || !runner.errands.waited_for() {
            return Some(copying);
        }
        let used = self.used.entry(runner.id).or_default();
        let place = used.trailing_ones();
        if place as usize >= ERRANDS {
            return Some(copying);
        }
        *used |= 1 << place;
        runner.errands.write(place, errand);
        fresh.entry(runner.id).or_insert_with(|| (Arc::clone(runner), 0)).1 |= 1 << place;
        self.offered.push(Offered { copying, place, since: Instant::now(), taken: false });
        None
    }

    /// Withdraws an errand; false when the rank has taken it.
    fn withdraw(&mut self, offered: &mut Offered) -> bool {
        let Offered { copying, place, taken, .. } = offered;
        *taken = *taken || !copying.runner.errands.withdraw(*place);
        if !*taken {
            self.free_place(&copying.runner, *place);
        }
        !*taken
    }

    /// Nobody needs an errand any more; a rank that has taken it may still be at it.
    fn forget(&mut self, mut offered: Offered) {
        if !self.withdraw(&mut offered) {
            self.forgotten.push((offered.copying.runner, offered.place));
        }
    }

    /// The rank is gone.
    pub(crate) fn forget_runner(&mut self, id: ConnectionId) {
        self.used.remove(&id);
        self.refused.retain(|(reads, runs)| *reads != id && *runs != id);
        self.forgotten.retain(|(runner, _)| runner.id != id);
    }

    /// Somebody needs what is delivered to this call.
    pub(super) fn want(&mut self, call: CallId) {
        for held in self.held.iter_mut().filter(|held| held.copying.target.call() == Some(call)) {
            held.wanted.get_or_insert_with(Instant::now);
        }
    }

    /// Whether a rank has left something for [`Memory::attend`] since; asked behind a fence by a conductor that is
    /// about to sleep.
    pub(crate) fn has_news(&self) -> bool {
        let reported = |runner: &Runner, place| runner.errands.reported(place).is_some();
        self.held.iter().any(|held| reported(&held.copying.runner, held.place))
            || self.offered.iter().any(|offered| {
                let runner = &offered.copying.runner;
                reported(runner, offered.place) || (!offered.taken && !runner.errands.waited_for())
            })
    }

    /// Until something is to be done about errands that are not done; none where there are none.
    pub(crate) fn timer(&self) -> Option<Duration> {
        let offered = self.offered.iter().map(|offered| offered.due().saturating_sub(offered.since.elapsed()));
        let wanted = self.held.iter().filter_map(|held| held.wanted);
        offered.chain(wanted.map(|since| LIMIT.saturating_sub(since.elapsed()))).min()
    }
}

impl Offered {
    /// From its offer to what is done about it.
    fn due(&self) -> Duration {
        if !self.taken {
            return PATIENCE;
        }
        STALL + Duration::from_nanos(self.copying.to.len) * ERRANDS as u32
    }

    fn report(&self) -> Option<Report> {
        self.copying.runner.errands.reported(self.place)
    }
}

impl Memory {
    /// Keeps a copy between ranks for the end of the orders, if the rank that receives may do it; false if not.
    pub(super) fn plan(&mut self, (from, to): (MemRef, MemRef), (source, target): (&Place, &Place)) -> bool {
        if self.errands.least == 0 || from.len < self.errands.least || self.errands.offered.len() >= MOST {
            return false;
        }
        let Some((reads, runner, errand)) = self.errand(source, target, from.len) else { return false };
        for start in (0..from.len).step_by(PIECE as usize) {
            let len = (from.len - start).min(PIECE);
            let piece = |whole: MemRef| MemRef { offset: whole.offset + start, len, ..whole };
            let errand = Errand { source: errand.source + start, target: errand.target + start, bytes: len, ..errand };
            let (source, target) = (source.behind(start), target.behind(start));
            let (from, to, runner) = (piece(from), piece(to), Arc::clone(&runner));
            self.errands.planned.push_back(Copying { from, to, source, target, runner, reads, errand });
        }
        if self.errands.planned.len() >= MOST {
            self.set_out();
        }
        true
    }

    /// What the rank would be told, if both are ranks of one user here, and not all memory is mapped. Not of
    /// recordings: their starts share memory under several names, and what waits for a rank's copy (GP-9) is kept in
    /// order by name.
    fn errand(&self, source: &Place, target: &Place, bytes: u64) -> Option<(ConnectionId, Arc<Runner>, Errand)> {
        let (Place::Rank { call, memory, address }, Place::Rank { call: other, memory: receiver, address: to }) =
            (source, target)
        else {
            return None;
        };
        let own = |call: &CallId| self.calls.get(call).filter(|buffers| buffers.pieces.is_none());
        let runner = |call: &CallId| own(call).and_then(|buffers| buffers.runner.clone());
        let (reads, runner) = (runner(call)?, runner(other)?);
        let reached = |tier| matches!(tier, Tier::CrossMemory | Tier::MemoryDescriptor);
        let lies_here = |memory: &TieredMemory, at| memory.ranges().find(at, bytes).is_some();
        let mapped = lies_here(memory, *address) && lies_here(receiver, *to);
        if reads.user != runner.user || !reached(memory.tier()) || !reached(receiver.tier()) || mapped {
            return None;
        }
        let proof = memory.proof()?;
        let half = |at: usize| u64::from_ne_bytes(proof.nonce.as_chunks().0[at]);
        let (pid, nonce) = (reads.pid.as_raw_nonzero().get().unsigned_abs(), [half(0), half(1)]);
        Some((reads.id, runner, Errand { pid, source: *address, target: *to, bytes, mark: proof.address, nonce }))
    }

    /// Offers what is planned to the ranks that wait, all at once, then does the rest, whose ranks may have come to
    /// wait meanwhile.
    pub(super) fn set_out(&mut self) {
        let mut fresh = Fresh::new();
        let planned = std::mem::take(&mut self.errands.planned);
        let left = planned.into_iter().filter_map(|copying| self.errands.write(copying, &mut fresh)).collect();
        self.errands.planned = left;
        offer(fresh);
        while let Some(copying) = self.errands.planned.pop_front() {
            let mut fresh = Fresh::new();
            match self.errands.write(copying, &mut fresh) {
                None => offer(fresh),
                Some(copying) => self.copy_here(&copying),
            }
        }
    }

    /// Does a copy that no rank does.
    fn copy_here(&mut self, &Copying { from, to, .. }: &Copying) {
        let places = self.place(from).and_then(|source| Ok((source, self.place(to)?)));
        if let Err(fault) = places.and_then(|(source, target)| self.copy_between(&source, &target, from.len)) {
            // Whatever waits for its regions was ordered later.
            self.keep(fault, Work::Copy { from, to }, Deferred::push_first);
        }
    }

    /// Where a piece lies that is read for others.
    pub(crate) fn place_to_read(&mut self, piece: MemRef) -> Result<Place, Fault> {
        let place = self.make_way(Some(piece), None).and_then(|()| self.place(piece));
        match (&place, piece.region) {
            (Err(Fault::Awaited), Region::Input(call) | Region::Output(call)) => self.errands.want(call),
            // What a fault is about is not sent: the machine hears of it first.
            (Ok(_), _) if !self.faults.is_empty() => return Err(Fault::Awaited),
            (Ok(_) | Err(_), _) => {}
        }
        place
    }

    /// Sees to it that no copy which is not done stands in the way of work that reads and writes there. A copy that
    /// was may wait for a rank now: where the pieces lie is to be asked behind this.
    pub(super) fn make_way(&mut self, read: Option<MemRef>, written: Option<MemRef>) -> Result<(), Fault> {
        let Some(bytes) = read.or(written).map(|piece| piece.len).filter(|_| !self.errands.is_empty()) else {
            return Ok(());
        };
        let place = |piece: Option<MemRef>| piece.map(|piece| self.place(piece)).transpose();
        let (read, written) = (place(read)?, place(written)?);
        let places = (read.as_ref(), written.as_ref());
        while let Some(obstacle) = self.errands.obstacle(places, bytes) {
            match obstacle {
                Obstacle::Planned(at) => {
                    let copying = self.errands.planned.remove(at).expect("just found");
                    self.copy_here(&copying);
                }
                Obstacle::Offered(at) => {
                    let offered = self.errands.offered.remove(at);
                    self.finish_now(offered);
                }
            }
        }
        let keeps = |held: &Held| {
            [&read, &written]
                .into_iter()
                .flatten()
                .any(|place| meet((&held.copying.target, held.copying.to.len), (place, bytes)))
        };
        if self.errands.held.iter().any(keeps) { Err(Fault::Awaited) } else { Ok(()) }
    }

    /// The rank has copied what its calls need of this memory: no copy from there or to there is left to anybody, since
    /// what follows lies elsewhere.
    pub(super) fn finish_copies(&mut self, memory: &Arc<TieredMemory>) {
        let lies_there =
            |place: &Place| matches!(place, Place::Rank { memory: other, .. } if Arc::ptr_eq(memory, other));
        let named = |copying: &Copying| lies_there(&copying.source) || lies_there(&copying.target);
        let offered: Vec<Offered> = self.errands.offered.extract_if(.., |offered| named(&offered.copying)).collect();
        offered.into_iter().for_each(|offered| self.finish_now(offered));
        let (planned, others) = std::mem::take(&mut self.errands.planned).into_iter().partition(named);
        self.errands.planned = others;
        let planned: VecDeque<Copying> = planned;
        planned.iter().for_each(|copying| self.copy_here(copying));
    }

    /// A copy is done, or its bytes are here, before anything else happens.
    fn finish_now(&mut self, mut offered: Offered) {
        if !self.take_back(&mut offered) {
            match report_within_a_moment(&offered) {
                Some(report) => self.finish(offered, report),
                None => self.hold(offered),
            }
        }
    }

    /// Does what the rank has not begun; false when it has.
    fn take_back(&mut self, offered: &mut Offered) -> bool {
        let withdrawn = self.errands.withdraw(offered);
        if withdrawn {
            self.errands.copies.taken_back += 1;
            self.copy_here(&offered.copying);
        }
        withdrawn
    }

    /// What the rank says of an errand.
    fn finish(&mut self, Offered { copying, place, .. }: Offered, report: Report) {
        self.errands.free_place(&copying.runner, place);
        match report {
            // It went to where the rank will put its copy of what lies elsewhere now (GP-9).
            Report::Done if self.moved(&copying.target) => self.copy_here(&copying),
            Report::Done => {
                self.errands.copies.by_ranks += 1;
                self.errands.copies.bytes_by_ranks += copying.to.len;
            }
            Report::Failed => {
                tracing::debug!(pid = ?copying.runner.pid, "a rank cannot copy from another");
                self.errands.copies.failed += 1;
                self.errands.refused.insert((copying.reads, copying.runner.id));
                self.copy_here(&copying);
            }
        }
    }

    /// Whether the buffers of the call are, or will be, where its rank copies them to.
    fn moved(&self, target: &Place) -> bool {
        let Place::Rank { call, memory, .. } = target else { return false };
        let restaged = self.calls.get(call).is_some_and(|buffers| buffers.restaged);
        restaged || memory.tier() == Tier::Staging || self.deferred.awaits(*call)
    }

    /// Brings the bytes of a copy here that its rank has begun and does not end.
    fn hold(&mut self, Offered { copying, place, .. }: Offered) {
        tracing::debug!(pid = ?copying.runner.pid, "a rank does not end an errand");
        let mut bytes = vec![0; usize::try_from(copying.from.len).expect("a piece")];
        // The source may have been copied elsewhere since.
        match self.place(copying.from).and_then(|source| source.read(&mut bytes)) {
            Ok(()) => self.keep(Fault::Awaited, Work::Deliver { bytes, to: copying.to }, Deferred::push_first),
            Err(fault) => {
                self.keep(fault, Work::Copy { from: copying.from, to: copying.to }, Deferred::push_first);
            }
        }
        self.errands.held.push(Held { copying, place, wanted: None });
    }

    /// Looks what ranks have done of their errands, and does what they have not; whether there was anything.
    pub(crate) fn attend(&mut self) -> bool {
        if self.errands.is_empty() && self.errands.forgotten.is_empty() {
            return false;
        }
        let mut found = false;
        for mut offered in std::mem::take(&mut self.errands.offered) {
            let (waits, age) = (offered.copying.runner.errands.waited_for(), offered.since.elapsed());
            if let Some(report) = offered.report() {
                self.finish(offered, report);
            } else if offered.taken && age >= offered.due() {
                self.hold(offered);
            } else if offered.taken || (waits && age < PATIENCE) || !self.take_back(&mut offered) {
                self.errands.offered.push(offered);
                continue;
            }
            found = true;
        }
        found |= self.let_go();
        for Held { copying, wanted, .. } in &mut self.errands.held {
            if wanted.is_some_and(|since| since.elapsed() >= LIMIT) {
                *wanted = None;
                let call = copying.target.call().expect("errands go to ranks");
                tracing::warn!(pid = ?copying.runner.pid, "a rank that has stopped in a copy holds others up");
                self.faults.push((call, Cause::Buffer));
                found = true;
            }
        }
        found
    }

    /// Does what has waited for ranks that have let go of their buffers; whether there was anything.
    fn let_go(&mut self) -> bool {
        let mut forgotten = std::mem::take(&mut self.errands.forgotten);
        forgotten.retain(|(runner, place)| {
            let reported = runner.errands.reported(*place).is_some();
            if reported {
                self.errands.free_place(runner, *place);
            }
            !reported
        });
        self.errands.forgotten = forgotten;
        let reported = |held: &mut Held| held.copying.runner.errands.reported(held.place).is_some();
        let free: Vec<Held> = self.errands.held.extract_if(.., reported).collect();
        for held in &free {
            self.errands.free_place(&held.copying.runner, held.place);
        }
        if !free.is_empty() {
            for work in self.deferred.again() {
                self.work(work);
            }
        }
        !free.is_empty()
    }

    /// The call has failed, or with `gone` its rank has: nothing of it is copied any more. Returns the calls of others
    /// that will never have its bytes.
    pub(super) fn forget_copies(&mut self, call: CallId, gone: bool) -> Vec<CallId> {
        let mut missing = Vec::new();
        for copying in std::mem::take(&mut self.errands.planned) {
            match copying.calls() {
                [_, Some(target)] if target == call => {}
                [Some(source), Some(target)] if source == call && gone => missing.push(target),
                [Some(source), _] if source == call => self.copy_here(&copying),
                _ => self.errands.planned.push_back(copying),
            }
        }
        for mut offered in std::mem::take(&mut self.errands.offered) {
            match offered.copying.calls() {
                [_, Some(target)] if target == call => self.errands.forget(offered),
                [Some(source), Some(target)] if source == call && gone => {
                    if self.errands.withdraw(&mut offered) {
                        missing.push(target);
                    } else if report_within_a_moment(&offered) == Some(Report::Done) {
                        self.finish(offered, Report::Done);
                    } else {
                        missing.push(target);
                        self.errands.forgotten.push((offered.copying.runner, offered.place));
                    }
                }
                [Some(source), _] if source == call => self.finish_now(offered),
                _ => self.errands.offered.push(offered),
            }
        }
        let mine = |held: &mut Held| held.copying.target.call() == Some(call);
        let held: Vec<Held> = self.errands.held.extract_if(.., mine).collect();
        self.errands.forgotten.extend(held.into_iter().map(|held| (held.copying.runner, held.place)));
        missing
    }
}

/// Who waits no more by now is seen by the next turn.
fn offer(fresh: Fresh) {
    for (runner, places) in fresh.into_values() {
        runner.errands.offer(places);
    }
}

/// Waits no longer for the report on an errand than one takes.
fn report_within_a_moment(offered: &Offered) -> Option<Report> {
    let until = Instant::now() + MOMENT;
    loop {
        let report = offered.report();
        if report.is_some() || Instant::now() >= until {
            return report;
        }
        std::thread::yield_now();
    }
}
