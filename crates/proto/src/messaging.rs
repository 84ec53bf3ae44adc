//! Tagged messages between ranks of one group, at one service process: single ones and recorded groups (GP-1, GP-2).
//!
//! A single send or receive is a program of one step; a recorded group is whatever program its rank has recorded, kept here
//! from then on, so that a further call brings nothing but its number (GP-5). Each call runs its program by itself
//! ([`Run`]): what is ready is done, nothing is waited for, so that calls which need each other's progress here have it
//! (GP-6). A local barrier is the dependencies of what follows it; the counters over arrivals that it needs are those of
//! the steps that have not completed.
//!
//! Messages are named ([`Name`]): both ends count the calls of a recording, so that nothing is matched per call beyond
//! looking up a name. Ranks may call their recordings in any order, each at its own time.
//!
//! | message for a local rank | event | next |
//! |---|---|---|
//! | - | it is posted with its bytes, the receive waits | here |
//! | - | the same without receive, there is room | staged, and its source is done |
//! | - | it is posted without bytes, or there is no room | announced |
//! | announced | its receive | wanted |
//! | wanted | there is room on the link | coming |
//! | - | its receive, of a large message in a recording's second call or a later one | asked for ([`filling`]) |
//! | asked for | its first bytes | coming |
//! | asked for | it is announced: there was no room when it was asked for | wanted |
//! | coming | its last bytes | here |
//! | staged | its receive | here |
//!
//! | a call is | event | next |
//! |---|---|---|
//! | behind an earlier call of the same recording | that has ended | running |
//! | running | all steps are done | ended |
//! | running, of a single message | its other end is lost, or sends too much | ended with an error |
//! | running, of a recording | the same | the group breaks: others may need what this call would have sent |
//!
//! Invariants: a call completes once and none of its buffers is named after that; at most
//! [`Config::pull_bytes`](crate::Config) that were announced are under way, or one message; at most [`MAX_WAITING`] messages wait for their
//! receives. Never sees payload.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use outboard_plan::{Op, OpId, Program, ProgramBuilder, Rank, Span};

use crate::collective::Context;
use crate::error::CollectiveError;
use crate::executor::Run;
use crate::fragments::Bulk;
use crate::group::Members;
use crate::ids::{CallId, InstanceId, Instant, SpId};
use crate::interface::{Call, CallKind, InFlight, MemRef, Order, Region, TaggedCall};
use crate::outbox::{Completion, Quota, Staging};
use crate::wire::{Filled, Posted, TaggedMessage, Wanted};

mod filling;
mod incoming;
mod matching;
mod outgoing;
mod recording;

use filling::{Asked, Met};
use incoming::{Incoming, Number};
use matching::Name;
use outgoing::{EAGER, Outbound, Outgoing, place};
pub use recording::{MAX_RECORDINGS, MAX_STEPS, RecordError, Recording};

/// What stands for the messages of a group where its instances are counted: the number of none of them.
pub(crate) const MESSAGING: InstanceId = InstanceId(0);
/// Messages that may wait for their receives at one service process. Whoever sends more misbehaves.
const MAX_WAITING: usize = 1 << 20;

/// A step of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StepOf {
    pub(crate) call: CallId,
    pub(crate) op: OpId,
}

/// A recording of a local rank.
#[derive(Debug)]
struct Recorded {
    recording: Arc<Recording>,
    ordinals: Arc<[u32]>,
    /// Calls that have begun.
    calls: u64,
    running: bool,
    /// Calls that have not.
    behind: VecDeque<Call>,
}

/// A call that runs.
#[derive(Debug)]
struct Active {
    call: Call,
    since: Instant,
    /// Which recording and which of its calls; none of a single message.
    number: Option<(u32, u64)>,
    recording: Arc<Recording>,
    ordinals: Arc<[u32]>,
    run: Run,
}

/// The messages of one group at one service process.
#[derive(Debug, Default)]
pub(crate) struct Messaging {
    recordings: BTreeMap<(Rank, u32), Recorded>,
    /// By local rank that has recorded something: the number of the last, and steps of those that it has not freed.
    recorded: BTreeMap<Rank, (u32, usize)>,
    calls: BTreeMap<CallId, Active>,
    /// How many calls of recordings have not begun.
    behind: usize,
    /// Calls that may have something ready.
    ready: VecDeque<CallId>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Ranks that take part in nothing any more.
    lost: BTreeSet<Rank>,
}

/// The program of a single message.
fn single(call: &Call, what: TaggedCall, ranks: u32) -> Program {
    let bytes = call.signature.bytes;
    let span = Span::output(0, bytes);
    let mut builder = ProgramBuilder::new(call.rank, ranks);
    builder.buffers(0, bytes, 0);
    match what {
        TaggedCall::Send { to, tag } => builder.send(to, tag, span, &[]),
        TaggedCall::Receive { from, tag } => builder.recv(from, tag, span, &[]),
        TaggedCall::Recorded { .. } => unreachable!("a recording has its program"),
    };
    builder.build()
}

impl Messaging {
    /// Calls that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.calls.len() + self.behind
    }

    /// The rank whose call this is.
    pub(crate) fn has_call(&self, id: CallId) -> Option<Rank> {
        let behind = || self.recordings.values().flat_map(|recorded| &recorded.behind);
        let waiting = || behind().find(|call| call.id == id).map(|call| call.rank);
        self.calls.get(&id).map(|active| active.call.rank).or_else(waiting)
    }

    /// What is waited for, as of `now`.
    pub(crate) fn in_flight_now(&self, now: Instant, members: &Members) -> Option<InFlight> {
        let oldest = self.calls.values().min_by_key(|active| active.since)?;
        let receives = self.incoming.awaited().map(|name| name.source);
        let awaits: BTreeSet<Rank> =
            receives.chain(self.outgoing.messages().map(|message| message.name.destination)).collect();
        Some(InFlight {
            group: members.handle,
            instance: MESSAGING,
            signature: oldest.call.signature,
            age_ns: now.0.saturating_sub(oldest.since.0),
            absent: Vec::new(),
            awaits: awaits.into_iter().collect(),
        })
    }

    /// A local rank has recorded something. The caller has looked at whether it is in the group.
    pub(crate) fn record(
        &mut self,
        (rank, ranks): (Rank, u32),
        number: u32,
        recording: Arc<Recording>,
    ) -> Result<(), RecordError> {
        recording.check(rank, ranks)?;
        let (last, steps) = self.recorded.get(&rank).copied().unwrap_or_default();
        if number <= last {
            return Err(RecordError::Number { found: number, last });
        }
        let held = self.recordings.range((rank, 0)..=(rank, u32::MAX)).count() + 1;
        if held > MAX_RECORDINGS {
            return Err(RecordError::Limit { what: "recordings", held, limit: MAX_RECORDINGS });
        }
        let steps = steps + recording.program.steps.len();
        if steps > MAX_STEPS {
            return Err(RecordError::Limit { what: "steps", held: steps, limit: MAX_STEPS });
        }
        self.recorded.insert(rank, (number, steps));
        let ordinals = recording::ordinals(&recording.program).into();
        let recorded = Recorded { recording, ordinals, calls: 0, running: false, behind: VecDeque::new() };
        self.recordings.insert((rank, number), recorded);
        Ok(())
    }

    /// A recording is not called any more. False while it is.
    pub(crate) fn free(&mut self, rank: Rank, number: u32) -> bool {
        if self.recordings.get(&(rank, number)).is_some_and(|recorded| recorded.running) {
            return false;
        }
        if let Some(recorded) = self.recordings.remove(&(rank, number))
            && let Some((_, steps)) = self.recorded.get_mut(&rank)
        {
            *steps -= recorded.recording.program.steps.len();
        }
        true
    }

    /// Whether a call of a local rank can be.
    pub(crate) fn accepts(&self, call: &Call, members: &Members) -> bool {
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

    /// A local rank calls what [`Self::accepts`]. An error breaks the group.
    pub(crate) fn handle_call(&mut self, cx: &mut Context<'_>, call: Call) -> Result<(), CollectiveError> {
        let CallKind::Tagged(what) = call.signature.kind else { unreachable!("the caller has looked") };
        if let TaggedCall::Recorded { recording } = what {
            let recorded = self.recordings.get_mut(&(call.rank, recording)).expect("the caller has looked");
            recorded.behind.push_back(call.clone());
            self.behind += 1;
            if !recorded.running {
                self.begin_next(cx, call.rank, recording);
            }
        } else {
            let program = single(&call, what, cx.members.ranks());
            let recording = Arc::new(Recording { program: program.into(), reductions: Vec::new() });
            self.begin(cx, call, None, (recording, [0].into()));
        }
        self.advance(cx)
    }

    /// Begins the next call of a recording that rests.
    fn begin_next(&mut self, cx: &Context<'_>, rank: Rank, number: u32) {
        let recorded = self.recordings.get_mut(&(rank, number)).expect("a recording outlives its calls");
        let next = recorded.behind.pop_front();
        recorded.running = next.is_some();
        let Some(call) = next else { return };
        self.behind -= 1;
        recorded.calls += 1;
        let (count, what) = (recorded.calls, (recorded.recording.clone(), recorded.ordinals.clone()));
        self.begin(cx, call, Some((number, count)), what);
    }

    fn begin(
        &mut self,
        cx: &Context<'_>,
        call: Call,
        number: Option<(u32, u64)>,
        (recording, ordinals): (Arc<Recording>, Arc<[u32]>),
    ) {
        let run = Run::new(recording.program.clone());
        self.ready.push_back(call.id);
        self.calls.insert(call.id, Active { call, since: cx.out.now, number, recording, ordinals, run });
    }

    /// Does whatever can be done, and ends what has ended.
    fn advance(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        while let Some(id) = self.ready.pop_front() {
            while let Some(active) = self.calls.get_mut(&id)
                && let Some(op) = active.run.next_ready()
            {
                self.start(cx, StepOf { call: id, op })?;
            }
            if self.calls.get(&id).is_some_and(|active| active.run.finished()) {
                self.end(cx, id, Ok(()));
            }
        }
        self.incoming.pull(cx);
        self.incoming.tell_taken(cx);
        self.incoming.tell_asked(cx);
        Ok(())
    }

    fn start(&mut self, cx: &mut Context<'_>, step: StepOf) -> Result<(), CollectiveError> {
        let active = &self.calls[&step.call];
        match active.run.op(step.op) {
            Op::Copy { from, to } => {
                cx.out.copy(place(step, from), place(step, to));
                self.complete(step);
                Ok(())
            }
            Op::Send { to, index, span } => {
                let name = active.name(step.op, (active.call.rank, to), index);
                self.send(cx, Outbound { step, name, span })
            }
            Op::Recv { from, index, .. } => {
                let name = active.name(step.op, (from, active.call.rank), index);
                self.receive(cx, name, step)
            }
            Op::Reduce { from, into, from_left } => {
                let reduction = active.recording.reductions[active.ordinals[step.op.0 as usize] as usize];
                cx.out.reduce(reduction, (place(step, from), place(step, into)), from_left);
                self.complete(step);
                Ok(())
            }
            Op::Multicast { .. } | Op::MulticastRecv { .. } => unreachable!("refused when it was recorded"),
        }
    }

    fn send(&mut self, cx: &mut Context<'_>, message: Outbound) -> Result<(), CollectiveError> {
        let to = message.name.destination;
        if self.lost.contains(&to) {
            return self.fail(cx, message.step, CollectiveError::RankLost(to));
        }
        match cx.members.local(to) {
            Some(_) => self.arrived(cx, message.name, Inbound::Local(message)),
            None if message.name.is_asked_for(message.span.len) => {
                let at = cx.members.sp_of(to);
                let met = self.outgoing.filling.send(at, message)?;
                self.announce(at, met);
                Ok(())
            }
            None => {
                self.outgoing.push(cx.members.sp_of(to), message);
                Ok(())
            }
        }
    }

    /// What the other end has no room for is to be announced.
    fn announce(&mut self, at: SpId, met: Option<Met>) {
        match met {
            Some(Met::Announce(message)) => self.outgoing.push(at, message),
            Some(Met::Filling) | None => {}
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>, name: Name, step: StepOf) -> Result<(), CollectiveError> {
        match self.incoming.matching.message_for(&name) {
            Some(message) => self.meet(cx, name, message, step),
            None if self.lost.contains(&name.source) => self.fail(cx, step, CollectiveError::RankLost(name.source)),
            None => {
                self.incoming.matching.keep_receive(name, step);
                let Op::Recv { span, .. } = self.calls[&step.call].run.op(step.op) else { unreachable!("a receive") };
                if cx.members.local(name.source).is_none() && name.is_asked_for(span.len) {
                    self.incoming.ask(cx.members.sp_of(name.source), name, span.len);
                }
                Ok(())
            }
        }
    }

    fn arrived(&mut self, cx: &mut Context<'_>, name: Name, message: Inbound) -> Result<(), CollectiveError> {
        match self.incoming.matching.receive_for(&name) {
            Some(step) => self.meet(cx, name, message, step),
            None => {
                let message = self.stage_small(cx, message);
                self.incoming.matching.keep_message(name, message);
                Ok(())
            }
        }
    }

    /// Small messages do not hold their sources up, on whatever host their receivers are.
    fn stage_small(&mut self, cx: &mut Context<'_>, message: Inbound) -> Inbound {
        let Inbound::Local(Outbound { step, span, .. }) = message else { return message };
        if span.len > EAGER {
            return message;
        }
        let Some(staging) = stage(cx, span.len) else { return message };
        cx.out.orders.extend(staging.as_ref().map(|to| Order::Copy { from: place(step, span), to: whole(to) }));
        self.complete(step);
        Inbound::Staged(staging)
    }

    /// Where the bytes of a message go that this step receives, or why they do not fit.
    fn target(&self, name: Name, sent: u64, step: StepOf) -> Result<MemRef, CollectiveError> {
        let active = &self.calls[&step.call];
        let Op::Recv { span, .. } = active.run.op(step.op) else { unreachable!("a receive") };
        // Of a single message as much is received as was sent (GP-1); a recorded program relies on what it has recorded.
        let fits = if active.number.is_some() { sent == span.len } else { sent <= span.len };
        if fits {
            return Ok(place(step, Span { len: sent, ..span }));
        }
        let Name { source: source_rank, destination, tag, .. } = name;
        Err(CollectiveError::Message { source_rank, destination, tag, sent, expected: span.len })
    }

    /// A message and its receive.
    fn meet(
        &mut self,
        cx: &mut Context<'_>,
        name: Name,
        message: Inbound,
        step: StepOf,
    ) -> Result<(), CollectiveError> {
        let target = match self.target(name, message.bytes(), step) {
            Ok(target) => target,
            Err(error) => {
                self.discard(cx, message);
                return self.fail(cx, step, error);
            }
        };
        match message {
            Inbound::Local(Outbound { step: sender, span, .. }) => {
                cx.out.copy(place(sender, span), target);
                self.complete(sender);
                self.complete(step);
            }
            Inbound::Announced { from, number, bytes } => self.incoming.want((from, number), bytes, (step, target)),
            Inbound::Staged(None) => self.complete(step),
            Inbound::Staged(Some(staging)) => {
                cx.out.copy(whole(&staging), target);
                cx.out.unstage(staging);
                self.complete(step);
            }
        }
        Ok(())
    }

    /// Nobody wants this message: its source is done with it.
    fn discard(&mut self, cx: &mut Context<'_>, message: Inbound) {
        match message {
            Inbound::Local(Outbound { step, .. }) => self.complete(step),
            Inbound::Announced { from, number, .. } => self.incoming.taken(from, number),
            Inbound::Staged(staging) => staging.into_iter().for_each(|staging| cx.out.unstage(staging)),
        }
    }

    fn complete(&mut self, StepOf { call, op }: StepOf) {
        let active = self.calls.get_mut(&call).expect("a call has no steps under way when it ends");
        active.run.complete(op);
        self.ready.push_back(call);
    }

    /// A step cannot be done. A single message ends so; whatever else depends on a recorded one would never end.
    fn fail(&mut self, cx: &mut Context<'_>, step: StepOf, error: CollectiveError) -> Result<(), CollectiveError> {
        if self.calls[&step.call].number.is_some() {
            return Err(error);
        }
        self.end(cx, step.call, Err(error));
        Ok(())
    }

    /// Nothing of this call is named any more.
    fn end(&mut self, cx: &mut Context<'_>, id: CallId, result: Result<(), CollectiveError>) {
        let active = self.calls.remove(&id).expect("a call ends once");
        let Call { group, rank, .. } = active.call;
        cx.out.complete(Completion { call: id, group, instance: MESSAGING, rank }, result);
        if let Some((number, _)) = active.number {
            self.begin_next(cx, rank, number);
        }
    }

    /// What another service process says. False when it cannot say so now; an error breaks the group.
    pub(crate) fn handle(
        &mut self,
        cx: &mut Context<'_>,
        from: SpId,
        message: &TaggedMessage,
        payload_len: u32,
    ) -> Result<bool, CollectiveError> {
        let sound = match message {
            TaggedMessage::Post { .. } => self.handle_post(cx, from, message, payload_len)?,
            TaggedMessage::Took { numbers } => {
                let steps: Vec<StepOf> =
                    numbers.iter().filter_map(|number| self.outgoing.done(Some(from), *number)).collect();
                let all = steps.len() == numbers.len();
                steps.into_iter().for_each(|step| self.complete(step));
                all
            }
            TaggedMessage::Pull { numbers } => {
                numbers.iter().filter(|number| self.outgoing.pulled(from, **number)).count() == numbers.len()
            }
            TaggedMessage::Part { number, offset } => {
                self.deliver(cx, Number::Posted(from, *number), (*offset, payload_len.into()), 0)
            }
            TaggedMessage::Ask { .. } => self.handle_ask(cx, from, message)?,
            TaggedMessage::Fill { pieces } => self.handle_fill(cx, from, pieces, payload_len),
        };
        self.advance(cx)?;
        // What was under way when a rank was lost comes to nobody.
        Ok(sound || !self.lost.is_empty())
    }

    /// Bytes at `offset` of a message, which lie at `at` of the payload. False when no such bytes can come.
    fn deliver(&mut self, cx: &mut Context<'_>, number: Number, (offset, len): (u64, u64), at: u32) -> bool {
        self.incoming.part(number, (offset, len)).is_some_and(|(to, done)| {
            cx.out.orders.push_back(Order::Deliver { payload: 0, offset: at, to });
            done.into_iter().for_each(|step| self.complete(step));
            true
        })
    }

    /// Another service process asks for messages of ranks here.
    fn handle_ask(&mut self, cx: &mut Context<'_>, from: SpId, ask: &TaggedMessage) -> Result<bool, CollectiveError> {
        let &TaggedMessage::Ask { destination, recording, call, first, ref messages } = ask else {
            unreachable!("the caller has looked")
        };
        let here = |wanted: &Wanted| cx.members.local(wanted.source).is_some();
        if !cx.members.has_rank(destination)
            || cx.members.sp_of(destination) != from
            || !messages.iter().all(here)
            || self.outgoing.filling.asks() + messages.len() > MAX_WAITING
            || !self.outgoing.numbered(from, first, messages.len())
        {
            return Ok(false);
        }
        for (&Wanted { source, tag, occurrence, bytes, room }, number) in messages.iter().zip(first..) {
            let name = Name { destination, source, recording, call, tag, occurrence };
            if !name.is_asked_for(bytes) || self.outgoing.filling.has_ask(&name) {
                return Ok(false);
            }
            if !self.lost.contains(&source) && !self.lost.contains(&destination) {
                let met = self.outgoing.filling.ask(from, name, Asked { number, bytes, room })?;
                self.announce(from, met);
            }
        }
        Ok(true)
    }

    /// Bytes of messages that were asked for unannounced.
    fn handle_fill(&mut self, cx: &mut Context<'_>, from: SpId, pieces: &[Filled], payload_len: u32) -> bool {
        if pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>() != u64::from(payload_len) {
            return false;
        }
        let (mut at, mut sound) = (0, true);
        for &Filled { number, offset, bytes } in pieces {
            let calls = &self.calls;
            sound &= self.incoming.begin((from, number), |matching, name| {
                let step = matching.receive_for(name)?;
                let Op::Recv { span, .. } = calls[&step.call].run.op(step.op) else { unreachable!("a receive") };
                Some((step, place(step, span)))
            });
            sound &= self.deliver(cx, Number::Asked(from, number), (offset, bytes.into()), at);
            at += bytes;
        }
        sound
    }

    fn handle_post(
        &mut self,
        cx: &mut Context<'_>,
        from: SpId,
        post: &TaggedMessage,
        payload_len: u32,
    ) -> Result<bool, CollectiveError> {
        let &TaggedMessage::Post { source, recording, call, first, ref messages } = post else {
            unreachable!("the caller has looked")
        };
        let here = |posted: &Posted| cx.members.local(posted.destination).is_some();
        let eager = messages.iter().filter(|posted| posted.eager).try_fold(0u64, |sum, p| sum.checked_add(p.bytes));
        if !cx.members.has_rank(source)
            || cx.members.sp_of(source) != from
            || !messages.iter().all(here)
            || eager != Some(payload_len.into())
            || self.incoming.matching.messages() + messages.len() > MAX_WAITING
            || !self.incoming.numbered(from, first, messages.len())
        {
            return Ok(false);
        }
        let mut offset = 0;
        for (posted, number) in messages.iter().zip(first..) {
            let &Posted { destination, tag, occurrence, bytes, eager } = posted;
            let name = Name { destination, source, recording, call, tag, occurrence };
            if recording != 0 && self.incoming.matching.has_message(&name) {
                return Ok(false);
            }
            if self.lost.contains(&destination) {
                // Its source hears of that by itself.
            } else if eager {
                self.arrived_whole(cx, (from, number), name, (offset, bytes))?;
            } else if bytes == 0 {
                return Ok(false);
            } else {
                self.arrived(cx, name, Inbound::Announced { from, number, bytes })?;
            }
            offset += if eager { bytes as u32 } else { 0 };
        }
        Ok(true)
    }

    /// A message whose bytes lie at `offset` of the payload: they go to where they are received, or to staging.
    fn arrived_whole(
        &mut self,
        cx: &mut Context<'_>,
        (from, number): (SpId, u64),
        name: Name,
        (offset, bytes): (u32, u64),
    ) -> Result<(), CollectiveError> {
        let deliver = |to| Order::Deliver { payload: 0, offset, to };
        if let Some(step) = self.incoming.matching.receive_for(&name) {
            self.incoming.taken(from, number);
            return match self.target(name, bytes, step) {
                Ok(to) => {
                    cx.out.orders.extend((bytes > 0).then(|| deliver(to)));
                    self.complete(step);
                    Ok(())
                }
                Err(error) => self.fail(cx, step, error),
            };
        }
        let message = match stage(cx, bytes) {
            None => Inbound::Announced { from, number, bytes },
            Some(staging) => {
                self.incoming.taken(from, number);
                cx.out.orders.extend(staging.as_ref().map(|staging| deliver(whole(staging))));
                Inbound::Staged(staging)
            }
        };
        self.incoming.matching.keep_message(name, message);
        Ok(())
    }

    /// The last part of a message has been acknowledged. An error breaks the group.
    pub(crate) fn handle_acked(&mut self, cx: &mut Context<'_>, number: u64) -> Result<(), CollectiveError> {
        self.outgoing.acknowledged(number).for_each(|step| self.complete(step));
        self.advance(cx)
    }

    /// Whether there is bulk for anybody.
    pub(crate) fn has_bulk(&self) -> bool {
        self.outgoing.has_bulk()
    }

    /// Whom there may be bulk for.
    pub(crate) fn bulk_targets(&self) -> Vec<SpId> {
        self.outgoing.targets()
    }

    /// The next frame with messages or bytes for `to`. Asked while its link has room.
    pub(crate) fn next_bulk(&mut self, cx: &Context<'_>, to: SpId) -> Option<Bulk> {
        self.outgoing.next(cx.members.handle, to, cx.quantum().piece)
    }

    /// `rank` takes part in nothing any more: what still needs it fails. An error breaks the group.
    pub(crate) fn lose(&mut self, cx: &mut Context<'_>, rank: Rank) -> Result<(), CollectiveError> {
        self.lost.insert(rank);
        let error = CollectiveError::RankLost(rank);
        if cx.members.local(rank).is_some() {
            self.end_all_of(cx, rank, &error);
        }
        let gone = |name: &Name| name.source == rank || name.destination == rank;
        let mut overtaken = None;
        let messages = self.incoming.matching.extract_messages(|name, message| {
            // What lies here already can be received still, but not in the place of what came before it and is lost.
            let stays = matches!(message, Inbound::Staged(_)) && overtaken != Some(*name);
            let lost = name.destination == rank || (name.source == rank && !stays);
            overtaken = if lost { Some(*name) } else { overtaken };
            lost
        });
        let mut steps = Vec::new();
        for (_, message) in messages {
            match message {
                Inbound::Local(Outbound { step, .. }) => steps.push(step),
                Inbound::Announced { .. } => {}
                Inbound::Staged(staging) => staging.into_iter().for_each(|staging| cx.out.unstage(staging)),
            }
        }
        let received = self.incoming.matching.extract_receives(|name, _| gone(name));
        self.incoming.forget_asked(gone);
        let coming = self.incoming.forget(|step| {
            let active = self.calls.get(&step.call);
            active.is_none_or(|active| matches!(active.run.op(step.op), Op::Recv { from, .. } if from == rank))
        });
        let sent = self.outgoing.extract(gone);
        steps.extend(received.into_iter().map(|(_, step)| step).chain(coming));
        steps.extend(sent.into_iter().map(|message| message.step));
        for step in steps {
            // Those of the rank itself have ended.
            if self.calls.contains_key(&step.call) {
                self.fail(cx, step, error.clone())?;
            }
        }
        self.advance(cx)
    }

    /// A local rank is gone: its calls end, its recordings are forgotten.
    fn end_all_of(&mut self, cx: &mut Context<'_>, rank: Rank, error: &CollectiveError) {
        let recordings = std::mem::take(&mut self.recordings);
        let (of_rank, of_others): (BTreeMap<_, _>, _) = recordings.into_iter().partition(|((of, _), _)| *of == rank);
        self.recordings = of_others;
        let behind: Vec<Call> = of_rank.into_values().flat_map(|recorded| recorded.behind).collect();
        self.behind -= behind.len();
        let running: Vec<CallId> =
            self.calls.iter().filter(|(_, active)| active.call.rank == rank).map(|(id, _)| *id).collect();
        let running: Vec<Call> = running.iter().filter_map(|id| self.calls.remove(id)).map(|a| a.call).collect();
        for Call { id, group, rank, .. } in running.into_iter().chain(behind) {
            cx.out.complete(Completion { call: id, group, instance: MESSAGING, rank }, Err(error.clone()));
        }
    }

    /// The group is broken: everything ends.
    pub(crate) fn fail_all(&mut self, cx: &mut Context<'_>, error: &CollectiveError) {
        for rank in cx.members.locals.clone() {
            self.end_all_of(cx, rank, error);
        }
        for (_, message) in self.incoming.matching.extract_messages(|_, _| true) {
            if let Inbound::Staged(Some(staging)) = message {
                cx.out.unstage(staging);
            }
        }
        let Messaging { lost, recorded, .. } = std::mem::take(self);
        *self = Messaging { lost, recorded, ..Messaging::default() };
    }
}

/// Memory for a message that nobody receives yet, as far as it needs some; none where there is no room.
fn stage(cx: &mut Context<'_>, bytes: u64) -> Option<Option<Staging>> {
    if bytes == 0 { Some(None) } else { cx.out.stage(Quota::Late, cx.members.owner, bytes).map(Some) }
}

fn whole(staging: &Staging) -> MemRef {
    MemRef { region: Region::Staging(staging.id), offset: 0, len: staging.bytes }
}

/// A message for a local rank, whose receive does not wait.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// Of another local rank, in whose memory it lies.
    Local(Outbound),
    /// Lies with its source.
    Announced { from: SpId, number: u64, bytes: u64 },
    /// Lies here; none if it has no bytes.
    Staged(Option<Staging>),
}

impl Inbound {
    fn bytes(&self) -> u64 {
        match self {
            Inbound::Local(Outbound { span, .. }) => span.len,
            Inbound::Announced { bytes, .. } => *bytes,
            Inbound::Staged(staging) => staging.as_ref().map_or(0, |staging| staging.bytes),
        }
    }
}

impl Active {
    /// The name of a message of this call.
    fn name(&self, op: OpId, (source, destination): (Rank, Rank), tag: u32) -> Name {
        let (recording, call) = self.number.unwrap_or_default();
        Name { destination, source, recording, call, tag, occurrence: self.ordinals[op.0 as usize] }
    }
}
