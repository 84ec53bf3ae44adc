//! Barrier: nobody leaves before all have come.
//!
//! No bytes move. What a rank sends is an empty span of `Input`, which, unlike a signal, needs that the rank has
//! called: else an engine that stands in for an absent rank would let the others leave.
//!
//! Invariant: a send follows everything that its rank has heard in earlier rounds.

use thiserror::Error;

use crate::algorithm::BarrierAlgorithm;
use crate::builder::ProgramBuilder;
use crate::program::{MAX_RANKS, OpId, Program, Rank, Span};

/// Why there is no such barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BarrierError {
    /// A group of 0, or of more than [`MAX_RANKS`], or without the rank.
    #[error("a barrier of {rank} among {ranks} ranks: a group has 1 to {MAX_RANKS} ranks, which count from 0")]
    Ranks {
        /// The rank asked for.
        rank: Rank,
        /// The ranks asked for.
        ranks: u32,
    },
    /// No message at a time.
    #[error("0 ports: choose at least 1 (`ports` of dissemination)")]
    Ports,
}

/// What `rank` does in a barrier of `ranks` ranks.
///
/// # Errors
/// When an argument is out of range; see [`BarrierError`].
pub fn barrier(algorithm: BarrierAlgorithm, ranks: u32, rank: Rank) -> Result<Program, BarrierError> {
    if ranks == 0 || ranks > MAX_RANKS || rank.0 >= ranks {
        return Err(BarrierError::Ranks { rank, ranks });
    }
    let mut builder = ProgramBuilder::new(rank, ranks);
    match algorithm {
        BarrierAlgorithm::Dissemination { ports: 0 } => return Err(BarrierError::Ports),
        BarrierAlgorithm::Dissemination { ports } => dissemination(&mut builder, ranks, rank, ports),
    }
    Ok(builder.build())
}

fn dissemination(builder: &mut ProgramBuilder, ranks: u32, rank: Rank, ports: u32) {
    let mut heard: Vec<OpId> = Vec::new();
    let mut weight = 1u64;
    while weight < u64::from(ranks) {
        let distances = || (1..=u64::from(ports)).map(|i| i * weight).take_while(|far| *far < u64::from(ranks));
        for far in distances() {
            builder.send(Rank((rank.0 + far as u32) % ranks), 0, Span::input(0, 0), &heard);
        }
        let hears = |far: u64| builder.recv(Rank((rank.0 + ranks - far as u32) % ranks), 0, Span::signal(), &[]);
        heard.extend(distances().map(hears).collect::<Vec<_>>());
        weight *= u64::from(ports) + 1;
    }
}
