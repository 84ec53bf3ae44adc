//! One launch of the batches' program below one system: its samples, size by size.

use crate::launch::{self, Launching};
use crate::samples::{Launch, Told};
use crate::{BenchError, BenchOptions, Setup, limit};
use serde::Deserialize;
use std::time::Duration;

/// What batches of small calls are made to last.
const BATCH_S: f64 = 2e-3;

/// What the program tells of one size besides. Its times are those of a call of the slowest rank of each batch.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SizeLine {
    bytes_per_rank: u64,
    /// Calls of a batch.
    pub(super) calls: u32,
}

/// Calls of one size in a row; without any of them the program finds out how many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Batch {
    calls: u32,
    /// Between post and wait of each.
    compute: Duration,
}

impl Batch {
    /// What suits the faster of two systems, as it was found for each.
    pub(super) fn of_fastest(self, other: Self) -> Self {
        match self.calls {
            0 => other,
            calls => Self { calls: calls.max(other.calls), compute: self.compute.min(other.compute) },
        }
    }
}

/// Launches the program to find out how many blocking calls of each size the system makes in the time of a batch, and
/// how long each takes. A system that learns thereby learns nothing of nonblocking ones.
pub(super) fn batches(options: &BenchOptions, launching: &Launching<'_>) -> Result<Vec<Batch>, BenchError> {
    let setup = &Setup { repetitions: 1, blocking: true, ..launching.setup.clone() };
    let unknown = vec![Batch::default(); options.sizes.len()];
    let launch = measure(options, &Launching { setup, ..*launching }, &unknown)?;
    let blocking = launching.setup.blocking;
    let batch = |told: &Told<SizeLine>| {
        let call_s = told.slowest_ms.iter().copied().fold(f64::INFINITY, f64::min) / 1e3;
        let compute = if blocking { Duration::ZERO } else { Duration::from_secs_f64(call_s) };
        Batch { calls: told.own.calls, compute }
    };
    Ok(launch.samples.iter().map(|sample| batch(&sample.told)).collect())
}

/// Launches the program and measures all sizes.
pub(super) fn measure(
    options: &BenchOptions,
    launching: &Launching<'_>,
    batches: &[Batch],
) -> Result<Launch<SizeLine>, BenchError> {
    let setup = launching.setup;
    let size = |(bytes, batch): (&u64, &Batch)| format!("{bytes}:{}:{}", batch.calls, batch.compute.as_nanos());
    let sizes = options.sizes.iter().zip(batches).map(size);
    let own =
        vec![format!("collective={}", options.collective.name()), format!("blocking={}", u8::from(setup.blocking))];
    let called = options.sizes.iter().map(|bytes| (*bytes, true));
    let key = |line: &SizeLine| (line.bytes_per_rank, line.calls > 0);
    launching.measure(sizes, own, limit(options, setup.repetitions), called, key)
}

fn limit(options: &BenchOptions, repetitions: u32) -> Duration {
    /// For the phase without calls, warming up and finding out how many calls make a batch.
    const MORE_BATCHES: u32 = 30;
    const EVERY_BATCH_S: f64 = 0.2;
    let link = options.setup.lab.link();
    let links_s: f64 = options.calls().map(|call| (limit::raw_limit_ms(&call, &link) / 1e3).max(BATCH_S)).sum();
    let own_s: f64 = options.calls().map(|call| EVERY_BATCH_S + launch::checking_s(call.ranks(), call.bytes)).sum();
    let batches = f64::from(2 * repetitions + MORE_BATCHES);
    launch::time_limit(batches * links_s, batches * own_s)
}
