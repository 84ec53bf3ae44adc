//! Broadcast: every rank ends with what the root contributes.
//!
//! The root contributes `Input` and has no `Output`; for all others it is the other way round, since MPI's one buffer
//! is read on the root and written elsewhere.
//!
//! Invariants: receives follow nothing, so an engine posts them all at once (MC-4); every byte arrives once on each
//! rank but the root, straight in its place. Ranks count from the root round the group, so that all roots are alike.
//! Sends are listed round by round.

mod pipelined;
mod scatter;

use thiserror::Error;

use crate::algorithm::BroadcastAlgorithm;
use crate::builder::ProgramBuilder;
use crate::program::{MAX_RANKS, OpId, Program, Rank, Span};

/// The most segments that a message is cut in: steps of a program are memory of an engine.
pub const MAX_SEGMENTS: u64 = 1 << 20;

/// Why there is no such broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BroadcastError {
    /// A group of 0, or of more than [`MAX_RANKS`].
    #[error("a broadcast among {ranks} ranks: a group has 1 to {MAX_RANKS} ranks")]
    Ranks {
        /// The ranks asked for.
        ranks: u32,
    },
    /// The rank or the root is not in the group.
    #[error("a broadcast program for {rank} of {ranks} from {root}: ranks count from 0")]
    Rank {
        /// The rank asked for.
        rank: Rank,
        /// The root asked for.
        root: Rank,
        /// The ranks of the group.
        ranks: u32,
    },
    /// No multicast address to send to.
    #[error("0 subgroups: choose at least 1 (`subgroups` of multicast)")]
    Subgroups,
    /// Digits to no base.
    #[error("radix {radix}: choose at least 2 (`radix` of k-nomial)")]
    Radix {
        /// The radix asked for.
        radix: u32,
    },
    /// Segments without bytes, or too many.
    #[error("{bytes} bytes in segments of {segment}: choose segments (`segment`) of which {MAX_SEGMENTS} are enough")]
    Segments {
        /// Bytes to broadcast.
        bytes: u64,
        /// Bytes of a segment.
        segment: u64,
    },
}

/// What `rank` does in a broadcast of `bytes` bytes from `root` among `ranks` ranks.
///
/// With 0 bytes nothing moves and the program is empty.
///
/// # Errors
/// When an argument is out of range; see [`BroadcastError`].
pub fn broadcast(
    algorithm: BroadcastAlgorithm,
    ranks: u32,
    root: Rank,
    rank: Rank,
    bytes: u64,
) -> Result<Program, BroadcastError> {
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(BroadcastError::Ranks { ranks });
    }
    if rank.0 >= ranks || root.0 >= ranks {
        return Err(BroadcastError::Rank { rank, root, ranks });
    }
    check(algorithm, bytes)?;
    let mut builder = ProgramBuilder::new(rank, ranks);
    if rank == root {
        builder.buffers(bytes, 0, 0);
    } else {
        builder.buffers(0, bytes, 0);
    }
    if let BroadcastAlgorithm::Multicast { subgroups } = algorithm {
        builder.multicast_layout(1, subgroups);
    }
    if bytes > 0 && ranks > 1 {
        let from_root = (rank.0 + ranks - root.0) % ranks;
        let place = Place { ranks, root: root.0, rank: from_root, bytes };
        match algorithm {
            BroadcastAlgorithm::Binomial => k_nomial(&mut builder, place, 2),
            BroadcastAlgorithm::KNomial { radix } => k_nomial(&mut builder, place, radix),
            BroadcastAlgorithm::Chain { segment } => pipelined::chain(&mut builder, place, segment),
            BroadcastAlgorithm::DoubleTree { segment } => pipelined::double_tree(&mut builder, place, segment),
            BroadcastAlgorithm::ScatterAllgather => scatter::scatter_allgather(&mut builder, place),
            BroadcastAlgorithm::Multicast { .. } => multicast(&mut builder, place),
        }
    }
    Ok(builder.build())
}

fn check(algorithm: BroadcastAlgorithm, bytes: u64) -> Result<(), BroadcastError> {
    match algorithm {
        BroadcastAlgorithm::Multicast { subgroups: 0 } => Err(BroadcastError::Subgroups),
        BroadcastAlgorithm::KNomial { radix: radix @ 0..=1 } => Err(BroadcastError::Radix { radix }),
        BroadcastAlgorithm::Chain { segment } | BroadcastAlgorithm::DoubleTree { segment }
            if segment == 0 || bytes.div_ceil(segment) > MAX_SEGMENTS =>
        {
            Err(BroadcastError::Segments { bytes, segment })
        }
        BroadcastAlgorithm::Binomial
        | BroadcastAlgorithm::KNomial { .. }
        | BroadcastAlgorithm::Chain { .. }
        | BroadcastAlgorithm::DoubleTree { .. }
        | BroadcastAlgorithm::ScatterAllgather
        | BroadcastAlgorithm::Multicast { .. } => Ok(()),
    }
}

/// Where a rank stands in a broadcast of more than one rank and 0 bytes.
#[derive(Clone, Copy)]
struct Place {
    ranks: u32,
    root: u32,
    /// Counted from the root.
    rank: u32,
    bytes: u64,
}

impl Place {
    /// The rank that stands at `rank`, counted from the root.
    fn at(self, rank: u32) -> Rank {
        // Both are below 2^16.
        Rank((rank + self.root) % self.ranks)
    }

    /// `len` bytes from `offset` of what is broadcast, where they lie on this rank.
    fn span(self, offset: u64, len: u64) -> Span {
        if self.rank == 0 { Span::input(offset, len) } else { Span::output(offset, len) }
    }
}

/// Rank `v` receives from `v` without its lowest digit that is not 0, to the base `radix`.
fn k_nomial(builder: &mut ProgramBuilder, place: Place, radix: u32) {
    let Place { ranks, rank, bytes, .. } = place;
    let all = place.span(0, bytes);
    let (radix, ranks_wide) = (u64::from(radix), u64::from(ranks));
    // The weight of the lowest digit that is not 0; for the root the first power beyond all ranks.
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
    // The largest subtree first: it takes longest.
    let mut weight = lowest / radix;
    while weight > 0 {
        let children = (1..radix).map(|digit| u64::from(rank) + digit * weight).take_while(|child| *child < ranks_wide);
        for child in children {
            builder.send(place.at(child as u32), 0, all, &received);
        }
        weight /= radix;
    }
}

fn multicast(builder: &mut ProgramBuilder, place: Place) {
    let all = place.span(0, place.bytes);
    if place.rank == 0 {
        builder.multicast(all, &[]);
    } else {
        builder.multicast_recv(Rank(place.root), all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused =
            |algorithm, ranks, root, rank| broadcast(algorithm, ranks, Rank(root), Rank(rank), 9).unwrap_err();
        assert_eq!(refused(BroadcastAlgorithm::Binomial, 0, 0, 0), BroadcastError::Ranks { ranks: 0 });
        let stranger = BroadcastError::Rank { rank: Rank(1), root: Rank(3), ranks: 3 };
        assert_eq!(refused(BroadcastAlgorithm::Binomial, 3, 3, 1), stranger);
        assert_eq!(refused(BroadcastAlgorithm::Multicast { subgroups: 0 }, 3, 0, 1), BroadcastError::Subgroups);
        assert_eq!(refused(BroadcastAlgorithm::KNomial { radix: 1 }, 3, 0, 1), BroadcastError::Radix { radix: 1 });
        let segment = BroadcastError::Segments { bytes: 9, segment: 0 };
        assert_eq!(refused(BroadcastAlgorithm::Chain { segment: 0 }, 3, 0, 1), segment);
        assert_eq!(refused(BroadcastAlgorithm::DoubleTree { segment: 0 }, 3, 0, 1), segment);
        let many = broadcast(BroadcastAlgorithm::Chain { segment: 1 }, 3, Rank(0), Rank(1), u64::MAX).unwrap_err();
        assert_eq!(many, BroadcastError::Segments { bytes: u64::MAX, segment: 1 });
        assert_eq!(stranger.to_string(), "a broadcast program for rank 1 of 3 from rank 3: ranks count from 0");
    }

    #[test]
    fn steps_are_as_few_as_documented() {
        for ranks in [1u32, 2, 3, 1000, MAX_RANKS] {
            for rank in [0, 1, ranks / 2, ranks - 1].map(|rank| Rank(rank.min(ranks - 1))) {
                let steps = |algorithm| broadcast(algorithm, ranks, Rank(0), rank, 8).unwrap().steps.len();
                let rounds = ranks.next_power_of_two().trailing_zeros() as usize;
                assert!(steps(BroadcastAlgorithm::Binomial) <= rounds + 1);
                assert!(steps(BroadcastAlgorithm::KNomial { radix: 4 }) <= rounds.div_ceil(2) * 3 + 1);
                assert!(steps(BroadcastAlgorithm::KNomial { radix: u32::MAX }) <= ranks as usize);
            }
        }
    }
}
