//! Whole programs that know nothing of the harness: natively and below the preloaded shim in turn, run by run. Does a
//! program that is preloaded lose anything?
//!
//! Invariants: both ways have one source, one input and the same settings of the MPI library, without a progress
//! thread, which on shared cores slows those programs too that compute beside their collectives; the time is the one
//! that the program tells of its own loop; all runs of a program have the same result.
//!
//! Never does: judging by fewer runs than it reports; its runs for learning count for nothing.

mod report;
mod table;

pub use report::{ProgramRow, ProgramsReport};
pub use table::{render_programs, render_programs_markdown};

use crate::compile::Workshop;
use crate::job::{ServiceCounters, System};
use crate::launch::{Launching, time_limit};
use crate::named::named;
use crate::{BenchError, Choosing, Place, Setup, install, run};
use std::path::PathBuf;

named! {
    "a program: cg, panel, pagerank or lammps",
    /// A program, in the order of the report.
    Program {
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

/// Of PageRank in a repetition: it tells the time of one.
const ITERATIONS: u32 = 20;
/// What no repetition takes, on slow links and a busy machine.
const REPETITION_S: f64 = 60.0;

/// What a run of a program found.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    seconds: f64,
    /// `ok`, or a digest of the results.
    check: String,
    services: Option<ServiceCounters>,
}

impl Program {
    fn build(self, workshop: &Workshop, system: &dyn System) -> Result<PathBuf, BenchError> {
        let words: &[&str] = match self {
            Self::Cg => &["cg.c", "-lm"],
            Self::Panel => &["panel.c", "-lm"],
            // Contracted multiply-adds would make the bits depend on the compiler's choices.
            Self::PageRank => &["-ffp-contract=off", "pagerank.c", "-lm"],
            Self::Lammps => return install::ensure_lammps().map(|()| install::DEBIAN_LAMMPS.into()),
        };
        workshop.mpi_program(self.name(), words, &system.name(), &system.toolchain())
    }

    /// A repetition takes about half a second.
    fn arguments(self, repetitions: u32) -> Vec<String> {
        let text = match self {
            Self::Cg => format!("48 {}", 4 * repetitions),
            Self::Panel => format!("1024 {}", 3 * repetitions),
            Self::PageRank => format!("--generate 131072 16 1 --json --iterations {}", ITERATIONS * repetitions),
            // Beside the directories of launches.
            Self::Lammps => {
                format!("-in ../fluid.lammps -log none -var cells 12 -var steps {}", 100 * repetitions)
            }
        };
        text.split(' ').map(str::to_owned).collect()
    }

    /// What it said about its time and its result.
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

    fn measure(self, launching: &Launching<'_>) -> Result<Outcome, BenchError> {
        let repetitions = launching.setup.repetitions;
        let limit = time_limit(0.0, REPETITION_S * f64::from(repetitions));
        let (said, services) = launching.run_alone(&self.arguments(repetitions), limit)?;
        match self.outcome(&said, repetitions) {
            Some((seconds, check)) => Ok(Outcome { seconds, check, services }),
            None => Err(BenchError::Protocol { system: format!("{self} of {}", launching.system.name()), line: said }),
        }
    }
}

/// Measures a program below `ours` and below the one peer of `setup`, in as many pairs of runs as it has rounds.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails. Wrong results are no error here; their row says so.
pub fn run_program(
    program: Program,
    place: &Place,
    setup: &Setup,
    choosing: &Choosing,
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
    let [below, native] = sides.as_slice() else { panic!("ours and one peer are two sides") };
    Ok(ProgramRow::of(program, place, &setup, choosing, native, below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_tells_its_time_and_its_result() {
        let told = |program: Program, said: &str| program.outcome(said, 2);
        let ok = |seconds: f64| Some((seconds, "ok".to_owned()));
        assert_eq!(told(Program::Cg, "warning\nseconds=1.5 check=ok residual=1e-9"), ok(1.5));
        assert_eq!(told(Program::Panel, "seconds=1.5 check=wrong residual=99"), Some((1.5, "wrong".to_owned())));
        let lammps = "Loop time of 0 on 2 procs\nLoop time of 1.25 on 2 procs for 9 steps\ncheck=ok\nTotal wall time";
        assert_eq!(told(Program::Lammps, lammps), ok(1.25));
        let pagerank = "{\"iteration_ms\":50.0,\"digest\":\"0a1b\"}";
        assert_eq!(told(Program::PageRank, pagerank), Some((2.0, "\"0a1b\"".to_owned())));
        assert_eq!(told(Program::Cg, "seconds=-1 check=ok"), None);
        assert_eq!(told(Program::Cg, "killed"), None);
    }
}
