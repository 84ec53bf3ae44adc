//! Options of a run: sizes, peers, faults, repetitions; and parsing of their texts.

use crate::{BenchCall, Collective, Setup};
use outboard_units::{Size, UnitError};
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// The largest number of sizes in one run; the measuring program has room for this many.
pub(crate) const MAX_SIZES: usize = 32;
/// One run of the benchmark.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Cluster, ranks, systems and repetitions.
    pub setup: Setup,
    /// The collective.
    pub collective: Collective,
    /// Bytes of a call ([`BenchCall::bytes`]), in the order of the report.
    pub sizes: Vec<u64>,
    /// A rank that posts late in every repetition (SP-9).
    pub late: Option<LateRankSpec>,
}

impl BenchOptions {
    /// Options without a late rank.
    pub fn new(setup: Setup, collective: Collective, sizes: Vec<u64>) -> Self {
        Self { setup, collective, sizes, late: None }
    }

    /// The calls that are measured, in the order of the sizes.
    pub fn calls(&self) -> impl Iterator<Item = BenchCall> {
        self.sizes.iter().map(|bytes| self.call(*bytes))
    }

    /// The call that is measured for one of the sizes.
    pub(crate) fn call(&self, bytes: u64) -> BenchCall {
        let silent_rank = self.late.is_some_and(|late| late.silent);
        BenchCall { silent_rank, ..self.setup.call(self.collective, bytes) }
    }

    pub(crate) fn check(&self) -> Result<(), OptionError> {
        self.setup.check()?;
        check_sizes(&self.sizes)?;
        let multiple = self.collective.bytes_multiple(self.setup.ranks());
        if let Some(bytes) = self.sizes.iter().find(|bytes| !bytes.is_multiple_of(multiple)) {
            return Err(OptionError::Elements { collective: self.collective.name(), bytes: *bytes, multiple });
        }
        if self.collective == Collective::PingPong && self.setup.ranks() < 2 {
            return Err(OptionError::Alone);
        }
        if !self.collective.has_bytes() && self.sizes != [0] {
            return Err(OptionError::NoBytes { collective: self.collective.name() });
        }
        match self.late {
            Some(late) if late.rank >= self.setup.ranks() => {
                Err(OptionError::LateRank { rank: late.rank, ranks: self.setup.ranks() })
            }
            Some(LateRankSpec { silent: true, .. }) if self.collective != Collective::Alltoallv => {
                Err(OptionError::Silent { collective: self.collective.name() })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Checks that `given` is at least 1 and at most `most`.
pub(crate) fn check_count(what: &'static str, most: u64, given: u64) -> Result<(), OptionError> {
    if (1..=most).contains(&given) { Ok(()) } else { Err(OptionError::Count { what, most, given }) }
}

/// Checks that a run has room for these sizes.
pub(crate) fn check_sizes(sizes: &[u64]) -> Result<(), OptionError> {
    check_count("sizes", MAX_SIZES as u64, sizes.len() as u64)?;
    match sizes.iter().find(|bytes| **bytes > MAX_SIZE) {
        Some(bytes) => Err(OptionError::Size { bytes: Size(*bytes) }),
        None => Ok(()),
    }
}

/// The late rank, and how late it is: `RANK:MS` or `RANK:TIMESx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateRankSpec {
    /// The rank.
    pub rank: u32,
    /// How long the rank sleeps after the others have posted.
    pub by: LateBy,
    /// The late rank exchanges no blocks in an alltoallv. A rank that needs a block of the late rank cannot end before
    /// the block arrives. So only a silent late rank shows whether ranks that need nothing of it end as if no rank were
    /// late.
    pub silent: bool,
}

/// How late a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateBy {
    /// A time, for every system and size.
    Time(Duration),
    /// A multiple of the system's own time for that size with no rank late, in the same launch.
    PureTimes(u32),
}

impl FromStr for LateRankSpec {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let wrong = || OptionError::Text {
            text: text.to_owned(),
            wanted: "RANK:MS or, in times of the system's own, RANK:TIMESx, such as 2:50 or 2:2x",
        };
        let (rank, by) = text.split_once(':').ok_or_else(wrong)?;
        let by = match by.strip_suffix('x') {
            Some(times) => LateBy::PureTimes(times.parse().ok().filter(|times| *times > 0).ok_or_else(wrong)?),
            None => LateBy::Time(outboard_units::Duration::milliseconds(by).map_err(|_| wrong())?),
        };
        Ok(Self { rank: rank.parse().map_err(|_| wrong())?, by, silent: false })
    }
}

/// An impossible option.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum OptionError {
    #[error("{what}: 1 to {most} can be had, not {given}")]
    Count { what: &'static str, most: u64, given: u64 },
    #[error("'{text}' is not {wanted}")]
    Text { text: String, wanted: &'static str },
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("a size is at most 1G, and not {bytes}")]
    Size { bytes: Size },
    #[error("a {collective} is measured with a multiple of {multiple} bytes, not {bytes}")]
    Elements { collective: &'static str, bytes: u64, multiple: u64 },
    #[error("a {collective} moves no bytes: its one size is 0")]
    NoBytes { collective: &'static str },
    #[error("a ping-pong is between two ranks, and here is one: name a lab of more hosts or --ranks-per-host 2")]
    Alone,
    #[error("rank {rank} cannot be late: the lab's ranks are 0 to {}", ranks - 1)]
    LateRank { rank: u32, ranks: u32 },
    #[error(
        "a grid has an even number of points along each axis, 8 to 4096, and lines for all of {ranks} ranks, not {grid}"
    )]
    Grid { grid: u32, ranks: u32 },
    #[error("a radix is 2 to 65536, or 1 to 16 bits with --digit-bits; here a pass would have {buckets} buckets")]
    Buckets { buckets: u32 },
    #[error(
        "a late rank can be silent in an alltoallv only: counts of zero are what makes it so, and {collective} has none"
    )]
    Silent { collective: &'static str },
}

/// Counts in MPI calls are 32-bit; larger sizes are of no use on an emulated link either.
const MAX_SIZE: u64 = 1 << 30;
/// Parses sizes separated by commas: `256K,1M,4M`.
pub fn parse_sizes(text: &str) -> Result<Vec<u64>, OptionError> {
    text.split(',').map(|text| Ok(text.parse::<Size>()?.0)).collect()
}

/// The shortest text that [`parse_sizes`] reads as `bytes`.
pub(crate) fn format_size(bytes: u64) -> String {
    format!("{:#}", Size(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print_alike() {
        assert_eq!(parse_sizes("256K,1M,4m,1448"), Ok(vec![262_144, 1_048_576, 4_194_304, 1448]));
        assert_eq!([64 << 10, 1 << 30, 1448, 0].map(format_size), ["64K", "1G", "1448", "0"]);
        for text in ["1M,,4M", "1T"] {
            let refused = parse_sizes(text).expect_err("no size").to_string();
            assert!(refused.contains("such as `64K`"), "{refused}");
        }
    }

    #[test]
    fn lateness_is_a_rank_and_milliseconds_or_times() {
        let late = LateRankSpec { rank: 2, by: LateBy::Time(Duration::from_millis(50)), silent: false };
        assert_eq!("2:50".parse(), Ok(late));
        assert_eq!("2:50ms".parse(), Ok(late));
        assert_eq!("2:3x".parse(), Ok(LateRankSpec { by: LateBy::PureTimes(3), ..late }));
        for text in ["", "2", "2:", ":50", "a:50", "2:-1", "2:x", "2:0x", "2:-1x", "2:1.5x", "2:5d"] {
            assert!(text.parse::<LateRankSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn impossible_runs_are_refused() {
        let setup = Setup::new("4x1gbit".parse().unwrap(), 20);
        let good = BenchOptions::new(setup, Collective::Allgather, vec![1024]);
        assert_eq!(good.check(), Ok(()));
        let bad = |change: fn(&mut BenchOptions)| {
            let mut options = good.clone();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert_eq!(bad(|o| o.sizes.clear()), OptionError::Count { what: "sizes", most: 32, given: 0 });
        assert_eq!(bad(|o| o.setup.rounds = 0), OptionError::Count { what: "rounds", most: 100_000, given: 0 });
        assert_eq!(bad(|o| o.collective = Collective::Barrier), OptionError::NoBytes { collective: "barrier" });
        let cut = bad(|o| (o.collective, o.sizes[0]) = (Collective::ReduceScatter, 1000));
        assert_eq!(cut, OptionError::Elements { collective: "reduce-scatter", bytes: 1000, multiple: 32 });
        let alone = |o: &mut BenchOptions| {
            (o.collective, o.setup.lab) = (Collective::PingPong, "1x1gbit".parse().expect("a lab"));
        };
        assert_eq!(bad(alone), OptionError::Alone);
        let late = bad(|o| o.late = Some(LateRankSpec { rank: 4, by: LateBy::PureTimes(1), silent: false }));
        assert_eq!(late, OptionError::LateRank { rank: 4, ranks: 4 });
        let silent = bad(|o| o.late = Some(LateRankSpec { rank: 3, by: LateBy::PureTimes(1), silent: true }));
        assert_eq!(silent, OptionError::Silent { collective: "allgather" });
        assert_eq!(late.to_string(), "rank 4 cannot be late: the lab's ranks are 0 to 3");
    }
}
