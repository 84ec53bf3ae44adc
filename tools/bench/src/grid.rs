//! A grid of collectives, sizes and clusters. Each cell compares an MPI library natively with the same library below
//! the preloaded shim, and says whether a program loses by the shim.
//!
//! Invariants: both times of a cell come from one run, whose launches alternate, with the same settings of the library,
//! its progress thread included. Sizes that a collective cannot have are left out.
//!
//! Never does: measuring by itself ([`run_batches`](crate::run_batches) does), judging a difference within the noise.

use crate::report::BenchReport;
use crate::table::{Column, markdown, or_none, table};
use crate::{BatchRow, BenchOptions, Collective, OptionError, Setup, ShimChoice, format_size};
use outboard_lab::LabSpec;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A difference counts only if it exceeds this share of the native time.
const NOTICED_FROM_SHARE: f64 = 0.03;
/// A difference counts only if it exceeds this time. For a verdict, the difference must also exceed the noise.
const NOTICED_FROM_US: f64 = 3.0;
/// Student's t for a 95 % interval, by degrees of freedom from 1 on; beyond the table a close approximation is used.
const STUDENT_95: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Half the 95 % interval around the mean of `values`; 0 for a single value, whose chance is unknown.
fn half_interval(values: &[f64]) -> f64 {
    let Some(freedom) = values.len().checked_sub(1).filter(|freedom| *freedom > 0) else { return 0.0 };
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let student = STUDENT_95.get(freedom - 1).copied().unwrap_or(1.96 + 2.5 / freedom as f64);
    student * (squares / freedom as f64 / values.len() as f64).sqrt()
}

/// A cluster and the ranks of each of its hosts: `HOSTSxRATE` for one rank, or `HOSTSxRATE:RANKS`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterShape {
    /// The cluster.
    pub lab: LabSpec,
    /// Ranks on every host.
    pub ranks_per_host: u32,
}

impl FromStr for ClusterShape {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let wrong = || OptionError::Text {
            text: text.to_owned(),
            wanted: "a cluster, HOSTSxRATE, or HOSTSxRATE:RANKS with several ranks on each host, such as 1x1gbit:4",
        };
        let (lab, ranks) = text.split_once(':').unwrap_or((text, "1"));
        let ranks_per_host = ranks.parse().map_err(|_| wrong())?;
        Ok(Self { lab: lab.parse().map_err(|_| wrong())?, ranks_per_host })
    }
}

impl fmt::Display for ClusterShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ranks_per_host {
            1 => self.lab.fmt(f),
            several => write!(f, "{}:{several}", self.lab),
        }
    }
}

/// The runs on one cluster: one for each collective, with the sizes that it can have, in their order.
pub fn grid_runs(setup: &Setup, collectives: &[Collective], sizes: &[u64]) -> Vec<BenchOptions> {
    let run = |collective: &Collective| {
        let multiple = collective.bytes_multiple(setup.ranks());
        let fitting = if collective.has_bytes() { sizes } else { &[0] };
        let sizes: Vec<u64> = fitting.iter().copied().filter(|bytes| bytes.is_multiple_of(multiple)).collect();
        (!sizes.is_empty()).then(|| BenchOptions::new(setup.clone(), *collective, sizes))
    };
    collectives.iter().filter_map(run).collect()
}

/// Repeats `options` in `rounds` rounds, for the sizes whose cells were slower below the shim. `None` if no cell was
/// slower, or if `rounds` is 0.
pub fn slower_again(options: &BenchOptions, found: &[GridCell], rounds: u32) -> Option<BenchOptions> {
    let slower = |cell: &&GridCell| cell.difference_us > 0.0 && cell.verdict != ShimVerdict::Even;
    let mut again = options.clone();
    again.setup.rounds = rounds;
    // The first run has already learnt, and its results are kept.
    again.setup.learn = 0;
    again.sizes = found.iter().filter(slower).map(|cell| cell.bytes_per_rank).collect();
    (rounds > 0 && !again.sizes.is_empty()).then_some(again)
}

/// Everything that one grid found.
pub type GridReport = BenchReport<GridCell>;

/// One collective at one size on one cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridCell {
    /// Name of the [`Collective`].
    pub collective: String,
    /// Blocking calls, or nonblocking ones with a computation of equal length in them.
    pub blocking: bool,
    /// The [`ClusterShape`].
    pub place: String,
    /// Bytes of a call ([`BenchCall::bytes`](crate::BenchCall::bytes)).
    pub bytes_per_rank: u64,
    /// Name of the library that is measured natively.
    pub native: String,
    /// The shim's way to choose, as in `OUTBOARD_CHOICE`.
    pub choice: String,
    /// Native time of a call on the slowest rank: the rank's time of a batch without the computations, divided by the
    /// number of calls. The figure is the mean over rounds of the median batch. If launches have two speeds, a median
    /// over all batches would only show which speed is more frequent.
    pub native_us: f64,
    /// The time of a call below the shim, computed in the same way.
    pub below_us: f64,
    /// Time below the shim divided by the native time.
    pub ratio: f64,
    /// Time below the shim minus the native time.
    pub difference_us: f64,
    /// Part of the difference that chance explains: half the 95 % interval around the mean over rounds; 0 for one
    /// round.
    pub noise_us: f64,
    /// Whether the difference is a loss.
    pub verdict: ShimVerdict,
    /// Calls that service processes carried out, per call below the shim; near 0 if the shim chose the library.
    pub offloaded_calls: Option<f64>,
    /// Every byte was right, natively and below the shim.
    pub verified: bool,
}

/// Whether a program loses or wins time by the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShimVerdict {
    /// The shim is slower.
    Loss,
    /// The difference may be chance.
    Noise,
    /// The difference is too small to matter.
    Even,
    /// The shim is faster.
    Win,
}

impl ShimVerdict {
    /// The verdict of two times and of the part of their difference that chance explains, all in microseconds.
    pub fn of(native_us: f64, below_us: f64, noise_us: f64) -> Self {
        let difference = below_us - native_us;
        let noticed = difference.abs() > NOTICED_FROM_US.max(NOTICED_FROM_SHARE * native_us);
        match (noticed, difference.abs() > noise_us, difference > 0.0) {
            (false, ..) => Self::Even,
            (true, false, _) => Self::Noise,
            (true, true, true) => Self::Loss,
            (true, true, false) => Self::Win,
        }
    }

    pub(crate) fn cell(self) -> &'static str {
        match self {
            Self::Loss => "LOSS",
            Self::Noise => "within noise",
            Self::Even => "-",
            Self::Win => "win",
        }
    }
}

impl GridCell {
    /// Whether most of the calls below the shim went to service processes.
    pub fn offloaded(&self) -> bool {
        self.offloaded_calls.is_some_and(|calls| calls > 0.5)
    }

    /// The cells of one run on `place` of two systems, the library below the shim and the library itself. Cells are in
    /// the order of the report.
    ///
    /// # Panics
    /// If the run had other systems.
    pub fn of_run(place: &ClusterShape, setup: &Setup, choosing: &ShimChoice, rows: &[BatchRow]) -> Vec<Self> {
        let (below, native) = rows.split_at(rows.len() / 2);
        below.iter().zip(native).map(|(below, native)| Self::of(place, setup, choosing, below, native)).collect()
    }

    fn of(place: &ClusterShape, setup: &Setup, choosing: &ShimChoice, below: &BatchRow, native: &BatchRow) -> Self {
        assert_eq!(below.bytes_per_rank, native.bytes_per_rank, "both sides of a cell have one size");
        assert_ne!(below.subject.system, native.subject.system, "a cell has two sides");
        let us = |row: &BatchRow| mean(&row.round_medians_ms) * 1e3;
        let (below_us, native_us) = (us(below), us(native));
        let rounds = below.round_medians_ms.iter().zip(&native.round_medians_ms);
        let differences: Vec<f64> = rounds.map(|(below, native)| (below - native) * 1e3).collect();
        let noise_us = half_interval(&differences);
        Self {
            collective: below.collective.clone(),
            blocking: setup.blocking,
            place: place.to_string(),
            bytes_per_rank: below.bytes_per_rank,
            native: native.subject.system.clone(),
            choice: choosing.way().to_owned(),
            native_us,
            below_us,
            ratio: below_us / native_us,
            difference_us: below_us - native_us,
            noise_us,
            verdict: ShimVerdict::of(native_us, below_us, noise_us),
            offloaded_calls: below.offloaded_calls,
            verified: below.cost.verified && native.cost.verified,
        }
    }
}

const COLUMNS: [Column<GridCell>; 10] = [
    ("collective", |cell| if cell.verified { cell.collective.clone() } else { format!("{}!", cell.collective) }),
    ("cluster", |cell| cell.place.clone()),
    ("bytes/rank", |cell| format_size(cell.bytes_per_rank)),
    ("native us", |cell| format!("{:.2}", cell.native_us)),
    ("below us", |cell| format!("{:.2}", cell.below_us)),
    ("ratio", |cell| format!("{:.3}", cell.ratio)),
    ("difference us", |cell| format!("{:+.2}", cell.difference_us)),
    ("noise us", |cell| format!("{:.2}", cell.noise_us)),
    ("offloaded", |cell| or_none(cell.offloaded_calls)),
    ("verdict", |cell| cell.verdict.cell().to_owned()),
];
/// How many of the worst and of the best cells are repeated at the end.
const EXTREMES: usize = 3;

/// Renders all cells as lines of text, then the worst and the best.
///
/// A `!` behind the collective says that bytes were wrong.
pub fn render_grid(report: &GridReport) -> String {
    let part = |title: &str, cells: &[&GridCell]| format!("{title}{}", table(&COLUMNS, cells.iter().copied()));
    sections(report).map(|(title, cells)| part(&title, &cells)).concat()
}

/// Renders the cells of [`render_grid`] as Markdown tables.
pub fn render_grid_markdown(report: &GridReport) -> String {
    let part = |title: &str, cells: &[&GridCell]| {
        let below_title = if title.is_empty() { "" } else { "\n" };
        format!("{title}{below_title}{}", markdown(&COLUMNS, cells.iter().copied()))
    };
    sections(report).map(|(title, cells)| part(&title, &cells)).concat()
}

/// All cells, the worst cells, the best cells, each group with its title.
fn sections(report: &GridReport) -> [(String, Vec<&GridCell>); 3] {
    let all: Vec<&GridCell> = report.rows.iter().collect();
    let mut sorted = all.clone();
    // A ratio that is within the noise of a short call is neither the worst nor the best.
    sorted.sort_by(|a, b| a.verdict.cmp(&b.verdict).then(b.ratio.total_cmp(&a.ratio)));
    let losses = all.iter().filter(|cell| cell.verdict == ShimVerdict::Loss).count();
    let shown = EXTREMES.min(sorted.len());
    let best = sorted.iter().rev().take(shown).copied().collect();
    let title = format!("\n{losses} of {} cells lose; the worst:\n", all.len());
    sorted.truncate(shown);
    [(String::new(), all), (title, sorted), ("\nThe best:\n".to_owned(), best)]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::batches::tests::row;
    use crate::report::tests::through_json;

    fn setup(place: &ClusterShape) -> Setup {
        Setup::new(place.lab.clone(), place.ranks_per_host)
    }

    pub(crate) fn cell(bytes_per_rank: u64, native_us: f64, below_us: f64) -> GridCell {
        let place = "2x1gbit".parse().unwrap();
        let rows = [row("outboard below debian", bytes_per_rank, below_us), row("debian", bytes_per_rank, native_us)];
        GridCell::of_run(&place, &setup(&place), &ShimChoice::default(), &rows).remove(0)
    }

    #[test]
    fn a_place_is_a_cluster_and_ranks_on_each_host() {
        let place: ClusterShape = "1x1gbit:4".parse().unwrap();
        assert_eq!((place.lab.hosts(), place.ranks_per_host, place.to_string().as_str()), (1, 4, "1x1gbit:4"));
        assert_eq!("4x1gbit".parse::<ClusterShape>().unwrap().to_string(), "4x1gbit");
        for text in ["", "4", "4x1gbit:", "4x1gbit:x", ":4"] {
            assert!(text.parse::<ClusterShape>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_loss_is_beyond_three_percent_three_microseconds_and_the_noise() {
        assert_eq!(ShimVerdict::of(1.0, 3.9, 0.0), ShimVerdict::Even);
        assert_eq!(ShimVerdict::of(1000.0, 1029.0, 0.0), ShimVerdict::Even);
        assert_eq!(ShimVerdict::of(50.0, 53.5, 0.0), ShimVerdict::Loss);
        assert_eq!(ShimVerdict::of(1000.0, 1031.0, 30.0), ShimVerdict::Loss);
        assert_eq!(ShimVerdict::of(1000.0, 1031.0, 32.0), ShimVerdict::Noise);
        assert_eq!(ShimVerdict::of(1000.0, 900.0, 99.0), ShimVerdict::Win);
        assert_eq!(ShimVerdict::of(1000.0, 900.0, 100.0), ShimVerdict::Noise);
    }

    #[test]
    fn a_difference_that_rounds_do_not_agree_on_is_noise() {
        let place = "2x1gbit".parse().unwrap();
        let judged = |below_us: [f64; 3]| {
            let (mut below, mut native) = (row("outboard below debian", 8, 120.0), row("debian", 8, 100.0));
            below.round_medians_ms = below_us.map(|us| us / 1e3).to_vec();
            native.round_medians_ms = vec![0.08, 0.1, 0.12];
            GridCell::of_run(&place, &setup(&place), &ShimChoice::default(), &[below, native]).remove(0)
        };
        // A change that both sides share in a round is not a difference.
        let alike = judged([100.0, 120.0, 140.0]);
        assert!(alike.noise_us < 1e-9 && alike.verdict == ShimVerdict::Loss, "{alike:?}");
        // Differences of 10, 20 and 30 us deviate by 10, their mean by 10 / sqrt(3).
        let apart = judged([90.0, 120.0, 150.0]);
        assert!((apart.noise_us - 4.303 * 10.0 / 3f64.sqrt()).abs() < 1e-9, "{apart:?}");
        assert_eq!(apart.verdict, ShimVerdict::Noise);
    }

    #[test]
    fn many_rounds_come_near_to_the_normal_distribution() {
        let half = |count: usize| half_interval(&[-1.0, 1.0].repeat(count / 2)) * (count as f64 - 1.0).sqrt();
        assert!((half(12) - 2.201).abs() < 0.02 && (half(1000) - 1.962).abs() < 0.01);
        assert_eq!(half_interval(&[5.0]), 0.0);
    }

    #[test]
    fn cells_have_both_sides_of_each_size() {
        let place = "2x1gbit".parse().unwrap();
        let mut wrong = row("debian", 1024, 200.0);
        wrong.cost.verified = false;
        let below = ["outboard below debian"; 2];
        let rows = [row(below[0], 8, 120.0), row(below[1], 1024, 150.0), row("debian", 8, 100.0), wrong];
        let cells = GridCell::of_run(&place, &setup(&place), &ShimChoice::default(), &rows);
        let figures: Vec<_> = cells.iter().map(|cell| (cell.bytes_per_rank, cell.ratio, cell.verdict)).collect();
        assert_eq!(figures, [(8, 1.2, ShimVerdict::Loss), (1024, 0.75, ShimVerdict::Win)]);
        assert!((cells[0].difference_us - 20.0).abs() < 1e-9 && cells[0].verified && !cells[1].verified);
        assert_eq!(through_json(cells[0].clone())["verdict"], "loss");
    }

    #[test]
    fn what_is_slower_is_measured_again_and_nothing_else() {
        let setup = Setup { learn: 3, ..setup(&"2x1gbit".parse().unwrap()) };
        let options = BenchOptions::new(setup, Collective::Broadcast, vec![8, 64, 1024, 4096]);
        let mut found = [cell(8, 100.0, 110.0), cell(64, 100.0, 90.0), cell(1024, 100.0, 102.0), cell(4096, 9.0, 19.0)];
        found[3].verdict = ShimVerdict::Noise;
        let again = slower_again(&options, &found, 15).unwrap();
        assert_eq!((again.sizes, again.setup.rounds, again.setup.learn), (vec![8, 4096], 15, 0));
        assert!(slower_again(&options, &found, 0).is_none());
        assert!(slower_again(&options, &found[1..3], 15).is_none());
    }

    #[test]
    fn a_collective_has_the_sizes_that_it_can_have() {
        let setup = Setup::new("4x1gbit".parse().unwrap(), 1);
        let collectives = [Collective::Barrier, Collective::ReduceScatter, Collective::Broadcast, Collective::Reduce];
        let sizes = |given: &[u64]| {
            let runs = grid_runs(&setup, &collectives, given);
            runs.into_iter().map(|run| (run.collective, run.sizes)).collect::<Vec<_>>()
        };
        let [barrier, reduce_scatter, broadcast, reduce] = collectives;
        let all = [(barrier, vec![0]), (reduce_scatter, vec![64]), (broadcast, vec![8, 64]), (reduce, vec![8, 64])];
        assert_eq!(sizes(&[8, 64]), all);
        assert_eq!(sizes(&[3]), [(barrier, vec![0]), (broadcast, vec![3])]);
    }

    fn report() -> GridReport {
        let times = [(8, 100.0, 120.0), (64, 1.0, 2.0), (1024, 100.0, 90.0), (4096, 100.0, 50.0)];
        GridReport { rows: times.map(|(bytes, native, below)| cell(bytes, native, below)).to_vec() }
    }

    #[test]
    fn the_worst_and_the_best_stand_below_all() {
        let text = render_grid(&report());
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words[1],
            ["broadcast", "2x1gbit", "8", "100.00", "120.00", "1.200", "+20.00", "0.00", "-", "LOSS"],
            "{text}"
        );
        assert_eq!(words[2][9], "-");
        assert_eq!(text.lines().nth(6), Some("1 of 4 cells lose; the worst:"));
        let sizes = |from: usize| words[from..from + 3].iter().map(|line| line[2]).collect::<Vec<_>>();
        assert_eq!((sizes(8), sizes(14)), (vec!["8", "64", "1K"], vec!["4K", "1K", "64"]), "{text}");
    }

    #[test]
    fn markdown_has_the_same_lines() {
        let text = render_grid_markdown(&report());
        assert_eq!(text.lines().nth(1), Some("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"));
        assert!(
            text.contains("\n| broadcast | 2x1gbit | 4K | 100.00 | 50.00 | 0.500 | -50.00 | 0.00 | - | win |\n"),
            "{text}"
        );
        assert!(text.contains("lose; the worst:\n\n| collective |"), "a table begins behind an empty line: {text}");
        assert_eq!(text.matches("|---|").count(), 3, "{text}");
    }
}
