//! The actual programs of a call, for those who play them.

use super::algorithm::{Choice, Collective};
use super::formula::Case;
use crate::allgather::Extents;
use crate::alltoall::Blocks;
use crate::builder::ProgramBuilder;
use crate::combine::Vector;
use crate::program::{Program, Rank, Span};
use crate::topology::Topology;
use crate::{allgather, allreduce, alltoall, broadcast, gather, reduce, reduce_scatter, scan, scatter};

/// Messages between two ranks of what is pulled: a block, that there is one, that it may be sent.
const BLOCK: u32 = 0;
const ANNOUNCED: u32 = 1;
const ASKED: u32 = 2;

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
            _ if choice.pulls() => Some(self.pulled(&topology, rank)),
            Choice::Alltoall(algorithm) => alltoall(algorithm, ranks, rank, &Blocks::even(ranks, bytes)?).ok(),
            Choice::Gather(algorithm) => gather(algorithm, ranks, root, rank, bytes).ok(),
            Choice::Scatter(algorithm) => scatter(algorithm, ranks, root, rank, bytes).ok(),
            // Behind the ready barrier all have called: what a plan would tell them is known.
            Choice::Barrier(_) => Some(ProgramBuilder::new(rank, ranks).build()),
            Choice::Reduce(algorithm) => reduce(algorithm, &topology, root, rank, vector).ok(),
            Choice::Allreduce(algorithm) => allreduce(algorithm, &topology, rank, vector).ok(),
            Choice::ReduceScatter(algorithm) => reduce_scatter(algorithm, &topology, rank, &self.blocks()?).ok(),
            Choice::Scan(algorithm) => scan(algorithm, ranks, rank, vector).ok(),
        };
        (0..ranks).map(|rank| program(Rank(rank))).collect()
    }

    /// The bytes in as many blocks as ranks, as even as can be.
    fn blocks(&self) -> Option<Extents> {
        let (each, more) = (self.bytes / u64::from(self.ranks), self.bytes % u64::from(self.ranks));
        Extents::uneven((0..u64::from(self.ranks)).map(|rank| each + u64::from(rank < more)))
    }

    /// The bytes that `source` has for `destination` in an exchange.
    fn block(&self, source: Rank, destination: Rank) -> u64 {
        match self.collective {
            Collective::Gather if destination != Rank(0) => 0,
            Collective::Scatter if source != Rank(0) => 0,
            _ => self.bytes,
        }
    }

    /// What is pulled (SP-5), with all that goes before: a rank announces what it has to the first rank of each host, in the
    /// place of the service process there, which asks it once for all.
    fn pulled(&self, topology: &Topology, rank: Rank) -> Program {
        let all = || (0..self.ranks).map(Rank);
        let here = topology.host_of(rank);
        let signal = Span::signal();
        let mut builder = ProgramBuilder::new(rank, self.ranks);
        for from in all().filter(|from| *from != rank && self.block(*from, rank) > 0) {
            builder.recv(from, BLOCK, Span::output(u64::from(from.0) * self.bytes, self.bytes), &[]);
        }
        for host in 0..topology.hosts() {
            let there = topology.ranks_of(host);
            let to = there.iter().filter(|to| **to != rank && self.block(rank, **to) > 0);
            let asked = (host != here && to.clone().next().is_some()).then(|| {
                builder.send(there[0], ANNOUNCED, signal, &[]);
                builder.recv(there[0], ASKED, signal, &[])
            });
            for to in to {
                builder.send(*to, BLOCK, Span::input(u64::from(to.0) * self.bytes, self.bytes), asked.as_slice());
            }
        }
        if self.block(rank, rank) > 0 {
            let at = u64::from(rank.0) * self.bytes;
            builder.copy(Span::input(at, self.bytes), Span::output(at, self.bytes), &[]);
        }
        let locals = topology.ranks_of(here);
        let far = |source: &Rank| locals[0] == rank && topology.host_of(*source) != here;
        let wanted = |source: &Rank| locals.iter().any(|local| self.block(*source, *local) > 0);
        for source in all().filter(far).filter(wanted) {
            let announced = builder.recv(source, ANNOUNCED, signal, &[]);
            builder.send(source, ASKED, signal, &[announced]);
        }
        builder.build()
    }
}
