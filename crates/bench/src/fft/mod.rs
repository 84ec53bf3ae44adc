//! A whole program beside the collectives: a three-dimensional FFT in pencils, its transposes by `MPI_Ialltoallv`
//! (programs/fft3d.c), below every MPI library and below the preloaded shim.
//!
//! Invariants: one C source and one FFT library for every system, so that rows of one grid must have the same bits; a
//! row says how many of its exchanges service processes carried out.
//!
//! Never does: calibrating anything. The program computes what it computes, and its time is the time of the whole.

mod launch;
mod options;
mod report;
mod table;
mod traffic;

pub use options::FftOptions;
pub use report::{FftReport, FftRow};
pub use table::render as render_fft_table;

use crate::job::System;
use crate::{BenchError, plot, run};

const SOURCES: [&str; 7] = ["fft3d.c", "control.o", "options.o", "repetitions.o", "transport_mpi.c", "-lfftw3", "-lm"];

/// Measures the program below `ours` and the peers of `options`, beside one another.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails: a comparison with a system missing is none. Wrong results are no error here; their row says so.
pub fn run_fft(options: &FftOptions, ours: &[&dyn System]) -> Result<FftReport, BenchError> {
    options.check()?;
    let rows = run::side_by_side(
        &options.setup,
        ours,
        |workshop, system| workshop.mpi_program("fft3d", &SOURCES, &system.name(), &system.toolchain()),
        run::nothing_before,
        |launching| launch::measure(options, launching),
        |system, launches| report::rows(options, system, launches),
    )?;
    let report = FftReport { rows };
    plot::draw(&report.figures(), options.setup.plot.as_deref())?;
    Ok(report)
}
