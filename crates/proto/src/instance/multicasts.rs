//! The multicast blocks of an instance (MC-5 to MC-7): blocks, pace, loss checks, and what the neighbours lack.
//!
//! Invariant: sends no messages and knows no memory. [`super::recovery`] does both.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use outboard_plan::{Extents, Rank, subgroup_of};

use super::Context;
use super::by_rank::ByRank;
use super::run::ProgramRun;
use super::shares::Shares;
use crate::deadlines::Deadlines;
use crate::error::Rejection;
use crate::group::members::Members;
use crate::ids::Instant;
use crate::interface::CallKind;
use crate::multicast::block::{Block, Patience};
use crate::multicast::pacing::LinkShare;
use crate::wire::MAX_RANGES;

/// Most NAKs of one instance that the links have not delivered.
const MAX_UNACKNOWLEDGED_NAKS: u32 = 32;
/// The violation when a datagram comes for a block that is not received here.
const NOTHING: &str = "a datagram of a rank that multicasts nothing here";

/// The multicast blocks that an instance sends and receives; no blocks by default.
#[derive(Debug, Default)]
pub(super) struct Multicasts {
    /// By the rank that multicasts the block. Empty when nothing is multicast between hosts.
    blocks: ByRank<Block>,
    subgroups: u16,
    shares: Shares,
    /// Blocks of other hosts that are not whole here.
    leaves_missing: u32,
    neighbours: RingNeighbours,
    /// When the blocks of local ranks begin to leave; `None` if they may leave.
    start_at: Option<Instant>,
    /// When to check each block for losses.
    checks: Deadlines<Rank>,
    /// NAKs that the links have not delivered.
    unacknowledged_naks: u32,
    /// Batches that the driver has received but not finished.
    outstanding: u32,
}

/// The needs of the two neighbours in the ring of recovery.
#[derive(Debug, Default)]
struct RingNeighbours {
    /// The left neighbour has not been notified that nothing is missing here.
    owes_complete: bool,
    /// The right neighbour has not sent that notification.
    right_lacks: bool,
    /// Blocks that may have chunks to serve to the right neighbour.
    serving: BTreeSet<u32>,
    /// Whole blocks of which the right neighbour has not been notified, and when to notify the neighbour.
    pending_haves: Vec<Rank>,
    have_at: Option<Instant>,
}

impl RingNeighbours {
    /// Notes a whole block, unless the right neighbour needs nothing. The notification waits for further blocks.
    fn schedule_have(&mut self, source: Rank, at: Instant) {
        if self.right_lacks {
            self.pending_haves.push(source);
            self.have_at = Some(self.have_at.map_or(at, |t| t.min(at)));
        }
    }
}

/// A run of chunks to multicast.
pub(super) struct ChunkRun {
    pub(super) chunks: Range<u64>,
    pub(super) again: bool,
    pub(super) bytes: Range<u64>,
    pub(super) subgroup: u16,
}

/// A chunk that was not here before.
pub(super) struct NewChunk {
    pub(super) bytes: Range<u64>,
    /// The chunk completes the block.
    pub(super) full: bool,
}

/// New chunks of a repair.
pub(super) struct NewChunks {
    /// The places in the payload, and the bytes of the block.
    pub(super) pieces: Vec<(u32, Range<u64>)>,
    /// The chunks complete the block.
    pub(super) full: bool,
}

/// Runs of chunks that the right neighbour has requested.
pub(super) struct RequestedRuns {
    pub(super) source: Rank,
    pub(super) chunks: Vec<Range<u64>>,
    pub(super) bytes: Vec<Range<u64>>,
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
            neighbours: RingNeighbours {
                owes_complete: !blocks.is_empty(),
                right_lacks: !blocks.is_empty(),
                ..RingNeighbours::default()
            },
            blocks,
            ..Multicasts::default()
        }
    }

    pub(super) fn table_bytes(cx: &Context<'_>, run: &ProgramRun) -> u64 {
        roots(cx, run).map(|(_, bytes, here)| Block::table_bytes(bytes, cx.config.chunk_bytes, here)).sum()
    }

    /// Whether nothing is multicast between hosts.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The driver still reads memory of batches.
    pub(super) fn has_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Neither neighbour in the ring needs anything of this service process (MC-7).
    pub(super) fn is_complete(&self) -> bool {
        !self.neighbours.right_lacks && !self.neighbours.owes_complete
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

    /// Whether a rank's block is whole here (leaf) or has been multicast (root).
    pub(super) fn is_full(&self, source: Rank) -> bool {
        self.blocks.get(source).is_some_and(Block::is_full)
    }

    /// The block of a source that is known to have one.
    fn block(&mut self, source: Rank) -> &mut Block {
        self.blocks.get_mut(source).expect("messages about other blocks are refused")
    }

    /// The memory of a local rank's block can be read.
    pub(super) fn start(&mut self, source: Rank) {
        self.blocks.get_mut(source).into_iter().for_each(Block::start);
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
        (self.neighbours.have_at, self.start_at) = (None, None);
    }

    /// When [`Self::detect_losses`] is due. With too many NAKs outstanding, the next acknowledgement triggers it.
    fn check_at(&self) -> Option<Instant> {
        self.checks.first().filter(|_| self.unacknowledged_naks < MAX_UNACKNOWLEDGED_NAKS)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.check_at(), self.neighbours.have_at, self.start_at].into_iter().flatten().min()
    }

    /// Lets the local roots begin when it is time. Returns whether [`Self::detect_losses`] and [`Self::take_haves`] are
    /// due.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> [bool; 2] {
        self.start_at = self.start_at.filter(|at| *at > now);
        [self.check_at(), self.neighbours.have_at].map(|timer| timer.is_some_and(|at| at <= now))
    }
}

/// Sending: batches of the local roots.
impl Multicasts {
    /// The part of the links that this service process may fill. Roots whose blocks are here have finished, and leave
    /// their part to late roots (SP-6). `None` where nothing is multicast.
    pub(super) fn share(&self, members: &Members) -> Option<LinkShare> {
        let sends = |rank: &&Rank| self.blocks.get(**rank).is_some_and(|block| !block.is_full());
        let own = members.locals.iter().filter(sends).count() as u32;
        Some(self.shares.of(members, members.locals[0])?.0.among(self.leaves_missing + own))
    }

    /// Schedules when the local roots begin, if not now.
    pub(super) fn schedule_start(&mut self, cx: &Context<'_>) {
        let Some((share, pace)) = self.shares.of(cx.members, cx.members.locals[0]) else { return };
        let after = pace.stagger(cx.config, share, cx.members.me, cx.members.sps.len() as u32);
        let waits = after > Duration::ZERO && !self.blocks.is_empty();
        self.start_at = waits.then(|| cx.out.now + after);
    }

    /// Whether one of these local ranks has a run of chunks to multicast now.
    pub(super) fn has_batch(&self, mut locals: impl Iterator<Item = Rank>) -> bool {
        self.start_at.is_none() && locals.any(|rank| self.blocks.get(rank).is_some_and(Block::has_batch))
    }

    /// Hands out a local rank's next run of at most `most` chunks. [`Self::handle_returned`] must follow.
    pub(super) fn next_batch(&mut self, source: Rank, most: u64) -> Option<ChunkRun> {
        let block = self.blocks.get_mut(source)?;
        let (chunks, again) = block.next_batch(most, self.subgroups)?;
        self.outstanding += 1;
        let subgroup = subgroup_of(chunks.start, block.chunks(), self.subgroups);
        Some(ChunkRun { bytes: block.byte_range(chunks.clone()), chunks, again, subgroup })
    }

    /// The driver has finished a batch.
    pub(super) fn handle_returned(&mut self) {
        self.outstanding -= 1;
    }

    /// A run of a local rank's chunks is on the wire. Returns whether the whole block is.
    pub(super) fn handle_sent(&mut self, source: Rank, chunks: Range<u64>) -> bool {
        let full = self.block(source).handle_sent(chunks);
        self.note_repairs(source);
        full
    }

    /// At least `enough` leaves and their right neighbours lack chunks of a local rank: these chunks are sent again.
    pub(super) fn handle_nak_root(&mut self, source: Rank, ranges: &[(u32, u32)], enough: u32) {
        let block = self.block(source);
        runs(ranges).for_each(|run| block.handle_nak_root(run, enough));
    }
}

/// Receiving: chunks, and losses among them.
impl Multicasts {
    /// How long the multicast of `source` may be silent. `None` where nothing is multicast.
    fn patience(&self, cx: &Context<'_>, source: Rank) -> Option<Patience> {
        let (_, pace) = self.shares.of(cx.members, source)?;
        let patience = cx.members.patience;
        Some(Patience { middle: patience + pace.interval * 2, end: patience / 4 + pace.interval, last: pace.batch })
    }

    /// A chunk of `len` bytes has come in a datagram. `None` if the chunk was here.
    pub(super) fn handle_chunk(
        &mut self,
        cx: &Context<'_>,
        source: Rank,
        chunk: u64,
        len: u32,
    ) -> Result<Option<NewChunk>, &'static str> {
        let patience = self.patience(cx, source).ok_or(NOTHING)?;
        let now = cx.out.now;
        let block = self.blocks.get_mut(source).filter(|b| !b.is_root()).ok_or(NOTHING)?;
        if chunk >= block.chunks() {
            return Err("a datagram behind the end of its block");
        }
        let bytes = block.byte_range(chunk..chunk + 1);
        if bytes.end - bytes.start != u64::from(len) {
            return Err("a datagram of another length than its chunk");
        }
        if !block.handle_chunk(now, chunk) {
            return Ok(None);
        }
        let full = block.is_full();
        let (before, check) = block.rearm_loss_check(now, patience);
        self.checks.change(source, before, check);
        self.note_repairs(source);
        Ok(Some(NewChunk { bytes, full }))
    }

    /// A leaf's block is whole. The right neighbour is notified later.
    pub(super) fn complete_leaf(&mut self, cx: &Context<'_>, source: Rank) {
        self.leaves_missing -= 1;
        self.schedule_have(cx, source);
    }

    pub(super) fn rearm_loss_check(&mut self, cx: &Context<'_>, source: Rank) {
        if let Some(patience) = self.patience(cx, source) {
            let (before, after) = self.block(source).rearm_loss_check(cx.out.now, patience);
            self.checks.change(source, before, after);
        }
    }

    /// The next block whose check is due, and the ranges of chunks that the left neighbour must repair, for
    /// NAKs of [`MAX_RANGES`] each.
    pub(super) fn detect_losses(&mut self, cx: &Context<'_>) -> Option<(Rank, Vec<(u32, u32)>)> {
        if self.unacknowledged_naks >= MAX_UNACKNOWLEDGED_NAKS {
            return None;
        }
        let now = cx.out.now;
        let source = self.checks.pop_due(now)?;
        let patience = self.patience(cx, source)?;
        let losses = self.block(source).detect_losses(now, patience);
        self.checks.change(source, None, losses.next);
        self.unacknowledged_naks += losses.ranges.chunks(MAX_RANGES).len() as u32;
        Some((source, losses.ranges))
    }

    /// Counts one more NAK, if the limit allows it.
    pub(super) fn may_report(&mut self) -> bool {
        let may = self.unacknowledged_naks < MAX_UNACKNOWLEDGED_NAKS;
        self.unacknowledged_naks += u32::from(may);
        may
    }

    pub(super) fn handle_nak_acknowledged(&mut self) {
        self.unacknowledged_naks -= 1;
    }

    /// Chunks of a repair, which lie run after run in a payload of `payload_len` bytes.
    pub(super) fn handle_repair(
        &mut self,
        source: Rank,
        ranges: &[(u32, u32)],
        payload_len: u32,
    ) -> Result<NewChunks, Rejection> {
        let block = self.block(source);
        Rejection::unless(!block.is_root(), "a repair of a local rank's block")?;
        let length = |bytes: &Range<u64>| bytes.end - bytes.start;
        let carried = runs(ranges).map(|run| length(&block.byte_range(run))).sum::<u64>();
        Rejection::unless(carried == u64::from(payload_len), "a repair of another length than its chunks")?;
        let was_full = block.is_full();
        let (mut pieces, mut start) = (Vec::new(), 0);
        for run in runs(ranges) {
            let all = block.byte_range(run.clone());
            let mut new = Vec::new();
            block.handle_repair(run, &mut new);
            let place = |bytes: Range<u64>| (start + (bytes.start - all.start) as u32, bytes);
            pieces.extend(new.into_iter().map(|run| place(block.byte_range(run))));
            start += length(&all) as u32;
        }
        let full = block.is_full() && !was_full;
        self.note_repairs(source);
        Ok(NewChunks { pieces, full })
    }

    /// The left neighbour has these blocks whole.
    pub(super) fn handle_have(&mut self, cx: &Context<'_>, sources: &[Rank]) -> Result<(), Rejection> {
        let known = sources.iter().all(|source| self.blocks.get(*source).is_some());
        Rejection::unless(known, "the whole block of a rank that multicasts nothing here")?;
        for source in sources {
            self.block(*source).handle_have(cx.out.now);
            self.rearm_loss_check(cx, *source);
        }
        Ok(())
    }
}

/// Serving the right neighbour in the ring of recovery.
impl Multicasts {
    /// Checks that a block has these chunks.
    pub(super) fn check_ranges(&self, source: Rank, ranges: &[(u32, u32)]) -> Result<(), Rejection> {
        let block = self.blocks.get(source).ok_or("chunks of a rank that multicasts nothing here")?;
        // The decoder has checked order and overflow of the ranges.
        Rejection::unless(runs(ranges).all(|run| run.end <= block.chunks()), "chunks behind the end of their block")
    }

    /// Whether the left neighbour must be notified, once, that nothing is missing here (MC-7).
    pub(super) fn take_complete(&mut self) -> bool {
        self.leaves_missing == 0 && std::mem::take(&mut self.neighbours.owes_complete)
    }

    /// Schedules the notification of the right neighbour that a block is whole here.
    pub(super) fn schedule_have(&mut self, cx: &Context<'_>, source: Rank) {
        self.neighbours.schedule_have(source, cx.out.now + cx.members.patience / 2);
    }

    /// The whole blocks of which the right neighbour has not been notified.
    pub(super) fn take_haves(&mut self) -> Vec<Rank> {
        self.neighbours.have_at = None;
        std::mem::take(&mut self.neighbours.pending_haves)
    }

    /// Notes that the block may have new chunks that the right neighbour has requested.
    fn note_repairs(&mut self, source: Rank) {
        if self.block(source).has_repair() {
            self.neighbours.serving.insert(source.0);
        }
    }

    /// The right neighbour lacks chunks. Returns the ranges that are missing here, too; none if the neighbour has
    /// reported that it lacks nothing.
    pub(super) fn handle_nak(&mut self, source: Rank, ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let mut lacking = Vec::new();
        if self.neighbours.right_lacks {
            let block = self.block(source);
            runs(ranges).for_each(|run| block.handle_nak(run, &mut lacking));
            self.note_repairs(source);
        }
        lacking
    }

    /// The right neighbour lacks nothing (MC-7).
    pub(super) fn handle_complete(&mut self) -> Result<(), Rejection> {
        Rejection::unless(!self.blocks.is_empty(), "completeness of a call without multicast")?;
        let owes_complete = self.neighbours.owes_complete;
        self.neighbours = RingNeighbours { owes_complete, ..RingNeighbours::default() };
        self.blocks.values_mut().for_each(Block::stop_serving);
        Ok(())
    }

    pub(super) fn has_repair(&self) -> bool {
        !self.neighbours.serving.is_empty()
    }

    /// The next runs of at most `most` chunks for the right neighbour.
    pub(super) fn next_repair(&mut self, most: u64) -> Option<RequestedRuns> {
        if !self.neighbours.right_lacks {
            return None;
        }
        while let Some(source) = self.neighbours.serving.first().copied().map(Rank) {
            let block = self.block(source);
            let chunks = block.next_repair(most);
            if !chunks.is_empty() {
                let bytes = chunks.iter().map(|run| block.byte_range(run.clone())).collect();
                return Some(RequestedRuns { source, chunks, bytes });
            }
            self.neighbours.serving.remove(&source.0);
        }
        None
    }
}

/// Ranges as messages name them, by first chunk and count.
fn runs(ranges: &[(u32, u32)]) -> impl Iterator<Item = Range<u64>> {
    ranges.iter().map(|(first, count)| u64::from(*first)..u64::from(*first) + u64::from(*count))
}

/// The ranks that multicast between hosts, their bytes, and whether they are local. No ranks with one service process.
fn roots<'a>(cx: &'a Context<'_>, run: &'a ProgramRun) -> impl Iterator<Item = (Rank, u64, bool)> + 'a {
    let here = |r: Rank| cx.members.sp_of(r) == cx.members.sps[cx.members.me as usize];
    run.multicast_roots().filter(|_| cx.members.sps.len() > 1).map(move |(r, bytes)| (r, bytes, here(r)))
}
