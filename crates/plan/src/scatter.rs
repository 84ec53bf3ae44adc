//! Scatter and Scatterv: every rank ends with its block of what the root contributes.
//!
//! The root alone has `Input`; every rank has `Output`, the root too.
//!
//! Invariants: receives follow nothing, so an engine posts them all at once (MC-4); empty blocks do not move; what the
//! root sends leaves straight from its place.

use crate::algorithm::ScatterAlgorithm;
use crate::binomial;
use crate::builder::ProgramBuilder;
use crate::program::{Buffer, Program, Rank, Span};
use crate::rooted::{self, Place, RootedError, Share};
use crate::verify::{Contract, Piece};

/// What `rank` does in a scatter of blocks of `bytes` bytes, which lie at `root` in the order of ranks.
///
/// # Errors
/// When an argument is out of range; see [`RootedError`].
pub fn scatter(
    algorithm: ScatterAlgorithm,
    ranks: u32,
    root: Rank,
    rank: Rank,
    bytes: u64,
) -> Result<Program, RootedError> {
    let place = Place::new(ranks, root, rank)?;
    let total = bytes.checked_mul(ranks.into()).ok_or(RootedError::Bytes { ranks })?;
    match algorithm {
        ScatterAlgorithm::Linear if rank == root => {
            let blocks = blocks(ranks, bytes).ok_or(RootedError::Bytes { ranks })?;
            scatterv(ranks, root, rank, Share::Root(&blocks))
        }
        ScatterAlgorithm::Linear => scatterv(ranks, root, rank, Share::Block(bytes)),
        ScatterAlgorithm::Binomial => {
            let mut builder = ProgramBuilder::new(rank, ranks);
            builder.buffers(if rank == root { total } else { 0 }, bytes, 0);
            if bytes > 0 && rank == root {
                binomial_root(&mut builder, place, bytes);
            } else if bytes > 0 {
                binomial_other(&mut builder, place, bytes);
            }
            Ok(builder.build())
        }
    }
}

/// What `rank` does in a scatter of blocks of any size, by [`ScatterAlgorithm::Linear`]. Needs only what `rank` knows.
///
/// # Errors
/// When an argument is out of range; see [`RootedError`].
pub fn scatterv(ranks: u32, root: Rank, rank: Rank, share: Share<'_>) -> Result<Program, RootedError> {
    let place = Place::new(ranks, root, rank)?;
    let mut builder = ProgramBuilder::new(rank, ranks);
    match share {
        Share::Root(blocks) if rank == root && blocks.len() == ranks as usize => {
            rooted::check(blocks, Buffer::Input)?;
            let own = blocks[rank.0 as usize];
            builder.buffers(rooted::end_of(blocks), own.len, 0);
            for to in place.others().filter(|to| !blocks[to.0 as usize].is_empty()) {
                builder.send(to, 0, blocks[to.0 as usize], &[]);
            }
            if !own.is_empty() {
                builder.copy(own, Span::output(0, own.len), &[]);
            }
        }
        Share::Block(bytes) if rank != root => {
            builder.buffers(0, bytes, 0);
            if bytes > 0 {
                builder.recv(root, 0, Span::output(0, bytes), &[]);
            }
        }
        Share::Root(_) | Share::Block(_) => return Err(RootedError::Share { rank, root, ranks }),
    }
    Ok(builder.build())
}

/// Where the blocks of a [`scatter`] lie at the root; `None` where they exceed 64 bits together.
#[must_use]
pub fn blocks(ranks: u32, bytes: u64) -> Option<Vec<Span>> {
    rooted::even(ranks, bytes, Buffer::Input)
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

fn binomial_root(builder: &mut ProgramBuilder, place: Place, bytes: u64) {
    for child in binomial::children(0, place.ranks) {
        for (number, first, run) in place.runs(child) {
            let span = Span::input(u64::from(first.0) * bytes, run.len() as u64 * bytes);
            builder.send(place.at(child), number, span, &[]);
        }
    }
    builder.copy(Span::input(u64::from(place.root.0) * bytes, bytes), Span::output(0, bytes), &[]);
}

fn binomial_other(builder: &mut ProgramBuilder, place: Place, bytes: u64) {
    let Place { ranks, rank, .. } = place;
    let parent = binomial::parent(rank).expect("the root is another rank");
    let subtree = binomial::subtree(rank, ranks).len() as u64;
    if subtree == 1 {
        builder.recv(place.at(parent), 0, Span::output(0, bytes), &[]);
        return;
    }
    builder.buffers(0, bytes, subtree * bytes);
    let held =
        |blocks: std::ops::Range<u32>| Span::scratch(u64::from(blocks.start) * bytes, blocks.len() as u64 * bytes);
    let mut received = Vec::new();
    if parent > 0 {
        received.push(builder.recv(place.at(parent), 0, held(0..subtree as u32), &[]));
    } else {
        received.extend(place.runs(rank).map(|(number, _, run)| builder.recv(place.root, number, held(run), &[])));
    }
    for child in binomial::children(rank, ranks) {
        let blocks = binomial::subtree(child, ranks);
        builder.send(place.at(child), 0, held(blocks.start - rank..blocks.end - rank), &received);
    }
    builder.copy(held(0..1), Span::output(0, bytes), &received);
}
