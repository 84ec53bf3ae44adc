//! Collectives that combine: Reduce, Allreduce, Reduce-Scatter, Scan.
//!
//! All these collectives treat `Input` as a [`Vector`] of elements, cut only between elements. They combine element `i`
//! of one rank with element `i` of another by the call's [`crate::Reduction`]. The order of contributions depends on
//! the plan alone. So results have the same bits from run to run whatever arrives first (TH-2). Each contract promises
//! that order.
//!
//! Invariants: every message is received into its own memory, because receives of data follow nothing (MC-4). A plan
//! stays right when `Input` and `Output` begin at the same address, as in a call in place: `Output` is written only
//! where the bytes of `Input` are not needed any more. A copy from a place to itself does nothing. A vector without
//! elements makes an empty program. These modules never compute anything.

pub(crate) mod allreduce;
mod draft;
mod halving;
mod hosts;
mod pairing;
pub(crate) mod reduce;
pub(crate) mod reduce_scatter;
pub(crate) mod scan;

use crate::allgather::Extents;
use crate::partition::part_range;
use crate::program::Span;

/// The most segments of a vector: each step of a program takes memory in an engine. Longer vectors have longer
/// segments.
pub const MAX_SEGMENTS: u64 = 1 << 12;

/// The most scratch, in vectors, that the programs of `here` ranks of one host need together in a reduction among
/// `ranks`. The maximum is a scan, which keeps the vector received in each round, and one more.
pub const fn scratch_vectors(ranks: u32, here: u32) -> u64 {
    here as u64 * (1 + ranks.next_power_of_two().ilog2() as u64)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vector {
    pub count: u64,
    /// Bytes from one element to the next; see [`crate::Element::bytes`].
    pub element_bytes: u64,
}

impl Vector {
    /// Bytes of all elements; the number must fit 64 bits.
    pub const fn bytes(self) -> u64 {
        self.count * self.element_bytes
    }

    /// Segments of whole elements, as equal as possible, of `segment` bytes at most. Segments are longer if there would
    /// be more than [`MAX_SEGMENTS`]. A vector without bytes has one empty segment.
    fn segments(self, segment: u64) -> Vec<Span> {
        let count = self.count.div_ceil((segment / self.element_bytes.max(1)).max(1)).clamp(1, MAX_SEGMENTS);
        let span = |i| {
            let (offset, len) = self.part(count, i);
            Span::input(offset, len)
        };
        (0..count).map(span).collect()
    }

    /// Offset and bytes of part `i` of `parts`. If the parts cannot be equal, the first ones have one element more.
    pub fn part(self, parts: u64, i: u64) -> (u64, u64) {
        let part = part_range(self.count, parts, i);
        (part.start * self.element_bytes, (part.end - part.start) * self.element_bytes)
    }

    /// One part for each rank.
    pub(crate) fn parts(self, ranks: u32) -> Extents {
        let part = |rank: u32| self.part(ranks.into(), rank.into()).1;
        Extents::uneven((0..ranks).map(part)).expect("parts are no more than the whole")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::Collective;
    use crate::{Arguments, Rank, Topology, program};

    /// Holds for every choice of algorithm.
    #[test]
    fn mc_4_scratch_never_exceeds_the_announced_vectors() {
        let shapes = (1..=9).flat_map(|hosts| (1..=5).map(move |here| (hosts, here))).chain([(64, 1), (32, 3)]);
        for (hosts, here) in shapes {
            let topology = Topology::of_hosts((0..hosts * here).map(|rank| rank % hosts)).expect("few ranks");
            let ranks = topology.ranks();
            let bytes = u64::from(ranks) * 4096;
            for collective in [Collective::Reduce, Collective::Allreduce, Collective::ReduceScatter, Collective::Scan] {
                for choice in collective.algorithms() {
                    for (root, exclusive) in [(0, false), (ranks - 1, true)] {
                        let arguments = Arguments { root: Rank(root), exclusive, ..Arguments::of(&topology, bytes) };
                        let mut needed = vec![0; hosts as usize];
                        for rank in (0..ranks).map(Rank) {
                            let program = program(choice, &arguments, rank).expect("a plan");
                            needed[topology.host_of(rank) as usize] += program.scratch_bytes;
                        }
                        let most = needed.into_iter().max();
                        assert!(most <= Some(scratch_vectors(ranks, here) * bytes), "{hosts}x{here}, {choice:?}");
                    }
                }
            }
        }
    }
}
