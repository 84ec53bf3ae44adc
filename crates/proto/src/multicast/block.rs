//! Reliable multicast of one block (MC-1 to MC-7): which chunks are here, were requested, or are to be served.
//!
//! A block is one rank's contribution, cut into chunks. The service process of that rank is its *root*, all others are
//! *leaves*. Recovery goes round the ring of service processes: a leaf requests chunks from its left neighbour. The
//! left neighbour serves the chunks that it has at once, and the others when its own repair has come (MC-6).
//!
//! A leaf requests nothing while its stream flows. The receive link is full then, and a repair would only push
//! datagrams out of the switch's queue.
//!
//! | a chunk at a leaf | event | next |
//! |---|---|---|
//! | missing | datagram or repair | here |
//! | missing, the stream has ended or is silent | check | requested, once: links lose nothing |
//! | requested | datagram or repair | here |
//!
//! | a chunk the right neighbour wants | event | next |
//! |---|---|---|
//! | not here | comes | to serve: the neighbour's stream had ended when it requested the chunk |
//! | to serve | link has room | served, never again |
//!
//! Invariant: `have` only grows. Never sees payload.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::ids::Instant;
use crate::multicast::chunks::ChunkSet;
use crate::wire::MAX_RANGES;

/// Most chunk ranges that a leaf requests in one check; more wait for the next check.
const MAX_RANGES_PER_CHECK: usize = 8 * MAX_RANGES;

/// Most chunks of one block whose reports the root counts.
const MAX_REPORTS: usize = 1 << 16;

/// One block and this service process's part in it.
#[derive(Debug)]
pub struct Block {
    bytes: u64,
    chunk_bytes: u32,
    have: ChunkSet,
    role: BlockRole,
    serving: Option<Box<Serving>>,
}

/// A service process has one block per rank, so fields that most blocks never need are boxed.
const _: () = assert!(size_of::<Block>() <= 96);

#[derive(Debug)]
enum BlockRole {
    Root(Box<Root>),
    Leaf(Leaf),
}

#[derive(Debug)]
struct Root {
    started: bool,
    /// Chunks `0 .. cursor` have been handed out.
    cursor: u64,
    /// By chunk: how many leaves reported it as missing at themselves and at their right neighbour.
    reports: BTreeMap<u64, u32>,
    again: ChunkSet,
}

#[derive(Debug)]
struct Leaf {
    /// One past the highest chunk received by multicast.
    highest: u32,
    last_received: Option<Instant>,
    requested: Option<Box<ChunkSet>>,
    left_has: bool,
    check: Option<Instant>,
}

#[derive(Debug)]
struct Serving {
    wanted: ChunkSet,
    to_serve: ChunkSet,
    served: ChunkSet,
}

/// How long a stream may be silent before missing chunks count as lost (MC-5's alpha).
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For chunks below the highest received one, anywhere in the block.
    pub middle: Duration,
    /// For all chunks, if the stream is within [`Self::last`] chunks of the end, or the left neighbour has the block.
    pub end: Duration,
    pub last: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub struct DetectedLosses {
    /// Ranges to request from the left neighbour, as (first, count).
    pub ranges: Vec<(u32, u32)>,
    /// When to check again, unless something happens before.
    pub next: Option<Instant>,
}

impl Block {
    /// A block of `bytes > 0` bytes. This service process multicasts the block as `root`, or receives it.
    pub fn new(bytes: u64, chunk_bytes: u32, root: bool) -> Self {
        let chunks = chunks_of(bytes, chunk_bytes);
        let role = if root {
            let (reports, again) = (BTreeMap::new(), ChunkSet::new(chunks));
            BlockRole::Root(Box::new(Root { started: false, cursor: 0, reports, again }))
        } else {
            BlockRole::Leaf(Leaf { highest: 0, last_received: None, requested: None, left_has: false, check: None })
        };
        Block { bytes, chunk_bytes, have: ChunkSet::new(chunks), role, serving: None }
    }

    /// Approximate bytes of a block's tables: a bit per chunk in each set, and the root's counters.
    pub(crate) fn table_bytes(bytes: u64, chunk_bytes: u32, root: bool) -> u64 {
        const SETS: u64 = 5;
        const REPORT_BYTES: u64 = 16;
        let chunks = chunks_of(bytes, chunk_bytes);
        let reports = if root { chunks.min(MAX_REPORTS as u64) } else { 0 };
        size_of::<Block>() as u64 + SETS * chunks.div_ceil(8) + REPORT_BYTES * reports
    }

    pub fn chunks(&self) -> u64 {
        self.have.len()
    }

    pub fn is_root(&self) -> bool {
        matches!(self.role, BlockRole::Root(_))
    }

    /// All of the block is here (leaf) or has been multicast (root).
    pub fn is_full(&self) -> bool {
        self.have.is_full()
    }

    /// The bytes of the block that a run of chunks covers.
    pub fn byte_range(&self, run: Range<u64>) -> Range<u64> {
        let chunk_bytes = u64::from(self.chunk_bytes);
        run.start * chunk_bytes..(run.end * chunk_bytes).min(self.bytes)
    }

    /// The byte ranges of the block that are here.
    pub(crate) fn present_bytes(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.have.runs(0..self.chunks(), true).map(|run| self.byte_range(run))
    }

    // Root.

    /// The contribution may be read from now on.
    pub fn start(&mut self) {
        if let BlockRole::Root(root) = &mut self.role {
            root.started = true;
        }
    }

    /// The contribution may not be read any more, so none of it is multicast again.
    pub(crate) fn stop(&mut self) {
        if let BlockRole::Root(root) = &mut self.role {
            root.started = false;
        }
    }

    pub fn has_batch(&self) -> bool {
        match &self.role {
            BlockRole::Root(root) => root.started && (root.cursor < self.have.len() || !root.again.is_empty()),
            BlockRole::Leaf(_) => false,
        }
    }

    /// Hands out the next run of at most `most` chunks to multicast, inside one subgroup; true for a repeated run.
    pub fn next_batch(&mut self, most: u64, subgroups: u16) -> Option<(Range<u64>, bool)> {
        let chunks = self.have.len();
        let BlockRole::Root(root) = &mut self.role else { return None };
        if !root.started {
            return None;
        }
        let again = root.again.next_run(0..chunks, true);
        let from = again.clone().unwrap_or(root.cursor..chunks);
        if from.is_empty() {
            return None;
        }
        let subgroup = outboard_plan::subgroup_of(from.start, chunks, subgroups);
        let limit = outboard_plan::subgroup_chunks(chunks, subgroups, subgroup).end;
        let run = from.start..from.end.min(limit).min(from.start + most);
        if again.is_some() {
            run.clone().for_each(|c| {
                root.again.remove(c);
                root.reports.remove(&c);
            });
            return Some((run, true));
        }
        root.cursor = run.end;
        Some((run, false))
    }

    /// A run handed out by [`Self::next_batch`] is on the wire. True when the block has become full.
    pub fn handle_sent(&mut self, run: Range<u64>) -> bool {
        let was_full = self.have.is_full();
        for c in run {
            self.insert_chunk(c);
        }
        !was_full && self.have.is_full()
    }

    /// A leaf and its right neighbour miss `run`. After `enough` such reports the root multicasts `run` again.
    pub fn handle_nak_root(&mut self, run: Range<u64>, enough: u32) {
        let BlockRole::Root(root) = &mut self.role else { return };
        let room = MAX_REPORTS.saturating_sub(root.reports.len());
        // A report is only a hint: repair brings the chunks anyway.
        for c in (run.start..run.end.min(root.cursor)).take(room) {
            let reports = root.reports.entry(c).or_insert(0);
            *reports += 1;
            if *reports == enough {
                root.again.insert(c);
            }
        }
    }

    // Leaf.

    /// A datagram. False when it brought nothing new.
    pub fn handle_chunk(&mut self, now: Instant, chunk: u64) -> bool {
        let BlockRole::Leaf(leaf) = &mut self.role else { return false };
        leaf.highest = leaf.highest.max(chunk as u32 + 1);
        leaf.last_received = Some(now);
        self.insert_chunk(chunk)
    }

    /// Notes a received chunk. False when it was here before.
    fn insert_chunk(&mut self, chunk: u64) -> bool {
        if let Some(s) = &mut self.serving
            && s.wanted.remove(chunk)
        {
            s.to_serve.insert(chunk);
        }
        self.have.insert(chunk)
    }

    /// A repair of the left neighbour. Appends the new runs to `new`.
    pub fn handle_repair(&mut self, run: Range<u64>, new: &mut Vec<Range<u64>>) {
        let mut at = run.start;
        while let Some(r) = self.have.next_run(at..run.end, false) {
            at = r.end;
            new.push(r);
        }
        for c in new.iter().cloned().flatten() {
            self.insert_chunk(c);
        }
    }

    /// The left neighbour has all of the block: the leaf may request chunks even if nothing of the stream has come.
    pub fn handle_have(&mut self, now: Instant) {
        if let BlockRole::Leaf(leaf) = &mut self.role {
            leaf.left_has = true;
            leaf.last_received.get_or_insert(now);
        }
    }

    /// Reschedules the check of the block. Returns the time of the check before and after this call. The check never
    /// moves to a later time, since most datagrams only postpone what a check would find. Until the stream has almost
    /// ended, only chunks below the highest received one can be found missing.
    pub fn rearm_loss_check(&mut self, now: Instant, patience: Patience) -> (Option<Instant>, Option<Instant>) {
        let (chunks, here) = (self.have.len(), self.have.count());
        let BlockRole::Leaf(leaf) = &mut self.role else { return (None, None) };
        let before = leaf.check;
        leaf.check = if here == chunks {
            None
        } else {
            let lost = leaf.lost_at(now, chunks, patience).filter(|(_, horizon)| here < *horizon);
            before.into_iter().chain(lost.map(|(at, _)| at)).min()
        };
        (before, leaf.check)
    }

    /// Returns a bounded number of lost ranges that were not requested yet, and the time of the next check.
    pub fn detect_losses(&mut self, now: Instant, patience: Patience) -> DetectedLosses {
        let (chunks, here) = (self.have.len(), self.have.count());
        let mut losses = DetectedLosses { ranges: Vec::new(), next: None };
        let BlockRole::Leaf(leaf) = &mut self.role else { return losses };
        leaf.check = None;
        if here == chunks {
            return losses;
        }
        let horizon = match leaf.lost_at(now, chunks, patience) {
            Some((at, horizon)) if at <= now => horizon,
            later => {
                leaf.check = later.filter(|(_, horizon)| here < *horizon).map(|(at, _)| at);
                losses.next = leaf.check;
                return losses;
            }
        };
        let requested = leaf.requested.get_or_insert_with(|| Box::new(ChunkSet::new(chunks)));
        let mut at = 0;
        while let Some(missing) = self.have.next_run(at..horizon, false) {
            at = missing.end;
            let Some(run) = requested.next_run(missing.clone(), false) else { continue };
            if losses.ranges.len() == MAX_RANGES_PER_CHECK {
                leaf.check = Some(now);
                losses.next = leaf.check;
                break;
            }
            at = run.end;
            run.clone().for_each(|c| {
                requested.insert(c);
            });
            losses.ranges.push((run.start as u32, (run.end - run.start) as u32));
        }
        losses
    }

    // Serving the right neighbour.

    /// The right neighbour lacks `run`. Appends to `lacking` the chunks missing here below the highest received one.
    pub fn handle_nak(&mut self, run: Range<u64>, lacking: &mut Vec<(u32, u32)>) {
        let chunks = self.have.len();
        let serving = self.serving.get_or_insert_with(|| {
            Box::new(Serving {
                wanted: ChunkSet::new(chunks),
                to_serve: ChunkSet::new(chunks),
                served: ChunkSet::new(chunks),
            })
        });
        for new in serving.served.runs(run.clone(), false) {
            self.have.runs(new.clone(), true).for_each(|here| serving.to_serve.insert_run(here));
            self.have.runs(new, false).for_each(|missing| serving.wanted.insert_run(missing));
        }
        if let BlockRole::Leaf(leaf) = &self.role {
            let received = run.start..run.end.min(leaf.highest.into());
            lacking.extend(self.have.runs(received, false).map(|r| (r.start as u32, (r.end - r.start) as u32)));
        }
    }

    /// Whether [`Self::next_repair`] has something.
    pub fn has_repair(&self) -> bool {
        self.serving.as_ref().is_some_and(|s| !s.to_serve.is_empty())
    }

    /// Hands out runs of at most `most` chunks together for the right neighbour; no runs if there is nothing to serve.
    pub fn next_repair(&mut self, most: u64) -> Vec<Range<u64>> {
        let (chunks, mut left) = (self.have.len(), most.max(1));
        let mut runs = Vec::new();
        let Some(s) = self.serving.as_mut().filter(|s| !s.to_serve.is_empty()) else { return runs };
        let mut at = 0;
        while left > 0 && runs.len() < MAX_RANGES {
            let Some(run) = s.to_serve.next_run(at..chunks, true) else { break };
            let run = run.start..run.end.min(run.start + left);
            for c in run.clone() {
                s.to_serve.remove(c);
                s.served.insert(c);
            }
            at = run.end;
            left -= run.end - run.start;
            runs.push(run);
        }
        runs
    }

    /// The right neighbour lacks nothing any more.
    pub fn stop_serving(&mut self) {
        self.serving = None;
    }
}

impl Leaf {
    /// When missing chunks count as lost, and below which chunk.
    fn lost_at(&self, now: Instant, chunks: u64, patience: Patience) -> Option<(Instant, u64)> {
        let highest = u64::from(self.highest);
        if highest == chunks {
            return Some((now, chunks));
        }
        let last_received = self.last_received?;
        let ending = self.left_has || highest + patience.last >= chunks;
        Some(if ending { (last_received + patience.end, chunks) } else { (last_received + patience.middle, highest) })
    }
}

/// Chunks that a block of `bytes` bytes is cut into.
pub(crate) fn chunks_of(bytes: u64, chunk_bytes: u32) -> u64 {
    bytes.div_ceil(u64::from(chunk_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { middle: Duration::from_millis(8), end: Duration::from_millis(2), last: 2 };

    fn ms(n: u64) -> Instant {
        Instant(n * 1_000_000)
    }

    /// Requested ranges, and the millisecond of the next check.
    fn detect_losses(b: &mut Block, at: u64) -> (Vec<(u32, u32)>, Option<u64>) {
        let losses = b.detect_losses(ms(at), PATIENCE);
        (losses.ranges, losses.next.map(|n| n.0 / 1_000_000))
    }

    #[test]
    fn mc_6_losses_are_requested_once_at_the_end_of_the_stream() {
        let mut b = Block::new(10_000, 1000, false);
        for c in [0, 1, 3, 6] {
            assert!(b.handle_chunk(ms(1), c));
        }
        assert!(!b.handle_chunk(ms(1), 3), "a duplicate brings nothing");
        assert_eq!(detect_losses(&mut b, 2), (vec![], Some(9)));
        b.handle_chunk(ms(5), 9);
        assert_eq!(b.rearm_loss_check(ms(5), PATIENCE), (Some(ms(9)), Some(ms(5))));
        assert_eq!(detect_losses(&mut b, 5), (vec![(2, 1), (4, 2), (7, 2)], None));
        assert_eq!(detect_losses(&mut b, 50), (vec![], None), "asked once");
    }

    #[test]
    fn mc_5_silence_detects_gaps_in_the_middle_and_all_losses_near_the_end() {
        let mut b = Block::new(10_000, 1000, false);
        assert_eq!(detect_losses(&mut b, 100), (vec![], None), "nothing is known of the stream");
        b.handle_chunk(ms(101), 0);
        b.handle_chunk(ms(101), 4);
        assert_eq!(
            detect_losses(&mut b, 109),
            (vec![(1, 3)], None),
            "what comes after the highest may not have been sent"
        );
        b.handle_chunk(ms(110), 8);
        assert_eq!(detect_losses(&mut b, 111), (vec![], Some(112)));
        assert_eq!(detect_losses(&mut b, 112), (vec![(5, 3), (9, 1)], None));
    }

    #[test]
    fn mc_6_have_lets_a_leaf_request_a_block_without_any_datagram() {
        let mut b = Block::new(10_000, 1000, false);
        b.handle_have(ms(1));
        assert_eq!(detect_losses(&mut b, 2), (vec![], Some(3)));
        assert_eq!(detect_losses(&mut b, 3), (vec![(0, 10)], None));
    }

    #[test]
    fn mc_6_nak_is_served_once_when_the_chunk_has_come() {
        let mut b = Block::new(10_000, 1000, false);
        b.handle_chunk(ms(1), 0);
        b.handle_chunk(ms(1), 4);
        let mut lacking = Vec::new();
        b.handle_nak(0..4, &mut lacking);
        assert_eq!(lacking, [(1, 3)], "missing here too");
        assert_eq!(b.next_repair(9), vec![0..1; 1]);
        assert!(b.next_repair(9).is_empty());
        let mut new = Vec::new();
        b.handle_repair(1..3, &mut new);
        assert_eq!(new, vec![1..3; 1]);
        b.handle_chunk(ms(2), 3);
        assert_eq!(b.next_repair(9), vec![1..4; 1]);
        b.handle_nak(0..4, &mut lacking);
        assert!(b.next_repair(9).is_empty(), "what was served is not served again");
    }

    #[test]
    fn mc_6_one_repair_carries_many_runs_within_its_bound() {
        let mut b = Block::new(10_000, 1000, false);
        (0..10).for_each(|c| assert!(b.handle_chunk(ms(1), c)));
        for run in [0..1, 3..6, 8..10] {
            b.handle_nak(run, &mut Vec::new());
        }
        assert_eq!(b.next_repair(5), [0..1, 3..6, 8..9]);
        assert_eq!(b.next_repair(5), vec![9..10; 1]);
    }

    #[test]
    fn mc_6_reports_of_a_huge_block_are_counted_within_a_bound() {
        let chunks = 1 << 24;
        let mut b = Block::new(chunks * 1000, 1000, true);
        b.start();
        let (first, _) = b.next_batch(8, 1).expect("there is much to send");
        b.handle_sent(first.clone());
        b.handle_nak(0..chunks, &mut Vec::new());
        assert_eq!((b.next_repair(9), b.has_repair()), (vec![first], false));
        b.next_batch(chunks, 1).expect("there is more");
        b.handle_nak_root(0..chunks, 9);
        let BlockRole::Root(root) = &b.role else { panic!("it is the root") };
        assert_eq!(root.reports.len(), MAX_REPORTS);
    }

    #[test]
    fn mc_10_batches_stay_inside_a_subgroup() {
        let mut b = Block::new(10_000, 1000, true);
        assert!(!b.has_batch(), "the contribution is not there yet");
        b.start();
        let mut seen = Vec::new();
        while let Some((run, again)) = b.next_batch(4, 3) {
            assert!(!again);
            let first = outboard_plan::subgroup_of(run.start, 10, 3);
            assert_eq!(first, outboard_plan::subgroup_of(run.end - 1, 10, 3));
            b.handle_sent(run.clone());
            seen.extend(run);
        }
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
        assert!(b.is_full());
        b.handle_nak_root(2..4, 2);
        assert!(!b.has_batch());
        b.handle_nak_root(3..4, 2);
        assert_eq!(b.next_batch(4, 3), Some((3..4, true)), "missed by many: multicast again");
    }
}
