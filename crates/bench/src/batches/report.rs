//! The rows of a run, as they go into the JSON file.

use super::launch::SizeLine;
use crate::job::System;
use crate::plot::{Figure, Point, Scale};
use crate::report::{Cost, Report, Spread, Subject};
use crate::samples::{self, Found, Launch, Told};
use crate::{BenchOptions, format_size};
use serde::{Deserialize, Serialize};

/// Everything that one run found.
pub type BatchReport = Report<BatchRow>;

impl BatchReport {
    pub(super) fn figures(&self) -> [Figure; 1] {
        let point = |row: &BatchRow| Point {
            system: row.subject.system.clone(),
            x: row.bytes_per_rank,
            value: row.cost.time_ms.median * 1e3,
        };
        [Figure {
            file: "batches.svg",
            title: "Time that a call costs",
            unit: "microseconds",
            scale: Scale::Logarithmic,
            reference: None,
            x_title: "bytes per rank",
            x_label: format_size,
            points: self.rows.iter().map(point).collect(),
        }]
    }

    /// Whether every byte was right.
    pub fn verified(&self) -> bool {
        self.rows.iter().all(|row| row.cost.verified)
    }
}

/// Calls in a row of one system at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchRow {
    /// Name of the [`Collective`](crate::Collective).
    pub collective: String,
    /// Who and where.
    #[serde(flatten)]
    pub subject: Subject,
    /// Bytes of a call ([`Call::bytes`](crate::Call::bytes)).
    pub bytes_per_rank: u64,
    /// Calls in a row, from one common beginning to the next.
    pub batch_calls: u32,
    /// What each rank computes between post and wait of a call: median, taken off the time of the call. 0 where calls
    /// block.
    #[serde(default)]
    pub compute_ms: f64,
    /// Of a call, of a ping-pong half of one; repetitions are as many. The spread is that of the batches.
    #[serde(flatten)]
    pub cost: Cost,
    /// Median of each round, of a call as above.
    pub round_medians_ms: Vec<f64>,
    /// Calls that service processes carried out, per call: 1 where it was offloaded, 0 where it passed through. `None`
    /// where there are no service processes.
    pub offloaded_calls: Option<f64>,
}

pub(super) fn rows(options: &BenchOptions, system: &dyn System, launches: &[Launch<SizeLine>]) -> Vec<BatchRow> {
    let calls = options.calls().map(|call| (call.bytes, call));
    samples::rows((&options.setup, system), launches, calls, |subject, bytes, found| {
        row(options, subject, bytes, found)
    })
}

fn row(options: &BenchOptions, subject: Subject, bytes_per_rank: u64, found: &Found<'_, SizeLine>) -> BatchRow {
    let batch_calls = found.told().next().map_or(0, |told| told.own.calls);
    let in_turn = options.collective.messages_in_turn();
    let calls = options.setup.all_repetitions() * batch_calls * in_turn;
    let cost = found.cost(calls);
    let of_round = |told: &Told<SizeLine>| Spread::of(&told.slowest_ms).median / f64::from(in_turn);
    BatchRow {
        collective: options.collective.name().to_owned(),
        subject,
        bytes_per_rank,
        batch_calls,
        compute_ms: found.spread(|line| &line.alone_ns).times(1e-6 / f64::from(batch_calls)).median,
        cost: Cost { time_ms: cost.time_ms.times(1.0 / f64::from(in_turn)), ..cost },
        round_medians_ms: found.told().map(of_round).collect(),
        offloaded_calls: found
            .services()
            .map(|counters| counters.completed as f64 / (f64::from(options.setup.ranks()) * f64::from(calls))),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::tests::{cost, subject, through_json};

    pub(crate) fn row(system: &str, bytes_per_rank: u64, us: f64) -> BatchRow {
        let time_ms = Spread { median: us / 1e3, min: us / 2e3, max: us / 5e2 };
        BatchRow {
            collective: "broadcast".into(),
            subject: subject(system),
            bytes_per_rank,
            batch_calls: 10,
            compute_ms: 0.0,
            cost: Cost { time_ms, ..cost(1.0) },
            round_medians_ms: vec![us / 1e3],
            offloaded_calls: None,
        }
    }

    #[test]
    fn rows_survive_json() {
        let row = through_json(row("outboard", 8, 120.0));
        assert_eq!((row["batch_calls"].as_u64(), row["time_ms"]["median"].as_f64()), (Some(10), Some(0.12)));
    }
}
