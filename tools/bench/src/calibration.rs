//! Finds how many units of the compute loop take the raw limit or a multiple of it, and how long they take alone. All
//! systems of a run share this figure.
//!
//! One process per rank runs the loop on the core that the rank will have, all at once, without any communication
//! library. The slowest process counts, as the slowest rank does in a collective. The time is taken before and after
//! every launch of a system, because the speed of a shared machine changes from minute to minute. Where the ranks have
//! a core to themselves, the processor time of their loops in each repetition is more precise (see
//! [`Overlap::compute_ms`](crate::Overlap)).

use crate::compile::Workshop;
use crate::control::{ControlLine, ControlSocket, LaunchWatch};
use crate::job::{LoggedProcess, RunningJob};
use crate::limit::{COMPUTE_WORTH, raw_limit_ms};
use crate::{BenchError, BenchOptions};
use rustix::time::ClockId;
use std::process::Command;
use std::time::Duration;

/// The core of the ranks if there is a communication core.
pub(crate) const RANKS_CORE: u32 = 0;
const NAME: &str = "calibration";
/// The first number of units; doubled until the loop takes [`LONG_ENOUGH_MS`].
const FIRST_UNITS: u64 = 10_000;
/// Long against the slices in which processes take turns on a core.
const LONG_ENOUGH_MS: f64 = 100.0;
const MAX_GROWTHS: u32 = 24;
const REPETITIONS: u32 = 5;
/// Time from the order to the common start. By then all processes must have read the order.
const LEAD_NS: i64 = 5_000_000;
/// Far more than one run of the loop takes for any size on emulated links.
const LIMIT: Duration = Duration::from_secs(600);

/// The processes that run the loop, asleep between two measurements.
#[derive(Debug)]
pub(crate) struct Calibrator {
    running: RunningJob,
    lines: Vec<ControlLine>,
}

impl Calibrator {
    /// Starts one process per rank.
    pub(crate) fn start(options: &BenchOptions, workshop: &Workshop) -> Result<Self, BenchError> {
        let program = workshop.calibrator()?;
        let socket = ControlSocket::listen(workshop.path(), "calibration")?;
        let core = if options.setup.comm_core { RANKS_CORE.to_string() } else { "-1".to_owned() };
        let mut running = RunningJob { ranks: Vec::new(), services: Vec::new(), stats: None };
        for rank in 0..options.setup.ranks() {
            let mut command = Command::new(&program);
            command.arg(socket.path()).arg(&core);
            let process = LoggedProcess::start(format!("calibration {rank}"), command, workshop.path())
                .map_err(|source| BenchError::Launch { system: NAME.to_owned(), source })?;
            running.ranks.push(process);
        }
        let mut watch = LaunchWatch::new(NAME, &mut running, LIMIT);
        let lines = (0..options.setup.ranks()).map(|_| socket.accept(&mut watch)).collect::<Result<_, _>>()?;
        Ok(Self { running, lines })
    }

    /// Units of the loop for every size of `options`, in their order.
    pub(crate) fn units(&mut self, options: &BenchOptions) -> Result<Vec<u64>, BenchError> {
        let mut units = FIRST_UNITS;
        let mut elapsed_ms = self.slowest_ms(units)?;
        for _ in 0..MAX_GROWTHS {
            if elapsed_ms >= LONG_ENOUGH_MS {
                break;
            }
            units *= 2;
            elapsed_ms = self.slowest_ms(units)?;
        }
        // The fastest run calibrates. If the machine were slow now, the loop would later end before the limit.
        for again in self.alone_ms(units)? {
            elapsed_ms = elapsed_ms.min(again);
        }
        let per_ms = units as f64 / elapsed_ms;
        // Scales the long loop down. A short loop is less precise: the placement of processes decides how long the
        // slowest takes.
        let of_size = |bytes: &u64| {
            to_units(per_ms * raw_limit_ms(&options.call(*bytes), &options.setup.lab.link()) * COMPUTE_WORTH)
        };
        Ok(options.sizes.iter().map(of_size).collect())
    }

    /// Times in milliseconds that the slowest process takes for `units` now, one for each repetition.
    pub(crate) fn alone_ms(&mut self, units: u64) -> Result<Vec<f64>, BenchError> {
        (0..REPETITIONS).map(|_| self.slowest_ms(units)).collect()
    }

    /// Makes every process run `units` from a common instant on; returns the milliseconds of the slowest.
    fn slowest_ms(&mut self, units: u64) -> Result<f64, BenchError> {
        let mut watch = LaunchWatch::new(NAME, &mut self.running, LIMIT);
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let start_ns = now.tv_sec * 1_000_000_000 + now.tv_nsec + LEAD_NS;
        for line in &mut self.lines {
            line.send(&format!("run {start_ns} {units}"))?;
        }
        let mut slowest_ns = 0;
        for line in &mut self.lines {
            let answer = line.receive(&mut watch, "running the compute loop")?.unwrap_or_default();
            let elapsed_ns: u64 = answer
                .strip_prefix("ran ")
                .and_then(|number| number.parse().ok())
                .ok_or_else(|| watch.protocol_error(&answer))?;
            slowest_ns = slowest_ns.max(elapsed_ns);
        }
        Ok(slowest_ns as f64 / 1e6)
    }
}

/// At least one unit: zero would mean no compute loop.
fn to_units(units: f64) -> u64 {
    (units.round() as u64).max(1)
}
