//! Finds how much of the compute loop is worth 1.15 of the raw limit, and how long that takes alone: one figure for all
//! systems of a run.
//!
//! As many processes as there are ranks run the loop at once on the cores that the ranks will have, and no
//! communication library is near. The time is that of the slowest of them, as it is when a collective is under way.

use crate::compile::Workshop;
use crate::control::{ControlLine, ControlSocket, Watch};
use crate::job::{Process, Running};
use crate::limit::{COMPUTE_WORTH, raw_limit_ms};
use crate::report::Spread;
use crate::{BenchError, BenchOptions};
use rustix::time::ClockId;
use std::process::Command;
use std::time::Duration;

/// The work of one size, and what it takes alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ComputeLoop {
    /// Units of the loop.
    pub(crate) units: u64,
    /// Milliseconds of the slowest process: median.
    pub(crate) alone_ms: f64,
}

/// The core that ranks have to themselves where there is a communication core.
pub(crate) const RANKS_CORE: u32 = 0;
const NAME: &str = "calibration";
/// The first order; grown until it takes long enough to tell.
const FIRST_UNITS: u64 = 10_000;
/// Long against the slices in which processes take turns on a core.
const LONG_ENOUGH_MS: f64 = 200.0;
const MAX_GROWTHS: u32 = 24;
const REPETITIONS: u32 = 9;
/// Ahead of now, so that all have read the order when it is time.
const LEAD_NS: i64 = 5_000_000;
/// Far more than the repetitions of any size on emulated links take.
const LIMIT: Duration = Duration::from_secs(1800);

/// The compute loop of every size of `options`, in their order.
pub(crate) fn calibrate(options: &BenchOptions, workshop: &Workshop) -> Result<Vec<ComputeLoop>, BenchError> {
    let program = workshop.calibrator()?;
    let socket = ControlSocket::listen(workshop.path(), "calibration")?;
    let core = if options.comm_core { RANKS_CORE.to_string() } else { "-1".to_owned() };
    let mut running = Running { ranks: Vec::new(), services: Vec::new(), stats: None };
    for rank in 0..options.ranks() {
        let mut command = Command::new(&program);
        command.arg(socket.path()).arg(&core);
        let process = Process::start(format!("calibration {rank}"), command, workshop.path())
            .map_err(|source| BenchError::Launch { system: NAME.to_owned(), source })?;
        running.ranks.push(process);
    }
    let mut watch = Watch::new(NAME, &mut running, LIMIT);
    let mut lines = Vec::new();
    for _ in 0..options.ranks() {
        lines.push(socket.accept(&mut watch)?);
    }
    let loops = measure(options, &mut lines, &mut watch)?;
    drop(lines);
    watch.wait_end()?;
    Ok(loops)
}

fn measure(
    options: &BenchOptions,
    lines: &mut [ControlLine],
    watch: &mut Watch<'_>,
) -> Result<Vec<ComputeLoop>, BenchError> {
    let mut units = FIRST_UNITS;
    let mut elapsed_ms = slowest_ms(lines, watch, units)?;
    for _ in 0..MAX_GROWTHS {
        if elapsed_ms >= LONG_ENOUGH_MS {
            break;
        }
        units *= 2;
        elapsed_ms = slowest_ms(lines, watch, units)?;
    }
    let per_ms = units as f64 / elapsed_ms;
    let mut loops = Vec::new();
    for bytes in &options.sizes {
        let target_ms = raw_limit_ms(options.ranks(), *bytes, &options.lab.link()) * COMPUTE_WORTH;
        let first = repeated_ms(lines, watch, to_units(per_ms * target_ms))?;
        // The slowest process of a short loop waits for others' slices: scale by what it really took.
        let units = to_units(per_ms * target_ms * target_ms / first.max(f64::MIN_POSITIVE));
        loops.push(ComputeLoop { units, alone_ms: repeated_ms(lines, watch, units)? });
    }
    Ok(loops)
}

/// At least one unit: zero would mean no compute loop.
fn to_units(units: f64) -> u64 {
    (units.round() as u64).max(1)
}

fn repeated_ms(lines: &mut [ControlLine], watch: &mut Watch<'_>, units: u64) -> Result<f64, BenchError> {
    let mut times = Vec::new();
    for _ in 0..REPETITIONS {
        times.push(slowest_ms(lines, watch, units)?);
    }
    Ok(Spread::of(&times).median)
}

/// Has every process run `units` from the same instant on.
fn slowest_ms(lines: &mut [ControlLine], watch: &mut Watch<'_>, units: u64) -> Result<f64, BenchError> {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let start_ns = now.tv_sec * 1_000_000_000 + now.tv_nsec + LEAD_NS;
    for line in lines.iter_mut() {
        line.send(&format!("run {start_ns} {units}"))?;
    }
    let mut slowest_ns = 0;
    for line in lines {
        let answer = line.receive(watch, "running the compute loop")?.unwrap_or_default();
        let elapsed_ns: u64 = answer
            .strip_prefix("ran ")
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| watch.nonsense(&answer))?;
        slowest_ns = slowest_ns.max(elapsed_ns);
    }
    Ok(slowest_ns as f64 / 1e6)
}
