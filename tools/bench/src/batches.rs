//! Calls of a collective in a row (programs/batches.c), which show the cost of small calls and of calls among ranks of
//! one host. Two forms are measured. Blocking: `MPI_Bcast`, `MPI_Allreduce` and so on of an MPI library, natively and
//! below the preloaded shim, and post and wait of Outboard's C interface. Nonblocking: the calls with a computation in
//! between.
//!
//! A batch is a number of calls in a row, with roots at rank 0. All ranks begin a batch behind a barrier, on links
//! whose token buckets are full. A rank's time of a call is its time of the batch divided by the number of calls; the
//! slowest rank counts. Before the measurement each system finds how many calls of each size it makes in about 2 ms,
//! 1,000 at most. The largest number of calls that a system finds is the batch of all systems. So a large call is timed
//! alone.
//!
//! Between post and wait of a nonblocking call each rank computes as long as the fastest system's blocking call takes.
//! A row reports what the call adds to the time of the computation alone: the time inside the library, and the
//! processor time that its progress takes from the computation.
//!
//! Other benchmarks: the root stays the same, as in OSU's programs. The spread of batches replaces their mean over all
//! calls. IMB's `t_max` and OSU's `Max Latency` are times of the slowest rank, too. IMB also has two barriers before
//! the calls, and with `-sync` a barrier between calls. OSU's programs have a barrier behind each call and leave its
//! time out. The difference is small for collectives in which every rank waits for every other rank (barrier,
//! allreduce, allgather, alltoall, reduce-scatter). In broadcasts and in reductions to a root some ranks run ahead
//! within a batch. The time of such a batch shows how fast small calls follow one another, which is less than the time
//! of a single call.
//!
//! Invariants: every system makes the same calls in the same batches. The last result of every batch is checked byte by
//! byte, and each batch has bytes of its own. Counters cover the calls, not the start of a batch.
//!
//! Never does: giving an MPI library a progress thread for blocking calls, where the thread would only take processor
//! time.

use crate::job::System;
use crate::launch::{self, ProgramLaunch};
use crate::limit::raw_limit_ms;
use crate::report::{BenchReport, RepetitionCost, SampleSpread, Subject};
use crate::samples::{self, ItemSamples, LaunchSample, LaunchSamples, RawSample};
use crate::table::{Column, by_time, or_none, ranks_cell, system_cell, table};
use crate::{BenchError, BenchOptions, Setup, format_size, run};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::time::Duration;

/// Everything that one run found.
pub type BatchReport = BenchReport<BatchRow>;

/// Calls in a row of one system at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchRow {
    /// Name of the [`Collective`](crate::Collective).
    pub collective: String,
    /// The system, and its cluster and ranks.
    #[serde(flatten)]
    pub subject: Subject,
    /// Bytes of a call ([`BenchCall::bytes`](crate::BenchCall::bytes)).
    pub bytes_per_rank: u64,
    /// Calls in a row, from one common beginning to the next.
    pub batch_calls: u32,
    /// Median time that each rank computes between post and wait of a call; it is subtracted from the time of the call.
    /// 0 where calls block.
    #[serde(default)]
    pub compute_ms: f64,
    /// Cost of a call; for a ping-pong, of one message, which is half a round trip. Repetitions are calls, but the
    /// spread is over batches.
    #[serde(flatten)]
    pub cost: RepetitionCost,
    /// Median of each round, per call like `cost`.
    pub round_medians_ms: Vec<f64>,
    /// Calls that service processes carried out, per call: 1 where it was offloaded, 0 where it passed through. `None`
    /// where there are no service processes.
    pub offloaded_calls: Option<f64>,
}

/// Measures calls of `ours` and of the peers of `options`, beside one another. [`Setup::blocking`] selects blocking
/// calls. No rank is late, even if `options` name a late rank.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails, because a comparison needs every system. Wrong bytes are no error here: the row reports them.
pub fn run_batches(options: &BenchOptions, ours: &[&dyn System]) -> Result<BatchReport, BenchError> {
    let options = &BenchOptions::new(options.setup.clone(), options.collective, options.sizes.clone());
    options.check()?;
    let batches = RefCell::new(vec![CallBatch::default(); options.sizes.len()]);
    run::side_by_side(
        &options.setup,
        ours,
        |workshop, system| workshop.batches(system),
        |launching| {
            let found = found_batches(options, launching)?;
            batches.borrow_mut().iter_mut().zip(found).for_each(|(batch, found)| *batch = batch.of_fastest(found));
            Ok(())
        },
        |launching| measure(options, launching, &batches.borrow()),
        |system, launches| {
            let calls = options.calls().map(|call| (call.bytes, call));
            samples::rows((&options.setup, system), launches, calls, |subject, bytes, found| {
                row(options, subject, bytes, found)
            })
        },
    )
}

/// How long a batch of small calls lasts.
const BATCH_S: f64 = 2e-3;

/// Fields that this program adds to its line for one size. Times cover every batch, sorted by rank, then by batch.
#[derive(Clone, Debug, Deserialize)]
struct BatchLine {
    bytes_per_rank: u64,
    /// Calls of a batch.
    calls: u32,
    start_ns: Vec<f64>,
    end_ns: Vec<f64>,
    /// Time of the batch's computations alone.
    alone_ns: Vec<f64>,
}

impl BatchLine {
    /// Time that a call of the slowest rank adds to the computations, batch by batch.
    fn slowest_ms(&self, batches: u32) -> Vec<f64> {
        let ranks = self.start_ns.iter().zip(&self.end_ns).zip(&self.alone_ns);
        let added: Vec<f64> = ranks.map(|((start, end), alone)| end - start - alone).collect();
        let batches = batches as usize;
        let slowest = |batch| added.iter().skip(batch).step_by(batches).copied().fold(0.0, f64::max);
        (0..batches).map(|batch| slowest(batch) / f64::from(self.calls) / 1e6).collect()
    }
}

/// A batch of one size; with 0 calls the program finds their number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CallBatch {
    calls: u32,
    /// Computation between post and wait of each call.
    compute: Duration,
}

impl CallBatch {
    /// A batch with the number of calls found. A nonblocking call computes as long as the shortest blocking call took.
    fn found(raw: &RawSample<BatchLine>, blocking: bool) -> Self {
        let call_s = raw.slowest_ms.iter().copied().fold(f64::INFINITY, f64::min) / 1e3;
        let compute = if blocking { Duration::ZERO } else { Duration::from_secs_f64(call_s) };
        Self { calls: raw.own.calls, compute }
    }

    /// Combines the results of two systems: the larger number of calls and the shorter computation.
    fn of_fastest(self, other: Self) -> Self {
        match self.calls {
            0 => other,
            calls => Self { calls: calls.max(other.calls), compute: self.compute.min(other.compute) },
        }
    }
}

/// Launches the program to find how many blocking calls of each size fit in the time of a batch, and how long each
/// takes. A system that learns from these blocking calls learns nothing about nonblocking calls.
fn found_batches(options: &BenchOptions, launching: &ProgramLaunch<'_>) -> Result<Vec<CallBatch>, BenchError> {
    let setup = &Setup { repetitions: 1, blocking: true, ..launching.setup.clone() };
    let unknown = vec![CallBatch::default(); options.sizes.len()];
    let launch = measure(options, &ProgramLaunch { setup, ..*launching }, &unknown)?;
    let blocking = launching.setup.blocking;
    Ok(launch.samples.iter().map(|sample| CallBatch::found(&sample.raw, blocking)).collect())
}

/// Launches the program and measures all sizes.
fn measure(
    options: &BenchOptions,
    launching: &ProgramLaunch<'_>,
    batches: &[CallBatch],
) -> Result<LaunchSamples<BatchLine>, BenchError> {
    let setup = launching.setup;
    let size = |(bytes, batch): (&u64, &CallBatch)| format!("{bytes}:{}:{}", batch.calls, batch.compute.as_nanos());
    let sizes = options.sizes.iter().zip(batches).map(size);
    let own =
        vec![format!("collective={}", options.collective.name()), format!("blocking={}", u8::from(setup.blocking))];
    let called = options.sizes.iter().map(|bytes| (*bytes, true));
    let key = |line: &BatchLine| (line.bytes_per_rank, line.calls > 0);
    let mut launch = launching.measure(sizes, own, time_limit(options, setup.repetitions), called, key)?;
    for LaunchSample { raw, .. } in &mut launch.samples {
        raw.slowest_ms = raw.own.slowest_ms(setup.repetitions);
    }
    Ok(launch)
}

fn time_limit(options: &BenchOptions, repetitions: u32) -> Duration {
    /// Batches for the phase without calls, for warming up and for finding how many calls make a batch.
    const MORE_BATCHES: u32 = 30;
    const EVERY_BATCH_S: f64 = 0.2;
    let link = options.setup.lab.link();
    let links_s: f64 = options.calls().map(|call| (raw_limit_ms(&call, &link) / 1e3).max(BATCH_S)).sum();
    let own_s: f64 = options.calls().map(|call| EVERY_BATCH_S + launch::checking_s(call.ranks(), call.bytes)).sum();
    let batches = f64::from(2 * repetitions + MORE_BATCHES);
    launch::time_limit(batches * links_s, batches * own_s)
}

fn row(options: &BenchOptions, subject: Subject, bytes_per_rank: u64, found: &ItemSamples<'_, BatchLine>) -> BatchRow {
    let batch_calls = found.raw_samples().next().map_or(0, |raw| raw.own.calls);
    let in_turn = options.collective.messages_in_turn();
    let calls = options.setup.all_repetitions() * batch_calls * in_turn;
    let cost = found.cost(calls);
    let of_round = |raw: &RawSample<BatchLine>| SampleSpread::of(&raw.slowest_ms).median / f64::from(in_turn);
    BatchRow {
        collective: options.collective.name().to_owned(),
        subject,
        bytes_per_rank,
        batch_calls,
        compute_ms: found.spread(|line| &line.alone_ns).times(1e-6 / f64::from(batch_calls)).median,
        cost: RepetitionCost { time_ms: cost.time_ms.times(1.0 / f64::from(in_turn)), ..cost },
        round_medians_ms: found.raw_samples().map(of_round).collect(),
        offloaded_calls: found
            .services()
            .map(|counters| counters.completed as f64 / (f64::from(options.setup.ranks()) * f64::from(calls))),
    }
}

const COLUMNS: [Column<BatchRow>; 9] = [
    ("system", |row| system_cell(&row.subject, &row.cost)),
    ("collective", |row| row.collective.clone()),
    ("ranks", |row| ranks_cell(&row.subject)),
    ("bytes/rank", |row| format_size(row.bytes_per_rank)),
    ("calls", |row| row.batch_calls.to_string()),
    ("time us [min..max]", |row| row.cost.time_ms.times(1e3).to_string()),
    ("offloaded", |row| or_none(row.offloaded_calls)),
    ("cpu us/call", |row| format!("{:.1}", row.cost.cpu_ms() * 1e3)),
    ("wire bytes", |row| format!("{:.0}", row.cost.wire_bytes)),
];

/// Renders rows as lines of text, grouped by size, fastest first. All figures are per call.
///
/// A `!` behind the system's name says that it delivered wrong bytes.
pub fn render_batches(report: &BatchReport) -> String {
    table(&COLUMNS, by_time(&report.rows, |row| row.bytes_per_rank, |row| &row.cost))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::tests::{cost, subject, through_json};

    /// Two ranks and two batches of ten calls.
    fn raw() -> RawSample<BatchLine> {
        let text = r#"{"bytes_per_rank":8,"calls":10,"cpu_s":1.0,"wrong":0,
            "start_ns":[0.0,100e6,1e6,101e6],"end_ns":[50e6,170e6,61e6,161e6],"alone_ns":[30e6,30e6,20e6,35e6]}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_computation_does_not_count_in_the_time_of_a_call() {
        // Beyond the computations, one rank's batches take 20 and 40 ms, the other's 40 and 25 ms.
        assert_eq!(raw().own.slowest_ms(2), [4.0, 4.0]);
        let blocking = BatchLine { alone_ns: vec![0.0; 4], ..raw().own };
        assert_eq!(blocking.slowest_ms(2), [6.0, 7.0]);
    }

    #[test]
    fn a_nonblocking_call_computes_as_long_as_the_fastest_systems_blocking_one_takes() {
        let slower = RawSample { slowest_ms: vec![7.0, 5.0], ..raw() };
        let faster = RawSample { slowest_ms: vec![3.0], own: BatchLine { calls: 12, ..raw().own }, ..raw() };
        let [slower, faster] = [slower, faster].map(|raw| CallBatch::found(&raw, false));
        let (both, compute) = (CallBatch::default().of_fastest(slower).of_fastest(faster), Duration::from_millis(3));
        assert_eq!(both, CallBatch { calls: 12, compute });
        assert_eq!(faster.of_fastest(slower), both);
        let none = CallBatch::found(&RawSample { slowest_ms: vec![3.0], ..raw() }, true).compute;
        assert_eq!(none, Duration::ZERO);
    }

    pub(crate) fn row(system: &str, bytes_per_rank: u64, us: f64) -> BatchRow {
        let time_ms = SampleSpread { median: us / 1e3, min: us / 2e3, max: us / 5e2 };
        BatchRow {
            collective: "broadcast".into(),
            subject: subject(system),
            bytes_per_rank,
            batch_calls: 10,
            compute_ms: 0.0,
            cost: RepetitionCost { time_ms, ..cost(1.0) },
            round_medians_ms: vec![us / 1e3],
            offloaded_calls: None,
        }
    }

    #[test]
    fn rows_survive_json() {
        let row = through_json(row("outboard", 8, 120.0));
        assert_eq!((row["batch_calls"].as_u64(), row["time_ms"]["median"].as_f64()), (Some(10), Some(0.12)));
    }

    #[test]
    fn rows_are_grouped_by_size_and_shown_in_microseconds() {
        let mut ours = row("outboard", 8, 120.0);
        ours.offloaded_calls = Some(0.998);
        let rows = vec![row("debian", 1024, 90.0), ours, row("debian", 8, 60.5)];
        let text = render_batches(&BatchReport { rows });
        let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..8], ["debian", "broadcast", "4", "8", "10", "60.50", "[30.25..121.00]", "-"]);
        assert_eq!(lines[1][..8], ["outboard", "broadcast", "4", "8", "10", "120.00", "[60.00..240.00]", "1.00"]);
        assert_eq!(lines[2][3], "1K");
    }
}
