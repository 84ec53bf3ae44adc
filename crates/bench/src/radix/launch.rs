//! One launch of the radix sort below one system: its samples, sort by sort.

use super::{RadixOptions, Sort, WORD_BYTES};
use crate::BenchError;
use crate::launch::{Launch, Launching, time_limit};
use serde::Deserialize;
use std::time::Duration;

/// The samples of one sort as the program sends them, a figure for each repetition.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SortLine {
    buckets: u32,
    keys: u32,
    /// The slowest rank, keys moved while the histogram is exchanged.
    pub(super) time_ms: Vec<f64>,
    /// The slowest rank, keys moved when the histogram is there.
    pub(super) in_turn_ms: Vec<f64>,
    /// Of the same sorts, the mean over all ranks and the sum over all passes: the histogram's exchange...
    pub(super) exchange_ms: Vec<f64>,
    /// ... and moving the keys.
    pub(super) moving_ms: Vec<f64>,
    /// Both, where they overlap.
    pub(super) both_ms: Vec<f64>,
    /// Processor time of all ranks in all sorts.
    pub(super) cpu_s: f64,
    /// Ranks and sorts with wrong results.
    pub(super) wrong: u64,
}

/// Launches the program and measures all sorts.
pub(super) fn measure(options: &RadixOptions, launching: &Launching<'_>) -> Result<Launch<SortLine>, BenchError> {
    let key = |line: &SortLine| Sort { buckets: line.buckets, keys: line.keys };
    launching.run(arguments(options), limit(options), |talk| talk.launch_behind_empty(options.sorts(), key))
}

fn arguments(options: &RadixOptions) -> Vec<String> {
    let sizes: Vec<String> = options.sorts().map(|sort| format!("{}:{}", sort.buckets, sort.keys)).collect();
    vec![format!("sizes={}", sizes.join(","))]
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
