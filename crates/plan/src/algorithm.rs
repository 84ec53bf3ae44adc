//! The algorithms by which the messages of a collective travel, their costs and their settings.
//!
//! The table in [`crate::selection::Collective`] lists the algorithms of each collective and their settings. The module
//! of the collective builds its plans.
//!
//! `P` is the number of ranks and `m` is `floor(log2 P)`. `n` is the bytes of a block (allgather, alltoall, gather,
//! scatter) or of the whole (all others). If `P` is no power of two, reductions add a round at the start: the ranks
//! beyond that power send their vectors to other ranks. Most reductions also add a round at the end, in which the ranks
//! beyond that power receive their share of the result. A round is a message that cannot leave before another message
//! has arrived.

use std::fmt;

use thiserror::Error;

use crate::partition::powers;

/// The default segment of pipelined algorithms, in bytes.
pub const DEFAULT_SEGMENT: u64 = 64 << 10;

/// The segment of collectives whose blocks an algorithm never cuts.
pub const WHOLE: u64 = u64::MAX;

/// The way in which messages travel. A group agrees on one algorithm for each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `binomial`: a binomial tree, `ceil(log2 P)` rounds. Counted from the root, the parent of rank `v` is `v` without
    /// its lowest set bit. (CD-2.)
    ///
    /// Broadcast: the root sends `n` bytes in each round, every other rank receives `n` once. Reduce: the same tree,
    /// towards the root. Gather and scatter: inner ranks hold their subtrees' blocks, all of one size, in scratch.
    Binomial,
    /// `bruck`: distances grow by a factor of `ports + 1`, `ceil(log_(ports + 1) P)` rounds for any `P` (CD-2).
    ///
    /// Allgather: in round `j` a rank sends blocks to `rank - i * (ports + 1)^j`, `i` from 1 to `ports`: the sender's
    /// own block and the following ones, as many as the receiver misses. `(P - 1) * n` bytes each way. Blocks go
    /// straight to their place, in two messages if they wrap round the last rank. So the rotation at the end of the
    /// paper's variant is not needed.
    /// Alltoall, with one port: blocks of one size travel in steps of powers of two, together with others that need the
    /// same step. Each rank sends `ceil(log2 P) * P / 2 * n` bytes at most and copies twice as many bytes through
    /// scratch.
    /// (J. Bruck and others, "Efficient algorithms for all-to-all communications in multiport message-passing systems",
    /// 1997.)
    Bruck {
        /// Messages that a rank sends at the same time, at least 1.
        ports: u32,
    },
    /// `chain`: each rank passes segments on to the next rank. The rounds are `P - 2` more than the segments; each rank
    /// but the last sends `n` bytes.
    ///
    /// Broadcast: the ring broadcast of HPL (GP-8). Reduce: host by host towards the root; each rank combines the
    /// received segments with its own. This loads the root's link least.
    Chain {
        /// Bytes of a segment, at least 1. A broadcast in more than [`crate::broadcast::MAX_SEGMENTS`] segments is
        /// rejected. Reductions use longer segments instead of more than [`crate::combine::MAX_SEGMENTS`].
        segment: u64,
    },
    /// `dissemination`: in round `j` a rank notifies `rank + i * (ports + 1)^j`, `i` from 1 to `ports`, that it and all
    /// ranks known to it have called. `ceil(log_(ports + 1) P)` rounds of `ports` messages without bytes. (D. Hensgen
    /// and others, "Two algorithms for barrier synchronization", 1988.)
    Dissemination {
        /// Messages that a rank sends at the same time, at least 1.
        ports: u32,
    },
    /// `double-tree`: half of the bytes go down each of two binary trees, segment by segment. A rank with children in
    /// one tree has none in the other (TH-6). The rounds are about `2 * log2 P` more than the segments of a half; each
    /// rank sends `n` bytes at most.
    DoubleTree {
        /// Bytes of a segment, as in [`Algorithm::Chain`].
        segment: u64,
    },
    /// `halving`: vector halving with distance doubling, then a binomial gather of the parts to the root (TH-6). `2 *
    /// m` rounds, one more where `P` is no power of two; no rank sends more than `3 / 2 * n` bytes. For long vectors.
    /// (R. Rabenseifner, "Optimization of collective reduction operations", 2004.)
    Halving,
    /// `k-nomial`: as `binomial`, with digits to the base `radix` in place of bits. `ceil(log_radix P)` rounds; the
    /// root sends `(radix - 1) * n` bytes in each. (The point-to-point algorithm that MC-R compares with.)
    KNomial {
        /// Base of the digits, at least 2.
        radix: u32,
    },
    /// `linear`: every block goes straight from its source to its destination, all at once. 1 round.
    ///
    /// Gather and scatter: between the root and every other rank, by pull (SP-5). The root moves `(P - 1) * n` bytes,
    /// every other rank `n`. Allgather: every rank sends its block to all others, `(P - 1) * n` bytes each way. (CD
    /// Sec. VI-B compares with this algorithm.)
    Linear,
    /// `multicast`: a rank multicasts once to all others (MC-1, MC-8). The rank sends `n` bytes, which every other rank
    /// receives.
    ///
    /// Broadcast: the root multicasts. Allgather: all ranks multicast, one broadcast per rank, `chains` ranks at the
    /// same time. A chain is a contiguous run of ranks; chain lengths differ by one at most. The ranks of a chain take
    /// turns, which makes `ceil(P / chains)` rounds. A rank's turn begins with a signal from its predecessor in the
    /// chain, sent once the predecessor's multicast is complete on the sending side.
    Multicast {
        /// Roots that multicast at the same time, up to `P`; need not divide `P`. 0 stands for `P`: no turns.
        chains: u32,
        /// Multicast addresses over which each block is spread (MC-10), at least 1; see [`crate::subgroup_chunks`].
        subgroups: u16,
    },
    /// `neighbour-exchange`: pairs of blocks go to the left and the right neighbour in turns.
    ///
    /// `P / 2` rounds; each rank sends and receives `(P - 1) * n` bytes. A pair of ranks first shares its two blocks.
    /// Then every rank passes on the last received pair of blocks, every second round to the same neighbour. (J. Chen
    /// and others, "Performance evaluation of Allgather algorithms on terascale Linux cluster with Fast Ethernet",
    /// 2005.) Needs pairs: an odd group uses [`Algorithm::Ring`], see [`Algorithm::effective_for`].
    NeighbourExchange,
    /// `pairwise`: a rank has a message for every other rank.
    ///
    /// Alltoall: in each of `P - 1` rounds a rank exchanges blocks with one other rank. If `P` is a power of two, the
    /// other rank is `rank ^ i` in round `i`. Otherwise a rank sends to `rank + i` and receives from `rank - i`.
    /// Reduce-scatter: each rank sends every other rank its block, all at once, in segments. A segment is combined
    /// while others are under way. (GP-8.)
    Pairwise {
        /// Bytes of a segment of a block, as in [`Algorithm::Ring`].
        segment: u64,
    },
    /// `chain` of a scan: the vector goes from rank to rank, cut into pieces that follow each other. A round moves one
    /// piece, and there are `P - 2` more rounds than pieces. Each rank but the last sends `n` bytes. For long vectors.
    Pieces {
        /// Pieces of the vector, at least 1; the elements of the vector limit their number.
        pieces: u32,
    },
    /// `pull`: all messages at once, in scatter-destination order (GP-8). The engine may let the receiving side request
    /// the messages (SP-5). 1 round.
    Pull,
    /// `rabenseifner`: reduce-scatter by vector halving and distance doubling, then allgather by the way back (TH-6).
    /// `2 * m` rounds, two more where `P` is no power of two. Each rank sends less than `2 * n` bytes, some ranks `n`
    /// more. For long vectors, best where `P` is a power of two. (R. Rabenseifner, 2004.)
    Rabenseifner,
    /// `recursive-doubling`: ranks at doubling distances combine whole vectors. For short vectors.
    ///
    /// Allreduce: pairs exchange their partial results, `m` rounds, two more where `P` is no power of two. Each rank
    /// sends `m * n` bytes, some ranks `n` more. (R. Thakur and others, "Optimization of collective communication
    /// operations in MPICH", 2005.) Scan: each rank forwards its partial result, `ceil(log2 P)` rounds. (W. D. Hillis
    /// and G. L. Steele, "Data parallel algorithms", 1986.)
    RecursiveDoubling,
    /// `recursive-halving`: pairs exchange halves of the blocks at halving distances. `m` rounds, two more where `P` is
    /// no power of two. Each rank sends at most `n` bytes, also a rank that stands aside. (R. Thakur and others, 2005.)
    RecursiveHalving,
    /// `reduce-multicast`: a binomial reduce to rank 0, which multicasts the result (MC-1). `ceil(log2 P) + 1` rounds;
    /// each rank sends `n` bytes. For short vectors.
    ReduceMulticast {
        /// Multicast addresses for each block, as in [`Algorithm::Multicast`].
        subgroups: u16,
    },
    /// `reduce-scatter-multicast`: reduce-scatter round a ring, then every rank multicasts its block, all at once
    /// (MC-8). `P` rounds. Each rank sends `n` bytes, nearly half of the bytes that `ring` sends, and receives as many
    /// bytes as with `ring`. For long vectors. (The composition of appendix B of the MC paper, with a ring in place of
    /// a network that reduces.)
    ReduceScatterMulticast {
        /// Multicast addresses for each block, as in [`Algorithm::Multicast`].
        subgroups: u16,
        /// Bytes of a segment of a block, as in [`Algorithm::Ring`].
        segment: u64,
    },
    /// `ring`: each rank sends only to its right neighbour `rank + 1`.
    ///
    /// Allgather: in round `r` of `P - 1` a rank passes on block `rank - r` as message `r`, its own block straight from
    /// the contribution. `(P - 1) * n` bytes each way. (CD-2; the point-to-point algorithm that MC-R compares with.)
    /// Reduce-scatter: partial results go round, in segments that do not wait for each other. `P - 1` rounds; each rank
    /// sends all blocks but one. Allreduce: a reduce-scatter, then an allgather round the same ring. For long vectors.
    /// (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.)
    Ring {
        /// Bytes of a segment of a block, at least 1. Segments are whole elements. Segments are longer if a vector
        /// would have more than [`crate::combine::MAX_SEGMENTS`]. [`WHOLE`] if blocks are not cut.
        segment: u64,
    },
    /// `rotated-bruck`: as `bruck`, but with the rotation of the paper (CD-2). Scratch holds the blocks in order, from
    /// the rank's own on, so every message is one run of bytes. In the end all blocks are copied to their places.
    ///
    /// `ceil(log_(ports + 1) P)` rounds; `(P - 1) * n` bytes each way, and `P * n` bytes of scratch, which are copied.
    RotatedBruck {
        /// Messages that a rank sends at the same time, as in [`Algorithm::Bruck`].
        ports: u32,
    },
    /// `scatter-allgather`: `P` blocks go down a binomial tree, then round a ring that skips ranks which already have
    /// the block. `P - 1` rounds after the `ceil(log2 P)` of the tree; each rank sends less than `2 * n` bytes. (R. van
    /// de Geijn and others, "Collective communication: theory, practice, and experience", 2007.)
    ScatterAllgather,
    /// `scatter-destination`: as `pull`, but at most `batch` of a rank's sends are under way at a time (GP-8). `ceil((P
    /// - 1) / batch)` times a message's time.
    ScatterDestination {
        /// Sends at a time, at least 1.
        batch: u32,
    },
    /// `standard-exchange`: recursive doubling for `ports` ports (CD-2).
    ///
    /// `log_(ports + 1) P` rounds; each rank sends and receives `(P - 1) * n` bytes. In round `j` a rank sends all its
    /// blocks to the `ports` ranks that differ from it only in digit `j` to the base `ports + 1`. If `P` is no power of
    /// that base, [`Algorithm::Bruck`] with as many ports is used, see [`Algorithm::effective_for`].
    StandardExchange {
        /// Messages that a rank sends at the same time, at least 1.
        ports: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AlgorithmSettingError {
    #[error("there is no such setting of this algorithm")]
    Unknown,
    #[error("expected {expected}")]
    Value { expected: String },
}

impl AlgorithmSettingError {
    pub(crate) fn expected(expected: impl fmt::Display) -> Self {
        AlgorithmSettingError::Value { expected: expected.to_string() }
    }
}

pub(crate) enum Setting<'a> {
    Bytes(&'a mut u64),
    Count(&'a mut u32),
    Addresses(&'a mut u16),
}

impl Setting<'_> {
    pub(crate) fn get(&self) -> u64 {
        match self {
            Setting::Bytes(value) => **value,
            Setting::Count(value) => (**value).into(),
            Setting::Addresses(value) => (**value).into(),
        }
    }

    /// Sets the setting to the number in `text`, which must be `least` or more.
    pub(crate) fn set(self, text: &str, least: u64) -> Result<(), AlgorithmSettingError> {
        let set = text.parse().ok().filter(|number| *number >= least).and_then(|number: u64| {
            match self {
                Setting::Bytes(value) => *value = number,
                Setting::Count(value) => *value = number.try_into().ok()?,
                Setting::Addresses(value) => *value = number.try_into().ok()?,
            }
            Some(())
        });
        set.ok_or_else(|| AlgorithmSettingError::expected(format_args!("a number from {least}")))
    }
}

/// The least value of the setting called `key`.
pub(crate) fn least(key: &str) -> u64 {
    match key {
        "chains" => 0,
        "radix" => 2,
        _ => 1,
    }
}

impl Algorithm {
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Binomial => "binomial",
            Algorithm::Bruck { .. } => "bruck",
            Algorithm::Chain { .. } | Algorithm::Pieces { .. } => "chain",
            Algorithm::Dissemination { .. } => "dissemination",
            Algorithm::DoubleTree { .. } => "double-tree",
            Algorithm::Halving => "halving",
            Algorithm::KNomial { .. } => "k-nomial",
            Algorithm::Linear => "linear",
            Algorithm::Multicast { .. } => "multicast",
            Algorithm::NeighbourExchange => "neighbour-exchange",
            Algorithm::Pairwise { .. } => "pairwise",
            Algorithm::Pull => "pull",
            Algorithm::Rabenseifner => "rabenseifner",
            Algorithm::RecursiveDoubling => "recursive-doubling",
            Algorithm::RecursiveHalving => "recursive-halving",
            Algorithm::ReduceMulticast { .. } => "reduce-multicast",
            Algorithm::ReduceScatterMulticast { .. } => "reduce-scatter-multicast",
            Algorithm::Ring { .. } => "ring",
            Algorithm::RotatedBruck { .. } => "rotated-bruck",
            Algorithm::ScatterAllgather => "scatter-allgather",
            Algorithm::ScatterDestination { .. } => "scatter-destination",
            Algorithm::StandardExchange { .. } => "standard-exchange",
        }
    }

    pub(crate) fn setting(&mut self, key: &str) -> Option<Setting<'_>> {
        use Algorithm::{
            Bruck, Chain, Dissemination, DoubleTree, KNomial, Multicast, Pairwise, Pieces, ReduceMulticast,
            ReduceScatterMulticast, Ring, RotatedBruck, ScatterDestination, StandardExchange,
        };
        match (self, key) {
            (
                Bruck { ports } | Dissemination { ports } | RotatedBruck { ports } | StandardExchange { ports },
                "ports",
            ) => Some(Setting::Count(ports)),
            (
                Chain { segment }
                | DoubleTree { segment }
                | Pairwise { segment }
                | Ring { segment }
                | ReduceScatterMulticast { segment, .. },
                "segment",
            ) => Some(Setting::Bytes(segment)),
            (KNomial { radix }, "radix") => Some(Setting::Count(radix)),
            (Multicast { chains, .. }, "chains") => Some(Setting::Count(chains)),
            (
                Multicast { subgroups, .. } | ReduceMulticast { subgroups } | ReduceScatterMulticast { subgroups, .. },
                "subgroups",
            ) => Some(Setting::Addresses(subgroups)),
            (Pieces { pieces }, "pieces") => Some(Setting::Count(pieces)),
            (ScatterDestination { batch }, "batch") => Some(Setting::Count(batch)),
            _ => None,
        }
    }

    pub const fn multicasts(self) -> bool {
        matches!(
            self,
            Algorithm::Multicast { .. } | Algorithm::ReduceMulticast { .. } | Algorithm::ReduceScatterMulticast { .. }
        )
    }

    /// The algorithm that a group of `ranks` ranks uses: this one, or its replacement if the group does not fit this
    /// one.
    pub fn effective_for(self, ranks: u32) -> Algorithm {
        match self {
            Algorithm::NeighbourExchange if !ranks.is_multiple_of(2) => Algorithm::Ring { segment: WHOLE },
            Algorithm::StandardExchange { ports } if !is_power(ranks, u64::from(ports) + 1) => {
                Algorithm::Bruck { ports }
            }
            Algorithm::Multicast { chains: 0, subgroups } => Algorithm::Multicast { chains: ranks, subgroups },
            other => other,
        }
    }
}

/// Whether `number` is a power of `base`, 1 included.
fn is_power(number: u32, base: u64) -> bool {
    number == 1 || powers(base, number.into()).last().is_some_and(|last| last * base == number.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CD-2: Standard Exchange for powers of `ports + 1`, Bruck for other groups.
    #[test]
    fn groups_that_do_not_fit_use_another() {
        for (ranks, ports, fits) in
            [(1, 1, true), (8, 1, true), (6, 1, false), (9, 2, true), (8, 2, false), (16, 3, true)]
        {
            let exchange = Algorithm::StandardExchange { ports };
            let other = Algorithm::Bruck { ports };
            assert_eq!(exchange.effective_for(ranks), if fits { exchange } else { other });
        }
        assert_eq!(Algorithm::NeighbourExchange.effective_for(7), Algorithm::Ring { segment: WHOLE });
        assert_eq!(Algorithm::NeighbourExchange.effective_for(8), Algorithm::NeighbourExchange);
        let multicast = |chains| Algorithm::Multicast { chains, subgroups: 2 };
        assert_eq!(multicast(0).effective_for(5), multicast(5));
        assert_eq!(multicast(3).effective_for(5), multicast(3));
    }
}
