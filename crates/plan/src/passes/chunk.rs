//! Messages cut in chunks, so that what passes them on need not wait for the whole (GP-8).
//!
//! Both ends cut a message at the same multiples and number its chunks by the messages between the same two ranks, of
//! which both know all. Copies and reductions are cut as well. A chunk waits for the chunks that touch the same bytes
//! and no longer for the others.
//!
//! Invariants: no two steps of the rank that conflict lose their order. Where the program orders accesses to its memory
//! through other ranks, which one program does not show, every chunk waits for all that its step waited for.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU64;

use thiserror::Error;

use crate::program::{Buffer, Op, OpId, Program, Rank, Span, Step};

/// The most chunks that a message is cut in: steps of a program are memory of an engine.
pub const MAX_PIECES: u64 = 1 << 20;

/// Why a program is not cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ChunkError {
    /// The chunks are too small for a message or copy.
    #[error("{op} in chunks of {chunk} bytes: choose chunks of which {MAX_PIECES} are enough")]
    Pieces {
        /// What is to be cut.
        op: Op,
        /// Bytes of a chunk.
        chunk: u64,
    },
}

/// The same with messages, copies and reductions of at most `chunk` bytes each. Multicasts stay whole: the engine cuts
/// them (MC-1). `chunk` is a multiple of the element's bytes where the program reduces.
///
/// # Errors
/// When a message makes more than [`MAX_PIECES`] chunks.
pub fn chunk(program: Program, chunk: NonZeroU64) -> Result<Program, ChunkError> {
    let chunk = chunk.get();
    for step in &program.steps {
        if pieces(step.op, chunk) > MAX_PIECES {
            return Err(ChunkError::Pieces { op: step.op, chunk });
        }
    }
    let conflicts = conflicts(&program);
    let mut cutter = Cutter {
        chunk,
        firsts: first_indices(&program, chunk),
        refine: conflicts.is_some(),
        pieces: Vec::with_capacity(program.steps.len()),
        accesses: Accesses::default(),
        steps: Vec::new(),
    };
    for (id, step) in program.steps.iter().enumerate() {
        let conflicting = conflicts.as_ref().map_or(&[][..], |conflicts| &conflicts[id]);
        cutter.cut(step, conflicting);
    }
    Ok(Program { steps: cutter.steps, ..program })
}

/// In how many steps an operation is cut.
fn pieces(op: Op, chunk: u64) -> u64 {
    match op {
        Op::Send { span, .. } | Op::Recv { span, .. } => span.len.div_ceil(chunk).max(1),
        Op::Copy { from, .. } | Op::Reduce { from, .. } => from.len.div_ceil(chunk).max(1),
        Op::Multicast { .. } | Op::MulticastRecv { .. } => 1,
    }
}

/// Which end of a message this rank is.
type Channel = (bool, Rank);

/// The number of the first chunk of each message.
fn first_indices(program: &Program, chunk: u64) -> HashMap<(Channel, u32), u32> {
    let mut messages: BTreeMap<(Channel, u32), u64> = BTreeMap::new();
    for step in &program.steps {
        match step.op {
            Op::Send { to, index, .. } => messages.insert(((true, to), index), pieces(step.op, chunk)),
            Op::Recv { from, index, .. } => messages.insert(((false, from), index), pieces(step.op, chunk)),
            Op::Multicast { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => None,
        };
    }
    let mut firsts = HashMap::new();
    let (mut channel, mut next) = (None, 0u64);
    for (name, pieces) in messages {
        if channel != Some(name.0) {
            (channel, next) = (Some(name.0), 0);
        }
        firsts.insert(name, u32::try_from(next).expect("a program has at most 2^32 steps"));
        next += pieces;
    }
    firsts
}

/// Piece `i` of `span`.
fn part(span: Span, chunk: u64, i: u64) -> Span {
    let skip = i * chunk;
    Span { offset: span.offset + skip, len: chunk.min(span.len - skip), ..span }
}

/// The program as it is cut.
struct Cutter {
    chunk: u64,
    firsts: HashMap<(Channel, u32), u32>,
    /// Chunks wait for chunks that touch the same bytes, not for whole steps.
    refine: bool,
    /// By old step, the new ones.
    pieces: Vec<std::ops::Range<u32>>,
    accesses: Accesses,
    steps: Vec<Step>,
}

impl Cutter {
    fn cut(&mut self, step: &Step, conflicting: &[OpId]) {
        let first = self.steps.len() as u32;
        let count = pieces(step.op, self.chunk);
        let ordered: Vec<OpId> =
            step.after.iter().copied().filter(|id| !self.refine || !conflicting.contains(id)).collect();
        let whole = ordered.iter().all(|id| self.pieces[id.0 as usize].len() == 1);
        for i in 0..count {
            let op = self.piece(step.op, i, count);
            let mut after: Vec<OpId> = Vec::new();
            if i == 0 || whole {
                after.extend(ordered.iter().flat_map(|id| self.pieces[id.0 as usize].clone()).map(OpId));
            } else {
                // The first chunk waits for all of them; an edge from each to each would be too many.
                after.push(OpId(first));
            }
            let id = OpId(self.steps.len() as u32);
            if self.refine {
                after.extend(self.accesses.touch(op, id));
            }
            after.sort_unstable();
            after.dedup();
            self.steps.push(Step { op, after });
        }
        let end = self.steps.len() as u32;
        if self.refine {
            self.keep_order(step, conflicting, first..end);
        }
        self.pieces.push(first..end);
    }

    /// Chunks of an earlier step that no chunk of this one touches come before the last of them all the same: others
    /// may wait for this step and mean the earlier one.
    fn keep_order(&mut self, step: &Step, conflicting: &[OpId], new: std::ops::Range<u32>) {
        let followed: HashSet<OpId> =
            new.clone().flat_map(|id| self.steps[id as usize].after.iter().copied()).collect();
        let earlier = step.after.iter().filter(|id| conflicting.contains(id));
        let left: Vec<OpId> = earlier
            .flat_map(|id| self.pieces[id.0 as usize].clone())
            .map(OpId)
            .filter(|id| !followed.contains(id))
            .collect();
        self.steps[new.end as usize - 1].after.extend(left);
    }

    fn piece(&self, op: Op, i: u64, count: u64) -> Op {
        if let (1, Op::Copy { .. } | Op::Reduce { .. } | Op::Multicast { .. } | Op::MulticastRecv { .. }) = (count, op)
        {
            return op;
        }
        let part = |span| part(span, self.chunk, i);
        let number = |channel, index| self.firsts[&(channel, index)] + i as u32;
        match op {
            Op::Send { to, index, span } => Op::Send { to, index: number((true, to), index), span: part(span) },
            Op::Recv { from, index, span } => Op::Recv { from, index: number((false, from), index), span: part(span) },
            Op::Copy { from, to } => Op::Copy { from: part(from), to: part(to) },
            Op::Reduce { from, into, from_left } => Op::Reduce { from: part(from), into: part(into), from_left },
            Op::Multicast { .. } | Op::MulticastRecv { .. } => op,
        }
    }
}

/// For each step the earlier ones that it conflicts with and that no other conflicting step lies between, if all of
/// those come before it by what this program says; `None` if not.
fn conflicts(program: &Program) -> Option<Vec<Vec<OpId>>> {
    let mut accesses = Accesses::default();
    let mut conflicts: Vec<Vec<OpId>> = Vec::with_capacity(program.steps.len());
    for (id, step) in (0..).map(OpId).zip(&program.steps) {
        let mut touched = accesses.touch(step.op, id);
        touched.sort_unstable();
        touched.dedup();
        if touched.iter().any(|earlier| !precedes(program, *earlier, id)) {
            return None;
        }
        conflicts.push(touched);
    }
    Some(conflicts)
}

/// Whether `program` itself orders `first` before `second`.
fn precedes(program: &Program, first: OpId, second: OpId) -> bool {
    let mut seen = HashSet::new();
    let mut next = vec![second];
    while let Some(id) = next.pop() {
        for earlier in &program.steps[id.0 as usize].after {
            if *earlier == first {
                return true;
            }
            if *earlier > first && seen.insert(*earlier) {
                next.push(*earlier);
            }
        }
    }
    false
}

/// Who last wrote each byte, and who has read it since.
#[derive(Default)]
struct Accesses {
    buffers: [BTreeMap<u64, Extent>; 3],
}

/// Bytes with the same history.
#[derive(Clone)]
struct Extent {
    end: u64,
    writer: Option<OpId>,
    readers: Vec<OpId>,
}

impl Accesses {
    /// Notes what step `id` reads and writes; says which earlier steps it must not overtake.
    fn touch(&mut self, op: Op, id: OpId) -> Vec<OpId> {
        let mut earlier = Vec::new();
        if let Some(span) = op.reads().filter(|span| !span.is_empty()) {
            for extent in self.extents(span) {
                earlier.extend(extent.writer);
                extent.readers.push(id);
            }
        }
        if let Some(span) = op.writes().filter(|span| !span.is_empty()) {
            for extent in self.extents(span) {
                earlier.extend(extent.writer);
                earlier.append(&mut extent.readers);
            }
            let extents = self.buffer(span.buffer);
            let written: Vec<u64> = extents.range(span.offset..span.offset + span.len).map(|(at, _)| *at).collect();
            for at in written {
                extents.remove(&at);
            }
            extents.insert(span.offset, Extent { end: span.offset + span.len, writer: Some(id), readers: Vec::new() });
        }
        earlier.retain(|earlier| *earlier != id);
        earlier
    }

    fn buffer(&mut self, buffer: Buffer) -> &mut BTreeMap<u64, Extent> {
        match buffer {
            Buffer::Input => &mut self.buffers[0],
            Buffer::Output => &mut self.buffers[1],
            Buffer::Scratch => &mut self.buffers[2],
        }
    }

    /// Extents that cover exactly `span`.
    fn extents(&mut self, span: Span) -> impl Iterator<Item = &mut Extent> {
        let (start, end) = (span.offset, span.offset + span.len);
        let extents = self.buffer(span.buffer);
        for at in [start, end] {
            let reaching = extents.range_mut(..at).next_back().filter(|(_, extent)| extent.end > at);
            if let Some((_, extent)) = reaching {
                let behind = extent.clone();
                extent.end = at;
                extents.insert(at, behind);
            }
        }
        let mut gaps = Vec::new();
        let mut next = start;
        for (at, extent) in extents.range(start..end) {
            if *at > next {
                gaps.push((next, *at));
            }
            next = extent.end;
        }
        if next < end {
            gaps.push((next, end));
        }
        let untouched = |(at, end)| (at, Extent { end, writer: None, readers: Vec::new() });
        extents.extend(gaps.into_iter().map(untouched));
        extents.range_mut(start..end).map(|(_, extent)| extent)
    }
}
