//! A whole program beside the collectives: a three-dimensional FFT in pencils, its transposes by `MPI_Ialltoallv`
//! (programs/fft3d.c). It runs below every MPI library and below the preloaded shim.
//!
//! Invariants: every system has the same C source and FFT library, so rows of one grid must have the same bits. A row
//! says how many of its exchanges service processes carried out.
//!
//! Never does: calibrating anything. The time of a row is the time of the whole program, computation included.

mod traffic;

use crate::job::System;
use crate::launch::{ProgramLaunch, time_limit};
use crate::options::check_count;
use crate::report::{BenchReport, RepetitionCost, SampleSpread, Subject, passed_through};
use crate::samples::{self, ItemSamples, LaunchSamples};
use crate::table::{Column, by_time, cpu_cell, ranks_cell, system_cell, table};
use crate::{BenchError, Collective, OptionError, Setup, run};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use traffic::FftTraffic;

const SOURCES: [&str; 6] = ["fft3d.c", "control.o", "repetitions.o", "transport_mpi.c", "-lfftw3", "-lm"];
/// Number of grids for which the measuring program has room.
const MAX_GRIDS: u64 = 16;
const MAX_VARIABLES: u64 = 64;
const GRID_SIZES: std::ops::RangeInclusive<u32> = 8..=4096;
/// Forward and backward.
const DIRECTIONS: u32 = 2;

/// One run of the FFT program.
#[derive(Clone, Debug)]
pub struct FftOptions {
    /// Cluster, ranks and repetitions. Neighbouring ranks are in one row of the process grid. A repetition is a pair of
    /// transforms, forward and backward.
    pub setup: Setup,
    /// Points along each axis of the grids, in the order of the report: even numbers.
    pub grids: Vec<u32>,
    /// Real fields that are transformed in a pipeline.
    pub variables: u32,
}

impl FftOptions {
    /// Ranks along y and along z of the process grid, which is as near to a square as the number of ranks allows. The
    /// shorter side is along y; ranks of a row are neighbours.
    fn process_grid(&self) -> (u32, u32) {
        let ranks = self.setup.ranks();
        let rows = (1..=ranks.isqrt()).rev().find(|rows| ranks.is_multiple_of(*rows)).expect("1 divides all numbers");
        (rows, ranks / rows)
    }

    fn check(&self) -> Result<(), OptionError> {
        self.setup.check()?;
        check_count("grids", MAX_GRIDS, self.grids.len() as u64)?;
        let (rows, columns) = self.process_grid();
        // Every rank has lines of every axis; the x axis has half its points after the first transform.
        let fits = |grid: u32| grid.is_multiple_of(2) && columns <= grid && rows <= grid / 2 + 1;
        if let Some(grid) = self.grids.iter().find(|grid| !GRID_SIZES.contains(*grid) || !fits(**grid)) {
            return Err(OptionError::Grid { grid: *grid, ranks: self.setup.ranks() });
        }
        check_count("fields", MAX_VARIABLES, self.variables.into())
    }
}

/// Everything that one run found.
pub type FftReport = BenchReport<FftRow>;

impl FftReport {
    /// Whether every result was right and every system got the same bits.
    pub fn agrees(&self) -> bool {
        self.rows.iter().all(|row| row.cost.verified && self.rows.iter().all(|other| row.same_bits(other)))
    }
}

/// One system on one grid. A repetition is a forward and a backward transform of all fields.
#[derive(Clone, Debug, Serialize)]
pub struct FftRow {
    /// `fft`.
    pub program: String,
    /// The system, and its cluster and ranks.
    #[serde(flatten)]
    pub subject: Subject,
    /// Ranks along y and along z: `2x4`.
    pub process_grid: String,
    /// Points along each axis.
    pub grid: u32,
    /// Fields in the pipeline.
    pub variables: u32,
    /// Cost of a repetition; bits that differ from another repetition's count as wrong.
    #[serde(flatten)]
    pub cost: RepetitionCost,
    /// Time inside MPI (posting and waiting) per repetition, the mean over all ranks.
    pub mpi_ms: SampleSpread,
    /// Least time at the rate of the links, without any computation.
    pub limit_ms: f64,
    /// Bytes of blocks between ranks of different hosts, over all switch ports.
    pub payload_bytes: u64,
    /// Calls of `MPI_Ialltoallv` per rank and repetition; exchanges with a single rank do not count.
    pub exchanges: u32,
    /// Calls that service processes carried out per repetition, including the program's barriers. 0 if all calls passed
    /// through, `None` if there are no service processes.
    pub offloaded_exchanges: Option<f64>,
    /// Checksum over all bits of the spectra and of the fields that came back; equal for all systems of a run.
    pub checksum: String,
}

impl FftRow {
    /// Whether both rows have the same results, to the last bit. True also for rows that differ in grid, fields or
    /// process grid.
    fn same_bits(&self, other: &Self) -> bool {
        let computed = |row: &Self| (row.grid, row.variables, row.process_grid.clone());
        computed(self) != computed(other) || self.checksum == other.checksum
    }
}

/// Measures the program below `ours` and the peers of `options`, beside one another.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails, because a comparison needs every system. Wrong results are no error here: the row reports them.
pub fn run_fft(options: &FftOptions, ours: &[&dyn System]) -> Result<FftReport, BenchError> {
    options.check()?;
    run::side_by_side(
        &options.setup,
        ours,
        |workshop, system| workshop.program("fft3d", &SOURCES, system),
        run::nothing_before,
        |launching| measure(options, launching),
        |system, launches| {
            // The bytes differ from exchange to exchange.
            let call = options.setup.call(Collective::Alltoallv, 0);
            let grids = options.grids.iter().map(|grid| (*grid, call));
            samples::rows((&options.setup, system), launches, grids, |subject, grid, found| {
                row(options, subject, grid, found)
            })
        },
    )
}

/// Fields that this program adds to its line for one grid.
#[derive(Clone, Debug, Deserialize)]
struct GridLine {
    grid: u32,
    /// Checksum over all bits of the spectra and of the fields that came back; the same in all repetitions.
    checksum: String,
    /// The mean over all ranks of each repetition.
    mpi_ms: Vec<f64>,
}

/// Launches the program and measures all grids.
fn measure(options: &FftOptions, launching: &ProgramLaunch<'_>) -> Result<LaunchSamples<GridLine>, BenchError> {
    let (rows, columns) = options.process_grid();
    let own = vec![format!("variables={}", options.variables), format!("process-grid={rows}x{columns}")];
    let grids = options.grids.iter();
    launching
        .measure(grids.clone().map(u32::to_string), own, limit(options), grids.copied(), |line: &GridLine| line.grid)
}

/// The time limit, at half a million points per second, which is slow for transforms and checks.
fn limit(options: &FftOptions) -> Duration {
    const POINTS_PER_S: f64 = 5e5;
    let links_s = |grid: &u32| FftTraffic::of(options, *grid).limit_ms(&options.setup.lab.link()) / 1e3;
    let own_s = |grid: &u32| f64::from(*grid).powi(3) * f64::from(options.variables) / POINTS_PER_S;
    let (links_s, own_s): (f64, f64) = (options.grids.iter().map(links_s).sum(), options.grids.iter().map(own_s).sum());
    let repetitions = f64::from(options.setup.repetitions + 2);
    time_limit(repetitions * links_s, repetitions * own_s)
}

fn row(options: &FftOptions, subject: Subject, grid: u32, found: &ItemSamples<'_, GridLine>) -> FftRow {
    let repetitions = options.setup.all_repetitions();
    let (rows, columns) = options.process_grid();
    let traffic = FftTraffic::of(options, grid);
    let checksum = found.raw_samples().next().map(|raw| raw.own.checksum.clone()).unwrap_or_default();
    let mut cost = found.cost(repetitions);
    cost.wrong_results += found.raw_samples().filter(|raw| raw.own.checksum != checksum).count() as u64;
    cost.verified = cost.wrong_results == 0;
    let between = u32::from(rows > 1) + u32::from(columns > 1);
    let rank_repetitions = f64::from(repetitions * options.setup.ranks());
    FftRow {
        program: "fft".to_owned(),
        subject,
        process_grid: format!("{rows}x{columns}"),
        grid,
        variables: options.variables,
        cost,
        mpi_ms: found.spread(|line| &line.mpi_ms),
        limit_ms: traffic.limit_ms(&options.setup.lab.link()),
        payload_bytes: traffic.bytes(),
        exchanges: between * DIRECTIONS * options.variables,
        offloaded_exchanges: found.services().map(|counters| counters.completed as f64 / rank_repetitions),
        checksum,
    }
}

const COLUMNS: [Column<FftRow>; 9] = [
    ("system", |row| system_cell(&row.subject, &row.cost)),
    ("algorithm", |row| row.subject.algorithm.clone()),
    ("ranks", |row| ranks_cell(&row.subject)),
    ("grid", |row| format!("{}^3 x {}", row.grid, row.variables)),
    ("time ms [min..max]", |row| format!("{:.1}", row.cost.time_ms)),
    ("in MPI ms [min..max]", |row| format!("{:.1}", row.mpi_ms)),
    ("links ms", |row| format!("{:.1}", row.limit_ms)),
    ("wire MB", |row| format!("{:.1} ({:.1} payload)", row.cost.wire_bytes / 1e6, row.payload_bytes as f64 / 1e6)),
    ("cpu ms", |row| cpu_cell(&row.cost)),
];

/// Renders rows as lines of text, grouped by grid, fastest first. Figures are for a repetition: a forward and a
/// backward transform of all fields.
///
/// A `!` behind the system's name says that its results were wrong.
pub fn render_fft_table(report: &FftReport) -> String {
    let sorted = by_time(&report.rows, |row| row.grid, |row| &row.cost);
    table(&COLUMNS, sorted.iter().copied())
        + &sorted.iter().filter_map(|row| offloading(row)).collect::<String>()
        + &different_bits(&sorted)
}

/// How many of the exchanges service processes carried out.
fn offloading(row: &FftRow) -> Option<String> {
    let offloaded = row.offloaded_exchanges?;
    let verdict = if passed_through(offloaded, row.exchanges) { "NOT OFFLOADED: " } else { "" };
    Some(format!(
        "{}, grid {}: {verdict}service processes carried out {offloaded:.1} calls a repetition, which has {} \
         exchanges\n",
        row.subject.system, row.grid, row.exchanges
    ))
}

fn different_bits(rows: &[&FftRow]) -> String {
    let differs = |row: &&&FftRow| rows.iter().any(|other| !row.same_bits(other));
    let line = |row: &&FftRow| format!("{}, grid {}: DIFFERENT BITS: {}\n", row.subject.system, row.grid, row.checksum);
    rows.iter().filter(differs).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{cost, subject};

    fn options(lab: &str, ranks_per_host: u32) -> FftOptions {
        let mut options = FftOptions { setup: Setup::new(lab.parse().unwrap(), 5), grids: vec![128], variables: 4 };
        options.setup.ranks_per_host = ranks_per_host;
        options
    }

    #[test]
    fn process_grids_are_nearly_square() {
        let grid = |lab, ranks_per_host| options(lab, ranks_per_host).process_grid();
        assert_eq!(grid("4x1gbit", 1), (2, 2));
        assert_eq!(grid("4x1gbit", 2), (2, 4));
        assert_eq!(grid("4x1gbit", 4), (4, 4));
        assert_eq!(grid("3x1gbit", 1), (1, 3));
        assert_eq!(grid("6x1gbit", 1), (2, 3));
    }

    #[test]
    fn impossible_transforms_are_refused() {
        let good = options("4x1gbit", 2);
        assert_eq!(good.check(), Ok(()));
        let bad = |change: fn(&mut FftOptions)| {
            let mut options = good.clone();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert_eq!(bad(|o| o.grids.clear()), OptionError::Count { what: "grids", most: 16, given: 0 });
        for grid in [6, 127, 8192] {
            let mut options = good.clone();
            options.grids.push(grid);
            assert_eq!(options.check(), Err(OptionError::Grid { grid, ranks: 8 }));
        }
        assert_eq!(bad(|o| o.variables = 0), OptionError::Count { what: "fields", most: 64, given: 0 });
        assert_eq!(bad(|o| o.setup.rounds = 0), OptionError::Count { what: "rounds", most: 100_000, given: 0 });
        let mut crowded = options("8x1gbit", 64);
        crowded.grids = vec![8];
        assert_eq!(crowded.check(), Err(OptionError::Grid { grid: 8, ranks: 512 }));
    }

    fn row(system: &str, grid: u32, ms: f64) -> FftRow {
        FftRow {
            program: "fft".into(),
            subject: subject(system),
            process_grid: "2x2".into(),
            grid,
            variables: 4,
            cost: cost(ms),
            mpi_ms: SampleSpread::of(&[ms / 2.0]),
            limit_ms: ms / 3.0,
            payload_bytes: 900_000,
            exchanges: 16,
            offloaded_exchanges: None,
            checksum: "a".into(),
        }
    }

    #[test]
    fn passed_through_row_is_marked() {
        let mut rows = vec![row("outboard below debian", 128, 20.0), row("outboard below debian", 256, 90.0)];
        (rows[0].offloaded_exchanges, rows[1].offloaded_exchanges) = (Some(0.0), Some(16.0));
        let text = render_fft_table(&FftReport { rows });
        assert_eq!(
            text.lines().skip(3).collect::<Vec<_>>(),
            [
                "outboard below debian, grid 128: NOT OFFLOADED: service processes carried out 0.0 calls a repetition, \
                 which has 16 exchanges",
                "outboard below debian, grid 256: service processes carried out 16.0 calls a repetition, which has 16 \
                 exchanges"
            ]
        );
    }

    #[test]
    fn different_bits_are_reported() {
        let mut rows = vec![row("one", 128, 20.0), row("two", 128, 21.0), row("three", 256, 90.0)];
        rows[2].checksum = "c".into();
        let mut report = FftReport { rows };
        assert!(report.agrees() && !render_fft_table(&report).contains("DIFFERENT"), "another grid has other bits");
        report.rows[1].checksum = "b".into();
        assert!(!report.agrees());
        assert_eq!(render_fft_table(&report).matches("grid 128: DIFFERENT BITS").count(), 2);
    }
}
