//! The binomial tree of several collectives. Counted from the root, the parent of rank `v` is `v` without its lowest
//! set bit.
//!
//! Invariant: the ranks of a subtree are contiguous and begin with the top of the subtree.

use std::ops::Range;

use crate::program::Rank;

/// A rank of a group with a root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreePosition {
    pub(crate) ranks: u32,
    pub(crate) root: Rank,
    /// The rank's number, counted from the root.
    pub(crate) rank: u32,
}

impl TreePosition {
    pub(crate) fn new(ranks: u32, root: Rank, rank: Rank) -> Self {
        TreePosition { ranks, root, rank: (rank.0 + ranks - root.0) % ranks }
    }

    /// The rank of the group with number `rank`, counted from the root.
    pub(crate) fn at(self, rank: u32) -> Rank {
        // Both summands are below 2^16.
        Rank((rank + self.root.0) % self.ranks)
    }
}

/// The parent of `rank`; `None` for the root.
pub(crate) fn parent(rank: u32) -> Option<u32> {
    (rank > 0).then(|| rank & (rank - 1))
}

/// The subtree of `rank` among `ranks` ranks, `rank` included.
pub(crate) fn subtree(rank: u32, ranks: u32) -> Range<u32> {
    let full = if rank == 0 { ranks } else { 1 << rank.trailing_zeros() };
    rank..(rank + full).min(ranks)
}

/// The children of `rank`, the largest subtree first.
pub(crate) fn children(rank: u32, ranks: u32) -> impl DoubleEndedIterator<Item = u32> {
    let below = subtree(rank, ranks).len() as u32;
    let steps = below.next_power_of_two().trailing_zeros();
    (0..steps).rev().map(move |step| rank + (1 << step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree() {
        for ranks in 1..200 {
            let mut edges = 0;
            for rank in 0..ranks {
                let mut next = subtree(rank, ranks).end;
                for child in children(rank, ranks) {
                    assert_eq!((parent(child), subtree(child, ranks).end), (Some(rank), next));
                    next = child;
                    edges += 1;
                }
                assert_eq!(next, rank + 1, "the subtrees of the children cover all but the top");
            }
            assert_eq!(edges, ranks - 1);
        }
        assert_eq!(parent(0), None);
    }
}
