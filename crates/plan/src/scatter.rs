//! Scatter and Scatterv: every rank ends with its block of what the root contributes.
//!
//! The root alone has `Input`; every rank has `Output`, the root too.

use crate::algorithm::RootedAlgorithm;
use crate::program::{Program, Rank, Span};
use crate::rooted::{self, Direction, RootedError, Share};

/// What `rank` does in a scatter of blocks of `bytes` bytes, which lie at `root` in the order of ranks.
///
/// # Errors
/// When an argument is out of range; see [`RootedError`].
pub fn scatter(
    algorithm: RootedAlgorithm,
    ranks: u32,
    root: Rank,
    rank: Rank,
    bytes: u64,
) -> Result<Program, RootedError> {
    rooted::program(Direction::Scatter, algorithm, ranks, root, rank, bytes)
}

/// What `rank` does in a scatter of blocks of any size, by [`RootedAlgorithm::Linear`]. Needs only what `rank` knows.
///
/// # Errors
/// When an argument is out of range; see [`RootedError`].
pub fn scatterv(ranks: u32, root: Rank, rank: Rank, share: Share<'_>) -> Result<Program, RootedError> {
    rooted::linear(Direction::Scatter, ranks, root, rank, share)
}

/// Where the blocks of a [`scatter`] lie at the root; `None` where they exceed 64 bits together.
#[must_use]
pub fn blocks(ranks: u32, bytes: u64) -> Option<Vec<Span>> {
    rooted::blocks(Direction::Scatter, ranks, bytes)
}
