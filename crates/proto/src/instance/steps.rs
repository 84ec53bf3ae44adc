//! Executes the steps of a collective: starts the ready ones and keeps the blocked ones.
//!
//! All ranks of one host together have many steps, so the steps are run like recordings: a limited number of steps at
//! once, and the rest at the next timeout ([`Allowance`](crate::effects::Allowance)).

use outboard_plan::{Buffer, Op, OpId, Span};

use super::{Context, Instance, Policy};
use crate::transfer::{MessageName, Outbound, PostedReceive};

impl Instance {
    /// Starts every ready step, as many as are allowed at once, and ends the calls whose programs are done. If steps
    /// remain, the instance is queued and continues at the next timeout.
    pub(super) fn advance(&mut self, cx: &mut Context<'_>) {
        // Without a barrier steps start when their rank has called and the window is open.
        if self.is_active() && !matches!(self.policy, Policy::Pairs | Policy::Offloaded) {
            // A step of one local rank may make a step of an earlier local rank ready.
            while let Some(i) = self.locals.iter().position(|l| l.run.has_ready())
                && cx.out.allowance.is_left()
            {
                while cx.out.allowance.is_left()
                    && let Some(op) = self.locals[i].run.next_ready()
                {
                    cx.out.allowance.step();
                    if !self.start(cx, i, op) {
                        self.locals[i].blocked.push(op);
                    }
                }
            }
            if self.locals.iter().any(|l| l.run.has_ready()) && !std::mem::replace(&mut self.is_queued, true) {
                cx.out.unfinished.push_back((cx.members.handle, self.id));
            }
        }
        self.try_end(cx);
    }

    /// Starts a step. False when it waits for memory, for another local rank or for the barrier.
    pub(super) fn start(&mut self, cx: &mut Context<'_>, i: usize, id: OpId) -> bool {
        let (local, extents) = (&mut self.locals[i], self.extents.as_ref());
        let both = |from: Span, to: Span| local.memory(extents, from).zip(local.memory(extents, to));
        match local.run.op(id) {
            // Receives are posted with the program, so there is nothing to start (MC-4).
            Op::Recv { .. } | Op::MulticastRecv { .. } => {}
            Op::Copy { from, to } => {
                let Some((from, to)) = both(from, to) else { return false };
                cx.out.copy(from, to);
                local.run.complete(id);
            }
            Op::Reduce { from, into, from_left } => {
                let Some((from, into)) = both(from, into) else { return false };
                let reduction = self.signature.kind.reduction().expect("plans of reductions alone combine");
                cx.out.reduce(reduction, from, into, from_left);
                local.run.complete(id);
            }
            Op::Send { to, .. } => {
                // No byte leaves for other hosts until all service processes are ready.
                let may_leave = self.running() || cx.members.local(to).is_some();
                let Some(message) = self.outbound(i, id).filter(|_| may_leave) else { return false };
                let origin = self.origin();
                let (transfer, mut site) = cx.transfer();
                match self.policy {
                    Policy::Eager => transfer.send_eager(&mut site, origin, message),
                    Policy::Barrier | Policy::Pairs | Policy::Offloaded => transfer.send_expected(&mut site, message),
                }
            }
            Op::Multicast { span } => return self.start_multicast(cx, i, id, span),
        }
        true
    }

    /// The next timeout has come ([`Self::advance`]).
    pub(crate) fn resume(&mut self, cx: &mut Context<'_>) {
        self.is_queued = false;
        self.advance(cx);
    }

    /// A step that sends or receives is done.
    pub(crate) fn complete(&mut self, cx: &mut Context<'_>, local: usize, op: OpId) {
        if self.is_active() {
            self.locals[local].run.complete(op);
            self.advance(cx);
        }
    }

    /// Retries blocked steps and receives: memory has become available, or the barrier has been passed.
    pub(super) fn retry_blocked(&mut self, cx: &mut Context<'_>) {
        for i in 0..self.locals.len() {
            let local = &mut self.locals[i];
            let blocked = std::mem::take(&mut local.blocked);
            local.run.retry(blocked);
            for op in std::mem::take(&mut local.unposted) {
                match self.receive(i, op) {
                    Some((name, posting)) => {
                        let (transfer, mut site) = cx.transfer();
                        match self.policy {
                            Policy::Eager => transfer.receive_eager(&mut site, name, posting),
                            Policy::Barrier | Policy::Pairs | Policy::Offloaded => {
                                transfer.expect(&mut site, name, posting)
                            }
                        }
                    }
                    None => self.locals[i].unposted.push(op),
                }
            }
        }
    }

    /// The receive of a local rank's step, once it has memory.
    pub(super) fn receive(&self, i: usize, op: OpId) -> Option<(MessageName, PostedReceive)> {
        let local = &self.locals[i];
        let Op::Recv { from, index, span } = local.run.op(op) else { return None };
        let to = local.memory(self.extents.as_ref(), span)?;
        Some((self.name(from, local.rank, index), PostedReceive { step: self.step(i, op), to }))
    }

    /// The message that a local rank's step sends, once it has memory.
    pub(super) fn outbound(&self, i: usize, op: OpId) -> Option<Outbound> {
        let local = &self.locals[i];
        let Op::Send { to, index, span } = local.run.op(op) else { return None };
        let from = local.memory(self.extents.as_ref(), span)?;
        let signal = span.is_empty() && span.buffer == Buffer::Scratch;
        Some(Outbound { step: self.step(i, op), name: self.name(local.rank, to, index), from, signal })
    }
}
