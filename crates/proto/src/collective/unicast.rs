//! The unicast messages of a plan: between local ranks a copy, between hosts fragments on a link.
//!
//! A message is named (source, destination, index). Fragments arrive in order, because links keep it. A send is done
//! when its last fragment is acknowledged: only then is its memory free.

use outboard_plan::{Buffer, OpId, Rank, Span};

use super::{Collective, Context};
use crate::fragments::Bulk;
use crate::ids::SpId;
use crate::interface::Order;
use crate::link::{Tag, Tagged};

impl Collective {
    pub(super) fn start_send(
        &mut self,
        cx: &mut Context<'_>,
        i: usize,
        id: OpId,
        (to, index, span): (Rank, u32, Span),
    ) {
        let Some(from) = self.locals[i].memory(&self.extents, span) else {
            self.locals[i].blocked.push(id);
            return;
        };
        let Some(other) = cx.members.local(to) else {
            self.sends.push(i, id, (to, index, span));
            return;
        };
        let source = self.locals[i].rank;
        let destination = &mut self.locals[other];
        let receive = *destination.run.receive(source, index).expect("plans pair sends with receives");
        match destination.memory(&self.extents, receive.span) {
            Some(to) => {
                cx.out.copy(from, to);
                let r = destination.run.receive(source, index).expect("looked up above");
                (r.got, r.done) = (span.len, true);
                destination.run.complete(receive.op);
                self.locals[i].run.complete(id);
            }
            None => self.locals[i].blocked.push(id),
        }
    }

    /// Whether there is bulk for anybody.
    pub(crate) fn has_bulk(&self) -> bool {
        self.running() && (self.sends.may_leave() || !self.serving.is_empty())
    }

    /// Whom there may be bulk for.
    pub(crate) fn bulk_targets(&self, cx: &Context<'_>) -> Vec<SpId> {
        if !self.running() {
            return Vec::new();
        }
        let mut targets = self.sends.targets(cx.members);
        if !self.serving.is_empty() && !targets.contains(&cx.members.right()) {
            targets.push(cx.members.right());
        }
        targets
    }

    /// The next fragment or repair for `to`, when it has any. Asked while its link has room.
    pub(crate) fn next_bulk(&mut self, cx: &mut Context<'_>, to: SpId) -> Option<Bulk> {
        if !self.running() {
            return None;
        }
        self.next_fragment(cx, to).or_else(|| self.next_repair(cx, to))
    }

    fn next_fragment(&mut self, cx: &mut Context<'_>, to: SpId) -> Option<Bulk> {
        let fragment = self.sends.next(cx.members, to, cx.quantum().piece)?;
        let local = &mut self.locals[fragment.local];
        let source = local.rank;
        if fragment.piece.is_empty() && fragment.piece.buffer == Buffer::Scratch {
            // A signal has no memory to wait for; that a rank has called must have arrived before its call ends.
            local.run.complete(fragment.op);
            self.advance(cx);
            return Some(fragment.bulk(cx.members, self.instance, source, None));
        }
        let memory = local.memory(&self.extents, fragment.piece);
        let memory = memory.expect("a send started with its memory at hand, and keeps it");
        Some(fragment.bulk(cx.members, self.instance, source, Some(memory)))
    }

    /// A message has been acknowledged.
    pub(crate) fn handle_acked(&mut self, cx: &mut Context<'_>, tag: Tag) {
        match tag.what {
            Tagged::Ask => self.handle_asked(cx),
            Tagged::Send { local, op } if self.running() => {
                self.locals[local as usize].run.complete(op);
                self.advance(cx);
            }
            Tagged::Send { .. } | Tagged::Message { .. } => {}
        }
    }

    /// A fragment. False when no such fragment can come now.
    pub(crate) fn handle_data(
        &mut self,
        cx: &mut Context<'_>,
        (source, destination, index): (Rank, Rank, u32),
        (total, offset): (u64, u64),
        payload_len: u32,
    ) -> bool {
        let Some(local) = cx.members.local(destination) else { return false };
        let local = &mut self.locals[local];
        let Some(r) = local.run.receive(source, index).copied() else { return false };
        let len = u64::from(payload_len);
        if r.done || total != r.span.len || offset != r.got || len > total - offset {
            return false;
        }
        let Some(to) = local.memory(&self.extents, Span { offset: r.span.offset + offset, len, ..r.span }) else {
            return false;
        };
        if len > 0 {
            cx.out.orders.push_back(Order::Deliver { payload: 0, offset: 0, to });
        }
        let done = offset + len == total;
        let entry = local.run.receive(source, index).expect("looked up above");
        (entry.got, entry.done) = (offset + len, done);
        if done {
            local.run.complete(r.op);
            self.advance(cx);
        }
        true
    }
}
