//! Gather and Gatherv: the root ends with the blocks of all ranks.
//!
//! Every rank contributes `Input`, the root too; the root alone has `Output`.

use crate::algorithm::RootedAlgorithm;
use crate::program::{Program, Rank, Span};
use crate::rooted::{self, Direction, RootedError, Share};

/// What `rank` does in a gather of blocks of `bytes` bytes, which lie at `root` in the order of ranks.
///
/// # Errors
/// When an argument is out of range; see [`RootedError`].
pub fn gather(
    algorithm: RootedAlgorithm,
    ranks: u32,
    root: Rank,
    rank: Rank,
    bytes: u64,
) -> Result<Program, RootedError> {
    rooted::program(Direction::Gather, algorithm, ranks, root, rank, bytes)
}

/// What `rank` does in a gather of blocks of any size, by [`RootedAlgorithm::Linear`]. Needs only what `rank` knows.
///
/// # Errors
/// When an argument is out of range; see [`RootedError`].
pub fn gatherv(ranks: u32, root: Rank, rank: Rank, share: Share<'_>) -> Result<Program, RootedError> {
    rooted::linear(Direction::Gather, ranks, root, rank, share)
}

/// Where the blocks of a [`gather`] lie at the root; `None` where they exceed 64 bits together.
#[must_use]
pub fn blocks(ranks: u32, bytes: u64) -> Option<Vec<Span>> {
    rooted::blocks(Direction::Gather, ranks, bytes)
}
