//! Broadcast as a scatter down a binomial tree and an allgather round a ring.
//!
//! Invariants: there are as many blocks as ranks, and their sizes differ by one byte at most. The scatter leaves rank
//! `v` with its own block and the blocks of its subtree. The ring then skips these blocks, so that no byte arrives
//! twice. Between two ranks message 0 belongs to the scatter, and message `1 + b` is block `b` of the ring.

use std::ops::Range;

use crate::binomial::{self, TreePosition};
use crate::builder::ProgramBuilder;
use crate::partition::part_range;
use crate::program::OpId;

/// In round `r` of the ring rank `v` passes on block `v - r` to `v + 1`, unless `v + 1` has that block.
pub(super) fn scatter_allgather(builder: &mut ProgramBuilder, place: TreePosition, bytes: u64) {
    let TreePosition { ranks, rank, .. } = place;
    // The blocks that a rank has after the scatter.
    let has = |rank| binomial::subtree(rank, ranks);
    let subtree = has(rank);
    let part = |block: u32| part_range(bytes, ranks.into(), block.into());
    // The span of `blocks` on this rank.
    let message = |blocks: Range<u32>| {
        let (start, end) = (part(blocks.start).start, part(blocks.end - 1).end);
        Some(place.span(start, end - start)).filter(|span| !span.is_empty())
    };
    let ring = |to: u32| {
        let rounds = (0..ranks).map(move |round| (to + ranks - 1 - round) % ranks);
        rounds.filter(move |block| !has(to).contains(block))
    };
    let mut scattered = None;
    // The step that received each block.
    let mut received: Vec<Option<OpId>> = vec![None; ranks as usize];
    if let Some(parent) = binomial::parent(rank) {
        scattered = message(subtree.clone()).map(|span| builder.recv(place.at(parent), 0, span, &[]));
        for block in ring(rank) {
            received[block as usize] =
                message(block..block + 1).map(|span| builder.recv(place.at(rank - 1), 1 + block, span, &[]));
        }
    }
    for child in binomial::children(rank, ranks) {
        if let Some(span) = message(has(child)) {
            builder.send(place.at(child), 0, span, scattered.as_slice());
        }
    }
    if rank + 1 < ranks {
        for block in ring(rank + 1) {
            let brought = if subtree.contains(&block) { scattered } else { received[block as usize] };
            if let Some(span) = message(block..block + 1) {
                builder.send(place.at(rank + 1), 1 + block, span, brought.as_slice());
            }
        }
    }
}
