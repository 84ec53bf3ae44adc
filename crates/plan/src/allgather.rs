//! Allgather and Allgatherv: every rank ends with the blocks of all ranks, in rank order.
//!
//! `Output` holds the blocks one after another, block `q` from rank `q`, as [`Extents`] says: all of one size, or each
//! of its own, which all ranks know. A rank contributes `Input`, or, in place, its own block of `Output`, where it
//! already lies; MPI asks all ranks for the same choice, the plan does not depend on it.
//!
//! Invariants: receives of message data follow nothing, so an engine posts them all at once (MC-4); each block is written
//! once on every rank, straight from the network; `Input` is only read. A rank's program takes time and memory in the
//! order of `ranks`, for a leader times the ranks of its host, whatever the byte counts.

mod exchange;
mod hierarchical;

pub use outboard_call::Extents;
use thiserror::Error;

use crate::algorithm::AllgatherAlgorithm;
use crate::builder::ProgramBuilder;
use crate::partition::{chain_of, chain_ranks};
use crate::program::{MAX_RANKS, OpId, Program, Rank, Span};
use crate::topology::Topology;
use crate::verify::{Contract, Piece};

/// Why there is no such allgather.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AllgatherError {
    /// A group of 0, or of more than [`MAX_RANKS`].
    #[error("an allgather of {ranks} ranks: a group has 1 to {MAX_RANKS} ranks")]
    Ranks {
        /// The ranks asked for.
        ranks: u32,
    },
    /// The rank is not in the group.
    #[error("an allgather program for {rank} of {ranks}: ranks count from 0")]
    Rank {
        /// The rank asked for.
        rank: Rank,
        /// The ranks of the group.
        ranks: u32,
    },
    /// The topology is that of another group.
    #[error("a topology of {topology} ranks for the blocks of {ranks}: describe the ranks of the group")]
    Topology {
        /// Ranks of the topology.
        topology: u32,
        /// The ranks of the group.
        ranks: u32,
    },
    /// More chains than ranks.
    #[error("{chains} chains for {ranks} ranks: choose up to {ranks} (`chains` of multicast)")]
    Chains {
        /// The chains asked for.
        chains: u32,
        /// The ranks of the group.
        ranks: u32,
    },
    /// No multicast address to send to.
    #[error("0 subgroups: choose at least 1 (`subgroups` of multicast)")]
    Subgroups,
    /// No message at a time.
    #[error("0 ports: choose at least 1 (`ports` of standard-exchange and bruck)")]
    Ports,
    /// Nobody to exchange blocks with other hosts.
    #[error("0 leaders: choose at least 1 (`leaders` of hierarchical)")]
    Leaders,
    /// The output cannot be addressed.
    #[error("the blocks of {ranks} ranks do not fit a 64-bit address: lower the byte counts")]
    Bytes {
        /// The ranks of the group.
        ranks: u32,
    },
}

/// What `rank` does in an allgather of blocks of one size among the ranks of `topology`; otherwise as [`allgatherv`].
///
/// # Errors
/// When an argument is out of range; see [`AllgatherError`].
pub fn allgather(
    algorithm: AllgatherAlgorithm,
    topology: &Topology,
    rank: Rank,
    bytes_per_rank: u64,
    in_place: bool,
) -> Result<Program, AllgatherError> {
    let ranks = topology.ranks();
    let extents = Extents::even(ranks, bytes_per_rank).ok_or(AllgatherError::Bytes { ranks })?;
    allgatherv(algorithm, topology, rank, &extents, in_place)
}

/// What `rank` does in an allgather of these blocks. Only [`AllgatherAlgorithm::Hierarchical`] asks for hosts, others
/// for the number of ranks alone.
///
/// Empty blocks do not move: where all are empty the program is. A group of one copies its block, or in place does
/// nothing.
///
/// # Errors
/// When an argument is out of range; see [`AllgatherError`].
pub fn allgatherv(
    algorithm: AllgatherAlgorithm,
    topology: &Topology,
    rank: Rank,
    extents: &Extents,
    in_place: bool,
) -> Result<Program, AllgatherError> {
    let ranks = extents.ranks();
    check(algorithm, topology, ranks, rank)?;
    let algorithm = algorithm.carried_out(ranks);
    let mut builder = ProgramBuilder::new(rank, ranks);
    let blocks = Blocks { extents, ranks, rank: rank.0, in_place };
    builder.buffers(blocks.input_bytes(), extents.total(), 0);
    if let AllgatherAlgorithm::Multicast { chains, subgroups } = algorithm {
        builder.multicast_layout(chains, subgroups);
    }
    if extents.total() > 0 {
        match algorithm {
            AllgatherAlgorithm::Ring => ring(&mut builder, blocks),
            AllgatherAlgorithm::NeighbourExchange => exchange::neighbour(&mut builder, blocks),
            AllgatherAlgorithm::StandardExchange { ports } => exchange::standard(&mut builder, blocks, ports),
            AllgatherAlgorithm::Bruck { ports } => exchange::bruck(&mut builder, blocks, ports),
            AllgatherAlgorithm::Hierarchical { leaders, between } => {
                hierarchical::hierarchical(&mut builder, blocks, topology, leaders, between.into())?;
            }
            AllgatherAlgorithm::Multicast { chains, .. } => multicast(&mut builder, blocks, chains),
        }
    }
    Ok(builder.build())
}

/// What an allgather of these blocks promises to `rank`, for [`crate::verify()`].
///
/// # Panics
/// When there is no such rank.
pub fn contract(extents: &Extents, rank: Rank, in_place: bool) -> Contract {
    let blocks = Blocks { extents, ranks: extents.ranks(), rank: rank.0, in_place };
    let block = |q| Piece { span: blocks.of(q), source: Rank(q), from: 0 };
    Contract {
        input_bytes: blocks.input_bytes(),
        output_bytes: extents.total(),
        before: vec![Piece { span: blocks.contribution(), source: rank, from: 0 }],
        after: (0..blocks.ranks).map(block).collect(),
    }
}

fn check(algorithm: AllgatherAlgorithm, topology: &Topology, ranks: u32, rank: Rank) -> Result<(), AllgatherError> {
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(AllgatherError::Ranks { ranks });
    }
    if rank.0 >= ranks {
        return Err(AllgatherError::Rank { rank, ranks });
    }
    if topology.ranks() != ranks {
        return Err(AllgatherError::Topology { topology: topology.ranks(), ranks });
    }
    match algorithm {
        AllgatherAlgorithm::Multicast { chains, .. } if chains > ranks => Err(AllgatherError::Chains { chains, ranks }),
        AllgatherAlgorithm::Multicast { subgroups: 0, .. } => Err(AllgatherError::Subgroups),
        AllgatherAlgorithm::Hierarchical { leaders: 0, .. } => Err(AllgatherError::Leaders),
        AllgatherAlgorithm::Hierarchical { between, .. } => {
            check(between.into(), &Topology::flat(topology.hosts()), topology.hosts(), Rank(0))
        }
        AllgatherAlgorithm::StandardExchange { ports: 0 } | AllgatherAlgorithm::Bruck { ports: 0 } => {
            Err(AllgatherError::Ports)
        }
        AllgatherAlgorithm::Ring
        | AllgatherAlgorithm::NeighbourExchange
        | AllgatherAlgorithm::StandardExchange { .. }
        | AllgatherAlgorithm::Bruck { .. }
        | AllgatherAlgorithm::Multicast { .. } => Ok(()),
    }
}

/// Where the blocks lie on one rank.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    extents: &'a Extents,
    ranks: u32,
    rank: u32,
    in_place: bool,
}

impl Blocks<'_> {
    /// Block `q` of `Output`.
    fn of(self, q: u32) -> Span {
        self.extents.block(Rank(q))
    }

    /// Where this rank's own block lies before the call.
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

    /// The step that puts this rank's own block in its place, where it is not there yet.
    fn copy_own(self, builder: &mut ProgramBuilder) -> Option<OpId> {
        let moves = !self.in_place && !self.contribution().is_empty();
        moves.then(|| builder.copy(self.contribution(), self.of(self.rank), &[]))
    }
}

fn ring(builder: &mut ProgramBuilder, blocks: Blocks<'_>) {
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

fn multicast(builder: &mut ProgramBuilder, blocks: Blocks<'_>, chains: u32) {
    for root in (0..blocks.ranks).filter(|root| *root != blocks.rank && !blocks.of(*root).is_empty()) {
        builder.multicast_recv(Rank(root), blocks.of(root));
    }
    blocks.copy_own(builder);
    if blocks.ranks == 1 || blocks.contribution().is_empty() {
        return;
    }
    let chain = chain_of(Rank(blocks.rank), blocks.ranks, chains);
    let turns = chain_ranks(blocks.ranks, chains, chain);
    // Who has nothing to multicast takes no turn: it would have ended before its signal has arrived.
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
    use crate::algorithm::LeaderExchange;
    use crate::program::Op;

    const MULTICAST: AllgatherAlgorithm = AllgatherAlgorithm::Multicast { chains: 1, subgroups: 1 };
    const RING: AllgatherAlgorithm = AllgatherAlgorithm::Ring;

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |algorithm, ranks, rank, bytes| {
            allgather(algorithm, &Topology::flat(ranks), Rank(rank), bytes, false).unwrap_err()
        };
        let multicast = |chains, subgroups| AllgatherAlgorithm::Multicast { chains, subgroups };
        assert_eq!(refused(RING, 0, 0, 1), AllgatherError::Ranks { ranks: 0 });
        assert_eq!(refused(RING, 65_536, 0, 1), AllgatherError::Ranks { ranks: 65_536 });
        assert_eq!(refused(RING, 3, 3, 1), AllgatherError::Rank { rank: Rank(3), ranks: 3 });
        assert_eq!(refused(multicast(4, 1), 3, 0, 1), AllgatherError::Chains { chains: 4, ranks: 3 });
        assert_eq!(refused(multicast(1, 0), 3, 0, 1), AllgatherError::Subgroups);
        assert_eq!(refused(AllgatherAlgorithm::Bruck { ports: 0 }, 3, 0, 1), AllgatherError::Ports);
        let hierarchical = |leaders, between| AllgatherAlgorithm::Hierarchical { leaders, between };
        assert_eq!(refused(hierarchical(0, LeaderExchange::Ring), 3, 0, 1), AllgatherError::Leaders);
        assert_eq!(refused(hierarchical(1, LeaderExchange::Bruck { ports: 0 }), 3, 0, 1), AllgatherError::Ports);
        let stranger = allgatherv(RING, &Topology::flat(4), Rank(0), &Extents::even(3, 1).unwrap(), false);
        assert_eq!(stranger, Err(AllgatherError::Topology { topology: 4, ranks: 3 }));
        assert_eq!(refused(RING, 3, 0, u64::MAX / 3 + 1), AllgatherError::Bytes { ranks: 3 });
        assert!(allgather(RING, &Topology::flat(3), Rank(2), u64::MAX / 3, false).is_ok());
        assert_eq!(
            AllgatherError::Rank { rank: Rank(3), ranks: 3 }.to_string(),
            "an allgather program for rank 3 of 3: ranks count from 0"
        );
    }

    #[test]
    fn nothing_to_move_is_an_empty_program() {
        for algorithm in [RING, AllgatherAlgorithm::Multicast { chains: 5, subgroups: 3 }] {
            let program = allgather(algorithm, &Topology::flat(9), Rank(4), 0, false).unwrap();
            assert!(program.steps.is_empty());
        }
    }

    #[test]
    fn group_of_one_only_copies() {
        for algorithm in [RING, MULTICAST] {
            let ops = |in_place| allgather(algorithm, &Topology::flat(1), Rank(0), 8, in_place).unwrap().steps;
            let copy = Op::Copy { from: Span::input(0, 8), to: Span::output(0, 8) };
            assert_eq!(ops(false).iter().map(|step| step.op).collect::<Vec<_>>(), [copy]);
            assert!(ops(true).is_empty());
        }
    }

    /// The largest group with blocks far beyond memory: steps and dependencies grow with the ranks alone.
    #[test]
    fn program_size_is_linear_in_the_ranks() {
        for algorithm in [RING, AllgatherAlgorithm::Multicast { chains: 100, subgroups: 4 }] {
            for rank in [0, 1, MAX_RANKS - 1] {
                let program =
                    allgather(algorithm, &Topology::flat(MAX_RANKS), Rank(rank), u64::MAX / 65_535, false).unwrap();
                assert!(program.steps.len() <= 2 * MAX_RANKS as usize + 1);
                assert!(program.steps.iter().all(|step| step.after.len() <= 1));
            }
        }
    }

    /// MC-8: bytes on the sending side are one block with multicast, all but one with the ring.
    #[test]
    fn sent_bytes_are_as_documented() {
        let sent = |algorithm| {
            let program = allgather(algorithm, &Topology::flat(10), Rank(6), 1000, false).unwrap();
            let sends = program.steps.iter().map(|step| match step.op {
                Op::Send { span, .. } | Op::Multicast { span } => span.len,
                Op::Recv { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => 0,
            });
            sends.sum::<u64>()
        };
        assert_eq!(sent(RING), 9000);
        assert_eq!(sent(AllgatherAlgorithm::Multicast { chains: 3, subgroups: 1 }), 1000);
    }
}
