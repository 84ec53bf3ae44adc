//! Broadcast as a scatter down a binomial tree and an allgather round a ring.
//!
//! Invariants: as many blocks as ranks, of sizes that differ by one byte at most. The scatter leaves rank `v` with its
//! own block and those of its subtree, which the ring then skips, so that no byte arrives twice. Message 0 between two
//! ranks is that of the scatter, message `1 + b` block `b` of the ring.

use std::ops::Range;

use super::Place;
use crate::builder::ProgramBuilder;
use crate::partition::part_range;
use crate::program::{OpId, Span};

impl Place {
    /// The blocks that a rank has behind the scatter.
    fn subtree(self, rank: u32) -> Range<u32> {
        let size = if rank == 0 { self.ranks } else { 1 << rank.trailing_zeros() };
        rank..(rank + size).min(self.ranks)
    }

    /// Where blocks lie on this rank.
    fn blocks(self, blocks: Range<u32>) -> Span {
        let part = |block: u32| part_range(self.bytes, self.ranks.into(), block.into());
        let (start, end) = (part(blocks.start).start, part(blocks.end - 1).end);
        self.span(start, end - start)
    }
}

/// In round `r` of the ring rank `v` passes on block `v - r` to `v + 1`, unless that one has it.
pub(super) fn scatter_allgather(builder: &mut ProgramBuilder, place: Place) {
    let Place { ranks, rank, .. } = place;
    let subtree = place.subtree(rank);
    let message = |blocks: Range<u32>| Some(place.blocks(blocks)).filter(|span| !span.is_empty());
    let ring = |to: u32| {
        let rounds = (0..ranks).map(move |round| (to + ranks - 1 - round) % ranks);
        rounds.filter(move |block| !place.subtree(to).contains(block))
    };
    let mut scattered = None;
    // By block, the step that brought it.
    let mut received: Vec<Option<OpId>> = vec![None; ranks as usize];
    if rank > 0 {
        let parent = place.at(rank - (1 << rank.trailing_zeros()));
        scattered = message(subtree.clone()).map(|span| builder.recv(parent, 0, span, &[]));
        for block in ring(rank) {
            received[block as usize] =
                message(block..block + 1).map(|span| builder.recv(place.at(rank - 1), 1 + block, span, &[]));
        }
    }
    // The largest subtree first: it takes longest.
    let mut size = (subtree.end - subtree.start).next_power_of_two() / 2;
    while size > 0 {
        let child = rank + size;
        if child < ranks
            && let Some(span) = message(place.subtree(child))
        {
            builder.send(place.at(child), 0, span, scattered.as_slice());
        }
        size /= 2;
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
