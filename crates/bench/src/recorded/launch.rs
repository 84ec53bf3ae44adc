//! One launch of the messages' program below one system: its samples, way by way within size by size.

use super::{RecordedOptions, Way};
use crate::launch::{self, Launching};
use crate::samples::Launch;
use crate::{BenchError, limit};
use serde::Deserialize;
use std::time::Duration;

/// What the program tells of one size and way besides. Its processor time is that of the counted phase.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WayLine {
    way: Way,
    bytes: u64,
    /// Processor time of each rank's own thread to post, in every repetition.
    pub(super) post_us: Vec<f64>,
    /// The same to wait, in the same order.
    pub(super) ending_us: Vec<f64>,
}

/// Launches the program and measures both ways of all sizes.
pub(super) fn measure(options: &RecordedOptions, launching: &Launching<'_>) -> Result<Launch<WayLine>, BenchError> {
    let key = |line: &WayLine| (line.bytes, line.way);
    let sizes = options.sizes.iter().map(u64::to_string);
    launching.measure(sizes, Vec::new(), time_limit(options), options.sizes_and_ways(), key)
}

fn time_limit(options: &RecordedOptions) -> Duration {
    const EVERY_CALL_S: f64 = 0.2;
    let links_s = |bytes: &u64| limit::raw_limit_ms(&options.call(*bytes), &options.setup.lab.link()) / 1e3;
    let own_s = |bytes: &u64| EVERY_CALL_S + launch::checking_s(options.setup.ranks(), *bytes);
    let (links_s, own_s): (f64, f64) = (options.sizes.iter().map(links_s).sum(), options.sizes.iter().map(own_s).sum());
    let calls = 2.0 * f64::from(options.setup.repetitions + 2) * Way::ALL.len() as f64;
    launch::time_limit(calls * links_s, calls * own_s)
}
