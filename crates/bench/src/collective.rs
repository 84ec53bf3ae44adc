//! The collectives that can be measured. The measuring program has its own table of them (programs/calls.c), which goes by
//! the same names.

use std::fmt;
use std::str::FromStr;

use crate::OptionError;

/// Bytes of the elements that reductions combine.
const ELEMENT_BYTES: u64 = 8;

/// What is measured, nonblocking. Roots are rank 0; reductions add 64-bit integers; what takes counts for every rank is given
/// equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Every rank contributes a block and receives all.
    Allgather,
    /// The same by counts and displacements.
    Allgatherv,
    /// Every rank has a block for every other one, all of one size.
    Alltoall,
    /// The same by counts and displacements.
    Alltoallv,
    /// Rank 0 contributes, all others receive.
    Broadcast,
    /// Rank 0 receives a block of every rank.
    Gather,
    /// The same by counts and displacements.
    Gatherv,
    /// Rank 0 has a block for every rank.
    Scatter,
    /// The same by counts and displacements.
    Scatterv,
    /// Rank 0 receives the sum of all ranks' vectors.
    Reduce,
    /// Every rank receives it.
    Allreduce,
    /// Every rank receives a part of it, all of one size (`MPI_Reduce_scatter_block`).
    ReduceScatter,
    /// Every rank receives the sum of the vectors of all ranks up to itself.
    Scan,
    /// No rank leaves before all have entered.
    Barrier,
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Allgather,
        Self::Allgatherv,
        Self::Alltoall,
        Self::Alltoallv,
        Self::Broadcast,
        Self::Gather,
        Self::Gatherv,
        Self::Scatter,
        Self::Scatterv,
        Self::Reduce,
        Self::Allreduce,
        Self::ReduceScatter,
        Self::Scan,
        Self::Barrier,
    ];

    /// Name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allgather => "allgather",
            Self::Allgatherv => "allgatherv",
            Self::Alltoall => "alltoall",
            Self::Alltoallv => "alltoallv",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
            Self::Gatherv => "gatherv",
            Self::Scatter => "scatter",
            Self::Scatterv => "scatterv",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::Scan => "scan",
            Self::Barrier => "barrier",
        }
    }

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
            | Self::Barrier => 1,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Collective {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        Self::ALL
            .into_iter()
            .find(|collective| collective.name() == text)
            .ok_or_else(|| OptionError::Collective { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_go_by_name() {
        for collective in Collective::ALL {
            assert_eq!(collective.to_string().parse(), Ok(collective));
        }
        assert_eq!("gossip".parse::<Collective>(), Err(OptionError::Collective { text: "gossip".into() }));
    }
}
