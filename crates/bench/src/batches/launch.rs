//! One launch of the batches' program below one system: its samples, size by size.

use crate::launch::{self, Launching};
use crate::samples::{Launch, Sample, Told};
use crate::{BenchError, BenchOptions, Setup, limit};
use serde::Deserialize;
use std::time::Duration;

/// What batches of small calls are made to last.
const BATCH_S: f64 = 2e-3;

/// What the program sends of one size besides: instants and times of every batch, batch after batch within rank after
/// rank.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SizeLine {
    bytes_per_rank: u64,
    /// Calls of a batch.
    pub(super) calls: u32,
    start_ns: Vec<f64>,
    end_ns: Vec<f64>,
    /// What the computations of the batch took alone.
    pub(super) alone_ns: Vec<f64>,
}

impl SizeLine {
    /// Time that a call of the slowest rank adds to the computations, batch by batch.
    fn slowest_ms(&self, batches: u32) -> Vec<f64> {
        let ranks = self.start_ns.iter().zip(&self.end_ns).zip(&self.alone_ns);
        let added: Vec<f64> = ranks.map(|((start, end), alone)| end - start - alone).collect();
        let batches = batches as usize;
        let slowest = |batch| added.iter().skip(batch).step_by(batches).copied().fold(0.0, f64::max);
        (0..batches).map(|batch| slowest(batch) / f64::from(self.calls) / 1e6).collect()
    }
}

/// Calls of one size in a row; without any of them the program finds out how many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Batch {
    calls: u32,
    /// Between post and wait of each.
    compute: Duration,
}

impl Batch {
    /// A batch of as many calls as were found; a nonblocking call has as much to compute as the shortest blocking one
    /// took.
    fn found(told: &Told<SizeLine>, blocking: bool) -> Self {
        let call_s = told.slowest_ms.iter().copied().fold(f64::INFINITY, f64::min) / 1e3;
        let compute = if blocking { Duration::ZERO } else { Duration::from_secs_f64(call_s) };
        Self { calls: told.own.calls, compute }
    }

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
    Ok(launch.samples.iter().map(|sample| Batch::found(&sample.told, blocking)).collect())
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
    let mut launch = launching.measure(sizes, own, limit(options, setup.repetitions), called, key)?;
    for Sample { told, .. } in &mut launch.samples {
        told.slowest_ms = told.own.slowest_ms(setup.repetitions);
    }
    Ok(launch)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks and two batches of ten calls.
    fn told() -> Told<SizeLine> {
        let text = r#"{"bytes_per_rank":8,"calls":10,"cpu_s":1.0,"wrong":0,
            "start_ns":[0.0,100e6,1e6,101e6],"end_ns":[50e6,170e6,61e6,161e6],"alone_ns":[30e6,30e6,20e6,35e6]}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_computation_does_not_count_in_the_time_of_a_call() {
        // Batches of 20 and 40, 40 and 25 ms beyond the computations.
        assert_eq!(told().own.slowest_ms(2), [4.0, 4.0]);
        let blocking = SizeLine { alone_ns: vec![0.0; 4], ..told().own };
        assert_eq!(blocking.slowest_ms(2), [6.0, 7.0]);
    }

    #[test]
    fn a_nonblocking_call_computes_as_long_as_the_fastest_systems_blocking_one_takes() {
        let slower = Told { slowest_ms: vec![7.0, 5.0], ..told() };
        let faster = Told { slowest_ms: vec![3.0], own: SizeLine { calls: 12, ..told().own }, ..told() };
        let [slower, faster] = [slower, faster].map(|told| Batch::found(&told, false));
        let (both, compute) = (Batch::default().of_fastest(slower).of_fastest(faster), Duration::from_millis(3));
        assert_eq!(both, Batch { calls: 12, compute });
        assert_eq!(faster.of_fastest(slower), both);
        let none = Batch::found(&Told { slowest_ms: vec![3.0], ..told() }, true).compute;
        assert_eq!(none, Duration::ZERO);
    }
}
