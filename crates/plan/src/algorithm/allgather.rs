//! The algorithms of Allgather(v).

use std::fmt;

use super::{Algorithm, SettingError, number};

/// How the blocks of an Allgather(v) travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllgatherAlgorithm {
    /// `ring`: blocks go from neighbour to neighbour round a ring.
    ///
    /// `P - 1` rounds; each rank sends and receives `(P - 1) * n` bytes, to its right neighbour `rank + 1` and from its
    /// left one. In round `r` a rank passes on block `rank - r` as message `r`, the first straight from where it
    /// contributes it. (CD-2; the point-to-point algorithm that MC-R compares with.)
    Ring,
    /// `neighbour-exchange`: pairs of blocks go to the left and to the right neighbour in turns.
    ///
    /// `P / 2` rounds; each rank sends and receives `(P - 1) * n` bytes. A pair of ranks first shares its two blocks,
    /// then every rank passes on the pair of blocks that came last, every second round to the same neighbour. (J. Chen
    /// and others, "Performance evaluation of Allgather algorithms on terascale Linux cluster with Fast Ethernet",
    /// 2005.) Needs pairs: an odd group uses [`AllgatherAlgorithm::Ring`], as [`AllgatherAlgorithm::carried_out`] says.
    NeighbourExchange,
    /// `standard-exchange`: recursive doubling for `ports` ports (CD-2).
    ///
    /// `log_(ports + 1) P` rounds; each rank sends and receives `(P - 1) * n` bytes. In round `j` it sends all it has
    /// to the `ports` ranks that differ from it in digit `j` only, written to the base `ports + 1`. Where `P` is no
    /// power of that base, [`AllgatherAlgorithm::Bruck`] with as many ports is used, as
    /// [`AllgatherAlgorithm::carried_out`] says.
    StandardExchange {
        /// Messages that a rank sends at the same time, at least 1.
        ports: u32,
    },
    /// `bruck`: distances grow by a factor of `ports + 1` (CD-2).
    ///
    /// `ceil(log_(ports + 1) P)` rounds for any `P`; each rank sends and receives `(P - 1) * n` bytes. In round `j` it
    /// sends to `rank - i * (ports + 1)^j`, `i` from 1 to `ports`, as many blocks from its own on as are missing there.
    /// Blocks go straight to their place, in two messages where they wrap round the last rank, so that the rotation at
    /// the end of the paper's variant falls away.
    Bruck {
        /// Messages that a rank sends at the same time, at least 1.
        ports: u32,
    },
    /// `hierarchical`: every block crosses the network once per host (SP-6, CD-2).
    ///
    /// The ranks of a host give each other their blocks. Each host has `leaders` leaders (as many as its smallest host
    /// has ranks at most), which share its blocks; leader `l` exchanges its share with the leaders `l` of all other
    /// hosts, as `between` says, and passes on what arrives to the other ranks of its host. 2 rounds more than
    /// `between` has among the hosts; a leader sends and receives `n` times the ranks of all other hosts, divided by
    /// `leaders`, over the network.
    Hierarchical {
        /// Leaders per host, at least 1.
        leaders: u32,
        /// How leaders exchange what their hosts have.
        between: LeaderExchange,
    },
    /// `multicast`: every rank multicasts its block to all others (MC-8): one Broadcast per rank.
    ///
    /// Each rank sends `n` bytes and receives `(P - 1) * n`. `chains` ranks multicast at the same time; the ranks of
    /// one chain, contiguous as of [`crate::chain_ranks`], take turns, which makes `ceil(P / chains)` rounds. A rank's
    /// turn comes with a signal from its predecessor in the chain, sent once the predecessor's multicast is complete on
    /// the sending side.
    Multicast {
        /// Roots that multicast at the same time, up to `P`; need not divide `P`. 0 stands for `P`: no turns.
        chains: u32,
        /// Multicast addresses each block is spread over (MC-10), at least 1; see [`crate::subgroup_chunks`].
        subgroups: u16,
    },
}

/// How the leaders of the hosts exchange what their hosts have; as the [`AllgatherAlgorithm`] of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaderExchange {
    /// [`AllgatherAlgorithm::Ring`].
    Ring,
    /// [`AllgatherAlgorithm::NeighbourExchange`].
    NeighbourExchange,
    /// [`AllgatherAlgorithm::StandardExchange`].
    StandardExchange {
        /// Messages that a leader sends at the same time, at least 1.
        ports: u32,
    },
    /// [`AllgatherAlgorithm::Bruck`].
    Bruck {
        /// Messages that a leader sends at the same time, at least 1.
        ports: u32,
    },
}

impl From<LeaderExchange> for AllgatherAlgorithm {
    fn from(exchange: LeaderExchange) -> Self {
        match exchange {
            LeaderExchange::Ring => AllgatherAlgorithm::Ring,
            LeaderExchange::NeighbourExchange => AllgatherAlgorithm::NeighbourExchange,
            LeaderExchange::StandardExchange { ports } => AllgatherAlgorithm::StandardExchange { ports },
            LeaderExchange::Bruck { ports } => AllgatherAlgorithm::Bruck { ports },
        }
    }
}

impl AllgatherAlgorithm {
    /// What a group of `ranks` ranks uses where this is chosen: the same, but for groups that it does not fit.
    #[must_use]
    pub fn carried_out(self, ranks: u32) -> AllgatherAlgorithm {
        match self {
            AllgatherAlgorithm::NeighbourExchange if !ranks.is_multiple_of(2) => AllgatherAlgorithm::Ring,
            AllgatherAlgorithm::StandardExchange { ports } if !is_power(ranks, u64::from(ports) + 1) => {
                AllgatherAlgorithm::Bruck { ports }
            }
            AllgatherAlgorithm::Multicast { chains: 0, subgroups } => {
                AllgatherAlgorithm::Multicast { chains: ranks, subgroups }
            }
            other => other,
        }
    }
}

/// Whether `number` is `base` to some power, at least the 0th.
fn is_power(number: u32, base: u64) -> bool {
    let mut power = 1u64;
    while base > 1 && power < u64::from(number) {
        power *= base;
    }
    power == u64::from(number)
}

impl Algorithm for AllgatherAlgorithm {
    const COLLECTIVE: &'static str = "allgather";
    const ALL: &'static [Self] = &[
        AllgatherAlgorithm::Ring,
        AllgatherAlgorithm::NeighbourExchange,
        AllgatherAlgorithm::StandardExchange { ports: 1 },
        AllgatherAlgorithm::Bruck { ports: 1 },
        AllgatherAlgorithm::Hierarchical { leaders: 1, between: LeaderExchange::Ring },
        AllgatherAlgorithm::Multicast { chains: 0, subgroups: 1 },
    ];

    fn name(self) -> &'static str {
        match self {
            AllgatherAlgorithm::Ring => "ring",
            AllgatherAlgorithm::NeighbourExchange => "neighbour-exchange",
            AllgatherAlgorithm::StandardExchange { .. } => "standard-exchange",
            AllgatherAlgorithm::Bruck { .. } => "bruck",
            AllgatherAlgorithm::Hierarchical { .. } => "hierarchical",
            AllgatherAlgorithm::Multicast { .. } => "multicast",
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match (self, key) {
            (AllgatherAlgorithm::StandardExchange { ports } | AllgatherAlgorithm::Bruck { ports }, "ports") => {
                number(ports, value, 1)
            }
            (AllgatherAlgorithm::Hierarchical { leaders, .. }, "leaders") => number(leaders, value, 1),
            (AllgatherAlgorithm::Hierarchical { between, .. }, _) => between.set(key, value),
            (AllgatherAlgorithm::Multicast { chains, .. }, "chains") => number(chains, value, 0),
            (AllgatherAlgorithm::Multicast { subgroups, .. }, "subgroups") => number(subgroups, value, 1),
            _ => Err(SettingError::Unknown),
        }
    }

    fn write_settings(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllgatherAlgorithm::Ring | AllgatherAlgorithm::NeighbourExchange => Ok(()),
            AllgatherAlgorithm::StandardExchange { ports } | AllgatherAlgorithm::Bruck { ports } => {
                write!(f, ":ports={ports}")
            }
            AllgatherAlgorithm::Hierarchical { leaders, between } => {
                write!(f, ":leaders={leaders},between={}", AllgatherAlgorithm::from(between).name())?;
                match between {
                    LeaderExchange::StandardExchange { ports } | LeaderExchange::Bruck { ports } => {
                        write!(f, ",ports={ports}")
                    }
                    LeaderExchange::Ring | LeaderExchange::NeighbourExchange => Ok(()),
                }
            }
            AllgatherAlgorithm::Multicast { chains, subgroups } => {
                write!(f, ":chains={chains},subgroups={subgroups}")
            }
        }
    }
}

impl LeaderExchange {
    /// `between` is the name, `ports` its ports.
    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match (&mut *self, key, value) {
            (_, "between", "ring") => *self = LeaderExchange::Ring,
            (_, "between", "neighbour-exchange") => *self = LeaderExchange::NeighbourExchange,
            (_, "between", "standard-exchange") => *self = LeaderExchange::StandardExchange { ports: 1 },
            (_, "between", "bruck") => *self = LeaderExchange::Bruck { ports: 1 },
            (_, "between", _) => {
                let expected = "ring, neighbour-exchange, standard-exchange or bruck".into();
                return Err(SettingError::Value { expected });
            }
            (LeaderExchange::StandardExchange { ports } | LeaderExchange::Bruck { ports }, "ports", _) => {
                return number(ports, value, 1);
            }
            (_, "ports", _) => {
                let expected = "between=standard-exchange or between=bruck before it".into();
                return Err(SettingError::Value { expected });
            }
            _ => return Err(SettingError::Unknown),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CD-2: Standard Exchange for powers of `ports + 1`, Bruck for the others.
    #[test]
    fn groups_that_do_not_fit_use_another() {
        let exchange = |ports| AllgatherAlgorithm::StandardExchange { ports };
        for (ranks, ports, fits) in
            [(1, 1, true), (8, 1, true), (6, 1, false), (9, 2, true), (8, 2, false), (16, 3, true)]
        {
            let other = AllgatherAlgorithm::Bruck { ports };
            assert_eq!(exchange(ports).carried_out(ranks), if fits { exchange(ports) } else { other });
        }
        assert_eq!(AllgatherAlgorithm::NeighbourExchange.carried_out(7), AllgatherAlgorithm::Ring);
        assert_eq!(AllgatherAlgorithm::NeighbourExchange.carried_out(8), AllgatherAlgorithm::NeighbourExchange);
        let multicast = |chains| AllgatherAlgorithm::Multicast { chains, subgroups: 2 };
        assert_eq!(multicast(0).carried_out(5), multicast(5));
        assert_eq!(multicast(3).carried_out(5), multicast(3));
    }
}
