//! Stands in for late local ranks of an instance whose sizes are known (SP-6): their output is staging until they call.

use outboard_plan::{Buffer, Span};

use super::{Context, Instance, Presence};
use crate::effects::Quota;
use crate::error::CollectiveError;
use crate::ids::Instant;
use crate::interface::{CallKind, MemRef, MemRegion, Milestone};
use crate::staging::staging_size;

/// When stand-ins of absent ranks are due, and whether ranks have them.
#[derive(Debug, Default)]
pub(super) struct StandIns {
    at: Option<Instant>,
    /// Without a barrier: absent ranks have a stand-in, also ranks whose first block comes later.
    begun: bool,
}

impl StandIns {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.at
    }

    /// Starts the timer, unless it runs.
    pub(super) fn start_timer(&mut self, at: Instant) {
        self.at.get_or_insert(at);
    }

    pub(super) fn cancel_timer(&mut self) {
        self.at = None;
    }

    /// Absent ranks have stand-ins from now on. Returns whether they had none before.
    pub(super) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.begun, true)
    }

    pub(super) fn have_begun(&self) -> bool {
        self.begun
    }
}

impl Instance {
    /// News of the call from another host starts the clock of the stand-in.
    pub(super) fn start_stand_in_timer(&mut self, cx: &Context<'_>) {
        if self.is_anyone_missing() && self.signature.kind != CallKind::Barrier {
            self.stand_ins.start_timer(cx.out.now + cx.config.stand_in_after);
        }
    }

    /// Stands in for all absent ranks if the staging quota has room for their outputs and the scratch; else for none.
    /// Staging for only some of them could take the room that the scratch, or an earlier instance of the ranks, needs.
    pub(super) fn stand_in(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        let outputs = self.locals.iter().filter(|local| local.is_missing()).map(|l| l.run.program().output_bytes);
        let scratch = Some(self.scratch.wanted()).filter(|bytes| *bytes > 0);
        let sizes = outputs.chain(scratch).map(|bytes| staging_size(bytes).unwrap_or(u64::MAX));
        let size = sizes.fold(0, u64::saturating_add);
        if !cx.out.has_room(Quota::Late, size) || !self.allocate_scratch(cx, Quota::Late) {
            // Retried at the next chance: another instance may have freed staging.
            self.stand_ins.start_timer(cx.out.now + cx.config.stand_in_after * 4);
            return Ok(());
        }
        for local in self.locals.iter_mut().filter(|local| local.is_missing()) {
            let staging = cx.out.stage(Quota::Late, cx.members.handle, local.run.program().output_bytes);
            local.presence = Presence::StoodIn(staging.expect("there is room for all"));
            cx.out.step(cx.members.handle, self.id, Milestone::StoodIn(local.rank));
        }
        self.handle_local_ready(cx)
    }

    /// Copies received and computed bytes from staging to the rank's own buffer.
    pub(super) fn copy_from_staging(&mut self, cx: &mut Context<'_>, i: usize, staging: MemRegion) {
        let local = &self.locals[i];
        let place = |span| local.memory(self.extents.as_ref(), span).expect("the rank has called");
        let mut written: Vec<Span> = Vec::new();
        for (op, (from, index, span)) in local.run.receives().filter(|(_, (.., span))| span.buffer == Buffer::Output) {
            let name = self.name(from, local.rank, index);
            let len = if local.run.is_done(op) { span.len } else { cx.transfer.move_receive(&name, place(span)) };
            written.extend((len > 0).then_some(Span { len, ..span }));
        }
        let copy = |cx: &mut Context<'_>, span: Span| {
            cx.out.copy(MemRef { region: staging, offset: span.offset, len: span.len }, place(span));
        };
        for (root, span) in local.run.multicast_receives() {
            if local.has_block_of(root) {
                copy(cx, span);
            } else if let Some(block) = self.multicast.received(root) {
                for r in block.present_bytes() {
                    copy(cx, Span { offset: span.offset + r.start, len: r.end - r.start, ..span });
                }
            }
        }
        written.extend(local.run.written_spans().filter(|s| s.buffer == Buffer::Output));
        // A span that several reductions have written is copied once.
        written.sort_by_key(|span| (span.offset, span.len));
        written.dedup();
        written.into_iter().for_each(|span| copy(cx, span));
    }
}
