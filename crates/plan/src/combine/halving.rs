//! Vector halving with distance doubling: the Reduce-Scatter that Reduce and Allreduce of long vectors begin with
//! (TH-6).
//!
//! In round `k` two places at distance `2^k` share a range of the vector. Each place keeps one half and sends the half
//! that the other place keeps. The lower place keeps the lower half. Neighbours meet first, so combined vectors always
//! come from neighbouring ranks, in rank order. (Rabenseifner: "Optimization of collective reduction operations",
//! 2004.)

use std::ops::Range;

use super::Vector;
use super::draft::{PendingSpan, ReductionDraft};
use super::pairing::{FORTH, Pairing};
use crate::program::Buffer;

/// The state of a place after the rounds.
pub(super) struct Halves {
    pub(super) place: u32,
    /// The elements that the place shared before each round, then the elements that it keeps in the end.
    pub(super) ranges: Vec<Range<u64>>,
    /// The kept elements, combined from all ranks.
    pub(super) part: PendingSpan,
}

impl Halves {
    /// The half that the partner keeps in round `round`.
    pub(super) fn partners(&self, round: u32) -> Range<u64> {
        let (all, kept) = (&self.ranges[round as usize], &self.ranges[round as usize + 1]);
        if kept.start == all.start { kept.end..all.end } else { all.start..kept.start }
    }
}

/// Halves `part`, the whole vector of a place. With `aside`, nothing is sent from `Input`, because the result may
/// arrive there.
pub(super) fn halve(
    draft: &mut ReductionDraft,
    vector: Vector,
    pairing: Pairing,
    place: u32,
    mut part: PendingSpan,
    aside: bool,
) -> Halves {
    let whole = 0..vector.count;
    let mut ranges = vec![whole];
    for round in 0..pairing.rounds() {
        let all = ranges[round as usize].clone();
        let middle = all.start + (all.end - all.start) / 2;
        let lower = place >> round & 1 == 0;
        let (kept, given) =
            if lower { (all.start..middle, middle..all.end) } else { (middle..all.end, all.start..middle) };
        let bytes = |elements: u64| elements * vector.element_bytes;
        let of = |range: &Range<u64>| part.cut(bytes(range.start - all.start), bytes(range.end - range.start));
        let partner = pairing.rank(place ^ 1 << round);
        let received = draft.recv(partner, FORTH, bytes(kept.end - kept.start));
        let mut outgoing = of(&given);
        if aside && outgoing.span.buffer == Buffer::Input {
            outgoing = draft.copy_aside(&outgoing);
        }
        draft.send(partner, FORTH, &outgoing);
        part = draft.combine(&of(&kept), &received, lower);
        ranges.push(kept);
    }
    Halves { place, ranges, part }
}
