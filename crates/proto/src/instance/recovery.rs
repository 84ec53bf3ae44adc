//! The multicast blocks of a collective: batches out, datagrams in, and the ring of recovery (MC-5 to MC-7).

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use outboard_plan::{Extents, Op, OpId, Rank, Span, subgroup_of};

use super::by_rank::ByRank;
use super::run::ProgramRun;
use super::shares::Shares;
use super::{Context, Instance, InstancePhase, Local};
use crate::deadlines::Deadlines;
use crate::error::Rejection;
use crate::group::members::Members;
use crate::ids::{Instant, MulticastChannel, SpId};
use crate::interface::{CallKind, MemRef, Order, payload_bytes};
use crate::multicast::block::{Block, Patience};
use crate::multicast::pacing::LinkShare;
use crate::transfer::Bulk;
use crate::wire::{DatagramHeader, InstanceMessage, MAX_RANGES, MAX_SOURCES, Message, MulticastMessage};

/// Longest patience: the wait for an even slower host is no longer.
const MAX_PATIENCE: Duration = Duration::from_millis(64);
/// Most NAKs of one instance that the links have not delivered.
const MAX_UNACKNOWLEDGED_NAKS: u32 = 32;

pub(crate) struct ChunkBatch {
    pub(crate) source: Rank,
    pub(crate) run: Range<u64>,
    pub(crate) again: bool,
    pub(crate) channel: MulticastChannel,
    pub(crate) header: DatagramHeader,
    pub(crate) memory: MemRef,
}

/// The multicast blocks that an instance sends and receives; no blocks by default.
#[derive(Debug, Default)]
pub(super) struct Multicasts {
    /// By the rank that multicasts the block. Empty when nothing is multicast between hosts.
    blocks: ByRank<Block>,
    subgroups: u16,
    shares: Shares,
    /// Blocks of other hosts that are not whole here.
    leaves_missing: u32,
    /// `owes_complete`: the left neighbour has not been notified that nothing is missing here. `right_lacks`: the right
    /// neighbour has not sent that notification.
    owes_complete: bool,
    right_lacks: bool,
    /// Blocks that may have chunks to serve to the right neighbour.
    serving: BTreeSet<u32>,
    /// NAKs that the links have not delivered.
    unacknowledged_naks: u32,
    pending_haves: Vec<Rank>,
    have_at: Option<Instant>,
    /// When the blocks of local ranks begin to leave; `None` if they may leave.
    start_at: Option<Instant>,
    /// When to check each block for losses.
    checks: Deadlines<Rank>,
    /// Batches that the driver has received but not finished.
    outstanding: u32,
}

impl Multicasts {
    /// The blocks of a call; the program of any rank names their roots and sizes.
    pub(super) fn new(cx: &Context<'_>, run: &ProgramRun, kind: CallKind, extents: &Extents) -> Self {
        let chunk_bytes = cx.config.chunk_bytes;
        let block = |(r, bytes, here): (Rank, u64, bool)| (r, Block::new(bytes, chunk_bytes, here));
        let blocks: ByRank<Block> = roots(cx, run).map(block).collect();
        Multicasts {
            subgroups: run.program().subgroups,
            shares: Shares::new(cx.members, cx.config, kind, run.program().chains, extents),
            leaves_missing: blocks.iter().filter(|(_, block)| !block.is_root()).count() as u32,
            owes_complete: !blocks.is_empty(),
            right_lacks: !blocks.is_empty(),
            blocks,
            ..Multicasts::default()
        }
    }

    pub(super) fn table_bytes(cx: &Context<'_>, run: &ProgramRun) -> u64 {
        roots(cx, run).map(|(_, bytes, here)| Block::table_bytes(bytes, cx.config.chunk_bytes, here)).sum()
    }

    /// The driver still reads memory of batches.
    pub(super) fn has_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Neither neighbour in the ring needs anything of this service process (MC-7).
    pub(super) fn is_complete(&self) -> bool {
        !self.right_lacks && !self.owes_complete
    }

    /// Ranks on other hosts whose blocks are not whole here.
    pub(super) fn awaited(&self) -> impl Iterator<Item = Rank> {
        let whole = |block: &Block| block.is_root() || block.is_full();
        self.blocks.iter().filter(move |(_, block)| !whole(block)).map(|(source, _)| source)
    }

    /// The block of a rank on another host.
    pub(super) fn received(&self, source: Rank) -> Option<&Block> {
        self.blocks.get(source).filter(|block| !block.is_root())
    }

    /// The memory of a rank's block is not read any more.
    pub(super) fn stop(&mut self, source: Rank) {
        self.blocks.get_mut(source).into_iter().for_each(Block::stop);
    }

    pub(super) fn cancel_checks(&mut self) {
        self.checks = Deadlines::default();
    }

    pub(super) fn cancel_timers(&mut self) {
        self.cancel_checks();
        (self.have_at, self.start_at) = (None, None);
    }

    /// When [`Instance::check`] is due. With too many NAKs outstanding, the next acknowledgement triggers the check.
    fn check_at(&self) -> Option<Instant> {
        self.checks.first().filter(|_| self.unacknowledged_naks < MAX_UNACKNOWLEDGED_NAKS)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.check_at(), self.have_at, self.start_at].into_iter().flatten().min()
    }

    /// Lets the local roots begin when it is time. Returns whether [`Instance::check`] and [`Instance::send_have`] are
    /// due.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> [bool; 2] {
        self.start_at = self.start_at.filter(|at| *at > now);
        [self.check_at(), self.have_at].map(|timer| timer.is_some_and(|at| at <= now))
    }
}

/// The ranks that multicast between hosts, their bytes, and whether they are local. No ranks with one service process.
fn roots<'a>(cx: &'a Context<'_>, run: &'a ProgramRun) -> impl Iterator<Item = (Rank, u64, bool)> + 'a {
    let here = |r: Rank| cx.members.sp_of(r) == cx.members.sps[cx.members.me as usize];
    run.multicast_roots().filter(|_| cx.members.sps.len() > 1).map(move |(r, bytes)| (r, bytes, here(r)))
}

impl Instance {
    /// The part of the links that this service process may fill. Roots whose blocks are here have finished, and leave
    /// their part to late roots (SP-6). `None` where nothing is multicast.
    pub(crate) fn share(&self, members: &Members) -> Option<LinkShare> {
        let sends = |local: &&Local| self.multicast.blocks.get(local.rank).is_some_and(|block| !block.is_full());
        let own = self.locals.iter().filter(sends).count() as u32;
        Some(self.multicast.shares.of(members, self.locals[0].rank)?.0.among(self.multicast.leaves_missing + own))
    }

    /// Copies the block to the other local ranks and starts its multicast between hosts. False when memory is missing.
    pub(super) fn start_multicast(&mut self, cx: &mut Context<'_>, i: usize, id: OpId, span: Span) -> bool {
        let source = self.locals[i].rank;
        let Some(from) = self.locals[i].memory(self.extents.as_ref(), span) else { return false };
        if let Some(block) = self.multicast.blocks.get_mut(source) {
            block.start();
        }
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
        if all && self.multicast.blocks.is_empty() {
            self.locals[i].run.complete(id);
        } else if all {
            self.finish_root(source);
        }
        all
    }

    /// Completes a local rank's multicast step once its block is on the wire and at all local ranks.
    fn finish_root(&mut self, source: Rank) {
        let Some(i) = self.locals.iter().position(|l| l.rank == source) else { return };
        let full = self.multicast.blocks.get(source).is_some_and(Block::is_full);
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

    /// Whether [`Self::next_batch`] has something.
    pub(crate) fn has_batch(&self) -> bool {
        let root = |l: &Local| self.multicast.blocks.get(l.rank).is_some_and(Block::has_batch);
        self.running() && self.multicast.start_at.is_none() && self.locals.iter().any(root)
    }

    /// Schedules when the local roots begin, if not now.
    pub(super) fn schedule_start(&mut self, cx: &Context<'_>) {
        let Some((share, pace)) = self.multicast.shares.of(cx.members, self.locals[0].rank) else { return };
        let after = pace.stagger(cx.config, share, cx.members.me, cx.members.sps.len() as u32);
        let waits = after > Duration::ZERO && !self.multicast.blocks.is_empty();
        self.multicast.start_at = waits.then(|| cx.out.now + after);
    }

    /// Hands out the next run of at most `most` chunks to multicast.
    pub(crate) fn next_batch(&mut self, cx: &mut Context<'_>, most: u64) -> Option<ChunkBatch> {
        if !self.running() {
            return None;
        }
        for local in &self.locals {
            let Some(block) = self.multicast.blocks.get_mut(local.rank) else { continue };
            let Some((run, again)) = block.next_batch(most, self.multicast.subgroups) else { continue };
            let span = local.run.own_multicast().expect("a root multicasts");
            let bytes = block.byte_range(run.clone());
            let piece = Span { offset: span.offset + bytes.start, len: bytes.end - bytes.start, ..span };
            let memory = local.memory(self.extents.as_ref(), piece).expect("a block starts when its memory is at hand");
            let subgroup = subgroup_of(run.start, block.chunks(), self.multicast.subgroups);
            let header = DatagramHeader {
                group: cx.members.handle,
                epoch: self.id.0 as u16,
                source: local.rank.0 as u16,
                chunk: run.start as u32,
            };
            self.multicast.outstanding += 1;
            let channel = cx.members.channels[usize::from(subgroup)];
            return Some(ChunkBatch { source: local.rank, run, again, channel, header, memory });
        }
        None
    }

    pub(crate) fn handle_sent(&mut self, cx: &mut Context<'_>, source: Rank, run: Range<u64>) {
        self.multicast.outstanding -= 1;
        if self.running() {
            let full = self.block(source).handle_sent(run);
            self.note_repairs(source);
            if full {
                self.finish_root(source);
                self.schedule_have(cx, source);
            }
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
        const NOTHING: &str = "a datagram of a rank that multicasts nothing here";
        let patience = self.patience(cx, source).ok_or(NOTHING)?;
        let now = cx.out.now;
        let block = self.multicast.blocks.get_mut(source).filter(|b| !b.is_root()).ok_or(NOTHING)?;
        if chunk >= block.chunks() {
            return Err("a datagram behind the end of its block");
        }
        let bytes = block.byte_range(chunk..chunk + 1);
        if bytes.end - bytes.start != u64::from(len) {
            return Err("a datagram of another length than its chunk");
        }
        if !block.handle_chunk(now, chunk) {
            cx.out.counters.datagrams_stale += 1;
            return Ok(());
        }
        cx.out.counters.datagrams_new += 1;
        let (full, repair) = (block.is_full(), block.has_repair());
        let (before, check) = block.rearm_loss_check(now, patience);
        self.multicast.checks.change(source, before, check);
        if repair {
            self.multicast.serving.insert(source.0);
        }
        self.deliver(cx, source, payload, 0, bytes);
        if full {
            self.complete_leaf(cx, source);
        }
        Ok(())
    }

    /// Notes that the block may have new chunks that the right neighbour has requested.
    fn note_repairs(&mut self, source: Rank) {
        if self.block(source).has_repair() {
            self.multicast.serving.insert(source.0);
        }
    }

    /// How long the multicast of `source` may be silent. `None` where nothing is multicast.
    fn patience(&self, cx: &Context<'_>, source: Rank) -> Option<Patience> {
        let (_, pace) = self.multicast.shares.of(cx.members, source)?;
        let patience = cx.members.patience;
        Some(Patience { middle: patience + pace.interval * 2, end: patience / 4 + pace.interval, last: pace.batch })
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
        self.multicast.leaves_missing -= 1;
        self.schedule_have(cx, source);
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
        if self.multicast.leaves_missing == 0 && self.multicast.owes_complete {
            self.multicast.owes_complete = false;
            self.send_multicast_message(cx, cx.members.left(), MulticastMessage::Complete);
        }
    }

    /// The block of a source that is known to have one.
    fn block(&mut self, source: Rank) -> &mut Block {
        self.multicast.blocks.get_mut(source).expect("messages about other blocks are refused")
    }

    /// Schedules the notification of the right neighbour, unless it needs nothing.
    fn schedule_have(&mut self, cx: &mut Context<'_>, source: Rank) {
        if self.multicast.right_lacks {
            self.multicast.pending_haves.push(source);
            let at = cx.out.now + cx.members.patience / 2;
            self.multicast.have_at = Some(self.multicast.have_at.map_or(at, |t| t.min(at)));
        }
    }

    pub(super) fn send_have(&mut self, cx: &mut Context<'_>) {
        self.multicast.have_at = None;
        let pending = std::mem::take(&mut self.multicast.pending_haves);
        for sources in pending.chunks(MAX_SOURCES) {
            self.send_multicast_message(cx, cx.members.right(), MulticastMessage::Have { sources: sources.to_vec() });
        }
    }

    fn rearm_loss_check(&mut self, cx: &Context<'_>, source: Rank) {
        if let Some(patience) = self.patience(cx, source) {
            let (before, after) = self.block(source).rearm_loss_check(cx.out.now, patience);
            self.multicast.checks.change(source, before, after);
        }
    }

    /// Requests missing chunks from the left neighbour, for all blocks whose check is due (MC-5).
    pub(super) fn check(&mut self, cx: &mut Context<'_>) {
        let (now, left) = (cx.out.now, cx.members.left());
        while self.multicast.unacknowledged_naks < MAX_UNACKNOWLEDGED_NAKS
            && let Some(source) = self.multicast.checks.pop_due(now)
            && let Some(patience) = self.patience(cx, source)
        {
            let losses = self.block(source).detect_losses(now, patience);
            self.multicast.checks.change(source, None, losses.next);
            for ranges in losses.ranges.chunks(MAX_RANGES) {
                self.send_multicast_message(cx, left, MulticastMessage::Nak { source, ranges: ranges.to_vec() });
                self.multicast.unacknowledged_naks += 1;
            }
        }
    }

    pub(crate) fn handle_nak_acknowledged(&mut self) {
        self.multicast.unacknowledged_naks -= 1;
    }

    /// Checks that a peer can miss these chunks. As with datagrams, no peer can before the barrier was entered here.
    fn check_ranges(&self, source: Rank, ranges: &[(u32, u32)]) -> Result<(), Rejection> {
        Rejection::unless(!matches!(self.phase, InstancePhase::Gathering), "chunks before the ready barrier")?;
        let block = self.multicast.blocks.get(source).ok_or("chunks of a rank that multicasts nothing here")?;
        // The decoder has checked order and overflow of the ranges.
        let within = ranges.iter().all(|(first, count)| u64::from(*first) + u64::from(*count) <= block.chunks());
        Rejection::unless(within, "chunks behind the end of their block")
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
        if !self.multicast.right_lacks {
            return Ok(());
        }
        let mut lacking = Vec::new();
        let block = self.block(source);
        for (first, count) in ranges {
            let first = u64::from(*first);
            block.handle_nak(first..first + u64::from(*count), &mut lacking);
        }
        self.note_repairs(source);
        let root = cx.members.sp_of(source);
        for ranges in lacking.chunks(MAX_RANGES) {
            if self.multicast.unacknowledged_naks >= MAX_UNACKNOWLEDGED_NAKS {
                // A report is only a hint: repair brings the chunks anyway.
                break;
            }
            self.multicast.unacknowledged_naks += 1;
            self.send_multicast_message(cx, root, MulticastMessage::NakRoot { source, ranges: ranges.to_vec() });
        }
        Ok(())
    }

    /// A leaf and its right neighbour lack chunks of a local rank.
    fn handle_nak_root(&mut self, cx: &mut Context<'_>, source: Rank, ranges: &[(u32, u32)]) -> Result<(), Rejection> {
        Rejection::unless(cx.members.local(source).is_some(), "a NAK for another service process's rank")?;
        self.check_ranges(source, ranges)?;
        let enough = (cx.members.sps.len() as u32 - 1).div_ceil(2).max(2);
        for (first, count) in ranges {
            let first = u64::from(*first);
            self.block(source).handle_nak_root(first..first + u64::from(*count), enough);
        }
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
        let block = self.block(source);
        Rejection::unless(!block.is_root(), "a repair of a local rank's block")?;
        let runs = || ranges.iter().map(|(first, count)| u64::from(*first)..u64::from(*first) + u64::from(*count));
        let length = |bytes: &Range<u64>| bytes.end - bytes.start;
        let carried = runs().map(|run| length(&block.byte_range(run))).sum::<u64>();
        Rejection::unless(carried == u64::from(payload_len), "a repair of another length than its chunks")?;
        let was_full = block.is_full();
        let (mut pieces, mut start) = (Vec::new(), 0);
        for run in runs() {
            let all = block.byte_range(run.clone());
            let mut new = Vec::new();
            block.handle_repair(run, &mut new);
            let place = |bytes: Range<u64>| (start + (bytes.start - all.start) as u32, bytes);
            pieces.extend(new.into_iter().map(|run| place(block.byte_range(run))));
            start += length(&all) as u32;
        }
        let full = block.is_full() && !was_full;
        self.note_repairs(source);
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
            self.rearm_loss_check(cx, source);
            self.complete_leaf(cx, source);
        }
        Ok(())
    }

    /// The left neighbour has these blocks whole.
    fn handle_have(&mut self, cx: &mut Context<'_>, from: SpId, sources: &[Rank]) -> Result<(), Rejection> {
        Rejection::unless(cx.members.left() == from, "whole blocks of another than the left neighbour")?;
        let known = sources.iter().all(|source| self.multicast.blocks.get(*source).is_some());
        Rejection::unless(known, "the whole block of a rank that multicasts nothing here")?;
        for source in sources {
            self.block(*source).handle_have(cx.out.now);
            self.rearm_loss_check(cx, *source);
        }
        Ok(())
    }

    /// The right neighbour lacks nothing (MC-7).
    fn handle_complete(&mut self, cx: &mut Context<'_>, from: SpId) -> Result<(), Rejection> {
        Rejection::unless(cx.members.right() == from, "completeness of another than the right neighbour")?;
        Rejection::unless(!self.multicast.blocks.is_empty(), "completeness of a call without multicast")?;
        self.multicast.right_lacks = false;
        self.multicast.have_at = None;
        self.multicast.pending_haves.clear();
        self.multicast.serving.clear();
        self.multicast.blocks.values_mut().for_each(Block::stop_serving);
        self.advance(cx);
        Ok(())
    }

    pub(crate) fn has_repair(&self) -> bool {
        self.running() && !self.multicast.serving.is_empty()
    }

    /// The next repair for `to`, if any. Called while the link has room.
    pub(crate) fn next_repair(&mut self, cx: &mut Context<'_>, to: SpId) -> Option<Bulk> {
        if !self.running() || !self.multicast.right_lacks || cx.members.right() != to {
            return None;
        }
        let most = (cx.quantum().piece / u64::from(cx.config.chunk_bytes)).max(1);
        while let Some(source) = self.multicast.serving.first().copied().map(Rank) {
            let block = self.block(source);
            let runs = block.next_repair(most);
            if runs.is_empty() {
                self.multicast.serving.remove(&source.0);
                continue;
            }
            let ranges = runs.iter().map(|run| (run.start as u32, (run.end - run.start) as u32)).collect();
            let bytes: Vec<Range<u64>> = runs.into_iter().map(|run| block.byte_range(run)).collect();
            let payload: Vec<MemRef> = bytes.into_iter().map(|bytes| self.served_memory(cx, source, bytes)).collect();
            cx.out.counters.retransmitted_bytes += payload_bytes(&payload);
            let repair = InstanceMessage::Multicast(MulticastMessage::Repair { source, ranges });
            let message = Message::instance(cx.members.handle, self.id, repair);
            return Some(Bulk { instance: self.id, message, payload: payload[..].into(), tag: None });
        }
        None
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
