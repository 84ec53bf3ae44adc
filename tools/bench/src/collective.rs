//! The collectives that can be measured. The measuring program has its own table of them (programs/calls.c), with the
//! same names.

use crate::named::named;

/// Bytes of the elements that reductions combine.
const ELEMENT_BYTES: u64 = 8;

named! {
    "the name of a collective that is measured, such as allgather",
    /// Collectives that are measured, in nonblocking form. Roots are rank 0; reductions add 64-bit integers. Calls with
    /// counts for every rank have equal counts.
    Collective {
        /// Every rank contributes a block and receives all.
        Allgather = "allgather",
        /// Allgather by counts and displacements.
        Allgatherv = "allgatherv",
        /// Every rank has a block for every other one, all of equal size.
        Alltoall = "alltoall",
        /// Alltoall by counts and displacements.
        Alltoallv = "alltoallv",
        /// Rank 0 contributes, all others receive.
        Broadcast = "broadcast",
        /// Rank 0 receives a block of every rank.
        Gather = "gather",
        /// Gather by counts and displacements.
        Gatherv = "gatherv",
        /// Rank 0 has a block for every rank.
        Scatter = "scatter",
        /// Scatter by counts and displacements.
        Scatterv = "scatterv",
        /// Rank 0 receives the sum of all ranks' vectors.
        Reduce = "reduce",
        /// Every rank receives the sum of all ranks' vectors.
        Allreduce = "allreduce",
        /// Every rank receives a part of the sum, all parts of equal size (`MPI_Reduce_scatter_block`).
        ReduceScatter = "reduce-scatter",
        /// Every rank receives the sum of the vectors of all ranks up to itself.
        Scan = "scan",
        /// No rank leaves before all have entered.
        Barrier = "barrier",
        /// Not a collective, but called as one: a tagged message from rank 0 to the last rank, and back. Batches report
        /// half of the round trip.
        PingPong = "ping-pong",
    }
}

impl Collective {
    /// Whether calls of this collective move bytes of the program.
    pub fn has_bytes(self) -> bool {
        self != Self::Barrier
    }

    /// The bytes of a call among `ranks` ranks are a multiple of this.
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

    /// Messages of a call that follow one another; figures are for one message.
    pub(crate) fn messages_in_turn(self) -> u32 {
        if self == Self::PingPong { 2 } else { 1 }
    }
}
