//! Reductions that a script may call: what ranks contribute, and what the result is.
//!
//! Floating-point contributions are chosen so that another order of additions gives other bits. Results of operators
//! that do not round must equal a reference in the order of ranks; other results must lie near it. The
//! [oracle](crate::oracle) and tests check that all ranks and all runs get the same bits. Pure.

use std::ops::Range;
use std::sync::Arc;

use outboard_arithmetic::reduce;
use outboard_plan::alltoall::Blocks;
use outboard_plan::{Element, Extents, Operator, Rank, Reduction, Span};
use outboard_proto::{CallKind, Signature, sizes_digest};

use crate::pattern::DataMovement;
use crate::scenario::CallPlan;
use crate::store::ContributionId;

/// The part of the combined vectors that each member receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReductionKind {
    /// One member receives everything.
    Reduce { root: usize },
    /// All members receive everything.
    Allreduce,
    /// Every member receives a block of 0 to `bytes`, drawn by this seed.
    ReduceScatter { seed: u64 },
    /// Every member receives a block of `bytes`.
    ReduceScatterBlock,
    /// Every member receives the vectors up to its own, combined.
    Scan,
    /// Every member receives the vectors before its own, combined.
    Exscan,
}

impl ReductionKind {
    /// One reduction of each kind.
    pub fn all(root: usize, seed: u64) -> [ReductionKind; 6] {
        use ReductionKind::{Allreduce, Exscan, Reduce, ReduceScatter, ReduceScatterBlock, Scan};
        [Reduce { root }, Allreduce, ReduceScatter { seed }, ReduceScatterBlock, Scan, Exscan]
    }
}

/// The result with which a receive buffer must begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpectedResult {
    reduction: Reduction,
    /// Byte range of the combined vectors.
    part: Range<u64>,
    /// Members whose vectors are combined.
    members: Range<usize>,
}

impl CallPlan {
    /// The reduction, if the call is one.
    pub(crate) fn reduction(&self) -> Option<(ReductionKind, Reduction)> {
        if let DataMovement::Reduction(result, reduction) = self.pattern.class().moves {
            Some((result, reduction))
        } else {
            None
        }
    }

    /// Bytes of each member's block of a reduce-scatter, as `seen_by` believes.
    fn blocks_of(&self, (result, reduction): (ReductionKind, Reduction), members: usize, seen_by: usize) -> Vec<u64> {
        let (bytes, element) = (self.bytes_of(seen_by), reduction.element().bytes());
        let block = |member: usize| match result {
            ReductionKind::ReduceScatter { seed } => {
                let drawn = mix(seed ^ (member as u64) << 32);
                if drawn.is_multiple_of(4) { 0 } else { (1 + (drawn >> 4) % bytes.max(1)) / element * element }
            }
            _ => bytes,
        };
        (0..members).map(block).collect()
    }

    /// The signature of the call that `member` of `members` makes.
    pub(crate) fn combined_signature(
        &self,
        (result, reduction): (ReductionKind, Reduction),
        member: usize,
        members: usize,
    ) -> Signature {
        let bytes = self.bytes_of(member);
        match result {
            ReductionKind::Reduce { root } => {
                Signature { kind: CallKind::Reduce { root: Rank(root as u32), reduction }, bytes }
            }
            ReductionKind::Allreduce => Signature { kind: CallKind::Allreduce { reduction }, bytes },
            ReductionKind::ReduceScatter { .. } => {
                let blocks = self.blocks_of((result, reduction), members, member);
                let kind = CallKind::ReduceScatter { reduction, sizes: sizes_digest(blocks.iter().copied()) };
                Signature { kind, bytes: blocks.iter().sum() }
            }
            ReductionKind::ReduceScatterBlock => Signature { kind: CallKind::ReduceScatterBlock { reduction }, bytes },
            ReductionKind::Scan => Signature { kind: CallKind::Scan { reduction, inclusive: true }, bytes },
            ReductionKind::Exscan => Signature { kind: CallKind::Scan { reduction, inclusive: false }, bytes },
        }
    }

    /// The blocks that `member` passes with its call, if it passes any.
    pub(crate) fn combined_blocks(
        &self,
        what: (ReductionKind, Reduction),
        member: usize,
        members: usize,
    ) -> Option<Arc<Blocks>> {
        if !matches!(what.0, ReductionKind::ReduceScatter { .. }) {
            return None;
        }
        let extents = Extents::uneven(self.blocks_of(what, members, member)).expect("small buffers");
        let block = |rank| extents.block(Rank(rank));
        let send = (0..members as u32).map(|rank| Span::input(block(rank).offset, block(rank).len)).collect();
        Some(Arc::new(Blocks { send, receive: vec![Span::output(0, block(member as u32).len)] }))
    }

    /// Bytes of the send and of the receive buffer of `member` of `members`. In place, one buffer has room for both.
    pub(crate) fn combined_buffers(
        &self,
        what: (ReductionKind, Reduction),
        member: usize,
        members: usize,
    ) -> (u64, u64) {
        let bytes = self.bytes_of(member);
        let (sent, received) = match what.0 {
            ReductionKind::Reduce { root } => (bytes, if root == member { bytes } else { 0 }),
            ReductionKind::Allreduce | ReductionKind::Scan | ReductionKind::Exscan => (bytes, bytes),
            ReductionKind::ReduceScatter { .. } | ReductionKind::ReduceScatterBlock => {
                let blocks = self.blocks_of(what, members, member);
                (blocks.iter().sum(), blocks[member])
            }
        };
        (sent, if self.in_place.contains(&member) { sent.max(received) } else { received })
    }

    /// Whether `member` of a disputed call cannot end before all disagreeing members have called.
    pub(crate) fn combined_needs_all_of(
        &self,
        what: (ReductionKind, Reduction),
        member: usize,
        members: usize,
    ) -> bool {
        let odd = self.disagrees.map_or(member, |(odd, _)| odd);
        let bytes = self.bytes_of(member);
        // The vectors of members up to `last` are needed. The odd member is before `last`, or is `member` itself and
        // others are before `last`.
        let up_to = |last: usize| odd < last || (odd == member && last > 0);
        match what.0 {
            ReductionKind::Reduce { root } => bytes > 0 && root == member,
            ReductionKind::Allreduce | ReductionKind::ReduceScatterBlock => bytes > 0,
            ReductionKind::ReduceScatter { .. } => {
                let signature = |who| self.combined_signature(what, who, members);
                let differs = (0..members).any(|other| signature(other) != signature(odd));
                differs && self.blocks_of(what, members, member)[member] > 0
            }
            ReductionKind::Scan => bytes > 0 && (up_to(member) || odd == member && member > 0),
            ReductionKind::Exscan => bytes > 0 && member > 0 && up_to(member),
        }
    }

    /// The result with which the receive buffer of `member` of `members` must begin, if the call is a reduction.
    pub(crate) fn expected(&self, member: usize, members: usize) -> Option<ExpectedResult> {
        let (result, reduction) = self.reduction()?;
        let bytes = self.bytes_of(member);
        let (part, members) = match result {
            ReductionKind::Reduce { root } if root != member => return None,
            ReductionKind::Exscan if member == 0 => return None,
            ReductionKind::Reduce { .. } | ReductionKind::Allreduce => (0..bytes, 0..members),
            ReductionKind::ReduceScatter { .. } | ReductionKind::ReduceScatterBlock => {
                let blocks = self.blocks_of((result, reduction), members, member);
                let start = blocks[..member].iter().sum();
                (start..start + blocks[member], 0..members)
            }
            ReductionKind::Scan => (0..bytes, 0..member + 1),
            ReductionKind::Exscan => (0..bytes, 0..member),
        };
        Some(ExpectedResult { reduction, part, members })
    }
}

impl ExpectedResult {
    /// Bytes of the receive buffer that hold the result.
    pub(crate) fn len(&self) -> u64 {
        self.part.end - self.part.start
    }

    /// How `found` differs from the expected result, if it does. `origin` names the contribution of a member.
    pub(crate) fn difference(&self, found: &[u8], origin: impl Fn(usize) -> ContributionId) -> Option<String> {
        let element = self.reduction.element();
        let vector = |member| contribution(origin(member), element, self.part.clone());
        let mut members = self.members.clone();
        let mut reference = vector(members.next().expect("somebody contributes"));
        members.for_each(|member| reduce(self.reduction, &vector(member), &mut reference, false));
        let size = element.bytes() as usize;
        let pairs = found.chunks_exact(size).zip(reference.chunks_exact(size));
        let wrong = |(_, (found, expected)): &(usize, (&[u8], &[u8]))| !self.agrees(found, expected);
        let (at, (found, expected)) = pairs.enumerate().find(wrong)?;
        Some(format!("element {at} of the {} is {found:02x?}, by the order of ranks {expected:02x?}", self.reduction))
    }

    /// Whether an element equals the expected one, or is as near as rounding in another order allows.
    fn agrees(&self, found: &[u8], expected: &[u8]) -> bool {
        let largest = MOST * self.members.len() as f64;
        let near = |found: f64, expected: f64, precision: f64| (found - expected).abs() <= largest * precision;
        match (self.reduction.operator(), self.reduction.element()) {
            (Operator::Sum, Element::F32) => {
                let value = |bytes: &[u8]| f64::from(f32::from_ne_bytes(bytes.try_into().expect("four bytes")));
                near(value(found), value(expected), 1e-5)
            }
            (Operator::Sum, Element::F64) => {
                let value = |bytes: &[u8]| f64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
                near(value(found), value(expected), 1e-13)
            }
            _ => found == expected,
        }
    }
}

/// An upper bound of the magnitude of every floating-point contribution.
const MOST: f64 = 143.0 * 4096.0;

/// A pseudorandom number derived from `name`.
pub(crate) fn mix(name: u64) -> u64 {
    (name ^ (name >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
}

/// Bytes `part` of a contribution, which consists of numbers of type `element`.
pub(crate) fn contribution(origin: ContributionId, element: Element, part: Range<u64>) -> Vec<u8> {
    let numbers = part.start / element.bytes()..part.end / element.bytes();
    // Many magnitudes and long fractions make every addition round.
    let number = |at: u64| {
        let drawn = mix(origin.name() ^ at << 20);
        ((drawn % 2001) as f64 - 1000.0) / 7.0 * f64::from(1u32 << (drawn >> 16 & 0xf).min(12))
    };
    match element {
        Element::F32 => numbers.flat_map(|at| (number(at) as f32).to_ne_bytes()).collect(),
        Element::F64 => numbers.flat_map(|at| number(at).to_ne_bytes()).collect(),
        _ => part.map(|at| origin.byte(at)).collect(),
    }
}
