//! The actual programs of a call, for those who play them.

use super::algorithm::Choice;
use super::formula::Case;
use crate::allgather::Extents;
use crate::builder::ProgramBuilder;
use crate::combine::Vector;
use crate::program::{Program, Rank};
use crate::topology::Topology;
use crate::{allgather, allreduce, broadcast, reduce, reduce_scatter, scan};

impl Case {
    /// The host of a rank where ranks lie on hosts one after another.
    #[must_use]
    pub fn host_of(&self, rank: Rank) -> u32 {
        rank.0 / self.ranks.div_ceil(self.hosts.clamp(1, self.ranks.max(1))).max(1)
    }

    /// The programs of all ranks, in rank order, from or to rank 0 where there is a root, in elements of a byte; `None` where
    /// there are none, because the algorithm refuses such a call.
    #[must_use]
    pub fn programs(&self, choice: Choice) -> Option<Vec<Program>> {
        let Case { ranks, bytes, .. } = *self;
        let topology = Topology::of_hosts((0..ranks).map(|rank| self.host_of(Rank(rank))))?;
        let vector = Vector { count: bytes, element_bytes: 1 };
        let root = Rank(0);
        let program = |rank| match choice {
            Choice::Allgather(algorithm) => allgather(algorithm, &topology, rank, bytes, false).ok(),
            Choice::Broadcast(algorithm) => broadcast(algorithm, ranks, root, rank, bytes).ok(),
            // Behind the ready barrier all have called: what a plan would tell them is known.
            Choice::Barrier(_) => Some(ProgramBuilder::new(rank, ranks).build()),
            Choice::Reduce(algorithm) => reduce(algorithm, ranks, root, rank, vector).ok(),
            Choice::Allreduce(algorithm) => allreduce(algorithm, ranks, rank, vector).ok(),
            Choice::ReduceScatter(algorithm) => reduce_scatter(algorithm, rank, &self.blocks()?).ok(),
            Choice::Scan(algorithm) => scan(algorithm, ranks, rank, vector).ok(),
        };
        (0..ranks).map(|rank| program(Rank(rank))).collect()
    }

    /// The bytes in as many blocks as ranks, as even as can be.
    fn blocks(&self) -> Option<Extents> {
        let (each, more) = (self.bytes / u64::from(self.ranks), self.bytes % u64::from(self.ranks));
        Extents::uneven((0..u64::from(self.ranks)).map(|rank| each + u64::from(rank < more)))
    }
}
