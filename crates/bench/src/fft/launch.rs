//! One launch of the FFT program below one system: its samples, grid by grid.

use super::FftOptions;
use super::traffic::Traffic;
use crate::BenchError;
use crate::launch::{Launching, time_limit};
use crate::samples::Launch;
use serde::Deserialize;
use std::time::Duration;

/// What the program tells of one grid besides.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct GridLine {
    grid: u32,
    /// Of all bits of the spectra and of the fields that came back; the same in all repetitions.
    pub(super) checksum: String,
    /// The mean over all ranks of each repetition.
    pub(super) mpi_ms: Vec<f64>,
}

/// Launches the program and measures all grids.
pub(super) fn measure(options: &FftOptions, launching: &Launching<'_>) -> Result<Launch<GridLine>, BenchError> {
    let (rows, columns) = options.process_grid();
    let own = vec![format!("variables={}", options.variables), format!("process-grid={rows}x{columns}")];
    let grids = options.grids.iter();
    launching
        .measure(grids.clone().map(u32::to_string), own, limit(options), grids.copied(), |line: &GridLine| line.grid)
}

/// Points are transformed and checked at a modest half a million a second.
fn limit(options: &FftOptions) -> Duration {
    const POINTS_PER_S: f64 = 5e5;
    let links_s = |grid: &u32| Traffic::of(options, *grid).limit_ms(&options.setup.lab.link()) / 1e3;
    let own_s = |grid: &u32| f64::from(*grid).powi(3) * f64::from(options.variables) / POINTS_PER_S;
    let (links_s, own_s): (f64, f64) = (options.grids.iter().map(links_s).sum(), options.grids.iter().map(own_s).sum());
    let repetitions = f64::from(options.setup.repetitions + 2);
    time_limit(repetitions * links_s, repetitions * own_s)
}
