//! One launch of the FFT program below one system.
//!
//! The control line is that of the collectives' program, with a row for each grid: `library`, then `begin`, `end`, `row`.

use super::FftOptions;
use super::traffic::Traffic;
use crate::BenchError;
use crate::calibration::RANKS_CORE;
use crate::control::{ControlLine, ControlSocket, Watch};
use crate::job::{Job, System};
use crate::measurement::{Counted, counted, parse, read_counters};
use outboard_lab::Lab;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// What one launch found.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) library: String,
    /// In the order of the options' grids.
    pub(super) grids: Vec<GridSamples>,
}

/// What one launch found for one grid.
#[derive(Clone, Debug)]
pub(super) struct GridSamples {
    pub(super) line: GridLine,
    /// Of all repetitions together.
    pub(super) counted: Counted,
}

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

/// Launches `system` with the program built for it, and measures all grids.
pub(super) fn measure(
    options: &FftOptions,
    lab: &Lab,
    system: &dyn System,
    program: &Path,
    directory: &Path,
) -> Result<Launch, BenchError> {
    let name = system.name();
    let socket = ControlSocket::listen(directory, "control")?;
    let arguments = arguments(options, socket.path());
    let job = Job {
        lab,
        ranks: options.ranks(),
        layout: options.layout,
        program,
        arguments: &arguments,
        comm_core: options.comm_core,
        directory,
    };
    let mut running = system.launch(&job).map_err(|source| BenchError::Launch { system: name.clone(), source })?;
    let limit = options.launch_timeout.unwrap_or_else(|| time_limit(options));
    let mut watch = Watch::new(&name, &mut running, limit);
    let mut line = socket.accept(&mut watch)?;
    let launch = converse(options, lab, &mut line, &mut watch)?;
    drop(line);
    watch.wait_end()?;
    Ok(launch)
}

fn converse(
    options: &FftOptions,
    lab: &Lab,
    line: &mut ControlLine,
    watch: &mut Watch<'_>,
) -> Result<Launch, BenchError> {
    let mut launch = Launch { library: String::new(), grids: Vec::new() };
    let (mut begun, mut ended) = (None, None);
    while let Some(grid) = options.grids.get(launch.grids.len()) {
        let text = line.receive_more(watch, &format!("measuring a grid of {grid}"))?;
        let (word, rest) = text.split_once(' ').unwrap_or((&text, ""));
        match (word, begun, ended) {
            ("library", None, None) => launch.library = rest.to_owned(),
            ("begin", None, None) => {
                begun = Some(read_counters(lab, watch)?);
                line.send("ok")?;
            }
            ("end", Some(before), None) => {
                ended = Some(counted(read_counters(lab, watch)?, before));
                line.send("ok")?;
            }
            ("row", Some(_), Some(counted)) => {
                let line: GridLine = parse(rest, watch)?;
                if line.grid != *grid {
                    return Err(watch.nonsense(&text));
                }
                launch.grids.push(GridSamples { line, counted });
                (begun, ended) = (None, None);
            }
            _ => return Err(watch.nonsense(&text)),
        }
    }
    Ok(launch)
}

fn arguments(options: &FftOptions, control: &Path) -> Vec<String> {
    let grids: Vec<String> = options.grids.iter().map(u32::to_string).collect();
    let (rows, columns) = options.process_grid();
    let mut arguments = vec![
        format!("control={}", control.display()),
        format!("layout={}:{}", options.lab.hosts(), options.layout),
        format!("grids={}", grids.join(",")),
        format!("variables={}", options.variables),
        format!("process-grid={rows}x{columns}"),
        format!("repetitions={}", options.repetitions),
    ];
    if options.comm_core {
        arguments.push(format!("main-core={RANKS_CORE}"));
    }
    arguments
}

/// Far beyond what any system that works needs: starting, and for each repetition fifty times what the links take and the
/// transforming and checking of every point at a modest half million a second.
fn time_limit(options: &FftOptions) -> Duration {
    const STARTING_S: f64 = 60.0;
    const SLOWNESS: f64 = 50.0;
    const POINTS_PER_S: f64 = 5e5;
    let repetition = |grid: &u32| {
        let links = Traffic::of(options, *grid).limit_ms(&options.lab.link()) / 1e3;
        let points = f64::from(*grid).powi(3) * f64::from(options.variables);
        SLOWNESS * links + points / POINTS_PER_S
    };
    let all: f64 = options.grids.iter().map(repetition).sum();
    Duration::from_secs_f64(STARTING_S + f64::from(options.repetitions + 2) * all)
}
