//! The collectives for which an algorithm is chosen, and the table of the algorithms of each collective.
//!
//! Tuning files and command lines use these names, so the names never change meaning.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::choice::{Choice, all, all_led, led};
use crate::algorithm::{Algorithm, DEFAULT_SEGMENT, WHOLE};

/// A collective for which an algorithm is chosen, with the bytes that the choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// Allgather and allgatherv; bytes of the mean block.
    Allgather,
    /// Bytes of the root's buffer.
    Broadcast,
    /// Blocks of one size; bytes of a block.
    Alltoall,
    /// Blocks of one size; bytes of a block.
    Gather,
    /// Blocks of one size; bytes of a block.
    Scatter,
    /// No bytes.
    Barrier,
    /// Bytes of the whole vector.
    Reduce,
    /// Bytes of the whole vector.
    Allreduce,
    /// Reduce-scatter with equal or unequal blocks; bytes of the whole vector.
    ReduceScatter,
    /// Inclusive and exclusive scans; bytes of the whole vector.
    Scan,
}

/// An algorithm with default settings, and the names of the settings that can be set.
pub(super) type AlgorithmRow = (Algorithm, &'static [&'static str]);

const ALLGATHER: &[Choice] = &[
    all(Collective::Allgather, Algorithm::Multicast { chains: 0, subgroups: 1 }),
    led(Collective::Allgather, Algorithm::Ring { segment: WHOLE }),
    led(Collective::Allgather, Algorithm::Bruck { ports: 1 }),
    all(Collective::Allgather, Algorithm::Ring { segment: WHOLE }),
    all(Collective::Allgather, Algorithm::NeighbourExchange),
    all(Collective::Allgather, Algorithm::StandardExchange { ports: 1 }),
    all(Collective::Allgather, Algorithm::Bruck { ports: 1 }),
    all(Collective::Allgather, Algorithm::StandardExchange { ports: 3 }),
    all(Collective::Allgather, Algorithm::Bruck { ports: 3 }),
];
const BROADCAST: &[Choice] = &[
    all(Collective::Broadcast, Algorithm::Multicast { chains: 1, subgroups: 1 }),
    all(Collective::Broadcast, Algorithm::Binomial),
    all(Collective::Broadcast, Algorithm::KNomial { radix: 4 }),
    all(Collective::Broadcast, Algorithm::Chain { segment: 16 << 10 }),
    all(Collective::Broadcast, Algorithm::Chain { segment: 64 << 10 }),
    all(Collective::Broadcast, Algorithm::DoubleTree { segment: 16 << 10 }),
    all(Collective::Broadcast, Algorithm::DoubleTree { segment: 64 << 10 }),
    all(Collective::Broadcast, Algorithm::ScatterAllgather),
];
const ALLTOALL: &[Choice] =
    &[all(Collective::Alltoall, Algorithm::Pull), all(Collective::Alltoall, Algorithm::Bruck { ports: 1 })];
const GATHER: &[Choice] = &[all(Collective::Gather, Algorithm::Linear), all(Collective::Gather, Algorithm::Binomial)];
const SCATTER: &[Choice] =
    &[all(Collective::Scatter, Algorithm::Linear), all(Collective::Scatter, Algorithm::Binomial)];
const BARRIER: &[Choice] = &[all(Collective::Barrier, Algorithm::Dissemination { ports: 1 })];
const REDUCE: &[Choice] = &[
    all(Collective::Reduce, Algorithm::Binomial),
    all(Collective::Reduce, Algorithm::Halving),
    all(Collective::Reduce, Algorithm::Chain { segment: 16 << 10 }),
    all(Collective::Reduce, Algorithm::Chain { segment: 64 << 10 }),
    led(Collective::Reduce, Algorithm::Binomial),
    led(Collective::Reduce, Algorithm::Halving),
    led(Collective::Reduce, Algorithm::Chain { segment: 16 << 10 }),
    led(Collective::Reduce, Algorithm::Chain { segment: 64 << 10 }),
];
const ALLREDUCE: &[Choice] = &[
    all(Collective::Allreduce, Algorithm::RecursiveDoubling),
    all(Collective::Allreduce, Algorithm::Ring { segment: DEFAULT_SEGMENT }),
    all(Collective::Allreduce, Algorithm::Rabenseifner),
    led(Collective::Allreduce, Algorithm::RecursiveDoubling),
    led(Collective::Allreduce, Algorithm::Ring { segment: DEFAULT_SEGMENT }),
    led(Collective::Allreduce, Algorithm::Rabenseifner),
    all(Collective::Allreduce, Algorithm::ReduceMulticast { subgroups: 1 }),
    all(Collective::Allreduce, Algorithm::ReduceScatterMulticast { subgroups: 1, segment: DEFAULT_SEGMENT }),
];
/// If two choices are equal, the first wins: in a ring every link has one source, which fills the link better than
/// several sources in turn.
const REDUCE_SCATTER: &[Choice] = &[
    all(Collective::ReduceScatter, Algorithm::RecursiveHalving),
    all(Collective::ReduceScatter, Algorithm::Ring { segment: DEFAULT_SEGMENT }),
    all(Collective::ReduceScatter, Algorithm::Pairwise { segment: DEFAULT_SEGMENT }),
    led(Collective::ReduceScatter, Algorithm::RecursiveHalving),
    led(Collective::ReduceScatter, Algorithm::Ring { segment: DEFAULT_SEGMENT }),
    led(Collective::ReduceScatter, Algorithm::Pairwise { segment: DEFAULT_SEGMENT }),
];
const SCAN: &[Choice] = &[
    all(Collective::Scan, Algorithm::RecursiveDoubling),
    all(Collective::Scan, Algorithm::Pieces { pieces: 1 }),
    all(Collective::Scan, Algorithm::Pieces { pieces: 8 }),
    all(Collective::Scan, Algorithm::Pieces { pieces: 64 }),
];

impl Collective {
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

    /// The algorithms among all ranks. Some of them also run among the leaders of hosts, if
    /// [`Collective::between_leaders`] has a default.
    pub(super) const fn table(self) -> &'static [AlgorithmRow] {
        match self {
            Collective::Allgather => &[
                (Algorithm::Ring { segment: WHOLE }, &[]),
                (Algorithm::NeighbourExchange, &[]),
                (Algorithm::StandardExchange { ports: 1 }, &["ports"]),
                (Algorithm::Bruck { ports: 1 }, &["ports"]),
                (Algorithm::RotatedBruck { ports: 1 }, &["ports"]),
                (Algorithm::Linear, &[]),
                (Algorithm::Multicast { chains: 0, subgroups: 1 }, &["chains", "subgroups"]),
            ],
            Collective::Broadcast => &[
                (Algorithm::Binomial, &[]),
                (Algorithm::KNomial { radix: 4 }, &["radix"]),
                (Algorithm::Chain { segment: DEFAULT_SEGMENT }, &["segment"]),
                (Algorithm::DoubleTree { segment: DEFAULT_SEGMENT }, &["segment"]),
                (Algorithm::ScatterAllgather, &[]),
                (Algorithm::Multicast { chains: 1, subgroups: 1 }, &["subgroups"]),
            ],
            Collective::Alltoall => &[
                (Algorithm::Pull, &[]),
                (Algorithm::Pairwise { segment: WHOLE }, &[]),
                (Algorithm::ScatterDestination { batch: 16 }, &["batch"]),
                (Algorithm::Bruck { ports: 1 }, &[]),
            ],
            Collective::Gather | Collective::Scatter => &[(Algorithm::Linear, &[]), (Algorithm::Binomial, &[])],
            Collective::Barrier => &[(Algorithm::Dissemination { ports: 1 }, &["ports"])],
            Collective::Reduce => &[
                (Algorithm::Binomial, &[]),
                (Algorithm::Halving, &[]),
                (Algorithm::Chain { segment: DEFAULT_SEGMENT }, &["segment"]),
            ],
            Collective::Allreduce => &[
                (Algorithm::RecursiveDoubling, &[]),
                (Algorithm::Ring { segment: DEFAULT_SEGMENT }, &["segment"]),
                (Algorithm::Rabenseifner, &[]),
                (Algorithm::ReduceMulticast { subgroups: 1 }, &["subgroups"]),
                (
                    Algorithm::ReduceScatterMulticast { subgroups: 1, segment: DEFAULT_SEGMENT },
                    &["subgroups", "segment"],
                ),
            ],
            Collective::ReduceScatter => &[
                (Algorithm::Ring { segment: DEFAULT_SEGMENT }, &["segment"]),
                (Algorithm::RecursiveHalving, &[]),
                (Algorithm::Pairwise { segment: DEFAULT_SEGMENT }, &["segment"]),
            ],
            Collective::Scan => &[(Algorithm::RecursiveDoubling, &[]), (Algorithm::Pieces { pieces: 1 }, &["pieces"])],
        }
    }

    /// The default algorithm among leaders of hosts; `None` if the collective has no choice with leaders.
    pub(super) const fn between_leaders(self) -> Option<Algorithm> {
        match self {
            Collective::Allgather => Some(Algorithm::Ring { segment: WHOLE }),
            Collective::Reduce => Some(Algorithm::Chain { segment: DEFAULT_SEGMENT }),
            Collective::Allreduce => Some(Algorithm::RecursiveDoubling),
            Collective::ReduceScatter => Some(Algorithm::Pairwise { segment: DEFAULT_SEGMENT }),
            Collective::Broadcast
            | Collective::Alltoall
            | Collective::Gather
            | Collective::Scatter
            | Collective::Barrier
            | Collective::Scan => None,
        }
    }

    /// The algorithms that may run among leaders: algorithms without multicast that keep blocks in their places, from
    /// which leaders pass the blocks on.
    pub(super) fn for_leaders(self) -> impl Iterator<Item = AlgorithmRow> {
        let fits =
            |algorithm: Algorithm| !algorithm.multicasts() && !matches!(algorithm, Algorithm::RotatedBruck { .. });
        self.table().iter().copied().filter(move |(algorithm, _)| fits(*algorithm))
    }

    /// All choices of the collective with default settings; the first is the default of a plan that names none.
    pub fn algorithms(self) -> Vec<Choice> {
        let flat = |multicasts| self.table().iter().filter(move |(algorithm, _)| algorithm.multicasts() == multicasts);
        let led = self.between_leaders().map(|algorithm| led(self, algorithm));
        let flat = |multicasts| flat(multicasts).map(|(algorithm, _)| all(self, *algorithm));
        let met = (self == Collective::Allgather).then(|| all_led(self, Algorithm::StandardExchange { ports: 1 }));
        flat(false).chain(led).chain(met).chain(flat(true)).collect()
    }

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

    /// The choices of the cost model, in the order in which ties are decided. Users may set other choices.
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

    /// Reads the choice written in `text`, which must be able to run.
    pub fn read(self, text: &str) -> Result<Choice, String> {
        let choice = Choice::read(self, text).map_err(|error| error.to_string())?;
        if self == Collective::Barrier && !BARRIER.contains(&choice) {
            return Err(format!(
                "`{text}` is a plan alone: a barrier runs as the ready barrier among service processes, which is {}",
                BARRIER[0]
            ));
        }
        Ok(choice)
    }
}

/// Collectives with one algorithm. Only the two ranks of a block know its size, so the ranks could not agree on another
/// algorithm.
const UNCHOSEN: [&str; 3] = ["alltoallv", "gatherv", "scatterv"];

/// Error: no algorithm is chosen for a collective of this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "no algorithm is chosen for `{name}`{}; one is for {}",
    if UNCHOSEN.contains(&name.as_str()) { ", whose blocks are always pulled, since only two ranks know the size of each" } else { "" },
    Collective::ALL.map(Collective::name).join(", ")
)]
pub struct UnknownCollective {
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
