//! The unicast messages of a plan: between local ranks a copy, between hosts fragments on a link.
//!
//! A message is named (source, destination, index). Fragments arrive in order, because links keep it. A send is done
//! when its last fragment is acknowledged: only then is its memory free.

use outboard_plan::{OpId, Rank, Span};

use super::{Collective, Context};
use crate::ids::SpId;
use crate::interface::{MemRef, Order};
use crate::link::{Tag, Tagged};
use crate::wire::Message;

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Sending {
    local: usize,
    op: OpId,
    to: Rank,
    index: u32,
    span: Span,
    offset: u64,
}

/// A message with its payload, for a link.
pub(crate) struct Bulk {
    pub(crate) message: Message,
    pub(crate) payload: Vec<MemRef>,
    pub(crate) tag: Option<Tag>,
}

impl Collective {
    pub(super) fn start_send(
        &mut self,
        cx: &mut Context<'_>,
        i: usize,
        id: OpId,
        (to, index, span): (Rank, u32, Span),
    ) {
        let Some(from) = self.locals[i].memory(self.signature, span) else {
            self.locals[i].blocked.push(id);
            return;
        };
        let Some(other) = cx.members.local(to) else {
            self.sends.push_back(Sending { local: i, op: id, to, index, span, offset: 0 });
            return;
        };
        let source = self.locals[i].rank;
        let destination = &mut self.locals[other];
        let receive = *destination.run.receive(source, index).expect("plans pair sends with receives");
        match destination.memory(self.signature, receive.span) {
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

    /// Whom there may be bulk for.
    pub(crate) fn bulk_targets(&self, cx: &Context<'_>) -> Vec<SpId> {
        let mut targets: Vec<SpId> = Vec::new();
        if !self.running() {
            return targets;
        }
        for to in self.sends.iter().map(|s| cx.members.sp_of(s.to)) {
            if !targets.contains(&to) {
                targets.push(to);
            }
        }
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
        let at = self.sends.iter().position(|s| cx.members.sp_of(s.to) == to)?;
        let s = &mut self.sends[at];
        let (local, op, offset) = (s.local, s.op, s.offset);
        let len = (s.span.len - offset).min(cx.config.fragment_bytes.into());
        s.offset += len;
        let (destination, index, span) = (s.to, s.index, s.span);
        let last = s.offset == span.len;
        if last {
            self.sends.remove(at);
        }
        let (group, instance, source) = (cx.members.handle, self.instance, self.locals[local].rank);
        let message = Message::Data { group, instance, source, destination, index, total: span.len, offset };
        if span.len == 0 {
            // A signal has no memory to wait for.
            self.locals[local].run.complete(op);
            self.advance(cx);
            return Some(Bulk { message, payload: Vec::new(), tag: None });
        }
        let piece = Span { offset: span.offset + offset, len, ..span };
        let payload = self.locals[local].memory(self.signature, piece);
        let payload = vec![payload.expect("a send started with its memory at hand, and keeps it")];
        let what = Tagged::Send { local: local as u32, op };
        let tag = last.then_some(Tag { group, instance, what });
        Some(Bulk { message, payload, tag })
    }

    /// A message has been acknowledged.
    pub(crate) fn handle_acked(&mut self, cx: &mut Context<'_>, tag: Tag) {
        match tag.what {
            Tagged::Ask => self.handle_asked(cx),
            Tagged::Send { local, op } if self.running() => {
                self.locals[local as usize].run.complete(op);
                self.advance(cx);
            }
            Tagged::Send { .. } => {}
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
        let signature = self.signature;
        let local = &mut self.locals[local];
        let Some(r) = local.run.receive(source, index).copied() else { return false };
        let len = u64::from(payload_len);
        if r.done || total != r.span.len || offset != r.got || len > total - offset {
            return false;
        }
        let Some(to) = local.memory(signature, Span { offset: r.span.offset + offset, len, ..r.span }) else {
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
