//! Broadcast: every rank ends with what the root contributes.
//!
//! The root contributes `Input` and has no `Output`; for all others it is the other way round, since MPI's one buffer is
//! read on the root and written elsewhere.
//!
//! Invariants: receives follow nothing, so an engine posts them all at once (MC-4); a rank's program has at most
//! `ceil(log2(ranks)) + 1` steps, whatever the byte count.

use thiserror::Error;

use crate::builder::ProgramBuilder;
use crate::program::{MAX_RANKS, Program, Rank, Span};
use crate::verify::{Contract, Piece};

/// How the bytes travel. The group agrees on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BroadcastShape {
    /// A binomial tree, `ceil(log2(ranks))` rounds; the root sends that many times `bytes`, every other rank receives
    /// `bytes` once. Counted from the root, rank `v` receives from `v` without its lowest set bit. (CD-2.)
    Binomial,
    /// The root multicasts once; it sends `bytes`, every other rank receives `bytes` (MC-1).
    Multicast {
        /// Multicast addresses the bytes are spread over (MC-10), at least 1; see [`crate::subgroup_chunks`].
        subgroups: u16,
    },
}

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
    #[error("0 subgroups: choose at least 1 (`subgroups` of BroadcastShape::Multicast)")]
    Subgroups,
}

/// What `rank` does in a broadcast of `bytes` bytes from `root` among `ranks` ranks.
///
/// With 0 bytes nothing moves and the program is empty.
///
/// # Errors
/// When an argument is out of range; see [`BroadcastError`].
pub fn broadcast(
    shape: BroadcastShape,
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
    let mut builder = ProgramBuilder::new(rank, ranks);
    if rank == root {
        builder.buffers(bytes, 0, 0);
    } else {
        builder.buffers(0, bytes, 0);
    }
    match shape {
        BroadcastShape::Multicast { subgroups: 0 } => return Err(BroadcastError::Subgroups),
        BroadcastShape::Multicast { subgroups } => {
            builder.multicast_layout(1, subgroups);
            if bytes > 0 && rank != root {
                builder.multicast_recv(root, Span::output(0, bytes));
            } else if bytes > 0 && ranks > 1 {
                builder.multicast(Span::input(0, bytes), &[]);
            }
        }
        BroadcastShape::Binomial if bytes > 0 => binomial(&mut builder, ranks, root, rank, bytes),
        BroadcastShape::Binomial => {}
    }
    Ok(builder.build())
}

/// What a broadcast promises to `rank`, for [`crate::verify()`].
pub fn contract(root: Rank, rank: Rank, bytes: u64) -> Contract {
    let piece = |span| Piece { span, source: root, from: 0 };
    if rank == root {
        let before = vec![piece(Span::input(0, bytes))];
        Contract { input_bytes: bytes, output_bytes: 0, before, after: Vec::new() }
    } else {
        let after = vec![piece(Span::output(0, bytes))];
        Contract { input_bytes: 0, output_bytes: bytes, before: Vec::new(), after }
    }
}

fn binomial(builder: &mut ProgramBuilder, ranks: u32, root: Rank, rank: Rank, bytes: u64) {
    let own = (rank.0 + ranks - root.0) % ranks;
    let other = |v: u32| Rank(((u64::from(v) + u64::from(root.0)) % u64::from(ranks)) as u32);
    let (source, received, lowest) = if own == 0 {
        (Span::input(0, bytes), Vec::new(), ranks.next_power_of_two())
    } else {
        let lowest = 1 << own.trailing_zeros();
        let span = Span::output(0, bytes);
        (span, vec![builder.recv(other(own - lowest), 0, span, &[])], lowest)
    };
    // The largest subtree first: it takes longest.
    let mut step = lowest / 2;
    while step > 0 {
        if own + step < ranks {
            builder.send(other(own + step), 0, source, &received);
        }
        step /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |shape, ranks, root, rank| broadcast(shape, ranks, Rank(root), Rank(rank), 1).unwrap_err();
        assert_eq!(refused(BroadcastShape::Binomial, 0, 0, 0), BroadcastError::Ranks { ranks: 0 });
        let stranger = BroadcastError::Rank { rank: Rank(1), root: Rank(3), ranks: 3 };
        assert_eq!(refused(BroadcastShape::Binomial, 3, 3, 1), stranger);
        assert_eq!(refused(BroadcastShape::Multicast { subgroups: 0 }, 3, 0, 1), BroadcastError::Subgroups);
        assert_eq!(stranger.to_string(), "a broadcast program for rank 1 of 3 from rank 3: ranks count from 0");
    }

    #[test]
    fn steps_are_as_few_as_documented() {
        for ranks in [1u32, 2, 3, 1000, MAX_RANKS] {
            for rank in [0, 1, ranks / 2, ranks - 1].map(|rank| Rank(rank.min(ranks - 1))) {
                let program = broadcast(BroadcastShape::Binomial, ranks, Rank(0), rank, 8).unwrap();
                assert!(program.steps.len() <= ranks.next_power_of_two().trailing_zeros() as usize + 1);
            }
        }
    }
}
