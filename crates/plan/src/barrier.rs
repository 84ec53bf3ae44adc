//! Barrier: no rank leaves before all ranks have called.
//!
//! No bytes move. A rank sends an empty span of `Input`. That message, unlike a signal, requires that the rank has
//! called. A signal could come from an engine that stands in for an absent rank, and would let the other ranks leave.
//!
//! Invariant: a send follows all receives of its rank in earlier rounds.

use crate::algorithm::Algorithm;
use crate::builder::ProgramBuilder;
use crate::partition::{multiples, powers};
use crate::program::{OpId, Program, Rank, Span};

/// The program of `rank` in a barrier of `ranks` ranks.
pub(crate) fn program(algorithm: Algorithm, ranks: u32, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank, ranks);
    match algorithm {
        Algorithm::Dissemination { ports } => dissemination(&mut builder, ranks, rank, ports),
        other => unreachable!("{other:?} is no algorithm of a barrier"),
    }
    builder.build()
}

fn dissemination(builder: &mut ProgramBuilder, ranks: u32, rank: Rank, ports: u32) {
    let mut heard: Vec<OpId> = Vec::new();
    for weight in powers(u64::from(ports) + 1, ranks.into()) {
        for far in multiples(weight, ports, ranks) {
            builder.send(Rank((rank.0 + far) % ranks), 0, Span::input(0, 0), &heard);
        }
        let hears = |far| builder.recv(Rank((rank.0 + ranks - far) % ranks), 0, Span::signal(), &[]);
        heard.extend(multiples(weight, ports, ranks).map(hears));
    }
}
