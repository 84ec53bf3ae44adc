//! The rows of a run, as they go into the JSON file and the chart.

use super::launch::SortLine;
use super::{RadixOptions, Sort};
use crate::job::System;
use crate::plot::{Figure, Point, Scale};
use crate::report::{Cost, Report, Spread, Subject, overlap_percent};
use crate::samples::{self, Found, Launch};
use serde::{Deserialize, Serialize};

/// With overlap and in turn.
const KINDS: u32 = 2;

/// Everything that one run found.
pub type RadixReport = Report<RadixRow>;

impl RadixReport {
    /// Whether every result was right.
    pub fn verified(&self) -> bool {
        self.rows.iter().all(|row| row.cost.verified)
    }

    pub(super) fn figures(&self) -> [Figure; 1] {
        let point = |row: &RadixRow| Point {
            system: format!("{}, {} keys", row.subject.system, row.keys),
            x: row.buckets.into(),
            value: row.cost.time_ms.median,
        };
        [Figure {
            file: "time.svg",
            title: "Time of a radix sort",
            unit: "milliseconds",
            scale: Scale::Logarithmic,
            reference: None,
            x_title: "buckets of a pass",
            x_label: |buckets| buckets.to_string(),
            points: self.rows.iter().map(point).collect(),
        }]
    }
}

/// One system and one sort.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RadixRow {
    /// `radix`.
    pub program: String,
    /// Who and where.
    #[serde(flatten)]
    pub subject: Subject,
    /// Buckets of a pass: the base of its digits.
    pub buckets: u32,
    /// Passes of a sort, each with one histogram.
    pub passes: u32,
    /// Keys of each rank.
    pub keys: u32,
    /// Of a sort. Times are of those with overlap; everything else is the mean of both kinds.
    #[serde(flatten)]
    pub cost: Cost,
    /// The same time without overlap.
    pub in_turn_ms: Spread,
    /// What overlaps.
    pub histogram: Histogram,
    /// Histograms of a sort that service processes carried out: `passes` where all were offloaded, 0 where all passed
    /// through; `None` where there are no service processes.
    pub offloaded_histograms: Option<f64>,
}

/// The exchange of the histograms of one sort, and the moving of keys meanwhile: sums over the passes, means over all
/// ranks, medians of the repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Bytes of each rank in one exchange.
    pub bytes_per_rank: u64,
    /// The exchange, with nothing beside it.
    pub exchange_ms: f64,
    /// Moving the keys, with nothing beside it.
    pub moving_ms: f64,
    /// Both, one beside the other.
    pub both_ms: f64,
    /// Share of the exchange that the moving hid (CD-7); at most `moving_ms` of it can be hidden.
    pub overlap_percent: f64,
}

pub(super) fn rows(options: &RadixOptions, system: &dyn System, launches: &[Launch<SortLine>]) -> Vec<RadixRow> {
    let sorts = options.sorts().map(|sort| (sort, options.exchange(sort)));
    samples::rows((&options.setup, system), launches, sorts, |subject, sort, found| row(options, subject, sort, found))
}

fn row(options: &RadixOptions, subject: Subject, sort: Sort, found: &Found<'_, SortLine>) -> RadixRow {
    let sorts = KINDS * options.setup.all_repetitions();
    let exchange_ms = found.spread(|line| &line.exchange_ms).median;
    let moving_ms = found.spread(|line| &line.moving_ms).median;
    let both_ms = found.spread(|line| &line.both_ms).median;
    let rank_sorts = f64::from(sorts * options.setup.ranks());
    RadixRow {
        program: "radix".to_owned(),
        subject,
        buckets: sort.buckets,
        passes: sort.passes(),
        keys: sort.keys,
        cost: found.cost(sorts),
        in_turn_ms: found.spread(|line| &line.in_turn_ms),
        histogram: Histogram {
            bytes_per_rank: sort.histogram_bytes(),
            exchange_ms,
            moving_ms,
            both_ms,
            overlap_percent: overlap_percent(moving_ms, both_ms, exchange_ms),
        },
        offloaded_histograms: found.services().map(|counters| counters.completed as f64 / rank_sorts),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::tests::{cost, subject, through_json};

    pub(in crate::radix) fn row(system: &str, buckets: u32, ms: f64) -> RadixRow {
        let histogram =
            Histogram { bytes_per_rank: 64, exchange_ms: 2.0, moving_ms: 1.0, both_ms: 2.0, overlap_percent: 50.0 };
        RadixRow {
            program: "radix".into(),
            subject: subject(system),
            buckets,
            passes: 8,
            keys: 4096,
            cost: cost(ms),
            in_turn_ms: Spread::of(&[ms + 1.0]),
            histogram,
            offloaded_histograms: None,
        }
    }

    #[test]
    fn rows_survive_json() {
        let row = through_json(row("mpich", 16, 27.0));
        for field in
            ["system", "buckets", "passes", "keys", "time_ms", "in_turn_ms", "offloaded_histograms", "verified"]
        {
            assert!(row.get(field).is_some(), "{field}");
        }
        assert_eq!(row["histogram"]["overlap_percent"], 50.0);
    }
}
