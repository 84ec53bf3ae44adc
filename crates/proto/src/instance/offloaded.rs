//! Calls that the engine beside the service process executes, as a task list of messages between engines
//! ([`outboard_plan::deferred`], CD-1).
//!
//! Service processes exchange no messages for such a call. Each rank's list is passed on when the rank calls. A message
//! tag depends on the signature, so different calls never match. A service process that waits long sends its signature
//! to the others ([`Instance::notify_offloaded`]), which compare it.
//!
//! | a local rank's list is | event | next |
//! |---|---|---|
//! | absent | the rank's call, behind the window | with the engine: its bytes are copied to the service process |
//! | with the engine | the engine completes the list | done: received bytes are copied to the rank |
//! | with the engine | the end of the instance by an error | done: the driver withdraws the list |
//!
//! Invariant: the engine never gets a rank's memory, which may be unmapped while the engine works. All members agree on
//! which calls the engine executes, by `PlanChoice::choose`. Such calls have no stand-in.

use std::time::Duration;

use outboard_plan::deferred::{DeferredAction, DeferredList};
use outboard_plan::{Buffer, Op, OpId, Span};

use super::{Context, Instance, InstancePhase, Local};
use crate::effects::{Quota, Staging};
use crate::error::CollectiveError;
use crate::ids::CallId;
use crate::interface::{EngineMessage, MemRef, MemRegion, Milestone, Offload, OffloadedCall};
use crate::staging::ALIGN;
use crate::wire::{InstanceMessage, Message};

/// Duration of a call after which others are first notified of it.
const NOTIFY_AFTER: Duration = Duration::from_secs(1);

/// A list that the engine has.
#[derive(Debug)]
pub(super) struct OffloadedList {
    /// Received bytes are copied from here; `None` where the list has no bytes.
    mirror: Option<Mirror>,
    delivers: Vec<Span>,
}

/// Input and output of a program in memory of the service process, one after the other.
#[derive(Debug)]
struct Mirror {
    staging: Staging,
    output: u64,
}

impl Mirror {
    fn place(&self, span: Span) -> MemRef {
        let start = if span.buffer == Buffer::Output { self.output } else { 0 };
        MemRef { region: MemRegion::Staging(self.staging.id), offset: start + span.offset, len: span.len }
    }
}

impl OffloadedList {
    pub(super) fn into_staging(self) -> Option<Staging> {
        self.mirror.map(|mirror| mirror.staging)
    }
}

impl Instance {
    /// The window of the group is open: passes on the lists of all callers. An error breaks the group.
    pub(super) fn advance_offloaded(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        if matches!(self.phase, InstancePhase::Gathering) {
            self.phase = InstancePhase::Running;
            cx.out.step(cx.members.handle, self.id, Milestone::Ready);
        }
        for i in 0..self.locals.len() {
            if self.locals[i].call().is_some()
                && self.locals[i].offloaded_list.is_none()
                && !self.locals[i].run.finished()
            {
                self.offload_list(cx, i)?;
            }
        }
        self.try_end(cx);
        Ok(())
    }

    fn offload_list(&mut self, cx: &mut Context<'_>, i: usize) -> Result<(), CollectiveError> {
        let list = DeferredList::lower(self.locals[i].run.program()).expect("what is chosen can be lowered");
        self.copy_ready_steps(cx, i);
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
            tag: cx.members.engine_tag(self.id, &self.signature, from, to, index),
            memory: mirror.as_ref().filter(|_| span.len > 0).map(|mirror| mirror.place(span)),
        };
        let messages = list.tasks.iter().map(|task| match task.action {
            DeferredAction::Send { to, index, span, .. } => Some(message((to, local.rank, to, index, span))),
            DeferredAction::Receive { from, index, span, .. } => Some(message((from, from, local.rank, index, span))),
            DeferredAction::Add { .. } => None,
        });
        let (messages, delivers) = (messages.collect(), list.delivers.clone());
        let call = local.call().expect("the caller looks").id;
        let of = OffloadedCall { group: cx.members.handle, instance: self.id, call };
        cx.out.offload(Offload { of, list, messages });
        self.locals[i].offloaded_list = Some(OffloadedList { mirror, delivers });
        self.notify_at.get_or_insert(cx.out.now + NOTIFY_AFTER);
        Ok(())
    }

    /// Memory for the messages of a list.
    fn mirror(&self, cx: &mut Context<'_>, i: usize) -> Result<Option<Mirror>, CollectiveError> {
        let program = self.locals[i].run.program();
        let output = program.input_bytes.next_multiple_of(ALIGN);
        let bytes = output + program.output_bytes;
        if bytes == 0 {
            return Ok(None);
        }
        let staging = cx.out.stage(Quota::Calls, cx.members.handle, bytes);
        let none = CollectiveError::Staging { rank: self.locals[i].rank, bytes };
        staging.map(|staging| Some(Mirror { staging, output })).ok_or(none)
    }

    /// Executes the copies of a rank's program that are ready.
    fn copy_ready_steps(&mut self, cx: &mut Context<'_>, i: usize) {
        while let Some(op) = self.locals[i].run.next_ready() {
            if let Op::Copy { .. } = self.locals[i].run.op(op) {
                let started = self.start(cx, i, op);
                assert!(started, "a rank that has called has its memory");
            }
        }
    }

    /// The engine has completed the list of a local rank.
    pub(crate) fn handle_offloaded(&mut self, cx: &mut Context<'_>, i: usize) {
        let Some(offloaded_list) = self.locals[i].offloaded_list.take() else { return };
        for span in &offloaded_list.delivers {
            let to = self.locals[i].memory(self.extents.as_ref(), *span).expect("the rank has called");
            cx.out.copy(offloaded_list.mirror.as_ref().expect("a list with bytes").place(*span), to);
        }
        offloaded_list.into_staging().into_iter().for_each(|staging| cx.out.unstage(staging));
        let local = &mut self.locals[i];
        for id in (0..local.run.program().steps.len() as u32).map(OpId) {
            if let Op::Send { .. } | Op::Recv { .. } = local.run.op(id) {
                local.run.complete(id);
            }
        }
        self.copy_ready_steps(cx, i);
        self.try_end(cx);
    }

    /// The local rank whose list the engine has for this call.
    pub(crate) fn offloaded(&self, call: CallId) -> Option<usize> {
        let offloaded_list =
            |local: &Local| local.offloaded_list.is_some() && local.call().is_some_and(|made| made.id == call);
        self.locals.iter().position(offloaded_list)
    }

    /// Notifies the other members of a long call. A rank with a different call would not detect the mismatch by itself,
    /// because it does not wait for messages of this call.
    pub(super) fn notify_offloaded(&mut self, cx: &mut Context<'_>) {
        if self.notify_at.is_none_or(|at| at > cx.out.now) {
            return;
        }
        let waited = cx.out.now.since(self.since);
        self.notify_at = Some(cx.out.now + waited.max(NOTIFY_AFTER));
        let (me, group) = (cx.members.sps[cx.members.me as usize], cx.members.handle);
        for sp in cx.members.sps.iter().filter(|sp| **sp != me) {
            let ready = InstanceMessage::Ready { step: 0, signature: self.signature, rank: self.first_caller };
            cx.out.messages.push_back((*sp, Message::instance(group, self.id, ready)));
        }
    }
}
