//! The algorithms of reductions: what each costs; how its plan is built stands in the module of the collective.
//!
//! Written as [`crate::algorithm`] says. `P` is the number of ranks, `n` the bytes of the whole vector, and `m` the
//! rounds of a power of two of ranks, `floor(log2 P)`. Where `P` is none, ranks beyond it add a round before, in which
//! some give their vector away, and most times one behind, in which they get their share of the result.

use std::fmt;

use crate::algorithm::{Algorithm, DEFAULT_SEGMENT, SettingError, number, read_as_written};

/// How a Reduce is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceAlgorithm {
    /// `binomial`: a binomial tree. `ceil(log2 P)` rounds; the root receives `n` bytes in each, every other rank sends `n`.
    /// For short vectors. (The tree of [`crate::BroadcastAlgorithm::Binomial`], the other way round.)
    Binomial,
    /// `halving`: vector halving with distance doubling, then a binomial gather of the parts to the root (TH-6). `2 * m`
    /// rounds, one more where `P` is no power of two; no rank sends more than `3 / 2 * n` bytes. For long vectors.
    /// (R. Rabenseifner, "Optimization of collective reduction operations", 2004.)
    Halving,
    /// `chain`: from rank to rank towards the root, host by host, in segments, each rank combining what comes with its own.
    /// `P - 2` rounds more than there are segments; each rank but the root sends `n` bytes, and each but the last receives as
    /// many, which is the least that the root's link can do. For long vectors. (The chain of [`crate::BroadcastAlgorithm::Chain`],
    /// the other way round.)
    Chain {
        /// Bytes of a segment, at least 1; longer where it would make more than [`super::MAX_SEGMENTS`].
        segment: u64,
    },
    /// `hierarchical`: every host combines its ranks' vectors, one leader of each combines them `between` the hosts (CD-2). 1
    /// round more than `between` has among the hosts; a leader sends and receives over the network what `between` says of
    /// that many ranks, the others nothing. Where hosts have several ranks.
    Hierarchical {
        /// How leaders combine what their hosts have.
        between: LeaderReduce,
    },
}

/// How the leaders of the hosts combine what their hosts have for one of them; as the [`ReduceAlgorithm`] of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaderReduce {
    /// [`ReduceAlgorithm::Binomial`].
    Binomial,
    /// [`ReduceAlgorithm::Halving`].
    Halving,
    /// [`ReduceAlgorithm::Chain`], whose segments the ranks of a host combine, too.
    Chain {
        /// Bytes of a segment.
        segment: u64,
    },
}

impl LeaderReduce {
    const ALL: [LeaderReduce; 3] =
        [LeaderReduce::Binomial, LeaderReduce::Halving, LeaderReduce::Chain { segment: DEFAULT_SEGMENT }];
}

impl From<LeaderReduce> for ReduceAlgorithm {
    fn from(between: LeaderReduce) -> Self {
        match between {
            LeaderReduce::Binomial => ReduceAlgorithm::Binomial,
            LeaderReduce::Halving => ReduceAlgorithm::Halving,
            LeaderReduce::Chain { segment } => ReduceAlgorithm::Chain { segment },
        }
    }
}

/// How an Allreduce is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllreduceAlgorithm {
    /// `recursive-doubling`: pairs exchange whole vectors at doubling distances. `m` rounds, two more where `P` is no
    /// power of two; each rank sends `m * n` bytes, some `n` more. For short vectors. (R. Thakur and others,
    /// "Optimization of collective communication operations in MPICH", 2005.)
    RecursiveDoubling,
    /// `ring`: Reduce-Scatter round a ring, then Allgather round the same ring. `2 * (P - 1)` rounds; each rank sends
    /// `2 * n * (P - 1) / P` bytes, to its right neighbour alone, in segments that do not wait for each other. For long vectors.
    /// (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.)
    Ring {
        /// Bytes of a segment, as of [`ReduceScatterAlgorithm::Ring`].
        segment: u64,
    },
    /// `rabenseifner`: Reduce-Scatter by vector halving and distance doubling, then Allgather by the way back (TH-6).
    /// `2 * m` rounds, two more where `P` is no power of two; each rank sends less than `2 * n` bytes, some `n` more. For
    /// long vectors, best where `P` is a power of two. (R. Rabenseifner, 2004.)
    Rabenseifner,
    /// `hierarchical`: every host combines its ranks' vectors, one leader of each combines them `between` the hosts, and passes
    /// the result on to the others (CD-2). 2 rounds more than `between` has among the hosts; a leader sends and receives over
    /// the network what `between` says of that many ranks, the others nothing. Where hosts have several ranks.
    Hierarchical {
        /// How leaders combine what their hosts have.
        between: LeaderAllreduce,
    },
    /// `reduce-multicast`: a binomial Reduce to rank 0, which multicasts the result (MC-1). `ceil(log2 P) + 1` rounds; each
    /// rank sends `n` bytes. For short vectors.
    ReduceMulticast {
        /// Multicast addresses the bytes are spread over (MC-10), at least 1; see [`crate::subgroup_chunks`].
        subgroups: u16,
    },
    /// `reduce-scatter-multicast`: Reduce-Scatter round a ring, then every rank multicasts its block, all at once (MC-8).
    /// `P` rounds; each rank sends `n` bytes, where `ring` sends nearly twice as many, and receives as many as with
    /// `ring`. For long vectors. (The composition of appendix B of the MC paper, with a ring in place of a network that
    /// reduces.)
    ReduceScatterMulticast {
        /// Multicast addresses each block is spread over (MC-10), at least 1; see [`crate::subgroup_chunks`].
        subgroups: u16,
        /// Bytes of a segment on its way round the ring, as of [`ReduceScatterAlgorithm::Ring`].
        segment: u64,
    },
}

/// How the leaders of the hosts combine what their hosts have; as the [`AllreduceAlgorithm`] of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaderAllreduce {
    /// [`AllreduceAlgorithm::RecursiveDoubling`].
    RecursiveDoubling,
    /// [`AllreduceAlgorithm::Ring`].
    Ring {
        /// Bytes of a segment.
        segment: u64,
    },
    /// [`AllreduceAlgorithm::Rabenseifner`].
    Rabenseifner,
}

impl LeaderAllreduce {
    const ALL: [LeaderAllreduce; 3] = [
        LeaderAllreduce::RecursiveDoubling,
        LeaderAllreduce::Ring { segment: DEFAULT_SEGMENT },
        LeaderAllreduce::Rabenseifner,
    ];
}

impl From<LeaderAllreduce> for AllreduceAlgorithm {
    fn from(between: LeaderAllreduce) -> Self {
        match between {
            LeaderAllreduce::RecursiveDoubling => AllreduceAlgorithm::RecursiveDoubling,
            LeaderAllreduce::Ring { segment } => AllreduceAlgorithm::Ring { segment },
            LeaderAllreduce::Rabenseifner => AllreduceAlgorithm::Rabenseifner,
        }
    }
}

/// How a Reduce-Scatter is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceScatterAlgorithm {
    /// `ring`: partial results go from neighbour to neighbour round a ring, in segments that do not wait for each other. `P - 1`
    /// rounds; each rank sends all blocks but one, to its right neighbour alone. (P. Patarasuk and X. Yuan, 2009.)
    Ring {
        /// Bytes of a segment of a block, at least 1; whole elements, and longer where it would make more than
        /// [`super::MAX_SEGMENTS`] of a vector.
        segment: u64,
    },
    /// `recursive-halving`: pairs exchange halves of the blocks at halving distances. `m` rounds, two more where `P` is no
    /// power of two; each rank sends at most `n` bytes, and so do those that stand aside. (R. Thakur and others, 2005.)
    RecursiveHalving,
    /// `pairwise`: each rank sends every other rank its block, in segments, of which one is combined while others are under way.
    /// One round of `P - 1` blocks. (GP-8's scatter-destination.)
    Pairwise {
        /// As of [`ReduceScatterAlgorithm::Ring`].
        segment: u64,
    },
    /// `hierarchical`: every host combines its ranks' vectors, one leader of each exchanges `between` the hosts what is for
    /// each, and passes their blocks on to the others (CD-2). 2 rounds more than `between` has among the hosts; a leader sends
    /// and receives over the network what `between` says of that many ranks, the others nothing. Where hosts have several
    /// ranks.
    Hierarchical {
        /// How leaders combine what their hosts have.
        between: LeaderReduceScatter,
    },
}

/// How the leaders of the hosts combine what is for each host; as the [`ReduceScatterAlgorithm`] of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaderReduceScatter {
    /// [`ReduceScatterAlgorithm::Ring`].
    Ring {
        /// Bytes of a segment of what is for a host.
        segment: u64,
    },
    /// [`ReduceScatterAlgorithm::RecursiveHalving`].
    RecursiveHalving,
    /// [`ReduceScatterAlgorithm::Pairwise`].
    Pairwise {
        /// Bytes of a segment of what is for a host.
        segment: u64,
    },
}

impl LeaderReduceScatter {
    const ALL: [LeaderReduceScatter; 3] = [
        LeaderReduceScatter::Ring { segment: DEFAULT_SEGMENT },
        LeaderReduceScatter::RecursiveHalving,
        LeaderReduceScatter::Pairwise { segment: DEFAULT_SEGMENT },
    ];
}

impl From<LeaderReduceScatter> for ReduceScatterAlgorithm {
    fn from(between: LeaderReduceScatter) -> Self {
        match between {
            LeaderReduceScatter::Ring { segment } => ReduceScatterAlgorithm::Ring { segment },
            LeaderReduceScatter::RecursiveHalving => ReduceScatterAlgorithm::RecursiveHalving,
            LeaderReduceScatter::Pairwise { segment } => ReduceScatterAlgorithm::Pairwise { segment },
        }
    }
}

/// How a Scan or Exscan is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScanAlgorithm {
    /// `recursive-doubling`: each rank sends what it has to ranks at doubling distances. `ceil(log2 P)` rounds; each rank
    /// sends at most as many times `n` bytes. For short vectors. (W. D. Hillis and G. L. Steele, "Data parallel
    /// algorithms", 1986.)
    RecursiveDoubling,
    /// `chain`: from rank to rank, the vector cut into pieces that follow each other. `P - 2` rounds more than there are
    /// pieces, each of one piece; each rank but the last sends `n` bytes. For long vectors.
    Chain {
        /// Pieces of the vector, at least 1; no more than it has elements are made.
        pieces: u32,
    },
}

impl Algorithm for ReduceAlgorithm {
    const COLLECTIVE: &'static str = "reduce";
    const ALL: &'static [Self] = &[
        ReduceAlgorithm::Binomial,
        ReduceAlgorithm::Halving,
        ReduceAlgorithm::Chain { segment: DEFAULT_SEGMENT },
        ReduceAlgorithm::Hierarchical { between: LeaderReduce::Chain { segment: DEFAULT_SEGMENT } },
    ];

    fn name(self) -> &'static str {
        match self {
            ReduceAlgorithm::Binomial => "binomial",
            ReduceAlgorithm::Halving => "halving",
            ReduceAlgorithm::Chain { .. } => "chain",
            ReduceAlgorithm::Hierarchical { .. } => "hierarchical",
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match (self, key) {
            (
                ReduceAlgorithm::Chain { segment }
                | ReduceAlgorithm::Hierarchical { between: LeaderReduce::Chain { segment } },
                "segment",
            ) => number(segment, value, 1),
            (ReduceAlgorithm::Hierarchical { between }, "between") => {
                set_between(between, &LeaderReduce::ALL, ReduceAlgorithm::from, value)
            }
            _ => Err(SettingError::Unknown),
        }
    }

    fn write_settings(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReduceAlgorithm::Binomial | ReduceAlgorithm::Halving => Ok(()),
            ReduceAlgorithm::Chain { segment } => write!(f, ":segment={segment}"),
            ReduceAlgorithm::Hierarchical { between } => {
                write!(f, ":between={}", ReduceAlgorithm::from(between).name())?;
                match between {
                    LeaderReduce::Chain { segment } => write!(f, ",segment={segment}"),
                    LeaderReduce::Binomial | LeaderReduce::Halving => Ok(()),
                }
            }
        }
    }
}

/// Sets `between` to the one of `all` that stands for the algorithm called `name`, with the defaults of its settings.
fn set_between<L: Copy, A: Algorithm>(
    between: &mut L,
    all: &[L],
    algorithm: impl Fn(L) -> A,
    name: &str,
) -> Result<(), SettingError> {
    let names = || all.iter().map(|one| algorithm(*one).name());
    let expected = || SettingError::Value { expected: format!("one of {}", names().collect::<Vec<_>>().join(", ")) };
    *between = names().zip(all).find(|(known, _)| *known == name).map(|(_, one)| *one).ok_or_else(expected)?;
    Ok(())
}

impl Algorithm for AllreduceAlgorithm {
    const COLLECTIVE: &'static str = "allreduce";
    const ALL: &'static [Self] = &[
        AllreduceAlgorithm::RecursiveDoubling,
        AllreduceAlgorithm::Ring { segment: DEFAULT_SEGMENT },
        AllreduceAlgorithm::Rabenseifner,
        AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::RecursiveDoubling },
        AllreduceAlgorithm::ReduceMulticast { subgroups: 1 },
        AllreduceAlgorithm::ReduceScatterMulticast { subgroups: 1, segment: DEFAULT_SEGMENT },
    ];

    fn name(self) -> &'static str {
        match self {
            AllreduceAlgorithm::RecursiveDoubling => "recursive-doubling",
            AllreduceAlgorithm::Ring { .. } => "ring",
            AllreduceAlgorithm::Rabenseifner => "rabenseifner",
            AllreduceAlgorithm::Hierarchical { .. } => "hierarchical",
            AllreduceAlgorithm::ReduceMulticast { .. } => "reduce-multicast",
            AllreduceAlgorithm::ReduceScatterMulticast { .. } => "reduce-scatter-multicast",
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match (self, key) {
            (AllreduceAlgorithm::Hierarchical { between }, "between") => {
                set_between(between, &LeaderAllreduce::ALL, AllreduceAlgorithm::from, value)
            }
            (
                AllreduceAlgorithm::ReduceMulticast { subgroups }
                | AllreduceAlgorithm::ReduceScatterMulticast { subgroups, .. },
                "subgroups",
            ) => number(subgroups, value, 1),
            (
                AllreduceAlgorithm::Ring { segment }
                | AllreduceAlgorithm::ReduceScatterMulticast { segment, .. }
                | AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Ring { segment } },
                "segment",
            ) => number(segment, value, 1),
            _ => Err(SettingError::Unknown),
        }
    }

    fn write_settings(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllreduceAlgorithm::RecursiveDoubling | AllreduceAlgorithm::Rabenseifner => Ok(()),
            AllreduceAlgorithm::Ring { segment } => write!(f, ":segment={segment}"),
            AllreduceAlgorithm::Hierarchical { between } => {
                write!(f, ":between={}", AllreduceAlgorithm::from(between).name())?;
                match between {
                    LeaderAllreduce::Ring { segment } => write!(f, ",segment={segment}"),
                    LeaderAllreduce::RecursiveDoubling | LeaderAllreduce::Rabenseifner => Ok(()),
                }
            }
            AllreduceAlgorithm::ReduceMulticast { subgroups } => write!(f, ":subgroups={subgroups}"),
            AllreduceAlgorithm::ReduceScatterMulticast { subgroups, segment } => {
                write!(f, ":subgroups={subgroups},segment={segment}")
            }
        }
    }
}

impl Algorithm for ReduceScatterAlgorithm {
    const COLLECTIVE: &'static str = "reduce-scatter";
    const ALL: &'static [Self] = &[
        ReduceScatterAlgorithm::Ring { segment: DEFAULT_SEGMENT },
        ReduceScatterAlgorithm::RecursiveHalving,
        ReduceScatterAlgorithm::Pairwise { segment: DEFAULT_SEGMENT },
        ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::Pairwise { segment: DEFAULT_SEGMENT } },
    ];

    fn name(self) -> &'static str {
        match self {
            ReduceScatterAlgorithm::Ring { .. } => "ring",
            ReduceScatterAlgorithm::RecursiveHalving => "recursive-halving",
            ReduceScatterAlgorithm::Pairwise { .. } => "pairwise",
            ReduceScatterAlgorithm::Hierarchical { .. } => "hierarchical",
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match (self, key) {
            (
                ReduceScatterAlgorithm::Ring { segment }
                | ReduceScatterAlgorithm::Pairwise { segment }
                | ReduceScatterAlgorithm::Hierarchical {
                    between: LeaderReduceScatter::Ring { segment } | LeaderReduceScatter::Pairwise { segment },
                },
                "segment",
            ) => number(segment, value, 1),
            (ReduceScatterAlgorithm::Hierarchical { between }, "between") => {
                set_between(between, &LeaderReduceScatter::ALL, ReduceScatterAlgorithm::from, value)
            }
            _ => Err(SettingError::Unknown),
        }
    }

    fn write_settings(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReduceScatterAlgorithm::RecursiveHalving => Ok(()),
            ReduceScatterAlgorithm::Ring { segment } | ReduceScatterAlgorithm::Pairwise { segment } => {
                write!(f, ":segment={segment}")
            }
            ReduceScatterAlgorithm::Hierarchical { between } => {
                write!(f, ":between={}", ReduceScatterAlgorithm::from(between).name())?;
                match between {
                    LeaderReduceScatter::Ring { segment } | LeaderReduceScatter::Pairwise { segment } => {
                        write!(f, ",segment={segment}")
                    }
                    LeaderReduceScatter::RecursiveHalving => Ok(()),
                }
            }
        }
    }
}

impl Algorithm for ScanAlgorithm {
    const COLLECTIVE: &'static str = "scan";
    const ALL: &'static [Self] = &[ScanAlgorithm::RecursiveDoubling, ScanAlgorithm::Chain { pieces: 1 }];

    fn name(self) -> &'static str {
        match self {
            ScanAlgorithm::RecursiveDoubling => "recursive-doubling",
            ScanAlgorithm::Chain { .. } => "chain",
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match (self, key) {
            (ScanAlgorithm::Chain { pieces }, "pieces") => number(pieces, value, 1),
            _ => Err(SettingError::Unknown),
        }
    }

    fn write_settings(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScanAlgorithm::RecursiveDoubling => Ok(()),
            ScanAlgorithm::Chain { pieces } => write!(f, ":pieces={pieces}"),
        }
    }
}

read_as_written!(ReduceAlgorithm, AllreduceAlgorithm, ReduceScatterAlgorithm, ScanAlgorithm);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::tests::round_trip;

    #[test]
    fn what_is_shown_is_read_back() {
        round_trip(&[
            ReduceAlgorithm::Chain { segment: 1 },
            ReduceAlgorithm::Hierarchical { between: LeaderReduce::Halving },
            ReduceAlgorithm::Hierarchical { between: LeaderReduce::Chain { segment: 4096 } },
        ]);
        round_trip(&[
            AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Rabenseifner },
            AllreduceAlgorithm::ReduceMulticast { subgroups: 4 },
            AllreduceAlgorithm::Ring { segment: 1 },
            AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Ring { segment: 4096 } },
            AllreduceAlgorithm::ReduceScatterMulticast { subgroups: u16::MAX, segment: 1 },
        ]);
        round_trip(&[
            ReduceScatterAlgorithm::Ring { segment: 1 },
            ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::RecursiveHalving },
            ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::Ring { segment: 4096 } },
        ]);
        round_trip(&[ScanAlgorithm::Chain { pieces: 70_000 }]);
    }

    #[test]
    fn settings_belong_to_their_algorithms() {
        for text in [
            "ring:subgroups=1",
            "ring:segment=0",
            "hierarchical:between=rabenseifner,segment=1",
            "hierarchical:between=multicast",
            "reduce-multicast:subgroups=0",
            "reduce-multicast:pieces=2",
        ] {
            assert!(text.parse::<AllreduceAlgorithm>().is_err(), "{text}");
        }
        for text in [
            "chain:segment=0",
            "halving:segment=1",
            "hierarchical:between=binomial,segment=1",
            "hierarchical:between=ring",
        ] {
            assert!(text.parse::<ReduceAlgorithm>().is_err(), "{text}");
        }
        for text in
            ["recursive-halving:segment=1", "hierarchical:between=recursive-halving,segment=1", "pairwise:segment=0"]
        {
            assert!(text.parse::<ReduceScatterAlgorithm>().is_err(), "{text}");
        }
        assert!("chain:pieces=0".parse::<ScanAlgorithm>().is_err());
    }
}
