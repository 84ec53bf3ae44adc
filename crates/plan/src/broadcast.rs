//! Broadcast: every rank receives the root's contribution.
//!
//! The root has only `Input`, all other ranks have only `Output`, since MPI's single buffer is read on the root and
//! written on all other ranks.
//!
//! Invariants: receives follow nothing, so an engine posts them all at once (MC-4). Every byte arrives once on each
//! rank but the root, straight in its place. Ranks count from the root round the group, so that all roots are alike.
//! Sends are listed round by round.

mod pipelined;
mod scatter;

use crate::algorithm::Algorithm;
use crate::arguments::PlanError;
use crate::binomial::TreePosition;
use crate::builder::ProgramBuilder;
use crate::program::{OpId, Program, Rank, Span};

/// The most segments of a message: each step of a program takes memory in an engine.
pub const MAX_SEGMENTS: u64 = 1 << 20;

/// The program of `rank` in a broadcast of `bytes` bytes from `root` among `ranks` ranks.
///
/// With 0 bytes nothing moves and the program is empty.
pub(crate) fn program(
    algorithm: Algorithm,
    ranks: u32,
    root: Rank,
    rank: Rank,
    bytes: u64,
) -> Result<Program, PlanError> {
    let mut builder = ProgramBuilder::new(rank, ranks);
    let (input, output) = if rank == root { (bytes, 0) } else { (0, bytes) };
    builder.buffers(input, output, 0);
    match algorithm {
        Algorithm::Multicast { chains, subgroups } => {
            builder.multicast_layout(chains, subgroups);
        }
        Algorithm::Chain { segment } | Algorithm::DoubleTree { segment } if bytes.div_ceil(segment) > MAX_SEGMENTS => {
            return Err(PlanError::Segments { bytes, segment });
        }
        _ => {}
    }
    if bytes > 0 && ranks > 1 {
        let place = TreePosition::new(ranks, root, rank);
        match algorithm {
            Algorithm::Binomial => k_nomial(&mut builder, place, bytes, 2),
            Algorithm::KNomial { radix } => k_nomial(&mut builder, place, bytes, radix),
            Algorithm::Chain { segment } => pipelined::chain(&mut builder, place, bytes, segment),
            Algorithm::DoubleTree { segment } => pipelined::double_tree(&mut builder, place, bytes, segment),
            Algorithm::ScatterAllgather => scatter::scatter_allgather(&mut builder, place, bytes),
            Algorithm::Multicast { .. } => multicast(&mut builder, place, bytes),
            other => unreachable!("{other:?} is no algorithm of a broadcast"),
        }
    }
    Ok(builder.build())
}

impl TreePosition {
    /// `len` bytes from `offset` of the broadcast bytes, on this rank.
    fn span(self, offset: u64, len: u64) -> Span {
        if self.rank == 0 { Span::input(offset, len) } else { Span::output(offset, len) }
    }
}

/// Rank `v` receives from the rank whose number is `v` without its lowest non-zero digit to the base `radix`.
fn k_nomial(builder: &mut ProgramBuilder, place: TreePosition, bytes: u64, radix: u32) {
    let TreePosition { ranks, rank, .. } = place;
    let all = place.span(0, bytes);
    let (radix, ranks_wide) = (u64::from(radix), u64::from(ranks));
    // The weight of the lowest non-zero digit; for the root the first power beyond all ranks.
    let mut lowest = 1u64;
    while lowest < ranks_wide && u64::from(rank).is_multiple_of(lowest * radix) {
        lowest *= radix;
    }
    let received: Vec<OpId> = if rank == 0 {
        Vec::new()
    } else {
        let digit = u64::from(rank) / lowest % radix;
        vec![builder.recv(place.at((u64::from(rank) - digit * lowest) as u32), 0, all, &[])]
    };
    // The largest subtree comes first, because it takes longest.
    let mut weight = lowest / radix;
    while weight > 0 {
        let children = (1..radix).map(|digit| u64::from(rank) + digit * weight).take_while(|child| *child < ranks_wide);
        for child in children {
            builder.send(place.at(child as u32), 0, all, &received);
        }
        weight /= radix;
    }
}

fn multicast(builder: &mut ProgramBuilder, place: TreePosition, bytes: u64) {
    let all = place.span(0, bytes);
    if place.rank == 0 {
        builder.multicast(all, &[]);
    } else {
        builder.multicast_recv(place.root, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::MAX_RANKS;

    #[test]
    fn steps_are_as_few_as_documented() {
        for ranks in [1u32, 2, 3, 1000, MAX_RANKS] {
            for rank in [0, 1, ranks / 2, ranks - 1].map(|rank| Rank(rank.min(ranks - 1))) {
                let steps = |algorithm| program(algorithm, ranks, Rank(0), rank, 8).unwrap().steps.len();
                let rounds = ranks.next_power_of_two().trailing_zeros() as usize;
                assert!(steps(Algorithm::Binomial) <= rounds + 1);
                assert!(steps(Algorithm::KNomial { radix: 4 }) <= rounds.div_ceil(2) * 3 + 1);
                assert!(steps(Algorithm::KNomial { radix: u32::MAX }) <= ranks as usize);
            }
        }
    }
}
