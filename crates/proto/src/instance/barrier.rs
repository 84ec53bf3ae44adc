//! The ready barrier of an instance (MC-4): behind it every rank has called or has a stand-in.

use super::{Context, Instance, InstancePhase, Policy};
use crate::error::{CollectiveError, Rejection};
use crate::ids::SpId;
use crate::interface::Milestone;
use crate::wire::{InstanceMessage, MAX_BLOCKS, Message};

/// The violation when a step comes from a member that does not send this step here.
pub(super) const OTHER_STEP: &str = "a step of the ready barrier that another member sends";

impl Instance {
    /// Enters the barrier if all is ready here. An error breaks the group.
    pub(super) fn try_enter_barrier(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        if self.is_anyone_missing() || !self.allocate_own_scratch(cx)? {
            return Ok(());
        }
        self.phase = InstancePhase::Barrier;
        cx.out.step(cx.members.handle, self.id, Milestone::Entered);
        self.stand_ins.cancel_timer();
        let mut out = Vec::new();
        self.barrier.enter(&mut out);
        self.send_ready(cx, out);
        self.advance(cx);
        Ok(())
    }

    /// A step of another service process, with the same signature.
    pub(crate) fn handle_ready(&mut self, cx: &mut Context<'_>, from: u32, step: u8) -> Result<(), Rejection> {
        if !self.is_active() {
            return Ok(());
        }
        if let InstancePhase::AwaitingSizes(call) = &mut self.phase {
            return call.handle_ready(cx.members, from, step);
        }
        if self.policy == Policy::Offloaded {
            // The caller has compared the signatures; nothing else is needed.
            return Ok(());
        }
        // All members agree on whether there is a barrier.
        Rejection::unless(self.policy == Policy::Barrier, "a step of the ready barrier for a call without one")?;
        self.start_stand_in_timer(cx);
        let mut out = Vec::new();
        let known = self.barrier.handle(from, step, &mut out);
        self.send_ready(cx, out);
        self.advance(cx);
        Rejection::unless(known, OTHER_STEP)
    }

    fn send_ready(&mut self, cx: &mut Context<'_>, steps: Vec<(u32, u8)>) {
        for (to, step) in steps {
            let (signature, rank) = (self.signature, self.first_caller);
            let ready = InstanceMessage::Ready { step, signature, rank };
            let message = Message::instance(cx.members.handle, self.id, ready);
            cx.out.messages.push_back((cx.members.sps[to as usize], message));
        }
        if self.barrier.done() && matches!(self.phase, InstancePhase::Barrier) {
            self.phase = InstancePhase::Running;
            cx.out.step(cx.members.handle, self.id, Milestone::Ready);
            self.multicast.schedule_start(cx);
            self.retry_blocked(cx);
            self.note_complete(cx);
        }
    }

    /// Sends `to` the sizes of the blocks, so that `to` can stand in for its ranks. Fails without agreed sizes.
    pub(crate) fn send_sizes(&self, cx: &mut Context<'_>, to: SpId) -> Result<(), Rejection> {
        let extents = self.extents.as_ref().ok_or("a request for sizes that are not known here")?;
        let sizes: Vec<u64> = extents.sizes().collect();
        for (at, sizes) in sizes.chunks(MAX_BLOCKS).enumerate() {
            let sizes = InstanceMessage::Sizes { first: (at * MAX_BLOCKS) as u32, sizes: sizes.to_vec() };
            cx.out.messages.push_back((to, Message::instance(cx.members.handle, self.id, sizes)));
        }
        Ok(())
    }
}
