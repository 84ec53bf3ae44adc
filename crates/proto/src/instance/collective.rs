//! One collective at one service process: the local ranks' programs, the ready barrier and the blocks in flight.
//!
//! | phase | event | next |
//! |---|---|---|
//! | Gathering | every local rank has called or is stood in for, the group's window is open and scratch is taken | Barrier |
//! | Barrier | all service processes are ready (MC-4) | Running |
//! | Running | the calls of all local ranks have ended | Ended |
//! | Gathering, Barrier, Running | [`Collective::fail`] | Failed, and Ended when nothing of ours is on its way |
//!
//! A rank is absent, stood in for (its output is staging, SP-6), has called, or its call has ended: when its program is
//! done, the right neighbour complete (MC-7) and nothing of ours on its way to the wire. A rank that is late keeps only
//! those waiting that need what it contributes. News of the collective from another host starts the clock after which
//! the service process stands in. In place means that the input is an alias of the rank's part of the output (of the root of a
//! scatter the other way round), so one program serves both forms. Reductions are ordered as the programs order them, whatever comes first, so that results have
//! the same bits from run to run (TH-2). Nobody stands in at a [`CallKind::Barrier`]: once all are ready for it, all have
//! called, and nothing is left to do.
//!
//! Invariants: every call completes once; none of its buffers is named after that. Never sees payload.

use std::collections::BTreeSet;

use outboard_plan::{Buffer, Extents, Op, OpId, Rank, Span};

use crate::deadlines::Deadlines;
use crate::error::CollectiveError;
use crate::group::barrier::Barrier;
use crate::group::members::Members;
use crate::ids::{CallId, InstanceId, Instant, SpId, StagingId};
use crate::instance::Context;
use crate::instance::by_rank::ByRank;
use crate::instance::run::Run;
use crate::interface::{Call, CallKind, InFlight, MemRef, Moves, Pairs, Region, Signature, Step};
use crate::multicast::block::{Block, chunks_of};
use crate::multicast::pacing::Share;
use crate::outbox::{Completion, Quota, Staging};
use crate::transfer::{Name, Outbound, Owner, Posting, StepOf, Transfer};
use crate::wire::{InstanceMessage, MAX_BLOCKS, Message, Scope};

mod layout;
mod recovery;
mod scratch;
mod shares;

pub(crate) use layout::Layout;
pub(crate) use recovery::Batch;
use scratch::Scratch;
use shares::Shares;

#[derive(Debug)]
enum Phase {
    Gathering,
    Barrier,
    Running,
    Failed(CollectiveError),
    /// Whether with an error.
    Ended {
        failed: bool,
    },
}

#[derive(Debug)]
enum Presence {
    Absent,
    StoodIn(Staging),
    /// The staging of the time before the call is kept, since frames may still name it.
    Called(Call, Option<Staging>),
    Ended,
}

#[derive(Debug)]
struct Local {
    rank: Rank,
    presence: Presence,
    run: Run,
    /// Steps that wait for this rank's own call, for another local rank, or for the barrier.
    blocked: Vec<OpId>,
    /// Receives that wait for memory.
    unposted: Vec<OpId>,
    /// Where its scratch begins, once there is some.
    scratch: Option<(StagingId, u64)>,
}

/// One collective at one service process.
#[derive(Debug)]
pub(crate) struct Collective {
    instance: InstanceId,
    signature: Signature,
    /// Somebody who called it so.
    signer: Rank,
    /// When the first news of it came.
    since: Instant,
    phase: Phase,
    barrier: Barrier,
    locals: Vec<Local>,
    scratch: Scratch,
    /// By the rank that multicasts it. Empty when nothing is multicast between hosts.
    blocks: ByRank<Block>,
    subgroups: u16,
    /// How large the blocks are; of a broadcast the one.
    extents: Extents,
    shares: Shares,
    /// Blocks of other hosts that are not whole here.
    leaves_missing: u32,
    complete_sent: bool,
    right_complete: bool,
    /// Blocks that may have chunks to serve to the right neighbour.
    serving: BTreeSet<u32>,
    /// NAKs that the links have not delivered.
    asks_unanswered: u32,
    whole_pending: Vec<Rank>,
    whole_at: Option<Instant>,
    /// When its own blocks begin to leave, if not yet.
    begin_at: Option<Instant>,
    /// When which block is to be checked.
    checks: Deadlines<Rank>,
    /// When news of it came while a local rank was absent.
    began: Option<Instant>,
    stand_in_at: Option<Instant>,
    /// When scratch is asked for again that others of the group came first for.
    equip_at: Option<Instant>,
    /// Multicast batches handed to the driver and not yet done.
    outstanding: u32,
}

impl Collective {
    /// A collective of which `signer`'s call is the first news. Fails when its sizes cannot be.
    pub(crate) fn new(
        cx: &mut Context<'_>,
        instance: InstanceId,
        (signer, signature): (Rank, Signature),
        (extents, layout): (Extents, Layout),
    ) -> Result<Self, &'static str> {
        if extents.sizes().any(|bytes| chunks_of(bytes, cx.config.chunk_bytes) >= u64::from(u32::MAX)) {
            return Err("a block of more than 2^32 chunks");
        }
        let local = |rank: &Rank| -> Result<Local, &'static str> {
            let run = Run::new(layout.program(signature, &extents, *rank)?);
            let unposted = run.receives().map(|(op, _)| op).collect();
            Ok(Local { rank: *rank, presence: Presence::Absent, run, blocked: Vec::new(), unposted, scratch: None })
        };
        let locals = cx.members.locals.iter().map(local).collect::<Result<Vec<_>, _>>()?;
        let here = |r: Rank| cx.members.sp_of(r) == cx.members.sps[cx.members.me as usize];
        let block = |(r, bytes): (Rank, u64)| (r, Block::new(bytes, cx.config.chunk_bytes, here(r)));
        let program = locals[0].run.program();
        let (chains, subgroups) = (program.chains, program.subgroups);
        // Within one service process what is multicast is copied.
        let networked = cx.members.sps.len() > 1;
        let blocks: ByRank<Block> = locals[0].run.multicast_roots().filter(|_| networked).map(block).collect();
        Ok(Collective {
            instance,
            signature,
            signer,
            since: cx.out.now,
            phase: Phase::Gathering,
            barrier: Barrier::new(cx.members.me, cx.members.sps.len() as u32),
            scratch: Scratch::new(cx.members, instance, &locals)?,
            locals,
            leaves_missing: blocks.iter().filter(|(_, block)| !block.is_root()).count() as u32,
            complete_sent: blocks.is_empty(),
            right_complete: blocks.is_empty(),
            blocks,
            subgroups,
            shares: Shares::new(cx.members, cx.config, signature.kind, chains, &extents),
            extents,
            serving: BTreeSet::new(),
            asks_unanswered: 0,
            whole_pending: Vec::new(),
            whole_at: None,
            begin_at: None,
            checks: Deadlines::default(),
            began: None,
            stand_in_at: None,
            equip_at: None,
            outstanding: 0,
        })
    }

    pub(crate) fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended { .. })
    }

    /// Ended with an error.
    pub(crate) fn failed(&self) -> bool {
        matches!(self.phase, Phase::Ended { failed: true })
    }

    /// Neither ended nor failed: takes part in the protocol.
    pub(crate) fn alive(&self) -> bool {
        match self.phase {
            Phase::Gathering | Phase::Barrier | Phase::Running => true,
            Phase::Failed(_) | Phase::Ended { .. } => false,
        }
    }

    fn running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// What this service process may fill of the links: roots whose blocks are here have sent, and leave the links to those that
    /// are late (SP-6).
    pub(crate) fn share(&self, members: &Members) -> Share {
        let sends = |local: &&Local| self.blocks.get(local.rank).is_some_and(|block| !block.is_full());
        let own = self.locals.iter().filter(sends).count() as u32;
        self.shares.of(members, self.locals[0].rank).0.among(self.leaves_missing + own)
    }

    pub(crate) fn signature(&self) -> (Rank, Signature) {
        (self.signer, self.signature)
    }

    /// What is waited for, as of `now`.
    pub(crate) fn in_flight_now(&self, now: Instant, members: &Members, transfer: &Transfer) -> InFlight {
        let absent = |l: &&Local| matches!(l.presence, Presence::Absent | Presence::StoodIn(_));
        let mut awaits: BTreeSet<Rank> = self.barrier.awaited().map(|at| members.lowest_rank(at)).into_iter().collect();
        if self.running() {
            let whole = |block: &Block| block.is_root() || block.is_full();
            awaits.extend(self.blocks.iter().filter(|(_, block)| !whole(block)).map(|(source, _)| source));
            let sources = transfer.sources(|scope| scope == Scope::Instance(self.instance));
            awaits.extend(sources.filter(|source| members.local(*source).is_none()));
        }
        InFlight {
            group: members.handle,
            instance: self.instance,
            signature: self.signature,
            age_ns: now.0.saturating_sub(self.since.0),
            absent: self.locals.iter().filter(absent).map(|l| l.rank).collect(),
            awaits: awaits.into_iter().collect(),
        }
    }

    /// The calls of `rank` that are in flight here.
    pub(crate) fn in_flight(&self, rank: Rank) -> bool {
        self.locals.iter().any(|l| l.rank == rank && matches!(l.presence, Presence::Called(..)))
    }

    pub(crate) fn has_call(&self, id: CallId) -> Option<Rank> {
        self.locals.iter().find(|l| matches!(&l.presence, Presence::Called(c, _) if c.id == id)).map(|l| l.rank)
    }

    /// A local rank calls. The caller has compared the signatures. An error breaks the group.
    pub(crate) fn handle_call(&mut self, cx: &mut Context<'_>, call: Call) -> Result<(), CollectiveError> {
        let i = cx.members.local(call.rank).expect("the caller checks that the rank is local");
        let presence = std::mem::replace(&mut self.locals[i].presence, Presence::Absent);
        let staging = match presence {
            Presence::Absent => None,
            Presence::StoodIn(staging) => Some(staging),
            Presence::Called(..) | Presence::Ended => unreachable!("the group counts the calls of a rank"),
        };
        if staging.is_some() || cx.out.now.since(self.since) > cx.config.stand_in_after {
            cx.out.late(cx.members.handle, call.rank, (self.instance, self.signature.kind), self.since);
        }
        let stood_in = staging.as_ref().map(|s| s.id);
        self.locals[i].presence = Presence::Called(call, staging);
        if let Some(id) = stood_in {
            self.hand_over(cx, i, Region::Staging(id));
        }
        self.check_scratch(cx)?;
        self.local_is_ready(cx)
    }

    /// What came while the rank was absent, and what was made of it, goes from staging to its own buffer.
    fn hand_over(&mut self, cx: &mut Context<'_>, i: usize, staging: Region) {
        let local = &self.locals[i];
        let mut written: Vec<Span> = Vec::new();
        for (op, name, span) in self.receives_of(i).filter(|(_, _, span)| span.buffer == Buffer::Output) {
            let to = local.memory(&self.extents, span).expect("the rank has called");
            let len = if local.run.is_done(op) { span.len } else { cx.transfer.move_expected(&name, to) };
            written.extend((len > 0).then_some(Span { len, ..span }));
        }
        let copy = |cx: &mut Context<'_>, span: Span| {
            let to = local.memory(&self.extents, span).expect("the rank has called");
            cx.out.copy(MemRef { region: staging, offset: span.offset, len: span.len }, to);
        };
        for (root, span) in local.run.multicast_receives() {
            let (op, _) = local.run.multicast_receive(root).expect("just listed");
            if local.run.is_done(op) {
                copy(cx, span);
            } else if let Some(block) = self.blocks.get(root).filter(|b| !b.is_root()) {
                for r in block.present_bytes() {
                    copy(cx, Span { offset: span.offset + r.start, len: r.end - r.start, ..span });
                }
            }
        }
        written.extend(local.run.made().filter(|s| s.buffer == Buffer::Output));
        // A span that several reductions have written goes over once.
        written.sort_by_key(|span| (span.offset, span.len));
        written.dedup();
        written.into_iter().for_each(|span| copy(cx, span));
    }

    /// News of the collective from another host, which came at `since`: absent ranks have until the stand-in.
    pub(crate) fn heard_of(&mut self, cx: &mut Context<'_>, since: Instant) {
        let stands_in = self.signature.kind != CallKind::Barrier;
        if matches!(self.phase, Phase::Gathering) && self.began.is_none() && stands_in {
            self.began = Some(since);
            self.stand_in_at = Some(cx.out.now + cx.config.stand_in_after);
        }
    }

    /// Stands in for all ranks that have not called (SP-6), if the staging quota allows it beside the scratch. Else for none:
    /// the collective cannot go on before the last of them has called, and what it held for the others would keep
    /// itself from its scratch, or those collectives from ending that the ranks still wait for.
    fn stand_in(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        self.stand_in_at = None;
        let absent = |local: &&mut Local| matches!(local.presence, Presence::Absent);
        let outputs = self.locals.iter_mut().filter(absent).map(|local| local.run.program().output_bytes);
        let bytes = outputs.fold(self.scratch.wanted(), u64::saturating_add);
        if !cx.out.can_stage(Quota::Late, cx.members.owner, bytes) || !self.take_scratch(cx, Quota::Late) {
            // Looked at again at the next chance: staging of another collective may have been given back.
            self.stand_in_at = Some(cx.out.now + cx.config.stand_in_after * 4);
            return Ok(());
        }
        for local in self.locals.iter_mut().filter(absent) {
            let staging = cx.out.stage(Quota::Late, cx.members.owner, local.run.program().output_bytes);
            local.presence = Presence::StoodIn(staging.expect("there is room for all"));
            cx.out.step(cx.members.handle, self.instance, Step::StoodIn(local.rank));
        }
        self.local_is_ready(cx)
    }

    fn local_is_ready(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        self.retry_blocked(cx);
        self.try_enter(cx)?;
        self.advance(cx);
        Ok(())
    }

    /// Memory is at hand that was not, or the barrier has been passed.
    fn retry_blocked(&mut self, cx: &mut Context<'_>) {
        for i in 0..self.locals.len() {
            let local = &mut self.locals[i];
            let blocked = std::mem::take(&mut local.blocked);
            local.run.retry(blocked);
            for op in std::mem::take(&mut local.unposted) {
                let local = &mut self.locals[i];
                let Op::Recv { from, index, span } = local.run.op(op) else { continue };
                let (name, step) = (self.name(from, self.locals[i].rank, index), self.step(i, op));
                match self.locals[i].memory(&self.extents, span) {
                    Some(to) => {
                        let (transfer, mut site) = cx.transfer();
                        transfer.expect(&mut site, name, Posting { step, to });
                    }
                    None => self.locals[i].unposted.push(op),
                }
            }
        }
    }

    /// The name of a message of the plan.
    fn name(&self, source: Rank, destination: Rank, index: u32) -> Name {
        Name { scope: Scope::Instance(self.instance), destination, source, tag: index, occurrence: 0 }
    }

    fn step(&self, local: usize, op: OpId) -> StepOf {
        StepOf { owner: Owner::Instance { instance: self.instance, local }, op }
    }

    /// The receives of a local rank.
    fn receives_of(&self, i: usize) -> impl Iterator<Item = (OpId, Name, Span)> + '_ {
        let local = &self.locals[i];
        local.run.receives().map(move |(op, (from, index, span))| (op, self.name(from, local.rank, index), span))
    }

    /// Enters the ready barrier if all is ready here. Called again when the window of the group has moved. An error breaks
    /// the group.
    pub(crate) fn try_enter(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        self.equip_at = None;
        let ready = self.locals.iter().all(|l| !matches!(l.presence, Presence::Absent));
        if !matches!(self.phase, Phase::Gathering) || !ready || self.instance.0 > cx.members.window_end {
            return Ok(());
        }
        if !self.take_own_scratch(cx)? {
            self.equip_at = Some(cx.out.now + cx.config.stand_in_after * 4);
            return Ok(());
        }
        self.phase = Phase::Barrier;
        cx.out.step(cx.members.handle, self.instance, Step::Entered);
        self.stand_in_at = None;
        let mut out = Vec::new();
        self.barrier.enter(&mut out);
        self.send_ready(cx, out);
        self.advance(cx);
        Ok(())
    }

    /// A step of the ready barrier. The caller has compared the signatures. False when no such step can be.
    pub(crate) fn handle_ready(&mut self, cx: &mut Context<'_>, from: u32, step: u8) -> bool {
        let mut out = Vec::new();
        let known = self.barrier.handle(from, step, &mut out);
        self.send_ready(cx, out);
        self.advance(cx);
        known
    }

    fn send_ready(&mut self, cx: &mut Context<'_>, steps: Vec<(u32, u8)>) {
        for (to, step) in steps {
            let (signature, rank) = (self.signature, self.signer);
            let ready = InstanceMessage::Ready { step, signature, rank };
            let message = Message::instance(cx.members.handle, self.instance, ready);
            cx.out.messages.push_back((cx.members.sps[to as usize], message));
        }
        if self.barrier.done() && matches!(self.phase, Phase::Barrier) {
            self.phase = Phase::Running;
            cx.out.step(cx.members.handle, self.instance, Step::Ready);
            self.begin_at = self.begins(cx);
            self.retry_blocked(cx);
            self.note_complete(cx);
        }
    }

    /// Starts every step that can start, and ends the collective when nothing is left.
    fn advance(&mut self, cx: &mut Context<'_>) {
        if !self.alive() {
            return self.try_end(cx);
        }
        // What one local rank does may make a step of another ready that was looked at before.
        while let Some(i) = self.locals.iter().position(|l| l.run.has_ready()) {
            while let Some(op) = self.locals[i].run.next_ready() {
                self.start(cx, i, op);
            }
        }
        self.try_end(cx);
    }

    fn start(&mut self, cx: &mut Context<'_>, i: usize, id: OpId) {
        match self.locals[i].run.op(id) {
            // Receives are posted with the program: nothing to start (MC-4).
            Op::Recv { .. } | Op::MulticastRecv { .. } => {}
            Op::Copy { from, to } => {
                let local = &mut self.locals[i];
                match (local.memory(&self.extents, from), local.memory(&self.extents, to)) {
                    (Some(from), Some(to)) => {
                        cx.out.copy(from, to);
                        local.run.complete(id);
                    }
                    _ => local.blocked.push(id),
                }
            }
            Op::Reduce { from, into, from_left } => {
                let local = &mut self.locals[i];
                match (local.memory(&self.extents, from), local.memory(&self.extents, into)) {
                    (Some(from), Some(into)) => {
                        let reduction = self.signature.kind.reduction().expect("plans of reductions alone combine");
                        cx.out.reduce(reduction, (from, into), from_left);
                        local.run.complete(id);
                    }
                    _ => local.blocked.push(id),
                }
            }
            Op::Send { to, index, span } => {
                let local = &self.locals[i];
                // Until all are ready nothing leaves for other hosts.
                let may_leave = self.running() || cx.members.local(to).is_some();
                match local.memory(&self.extents, span).filter(|_| may_leave) {
                    Some(from) => {
                        let signal = span.is_empty() && span.buffer == Buffer::Scratch;
                        let (name, step) = (self.name(local.rank, to, index), self.step(i, id));
                        let (transfer, mut site) = cx.transfer();
                        transfer.send_expected(&mut site, Outbound { step, name, from, signal });
                    }
                    None => self.locals[i].blocked.push(id),
                }
            }
            Op::Multicast { span } => self.start_multicast(cx, i, id, span),
        }
    }

    /// A step that sends or receives is done.
    pub(crate) fn complete(&mut self, cx: &mut Context<'_>, local: usize, op: OpId) {
        if self.alive() {
            self.locals[local].run.complete(op);
            self.advance(cx);
        }
    }

    /// Whether there may be repairs for the right neighbour.
    pub(crate) fn has_repair(&self) -> bool {
        self.running() && !self.serving.is_empty()
    }

    /// Gives the block to the other local ranks and, between hosts, to the wire.
    fn start_multicast(&mut self, cx: &mut Context<'_>, i: usize, id: OpId, span: Span) {
        let source = self.locals[i].rank;
        let Some(from) = self.locals[i].memory(&self.extents, span) else {
            self.locals[i].blocked.push(id);
            return;
        };
        if let Some(block) = self.blocks.get_mut(source) {
            block.start();
        }
        let mut all = true;
        for other in &mut self.locals {
            let Some((op, to)) = other.run.multicast_receive(source).filter(|(op, _)| !other.run.is_done(*op)) else {
                continue;
            };
            match other.memory(&self.extents, to) {
                Some(to) => {
                    cx.out.copy(from, to);
                    other.run.complete(op);
                }
                None => all = false,
            }
        }
        if !all {
            // Comes back when the missing local rank is ready.
            self.locals[i].blocked.push(id);
        } else if self.blocks.is_empty() {
            self.locals[i].run.complete(id);
        } else {
            self.finish_root(source);
        }
    }

    /// The multicast step of a local rank is done when its block is on the wire and with all local ranks.
    fn finish_root(&mut self, source: Rank) {
        let Some(i) = self.locals.iter().position(|l| l.rank == source) else { return };
        let full = self.blocks.get(source).is_some_and(Block::is_full);
        if !full || !self.locals.iter().all(|l| l.has_block_of(source)) {
            return;
        }
        let steps = &self.locals[i].run.program().steps;
        let id = steps.iter().position(|s| matches!(s.op, Op::Multicast { .. })).map(|p| OpId(p as u32));
        if let Some(id) = id.filter(|id| !self.locals[i].run.is_done(*id)) {
            self.locals[i].run.complete(id);
            self.locals[i].blocked.retain(|b| *b != id);
        }
    }

    /// Ends the calls that can end, and the collective when none is left.
    fn try_end(&mut self, cx: &mut Context<'_>) {
        if self.outstanding > 0 {
            return;
        }
        match &self.phase {
            Phase::Running if self.right_complete && self.complete_sent => {
                for i in 0..self.locals.len() {
                    if matches!(self.locals[i].presence, Presence::Called(..)) && self.locals[i].run.finished() {
                        self.end_local(cx, i, Ok(()));
                    }
                }
                if !self.locals.iter().all(|l| matches!(l.presence, Presence::Ended)) {
                    return;
                }
            }
            Phase::Failed(error) => {
                let error = error.clone();
                (0..self.locals.len()).for_each(|i| self.end_local(cx, i, Err(error.clone())));
            }
            Phase::Gathering | Phase::Barrier | Phase::Running | Phase::Ended { .. } => return,
        }
        self.phase = Phase::Ended { failed: matches!(self.phase, Phase::Failed(_)) };
        self.checks = Deadlines::default();
        self.give_scratch_back(cx);
        cx.transfer.forget_instance(self.instance);
        cx.out.forgotten.push((cx.members.handle, self.instance));
    }

    /// Nothing of this rank is named any more.
    fn end_local(&mut self, cx: &mut Context<'_>, i: usize, result: Result<(), CollectiveError>) {
        if let Some(block) = self.blocks.get_mut(self.locals[i].rank) {
            block.stop();
        }
        let staging = match std::mem::replace(&mut self.locals[i].presence, Presence::Ended) {
            Presence::Absent | Presence::Ended => None,
            Presence::StoodIn(staging) => Some(staging),
            Presence::Called(call, staging) => {
                let Call { id, group, instance, rank, .. } = call;
                cx.out.complete(Completion { call: id, group, instance, rank }, result);
                staging
            }
        };
        if let Some(staging) = staging {
            cx.out.unstage(staging);
        }
    }

    /// Ends the collective with an error, as soon as the driver has given back what it was handed.
    pub(crate) fn fail(&mut self, cx: &mut Context<'_>, error: CollectiveError) {
        if matches!(self.phase, Phase::Ended { .. } | Phase::Failed(_)) {
            return;
        }
        self.phase = Phase::Failed(error);
        let (transfer, mut site) = cx.transfer();
        transfer.cancel(&mut site, self.instance);
        self.checks = Deadlines::default();
        (self.whole_at, self.begin_at, self.stand_in_at, self.equip_at) = (None, None, None, None);
        self.try_end(cx);
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        [self.check_at(), self.whole_at, self.begin_at, self.stand_in_at, self.equip_at].into_iter().flatten().min()
    }

    /// Time has passed. An error breaks the group.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        let due = |t: Option<Instant>| t.is_some_and(|t| t <= cx.out.now);
        let (check, have, stand_in) = (due(self.check_at()), due(self.whole_at), due(self.stand_in_at));
        self.begin_at = self.begin_at.filter(|at| *at > cx.out.now);
        if due(self.equip_at) {
            self.try_enter(cx)?;
        }
        if stand_in {
            self.stand_in(cx)?;
        }
        if have {
            self.tell_whole(cx);
        }
        if check {
            self.check(cx);
        }
        Ok(())
    }

    /// `to` asks how large the blocks are, so that it can stand in for its ranks.
    pub(crate) fn tell_sizes(&self, cx: &mut Context<'_>, to: SpId) {
        let sizes: Vec<u64> = self.extents.sizes().collect();
        let (group, instance) = (cx.members.handle, self.instance);
        for (at, sizes) in sizes.chunks(MAX_BLOCKS).enumerate() {
            let (first, sizes) = ((at * MAX_BLOCKS) as u32, sizes.to_vec());
            let sizes = InstanceMessage::Sizes { first, sizes };
            cx.out.messages.push_back((to, Message::instance(group, instance, sizes)));
        }
    }

    /// Where another service process of the group is in the ring.
    fn is_right(cx: &Context<'_>, from: SpId) -> bool {
        cx.members.right() == from
    }
}

impl Local {
    /// Where a span of this rank lies, if it can be used now. A span of the output lies within one block.
    fn memory(&self, extents: &Extents, span: Span) -> Option<MemRef> {
        let Span { buffer, offset, len } = span;
        if len == 0 {
            // Nothing is ever done with this piece; but an empty input says that the rank has called.
            let is_there = buffer != Buffer::Input || matches!(self.presence, Presence::Called(..));
            return is_there.then_some(MemRef { region: Region::Staging(StagingId(0)), offset: 0, len: 0 });
        }
        let (region, offset) = match (&self.presence, buffer) {
            // The service refuses it where it cannot be.
            (Presence::Called(call, _), Buffer::Output) if call.in_place && keeps_input(call) => {
                (Region::Input(call.id), extents.block(self.rank).offset + offset)
            }
            (Presence::Called(call, _), Buffer::Input) if call.in_place && !keeps_input(call) => {
                let start = call.signature.kind.reduction().map_or_else(|| extents.block(self.rank).offset, |_| 0);
                (Region::Output(call.id), placed(call, extents, start + offset))
            }
            (Presence::Called(call, _), Buffer::Input) => (Region::Input(call.id), offset),
            (Presence::Called(call, _), Buffer::Output) => (Region::Output(call.id), placed(call, extents, offset)),
            (Presence::StoodIn(staging), Buffer::Output) => (Region::Staging(staging.id), offset),
            (Presence::Called(..) | Presence::StoodIn(_), Buffer::Scratch) => {
                let (staging, start) = self.scratch?;
                (Region::Staging(staging), start + offset)
            }
            // An absent rank has nothing, one stood in for has no input.
            (Presence::Absent | Presence::Ended, _) | (Presence::StoodIn(_), Buffer::Input) => return None,
        };
        Some(MemRef { region, offset, len })
    }

    fn has_block_of(&self, source: Rank) -> bool {
        self.run.multicast_receive(source).is_none_or(|(op, _)| self.run.is_done(op))
    }
}

/// Whether a call in place leaves the rank's own block in its input, as the root of a scatter does, and not in its output.
fn keeps_input(call: &Call) -> bool {
    matches!(call.signature.kind.class().moves, Moves::Blocks(Pairs::From(_)))
}

/// Where byte `offset` of the plan's output lies in that of the call, whose blocks may lie anywhere.
fn placed(call: &Call, extents: &Extents, offset: u64) -> u64 {
    let Some(blocks) = call.blocks.as_ref().filter(|_| call.signature.kind.reduction().is_none()) else {
        return offset;
    };
    let rank = extents.rank_at(offset);
    blocks.receive[rank.0 as usize].offset + (offset - extents.block(rank).offset)
}
