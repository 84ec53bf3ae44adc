//! Allgather and Allgatherv: every rank ends with the blocks of all ranks, in rank order.
//!
//! `Output` holds the blocks of all ranks one after another, at the places in [`Extents`]. Blocks have one size, or
//! sizes that all ranks know. A rank contributes `Input`, or, in place, its own block of `Output`. MPI requires the
//! same choice on all ranks; the plan does not depend on that.
//!
//! Invariants: receives of message data follow nothing, so an engine posts them all at once (MC-4). Each block is
//! written once on every rank, straight from the network except with `rotated-bruck`. `Input` is only read. Time and
//! memory of a program grow with `ranks`, for a leader with `ranks` times the ranks of its host, and do not depend on
//! byte counts.

mod exchange;
mod hierarchical;

pub use outboard_call::Extents;

use crate::algorithm::Algorithm;
use crate::builder::ProgramBuilder;
use crate::partition::{chain_of, chain_ranks};
use crate::program::{OpId, Program, Rank, Span};
use crate::topology::Topology;

/// The program of `rank` in an allgather of these blocks, among all ranks or among `leaders` leaders of each host.
///
/// Empty blocks do not move. If all are empty, the program is empty. A group of one copies its block, or in place does
/// nothing.
pub(crate) fn program(
    leaders: Option<u32>,
    algorithm: Algorithm,
    topology: &Topology,
    rank: Rank,
    extents: &Extents,
    in_place: bool,
) -> Program {
    let ranks = extents.ranks();
    let mut builder = ProgramBuilder::new(rank, ranks);
    let blocks = GatheredBlocks { extents, ranks, rank: rank.0, in_place };
    builder.buffers(blocks.input_bytes(), extents.total(), 0);
    let effective = if leaders.is_none() { algorithm.effective_for(ranks) } else { algorithm };
    if let Algorithm::Multicast { chains, subgroups } = effective {
        builder.multicast_layout(chains, subgroups);
    }
    if extents.total() > 0 {
        match (leaders, effective) {
            (Some(leaders), between) => hierarchical::hierarchical(&mut builder, blocks, topology, leaders, between),
            (None, Algorithm::Ring { .. }) => ring(&mut builder, blocks),
            (None, Algorithm::NeighbourExchange) => exchange::neighbour(&mut builder, blocks),
            (None, Algorithm::StandardExchange { ports }) => exchange::standard(&mut builder, blocks, ports),
            (None, Algorithm::Bruck { ports }) => exchange::bruck(&mut builder, blocks, ports),
            (None, Algorithm::RotatedBruck { ports }) => exchange::rotated_bruck(&mut builder, blocks, ports),
            (None, Algorithm::Linear) => linear(&mut builder, blocks),
            (None, Algorithm::Multicast { chains, .. }) => multicast(&mut builder, blocks, chains),
            (None, other) => unreachable!("{other:?} is no algorithm of an allgather"),
        }
    }
    builder.build()
}

/// The layout of the blocks on one rank.
#[derive(Clone, Copy)]
struct GatheredBlocks<'a> {
    extents: &'a Extents,
    ranks: u32,
    rank: u32,
    in_place: bool,
}

impl GatheredBlocks<'_> {
    fn of(self, q: u32) -> Span {
        self.extents.block(Rank(q))
    }

    /// The span of this rank's own block before the call.
    fn contribution(self) -> Span {
        if self.in_place { self.of(self.rank) } else { Span::input(0, self.of(self.rank).len) }
    }

    fn input_bytes(self) -> u64 {
        if self.in_place { 0 } else { self.of(self.rank).len }
    }

    /// The rank `steps <= ranks` to the left, round the ring.
    fn left(self, steps: u32) -> u32 {
        (self.rank + self.ranks - steps) % self.ranks
    }

    /// The rank `steps < ranks` to the right, round the ring.
    fn right(self, steps: u32) -> u32 {
        (self.rank + steps) % self.ranks
    }

    /// Appends the copy of this rank's own block to its place, unless it is there already.
    fn copy_own(self, builder: &mut ProgramBuilder) -> Option<OpId> {
        let moves = !self.in_place && !self.contribution().is_empty();
        moves.then(|| builder.copy(self.contribution(), self.of(self.rank), &[]))
    }
}

fn ring(builder: &mut ProgramBuilder, blocks: GatheredBlocks<'_>) {
    let rounds = blocks.ranks - 1;
    let from = Rank(blocks.left(1));
    let mut receive = |round| {
        let block = blocks.of(blocks.left(round + 1));
        (!block.is_empty()).then(|| builder.recv(from, round, block, &[]))
    };
    let received: Vec<Option<OpId>> = (0..rounds).map(&mut receive).collect();
    blocks.copy_own(builder);
    let to = Rank(blocks.right(1));
    for round in (0..rounds).filter(|round| !blocks.of(blocks.left(*round)).is_empty()) {
        if round == 0 {
            builder.send(to, round, blocks.contribution(), &[]);
        } else {
            let arrived = received[round as usize - 1].expect("what is not empty was received");
            builder.send(to, round, blocks.of(blocks.left(round)), &[arrived]);
        }
    }
}

/// Every rank sends to all others, the next one first.
fn linear(builder: &mut ProgramBuilder, blocks: GatheredBlocks<'_>) {
    for from in (1..blocks.ranks).map(|steps| blocks.left(steps)).filter(|from| !blocks.of(*from).is_empty()) {
        builder.recv(Rank(from), 0, blocks.of(from), &[]);
    }
    blocks.copy_own(builder);
    if !blocks.contribution().is_empty() {
        for to in (1..blocks.ranks).map(|steps| blocks.right(steps)) {
            builder.send(Rank(to), 0, blocks.contribution(), &[]);
        }
    }
}

fn multicast(builder: &mut ProgramBuilder, blocks: GatheredBlocks<'_>, chains: u32) {
    for root in (0..blocks.ranks).filter(|root| *root != blocks.rank && !blocks.of(*root).is_empty()) {
        builder.multicast_recv(Rank(root), blocks.of(root));
    }
    blocks.copy_own(builder);
    if blocks.ranks == 1 || blocks.contribution().is_empty() {
        return;
    }
    let chain = chain_of(Rank(blocks.rank), blocks.ranks, chains);
    let turns = chain_ranks(blocks.ranks, chains, chain);
    // A rank without bytes takes no turn, because the rank may have completed before its signal arrives.
    let takes_turn = |rank: &u32| !blocks.of(*rank).is_empty();
    let before = (turns.start..blocks.rank).rev().find(takes_turn);
    let activated: Vec<OpId> =
        before.map(|before| builder.recv(Rank(before), 0, Span::signal(), &[])).into_iter().collect();
    let sent = builder.multicast(blocks.contribution(), &activated);
    if let Some(next) = (blocks.rank + 1..turns.end).find(takes_turn) {
        builder.send(Rank(next), 0, Span::signal(), &[sent]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::WHOLE;
    use crate::program::{MAX_RANKS, Op};

    const MULTICAST: Algorithm = Algorithm::Multicast { chains: 1, subgroups: 1 };
    const RING: Algorithm = Algorithm::Ring { segment: WHOLE };

    fn even(algorithm: Algorithm, ranks: u32, rank: u32, bytes: u64, in_place: bool) -> Program {
        let extents = Extents::even(ranks, bytes).unwrap();
        program(None, algorithm, &Topology::flat(ranks), Rank(rank), &extents, in_place)
    }

    #[test]
    fn group_of_one_only_copies() {
        for algorithm in [RING, MULTICAST] {
            let ops = |in_place| even(algorithm, 1, 0, 8, in_place).steps;
            let copy = Op::Copy { from: Span::input(0, 8), to: Span::output(0, 8) };
            assert_eq!(ops(false).iter().map(|step| step.op).collect::<Vec<_>>(), [copy]);
            assert!(ops(true).is_empty());
        }
    }

    /// The largest group with blocks far beyond memory: steps and dependencies grow with the ranks alone.
    #[test]
    fn program_size_is_linear_in_the_ranks() {
        for algorithm in [RING, Algorithm::Multicast { chains: 100, subgroups: 4 }] {
            for rank in [0, 1, MAX_RANKS - 1] {
                let program = even(algorithm, MAX_RANKS, rank, u64::MAX / 65_535, false);
                assert!(program.steps.len() <= 2 * MAX_RANKS as usize + 1);
                assert!(program.steps.iter().all(|step| step.after.len() <= 1));
            }
        }
    }

    /// MC-8: a rank sends one block with multicast, and all blocks but one with the ring.
    #[test]
    fn sent_bytes_are_as_documented() {
        let sent = |algorithm| {
            let program = even(algorithm, 10, 6, 1000, false);
            let sends = program.steps.iter().map(|step| match step.op {
                Op::Send { span, .. } | Op::Multicast { span } => span.len,
                Op::Recv { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => 0,
            });
            sends.sum::<u64>()
        };
        assert_eq!(sent(RING), 9000);
        assert_eq!(sent(Algorithm::Multicast { chains: 3, subgroups: 1 }), 1000);
    }
}
