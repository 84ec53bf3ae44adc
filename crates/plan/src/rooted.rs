//! Gather and scatter: one shape, whose blocks travel to the root or from it.
//!
//! With the linear algorithm, gather and scatter are an alltoall in which all ranks but the root have one block. With a
//! tree, ranks count from the root round the group; blocks at the root lie in the order of ranks.
//!
//! Invariants: receives follow nothing, so an engine posts them all at once (MC-4). Empty blocks do not move. At the
//! root every block is received straight into its place, or sent straight from it.

use std::ops::Range;

use crate::algorithm::Algorithm;
use crate::alltoall::{Blocks, alltoall};
use crate::arguments::PlanError;
use crate::binomial::{self, TreePosition};
use crate::builder::ProgramBuilder;
use crate::program::{Buffer, Op, OpId, Program, Rank, Span};

/// The direction in which the blocks travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockDirection {
    /// To the root: every rank has `Input`, the root alone `Output`.
    Gather,
    /// From the root: the root alone has `Input`, every rank `Output`.
    Scatter,
}

impl BlockDirection {
    /// The buffer of every rank's own block, and the root's buffer of all blocks.
    fn buffers(self) -> (Buffer, Buffer) {
        match self {
            BlockDirection::Gather => (Buffer::Input, Buffer::Output),
            BlockDirection::Scatter => (Buffer::Output, Buffer::Input),
        }
    }

    /// The block of `bytes` bytes of a rank in its own buffer.
    fn own(self, bytes: u64) -> Span {
        Span { buffer: self.buffers().0, offset: 0, len: bytes }
    }

    /// Sets the bytes of the rank's own block, of all blocks at the root (0 elsewhere), and of blocks held for others.
    fn set_buffers(self, builder: &mut ProgramBuilder, own: u64, all: u64, held: u64) {
        match self {
            BlockDirection::Gather => builder.buffers(own, all, held),
            BlockDirection::Scatter => builder.buffers(all, own, held),
        };
    }

    /// Moves `span` between this rank and `peer`, which is farther from the root.
    fn below(self, peer: Rank, index: u32, span: Span) -> Op {
        match self {
            BlockDirection::Gather => Op::Recv { from: peer, index, span },
            BlockDirection::Scatter => Op::Send { to: peer, index, span },
        }
    }

    /// Moves `span` between this rank and `peer`, which is nearer to the root.
    fn above(self, peer: Rank, index: u32, span: Span) -> Op {
        match self {
            BlockDirection::Gather => Op::Send { to: peer, index, span },
            BlockDirection::Scatter => Op::Recv { from: peer, index, span },
        }
    }

    /// Moves the block of this rank between its own buffer and its place among others.
    fn copy(self, among: Span) -> Op {
        let own = self.own(among.len);
        match self {
            BlockDirection::Gather => Op::Copy { from: own, to: among },
            BlockDirection::Scatter => Op::Copy { from: among, to: own },
        }
    }

    /// The children of `rank`: the smallest subtree is collected first and served last.
    fn children(self, rank: u32, ranks: u32) -> Vec<u32> {
        let children = binomial::children(rank, ranks);
        match self {
            BlockDirection::Gather => children.rev().collect(),
            BlockDirection::Scatter => children.collect(),
        }
    }
}

/// The program of `rank` in a gather or scatter of blocks of `bytes` bytes, which lie at `root` in the order of ranks.
pub(crate) fn program(
    direction: BlockDirection,
    algorithm: Algorithm,
    ranks: u32,
    root: Rank,
    rank: Rank,
    bytes: u64,
) -> Result<Program, PlanError> {
    let total = bytes.checked_mul(ranks.into()).ok_or(PlanError::Bytes { ranks })?;
    match algorithm {
        Algorithm::Linear => {
            let blocks = match direction {
                BlockDirection::Gather => Blocks::gather(ranks, root, rank, bytes, true),
                BlockDirection::Scatter => Blocks::scatter(ranks, root, rank, bytes, true),
            };
            alltoall(Algorithm::Pull, ranks, rank, &blocks.ok_or(PlanError::Bytes { ranks })?)
        }
        Algorithm::Binomial => {
            let place = TreePosition::new(ranks, root, rank);
            let mut builder = ProgramBuilder::new(rank, ranks);
            direction.set_buffers(&mut builder, bytes, if rank == root { total } else { 0 }, 0);
            if bytes > 0 && rank == root {
                binomial_root(direction, &mut builder, place, bytes);
            } else if bytes > 0 {
                binomial_other(direction, &mut builder, place, bytes);
            }
            Ok(builder.build())
        }
        other => unreachable!("{other:?} is no algorithm of a gather or scatter"),
    }
}

fn binomial_root(direction: BlockDirection, builder: &mut ProgramBuilder, place: TreePosition, bytes: u64) {
    let (_, buffer) = direction.buffers();
    let held = |first: Rank, count: u64| Span { buffer, offset: u64::from(first.0) * bytes, len: count * bytes };
    for child in direction.children(0, place.ranks) {
        for (number, first, run) in place.runs(child) {
            builder.push(direction.below(place.at(child), number, held(first, run.len() as u64)), &[]);
        }
    }
    builder.push(direction.copy(held(place.root, 1)), &[]);
}

/// An inner rank of the tree holds the blocks of its subtree in scratch, its own block first.
fn binomial_other(direction: BlockDirection, builder: &mut ProgramBuilder, place: TreePosition, bytes: u64) {
    let TreePosition { ranks, rank, .. } = place;
    let parent = binomial::parent(rank).expect("the root is another rank");
    let subtree = binomial::subtree(rank, ranks).len() as u32;
    if subtree == 1 {
        builder.push(direction.above(place.at(parent), 0, direction.own(bytes)), &[]);
        return;
    }
    direction.set_buffers(builder, bytes, 0, u64::from(subtree) * bytes);
    let held = |blocks: Range<u32>| Span::scratch(u64::from(blocks.start) * bytes, blocks.len() as u64 * bytes);
    let with_child = |child: u32| {
        let blocks = binomial::subtree(child, ranks);
        direction.below(place.at(child), 0, held(blocks.start - rank..blocks.end - rank))
    };
    let mut below: Vec<Op> = direction.children(rank, ranks).into_iter().map(with_child).collect();
    below.push(direction.copy(held(0..1)));
    let above: Vec<Op> = if parent > 0 {
        vec![direction.above(place.at(parent), 0, held(0..subtree))]
    } else {
        place.runs(rank).map(|(number, _, run)| direction.above(place.root, number, held(run))).collect()
    };
    let (first, then) = match direction {
        BlockDirection::Gather => (below, above),
        BlockDirection::Scatter => (above, below),
    };
    let arrived: Vec<OpId> = first.into_iter().map(|op| builder.push(op, &[])).collect();
    for op in then {
        builder.push(op, &arrived);
    }
}

impl TreePosition {
    /// The blocks of the subtree of `top`, as runs of blocks that adjoin at the root. For each run: its number, its
    /// first rank, and the range of its blocks in the subtree, counted from `top`.
    fn runs(self, top: u32) -> impl Iterator<Item = (u32, Rank, Range<u32>)> {
        let Range { start, end } = binomial::subtree(top, self.ranks);
        // The blocks wrap here round the last rank of the group.
        let wrap = (self.ranks - self.root.0).clamp(start, end);
        let runs = [start..wrap, wrap..end].into_iter().filter(|run| !run.is_empty());
        (0..).zip(runs).map(move |(number, run)| (number, self.at(run.start), run.start - top..run.end - top))
    }
}
