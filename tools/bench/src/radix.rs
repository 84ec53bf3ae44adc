//! A parallel radix sort below every MPI library and below the preloaded shim (CD-8, programs/radix.c). Each pass moves
//! keys locally while `MPI_Iallgather` exchanges all histograms, then puts the keys in their places by one-sided calls.
//!
//! Invariants: every system has the same C source and keys. Every result is compared with a qsort of all keys. Among
//! the counted calls only histograms can be offloaded, so a row says how many of them were.
//!
//! Never does: choosing how a histogram is exchanged; the shim and the daemons choose.

use crate::job::System;
use crate::launch::{ProgramLaunch, time_limit};
use crate::options::check_count;
use crate::report::{BenchReport, RepetitionCost, SampleSpread, Subject, overlap_percent, passed_through};
use crate::samples::{self, ItemSamples, LaunchSamples};
use crate::table::{Column, by_time, cpu_cell, ranks_cell, system_cell, table};
use crate::{BenchError, Collective, OptionError, Setup, format_size, run};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::time::Duration;

const SOURCES: [&str; 5] = ["radix.c", "control.o", "repetitions.o", "transport_mpi.c", "-lm"];
/// Number of sizes for which the program has room.
const MAX_SIZES: u64 = 64;
/// The most keys that a rank can have.
const MAX_KEYS: u64 = 1 << 20;
const BUCKETS: RangeInclusive<u32> = 2..=1 << 16;
const KEY_BITS: u32 = 32;
/// Bytes of a key, and of its count in a histogram.
const WORD_BYTES: u64 = 4;
/// Sorts with overlap, and sorts in turn.
const KINDS: u32 = 2;

/// One run of the radix sort.
#[derive(Clone, Debug)]
pub struct RadixOptions {
    /// Cluster, ranks and repetitions; a repetition is a sort with overlap and one without.
    pub setup: Setup,
    /// Buckets of a pass, the base of its digits, in the order of the report: 2 to 65,536.
    pub buckets: Vec<u32>,
    /// Keys of each rank, in the order of the report.
    pub keys: Vec<u32>,
}

/// One combination of buckets and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sort {
    buckets: u32,
    keys: u32,
}

impl Sort {
    /// Digits of a key.
    fn passes(self) -> u32 {
        let powers = std::iter::successors(Some(1u64), |power| Some(power * u64::from(self.buckets)));
        powers.take_while(|power| power >> KEY_BITS == 0).count() as u32
    }

    /// Bytes of the histogram of one rank.
    fn histogram_bytes(self) -> u64 {
        WORD_BYTES * u64::from(self.buckets)
    }
}

impl RadixOptions {
    /// Every number of keys with every number of buckets.
    fn sorts(&self) -> impl Iterator<Item = Sort> {
        self.keys.iter().flat_map(|keys| self.buckets.iter().map(|buckets| Sort { buckets: *buckets, keys: *keys }))
    }

    fn check(&self) -> Result<(), OptionError> {
        self.setup.check()?;
        check_count("sorts", MAX_SIZES, self.sorts().count() as u64)?;
        if let Some(buckets) = self.buckets.iter().find(|buckets| !BUCKETS.contains(*buckets)) {
            return Err(OptionError::Buckets { buckets: *buckets });
        }
        self.keys.iter().try_for_each(|keys| check_count("keys of a rank", MAX_KEYS, (*keys).into()))
    }
}

/// Everything that one run found.
pub type RadixReport = BenchReport<RadixRow>;

/// One system and one sort.
#[derive(Clone, Debug, Serialize)]
pub struct RadixRow {
    /// `radix`.
    pub program: String,
    /// The system, and its cluster and ranks.
    #[serde(flatten)]
    pub subject: Subject,
    /// Buckets of a pass: the base of its digits.
    pub buckets: u32,
    /// Passes of a sort, each with one histogram.
    pub passes: u32,
    /// Keys of each rank.
    pub keys: u32,
    /// Cost of a sort. Times are of sorts with overlap; all other figures are means of both kinds.
    #[serde(flatten)]
    pub cost: RepetitionCost,
    /// Time of the sorts without overlap.
    pub in_turn_ms: SampleSpread,
    /// The overlapping parts of a sort.
    pub histogram: Histogram,
    /// Histograms of a sort that service processes carried out: `passes` if all were offloaded, 0 if all passed
    /// through. `None` if there are no service processes.
    pub offloaded_histograms: Option<f64>,
}

/// The exchange of the histograms of one sort, and the moving of keys meanwhile. Figures are sums over the passes,
/// means over all ranks, medians of the repetitions.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Histogram {
    /// Bytes of each rank in one exchange.
    pub bytes_per_rank: u64,
    /// Time of the exchange, without overlap.
    pub exchange_ms: f64,
    /// Time of moving the keys, without overlap.
    pub moving_ms: f64,
    /// Time of exchange and moving together, with overlap.
    pub both_ms: f64,
    /// Share of the exchange that moving the keys hid (CD-7). Moving cannot hide more than `moving_ms`.
    pub overlap_percent: f64,
}

/// Measures the sort below `ours` and the peers of `options`, beside one another.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails, because a comparison needs every system. Wrong results are no error here: the row reports them.
pub fn run_radix(options: &RadixOptions, ours: &[&dyn System]) -> Result<RadixReport, BenchError> {
    options.check()?;
    let setup = Setup { one_sided: true, ..options.setup.clone() };
    run::side_by_side(
        &setup,
        ours,
        |workshop, system| workshop.program("radix", &SOURCES, system),
        run::nothing_before,
        |launching| measure(options, launching),
        |system, launches| {
            let exchange = |sort: Sort| options.setup.call(Collective::Allgather, sort.histogram_bytes());
            let sorts = options.sorts().map(|sort| (sort, exchange(sort)));
            samples::rows((&options.setup, system), launches, sorts, |subject, sort, found| {
                row(options, subject, sort, found)
            })
        },
    )
}

/// Fields that this program adds to its line for one sort, with a figure for each repetition. The common fields of the
/// line have times of sorts with overlap.
#[derive(Clone, Debug, Deserialize)]
struct SortLine {
    buckets: u32,
    keys: u32,
    /// Time of the slowest rank in sorts that move keys after the histogram has arrived.
    in_turn_ms: Vec<f64>,
    /// Time of the histogram's exchange in sorts without overlap: sum over all passes, mean over all ranks.
    exchange_ms: Vec<f64>,
    /// Time of moving the keys in sorts without overlap: sum over all passes, mean over all ranks.
    moving_ms: Vec<f64>,
    /// Exchange and moving together, in sorts with overlap.
    both_ms: Vec<f64>,
}

/// Launches the program and measures all sorts.
fn measure(options: &RadixOptions, launching: &ProgramLaunch<'_>) -> Result<LaunchSamples<SortLine>, BenchError> {
    let sizes = options.sorts().map(|sort| format!("{}:{}", sort.buckets, sort.keys));
    let key = |line: &SortLine| Sort { buckets: line.buckets, keys: line.keys };
    launching.measure(sizes, Vec::new(), limit(options), options.sorts(), key)
}

/// The time limit. A pass takes two fences, as slow as the scheduler of a busy machine makes them, and at worst a
/// message for each bucket.
fn limit(options: &RadixOptions) -> Duration {
    const PASS_S: f64 = 0.2;
    const BUCKET_S: f64 = 50e-6;
    let sorts = f64::from(2 * options.setup.repetitions + 2);
    let passes = |sort: Sort| sorts * f64::from(sort.passes());
    let key_bytes = |sort: Sort| (WORD_BYTES * u64::from(sort.keys) * u64::from(options.setup.ranks())) as f64;
    let links_s: f64 =
        options.sorts().map(|s| passes(s) * options.setup.lab.link().milliseconds(key_bytes(s) * 8.0)).sum();
    let own_s: f64 = options.sorts().map(|s| passes(s) * (PASS_S + BUCKET_S * f64::from(s.buckets.min(s.keys)))).sum();
    time_limit(links_s / 1e3, own_s)
}

fn row(options: &RadixOptions, subject: Subject, sort: Sort, found: &ItemSamples<'_, SortLine>) -> RadixRow {
    let sorts = KINDS * options.setup.all_repetitions();
    let exchange_ms = found.spread(|line| &line.exchange_ms).median;
    let moving_ms = found.spread(|line| &line.moving_ms).median;
    let both_ms = found.spread(|line| &line.both_ms).median;
    let rank_sorts = f64::from(sorts * options.setup.ranks());
    RadixRow {
        program: "radix".to_owned(),
        subject,
        buckets: sort.buckets,
        passes: sort.passes(),
        keys: sort.keys,
        cost: found.cost(sorts),
        in_turn_ms: found.spread(|line| &line.in_turn_ms),
        histogram: Histogram {
            bytes_per_rank: sort.histogram_bytes(),
            exchange_ms,
            moving_ms,
            both_ms,
            overlap_percent: overlap_percent(moving_ms, both_ms, exchange_ms),
        },
        offloaded_histograms: found.services().map(|counters| counters.completed as f64 / rank_sorts),
    }
}

const COLUMNS: [Column<RadixRow>; 12] = [
    ("system", |row| system_cell(&row.subject, &row.cost)),
    ("algorithm", |row| row.subject.algorithm.clone()),
    ("ranks", |row| ranks_cell(&row.subject)),
    ("keys/rank", |row| format_size(row.keys.into())),
    ("radix", |row| format!("{}, {} passes", row.buckets, row.passes)),
    ("time ms [min..max]", |row| row.cost.time_ms.to_string()),
    ("in turn ms [min..max]", |row| row.in_turn_ms.to_string()),
    ("histograms ms", |row| format!("{:.2}", row.histogram.exchange_ms)),
    ("moving ms", |row| format!("{:.2}", row.histogram.moving_ms)),
    ("overlap %", |row| format!("{:.0}", row.histogram.overlap_percent)),
    ("offloaded", offloaded_cell),
    ("cpu ms", |row| cpu_cell(&row.cost)),
];

/// Renders rows as lines of text, grouped by sort, fastest first. Figures are for one sort.
///
/// A `!` behind the system's name says that its results were wrong.
pub fn render_radix_table(report: &RadixReport) -> String {
    table(&COLUMNS, by_time(&report.rows, |row| (row.keys, row.buckets), |row| &row.cost))
}

fn offloaded_cell(row: &RadixRow) -> String {
    let Some(histograms) = row.offloaded_histograms else { return "-".to_owned() };
    let prefix = if passed_through(histograms, row.passes) { "NOT OFFLOADED: " } else { "" };
    format!("{prefix}{histograms:.1} of {}", row.passes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{cost, subject};

    /// CD-8: a digit of radix r has one of r values.
    #[test]
    fn cd_8_a_pass_sorts_by_one_digit() {
        let passes = |buckets| Sort { buckets, keys: 1 }.passes();
        assert_eq!([2, 4, 8, 10, 16, 256, 65_535, 65_536].map(passes), [32, 16, 11, 10, 8, 4, 3, 2]);
    }

    #[test]
    fn impossible_sorts_are_refused() {
        let setup = Setup::new("4x1gbit".parse().unwrap(), 5);
        let good = RadixOptions { setup, buckets: vec![2, 65_536], keys: vec![1, 65_536] };
        assert_eq!(good.check(), Ok(()));
        let bad = |change: fn(&mut RadixOptions)| {
            let mut options = good.clone();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert_eq!(bad(|o| o.keys.clear()), OptionError::Count { what: "sorts", most: 64, given: 0 });
        assert_eq!(bad(|o| o.buckets[1] = 1), OptionError::Buckets { buckets: 1 });
        assert_eq!(bad(|o| o.keys[0] = 0), OptionError::Count { what: "keys of a rank", most: MAX_KEYS, given: 0 });
    }

    fn row(system: &str, buckets: u32, ms: f64) -> RadixRow {
        let histogram =
            Histogram { bytes_per_rank: 64, exchange_ms: 2.0, moving_ms: 1.0, both_ms: 2.0, overlap_percent: 50.0 };
        RadixRow {
            program: "radix".into(),
            subject: subject(system),
            buckets,
            passes: 8,
            keys: 4096,
            cost: cost(ms),
            in_turn_ms: SampleSpread::of(&[ms + 1.0]),
            histogram,
            offloaded_histograms: None,
        }
    }

    #[test]
    fn rows_are_grouped_by_sort_and_sorted_by_time() {
        let mut wrong = row("broken", 4, 20.0);
        wrong.cost.verified = false;
        let text = render_radix_table(&RadixReport { rows: vec![row("slow", 16, 9.0), row("fast", 16, 8.0), wrong] });
        let systems: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(systems, ["broken!", "fast", "slow"]);
        assert!(text.contains("  16, 8 passes  ") && text.contains("  8.00 [7.00..10.00]  "), "{text}");
    }

    #[test]
    fn passed_through_row_is_marked() {
        let mut rows = vec![row("outboard", 4, 20.0), row("outboard", 16, 90.0)];
        (rows[0].offloaded_histograms, rows[1].offloaded_histograms) = (Some(0.0), Some(8.0));
        let text = render_radix_table(&RadixReport { rows });
        assert!(text.contains("  NOT OFFLOADED: 0.0 of 8  ") && text.contains("  8.0 of 8  "), "{text}");
    }
}
