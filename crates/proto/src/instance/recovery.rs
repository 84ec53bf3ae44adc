//! The multicast of a collective: batches out, datagrams in, and the messages of the ring of recovery (MC-5 to MC-7).
//!
//! [`Multicasts`] decides what is sent, requested and served; here it gets memory and becomes messages.

use std::ops::Range;
use std::time::Duration;

use outboard_plan::{Op, OpId, Rank, Span};

use super::multicasts::{ChunkRun, NewChunk, NewChunks, RequestedRuns};
use super::{Context, Instance, InstancePhase};
use crate::error::Rejection;
use crate::group::members::Members;
use crate::ids::{MulticastChannel, SpId};
use crate::interface::{MemRef, Order, payload_bytes};
use crate::multicast::pacing::LinkShare;
use crate::transfer::Bulk;
use crate::wire::{DatagramHeader, InstanceMessage, MAX_RANGES, MAX_SOURCES, Message, MulticastMessage};

/// Longest patience: the wait for an even slower host is no longer.
const MAX_PATIENCE: Duration = Duration::from_millis(64);

pub(crate) struct ChunkBatch {
    pub(crate) source: Rank,
    pub(crate) run: Range<u64>,
    pub(crate) again: bool,
    pub(crate) channel: MulticastChannel,
    pub(crate) header: DatagramHeader,
    pub(crate) memory: MemRef,
}

impl Instance {
    /// The part of the links that this service process may fill. `None` where nothing is multicast.
    pub(crate) fn share(&self, members: &Members) -> Option<LinkShare> {
        self.multicast.share(members)
    }

    /// Copies the block to the other local ranks and starts its multicast between hosts. False when memory is missing.
    pub(super) fn start_multicast(&mut self, cx: &mut Context<'_>, i: usize, id: OpId, span: Span) -> bool {
        let source = self.locals[i].rank;
        let Some(from) = self.locals[i].memory(self.extents.as_ref(), span) else { return false };
        self.multicast.start(source);
        let mut all = true;
        for other in &mut self.locals {
            let Some((op, to)) = other.run.multicast_receive(source).filter(|(op, _)| !other.run.is_done(*op)) else {
                continue;
            };
            match other.memory(self.extents.as_ref(), to) {
                Some(to) => {
                    cx.out.allowance.step();
                    cx.out.copy(from, to);
                    other.run.complete(op);
                }
                // The step is retried when this local rank is ready.
                None => all = false,
            }
        }
        if all && self.multicast.is_empty() {
            self.locals[i].run.complete(id);
        } else if all {
            self.finish_root(source);
        }
        all
    }

    /// Completes a local rank's multicast step once its block is on the wire and at all local ranks.
    fn finish_root(&mut self, source: Rank) {
        let Some(i) = self.locals.iter().position(|l| l.rank == source) else { return };
        if !self.multicast.is_full(source) || !self.locals.iter().all(|l| l.has_block_of(source)) {
            return;
        }
        let steps = &self.locals[i].run.program().steps;
        let id = steps.iter().position(|s| matches!(s.op, Op::Multicast { .. })).map(|p| OpId(p as u32));
        if let Some(id) = id.filter(|id| !self.locals[i].run.is_done(*id)) {
            self.locals[i].run.complete(id);
            self.locals[i].blocked.retain(|b| *b != id);
        }
    }

    /// Whether [`Self::next_batch`] has something.
    pub(crate) fn has_batch(&self) -> bool {
        self.running() && self.multicast.has_batch(self.locals.iter().map(|local| local.rank))
    }

    /// Hands out the next run of at most `most` chunks to multicast.
    pub(crate) fn next_batch(&mut self, cx: &mut Context<'_>, most: u64) -> Option<ChunkBatch> {
        if !self.running() {
            return None;
        }
        for local in &self.locals {
            let Some(run) = self.multicast.next_batch(local.rank, most) else { continue };
            let ChunkRun { chunks, again, bytes, subgroup } = run;
            let span = local.run.own_multicast().expect("a root multicasts");
            let piece = Span { offset: span.offset + bytes.start, len: bytes.end - bytes.start, ..span };
            let memory = local.memory(self.extents.as_ref(), piece).expect("a block starts when its memory is at hand");
            let header = DatagramHeader {
                group: cx.members.handle,
                epoch: self.id.0 as u16,
                source: local.rank.0 as u16,
                chunk: chunks.start as u32,
            };
            let channel = cx.members.channels[usize::from(subgroup)];
            return Some(ChunkBatch { source: local.rank, run: chunks, again, channel, header, memory });
        }
        None
    }

    pub(crate) fn handle_sent(&mut self, cx: &mut Context<'_>, source: Rank, run: Range<u64>) {
        self.multicast.handle_returned();
        if self.running() && self.multicast.handle_sent(source, run) {
            self.finish_root(source);
            self.multicast.schedule_have(cx, source);
        }
        self.advance(cx);
    }

    /// A datagram with a checked tag, after [`Self::has_entered`].
    pub(crate) fn handle_datagram(
        &mut self,
        cx: &mut Context<'_>,
        source: Rank,
        chunk: u64,
        payload: u32,
        len: u32,
    ) -> Result<(), &'static str> {
        let Some(NewChunk { bytes, full }) = self.multicast.handle_chunk(cx, source, chunk, len)? else {
            cx.out.counters.datagrams_stale += 1;
            return Ok(());
        };
        cx.out.counters.datagrams_new += 1;
        self.deliver(cx, source, payload, 0, bytes);
        if full {
            self.complete_leaf(cx, source);
        }
        Ok(())
    }

    /// Orders bytes of a payload into the output of every local rank.
    fn deliver(&mut self, cx: &mut Context<'_>, source: Rank, payload: u32, offset: u32, bytes: Range<u64>) {
        for local in &self.locals {
            let Some((_, span)) = local.run.multicast_receive(source) else { continue };
            let piece = Span { offset: span.offset + bytes.start, len: bytes.end - bytes.start, ..span };
            let to = local.memory(self.extents.as_ref(), piece).expect("behind the barrier every rank has an output");
            cx.out.orders.push_back(Order::Deliver { payload, offset, to });
        }
    }

    fn complete_leaf(&mut self, cx: &mut Context<'_>, source: Rank) {
        for local in &mut self.locals {
            if let Some((op, _)) = local.run.multicast_receive(source) {
                local.run.complete(op);
            }
        }
        self.multicast.complete_leaf(cx, source);
        self.note_complete(cx);
        self.advance(cx);
    }

    fn send_multicast_message(&self, cx: &mut Context<'_>, to: SpId, what: MulticastMessage) {
        let message = Message::instance(cx.members.handle, self.id, InstanceMessage::Multicast(what));
        cx.out.messages.push_back((to, message));
    }

    /// Handles another service process's message about the multicast blocks.
    pub(crate) fn handle_multicast(
        &mut self,
        cx: &mut Context<'_>,
        from: SpId,
        message: &MulticastMessage,
        payload_len: u32,
    ) -> Result<(), Rejection> {
        match message {
            MulticastMessage::Nak { source, ranges } => self.handle_nak(cx, from, *source, ranges),
            MulticastMessage::NakRoot { source, ranges } => self.handle_nak_root(cx, *source, ranges),
            MulticastMessage::Repair { source, ranges } => {
                Rejection::unless(cx.members.left() == from, "a repair of another than the left neighbour")?;
                self.handle_repair(cx, *source, ranges, payload_len)
            }
            MulticastMessage::Have { sources } => self.handle_have(cx, from, sources),
            MulticastMessage::Complete => self.handle_complete(cx, from),
        }
    }

    /// Notifies the left neighbour, once, that nothing is missing here (MC-7).
    pub(super) fn note_complete(&mut self, cx: &mut Context<'_>) {
        if self.multicast.take_complete() {
            self.send_multicast_message(cx, cx.members.left(), MulticastMessage::Complete);
        }
    }

    /// Notifies the right neighbour of whole blocks.
    pub(super) fn send_have(&mut self, cx: &mut Context<'_>) {
        for sources in self.multicast.take_haves().chunks(MAX_SOURCES) {
            self.send_multicast_message(cx, cx.members.right(), MulticastMessage::Have { sources: sources.to_vec() });
        }
    }

    /// Requests missing chunks from the left neighbour, for all blocks whose check is due (MC-5).
    pub(super) fn check(&mut self, cx: &mut Context<'_>) {
        let left = cx.members.left();
        while let Some((source, missing)) = self.multicast.detect_losses(cx) {
            for ranges in missing.chunks(MAX_RANGES) {
                self.send_multicast_message(cx, left, MulticastMessage::Nak { source, ranges: ranges.to_vec() });
            }
        }
    }

    pub(crate) fn handle_nak_acknowledged(&mut self) {
        self.multicast.handle_nak_acknowledged();
    }

    /// Checks that a peer can miss these chunks. As with datagrams, no peer can before the barrier was entered here.
    fn check_ranges(&self, source: Rank, ranges: &[(u32, u32)]) -> Result<(), Rejection> {
        Rejection::unless(!matches!(self.phase, InstancePhase::Gathering), "chunks before the ready barrier")?;
        self.multicast.check_ranges(source, ranges)
    }

    /// The right neighbour lacks chunks.
    fn handle_nak(
        &mut self,
        cx: &mut Context<'_>,
        from: SpId,
        source: Rank,
        ranges: &[(u32, u32)],
    ) -> Result<(), Rejection> {
        Rejection::unless(cx.members.right() == from, "a NAK of another than the right neighbour")?;
        self.check_ranges(source, ranges)?;
        let lacking = self.multicast.handle_nak(source, ranges);
        let root = cx.members.sp_of(source);
        for ranges in lacking.chunks(MAX_RANGES) {
            if !self.multicast.may_report() {
                // A report is only a hint: repair brings the chunks anyway.
                break;
            }
            self.send_multicast_message(cx, root, MulticastMessage::NakRoot { source, ranges: ranges.to_vec() });
        }
        Ok(())
    }

    /// A leaf and its right neighbour lack chunks of a local rank.
    fn handle_nak_root(&mut self, cx: &mut Context<'_>, source: Rank, ranges: &[(u32, u32)]) -> Result<(), Rejection> {
        Rejection::unless(cx.members.local(source).is_some(), "a NAK for another service process's rank")?;
        self.check_ranges(source, ranges)?;
        let enough = (cx.members.sps.len() as u32 - 1).div_ceil(2).max(2);
        self.multicast.handle_nak_root(source, ranges, enough);
        Ok(())
    }

    /// A repair from the left neighbour. The chunks lie run after run in one payload.
    fn handle_repair(
        &mut self,
        cx: &mut Context<'_>,
        source: Rank,
        ranges: &[(u32, u32)],
        payload_len: u32,
    ) -> Result<(), Rejection> {
        self.check_ranges(source, ranges)?;
        let NewChunks { pieces, full } = self.multicast.handle_repair(source, ranges, payload_len)?;
        let members = &mut *cx.members;
        if pieces.is_empty() {
            // The request was too early: the chunks came by themselves.
            members.patience = (members.patience * 5 / 4).min(MAX_PATIENCE.max(cx.config.timer_floor));
        } else {
            members.patience = (members.patience * 63 / 64).max(cx.config.timer_floor);
        }
        for (offset, bytes) in pieces {
            self.deliver(cx, source, 0, offset, bytes);
        }
        if full {
            self.multicast.rearm_loss_check(cx, source);
            self.complete_leaf(cx, source);
        }
        Ok(())
    }

    /// The left neighbour has these blocks whole.
    fn handle_have(&mut self, cx: &mut Context<'_>, from: SpId, sources: &[Rank]) -> Result<(), Rejection> {
        Rejection::unless(cx.members.left() == from, "whole blocks of another than the left neighbour")?;
        self.multicast.handle_have(cx, sources)
    }

    /// The right neighbour lacks nothing (MC-7).
    fn handle_complete(&mut self, cx: &mut Context<'_>, from: SpId) -> Result<(), Rejection> {
        Rejection::unless(cx.members.right() == from, "completeness of another than the right neighbour")?;
        self.multicast.handle_complete()?;
        self.advance(cx);
        Ok(())
    }

    pub(crate) fn has_repair(&self) -> bool {
        self.running() && self.multicast.has_repair()
    }

    /// The next repair for `to`, if any. Called while the link has room.
    pub(crate) fn next_repair(&mut self, cx: &mut Context<'_>, to: SpId) -> Option<Bulk> {
        if !self.running() || cx.members.right() != to {
            return None;
        }
        let most = (cx.quantum().piece / u64::from(cx.config.chunk_bytes)).max(1);
        let RequestedRuns { source, chunks, bytes } = self.multicast.next_repair(most)?;
        let ranges = chunks.iter().map(|run| (run.start as u32, (run.end - run.start) as u32)).collect();
        let payload: Vec<MemRef> = bytes.into_iter().map(|bytes| self.served_memory(cx, source, bytes)).collect();
        cx.out.counters.retransmitted_bytes += payload_bytes(&payload);
        let repair = InstanceMessage::Multicast(MulticastMessage::Repair { source, ranges });
        let message = Message::instance(cx.members.handle, self.id, repair);
        Some(Bulk { instance: self.id, message, payload: payload[..].into(), tag: None })
    }

    /// The memory of served bytes: the buffer of the local root, else the output of any local rank.
    fn served_memory(&self, cx: &Context<'_>, source: Rank, bytes: Range<u64>) -> MemRef {
        let part = |span: Span| Span { offset: span.offset + bytes.start, len: bytes.end - bytes.start, ..span };
        let place = match cx.members.local(source) {
            Some(i) => self.locals[i].run.own_multicast().map(|s| (i, s)),
            None => self.locals.first().and_then(|l| l.run.multicast_receive(source)).map(|(_, s)| (0, s)),
        };
        let (i, span) = place.expect("every rank multicasts its own block and receives the others");
        self.locals[i].memory(self.extents.as_ref(), part(span)).expect("what is served lies in memory at hand")
    }
}
