//! One launch of the messages' program below one system: its samples, way by way within size by size.

use super::{RecordedOptions, Way};
use crate::launch::{self, Launch, Launching};
use crate::limit::refill_time;
use crate::{BenchError, limit};
use serde::Deserialize;
use std::time::Duration;

/// The samples of one size and way as the program sends them.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WayLine {
    way: Way,
    bytes: u64,
    /// The slowest rank of each repetition.
    pub(super) slowest_ms: Vec<f64>,
    /// Processor time of each rank's own thread to post, in every repetition.
    pub(super) post_us: Vec<f64>,
    /// The same to wait, in the same order.
    pub(super) ending_us: Vec<f64>,
    /// Processor time of all ranks in all calls of the counted phase.
    pub(super) cpu_s: f64,
    /// Ranks and calls with wrong bytes.
    pub(super) wrong: u64,
}

/// Launches the program and measures both ways of all sizes.
pub(super) fn measure(options: &RecordedOptions, launching: &Launching<'_>) -> Result<Launch<WayLine>, BenchError> {
    let sizes_and_ways = options.sizes.iter().flat_map(|bytes| Way::ALL.map(|way| (*bytes, way)));
    let key = |line: &WayLine| (line.bytes, line.way);
    launching.run(arguments(options), time_limit(options), |talk| talk.launch_behind_empty(sizes_and_ways, key))
}

fn arguments(options: &RecordedOptions) -> Vec<String> {
    let sizes: Vec<String> = options.sizes.iter().map(u64::to_string).collect();
    vec![
        format!("sizes={}", sizes.join(",")),
        format!("refill-ns={}", refill_time(&options.setup.lab.link()).as_nanos()),
    ]
}

fn time_limit(options: &RecordedOptions) -> Duration {
    const EVERY_CALL_S: f64 = 0.2;
    let links_s = |bytes: &u64| limit::raw_limit_ms(&options.call(*bytes), &options.setup.lab.link()) / 1e3;
    let own_s = |bytes: &u64| EVERY_CALL_S + launch::checking_s(options.setup.ranks(), *bytes);
    let (links_s, own_s): (f64, f64) = (options.sizes.iter().map(links_s).sum(), options.sizes.iter().map(own_s).sum());
    let calls = 2.0 * f64::from(options.setup.repetitions + 2) * Way::ALL.len() as f64;
    launch::time_limit(calls * links_s, calls * own_s)
}
