//! Alltoall and Alltoallv: every rank has a block for every rank. Gathers and scatters are the same with most blocks
//! empty.
//!
//! Counts are local to a pair here: what a rank sends to another is known on these two alone. So all plans but Bruck's,
//! whose blocks have one size, are pairwise, one message for each pair with bytes, `ranks - 1` at most; whoever
//! executes them announces messages and lets the receiving side ask for them (SP-5), or simply sends.
//!
//! Invariants: receives follow nothing (MC-4); between two ranks only message 0 goes. In step `i` rank `r` sends to
//! rank `r + i` and receives from `r - i`, or both with `r ^ i`, so that everybody sends to somebody else at the same
//! time (the scatter-destination order of GP-8).

mod bruck;

use std::num::NonZeroU32;

pub use outboard_call::{Blocks, BlocksError};
use thiserror::Error;

use crate::algorithm::AlltoallAlgorithm;
use crate::builder::ProgramBuilder;
use crate::passes;
use crate::program::{OpId, Program, Rank, Span};
use crate::verify::{Contract, Piece};

/// Why there is no such exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AlltoallError {
    /// The blocks cannot be.
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    /// Sends at a time that are none.
    #[error("batches of 0 sends: choose at least 1 (`batch` of scatter-destination)")]
    Batch,
    /// Bruck's algorithm moves blocks together, which needs one size.
    #[error("blocks of {first} and of {other} bytes: choose another algorithm than bruck, or one size for all")]
    Uneven {
        /// Bytes of the first block.
        first: u64,
        /// Bytes of another.
        other: u64,
    },
    /// Blocks on their way need more scratch than can be addressed.
    #[error("bruck with blocks of {bytes} bytes among {ranks} ranks: choose another algorithm for large blocks")]
    Scratch {
        /// Bytes of a block.
        bytes: u64,
        /// Ranks of the group.
        ranks: u32,
    },
}

/// What `rank` does in an exchange of `blocks` among `ranks` ranks; there is no message where a block is empty.
///
/// # Errors
/// When the blocks cannot be, or not for this algorithm; see [`AlltoallError`].
pub fn alltoall(
    algorithm: AlltoallAlgorithm,
    ranks: u32,
    rank: Rank,
    blocks: &Blocks,
) -> Result<Program, AlltoallError> {
    blocks.check(ranks, rank)?;
    let mut builder = ProgramBuilder::new(rank, ranks);
    let (input, output) = blocks.bytes();
    builder.buffers(input, output, 0);
    let program = match algorithm {
        AlltoallAlgorithm::Pull => pull(builder, rank, blocks),
        AlltoallAlgorithm::Pairwise => pairwise(builder, rank, blocks),
        AlltoallAlgorithm::ScatterDestination { batch } => {
            let batch = NonZeroU32::new(batch).ok_or(AlltoallError::Batch)?;
            passes::ports(pull(builder, rank, blocks), batch)
        }
        AlltoallAlgorithm::Bruck => bruck::bruck(builder, rank, blocks)?,
    };
    Ok(program)
}

fn copy_own(builder: &mut ProgramBuilder, rank: Rank, blocks: &Blocks) {
    let own = rank.0 as usize;
    if !blocks.send[own].is_empty() {
        builder.copy(blocks.send[own], blocks.receive[own], &[]);
    }
}

fn pull(mut builder: ProgramBuilder, rank: Rank, blocks: &Blocks) -> Program {
    let ranks = blocks.send.len() as u32;
    for from in (1..ranks).map(|i| (rank.0 + ranks - i) % ranks) {
        let span = blocks.receive[from as usize];
        if !span.is_empty() {
            builder.recv(Rank(from), 0, span, &[]);
        }
    }
    for to in (1..ranks).map(|i| (rank.0 + i) % ranks) {
        let span = blocks.send[to as usize];
        if !span.is_empty() {
            builder.send(Rank(to), 0, span, &[]);
        }
    }
    copy_own(&mut builder, rank, blocks);
    builder.build()
}

fn pairwise(mut builder: ProgramBuilder, rank: Rank, blocks: &Blocks) -> Program {
    let ranks = blocks.send.len() as u32;
    let partners = |round: u32| match ranks.is_power_of_two() {
        true => (rank.0 ^ round, rank.0 ^ round),
        false => ((rank.0 + round) % ranks, (rank.0 + ranks - round) % ranks),
    };
    let mut receive = |round| {
        let (_, from) = partners(round);
        let span = blocks.receive[from as usize];
        (!span.is_empty()).then(|| builder.recv(Rank(from), 0, span, &[]))
    };
    let received: Vec<Option<OpId>> = (1..ranks).map(&mut receive).collect();
    copy_own(&mut builder, rank, blocks);
    // What is complete before the next round: its steps wait for earlier ones, except receives, which wait for nothing.
    let mut before: Vec<OpId> = Vec::new();
    for (round, received) in (1..ranks).zip(received) {
        let (to, _) = partners(round);
        let span = blocks.send[to as usize];
        if !span.is_empty() {
            before = vec![builder.send(Rank(to), 0, span, &before)];
        }
        before.extend(received);
    }
    builder.build()
}

/// What an exchange promises to `rank`, for [`crate::verify()`]; `all` are the blocks of every rank.
///
/// # Panics
/// When a rank has no blocks in `all`.
pub fn contract(rank: Rank, all: &[Blocks]) -> Contract {
    let mine = &all[rank.0 as usize];
    let (input_bytes, output_bytes) = mine.bytes();
    let sources = mine.receive.iter().zip(all).zip(0..);
    let after = sources.map(|((&span, theirs), source)| Piece {
        span,
        source: Rank(source),
        from: theirs.send[rank.0 as usize].offset,
    });
    let own = Piece { span: Span::input(0, input_bytes), source: rank, from: 0 };
    Contract { input_bytes, output_bytes, before: vec![own], after: after.filter(|p| !p.span.is_empty()).collect() }
}
