//! The algorithms by name, for people, configuration and command lines.
//!
//! A name is lower case with dashes; a parameter may follow behind a colon, as in `reduce-multicast:4`, and is 1 where it
//! does not. `Display` writes what `FromStr` reads.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A text that names no algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no algorithm of {collective} is called {text:?}: choose one of {}", known.join(", "))]
pub struct AlgorithmError {
    /// The collective.
    pub collective: &'static str,
    /// The text.
    pub text: String,
    /// The names that there are.
    pub known: &'static [&'static str],
}

/// How a Reduce is done. The group agrees on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceAlgorithm {
    /// A binomial tree: `ceil(log2(ranks))` rounds, every rank but the root sends the whole vector once. For short
    /// vectors.
    Binomial,
    /// Vector halving with distance doubling, then a binomial gather of the parts to the root (TH-6): about
    /// `2 * log2(ranks)` rounds, and no rank sends more than twice the vector. For long vectors.
    Halving,
}

/// How an Allreduce is done. The group agrees on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllreduceAlgorithm {
    /// Pairs exchange whole vectors at doubling distances: `ceil(log2(ranks))` rounds. For short vectors.
    RecursiveDoubling,
    /// Reduce-Scatter round a ring, then Allgather round the same ring: `2 * (ranks - 1)` rounds, each rank sends twice
    /// the vector but two blocks, to its right neighbour alone. For long vectors.
    Ring,
    /// Reduce-Scatter by vector halving and distance doubling, then Allgather by the way back (TH-6): as many bytes as
    /// the ring in about `2 * log2(ranks)` rounds. For long vectors, best where the ranks are a power of two.
    Rabenseifner,
    /// A binomial Reduce to rank 0, which multicasts the result (MC-1). For short vectors.
    ReduceMulticast {
        /// Multicast addresses the bytes are spread over (MC-10), at least 1.
        subgroups: u16,
    },
    /// Reduce-Scatter round a ring, then every rank multicasts its block (MC-8): a rank sends the vector once, where
    /// [`Self::Ring`] sends it twice. For long vectors.
    ReduceScatterMulticast {
        /// Multicast addresses each block is spread over (MC-10), at least 1.
        subgroups: u16,
    },
}

/// How a Reduce-Scatter is done. The group agrees on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceScatterAlgorithm {
    /// Partial results go from neighbour to neighbour round a ring: `ranks - 1` rounds, each rank sends all blocks but
    /// its own, to its right neighbour alone.
    Ring,
    /// Pairs exchange halves of the blocks at halving distances: `log2(ranks)` rounds where the ranks are a power of
    /// two, up to two more and up to twice the bytes where they are not.
    RecursiveHalving,
    /// Each rank sends every other rank its block: `ranks - 1` messages that wait for nothing, all blocks but its own.
    Pairwise,
}

/// How a Scan or Exscan is done. The group agrees on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScanAlgorithm {
    /// Each rank sends what it has to ranks at doubling distances: `ceil(log2(ranks))` rounds of whole vectors. For
    /// short vectors.
    RecursiveDoubling,
    /// From rank to rank, the vector cut into pieces that follow each other: `ranks - 1 + pieces - 1` rounds of a
    /// piece, each rank sends the vector once. For long vectors.
    Chain {
        /// Pieces of the vector, at least 1; no more than it has elements are made.
        pieces: u32,
    },
}

/// A name and the parameter behind it.
type Parsed<'a> = (&'a str, Option<u32>);

fn split(text: &str) -> Option<Parsed<'_>> {
    match text.split_once(':') {
        None => Some((text, None)),
        Some((name, parameter)) => parameter.parse().ok().filter(|n| *n > 0).map(|n| (name, Some(n))),
    }
}

/// The subgroups that a parameter asks for.
fn subgroups(parameter: Option<u32>) -> Option<u16> {
    u16::try_from(parameter.unwrap_or(1)).ok()
}

fn display(f: &mut fmt::Formatter<'_>, name: &str, parameter: Option<u32>) -> fmt::Result {
    match parameter {
        None => f.write_str(name),
        Some(n) => write!(f, "{name}:{n}"),
    }
}

/// `name`, `Display` and `FromStr` of an algorithm with a `parameter` and a function `parsed`.
macro_rules! named {
    ($algorithm:ty, $collective:literal, $known:expr) => {
        impl $algorithm {
            /// Every name, in the order of the variants.
            pub const NAMES: &'static [&'static str] = &$known;
        }

        impl fmt::Display for $algorithm {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                display(f, self.name(), self.parameter())
            }
        }

        impl FromStr for $algorithm {
            type Err = AlgorithmError;

            fn from_str(text: &str) -> Result<Self, AlgorithmError> {
                split(text).and_then(Self::parsed).ok_or_else(|| AlgorithmError {
                    collective: $collective,
                    text: text.to_owned(),
                    known: Self::NAMES,
                })
            }
        }
    };
}

named!(ReduceAlgorithm, "Reduce", ["binomial", "halving"]);
named!(
    AllreduceAlgorithm,
    "Allreduce",
    ["recursive-doubling", "ring", "rabenseifner", "reduce-multicast", "reduce-scatter-multicast"]
);
named!(ReduceScatterAlgorithm, "Reduce-Scatter", ["ring", "recursive-halving", "pairwise"]);
named!(ScanAlgorithm, "Scan", ["recursive-doubling", "chain"]);

impl ReduceAlgorithm {
    /// The name without parameters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Binomial => "binomial",
            Self::Halving => "halving",
        }
    }

    const fn parameter(self) -> Option<u32> {
        match self {
            Self::Binomial | Self::Halving => None,
        }
    }

    fn parsed(parsed: Parsed<'_>) -> Option<Self> {
        match parsed {
            ("binomial", None) => Some(Self::Binomial),
            ("halving", None) => Some(Self::Halving),
            _ => None,
        }
    }
}

impl AllreduceAlgorithm {
    /// The name without parameters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RecursiveDoubling => "recursive-doubling",
            Self::Ring => "ring",
            Self::Rabenseifner => "rabenseifner",
            Self::ReduceMulticast { .. } => "reduce-multicast",
            Self::ReduceScatterMulticast { .. } => "reduce-scatter-multicast",
        }
    }

    const fn parameter(self) -> Option<u32> {
        match self {
            Self::RecursiveDoubling | Self::Ring | Self::Rabenseifner => None,
            Self::ReduceMulticast { subgroups } | Self::ReduceScatterMulticast { subgroups } => Some(subgroups as u32),
        }
    }

    fn parsed(parsed: Parsed<'_>) -> Option<Self> {
        match parsed {
            ("recursive-doubling", None) => Some(Self::RecursiveDoubling),
            ("ring", None) => Some(Self::Ring),
            ("rabenseifner", None) => Some(Self::Rabenseifner),
            ("reduce-multicast", n) => Some(Self::ReduceMulticast { subgroups: subgroups(n)? }),
            ("reduce-scatter-multicast", n) => Some(Self::ReduceScatterMulticast { subgroups: subgroups(n)? }),
            _ => None,
        }
    }
}

impl ReduceScatterAlgorithm {
    /// The name without parameters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::RecursiveHalving => "recursive-halving",
            Self::Pairwise => "pairwise",
        }
    }

    const fn parameter(self) -> Option<u32> {
        match self {
            Self::Ring | Self::RecursiveHalving | Self::Pairwise => None,
        }
    }

    fn parsed(parsed: Parsed<'_>) -> Option<Self> {
        match parsed {
            ("ring", None) => Some(Self::Ring),
            ("recursive-halving", None) => Some(Self::RecursiveHalving),
            ("pairwise", None) => Some(Self::Pairwise),
            _ => None,
        }
    }
}

impl ScanAlgorithm {
    /// The name without parameters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RecursiveDoubling => "recursive-doubling",
            Self::Chain { .. } => "chain",
        }
    }

    const fn parameter(self) -> Option<u32> {
        match self {
            Self::RecursiveDoubling => None,
            Self::Chain { pieces } => Some(pieces),
        }
    }

    fn parsed(parsed: Parsed<'_>) -> Option<Self> {
        match parsed {
            ("recursive-doubling", None) => Some(Self::RecursiveDoubling),
            ("chain", n) => Some(Self::Chain { pieces: n.unwrap_or(1) }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name is read back as itself, with its parameter.
    fn round_trip<A: FromStr<Err = AlgorithmError> + fmt::Display>(names: &[&str], name: fn(&A) -> &'static str) {
        for known in names {
            let Ok(algorithm) = known.parse::<A>() else { panic!("{known} is not read") };
            assert_eq!(name(&algorithm), *known);
            let shown = algorithm.to_string();
            assert_eq!(shown.parse::<A>().map(|again| again.to_string()), Ok(shown));
        }
    }

    #[test]
    fn names_are_read_back() {
        round_trip::<ReduceAlgorithm>(ReduceAlgorithm::NAMES, |a| a.name());
        round_trip::<AllreduceAlgorithm>(AllreduceAlgorithm::NAMES, |a| a.name());
        round_trip::<ReduceScatterAlgorithm>(ReduceScatterAlgorithm::NAMES, |a| a.name());
        round_trip::<ScanAlgorithm>(ScanAlgorithm::NAMES, |a| a.name());
        assert_eq!("reduce-multicast:4".parse(), Ok(AllreduceAlgorithm::ReduceMulticast { subgroups: 4 }));
        assert_eq!("chain:70000".parse(), Ok(ScanAlgorithm::Chain { pieces: 70_000 }));
    }

    #[test]
    fn what_names_nothing_is_refused_with_what_there_is() {
        for text in ["", "Ring", "ring:2", "reduce-multicast:0", "reduce-multicast:65536", "reduce-multicast:x"] {
            assert!(text.parse::<AllreduceAlgorithm>().is_err(), "{text}");
        }
        assert_eq!(
            "tree".parse::<ReduceAlgorithm>().unwrap_err().to_string(),
            "no algorithm of Reduce is called \"tree\": choose one of binomial, halving"
        );
    }
}
