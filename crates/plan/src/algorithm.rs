//! Which algorithms there are for each collective that moves data, and how people write them.
//!
//! Written as `name` or `name:setting=value,setting=value`, such as `bruck:ports=3`; settings that are not written have
//! their defaults, and what is shown is read back as the same. What each costs stands here; how its plan is built
//! stands in the module of the collective.
//!
//! `P` is the number of ranks, `n` the bytes of a block (Allgather, Alltoall, Gather, Scatter) or of the whole
//! (Broadcast). A round is a message that cannot leave before another has arrived.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

mod allgather;

pub use allgather::{AllgatherAlgorithm, LeaderExchange};

/// The algorithms of one collective. A group agrees on one of them.
pub trait Algorithm: Copy + fmt::Debug + fmt::Display + FromStr<Err = AlgorithmError> + 'static {
    /// What the algorithms carry out, for messages.
    const COLLECTIVE: &'static str;
    /// All of them, each with the defaults of its settings.
    const ALL: &'static [Self];

    /// How it is called, without settings.
    fn name(self) -> &'static str;

    /// Changes the setting called `key`.
    ///
    /// # Errors
    /// When this algorithm has no such setting, or `value` is not one for it.
    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        let _ = (key, value);
        Err(SettingError::Unknown)
    }

    /// Writes the settings behind the name, as they are read: `:name=value,name=value`, or nothing.
    fn write_settings(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = f;
        Ok(())
    }
}

/// Why a setting stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettingError {
    /// The algorithm has no setting of that name.
    #[error("there is no such setting of this algorithm")]
    Unknown,
    /// The text is no value of the setting.
    #[error("expected {expected}")]
    Value {
        /// What would be one.
        expected: String,
    },
}

/// Why a text describes no algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AlgorithmError {
    /// No algorithm of that name.
    #[error("no {collective} algorithm is called `{name}`: choose one of {known}")]
    Name {
        /// What was to be carried out.
        collective: &'static str,
        /// The name as it was written.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A setting without name or value.
    #[error("`{setting}` in `{text}`: write settings as name=value, with commas between them")]
    Form {
        /// The whole text.
        text: String,
        /// The part that is wrong.
        setting: String,
    },
    /// A setting that the algorithm does not have, or a value that the setting does not take.
    #[error("`{key}={value}` in `{text}`: {source}")]
    Setting {
        /// The whole text.
        text: String,
        /// The setting.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        source: SettingError,
    },
}

/// Reads an algorithm as people write it; the `FromStr` of every [`Algorithm`].
pub(crate) fn parse<A: Algorithm>(text: &str) -> Result<A, AlgorithmError> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    let Some(mut algorithm) = A::ALL.iter().copied().find(|algorithm| algorithm.name() == name) else {
        let known: Vec<&str> = A::ALL.iter().map(|algorithm| algorithm.name()).collect();
        return Err(AlgorithmError::Name { collective: A::COLLECTIVE, name: name.into(), known: known.join(", ") });
    };
    for setting in settings.split(',').filter(|_| text.contains(':')) {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(AlgorithmError::Form { text: text.into(), setting: setting.into() });
        };
        algorithm.set(key, value).map_err(|source| AlgorithmError::Setting {
            text: text.into(),
            key: key.into(),
            value: value.into(),
            source,
        })?;
    }
    Ok(algorithm)
}

/// Sets `field` to the number that `value` is, which is `least` or more.
pub(crate) fn number<T>(field: &mut T, value: &str, least: T) -> Result<(), SettingError>
where
    T: FromStr + PartialOrd + fmt::Display,
{
    match value.parse() {
        Ok(number) if number >= least => *field = number,
        _ => return Err(SettingError::Value { expected: format!("a number from {least}") }),
    }
    Ok(())
}

/// The segments in which pipelined algorithms cut a message unless told otherwise.
pub const DEFAULT_SEGMENT: u64 = 64 << 10;

/// How the blocks of an Alltoall(v) travel. `s` is what a rank sends to all others together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AlltoallAlgorithm {
    /// `pull`: all messages at once, in scatter-destination order (GP-8); whoever executes them may let the receiving
    /// side ask for them (SP-5). 1 round, `s` bytes per rank.
    Pull,
    /// `pairwise`: in round `i` a rank exchanges with one other only, `rank ^ i` where `P` is a power of two, else it
    /// sends to `rank + i` and receives from `rank - i`. `P - 1` rounds, `s` bytes per rank. (GP-8.)
    Pairwise,
    /// `scatter-destination`: as `pull`, but of a rank's sends at most `batch` are on their way at a time (GP-8).
    /// `ceil((P - 1) / batch)` times a message's time, `s` bytes per rank.
    ScatterDestination {
        /// Sends at a time, at least 1.
        batch: u32,
    },
    /// `bruck`: blocks travel in steps of powers of two, together with others that need the same step. Blocks of one
    /// size only. `ceil(log2 P)` rounds; each rank sends `ceil(log2 P) * P / 2 * n` bytes at most and copies twice as
    /// many through scratch. (J. Bruck and others, "Efficient algorithms for all-to-all communications in multiport
    /// message-passing systems", 1997.)
    Bruck,
}

impl Algorithm for AlltoallAlgorithm {
    const COLLECTIVE: &'static str = "alltoall";
    const ALL: &'static [Self] = &[
        AlltoallAlgorithm::Pull,
        AlltoallAlgorithm::Pairwise,
        AlltoallAlgorithm::ScatterDestination { batch: 16 },
        AlltoallAlgorithm::Bruck,
    ];

    fn name(self) -> &'static str {
        match self {
            AlltoallAlgorithm::Pull => "pull",
            AlltoallAlgorithm::Pairwise => "pairwise",
            AlltoallAlgorithm::ScatterDestination { .. } => "scatter-destination",
            AlltoallAlgorithm::Bruck => "bruck",
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match (self, key) {
            (AlltoallAlgorithm::ScatterDestination { batch }, "batch") => number(batch, value, 1),
            _ => Err(SettingError::Unknown),
        }
    }

    fn write_settings(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AlltoallAlgorithm::ScatterDestination { batch } => write!(f, ":batch={batch}"),
            AlltoallAlgorithm::Pull | AlltoallAlgorithm::Pairwise | AlltoallAlgorithm::Bruck => Ok(()),
        }
    }
}

/// How the bytes of a Broadcast travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BroadcastAlgorithm {
    /// `binomial`: a binomial tree, `ceil(log2 P)` rounds; the root sends that many times `n` bytes, every other rank
    /// receives `n` once. Counted from the root, rank `v` receives from `v` without its lowest set bit. (CD-2.)
    Binomial,
    /// `k-nomial`: as `binomial`, with digits to the base `radix` in place of bits. `ceil(log_radix P)` rounds; the
    /// root sends `(radix - 1) * n` bytes in each. (The point-to-point algorithm that MC-R compares with.)
    KNomial {
        /// Base of the digits, at least 2.
        radix: u32,
    },
    /// `chain`: each rank passes on to the next, segment by segment. `P - 2` rounds more than there are segments; each
    /// rank but the last sends `n` bytes. (GP-8: the ring Broadcast of HPL.)
    Chain {
        /// Bytes of a segment, at least 1; one that cuts the message in more than [`crate::broadcast::MAX_SEGMENTS`]
        /// is refused.
        segment: u64,
    },
    /// `double-tree`: half of the bytes down each of two binary trees, segment by segment; who has children in one tree
    /// has none in the other (TH-6). About `2 * log2 P` rounds more than a half has segments; each rank sends `n` bytes
    /// at most.
    DoubleTree {
        /// Bytes of a segment, at least 1; one that cuts the message in more than [`crate::broadcast::MAX_SEGMENTS`]
        /// is refused.
        segment: u64,
    },
    /// `scatter-allgather`: `P` blocks go down a binomial tree, then round a ring past those who have them. `P - 1`
    /// rounds behind the `ceil(log2 P)` of the tree; each rank sends less than `2 * n` bytes. (R. van de Geijn and
    /// others, "Collective communication: theory, practice, and experience", 2007.)
    ScatterAllgather,
    /// `multicast`: the root multicasts once; it sends `n` bytes, every other rank receives `n` (MC-1).
    Multicast {
        /// Multicast addresses the bytes are spread over (MC-10), at least 1; see [`crate::subgroup_chunks`].
        subgroups: u16,
    },
}

impl Algorithm for BroadcastAlgorithm {
    const COLLECTIVE: &'static str = "broadcast";
    const ALL: &'static [Self] = &[
        BroadcastAlgorithm::Binomial,
        BroadcastAlgorithm::KNomial { radix: 4 },
        BroadcastAlgorithm::Chain { segment: DEFAULT_SEGMENT },
        BroadcastAlgorithm::DoubleTree { segment: DEFAULT_SEGMENT },
        BroadcastAlgorithm::ScatterAllgather,
        BroadcastAlgorithm::Multicast { subgroups: 1 },
    ];

    fn name(self) -> &'static str {
        match self {
            BroadcastAlgorithm::Binomial => "binomial",
            BroadcastAlgorithm::KNomial { .. } => "k-nomial",
            BroadcastAlgorithm::Chain { .. } => "chain",
            BroadcastAlgorithm::DoubleTree { .. } => "double-tree",
            BroadcastAlgorithm::ScatterAllgather => "scatter-allgather",
            BroadcastAlgorithm::Multicast { .. } => "multicast",
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match (self, key) {
            (BroadcastAlgorithm::KNomial { radix }, "radix") => number(radix, value, 2),
            (BroadcastAlgorithm::Chain { segment } | BroadcastAlgorithm::DoubleTree { segment }, "segment") => {
                number(segment, value, 1)
            }
            (BroadcastAlgorithm::Multicast { subgroups }, "subgroups") => number(subgroups, value, 1),
            _ => Err(SettingError::Unknown),
        }
    }

    fn write_settings(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BroadcastAlgorithm::Binomial | BroadcastAlgorithm::ScatterAllgather => Ok(()),
            BroadcastAlgorithm::KNomial { radix } => write!(f, ":radix={radix}"),
            BroadcastAlgorithm::Chain { segment } | BroadcastAlgorithm::DoubleTree { segment } => {
                write!(f, ":segment={segment}")
            }
            BroadcastAlgorithm::Multicast { subgroups } => write!(f, ":subgroups={subgroups}"),
        }
    }
}

/// How the blocks of a Gather(v) travel to the root, or those of a Scatter(v) from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RootedAlgorithm {
    /// `linear`: straight between the root and every other rank, all at once. 1 round; the root moves `(P - 1) * n`
    /// bytes, every other rank `n`. The only one for Gatherv and Scatterv, whose counts the root and the owner of the
    /// block alone know.
    Linear,
    /// `binomial`: along the tree of [`BroadcastAlgorithm::Binomial`], whose inner ranks hold the blocks of their
    /// subtrees in scratch. Blocks of one size only. `ceil(log2 P)` rounds; the root moves `(P - 1) * n` bytes, every
    /// other rank `n` times the ranks of its subtree towards the root or from it.
    Binomial,
}

impl Algorithm for RootedAlgorithm {
    const COLLECTIVE: &'static str = "gather or scatter";
    const ALL: &'static [Self] = &[RootedAlgorithm::Linear, RootedAlgorithm::Binomial];

    fn name(self) -> &'static str {
        match self {
            RootedAlgorithm::Linear => "linear",
            RootedAlgorithm::Binomial => "binomial",
        }
    }
}

/// How the ranks of a Barrier learn that all have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BarrierAlgorithm {
    /// `dissemination`: in round `j` a rank tells `rank + i * (ports + 1)^j`, `i` from 1 to `ports`, that all it knows
    /// of have come. `ceil(log_(ports + 1) P)` rounds of `ports` messages without bytes. (D. Hensgen and others, "Two
    /// algorithms for barrier synchronization", 1988.)
    Dissemination {
        /// Messages that a rank sends at the same time, at least 1.
        ports: u32,
    },
}

impl Algorithm for BarrierAlgorithm {
    const COLLECTIVE: &'static str = "barrier";
    const ALL: &'static [Self] = &[BarrierAlgorithm::Dissemination { ports: 1 }];

    fn name(self) -> &'static str {
        match self {
            BarrierAlgorithm::Dissemination { .. } => "dissemination",
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match (self, key) {
            (BarrierAlgorithm::Dissemination { ports }, "ports") => number(ports, value, 1),
            _ => Err(SettingError::Unknown),
        }
    }

    fn write_settings(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BarrierAlgorithm::Dissemination { ports } => write!(f, ":ports={ports}"),
        }
    }
}

/// Shows algorithms as people write them, and reads them.
macro_rules! read_as_written {
    ($($algorithm:ty),*) => {
        $(impl std::fmt::Display for $algorithm {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())?;
                self.write_settings(f)
            }
        }

        impl std::str::FromStr for $algorithm {
            type Err = $crate::AlgorithmError;

            fn from_str(text: &str) -> Result<Self, $crate::AlgorithmError> {
                $crate::algorithm::parse(text)
            }
        })*
    };
}

pub(crate) use read_as_written;

read_as_written!(AllgatherAlgorithm, AlltoallAlgorithm, BroadcastAlgorithm, RootedAlgorithm, BarrierAlgorithm);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What is shown of all algorithms, and of `more`, is read back.
    pub(crate) fn round_trip<A: Algorithm + PartialEq>(more: &[A]) {
        for algorithm in A::ALL.iter().chain(more) {
            assert_eq!(algorithm.to_string().parse(), Ok(*algorithm));
            assert!(algorithm.to_string().starts_with(algorithm.name()));
        }
        for algorithm in A::ALL {
            assert_eq!(algorithm.name().parse(), Ok(*algorithm), "a name alone has the defaults");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        let hierarchical = |between| AllgatherAlgorithm::Hierarchical { leaders: 3, between };
        round_trip(&[
            AllgatherAlgorithm::Bruck { ports: 3 },
            AllgatherAlgorithm::StandardExchange { ports: 7 },
            AllgatherAlgorithm::Multicast { chains: 4, subgroups: 2 },
            hierarchical(LeaderExchange::NeighbourExchange),
            hierarchical(LeaderExchange::StandardExchange { ports: 2 }),
            hierarchical(LeaderExchange::Bruck { ports: 4 }),
        ]);
        round_trip(&[AlltoallAlgorithm::ScatterDestination { batch: 5 }]);
        round_trip(&[
            BroadcastAlgorithm::KNomial { radix: 8 },
            BroadcastAlgorithm::Chain { segment: u64::MAX },
            BroadcastAlgorithm::DoubleTree { segment: 1 },
            BroadcastAlgorithm::Multicast { subgroups: 4 },
        ]);
        round_trip::<RootedAlgorithm>(&[]);
        round_trip(&[BarrierAlgorithm::Dissemination { ports: 3 }]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |text: &str| text.parse::<AllgatherAlgorithm>().unwrap_err().to_string();
        assert_eq!(
            wrong("rings"),
            "no allgather algorithm is called `rings`: choose one of ring, neighbour-exchange, standard-exchange, \
             bruck, hierarchical, multicast"
        );
        assert_eq!(wrong("bruck:3"), "`3` in `bruck:3`: write settings as name=value, with commas between them");
        assert_eq!(wrong("bruck:ports=0"), "`ports=0` in `bruck:ports=0`: expected a number from 1");
        assert_eq!(wrong("ring:ports=1"), "`ports=1` in `ring:ports=1`: there is no such setting of this algorithm");
        assert!(
            wrong("hierarchical:ports=2").ends_with("expected between=standard-exchange or between=bruck before it")
        );
        assert!(wrong("hierarchical:between=pull").ends_with("ring, neighbour-exchange, standard-exchange or bruck"));
        assert!(wrong("ring:").starts_with("`` in `ring:`"));
    }
}
