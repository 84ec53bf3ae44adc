//! Calls that the engine beside the service process carries out, as a task list of messages between engines
//! ([`outboard_plan::deferred`], CD-1).
//!
//! Nothing is said between service processes: each rank's list is handed over when it calls, and a message names what
//! was called, so calls that differ do not meet. Who waits long for the end tells the others what was called
//! ([`Instance::tell_offloaded`]); they compare.
//!
//! | a local rank's list is | on | goes to |
//! |---|---|---|
//! | absent | its call, behind the window | with the engine: what it sends lies in memory of the service process |
//! | with the engine | its end | done: what has come is copied to the rank |
//! | with the engine | the end of the instance by an error | done: the driver withdraws it |
//!
//! Invariant: the engine is never given a rank's memory, which may go while it works. All members decide alike which
//! calls it carries out, by `Layout::choose`. Nobody is stood in for.

use std::time::Duration;

use outboard_plan::deferred::{Action, List};
use outboard_plan::{Buffer, Op, OpId, Span};

use super::{Context, Instance, Local, Phase};
use crate::error::CollectiveError;
use crate::ids::CallId;
use crate::interface::{EngineMessage, MemRef, Offload, Region, Step};
use crate::outbox::{Quota, Staging};
use crate::wire::{InstanceMessage, Message};

/// How long a call may take before others are told of it, at first.
const PATIENCE: Duration = Duration::from_secs(1);
/// Buffers begin where any element may lie.
const ALIGN: u64 = 64;

/// A list that the engine has.
#[derive(Debug)]
pub(super) struct Handed {
    /// What has come is copied from there; none where the list has no bytes.
    mirror: Option<Mirror>,
    delivers: Vec<Span>,
}

/// Input and output of a program in memory of the service process, one behind the other.
#[derive(Debug)]
struct Mirror {
    staging: Staging,
    output: u64,
}

impl Mirror {
    fn place(&self, span: Span) -> MemRef {
        let start = if span.buffer == Buffer::Output { self.output } else { 0 };
        MemRef { region: Region::Staging(self.staging.id), offset: start + span.offset, len: span.len }
    }
}

impl Handed {
    pub(super) fn into_staging(self) -> Option<Staging> {
        self.mirror.map(|mirror| mirror.staging)
    }
}

impl Instance {
    /// The window of the group is open: hands over the lists of all ranks that have called. An error breaks the group.
    pub(super) fn go_on_offloaded(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        if matches!(self.phase, Phase::Gathering) {
            self.phase = Phase::Running;
            cx.out.step(cx.members.handle, self.id, Step::Ready);
        }
        for i in 0..self.locals.len() {
            if self.locals[i].call().is_some() && self.locals[i].handed.is_none() && !self.locals[i].run.finished() {
                self.hand_list_over(cx, i)?;
            }
        }
        self.try_end(cx);
        Ok(())
    }

    fn hand_list_over(&mut self, cx: &mut Context<'_>, i: usize) -> Result<(), CollectiveError> {
        let list = List::lower(self.locals[i].run.program()).expect("what is chosen can be lowered");
        self.copy_what_is_ready(cx, i);
        if list.tasks.is_empty() {
            return Ok(());
        }
        let mirror = self.mirror(cx, i)?;
        let local = &self.locals[i];
        for span in &list.gathers {
            let from = local.memory(self.extents.as_ref(), *span).expect("the rank has called");
            cx.out.copy(from, mirror.as_ref().expect("a list with bytes").place(*span));
        }
        let message = |(peer, from, to, index, span): (_, _, _, u32, Span)| EngineMessage {
            peer: cx.members.engine_of(peer).clone(),
            tag: cx.members.engine_tag((self.id, &self.signature), (from, to, index)),
            memory: mirror.as_ref().filter(|_| span.len > 0).map(|mirror| mirror.place(span)),
        };
        let messages = list.tasks.iter().map(|task| match task.action {
            Action::Send { to, index, span, .. } => Some(message((to, local.rank, to, index, span))),
            Action::Receive { from, index, span, .. } => Some(message((from, from, local.rank, index, span))),
            Action::Add { .. } => None,
        });
        let (messages, delivers) = (messages.collect(), list.delivers.clone());
        let call = local.call().expect("the caller looks").id;
        cx.out.offload(Offload { call, group: cx.members.handle, instance: self.id, list, messages });
        self.locals[i].handed = Some(Handed { mirror, delivers });
        self.tell_at.get_or_insert(cx.out.now + PATIENCE);
        Ok(())
    }

    /// Memory for what a list sends and receives.
    fn mirror(&self, cx: &mut Context<'_>, i: usize) -> Result<Option<Mirror>, CollectiveError> {
        let program = self.locals[i].run.program();
        let output = program.input_bytes.next_multiple_of(ALIGN);
        let bytes = output + program.output_bytes;
        if bytes == 0 {
            return Ok(None);
        }
        let staging = cx.out.stage(Quota::Calls, cx.members, bytes);
        let none = CollectiveError::Staging { rank: self.locals[i].rank, bytes };
        staging.map(|staging| Some(Mirror { staging, output })).ok_or(none)
    }

    /// Does the copies of a rank's program that can be done.
    fn copy_what_is_ready(&mut self, cx: &mut Context<'_>, i: usize) {
        while let Some(op) = self.locals[i].run.next_ready() {
            if let Op::Copy { .. } = self.locals[i].run.op(op) {
                let started = self.start(cx, i, op);
                assert!(started, "a rank that has called has its memory");
            }
        }
    }

    /// The engine has carried out the list of a local rank.
    pub(crate) fn handle_offloaded(&mut self, cx: &mut Context<'_>, i: usize) {
        let Some(handed) = self.locals[i].handed.take() else { return };
        for span in &handed.delivers {
            let to = self.locals[i].memory(self.extents.as_ref(), *span).expect("the rank has called");
            cx.out.copy(handed.mirror.as_ref().expect("a list with bytes").place(*span), to);
        }
        handed.into_staging().into_iter().for_each(|staging| cx.out.unstage(staging));
        let local = &mut self.locals[i];
        for id in (0..local.run.program().steps.len() as u32).map(OpId) {
            if let Op::Send { .. } | Op::Recv { .. } = local.run.op(id) {
                local.run.complete(id);
            }
        }
        self.copy_what_is_ready(cx, i);
        self.try_end(cx);
    }

    /// The local rank whose list the engine has for this call.
    pub(crate) fn offloaded(&self, call: CallId) -> Option<usize> {
        let handed = |local: &Local| local.handed.is_some() && local.call().is_some_and(|made| made.id == call);
        self.locals.iter().position(handed)
    }

    /// Tells the others of a long call: who has called something else does not wait for its messages.
    pub(super) fn tell_offloaded(&mut self, cx: &mut Context<'_>) {
        if self.tell_at.is_none_or(|at| at > cx.out.now) {
            return;
        }
        let waited = cx.out.now.since(self.since);
        self.tell_at = Some(cx.out.now + waited.max(PATIENCE));
        let (me, group) = (cx.members.sps[cx.members.me as usize], cx.members.handle);
        for sp in cx.members.sps.iter().filter(|sp| **sp != me) {
            let ready = InstanceMessage::Ready { step: 0, signature: self.signature, rank: self.signer };
            cx.out.messages.push_back((*sp, Message::instance(group, self.id, ready)));
        }
    }
}
