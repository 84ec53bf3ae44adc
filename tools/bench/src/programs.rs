//! Whole programs that do not use the harness, natively and below the preloaded shim in turn, run by run. They show
//! whether a preloaded program loses time.
//!
//! Invariants: both sides have one source, one input and the same settings of the MPI library. No progress thread runs,
//! because on shared cores it also slows programs that compute beside their collectives. The time is the program's own
//! time of its loop. All runs of a program have the same result.
//!
//! Never does: judging by fewer runs than it reports. Runs for learning do not count.

use crate::compile::Workshop;
use crate::job::{ServiceCounters, System};
use crate::launch::{ProgramLaunch, time_limit};
use crate::named::named;
use crate::report::{BenchReport, SampleSpread};
use crate::samples::sum_services;
use crate::table::{Column, markdown, table};
use crate::{BenchError, ClusterShape, Setup, ShimChoice, ShimVerdict, install, run};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

named! {
    "a program: cg, panel, pagerank or lammps",
    /// A program, in the order of the report.
    BenchProgram {
        /// Conjugate gradients: halos, and sums of 8 bytes (programs/cg.c).
        Cg = "cg",
        /// LU factorisation with panels broadcast ahead (programs/panel.c).
        Panel = "panel",
        /// The demo's PageRank (examples/pagerank.c).
        PageRank = "pagerank",
        /// Debian's LAMMPS, a fluid of 7,000 atoms (programs/fluid.lammps); apt installs it.
        Lammps = "lammps",
    }
}

/// PageRank iterations in a repetition; the program reports the time of one iteration.
const ITERATIONS: u32 = 20;
/// Upper bound of the time of a repetition, on slow links and a busy machine.
const REPETITION_S: f64 = 60.0;

/// A program is slower if the median ratio of its pairs exceeds this.
const SLOWER_FROM: f64 = 1.01;
/// A program is faster if the median ratio of its pairs is at most this.
const FASTER_FROM: f64 = 0.95;

/// The result of one run of a program.
#[derive(Clone, Debug, PartialEq)]
struct ProgramOutcome {
    seconds: f64,
    /// `ok`, or a digest of the results.
    check: String,
    services: Option<ServiceCounters>,
}

impl BenchProgram {
    fn build(self, workshop: &Workshop, system: &dyn System) -> Result<PathBuf, BenchError> {
        let words: &[&str] = match self {
            Self::Cg => &["cg.c", "-lm"],
            Self::Panel => &["panel.c", "-lm"],
            // Contracted multiply-adds would make the bits depend on the compiler's choices.
            Self::PageRank => &["-ffp-contract=off", "pagerank.c", "-lm"],
            Self::Lammps => return install::ensure_lammps().map(|()| install::DEBIAN_LAMMPS.into()),
        };
        workshop.program(self.name(), words, system)
    }

    /// Arguments for `repetitions` of about half a second each.
    fn arguments(self, repetitions: u32) -> Vec<String> {
        let text = match self {
            Self::Cg => format!("48 {}", 4 * repetitions),
            Self::Panel => format!("1024 {}", 3 * repetitions),
            Self::PageRank => format!("--generate 131072 16 1 --json --iterations {}", ITERATIONS * repetitions),
            // The input lies beside the directories of launches.
            Self::Lammps => {
                format!("-in ../fluid.lammps -log none -var cells 12 -var steps {}", 100 * repetitions)
            }
        };
        text.split(' ').map(str::to_owned).collect()
    }

    /// Time and result in the program's output.
    fn outcome(self, said: &str, repetitions: u32) -> Option<(f64, String)> {
        let (time, check, unit_s) = match self {
            Self::Cg | Self::Panel => ("seconds=", "check=", 1.0),
            Self::PageRank => {
                ("\"iteration_ms\":", "\"digest\":", 1e-3 * f64::from(ITERATIONS) * f64::from(repetitions))
            }
            Self::Lammps => ("Loop time of ", "check=", 1.0),
        };
        let word = |before| said.rsplit_once(before)?.1.split([' ', ',', '}', '\n']).next();
        let seconds = word(time)?.parse::<f64>().ok().filter(|seconds| *seconds > 0.0)?;
        Some((seconds * unit_s, word(check)?.to_owned()))
    }

    fn measure(self, launching: &ProgramLaunch<'_>) -> Result<ProgramOutcome, BenchError> {
        let repetitions = launching.setup.repetitions;
        let limit = time_limit(0.0, REPETITION_S * f64::from(repetitions));
        let (said, services) = launching.run_alone(&self.arguments(repetitions), limit)?;
        match self.outcome(&said, repetitions) {
            Some((seconds, check)) => Ok(ProgramOutcome { seconds, check, services }),
            None => Err(BenchError::Protocol { system: format!("{self} of {}", launching.system.name()), line: said }),
        }
    }
}

/// Measures a program below `ours` and below the single peer of `setup`, in one pair of runs per round.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails. Wrong results only show in their row.
pub fn run_program(
    program: BenchProgram,
    place: &ClusterShape,
    setup: &Setup,
    choosing: &ShimChoice,
    ours: &dyn System,
) -> Result<ProgramRow, BenchError> {
    let setup = Setup { blocking: true, ..setup.clone() };
    setup.check()?;
    let sides = run::side_by_side(
        &setup,
        &[ours],
        |workshop, system| program.build(workshop, system),
        run::nothing_before,
        |launching| program.measure(launching),
        |_, outcomes| vec![outcomes.to_vec()],
    )?;
    let [below, native] = sides.rows.as_slice() else { panic!("ours and one peer are two sides") };
    Ok(ProgramRow::of(program, place, &setup, choosing, native, below))
}

/// All rows of a run.
pub type ProgramsReport = BenchReport<ProgramRow>;

/// One program on one cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramRow {
    /// Name of the [`BenchProgram`].
    pub program: String,
    /// The [`ClusterShape`].
    pub place: String,
    /// Name of the library that is measured natively.
    pub native: String,
    /// The shim's way to choose, as in `OUTBOARD_CHOICE`.
    pub choice: String,
    /// Pairs of runs, one native and one below the shim.
    pub pairs: u32,
    /// Time of a native run.
    pub native_s: SampleSpread,
    /// Time of a run below the shim.
    pub below_s: SampleSpread,
    /// Median time below the shim divided by the native median.
    pub ratio: f64,
    /// The ratio of each pair, whose runs follow one another.
    pub pair_ratio: SampleSpread,
    /// Whether the shim loses or wins time, by the median ratio of the pairs.
    pub verdict: ShimVerdict,
    /// Calls per rank and run that service processes carried out.
    pub offloaded_calls: Option<f64>,
    /// Processor time of the service processes in a run, from their start.
    pub service_cpu_s: Option<f64>,
    /// Whether all runs had the same, right result.
    pub verified: bool,
}

impl ProgramRow {
    fn of(
        program: BenchProgram,
        place: &ClusterShape,
        setup: &Setup,
        choosing: &ShimChoice,
        native: &[ProgramOutcome],
        below: &[ProgramOutcome],
    ) -> Self {
        let seconds = |outcomes: &[ProgramOutcome]| outcomes.iter().map(|outcome| outcome.seconds).collect::<Vec<_>>();
        let (native_s, below_s) = (seconds(native), seconds(below));
        let ratios: Vec<f64> = below_s.iter().zip(&native_s).map(|(below, native)| below / native).collect();
        let (native_s, below_s, pair_ratio) =
            (SampleSpread::of(&native_s), SampleSpread::of(&below_s), SampleSpread::of(&ratios));
        let each = |sum: f64| sum / f64::from(setup.rounds);
        let services = sum_services(below.iter().map(|outcome| outcome.services));
        let check = &native[0].check;
        Self {
            program: program.name().to_owned(),
            place: place.to_string(),
            native: setup.peers[0].name().to_owned(),
            choice: choosing.way().to_owned(),
            pairs: setup.rounds,
            native_s,
            below_s,
            ratio: below_s.median / native_s.median,
            pair_ratio,
            verdict: verdict(pair_ratio.median),
            offloaded_calls: services.map(|sum| each(sum.completed as f64) / f64::from(setup.ranks())),
            service_cpu_s: services.map(|sum| each(sum.cpu_s)),
            verified: check != "wrong" && native.iter().chain(below).all(|outcome| outcome.check == *check),
        }
    }
}

fn verdict(ratio: f64) -> ShimVerdict {
    match ratio {
        slower if slower > SLOWER_FROM => ShimVerdict::Loss,
        faster if faster <= FASTER_FROM => ShimVerdict::Win,
        _ => ShimVerdict::Even,
    }
}

const COLUMNS: [Column<ProgramRow>; 9] = [
    ("program", |row| if row.verified { row.program.clone() } else { format!("{}!", row.program) }),
    ("cluster", |row| row.place.clone()),
    ("pairs", |row| row.pairs.to_string()),
    ("native s [min..max]", |row| format!("{:.3}", row.native_s)),
    ("below s [min..max]", |row| format!("{:.3}", row.below_s)),
    ("ratio", |row| format!("{:.3}", row.ratio)),
    ("pairs' ratio [min..max]", |row| format!("{:.3}", row.pair_ratio)),
    ("offloaded/rank", |row| row.offloaded_calls.map_or_else(|| "-".to_owned(), |calls| format!("{calls:.0}"))),
    ("verdict", |row| row.verdict.cell().to_owned()),
];

/// Renders rows as lines of text.
///
/// A `!` behind the program says that results were wrong.
pub fn render_programs(report: &ProgramsReport) -> String {
    table(&COLUMNS, &report.rows)
}

/// Renders the rows of [`render_programs`] as a Markdown table.
pub fn render_programs_markdown(report: &ProgramsReport) -> String {
    markdown(&COLUMNS, &report.rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Peer;
    use crate::report::tests::through_json;

    #[test]
    fn every_program_reports_its_time_and_its_result() {
        let outcome_of = |program: BenchProgram, said: &str| program.outcome(said, 2);
        let ok = |seconds: f64| Some((seconds, "ok".to_owned()));
        assert_eq!(outcome_of(BenchProgram::Cg, "warning\nseconds=1.5 check=ok residual=1e-9"), ok(1.5));
        assert_eq!(
            outcome_of(BenchProgram::Panel, "seconds=1.5 check=wrong residual=99"),
            Some((1.5, "wrong".to_owned()))
        );
        let lammps = "Loop time of 0 on 2 procs\nLoop time of 1.25 on 2 procs for 9 steps\ncheck=ok\nTotal wall time";
        assert_eq!(outcome_of(BenchProgram::Lammps, lammps), ok(1.25));
        let pagerank = "{\"iteration_ms\":50.0,\"digest\":\"0a1b\"}";
        assert_eq!(outcome_of(BenchProgram::PageRank, pagerank), Some((2.0, "\"0a1b\"".to_owned())));
        assert_eq!(outcome_of(BenchProgram::Cg, "seconds=-1 check=ok"), None);
        assert_eq!(outcome_of(BenchProgram::Cg, "killed"), None);
    }

    fn row(native: &[(f64, &str)], below: &[(f64, &str)]) -> ProgramRow {
        let place: ClusterShape = "2x1gbit".parse().unwrap();
        let mut setup = Setup::new(place.lab.clone(), 1);
        (setup.rounds, setup.peers) = (native.len() as u32, vec![Peer::Debian]);
        let outcomes = |side: &[(f64, &str)]| {
            side.iter()
                .map(|(seconds, check)| ProgramOutcome {
                    seconds: *seconds,
                    check: (*check).to_owned(),
                    services: None,
                })
                .collect::<Vec<_>>()
        };
        ProgramRow::of(BenchProgram::Cg, &place, &setup, &ShimChoice::default(), &outcomes(native), &outcomes(below))
    }

    #[test]
    fn pairs_are_compared_run_by_run() {
        let row = row(&[(1.0, "ok"), (2.0, "ok"), (4.0, "ok")], &[(1.0, "ok"), (1.0, "ok"), (3.0, "ok")]);
        assert_eq!((row.ratio, row.pair_ratio), (0.5, SampleSpread { median: 0.75, min: 0.5, max: 1.0 }));
        assert!(row.verified && row.pairs == 3 && row.native == "debian");
        assert_eq!(through_json(row)["verdict"], "win");
    }

    #[test]
    fn results_must_be_right_and_the_same() {
        assert!(row(&[(1.0, "0a1b")], &[(1.0, "0a1b")]).verified);
        assert!(!row(&[(1.0, "0a1b")], &[(1.0, "0a1c")]).verified);
        assert!(!row(&[(1.0, "wrong")], &[(1.0, "wrong")]).verified);
    }

    #[test]
    fn one_percent_slower_is_a_loss_and_five_faster_a_win() {
        let verdicts = [1.02, 1.01, 0.96, 0.95].map(verdict);
        assert_eq!(verdicts, [ShimVerdict::Loss, ShimVerdict::Even, ShimVerdict::Even, ShimVerdict::Win]);
    }

    #[test]
    fn a_line_has_both_times_and_both_ratios() {
        let report = ProgramsReport { rows: vec![row(&[(1.0, "ok"), (2.0, "ok")], &[(1.5, "ok"), (2.5, "wrong")])] };
        let text = render_programs_markdown(&report);
        let line = "| cg! | 2x1gbit | 2 | 1.500 [1.000..2.000] | 2.000 [1.500..2.500] | 1.333 | \
                    1.375 [1.250..1.500] | - | LOSS |";
        assert_eq!(text.lines().nth(2), Some(line), "{text}");
        assert_eq!(render_programs(&report).lines().count(), 2);
    }
}
