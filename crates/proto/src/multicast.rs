//! Reliable multicast of one block (MC-1 to MC-7): what of it lies here, what was asked for, what is to be served.
//!
//! A block is one rank's contribution, cut into chunks. The service process of that rank is its *root*, all others
//! are *leaves*. Recovery goes round the ring of service processes: a leaf asks its left neighbour, which serves what
//! it has at once and the rest when its own repair has come (MC-6).
//!
//! | a chunk at a leaf | event | next |
//! |---|---|---|
//! | missing | datagram or repair | here |
//! | missing, below the horizon | check | asked |
//! | asked | patience over, or the left neighbour tells it has the block | missing |
//!
//! | a chunk the right neighbour wants | event | next |
//! |---|---|---|
//! | not here | comes by multicast | forgotten: it comes to the neighbour too, which asks again otherwise |
//! | not here | comes by repair | to serve |
//! | to serve | link has room | served, never again: links lose nothing |
//!
//! Invariant: `have` only grows. Never sees payload.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::chunks::ChunkSet;
use crate::ids::Instant;
use crate::wire::MAX_RANGES;

/// Most chunk ranges a leaf asks for in one check; more wait for the next.
const MAX_RANGES_PER_CHECK: usize = 8 * MAX_RANGES;

/// One block and this service process's part in it.
#[derive(Debug)]
pub(crate) struct Block {
    bytes: u64,
    chunk_bytes: u64,
    have: ChunkSet,
    role: Role,
    serving: Option<Box<Serving>>,
}

#[derive(Debug)]
enum Role {
    Root(Root),
    Leaf(Leaf),
}

/// The sending side.
#[derive(Debug)]
struct Root {
    /// The contribution may be read.
    started: bool,
    /// Chunks `0 .. cursor` have been handed out.
    cursor: u64,
    /// Who reported a chunk missing at two neighbours, counted.
    reports: BTreeMap<u64, u32>,
    /// Chunks to multicast again.
    again: ChunkSet,
}

/// The receiving side.
#[derive(Debug)]
struct Leaf {
    /// One past the highest chunk heard by multicast.
    highest: u64,
    heard: Option<Instant>,
    asked: ChunkSet,
    asked_at: Instant,
    left_has: bool,
}

/// What the right neighbour lacks.
#[derive(Debug)]
struct Serving {
    wanted: ChunkSet,
    to_serve: ChunkSet,
    served: ChunkSet,
}

/// How long to wait before something counts as lost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Silence of a stream after which its end is asked for (MC-5's alpha).
    pub(crate) quiet: Duration,
    /// After which an unanswered request is made again.
    pub(crate) again: Duration,
    /// Chunks of reordering tolerated.
    pub(crate) reorder: u64,
}

impl Block {
    /// A block of `bytes > 0` bytes.
    pub(crate) fn new(bytes: u64, chunk_bytes: u32, root: bool) -> Self {
        let chunks = chunks_of(bytes, chunk_bytes);
        let role = if root {
            Role::Root(Root { started: false, cursor: 0, reports: BTreeMap::new(), again: ChunkSet::new(chunks) })
        } else {
            let (asked, asked_at) = (ChunkSet::new(chunks), Instant(0));
            Role::Leaf(Leaf { highest: 0, heard: None, asked, asked_at, left_has: false })
        };
        Block { bytes, chunk_bytes: chunk_bytes.into(), have: ChunkSet::new(chunks), role, serving: None }
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.have.len()
    }

    pub(crate) fn is_root(&self) -> bool {
        matches!(self.role, Role::Root(_))
    }

    /// All of it lies here (leaf) or has been multicast (root).
    pub(crate) fn is_full(&self) -> bool {
        self.have.is_full()
    }

    /// The bytes of the block that a run of chunks covers.
    pub(crate) fn byte_range(&self, run: Range<u64>) -> Range<u64> {
        run.start * self.chunk_bytes..(run.end * self.chunk_bytes).min(self.bytes)
    }

    /// The byte ranges of the block that lie here.
    pub(crate) fn present_bytes(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.have.runs(0..self.chunks(), true).map(|run| self.byte_range(run))
    }

    // Root.

    /// The contribution may be read from now on.
    pub(crate) fn start(&mut self) {
        if let Role::Root(root) = &mut self.role {
            root.started = true;
        }
    }

    /// Whether something is to be multicast.
    pub(crate) fn has_batch(&self) -> bool {
        match &self.role {
            Role::Root(root) => root.started && (root.cursor < self.have.len() || !root.again.is_empty()),
            Role::Leaf(_) => false,
        }
    }

    /// Hands out the next run of at most `most` chunks to multicast, inside one subgroup; true when it goes again.
    pub(crate) fn next_batch(&mut self, most: u64, subgroups: u16) -> Option<(Range<u64>, bool)> {
        let chunks = self.have.len();
        let Role::Root(root) = &mut self.role else { return None };
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
    pub(crate) fn handle_sent(&mut self, run: Range<u64>) -> bool {
        let was_full = self.have.is_full();
        for c in run {
            self.have.insert(c);
            self.forget_want(c);
        }
        !was_full && self.have.is_full()
    }

    /// A leaf reports that it and its right neighbour miss `run`; with `enough` such reports it is multicast again.
    pub(crate) fn handle_miss(&mut self, run: Range<u64>, enough: u32) {
        let Role::Root(root) = &mut self.role else { return };
        for c in run.start..run.end.min(root.cursor) {
            let reports = root.reports.entry(c).or_insert(0);
            *reports += 1;
            if *reports == enough {
                root.again.insert(c);
            }
        }
    }

    // Leaf.

    /// A datagram. False when it brought nothing new.
    pub(crate) fn handle_chunk(&mut self, now: Instant, chunk: u64) -> bool {
        let Role::Leaf(leaf) = &mut self.role else { return false };
        leaf.highest = leaf.highest.max(chunk + 1);
        leaf.heard = Some(now);
        let new = self.have.insert(chunk);
        if new {
            self.forget_want(chunk);
        }
        new
    }

    /// Whether chunks below the highest heard are missing.
    pub(crate) fn has_gap(&self) -> bool {
        match &self.role {
            Role::Root(_) => false,
            Role::Leaf(leaf) => self.have.next_run(0..leaf.highest, false).is_some(),
        }
    }

    /// A repair of the left neighbour. The runs that are new are appended to `new`.
    pub(crate) fn handle_repair(&mut self, run: Range<u64>, new: &mut Vec<Range<u64>>) {
        let mut at = run.start;
        while let Some(r) = self.have.next_run(at..run.end, false) {
            at = r.end;
            new.push(r);
        }
        for c in new.iter().cloned().flatten() {
            self.have.insert(c);
            if let Some(s) = &mut self.serving
                && s.wanted.remove(c)
            {
                s.to_serve.insert(c);
            }
        }
    }

    /// The left neighbour has all of the block: what was asked before that and not answered may be asked again.
    pub(crate) fn handle_have(&mut self) {
        let chunks = self.have.len();
        if let Role::Leaf(leaf) = &mut self.role
            && !leaf.left_has
        {
            leaf.left_has = true;
            leaf.asked = ChunkSet::new(chunks);
        }
    }

    /// Whether recovery has anything to look after: the stream has begun, or the left neighbour can serve it.
    pub(crate) fn needs_check(&self) -> bool {
        match &self.role {
            Role::Root(_) => false,
            Role::Leaf(leaf) => !self.have.is_full() && (leaf.left_has || leaf.heard.is_some()),
        }
    }

    /// What to ask the left neighbour for now, as (first, count), at most a bounded number.
    pub(crate) fn ask(&mut self, now: Instant, patience: Patience) -> Vec<(u32, u32)> {
        let chunks = self.have.len();
        let Role::Leaf(leaf) = &mut self.role else { return Vec::new() };
        let quiet = leaf.heard.is_some_and(|h| now.since(h) >= patience.quiet);
        let ended = leaf.highest == chunks;
        let horizon =
            if leaf.left_has || ended || quiet { chunks } else { leaf.highest.saturating_sub(patience.reorder) };
        if !leaf.asked.is_empty() && now.since(leaf.asked_at) >= patience.again {
            leaf.asked = ChunkSet::new(chunks);
        }
        let mut ranges = Vec::new();
        let mut at = 0;
        while ranges.len() < MAX_RANGES_PER_CHECK {
            let Some(missing) = self.have.next_run(at..horizon, false) else { break };
            at = missing.end;
            let Some(run) = leaf.asked.next_run(missing.clone(), false) else { continue };
            at = run.end;
            run.clone().for_each(|c| {
                leaf.asked.insert(c);
            });
            ranges.push((run.start as u32, (run.end - run.start) as u32));
        }
        if !ranges.is_empty() {
            leaf.asked_at = now;
        }
        ranges
    }

    // Serving the right neighbour.

    /// The right neighbour lacks `run`. Appends to `lacking` what was heard past but is missing here too.
    pub(crate) fn handle_want(&mut self, run: Range<u64>, lacking: &mut Vec<(u32, u32)>) {
        let chunks = self.have.len();
        let serving = self.serving.get_or_insert_with(|| {
            Box::new(Serving {
                wanted: ChunkSet::new(chunks),
                to_serve: ChunkSet::new(chunks),
                served: ChunkSet::new(chunks),
            })
        });
        for c in run.clone() {
            if serving.served.contains(c) {
                continue;
            }
            if self.have.contains(c) {
                serving.to_serve.insert(c);
            } else {
                serving.wanted.insert(c);
            }
        }
        if let Role::Leaf(leaf) = &self.role {
            let heard = run.start..run.end.min(leaf.highest);
            lacking.extend(self.have.runs(heard, false).map(|r| (r.start as u32, (r.end - r.start) as u32)));
        }
    }

    fn forget_want(&mut self, chunk: u64) {
        if let Some(s) = &mut self.serving {
            s.wanted.remove(chunk);
        }
    }

    /// Whether [`Self::next_repair`] has something.
    pub(crate) fn has_repair(&self) -> bool {
        self.serving.as_ref().is_some_and(|s| !s.to_serve.is_empty())
    }

    /// Hands out the next run of at most `most` chunks to send to the right neighbour.
    pub(crate) fn next_repair(&mut self, most: u64) -> Option<Range<u64>> {
        let s = self.serving.as_mut()?;
        if s.to_serve.is_empty() {
            return None;
        }
        let run = s.to_serve.next_run(0..self.have.len(), true).expect("the set is not empty");
        let run = run.start..run.end.min(run.start + most.max(1));
        for c in run.clone() {
            s.to_serve.remove(c);
            s.served.insert(c);
        }
        Some(run)
    }

    /// The right neighbour lacks nothing any more.
    pub(crate) fn stop_serving(&mut self) {
        self.serving = None;
    }
}

/// Chunks that a block of `bytes` bytes is cut into.
pub(crate) fn chunks_of(bytes: u64, chunk_bytes: u32) -> u64 {
    bytes.div_ceil(u64::from(chunk_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience =
        Patience { quiet: Duration::from_millis(8), again: Duration::from_millis(40), reorder: 2 };

    fn ms(n: u64) -> Instant {
        Instant(n * 1_000_000)
    }

    #[test]
    fn mc_6_asks_below_the_horizon_once_and_again_after_patience() {
        let mut b = Block::new(10_000, 1000, false);
        for c in [0, 1, 3, 6] {
            assert!(b.handle_chunk(ms(1), c));
        }
        assert!(!b.handle_chunk(ms(1), 3), "a duplicate brings nothing");
        assert_eq!(b.ask(ms(2), PATIENCE), [(2, 1), (4, 1)], "chunk 5 may be reordered");
        assert_eq!(b.ask(ms(3), PATIENCE), [], "asked once");
        assert_eq!(b.ask(ms(10), PATIENCE), [(5, 1), (7, 3)], "MC-5: a quiet stream has ended");
        assert_eq!(b.ask(ms(60), PATIENCE), [(2, 1), (4, 2), (7, 3)], "again");
    }

    #[test]
    fn mc_6_a_want_is_served_when_the_repair_has_come_and_only_once() {
        let mut b = Block::new(10_000, 1000, false);
        b.handle_chunk(ms(1), 0);
        b.handle_chunk(ms(1), 4);
        let mut lacking = Vec::new();
        b.handle_want(0..4, &mut lacking);
        assert_eq!(lacking, [(1, 3)], "missing here too");
        assert_eq!(b.next_repair(9), Some(0..1));
        assert_eq!(b.next_repair(9), None);
        let mut new = Vec::new();
        b.handle_repair(1..3, &mut new);
        assert_eq!(new, vec![1..3; 1]);
        assert_eq!(b.next_repair(9), Some(1..3));
        b.handle_chunk(ms(2), 3);
        assert_eq!(b.next_repair(9), None, "what came by multicast is not served unasked");
        b.handle_want(0..4, &mut lacking);
        assert_eq!(b.next_repair(9), Some(3..4), "what was served is not served again");
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
        b.handle_miss(2..4, 2);
        assert!(!b.has_batch());
        b.handle_miss(3..4, 2);
        assert_eq!(b.next_batch(4, 3), Some((3..4, true)), "missed by many: multicast again");
    }
}
