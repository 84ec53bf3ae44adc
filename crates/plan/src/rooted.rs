//! What Gather(v) and Scatter(v) are made of: one shape, whose blocks travel to the root or from it.
//!
//! Counts are local to the root and the owner of a block, so plans for blocks of any size are made of what one rank
//! knows; see [`Share`]. Ranks of the tree count from the root round the group, blocks at the root lie in order of
//! ranks.
//!
//! Invariants: receives follow nothing, so an engine posts them all at once (MC-4); empty blocks do not move; at the
//! root every block arrives straight in its place, or leaves straight from it.

use std::ops::Range;

use thiserror::Error;

use crate::algorithm::RootedAlgorithm;
use crate::binomial;
use crate::builder::ProgramBuilder;
use crate::program::{Buffer, MAX_RANKS, Op, OpId, Program, Rank, Span};

/// What a rank knows of the blocks of a Gatherv or Scatterv.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share<'a> {
    /// The root: where the block of each rank lies, its own included; in `Output` of a Gatherv, where no two share a
    /// byte, in `Input` of a Scatterv.
    Root(&'a [Span]),
    /// Any other rank: the bytes of its block.
    Block(u64),
}

/// Why there is no such Gather(v) or Scatter(v).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RootedError {
    /// A group of 0, or of more than [`MAX_RANKS`].
    #[error("a gather or scatter among {ranks} ranks: a group has 1 to {MAX_RANKS} ranks")]
    Ranks {
        /// The ranks asked for.
        ranks: u32,
    },
    /// The rank or the root is not in the group.
    #[error("a gather or scatter program for {rank} of {ranks}, root {root}: ranks count from 0")]
    Rank {
        /// The rank asked for.
        rank: Rank,
        /// The root asked for.
        root: Rank,
        /// The ranks of the group.
        ranks: u32,
    },
    /// Who knows the blocks of all is not the root, or the root does not know them.
    #[error(
        "{rank} of a gather or scatter at {root}: give the root one block for each of {ranks} ranks, others their own"
    )]
    Share {
        /// The rank asked for.
        rank: Rank,
        /// The root asked for.
        root: Rank,
        /// The ranks of the group.
        ranks: u32,
    },
    /// A block in the wrong buffer, or beyond 64 bits.
    #[error("block {span} at the root: blocks of a gather lie in output, those of a scatter in input, within 64 bits")]
    Block {
        /// The block.
        span: Span,
    },
    /// The blocks cannot be addressed together.
    #[error("the blocks of {ranks} ranks do not fit a 64-bit address: lower the byte count")]
    Bytes {
        /// The ranks of the group.
        ranks: u32,
    },
}

/// Which way the blocks travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the root: every rank has `Input`, the root alone `Output`.
    Gather,
    /// From the root: the root alone has `Input`, every rank `Output`.
    Scatter,
}

impl Direction {
    /// What every rank has its own block in, then what the root has the blocks of all in.
    fn buffers(self) -> (Buffer, Buffer) {
        match self {
            Direction::Gather => (Buffer::Input, Buffer::Output),
            Direction::Scatter => (Buffer::Output, Buffer::Input),
        }
    }

    /// `bytes` of the block of a rank, where the rank has it.
    fn own(self, bytes: u64) -> Span {
        Span { buffer: self.buffers().0, offset: 0, len: bytes }
    }

    /// Sets the bytes of the block of a rank, of all blocks at the root (0 elsewhere), and of those held for others.
    fn set_buffers(self, builder: &mut ProgramBuilder, own: u64, all: u64, held: u64) {
        match self {
            Direction::Gather => builder.buffers(own, all, held),
            Direction::Scatter => builder.buffers(all, own, held),
        };
    }

    /// Moves `span` between this rank and `peer`, which is farther from the root.
    fn below(self, peer: Rank, index: u32, span: Span) -> Op {
        match self {
            Direction::Gather => Op::Recv { from: peer, index, span },
            Direction::Scatter => Op::Send { to: peer, index, span },
        }
    }

    /// Moves `span` between this rank and `peer`, which is nearer to the root.
    fn above(self, peer: Rank, index: u32, span: Span) -> Op {
        match self {
            Direction::Gather => Op::Send { to: peer, index, span },
            Direction::Scatter => Op::Recv { from: peer, index, span },
        }
    }

    /// Moves the block of this rank between its own buffer and its place among others.
    fn copy(self, among: Span) -> Op {
        let own = self.own(among.len);
        match self {
            Direction::Gather => Op::Copy { from: own, to: among },
            Direction::Scatter => Op::Copy { from: among, to: own },
        }
    }

    /// The ranks directly below `rank`: the smallest subtree is collected first and served last.
    fn children(self, rank: u32, ranks: u32) -> Vec<u32> {
        let children = binomial::children(rank, ranks);
        match self {
            Direction::Gather => children.rev().collect(),
            Direction::Scatter => children.collect(),
        }
    }
}

/// What `rank` does for blocks of `bytes` bytes each.
pub(crate) fn program(
    direction: Direction,
    algorithm: RootedAlgorithm,
    ranks: u32,
    root: Rank,
    rank: Rank,
    bytes: u64,
) -> Result<Program, RootedError> {
    let place = Place::new(ranks, root, rank)?;
    let blocks = || blocks(direction, ranks, bytes).ok_or(RootedError::Bytes { ranks });
    let total = bytes.checked_mul(ranks.into()).ok_or(RootedError::Bytes { ranks })?;
    match algorithm {
        RootedAlgorithm::Linear if rank == root => linear(direction, ranks, root, rank, Share::Root(&blocks()?)),
        RootedAlgorithm::Linear => linear(direction, ranks, root, rank, Share::Block(bytes)),
        RootedAlgorithm::Binomial => {
            let mut builder = ProgramBuilder::new(rank, ranks);
            direction.set_buffers(&mut builder, bytes, if rank == root { total } else { 0 }, 0);
            if bytes > 0 && rank == root {
                binomial_root(direction, &mut builder, place, bytes);
            } else if bytes > 0 {
                binomial_other(direction, &mut builder, place, bytes);
            }
            Ok(builder.build())
        }
    }
}

/// What `rank` does for blocks of any size, by [`RootedAlgorithm::Linear`].
pub(crate) fn linear(
    direction: Direction,
    ranks: u32,
    root: Rank,
    rank: Rank,
    share: Share<'_>,
) -> Result<Program, RootedError> {
    let place = Place::new(ranks, root, rank)?;
    let mut builder = ProgramBuilder::new(rank, ranks);
    match share {
        Share::Root(blocks) if rank == root && blocks.len() == ranks as usize => {
            check(blocks, direction.buffers().1)?;
            let own = blocks[rank.0 as usize];
            direction.set_buffers(&mut builder, own.len, end_of(blocks), 0);
            for peer in place.others().filter(|peer| !blocks[peer.0 as usize].is_empty()) {
                builder.push(direction.below(peer, 0, blocks[peer.0 as usize]), &[]);
            }
            if !own.is_empty() {
                builder.push(direction.copy(own), &[]);
            }
        }
        Share::Block(bytes) if rank != root => {
            direction.set_buffers(&mut builder, bytes, 0, 0);
            if bytes > 0 {
                builder.push(direction.above(root, 0, direction.own(bytes)), &[]);
            }
        }
        Share::Root(_) | Share::Block(_) => return Err(RootedError::Share { rank, root, ranks }),
    }
    Ok(builder.build())
}

fn binomial_root(direction: Direction, builder: &mut ProgramBuilder, place: Place, bytes: u64) {
    let (_, buffer) = direction.buffers();
    let held = |first: Rank, count: u64| Span { buffer, offset: u64::from(first.0) * bytes, len: count * bytes };
    for child in direction.children(0, place.ranks) {
        for (number, first, run) in place.runs(child) {
            builder.push(direction.below(place.at(child), number, held(first, run.len() as u64)), &[]);
        }
    }
    builder.push(direction.copy(held(place.root, 1)), &[]);
}

/// An inner rank of the tree holds the blocks of its subtree in scratch, its own first.
fn binomial_other(direction: Direction, builder: &mut ProgramBuilder, place: Place, bytes: u64) {
    let Place { ranks, rank, .. } = place;
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
        Direction::Gather => (below, above),
        Direction::Scatter => (above, below),
    };
    let arrived: Vec<OpId> = first.into_iter().map(|op| builder.push(op, &[])).collect();
    for op in then {
        builder.push(op, &arrived);
    }
}

/// A rank of a group with a root, both checked.
#[derive(Debug, Clone, Copy)]
struct Place {
    ranks: u32,
    root: Rank,
    /// Counted from the root.
    rank: u32,
}

impl Place {
    fn new(ranks: u32, root: Rank, rank: Rank) -> Result<Place, RootedError> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(RootedError::Ranks { ranks });
        }
        if rank.0 >= ranks || root.0 >= ranks {
            return Err(RootedError::Rank { rank, root, ranks });
        }
        Ok(Place { ranks, root, rank: (rank.0 + ranks - root.0) % ranks })
    }

    /// The rank that stands at `rank`, counted from the root.
    fn at(self, rank: u32) -> Rank {
        // Both are below 2^16.
        Rank((rank + self.root.0) % self.ranks)
    }

    /// The ranks of the group but this one, the next after it first.
    fn others(self) -> impl Iterator<Item = Rank> {
        (1..self.ranks).map(move |steps| self.at((self.rank + steps) % self.ranks))
    }

    /// The blocks of the subtree of `top`: for each run of blocks that adjoin at the root its number, the first rank in
    /// it, and which of the subtree's blocks it is made of, counted from `top`.
    fn runs(self, top: u32) -> impl Iterator<Item = (u32, Rank, Range<u32>)> {
        let Range { start, end } = binomial::subtree(top, self.ranks);
        // Where the blocks wrap round the last rank of the group.
        let wrap = (self.ranks - self.root.0).clamp(start, end);
        let runs = [start..wrap, wrap..end].into_iter().filter(|run| !run.is_empty());
        (0..).zip(runs).map(move |(number, run)| (number, self.at(run.start), run.start - top..run.end - top))
    }
}

/// Where blocks of `bytes` each lie at the root, in the order of ranks; `None` where they exceed 64 bits together.
pub(crate) fn blocks(direction: Direction, ranks: u32, bytes: u64) -> Option<Vec<Span>> {
    let (_, buffer) = direction.buffers();
    bytes.checked_mul(ranks.into())?;
    Some((0..u64::from(ranks)).map(|rank| Span { buffer, offset: rank * bytes, len: bytes }).collect())
}

/// Bytes up to the end of the last block that is not empty.
pub(crate) fn end_of(blocks: &[Span]) -> u64 {
    blocks.iter().filter(|span| !span.is_empty()).filter_map(Span::end).max().unwrap_or(0)
}

/// Refuses blocks that do not lie in `buffer`.
fn check(blocks: &[Span], buffer: Buffer) -> Result<(), RootedError> {
    match blocks.iter().find(|span| span.buffer != buffer || span.end().is_none()) {
        Some(span) => Err(RootedError::Block { span: *span }),
        None => Ok(()),
    }
}
