//! One launch of the radix sort below one system: its samples, sort by sort.

use super::{RadixOptions, Sort, WORD_BYTES};
use crate::BenchError;
use crate::launch::{Launching, time_limit};
use crate::samples::Launch;
use serde::Deserialize;
use std::time::Duration;

/// What the program tells of one sort besides, a figure for each repetition. Its times are those with keys moved while
/// the histogram is exchanged.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SortLine {
    buckets: u32,
    keys: u32,
    /// The slowest rank, keys moved when the histogram is there.
    pub(super) in_turn_ms: Vec<f64>,
    /// Of the same sorts, the mean over all ranks and the sum over all passes: the histogram's exchange...
    pub(super) exchange_ms: Vec<f64>,
    /// ... and moving the keys.
    pub(super) moving_ms: Vec<f64>,
    /// Both, where they overlap.
    pub(super) both_ms: Vec<f64>,
}

/// Launches the program and measures all sorts.
pub(super) fn measure(options: &RadixOptions, launching: &Launching<'_>) -> Result<Launch<SortLine>, BenchError> {
    let sizes = options.sorts().map(|sort| format!("{}:{}", sort.buckets, sort.keys));
    let key = |line: &SortLine| Sort { buckets: line.buckets, keys: line.keys };
    launching.measure(sizes, Vec::new(), limit(options), options.sorts(), key)
}

/// A pass takes what the scheduler of a busy machine makes of its two fences, and each bucket's own message at worst.
fn limit(options: &RadixOptions) -> Duration {
    const PASS_S: f64 = 0.2;
    const BUCKET_S: f64 = 50e-6;
    let sorts = f64::from(2 * options.setup.repetitions + 2);
    let passes = |sort: Sort| sorts * f64::from(sort.passes());
    let key_bytes = |sort: Sort| (WORD_BYTES * u64::from(sort.keys) * u64::from(options.setup.ranks())) as f64;
    let links_s: f64 =
        options.sorts().map(|s| passes(s) * options.setup.lab.link().milliseconds(key_bytes(s) * 8.0)).sum();
    let own_s: f64 = options.sorts().map(|s| passes(s) * (PASS_S + BUCKET_S * f64::from(s.buckets.min(s.keys)))).sum();
    time_limit(links_s / 1e3, own_s)
}
