//! One launch of the batches' program below one system: its samples, size by size.

use crate::launch::{self, Counted, Launch, Launching, Said, Sample, Talk};
use crate::limit::refill_time;
use crate::{BenchError, BenchOptions, Setup, limit};
use serde::Deserialize;
use std::time::Duration;

/// What batches of small calls are made to last.
const BATCH_S: f64 = 2e-3;

/// The samples of one size as the program sends them.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SizeLine {
    bytes_per_rank: u64,
    /// Calls of a batch.
    pub(super) calls: u32,
    /// A call of the slowest rank of each batch.
    pub(super) slowest_ms: Vec<f64>,
    /// Processor time of all ranks in all batches.
    pub(super) cpu_s: f64,
    /// Ranks and batches with wrong bytes.
    pub(super) wrong: u64,
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
    let batch = |line: &SizeLine| {
        let call_s = line.slowest_ms.iter().copied().fold(f64::INFINITY, f64::min) / 1e3;
        let compute = if blocking { Duration::ZERO } else { Duration::from_secs_f64(call_s) };
        Batch { calls: line.calls, compute }
    };
    Ok(launch.samples.iter().map(|sample| batch(&sample.line)).collect())
}

/// Launches the program and measures all sizes.
pub(super) fn measure(
    options: &BenchOptions,
    launching: &Launching<'_>,
    batches: &[Batch],
) -> Result<Launch<SizeLine>, BenchError> {
    launching.run(arguments(options, launching.setup, batches), limit(options, launching.setup.repetitions), |talk| {
        listen(options, talk)
    })
}

fn listen(options: &BenchOptions, talk: &mut Talk<'_, '_>) -> Result<Launch<SizeLine>, BenchError> {
    let mut launch = Launch { library: String::new(), samples: Vec::new() };
    let (mut empty, mut phase): (Option<Counted>, _) = (None, None);
    while let Some(bytes) = options.sizes.get(launch.samples.len()) {
        let during =
            format!("measuring batches of calls, {} of {} sizes done", launch.samples.len(), options.sizes.len());
        match (talk.next(&during)?, phase.take(), empty) {
            (Said::Library(text), None, None) => launch.library = text,
            (Said::Phase(counted), None, None) => empty = Some(counted),
            (Said::Phase(counted), None, Some(_)) => phase = Some(counted),
            (Said::Row(text), Some(counted), Some(empty)) => {
                let line: SizeLine = talk.parse(&text)?;
                if line.bytes_per_rank != *bytes || line.calls == 0 {
                    return Err(talk.nonsense(&text));
                }
                // Without what starting the batches takes.
                launch.samples.push(Sample { line, counted: counted.since(&empty) });
            }
            (said, ..) => return Err(talk.nonsense(&format!("{said:?}"))),
        }
    }
    Ok(launch)
}

fn arguments(options: &BenchOptions, setup: &Setup, batches: &[Batch]) -> Vec<String> {
    let size = |(bytes, batch): (&u64, &Batch)| format!("{bytes}:{}:{}", batch.calls, batch.compute.as_nanos());
    let sizes: Vec<String> = options.sizes.iter().zip(batches).map(size).collect();
    vec![
        format!("collective={}", options.collective.name()),
        format!("sizes={}", sizes.join(",")),
        format!("blocking={}", u8::from(setup.blocking)),
        format!("refill-ns={}", refill_time(&setup.lab.link()).as_nanos()),
    ]
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
