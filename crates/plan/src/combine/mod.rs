//! Collectives that combine: Reduce, Allreduce, Reduce-Scatter, Scan, Exscan.
//!
//! All of them see `Input` as a [`Vector`] of elements, cut only between elements, and combine element `i` of one rank
//! with element `i` of another, as the call's [`crate::Reduction`] says. Which contributions meet in which order depends
//! on the plan alone, so results have the same bits from run to run whatever arrives first (TH-2); each contract
//! promises that order.
//!
//! Invariants: every message lands in memory of its own, because receives of data follow nothing (MC-4). A plan stays
//! right when `Input` and `Output` begin at the same address, as in a call in place: `Output` is written where the
//! bytes of `Input` at that place are not needed any more, and a copy from a place to itself does nothing. A vector
//! without elements makes an empty program. These modules never compute anything.

mod algorithms;
pub mod allreduce;
mod draft;
mod halving;
mod hosts;
mod pairing;
pub mod reduce;
pub mod reduce_scatter;
pub mod scan;

use thiserror::Error;

pub use algorithms::{
    AllreduceAlgorithm, LeaderAllreduce, LeaderReduce, LeaderReduceScatter, ReduceAlgorithm, ReduceScatterAlgorithm,
    ScanAlgorithm,
};

use crate::program::{MAX_RANKS, Rank, Span};

/// The most segments that a vector is cut in: steps of a program are memory of an engine. Longer vectors have longer segments.
pub const MAX_SEGMENTS: u64 = 1 << 12;

/// What each rank contributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vector {
    /// Elements.
    pub count: u64,
    /// Bytes from one element to the next; see [`crate::Element::bytes`].
    pub element_bytes: u64,
}

impl Vector {
    /// Bytes of all elements, which have to fit 64 bits.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.count * self.element_bytes
    }

    /// Bytes before part `i` of `parts`, of which the first ones have one element more where they cannot be equal.
    fn start(self, parts: u64, i: u64) -> u64 {
        let (each, more) = (self.count / parts, self.count % parts);
        (each * i + more.min(i)) * self.element_bytes
    }

    /// The segments, as equal as can be, of `segment` bytes at most where that makes no more than [`MAX_SEGMENTS`] of whole
    /// elements; one, of no bytes, where there is nothing.
    fn segments(self, segment: u64) -> Result<Vec<Span>, CombineError> {
        if segment == 0 {
            return Err(CombineError::Segment);
        }
        let count = self.count.div_ceil((segment / self.element_bytes.max(1)).max(1)).clamp(1, MAX_SEGMENTS);
        let span = |i| {
            let (offset, len) = self.part(count, i);
            Span::input(offset, len)
        };
        Ok((0..count).map(span).collect())
    }

    /// Offset and bytes of part `i` of `parts`.
    #[must_use]
    pub fn part(self, parts: u64, i: u64) -> (u64, u64) {
        let start = self.start(parts, i);
        (start, self.start(parts, i + 1) - start)
    }
}

/// Why there is no such plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CombineError {
    /// A group of 0, or of more than [`MAX_RANKS`].
    #[error("a reduction among {ranks} ranks: a group has 1 to {MAX_RANKS} ranks")]
    Ranks {
        /// The ranks asked for.
        ranks: u32,
    },
    /// A rank or root that is not in the group.
    #[error("{rank} in a reduction among {ranks} ranks: ranks count from 0")]
    Rank {
        /// The rank or root asked for.
        rank: Rank,
        /// The ranks of the group.
        ranks: u32,
    },
    /// The vector cannot be addressed.
    #[error("{count} elements of {element_bytes} B do not fit a 64-bit address: lower the count")]
    Bytes {
        /// Elements.
        count: u64,
        /// Bytes of each.
        element_bytes: u64,
    },
    /// The messages under way cannot be addressed.
    #[error("the messages that a rank receives do not fit a 64-bit address together: lower the count")]
    Scratch,
    /// No multicast address to send to.
    #[error("0 subgroups: choose at least 1 (`subgroups` of AllreduceAlgorithm)")]
    Subgroups,
    /// Not as many ranks as blocks.
    #[error("{blocks} blocks among {ranks} ranks: give the hosts of as many ranks as there are blocks")]
    Blocks {
        /// The blocks.
        blocks: u32,
        /// The ranks of the topology.
        ranks: u32,
    },
    /// Segments of nothing.
    #[error("segments of 0 B: choose at least 1 (`segment` of the algorithm)")]
    Segment,
    /// No piece to send.
    #[error("0 pieces: choose at least 1 (`pieces` of ScanAlgorithm)")]
    Pieces,
}

/// What every plan demands of its arguments.
fn check(ranks: u32, rank: Rank, vector: Vector) -> Result<(), CombineError> {
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(CombineError::Ranks { ranks });
    }
    if rank.0 >= ranks {
        return Err(CombineError::Rank { rank, ranks });
    }
    let Vector { count, element_bytes } = vector;
    count.checked_mul(element_bytes).map(|_| ()).ok_or(CombineError::Bytes { count, element_bytes })
}
