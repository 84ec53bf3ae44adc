//! The collectives that an algorithm is chosen for, and what is chosen.
//!
//! Names are those of tuning files and command lines, so they never change meaning; those of algorithms are
//! [`crate::algorithm`]'s and [`crate::combine`]'s.

use std::fmt;
use std::str::FromStr;

use crate::algorithm::{
    AllgatherAlgorithm, AlltoallAlgorithm, BarrierAlgorithm, BroadcastAlgorithm, DEFAULT_SEGMENT, LeaderExchange,
    RootedAlgorithm,
};
use crate::combine::{
    AllreduceAlgorithm, LeaderAllreduce, LeaderReduce, LeaderReduceScatter, ReduceAlgorithm, ReduceScatterAlgorithm,
    ScanAlgorithm,
};

/// A collective that an algorithm is chosen for, and the bytes by which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// Allgather and allgatherv; bytes of the mean block.
    Allgather,
    /// Bytes of the root.
    Broadcast,
    /// Of blocks of one size; bytes of a block.
    Alltoall,
    /// Of blocks of one size; bytes of a block.
    Gather,
    /// Of blocks of one size; bytes of a block.
    Scatter,
    /// No bytes.
    Barrier,
    /// Bytes of the whole vector.
    Reduce,
    /// Bytes of the whole vector.
    Allreduce,
    /// Reduce-scatter with equal and with other blocks; bytes of the whole vector.
    ReduceScatter,
    /// Inclusive and exclusive; bytes of the whole vector.
    Scan,
}

/// An algorithm of a collective, with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// See [`AllgatherAlgorithm`].
    Allgather(AllgatherAlgorithm),
    /// See [`BroadcastAlgorithm`].
    Broadcast(BroadcastAlgorithm),
    /// See [`AlltoallAlgorithm`].
    Alltoall(AlltoallAlgorithm),
    /// See [`RootedAlgorithm`].
    Gather(RootedAlgorithm),
    /// See [`RootedAlgorithm`].
    Scatter(RootedAlgorithm),
    /// See [`BarrierAlgorithm`].
    Barrier(BarrierAlgorithm),
    /// See [`ReduceAlgorithm`].
    Reduce(ReduceAlgorithm),
    /// See [`AllreduceAlgorithm`].
    Allreduce(AllreduceAlgorithm),
    /// See [`ReduceScatterAlgorithm`].
    ReduceScatter(ReduceScatterAlgorithm),
    /// See [`ScanAlgorithm`].
    Scan(ScanAlgorithm),
}

const ALLGATHER: &[Choice] = &[
    Choice::Allgather(AllgatherAlgorithm::Multicast { chains: 0, subgroups: 1 }),
    Choice::Allgather(AllgatherAlgorithm::Hierarchical { leaders: 1, between: LeaderExchange::Ring }),
    Choice::Allgather(AllgatherAlgorithm::Hierarchical { leaders: 1, between: LeaderExchange::Bruck { ports: 1 } }),
    Choice::Allgather(AllgatherAlgorithm::Ring),
    Choice::Allgather(AllgatherAlgorithm::NeighbourExchange),
    Choice::Allgather(AllgatherAlgorithm::StandardExchange { ports: 1 }),
    Choice::Allgather(AllgatherAlgorithm::Bruck { ports: 1 }),
    Choice::Allgather(AllgatherAlgorithm::StandardExchange { ports: 3 }),
    Choice::Allgather(AllgatherAlgorithm::Bruck { ports: 3 }),
];
const BROADCAST: &[Choice] = &[
    Choice::Broadcast(BroadcastAlgorithm::Multicast { subgroups: 1 }),
    Choice::Broadcast(BroadcastAlgorithm::Binomial),
    Choice::Broadcast(BroadcastAlgorithm::KNomial { radix: 4 }),
    Choice::Broadcast(BroadcastAlgorithm::Chain { segment: 16 << 10 }),
    Choice::Broadcast(BroadcastAlgorithm::Chain { segment: 64 << 10 }),
    Choice::Broadcast(BroadcastAlgorithm::DoubleTree { segment: 16 << 10 }),
    Choice::Broadcast(BroadcastAlgorithm::DoubleTree { segment: 64 << 10 }),
    Choice::Broadcast(BroadcastAlgorithm::ScatterAllgather),
];
const ALLTOALL: &[Choice] = &[Choice::Alltoall(AlltoallAlgorithm::Pull), Choice::Alltoall(AlltoallAlgorithm::Bruck)];
const GATHER: &[Choice] = &[Choice::Gather(RootedAlgorithm::Linear), Choice::Gather(RootedAlgorithm::Binomial)];
const SCATTER: &[Choice] = &[Choice::Scatter(RootedAlgorithm::Linear), Choice::Scatter(RootedAlgorithm::Binomial)];
const BARRIER: &[Choice] = &[Choice::Barrier(BarrierAlgorithm::Dissemination { ports: 1 })];
const REDUCE: &[Choice] = &[
    Choice::Reduce(ReduceAlgorithm::Binomial),
    Choice::Reduce(ReduceAlgorithm::Halving),
    Choice::Reduce(ReduceAlgorithm::Chain { segment: 16 << 10 }),
    Choice::Reduce(ReduceAlgorithm::Chain { segment: 64 << 10 }),
    Choice::Reduce(ReduceAlgorithm::Hierarchical { between: LeaderReduce::Binomial }),
    Choice::Reduce(ReduceAlgorithm::Hierarchical { between: LeaderReduce::Halving }),
    Choice::Reduce(ReduceAlgorithm::Hierarchical { between: LeaderReduce::Chain { segment: 16 << 10 } }),
    Choice::Reduce(ReduceAlgorithm::Hierarchical { between: LeaderReduce::Chain { segment: 64 << 10 } }),
];
const ALLREDUCE: &[Choice] = &[
    Choice::Allreduce(AllreduceAlgorithm::RecursiveDoubling),
    Choice::Allreduce(AllreduceAlgorithm::Ring { segment: DEFAULT_SEGMENT }),
    Choice::Allreduce(AllreduceAlgorithm::Rabenseifner),
    Choice::Allreduce(AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::RecursiveDoubling }),
    Choice::Allreduce(AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Ring { segment: DEFAULT_SEGMENT } }),
    Choice::Allreduce(AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Rabenseifner }),
    Choice::Allreduce(AllreduceAlgorithm::ReduceMulticast { subgroups: 1 }),
    Choice::Allreduce(AllreduceAlgorithm::ReduceScatterMulticast { subgroups: 1, segment: DEFAULT_SEGMENT }),
];
/// Where two are equal the first is taken: in a ring every link has one source, which fills it better than several that take turns.
const REDUCE_SCATTER: &[Choice] = &[
    Choice::ReduceScatter(ReduceScatterAlgorithm::RecursiveHalving),
    Choice::ReduceScatter(ReduceScatterAlgorithm::Ring { segment: DEFAULT_SEGMENT }),
    Choice::ReduceScatter(ReduceScatterAlgorithm::Pairwise { segment: DEFAULT_SEGMENT }),
    Choice::ReduceScatter(ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::RecursiveHalving }),
    Choice::ReduceScatter(ReduceScatterAlgorithm::Hierarchical {
        between: LeaderReduceScatter::Ring { segment: DEFAULT_SEGMENT },
    }),
    Choice::ReduceScatter(ReduceScatterAlgorithm::Hierarchical {
        between: LeaderReduceScatter::Pairwise { segment: DEFAULT_SEGMENT },
    }),
];
const SCAN: &[Choice] = &[
    Choice::Scan(ScanAlgorithm::RecursiveDoubling),
    Choice::Scan(ScanAlgorithm::Chain { pieces: 1 }),
    Choice::Scan(ScanAlgorithm::Chain { pieces: 8 }),
    Choice::Scan(ScanAlgorithm::Chain { pieces: 64 }),
];

impl Collective {
    /// All of them.
    pub const ALL: [Collective; 10] = [
        Collective::Allgather,
        Collective::Broadcast,
        Collective::Alltoall,
        Collective::Gather,
        Collective::Scatter,
        Collective::Barrier,
        Collective::Reduce,
        Collective::Allreduce,
        Collective::ReduceScatter,
        Collective::Scan,
    ];

    /// In files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Collective::Allgather => "allgather",
            Collective::Broadcast => "broadcast",
            Collective::Alltoall => "alltoall",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::Barrier => "barrier",
            Collective::Reduce => "reduce",
            Collective::Allreduce => "allreduce",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::Scan => "scan",
        }
    }

    /// What the cost model chooses among, in the order in which ties are decided. People may set others.
    #[must_use]
    pub const fn choices(self) -> &'static [Choice] {
        match self {
            Collective::Allgather => ALLGATHER,
            Collective::Broadcast => BROADCAST,
            Collective::Alltoall => ALLTOALL,
            Collective::Gather => GATHER,
            Collective::Scatter => SCATTER,
            Collective::Barrier => BARRIER,
            Collective::Reduce => REDUCE,
            Collective::Allreduce => ALLREDUCE,
            Collective::ReduceScatter => REDUCE_SCATTER,
            Collective::Scan => SCAN,
        }
    }

    /// The algorithm that people call `text`, which can run.
    ///
    /// # Errors
    /// When the collective has none of that name and settings, or only one that plans know: why, in words.
    pub fn read(self, text: &str) -> Result<Choice, String> {
        fn read<A: FromStr<Err: fmt::Display>>(text: &str, choice: impl FnOnce(A) -> Choice) -> Result<Choice, String> {
            text.parse().map(choice).map_err(|error| error.to_string())
        }
        match self {
            Collective::Allgather => read(text, Choice::Allgather),
            Collective::Broadcast => read(text, Choice::Broadcast),
            Collective::Alltoall => read(text, Choice::Alltoall),
            Collective::Gather => read(text, Choice::Gather),
            Collective::Scatter => read(text, Choice::Scatter),
            Collective::Barrier => match read(text, Choice::Barrier)? {
                only if BARRIER.contains(&only) => Ok(only),
                _ => Err(format!(
                    "`{text}` is a plan alone: a barrier runs as the ready barrier among service processes, which is {}",
                    BARRIER[0]
                )),
            },
            Collective::Reduce => read(text, Choice::Reduce),
            Collective::Allreduce => read(text, Choice::Allreduce),
            Collective::ReduceScatter => read(text, Choice::ReduceScatter),
            Collective::Scan => read(text, Choice::Scan),
        }
    }
}

/// Collectives of which only the two ranks of a block know its size, so that all can agree on one way alone.
const UNCHOSEN: [&str; 3] = ["alltoallv", "gatherv", "scatterv"];

/// That no algorithm is chosen for what has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no algorithm is chosen for `{name}`{}; one is for {}",
    if UNCHOSEN.contains(&name.as_str()) { ", whose blocks are always pulled, since only two ranks know the size of each" } else { "" },
    Collective::ALL.map(Collective::name).join(", ")
)]
pub struct UnknownCollective {
    /// What was given.
    pub name: String,
}

impl FromStr for Collective {
    type Err = UnknownCollective;

    fn from_str(name: &str) -> Result<Self, UnknownCollective> {
        let found = Collective::ALL.into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| UnknownCollective { name: name.to_owned() })
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Choice {
    /// Whether blocks are announced and pulled, without a barrier, so that nobody waits for a rank that it has no block
    /// with (SP-5). All others begin behind the ready barrier (MC-4).
    #[must_use]
    pub const fn pulls(self) -> bool {
        matches!(
            self,
            Choice::Alltoall(AlltoallAlgorithm::Pull)
                | Choice::Gather(RootedAlgorithm::Linear)
                | Choice::Scatter(RootedAlgorithm::Linear)
        )
    }

    /// What carries out a call whose blocks each rank may lay anywhere, such as an allgatherv, where this is chosen: messages of
    /// several blocks need them side by side, so allgathers that send such go round a ring.
    #[must_use]
    pub const fn block_by_block(self) -> Choice {
        match self {
            Choice::Allgather(AllgatherAlgorithm::Ring | AllgatherAlgorithm::Multicast { .. }) => self,
            Choice::Allgather(_) => Choice::Allgather(AllgatherAlgorithm::Ring),
            other => other,
        }
    }

    /// Whether it multicasts.
    #[must_use]
    pub const fn multicasts(self) -> bool {
        matches!(
            self,
            Choice::Allgather(AllgatherAlgorithm::Multicast { .. })
                | Choice::Broadcast(BroadcastAlgorithm::Multicast { .. })
                | Choice::Allreduce(
                    AllreduceAlgorithm::ReduceMulticast { .. } | AllreduceAlgorithm::ReduceScatterMulticast { .. },
                )
        )
    }
}

/// As [`Collective::read`] reads it.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Allgather(algorithm) => algorithm.fmt(f),
            Choice::Broadcast(algorithm) => algorithm.fmt(f),
            Choice::Alltoall(algorithm) => algorithm.fmt(f),
            Choice::Gather(algorithm) => algorithm.fmt(f),
            Choice::Scatter(algorithm) => algorithm.fmt(f),
            Choice::Barrier(algorithm) => algorithm.fmt(f),
            Choice::Reduce(algorithm) => algorithm.fmt(f),
            Choice::Allreduce(algorithm) => algorithm.fmt(f),
            Choice::ReduceScatter(algorithm) => algorithm.fmt(f),
            Choice::Scan(algorithm) => algorithm.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_chosen_is_read_as_it_is_shown() {
        for collective in Collective::ALL {
            assert_eq!(collective.name().parse(), Ok(collective));
            for choice in collective.choices() {
                assert_eq!(collective.read(&choice.to_string()), Ok(*choice));
            }
            assert!(collective.read("magic").is_err_and(|why| why.contains("magic")));
        }
        assert!("magic".parse::<Collective>().is_err_and(|why| why.to_string().contains("reduce-scatter")));
    }

    /// Nothing is offered that would not run.
    #[test]
    fn what_only_plans_know_is_refused_with_what_runs() {
        let ports = Collective::Barrier.read("dissemination:ports=3").unwrap_err();
        assert!(ports.contains("ports=3") && ports.contains("ready barrier") && ports.ends_with("ports=1"), "{ports}");
        let uneven = "alltoallv".parse::<Collective>().unwrap_err().to_string();
        assert!(uneven.contains("pulled"), "{uneven}");
    }
}
