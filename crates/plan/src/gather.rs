//! Gather and Gatherv: the root ends with the blocks of all ranks.
//!
//! Every rank contributes `Input`, the root too; the root alone has `Output`.
//!
//! Invariants: receives follow nothing, so an engine posts them all at once (MC-4); empty blocks do not move; at the
//! root every block arrives straight in its place.

use crate::algorithm::GatherAlgorithm;
use crate::binomial;
use crate::builder::ProgramBuilder;
use crate::program::{Buffer, OpId, Program, Rank, Span};
use crate::rooted::{self, Place, RootedError, Share};
use crate::verify::{Contract, Piece};

/// What `rank` does in a gather of blocks of `bytes` bytes, which lie at `root` in the order of ranks.
///
/// # Errors
/// When an argument is out of range; see [`RootedError`].
pub fn gather(
    algorithm: GatherAlgorithm,
    ranks: u32,
    root: Rank,
    rank: Rank,
    bytes: u64,
) -> Result<Program, RootedError> {
    let place = Place::new(ranks, root, rank)?;
    let total = bytes.checked_mul(ranks.into()).ok_or(RootedError::Bytes { ranks })?;
    match algorithm {
        GatherAlgorithm::Linear if rank == root => {
            let blocks = blocks(ranks, bytes).ok_or(RootedError::Bytes { ranks })?;
            gatherv(ranks, root, rank, Share::Root(&blocks))
        }
        GatherAlgorithm::Linear => gatherv(ranks, root, rank, Share::Block(bytes)),
        GatherAlgorithm::Binomial => {
            let mut builder = ProgramBuilder::new(rank, ranks);
            builder.buffers(bytes, if rank == root { total } else { 0 }, 0);
            if bytes > 0 && rank == root {
                binomial_root(&mut builder, place, bytes);
            } else if bytes > 0 {
                binomial_other(&mut builder, place, bytes);
            }
            Ok(builder.build())
        }
    }
}

/// What `rank` does in a gather of blocks of any size, by [`GatherAlgorithm::Linear`]. Needs only what `rank` knows.
///
/// # Errors
/// When an argument is out of range; see [`RootedError`].
pub fn gatherv(ranks: u32, root: Rank, rank: Rank, share: Share<'_>) -> Result<Program, RootedError> {
    let place = Place::new(ranks, root, rank)?;
    let mut builder = ProgramBuilder::new(rank, ranks);
    match share {
        Share::Root(blocks) if rank == root && blocks.len() == ranks as usize => {
            rooted::check(blocks, Buffer::Output)?;
            let own = blocks[rank.0 as usize];
            builder.buffers(own.len, rooted::end_of(blocks), 0);
            for from in place.others().filter(|from| !blocks[from.0 as usize].is_empty()) {
                builder.recv(from, 0, blocks[from.0 as usize], &[]);
            }
            if !own.is_empty() {
                builder.copy(Span::input(0, own.len), own, &[]);
            }
        }
        Share::Block(bytes) if rank != root => {
            builder.buffers(bytes, 0, 0);
            if bytes > 0 {
                builder.send(root, 0, Span::input(0, bytes), &[]);
            }
        }
        Share::Root(_) | Share::Block(_) => return Err(RootedError::Share { rank, root, ranks }),
    }
    Ok(builder.build())
}

/// Where the blocks of a [`gather`] lie at the root; `None` where they exceed 64 bits together.
#[must_use]
pub fn blocks(ranks: u32, bytes: u64) -> Option<Vec<Span>> {
    rooted::even(ranks, bytes, Buffer::Output)
}

/// What a gather promises to `rank`, for [`crate::verify()`], when the root wants these `blocks`, by rank.
///
/// # Panics
/// When there is no block for `rank`.
pub fn contract(root: Rank, rank: Rank, blocks: &[Span]) -> Contract {
    let input_bytes = blocks[rank.0 as usize].len;
    let before = vec![Piece { span: Span::input(0, input_bytes), source: rank, from: 0 }];
    let (output_bytes, after) = match rooted::share(root, rank, blocks) {
        Share::Root(blocks) => {
            let piece = |(span, source): (&Span, u32)| Piece { span: *span, source: Rank(source), from: 0 };
            let pieces = blocks.iter().zip(0..).filter(|(span, _)| !span.is_empty()).map(piece).collect();
            (rooted::end_of(blocks), pieces)
        }
        Share::Block(_) => (0, Vec::new()),
    };
    Contract { input_bytes, output_bytes, before, after }
}

fn binomial_root(builder: &mut ProgramBuilder, place: Place, bytes: u64) {
    for child in binomial::children(0, place.ranks).rev() {
        for (number, first, run) in place.runs(child) {
            let span = Span::output(u64::from(first.0) * bytes, run.len() as u64 * bytes);
            builder.recv(place.at(child), number, span, &[]);
        }
    }
    builder.copy(Span::input(0, bytes), Span::output(u64::from(place.root.0) * bytes, bytes), &[]);
}

fn binomial_other(builder: &mut ProgramBuilder, place: Place, bytes: u64) {
    let Place { ranks, rank, .. } = place;
    let parent = binomial::parent(rank).expect("the root is another rank");
    let subtree = binomial::subtree(rank, ranks).len() as u64;
    if subtree == 1 {
        builder.send(place.at(parent), 0, Span::input(0, bytes), &[]);
        return;
    }
    builder.buffers(bytes, 0, subtree * bytes);
    let held =
        |blocks: std::ops::Range<u32>| Span::scratch(u64::from(blocks.start) * bytes, blocks.len() as u64 * bytes);
    let receive = |child: u32| {
        let blocks = binomial::subtree(child, ranks);
        builder.recv(place.at(child), 0, held(blocks.start - rank..blocks.end - rank), &[])
    };
    let mut collected: Vec<OpId> = binomial::children(rank, ranks).rev().map(receive).collect();
    collected.push(builder.copy(Span::input(0, bytes), held(0..1), &[]));
    if parent > 0 {
        builder.send(place.at(parent), 0, held(0..subtree as u32), &collected);
        return;
    }
    for (number, _, run) in place.runs(rank) {
        builder.send(place.root, number, held(run), &collected);
    }
}
