//! The collectives that the command line knows, and which arguments each takes.

use clap::ValueEnum;
use outboard_plan::selection;

/// The collectives that have plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanCollective {
    /// Every rank ends with the blocks of all ranks
    Allgather,
    /// Every rank ends with the combination of all vectors
    Allreduce,
    /// Every rank has a block for every rank
    Alltoall,
    /// No rank leaves before all have entered
    Barrier,
    /// Every rank ends with the root's bytes
    Broadcast,
    /// Every rank ends with the combination of the vectors of ranks before it
    Exscan,
    /// The root ends with the blocks of all ranks
    Gather,
    /// The root ends with the combination of all vectors
    Reduce,
    /// Every rank ends with its block of the combination of all vectors
    ReduceScatter,
    /// Every rank ends with the combination of the vectors of ranks up to it
    Scan,
    /// Every rank ends with its block of the root's bytes
    Scatter,
}

/// The unit of `--size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    Nothing,
    /// The bytes of each block.
    Block,
    /// All bytes of the call.
    Whole,
}

impl PlanCollective {
    /// The collective under whose name the algorithm is chosen.
    pub(super) fn chosen_as(self) -> selection::Collective {
        if self.is_exclusive() {
            return selection::Collective::Scan;
        }
        self.name().parse().expect("plans are of collectives that algorithms are chosen for")
    }

    /// Whether a rank's result leaves out its own vector.
    pub(super) fn is_exclusive(self) -> bool {
        self == PlanCollective::Exscan
    }

    pub(super) fn counts(self) -> Counts {
        match self {
            PlanCollective::Barrier => Counts::Nothing,
            PlanCollective::ReduceScatter => Counts::Block,
            _ if self.reduces() || self == PlanCollective::Broadcast => Counts::Whole,
            _ => Counts::Block,
        }
    }

    /// Whether the collective has a root.
    pub(super) fn has_root(self) -> bool {
        matches!(
            self,
            PlanCollective::Broadcast | PlanCollective::Gather | PlanCollective::Reduce | PlanCollective::Scatter
        )
    }

    /// Whether the collective combines elements.
    pub(super) fn reduces(self) -> bool {
        use selection::Collective::{Allreduce, Reduce, ReduceScatter, Scan};
        matches!(self.chosen_as(), Allreduce | Reduce | ReduceScatter | Scan)
    }

    /// Name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().expect("every collective is shown").get_name().to_owned()
    }
}
