//! One call of a group at one service process: the programs of the local ranks, and what their steps wait for.
//!
//! One machine executes all calls. Most programs rely on a ready barrier ([`Policy::Barrier`]): behind it every receive
//! has memory, and whole blocks may be multicast ([`recovery`]). Small calls skip the barrier ([`Policy::Eager`]):
//! their bytes travel with the first frame of each message ([`eager`]). Where pairs of ranks exchange blocks, no rank
//! waits for a third ([`Policy::Pairs`], SP-5): a rank's messages are offered when it calls ([`pairs`]). An engine
//! beside the service processes executes the calls that it supports ([`Policy::Offloaded`], [`offloaded`]).
//!
//! | phase | event | next |
//! |---|---|---|
//! | AwaitingSizes | a local rank calls, or the requested sizes come ([`sizes`]) | Gathering |
//! | Gathering, with a barrier | all local ranks call or have a stand-in; window open, scratch taken | Barrier |
//! | Barrier | all service processes are ready (MC-4) | Running |
//! | Gathering, without a barrier | the group's window is open | Running |
//! | Running | the calls of all local ranks have ended | Ended |
//! | AwaitingSizes .. Running | [`Instance::fail`] | Failed; Ended when nothing of ours is on its way |
//!
//! A rank is absent, has a stand-in (the rank's output is staging, SP-6), has called, or its call has ended. A call
//! ends when the rank's program is done, the right neighbour is complete (MC-7) and nothing of ours is on its way to
//! the wire. A late rank delays only the ranks that need its contribution. News of a call from another host starts the
//! timer of the stand-in. In place, the input is an alias of the rank's part of the output, so one program serves both
//! forms. At the root of a scatter, the rank's part of the output is an alias of the input. The programs fix the order
//! of reductions, in whatever order messages come, so that results have the same bits from run to run (TH-2). A call of
//! the barrier collective has no stand-in. Once all service processes are ready for it, all ranks have called, and
//! nothing is left to do.
//!
//! Invariants: every call completes once; no buffer of a call is used after its completion. Never sees payload.

use std::collections::BTreeSet;

use outboard_plan::{Extents, OpId, Rank};

use crate::config::Config;
use crate::effects::{CallCompletion, Effects, Quota};
use crate::error::{CollectiveError, Rejection};
use crate::group::barrier::Barrier;
use crate::group::members::Members;
use crate::ids::{CallId, InstanceId, Instant, SpId};
use crate::interface::{
    BlockSizes, CallClass, CallMovement, ExchangePairs, InFlightInstance, MemRegion, RankCall, Signature,
};
use crate::multicast::block::chunks_of;
use crate::multicast::pacing::Quantum;
use crate::transfer::{MessageName, Site, StepOf, StepOwner, Transfer};
use crate::wire::{OfferOrigin, Scope, TransferMessage};

mod barrier;
mod by_rank;
mod eager;
mod local;
mod multicasts;
mod offloaded;
mod pairs;
mod plan_choice;
mod recovery;
pub(crate) mod run;
mod scratch;
mod shares;
mod sizes;
mod stand_in;
mod steps;
pub(crate) mod tagged;

use local::{Local, Presence};
use multicasts::Multicasts;
use offloaded::OffloadedList;
use plan_choice::PlanChoice;
pub(crate) use recovery::ChunkBatch;
use scratch::Scratch;
use sizes::AwaitingSizes;
use stand_in::StandIns;

/// The violation when an offer comes for a call with a barrier, or when an offer has the wrong form.
const NO_OFFER: &str = "an offer for a call that takes none";

/// The environment of an instance while it handles an event.
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) members: &'a mut Members,
    pub(crate) out: &'a mut Effects,
    pub(crate) transfer: &'a mut Transfer,
}

impl Context<'_> {
    /// How much of a link one collective may use at once.
    pub(crate) fn quantum(&self) -> Quantum {
        Quantum::new(self.config, self.out.contention)
    }

    /// The messages of the group, and their context.
    pub(crate) fn transfer(&mut self) -> (&mut Transfer, Site<'_>) {
        (self.transfer, Site { config: self.config, members: self.members, out: self.out })
    }
}

/// A rank's call that is the first news of an instance, or is compared with the first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FirstCall {
    pub(crate) rank: Rank,
    pub(crate) signature: Signature,
}

/// The guarantees that the programs of a call rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// All service processes are ready before any byte leaves for another host, and all know the sizes (MC-4).
    Barrier,
    /// All ranks know the sizes, which are small. Every message carries its bytes, and is kept where its receiver is
    /// late (MC-9).
    Eager,
    /// A calling rank sends offers to the ranks that it exchanges with (SP-5).
    Pairs,
    /// The engine beside each service process executes the call.
    Offloaded,
}

#[derive(Debug)]
enum InstancePhase {
    AwaitingSizes(AwaitingSizes),
    Gathering,
    Barrier,
    Running,
    Failed(CollectiveError),
    Ended,
}

#[derive(Debug)]
pub(crate) struct Instance {
    id: InstanceId,
    signature: Signature,
    /// A rank that called with this signature.
    first_caller: Rank,
    /// When the first news of the call came.
    since: Instant,
    policy: Policy,
    phase: InstancePhase,
    barrier: Barrier,
    locals: Vec<Local>,
    scratch: Scratch,
    /// The agreed sizes of the blocks; a broadcast has one. `None` for pairs, or while unknown.
    extents: Option<Extents>,
    multicast: Multicasts,
    stand_ins: StandIns,
    /// When to notify others of a call that their engines may not have.
    notify_at: Option<Instant>,
    /// The instance is queued to continue its steps at the next timeout.
    is_queued: bool,
    /// Bytes that count to the job's table quota until the end.
    table_bytes: u64,
}

impl Instance {
    /// An instance with the sizes of its blocks, if known.
    pub(crate) fn new(
        cx: &mut Context<'_>,
        id: InstanceId,
        FirstCall { rank: first_caller, signature }: FirstCall,
        sizes: Option<Extents>,
    ) -> Result<Self, Rejection> {
        let mut instance = Instance {
            id,
            signature,
            first_caller,
            since: cx.out.now,
            policy: Policy::Barrier,
            phase: InstancePhase::Gathering,
            barrier: Barrier::new(cx.members.me, cx.members.sps.len() as u32),
            locals: cx.members.locals.iter().map(|rank| Local::new(*rank)).collect(),
            scratch: Scratch::default(),
            extents: None,
            multicast: Multicasts::default(),
            stand_ins: StandIns::default(),
            notify_at: None,
            is_queued: false,
            table_bytes: 0,
        };
        let CallClass { moves, sizes: known } = signature.kind.class();
        let extents = match (moves, known) {
            (CallMovement::Messages(_), _) => return Err("tagged messages as an instance of a group".into()),
            (_, BlockSizes::Paired) => {
                instance.plan_exchange(cx)?;
                return Ok(instance);
            }
            (_, BlockSizes::Agreed(_)) => match sizes {
                Some(sizes) => Some(sizes),
                None => {
                    instance.phase = InstancePhase::AwaitingSizes(AwaitingSizes::new(cx));
                    return Ok(instance);
                }
            },
            (_, BlockSizes::Even) => Extents::even(cx.members.ranks(), signature.bytes),
            (_, BlockSizes::Whole) => Extents::even(1, signature.bytes),
        };
        instance.plan(cx, extents.ok_or("blocks beyond the address space")?)?;
        Ok(instance)
    }

    /// The sizes are known: chooses the plan and the policy.
    fn plan(&mut self, cx: &mut Context<'_>, extents: Extents) -> Result<(), Rejection> {
        let plan_choice = PlanChoice::choose(self.signature, cx.members, cx.config);
        if plan_choice.pulls() {
            return Ok(self.plan_exchange(cx)?);
        }
        if extents.sizes().any(|bytes| chunks_of(bytes, cx.config.chunk_bytes) >= u64::from(u32::MAX)) {
            return Err("a block of more than 2^32 chunks".into());
        }
        for local in &mut self.locals {
            local.set_program(plan_choice.program(self.signature, &extents, local.rank)?);
            // Engines post their receives themselves.
            let posted_here = plan_choice.policy() != Policy::Offloaded;
            local.unposted = local.run.receives().filter(|_| posted_here).map(|(op, _)| op).collect();
        }
        self.scratch = Scratch::new(cx.members, self.id, &self.locals)?;
        let programs: u64 = self.locals.iter().map(|local| run::table_bytes(local.run.program())).sum();
        let first = &self.locals[0];
        let (rank, blocks) = (first.rank, Multicasts::table_bytes(cx, &first.run));
        self.hold_tables(cx, rank, programs.saturating_add(blocks)).map_err(Rejection::Error)?;
        self.multicast = Multicasts::new(cx, &self.locals[0].run, self.signature.kind, &extents);
        self.extents = Some(extents);
        self.phase = InstancePhase::Gathering;
        self.policy = plan_choice.policy();
        Ok(())
    }

    /// Holds more table memory until the call ends. Fails when the job's table quota has no room.
    fn hold_tables(&mut self, cx: &mut Context<'_>, rank: Rank, bytes: u64) -> Result<(), CollectiveError> {
        if !cx.out.hold(Quota::Tables, bytes) {
            return Err(CollectiveError::Staging { rank, bytes });
        }
        self.table_bytes += bytes;
        Ok(())
    }

    /// Starts an exchange of blocks between pairs of ranks. Fails when the sizes overflow.
    fn plan_exchange(&mut self, cx: &mut Context<'_>) -> Result<(), &'static str> {
        if self.signature.bytes.checked_mul(cx.members.ranks().into()).is_none() {
            return Err("an exchange beyond the address space");
        }
        if matches!(self.signature.kind.class().moves, CallMovement::Blocks(ExchangePairs::All)) {
            cx.transfer.set_all_to_all(self.id);
        }
        self.policy = Policy::Pairs;
        if self.id.0 <= cx.members.window_end {
            self.phase = InstancePhase::Running;
        }
        Ok(())
    }

    pub(crate) fn ended(&self) -> bool {
        matches!(self.phase, InstancePhase::Ended)
    }

    /// Whether the instance has neither ended nor failed, so that it takes part in the protocol.
    pub(crate) fn is_active(&self) -> bool {
        match self.phase {
            InstancePhase::AwaitingSizes(_)
            | InstancePhase::Gathering
            | InstancePhase::Barrier
            | InstancePhase::Running => true,
            InstancePhase::Failed(_) | InstancePhase::Ended => false,
        }
    }

    /// Whether this service process has entered the ready barrier. Then others may have passed the barrier (MC-4).
    pub(crate) fn has_entered(&self) -> bool {
        matches!(self.phase, InstancePhase::Barrier | InstancePhase::Running)
    }

    fn running(&self) -> bool {
        matches!(self.phase, InstancePhase::Running)
    }

    /// Whether a local rank has not called and has no stand-in.
    fn is_anyone_missing(&self) -> bool {
        self.locals.iter().any(Local::is_missing)
    }

    /// Whether a rank may end the call without news of all others.
    pub(crate) fn may_end_alone(&self) -> bool {
        self.policy != Policy::Barrier
    }

    /// The error if the call cannot succeed because rank `gone` has left and still owes something to the call.
    pub(crate) fn mismatch_with_departed(&self, cx: &Context<'_>, gone: Rank) -> Option<CollectiveError> {
        match self.policy {
            _ if !self.is_active() => None,
            // No peer passes a barrier that this service process has not entered. `gone` sent all its steps before
            // leaving.
            Policy::Barrier => {
                let owes = self.barrier.awaited() == Some(cx.members.of_rank[gone.0 as usize]);
                (owes || matches!(self.phase, InstancePhase::Gathering)).then_some(CollectiveError::RankLost(gone))
            }
            Policy::Pairs => cx.transfer.unanswered(self.id, gone),
            Policy::Eager => self.unmatched_eager(cx, gone),
            // The engines have all messages of `gone`.
            Policy::Offloaded => None,
        }
    }

    /// The first known call of the instance.
    pub(crate) fn first_call(&self) -> FirstCall {
        FirstCall { rank: self.first_caller, signature: self.signature }
    }

    /// The call and what it waits for, as of `now`.
    pub(crate) fn in_flight_now(&self, now: Instant, members: &Members, transfer: &Transfer) -> InFlightInstance {
        let mut awaits: BTreeSet<Rank> = self.barrier.awaited().map(|at| members.lowest_rank(at)).into_iter().collect();
        if self.running() {
            let here = |scope| scope == Scope::Instance(self.id);
            awaits.extend(self.multicast.awaited());
            let destinations = transfer.destinations(here).filter(|_| self.may_end_alone());
            awaits.extend(transfer.sources(here).chain(destinations).filter(|rank| members.local(*rank).is_none()));
        }
        InFlightInstance {
            group: members.handle,
            instance: self.id,
            signature: self.signature,
            age_ns: now.0.saturating_sub(self.since.0),
            absent: self.locals.iter().filter(|local| local.is_absent()).map(|local| local.rank).collect(),
            awaits: awaits.into_iter().collect(),
        }
    }

    /// Whether a call of `rank` is in flight here.
    pub(crate) fn in_flight(&self, rank: Rank) -> bool {
        self.locals.iter().any(|local| local.rank == rank && local.call().is_some())
    }

    pub(crate) fn has_call(&self, id: CallId) -> Option<Rank> {
        self.locals.iter().find(|local| local.call().is_some_and(|call| call.id == id)).map(|local| local.rank)
    }

    /// A local rank calls. The caller has compared the signatures and checked the blocks. An error breaks the group.
    pub(crate) fn handle_call(&mut self, cx: &mut Context<'_>, call: RankCall) -> Result<(), CollectiveError> {
        let (rank, ranks) = (call.rank, cx.members.ranks());
        let i = cx.members.local(rank).expect("the caller checks that the rank is local");
        let local = &mut self.locals[i];
        if self.policy == Policy::Pairs {
            local.set_program(pairs::program(&call, ranks));
        }
        let (missed, staging) = match std::mem::replace(&mut local.presence, Presence::Ended) {
            Presence::Absent { wanted } => (wanted.filter(|_| self.stand_ins.have_begun()), None),
            Presence::StoodIn(staging) => (Some(self.since), Some(staging)),
            Presence::Called(..) | Presence::Ended => unreachable!("the group counts the calls of a rank"),
        };
        let stood_in = staging.as_ref().map(|staging| staging.id);
        local.presence = Presence::Called(call, staging);
        let slow = self.policy != Policy::Pairs && cx.out.now.since(self.since) > cx.config.stand_in_after;
        if let Some(began) = missed.or(slow.then_some(self.since)) {
            cx.out.late(cx.members.handle, rank, self.id, self.signature.kind, began);
        }
        if let Some(id) = stood_in {
            self.copy_from_staging(cx, i, MemRegion::Staging(id));
        }
        if self.policy == Policy::Pairs {
            self.hold_tables(cx, rank, run::table_bytes(self.locals[i].run.program()))?;
        }
        self.check_scratch(cx)?;
        self.handle_local_ready(cx)
    }

    fn handle_local_ready(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        self.retry_blocked(cx);
        self.try_enter(cx)?;
        self.advance(cx);
        Ok(())
    }

    /// Continues when the group's window, or local memory, may have become available. An error breaks the group.
    pub(crate) fn try_enter(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        self.scratch.cancel_retry();
        let open = self.id.0 <= cx.members.window_end;
        match (&self.phase, self.policy) {
            (InstancePhase::Gathering, Policy::Barrier) if open => self.try_enter_barrier(cx),
            (InstancePhase::Gathering | InstancePhase::Running, Policy::Eager) if open => self.advance_eager(cx),
            (InstancePhase::Gathering | InstancePhase::Running, Policy::Pairs) if open => self.begin(cx),
            (InstancePhase::Gathering | InstancePhase::Running, Policy::Offloaded) if open => {
                self.advance_offloaded(cx)
            }
            (
                InstancePhase::AwaitingSizes(_)
                | InstancePhase::Gathering
                | InstancePhase::Barrier
                | InstancePhase::Running,
                _,
            )
            | (InstancePhase::Failed(_) | InstancePhase::Ended, _) => Ok(()),
        }
    }

    /// The name of a message of the plan.
    fn name(&self, source: Rank, destination: Rank, index: u32) -> MessageName {
        MessageName { scope: Scope::Instance(self.id), destination, source, tag: index, occurrence: 0 }
    }

    /// The origin in the call's offers.
    fn origin(&self) -> OfferOrigin {
        OfferOrigin::Instance { instance: self.id, signature: self.signature, first_caller: self.first_caller }
    }

    fn step(&self, local: usize, op: OpId) -> StepOf {
        StepOf { owner: StepOwner::Instance { instance: self.id, local }, op }
    }

    /// An offer for a call without a barrier.
    pub(crate) fn handle_offer(
        &mut self,
        cx: &mut Context<'_>,
        from: SpId,
        offer: TransferMessage,
        payload_len: u32,
    ) -> Result<(), Rejection> {
        match self.policy {
            _ if !self.is_active() => Ok(()),
            Policy::Pairs => self.handle_pairs_offer(cx, from, offer, payload_len),
            Policy::Eager => self.handle_eager_offer(cx, from, offer, payload_len),
            // All members agree on the policy, so no offer can come for calls with these policies.
            Policy::Barrier | Policy::Offloaded => Err(NO_OFFER.into()),
        }
    }

    /// Whether other ranks need nothing of local ranks whose programs are done. Without a barrier nothing is ever
    /// needed.
    fn may_complete(&self) -> bool {
        self.may_end_alone() || self.running() && self.multicast.is_complete()
    }

    /// Ends the calls that can end. When all local calls have ended, ends the instance.
    fn try_end(&mut self, cx: &mut Context<'_>) {
        if self.multicast.has_outstanding() {
            return;
        }
        match &self.phase {
            InstancePhase::Gathering | InstancePhase::Running if self.may_complete() => {
                for i in 0..self.locals.len() {
                    if self.locals[i].call().is_some() && self.locals[i].run.finished() {
                        self.end_local(cx, i, Ok(()));
                    }
                }
                if !self.locals.iter().all(|l| matches!(l.presence, Presence::Ended)) {
                    return;
                }
            }
            InstancePhase::Failed(error) => {
                let error = error.clone();
                (0..self.locals.len()).for_each(|i| self.end_local(cx, i, Err(error.clone())));
            }
            InstancePhase::AwaitingSizes(_)
            | InstancePhase::Gathering
            | InstancePhase::Barrier
            | InstancePhase::Running
            | InstancePhase::Ended => return,
        }
        self.phase = InstancePhase::Ended;
        self.multicast.cancel_checks();
        cx.out.release(Quota::Tables, std::mem::take(&mut self.table_bytes));
        self.scratch.free(cx, self.id);
        let (transfer, mut site) = cx.transfer();
        transfer.forget_instance(&mut site, self.id);
        cx.out.ended_instances.push((cx.members.handle, self.id));
    }

    /// Ends one rank's call: its buffers are not used any more.
    fn end_local(&mut self, cx: &mut Context<'_>, i: usize, result: Result<(), CollectiveError>) {
        self.multicast.stop(self.locals[i].rank);
        let offloaded_list = self.locals[i].offloaded_list.take().and_then(OffloadedList::into_staging);
        offloaded_list.into_iter().for_each(|staging| cx.out.unstage(staging));
        let staging = match std::mem::replace(&mut self.locals[i].presence, Presence::Ended) {
            Presence::Absent { .. } | Presence::Ended => None,
            Presence::StoodIn(staging) => Some(staging),
            Presence::Called(call, staging) => {
                let RankCall { id, group, instance, rank, .. } = call;
                cx.out.complete(CallCompletion { call: id, group, instance, rank }, result);
                staging
            }
        };
        if let Some(staging) = staging {
            cx.out.unstage_early(cx.members.handle, self.id, staging);
        }
    }

    /// Ends the call with an error, as soon as the driver has returned all batches.
    pub(crate) fn fail(&mut self, cx: &mut Context<'_>, error: CollectiveError) {
        if !self.is_active() {
            return;
        }
        self.phase = InstancePhase::Failed(error);
        let (transfer, mut site) = cx.transfer();
        transfer.cancel(&mut site, self.id);
        self.multicast.cancel_timers();
        self.stand_ins.cancel_timer();
        self.scratch.cancel_retry();
        self.try_end(cx);
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let request_at = if let InstancePhase::AwaitingSizes(call) = &self.phase { call.request_at() } else { None };
        let stand_ins = self.stand_ins.poll_timeout();
        let timers = [self.multicast.poll_timeout(), stand_ins, self.scratch.retry_at(), self.notify_at, request_at];
        timers.into_iter().flatten().min()
    }

    /// Handles the timers. An error breaks the group.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        let due = |t: Option<Instant>| t.is_some_and(|t| t <= cx.out.now);
        let stand_in = due(self.stand_ins.poll_timeout());
        let [check, whole] = self.multicast.handle_timeout(cx.out.now);
        if due(self.scratch.retry_at()) {
            self.try_enter(cx)?;
        }
        self.notify_offloaded(cx);
        if stand_in {
            self.stand_ins.cancel_timer();
            match self.policy {
                Policy::Offloaded => unreachable!("nobody is stood in for where engines carry calls out"),
                Policy::Barrier | Policy::Eager => self.stand_in(cx)?,
                Policy::Pairs => self.stand_in_pairs(cx),
            }
        }
        if whole {
            self.send_have(cx);
        }
        if check {
            self.check(cx);
        }
        self.request_sizes(cx);
        Ok(())
    }
}
