//! Broadcasts that pass on each segment as it arrives: along a chain, or down two binary trees at once.
//!
//! Invariants: message number `segment` carries a segment between two ranks. The numbers differ even where both trees
//! have an edge, since segments are counted through both halves. A rank sends round by round: segments ascend, and the
//! two trees alternate.

use std::ops::Range;

use crate::binomial::TreePosition;
use crate::builder::ProgramBuilder;
use crate::program::{OpId, Span};

#[derive(Clone, Copy)]
struct Segment {
    index: u32,
    offset: u64,
    len: u64,
}

/// `bytes` cut into segments of `segment` bytes, numbered from `first` on; the last may be shorter.
fn segments(bytes: Range<u64>, segment: u64, first: u32) -> impl Iterator<Item = Segment> {
    let count = (bytes.end - bytes.start).div_ceil(segment);
    (0..count).map(move |i| {
        let offset = bytes.start + i * segment;
        Segment { index: first + i as u32, offset, len: segment.min(bytes.end - offset) }
    })
}

impl TreePosition {
    fn segment(self, segment: Segment) -> Span {
        self.span(segment.offset, segment.len)
    }
}

/// Rank `v` receives from `v - 1` and passes on to `v + 1`.
pub(super) fn chain(builder: &mut ProgramBuilder, place: TreePosition, bytes: u64, segment: u64) {
    let all = || segments(0..bytes, segment, 0);
    let mut receive = |segment: Segment| {
        let from = place.rank.checked_sub(1)?;
        Some(builder.recv(place.at(from), segment.index, place.segment(segment), &[]))
    };
    let received: Vec<Option<OpId>> = all().map(&mut receive).collect();
    if place.rank + 1 < place.ranks {
        for (segment, received) in all().zip(received) {
            let to = place.at(place.rank + 1);
            builder.send(to, segment.index, place.segment(segment), received.as_slice());
        }
    }
}

/// The first half goes down one tree, the second half down the other; the root is above both trees.
pub(super) fn double_tree(builder: &mut ProgramBuilder, place: TreePosition, bytes: u64, segment: u64) {
    let half = bytes.div_ceil(2);
    let first: Vec<Segment> = segments(0..half, segment, 0).collect();
    let second: Vec<Segment> = segments(half..bytes, segment, first.len() as u32).collect();
    let trees = [Tree { ranks: place.ranks, second: false }, Tree { ranks: place.ranks, second: true }];
    let mut received: [Vec<OpId>; 2] = [Vec::new(), Vec::new()];
    for ((tree, segments), received) in trees.iter().zip([&first, &second]).zip(&mut received) {
        if let Some(parent) = tree.parent(place.rank) {
            let receive =
                |segment: &Segment| builder.recv(place.at(parent), segment.index, place.segment(*segment), &[]);
            received.extend(segments.iter().map(receive));
        }
    }
    let children = trees.map(|tree| tree.children(place.rank));
    for i in 0..first.len() {
        for ((segments, received), children) in [&first, &second].into_iter().zip(&received).zip(&children) {
            let Some(segment) = segments.get(i) else { continue };
            for child in children {
                builder.send(
                    place.at(*child),
                    segment.index,
                    place.segment(*segment),
                    received.get(i..=i).unwrap_or_default(),
                );
            }
        }
    }
}

/// One of two binary trees over ranks `1 ..`, with rank 0 above its top. Positions are numbered `1 ..` in order, and
/// only even positions have children. In the second tree each rank has a position of the other parity, so no rank has
/// children in both. (P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
/// and scan", 2009.)
#[derive(Clone, Copy)]
struct Tree {
    ranks: u32,
    second: bool,
}

impl Tree {
    /// The last position.
    fn last(self) -> u32 {
        self.ranks - 1
    }

    /// The position of `rank`. In the second tree the position is mirrored, or shifted by one where mirroring would
    /// keep the parity.
    fn position(self, rank: u32) -> u32 {
        match (self.second, self.last().is_multiple_of(2)) {
            (false, _) => rank,
            (true, true) => self.last() + 1 - rank,
            (true, false) if rank == 1 => self.last(),
            (true, false) => rank - 1,
        }
    }

    /// The rank at `position`; the inverse of [`Tree::position`].
    fn rank(self, position: u32) -> u32 {
        match (self.second, self.last().is_multiple_of(2)) {
            (false, _) => position,
            (true, true) => self.last() + 1 - position,
            (true, false) if position == self.last() => 1,
            (true, false) => position + 1,
        }
    }

    /// The parent of `rank`; `None` for the root.
    fn parent(self, rank: u32) -> Option<u32> {
        if rank == 0 {
            return None;
        }
        let position = self.position(rank);
        let lowest = 1 << position.trailing_zeros();
        let (above, below) = (position - lowest, position + lowest);
        // In a full tree the parent is the neighbour at this distance whose lowest set bit is the next higher one. If
        // that neighbour is missing, `rank` lies in a left branch of the position above.
        let right_child = above & (2 * lowest) != 0;
        let parent = if right_child || below > self.last() { above } else { below };
        Some(if parent == 0 { 0 } else { self.rank(parent) })
    }

    /// The children of `rank`.
    fn children(self, rank: u32) -> Vec<u32> {
        if rank == 0 {
            let top = 1 << self.last().ilog2();
            return vec![self.rank(top)];
        }
        let position = self.position(rank);
        let lowest = 1 << position.trailing_zeros();
        let left = (lowest > 1).then(|| position - lowest / 2);
        let right = std::iter::successors(Some(lowest / 2), |step| Some(step / 2))
            .take_while(|step| *step > 0)
            .map(|step| position + step)
            .find(|child| *child <= self.last());
        left.into_iter().chain(right).map(|child| self.rank(child)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TH-6: two spanning trees of logarithmic depth; no rank has children in both, nor more than two.
    #[test]
    fn trees_span_all_ranks_and_share_no_inner_rank() {
        for ranks in 2..=600u32 {
            let trees = [false, true].map(|second| Tree { ranks, second });
            for tree in trees {
                for rank in 1..ranks {
                    let parent = tree.parent(rank).expect("only the root has none");
                    assert!(tree.children(parent).contains(&rank), "{rank} below {parent} of {ranks}");
                    let above = std::iter::successors(Some(rank), |rank| tree.parent(*rank));
                    assert!(above.take(40).count() <= ranks.ilog2() as usize + 2, "{rank} of {ranks}");
                }
                let edges: usize = (0..ranks).map(|rank| tree.children(rank).len()).sum();
                assert_eq!(edges, ranks as usize - 1);
            }
            for rank in 1..ranks {
                let children = trees.map(|tree| tree.children(rank).len());
                assert!(children[0] == 0 || children[1] == 0, "{rank} of {ranks}: {children:?}");
                assert!(children[0] + children[1] <= 2);
            }
        }
    }
}
