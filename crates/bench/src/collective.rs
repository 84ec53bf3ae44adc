//! The collectives that can be measured. The measuring program has its own table of them (programs/calls.c), with the
//! same names.

use crate::named::named;

/// Bytes of the elements that reductions combine.
const ELEMENT_BYTES: u64 = 8;

named! {
    "the name of a collective that is measured, such as allgather",
    /// What is measured, nonblocking. Roots are rank 0; reductions add 64-bit integers; what takes counts for every
    /// rank is given equal ones.
    Collective {
        /// Every rank contributes a block and receives all.
        Allgather = "allgather",
        /// The same by counts and displacements.
        Allgatherv = "allgatherv",
        /// Every rank has a block for every other one, all of one size.
        Alltoall = "alltoall",
        /// The same by counts and displacements.
        Alltoallv = "alltoallv",
        /// Rank 0 contributes, all others receive.
        Broadcast = "broadcast",
        /// Rank 0 receives a block of every rank.
        Gather = "gather",
        /// The same by counts and displacements.
        Gatherv = "gatherv",
        /// Rank 0 has a block for every rank.
        Scatter = "scatter",
        /// The same by counts and displacements.
        Scatterv = "scatterv",
        /// Rank 0 receives the sum of all ranks' vectors.
        Reduce = "reduce",
        /// Every rank receives it.
        Allreduce = "allreduce",
        /// Every rank receives a part of it, all of one size (`MPI_Reduce_scatter_block`).
        ReduceScatter = "reduce-scatter",
        /// Every rank receives the sum of the vectors of all ranks up to itself.
        Scan = "scan",
        /// No rank leaves before all have entered.
        Barrier = "barrier",
        /// No collective, but called as one: a tagged message of rank 0 to the last rank, and back. Batches tell half
        /// of the round trip.
        PingPong = "ping-pong",
    }
}

impl Collective {
    /// Whether calls of it move bytes of the program.
    pub fn has_bytes(self) -> bool {
        self != Self::Barrier
    }

    /// What the bytes of a call among `ranks` ranks must be a multiple of.
    pub(crate) fn bytes_multiple(self, ranks: u32) -> u64 {
        match self {
            Self::Reduce | Self::Allreduce | Self::Scan => ELEMENT_BYTES,
            Self::ReduceScatter => ELEMENT_BYTES * u64::from(ranks),
            Self::Allgather
            | Self::Allgatherv
            | Self::Alltoall
            | Self::Alltoallv
            | Self::Broadcast
            | Self::Gather
            | Self::Gatherv
            | Self::Scatter
            | Self::Scatterv
            | Self::Barrier
            | Self::PingPong => 1,
        }
    }

    /// Messages of a call, one after the other, of which figures tell one.
    pub(crate) fn messages_in_turn(self) -> u32 {
        if self == Self::PingPong { 2 } else { 1 }
    }
}
