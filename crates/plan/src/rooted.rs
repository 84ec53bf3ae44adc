//! What Gather(v) and Scatter(v) have in common: a root that has the blocks of all ranks, and the tree to it.
//!
//! Counts are local to the root and the owner of a block, so plans for blocks of any size are made of what one rank
//! knows; see [`Share`]. Ranks of the tree count from the root round the group, blocks at the root lie in order of
//! ranks.

use std::ops::Range;

use thiserror::Error;

use crate::binomial;
use crate::program::{Buffer, MAX_RANKS, Rank, Span};

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

/// A rank of a group with a root, both checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) ranks: u32,
    pub(crate) root: Rank,
    /// Counted from the root.
    pub(crate) rank: u32,
}

impl Place {
    pub(crate) fn new(ranks: u32, root: Rank, rank: Rank) -> Result<Place, RootedError> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(RootedError::Ranks { ranks });
        }
        if rank.0 >= ranks || root.0 >= ranks {
            return Err(RootedError::Rank { rank, root, ranks });
        }
        Ok(Place { ranks, root, rank: (rank.0 + ranks - root.0) % ranks })
    }

    /// The rank that stands at `rank`, counted from the root.
    pub(crate) fn at(self, rank: u32) -> Rank {
        // Both are below 2^16.
        Rank((rank + self.root.0) % self.ranks)
    }

    /// The ranks of the group but this one, the next after it first.
    pub(crate) fn others(self) -> impl Iterator<Item = Rank> {
        (1..self.ranks).map(move |steps| self.at((self.rank + steps) % self.ranks))
    }

    /// The blocks of the subtree of `top`: for each run of blocks that adjoin at the root its number, the first rank in
    /// it, and which of the subtree's blocks it is made of, counted from `top`.
    pub(crate) fn runs(self, top: u32) -> impl Iterator<Item = (u32, Rank, Range<u32>)> {
        let Range { start, end } = binomial::subtree(top, self.ranks);
        // Where the blocks wrap round the last rank of the group.
        let wrap = (self.ranks - self.root.0).clamp(start, end);
        let runs = [start..wrap, wrap..end].into_iter().filter(|run| !run.is_empty());
        (0..).zip(runs).map(move |(number, run)| (number, self.at(run.start), run.start - top..run.end - top))
    }
}

/// Blocks of `bytes` each in `buffer`, in the order of ranks.
pub(crate) fn even(ranks: u32, bytes: u64, buffer: Buffer) -> Option<Vec<Span>> {
    bytes.checked_mul(ranks.into())?;
    Some((0..u64::from(ranks)).map(|rank| Span { buffer, offset: rank * bytes, len: bytes }).collect())
}

/// What `rank` knows of them if the root has these `blocks`.
pub(crate) fn share(root: Rank, rank: Rank, blocks: &[Span]) -> Share<'_> {
    if rank == root { Share::Root(blocks) } else { Share::Block(blocks[rank.0 as usize].len) }
}

/// Bytes up to the end of the last block that is not empty.
pub(crate) fn end_of(blocks: &[Span]) -> u64 {
    blocks.iter().filter(|span| !span.is_empty()).filter_map(Span::end).max().unwrap_or(0)
}

/// Refuses blocks that do not lie in `buffer`.
pub(crate) fn check(blocks: &[Span], buffer: Buffer) -> Result<(), RootedError> {
    match blocks.iter().find(|span| span.buffer != buffer || span.end().is_none()) {
        Some(span) => Err(RootedError::Block { span: *span }),
        None => Ok(()),
    }
}
