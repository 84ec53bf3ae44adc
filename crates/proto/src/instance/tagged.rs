//! Tagged messages between ranks of one group, at one service process: single ones and recorded groups (GP-1, GP-2).
//!
//! A single send or receive is one step: the call passes it to the transfers, without a program. A recorded group is a
//! program that its rank has recorded. The program is kept here, so that a further call carries nothing but the number
//! of the recording (GP-5). Each call of a recording runs the program independently ([`ProgramRun`]). A call does its
//! ready steps and never blocks, so calls that need each other's progress get it (GP-6). The work done at once is
//! bounded, so that other calls have their turns; large copies are ordered piece by piece. In a recording, a local
//! barrier is the set of dependencies of the steps after it. The steps that have not completed serve as its arrival
//! counter.
//!
//! Ranks may call their recordings in any order, each at its own time. Both ends count the calls of a recording, and
//! the count is a part of the messages' names ([`MessageName`]).
//!
//! | a call is | event | next |
//! |---|---|---|
//! | behind an earlier call of the same recording | the earlier call has ended | running |
//! | running | all steps are done | ended |
//! | running, of a single message | its other end is lost, or sends too much | ended with an error |
//! | running, of a recording | its other end is lost, or sends too much | the group breaks: others may need this call |
//!
//! Invariants: a call completes once and none of its buffers is used after that. Never sees payload; the
//! [transfers](crate::transfer) decide how messages travel.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use outboard_plan::{Op, OpId, Rank, Span};

use crate::effects::{CallCompletion, Effects, PIECE, Quota};
use crate::error::CollectiveError;
use crate::group::members::Members;
use crate::ids::{CallId, Instant, TAGGED};
use crate::instance::Context;
use crate::instance::run::{self, ProgramGraph, ProgramRun};
use crate::interface::{CallKind, InFlightInstance, MemRef, MemRegion, RankCall, TaggedCall};
use crate::recording::{self, MAX_HELD_STEPS, MAX_RECORDINGS, RecordError, Recording};
use crate::transfer::{MessageName, Outbound, PostedReceive, StepOf, StepOwner, Transfer};
use crate::wire::Scope;

/// Approximate bytes of a recording beside its steps.
const RECORDING_BYTES: u64 = 512;

#[derive(Debug)]
struct Recorded {
    recording: Arc<Recording>,
    graph: Arc<ProgramGraph>,
    ordinals: Arc<[u32]>,
    /// Bytes of the recording's tables.
    bytes: u64,
    /// Number of calls that have begun.
    calls: u64,
    running: bool,
    /// Calls that have not begun.
    behind: VecDeque<RankCall>,
}

#[derive(Debug)]
struct Active {
    call: RankCall,
    since: Instant,
    steps: Steps,
}

/// The remaining work of a running call.
#[derive(Debug)]
enum Steps {
    /// A single message, which the transfers have.
    Single,
    Recorded(Box<RecordedRun>),
}

/// A running call of a recording.
#[derive(Debug)]
struct RecordedRun {
    /// Number of the recording, and of its call.
    number: u32,
    count: u64,
    recording: Arc<Recording>,
    ordinals: Arc<[u32]>,
    run: ProgramRun,
    /// A step whose pieces are partly ordered, and the number of ordered bytes.
    begun: Option<(OpId, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct TaggedCalls {
    recordings: BTreeMap<(Rank, u32), Recorded>,
    /// By local rank with recordings: the last number, and the steps of recordings that are not freed.
    recorded: BTreeMap<Rank, (u32, usize)>,
    calls: BTreeMap<CallId, Active>,
    /// Calls that may have ready steps.
    ready: VecDeque<CallId>,
    /// Number of calls of recordings that have not begun.
    behind: usize,
    /// The remaining ready steps wait for the next timeout.
    is_queued: bool,
}

impl TaggedCalls {
    pub(crate) fn in_flight(&self) -> usize {
        self.calls.len() + self.behind
    }

    pub(crate) fn has_call(&self, id: CallId) -> Option<Rank> {
        let behind = || self.recordings.values().flat_map(|recorded| &recorded.behind);
        let waiting = || behind().find(|call| call.id == id).map(|call| call.rank);
        self.calls.get(&id).map(|active| active.call.rank).or_else(waiting)
    }

    fn oldest(&self) -> Option<&Active> {
        self.calls.values().min_by_key(|active| active.since)
    }

    /// The call that has been in flight for longest.
    pub(crate) fn oldest_call(&self) -> Option<CallId> {
        self.oldest().map(|active| active.call.id)
    }

    /// The oldest call and what the calls wait for, as of `now`.
    pub(crate) fn in_flight_now(
        &self,
        now: Instant,
        members: &Members,
        transfer: &Transfer,
    ) -> Option<InFlightInstance> {
        let oldest = self.oldest()?;
        let tagged = |scope| !matches!(scope, Scope::Instance(_));
        let awaits: BTreeSet<Rank> = transfer.sources(tagged).chain(transfer.destinations(tagged)).collect();
        Some(InFlightInstance {
            group: members.handle,
            instance: TAGGED,
            signature: oldest.call.signature,
            age_ns: now.0.saturating_sub(oldest.since.0),
            absent: Vec::new(),
            awaits: awaits.into_iter().collect(),
        })
    }

    /// A local rank has recorded something. The caller has checked that the rank is in the group.
    pub(crate) fn record(
        &mut self,
        out: &mut Effects,
        rank: Rank,
        members: &Members,
        number: u32,
        recording: Arc<Recording>,
    ) -> Result<(), RecordError> {
        recording.check(rank, members.ranks())?;
        let (last, steps) = self.recorded.get(&rank).copied().unwrap_or_default();
        if number <= last {
            return Err(RecordError::Number { found: number, last });
        }
        let held = self.recordings.range((rank, 0)..=(rank, u32::MAX)).count() + 1;
        if held > MAX_RECORDINGS {
            return Err(RecordError::Limit { what: "recordings", held, limit: MAX_RECORDINGS });
        }
        let steps = steps + recording.program.steps.len();
        if steps > MAX_HELD_STEPS {
            return Err(RecordError::Limit { what: "steps", held: steps, limit: MAX_HELD_STEPS });
        }
        let bytes = RECORDING_BYTES + run::table_bytes(&recording.program);
        if !out.hold(Quota::Tables, bytes) {
            return Err(RecordError::Quota);
        }
        self.recorded.insert(rank, (number, steps));
        let ordinals = recording::ordinals(&recording.program).into();
        let graph = ProgramGraph::new(recording.program.clone()).into();
        let recorded =
            Recorded { recording, graph, ordinals, bytes, calls: 0, running: false, behind: VecDeque::new() };
        self.recordings.insert((rank, number), recorded);
        Ok(())
    }

    /// Approximate bytes of the tables of recordings.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.recordings.values().map(|recorded| recorded.bytes).sum()
    }

    /// Frees a recording. False while a call of it is running.
    pub(crate) fn free(&mut self, out: &mut Effects, rank: Rank, number: u32) -> bool {
        if self.recordings.get(&(rank, number)).is_some_and(|recorded| recorded.running) {
            return false;
        }
        if let Some(recorded) = self.recordings.remove(&(rank, number))
            && let Some((_, steps)) = self.recorded.get_mut(&rank)
        {
            out.release(Quota::Tables, recorded.bytes);
            *steps -= recorded.recording.program.steps.len();
        }
        true
    }

    /// Whether a call of a local rank is valid.
    pub(crate) fn accepts(&self, call: &RankCall, members: &Members) -> bool {
        let CallKind::Tagged(what) = call.signature.kind else { return false };
        match what {
            TaggedCall::Recorded { recording } => self
                .recordings
                .get(&(call.rank, recording))
                .is_some_and(|recorded| recorded.recording.program.output_bytes == call.signature.bytes),
            TaggedCall::Send { to: peer, .. } | TaggedCall::Receive { from: peer, .. } => {
                members.has_rank(peer) && call.signature.bytes <= i64::MAX as u64
            }
        }
    }

    /// A local rank makes a call that [`Self::accepts`] allows.
    pub(crate) fn handle_call(&mut self, cx: &mut Context<'_>, call: RankCall) {
        let CallKind::Tagged(what) = call.signature.kind else { return };
        let memory = MemRef { region: MemRegion::Output(call.id), offset: 0, len: call.signature.bytes };
        let step = StepOf { owner: StepOwner::Call(call.id), op: OpId(0) };
        let name =
            |source, destination, tag| MessageName { scope: Scope::Single, destination, source, tag, occurrence: 0 };
        match what {
            TaggedCall::Recorded { recording } => return self.call_recording(cx, call, recording),
            TaggedCall::Send { to, tag } => {
                let message = Outbound { step, name: name(call.rank, to, tag), from: memory, signal: false };
                let (transfer, mut site) = cx.transfer();
                transfer.send_tagged(&mut site, message);
            }
            TaggedCall::Receive { from, tag } => {
                let (transfer, mut site) = cx.transfer();
                transfer.receive_tagged(&mut site, name(from, call.rank, tag), PostedReceive { step, to: memory });
            }
        }
        self.calls.insert(call.id, Active { call, since: cx.out.now, steps: Steps::Single });
    }

    fn call_recording(&mut self, cx: &Context<'_>, call: RankCall, number: u32) {
        let rank = call.rank;
        let Some(recorded) = self.recordings.get_mut(&(rank, number)) else { return };
        recorded.behind.push_back(call);
        self.behind += 1;
        if !recorded.running {
            self.begin_next(cx, rank, number);
        }
    }

    /// Begins the next call of an idle recording.
    fn begin_next(&mut self, cx: &Context<'_>, rank: Rank, number: u32) {
        let Some(recorded) = self.recordings.get_mut(&(rank, number)) else { return };
        let next = recorded.behind.pop_front();
        recorded.running = next.is_some();
        let Some(call) = next else { return };
        self.behind -= 1;
        recorded.calls += 1;
        let (recording, ordinals) = (recorded.recording.clone(), recorded.ordinals.clone());
        let run = ProgramRun::of(recorded.graph.clone());
        let run = RecordedRun { number, count: recorded.calls, recording, ordinals, run, begun: None };
        self.ready.push_back(call.id);
        self.calls.insert(call.id, Active { call, since: cx.out.now, steps: Steps::Recorded(Box::new(run)) });
    }

    /// The next timeout has come ([`Self::advance`]).
    pub(crate) fn resume(&mut self) {
        self.is_queued = false;
    }

    /// Runs the ready steps of recordings, as many as are allowed at once, and ends finished calls. If steps remain,
    /// the group is queued and continues at the next timeout.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_>) {
        while let Some(id) = self.ready.pop_front() {
            let Some(Active { call, steps: Steps::Recorded(recorded), .. }) = self.calls.get_mut(&id) else { continue };
            while recorded.has_ready() && cx.out.allowance.step() {
                recorded.start_next(cx, id, call.rank);
            }
            if recorded.has_ready() {
                // The call continues behind the calls of others.
                self.ready.push_back(id);
                if !std::mem::replace(&mut self.is_queued, true) {
                    cx.out.unfinished.push_back((cx.members.handle, TAGGED));
                }
                return;
            }
            if recorded.run.finished() {
                self.end(cx, id, Ok(()));
            }
        }
    }

    /// A step that sends or receives has ended. A single message ends with its step. An error in a recording breaks the
    /// group, since everything that depends on the step would never end.
    pub(crate) fn complete(
        &mut self,
        cx: &mut Context<'_>,
        id: CallId,
        op: OpId,
        result: Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let Some(active) = self.calls.get_mut(&id) else { return Ok(()) };
        match &mut active.steps {
            Steps::Single => self.end(cx, id, result),
            Steps::Recorded(recorded) => {
                result?;
                recorded.run.complete(op);
                self.ready.push_back(id);
            }
        }
        Ok(())
    }

    /// Ends a call: its buffers are not used any more.
    fn end(&mut self, cx: &mut Context<'_>, id: CallId, result: Result<(), CollectiveError>) {
        let Some(Active { call: RankCall { group, rank, .. }, steps, .. }) = self.calls.remove(&id) else { return };
        cx.out.complete(CallCompletion { call: id, group, instance: TAGGED, rank }, result);
        if let Steps::Recorded(recorded) = steps {
            self.begin_next(cx, rank, recorded.number);
        }
    }

    /// `rank` takes part in nothing any more: everything that needs the rank fails. A local rank's recordings are
    /// dropped.
    pub(crate) fn cancel_rank(&mut self, cx: &mut Context<'_>, rank: Rank) {
        if cx.members.local(rank).is_some() {
            self.end_all_of(cx, rank, &CollectiveError::RankLost(rank));
            self.forget_all_of(cx, rank);
        }
        let (transfer, mut site) = cx.transfer();
        transfer.cancel_rank(&mut site, rank);
    }

    fn end_all_of(&mut self, cx: &mut Context<'_>, rank: Rank, error: &CollectiveError) {
        let mut behind = VecDeque::new();
        for (_, recorded) in self.recordings.range_mut((rank, 0)..=(rank, u32::MAX)) {
            recorded.running = false;
            behind.append(&mut std::mem::take(&mut recorded.behind));
        }
        self.behind -= behind.len();
        let running: Vec<CallId> =
            self.calls.iter().filter(|(_, active)| active.call.rank == rank).map(|(id, _)| *id).collect();
        let running: Vec<RankCall> = running.iter().filter_map(|id| self.calls.remove(id)).map(|a| a.call).collect();
        for RankCall { id, group, rank, .. } in running.into_iter().chain(behind) {
            cx.out.complete(CallCompletion { call: id, group, instance: TAGGED, rank }, Err(error.clone()));
        }
    }

    /// Drops the recordings of a local rank that is gone.
    fn forget_all_of(&mut self, cx: &mut Context<'_>, rank: Rank) {
        let recordings = std::mem::take(&mut self.recordings);
        let (of_rank, of_others): (BTreeMap<_, _>, _) = recordings.into_iter().partition(|((of, _), _)| *of == rank);
        self.recordings = of_others;
        let table_bytes = of_rank.values().map(|recorded| recorded.bytes).sum();
        cx.out.release(Quota::Tables, table_bytes);
    }

    /// The group is broken: every call ends. Recordings count until their rank frees them or leaves, as in the driver.
    pub(crate) fn fail_all(&mut self, cx: &mut Context<'_>, error: &CollectiveError) {
        for rank in cx.members.locals.clone() {
            self.end_all_of(cx, rank, error);
        }
        self.ready.clear();
        let (transfer, mut site) = cx.transfer();
        transfer.cancel_tagged(&mut site);
    }
}

impl RecordedRun {
    fn has_ready(&self) -> bool {
        self.begun.is_some() || self.run.has_ready()
    }

    /// The next piece of a step on memory, in whole `element`s. The last piece completes the step.
    fn piece(&mut self, op: OpId, done: u64, spans: [Span; 2], element: u64) -> [Span; 2] {
        let len = (spans[0].len - done).min(PIECE / element * element);
        match done + len == spans[0].len {
            true => self.run.complete(op),
            false => self.begun = Some((op, done + len)),
        }
        spans.map(|span| Span { offset: span.offset + done, len, ..span })
    }

    /// Starts the next step, or continues one.
    fn start_next(&mut self, cx: &mut Context<'_>, call: CallId, rank: Rank) {
        let next = self.begun.take().or_else(|| Some((self.run.next_ready()?, 0)));
        let Some((op, done)) = next else { return };
        let step = StepOf { owner: StepOwner::Call(call), op };
        // All spans lie in the single buffer of the call.
        let place = |span: Span| MemRef { region: MemRegion::Output(call), offset: span.offset, len: span.len };
        let ordinal = self.ordinals[op.0 as usize];
        let scope = Scope::Recorded { recording: self.number, call: self.count };
        let name = |source, destination, tag| MessageName { scope, destination, source, tag, occurrence: ordinal };
        match self.run.op(op) {
            Op::Copy { from, to } => {
                let [from, to] = self.piece(op, done, [from, to], 1).map(place);
                cx.out.copy(from, to);
            }
            Op::Reduce { from, into, from_left } => {
                let reduction = self.recording.reductions[ordinal as usize];
                let [from, into] = self.piece(op, done, [from, into], reduction.element().bytes()).map(place);
                cx.out.reduce(reduction, from, into, from_left);
            }
            Op::Send { to, index, span } => {
                let message = Outbound { step, name: name(rank, to, index), from: place(span), signal: false };
                let (transfer, mut site) = cx.transfer();
                transfer.send_tagged(&mut site, message);
            }
            Op::Recv { from, index, span } => {
                let (transfer, mut site) = cx.transfer();
                transfer.receive_tagged(&mut site, name(from, rank, index), PostedReceive { step, to: place(span) });
            }
            Op::Multicast { .. } | Op::MulticastRecv { .. } => unreachable!("refused when it was recorded"),
        }
    }
}
