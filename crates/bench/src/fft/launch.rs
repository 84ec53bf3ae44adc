//! One launch of the FFT program below one system: its samples, grid by grid.

use super::FftOptions;
use super::traffic::Traffic;
use crate::BenchError;
use crate::launch::{Launch, Launching, Said, Sample, Talk, time_limit};
use serde::Deserialize;
use std::time::Duration;

/// The samples of one grid as the program sends them.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct GridLine {
    grid: u32,
    /// Of all bits of the spectra and of the fields that came back; the same in all repetitions.
    pub(super) checksum: String,
    /// The slowest rank of each repetition.
    pub(super) slowest_ms: Vec<f64>,
    /// The mean over all ranks of each repetition.
    pub(super) mpi_ms: Vec<f64>,
    /// Processor time of all ranks in all repetitions.
    pub(super) cpu_s: f64,
    /// Ranks and repetitions with wrong results.
    pub(super) wrong: u64,
}

/// Launches the program and measures all grids.
pub(super) fn measure(options: &FftOptions, launching: &Launching<'_>) -> Result<Launch<GridLine>, BenchError> {
    launching.run(arguments(options), limit(options), |talk| listen(options, talk))
}

fn listen(options: &FftOptions, talk: &mut Talk<'_, '_>) -> Result<Launch<GridLine>, BenchError> {
    let mut launch = Launch { library: String::new(), samples: Vec::new() };
    let mut phase = None;
    while let Some(grid) = options.grids.get(launch.samples.len()) {
        match (talk.next(&format!("measuring a grid of {grid}"))?, phase.take()) {
            (Said::Library(text), None) => launch.library = text,
            (Said::Phase(counted), None) => phase = Some(counted),
            (Said::Row(text), Some(counted)) => {
                let line: GridLine = talk.parse(&text)?;
                if line.grid != *grid {
                    return Err(talk.nonsense(&text));
                }
                launch.samples.push(Sample { line, counted });
            }
            (said, _) => return Err(talk.nonsense(&format!("{said:?}"))),
        }
    }
    Ok(launch)
}

fn arguments(options: &FftOptions) -> Vec<String> {
    let grids: Vec<String> = options.grids.iter().map(u32::to_string).collect();
    let (rows, columns) = options.process_grid();
    vec![
        format!("grids={}", grids.join(",")),
        format!("variables={}", options.variables),
        format!("process-grid={rows}x{columns}"),
    ]
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
