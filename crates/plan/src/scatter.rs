//! Scatter and Scatterv: every rank ends with its block of what the root contributes.
//!
//! The root alone has `Input`; every rank has `Output`, the root too.

use crate::algorithm::RootedAlgorithm;
use crate::program::{Program, Rank, Span};
use crate::rooted::{self, Direction, RootedError, Share};
use crate::verify::{Contract, Piece};

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

/// What a scatter promises to `rank`, for [`crate::verify()`], when the root has these `blocks`, by rank.
///
/// # Panics
/// When there is no block for `rank`.
pub fn contract(root: Rank, rank: Rank, blocks: &[Span]) -> Contract {
    let Span { offset, len, .. } = blocks[rank.0 as usize];
    let after =
        if len == 0 { Vec::new() } else { vec![Piece { span: Span::output(0, len), source: root, from: offset }] };
    let input_bytes = match rooted::share(root, rank, blocks) {
        Share::Root(blocks) => rooted::end_of(blocks),
        Share::Block(_) => 0,
    };
    let before = vec![Piece { span: Span::input(0, input_bytes), source: rank, from: 0 }];
    Contract { input_bytes, output_bytes: len, before, after }
}
