//! The rows of a run, as they go into the JSON file.

use super::launch::WayLine;
use super::{RecordedOptions, Way};
use crate::format_size;
use crate::job::System;
use crate::plot::{Figure, Point, Scale};
use crate::report::{Cost, Report, Subject, ThreadCpu};
use crate::samples::{self, Found, Launch};
use serde::{Deserialize, Serialize};

/// What carries out the messages.
const ALGORITHM: &str = "scatter-destination";

/// Everything that one run found.
pub type RecordedReport = Report<RecordedRow>;

impl RecordedReport {
    pub(super) fn figures(&self) -> [Figure; 1] {
        let point = |row: &RecordedRow| Point {
            system: format!("{}, {}", row.subject.system, row.way.name()),
            x: row.block_bytes,
            value: row.cost.time_ms.median,
        };
        [Figure {
            file: "time.svg",
            title: "Time of a scatter-destination all-to-all by messages",
            unit: "milliseconds",
            scale: Scale::Logarithmic,
            reference: None,
            x_title: "bytes per block",
            x_label: format_size,
            points: self.rows.iter().map(point).collect(),
        }]
    }

    /// Whether every byte was right.
    pub fn verified(&self) -> bool {
        self.rows.iter().all(|row| row.cost.verified)
    }
}

/// One system at one size in one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedRow {
    /// Who and where.
    #[serde(flatten)]
    pub subject: Subject,
    /// How messages are handed over.
    pub way: Way,
    /// Bytes of the block that each rank has for each other.
    pub block_bytes: u64,
    /// Of a call of all messages. Times are of calls that all ranks began together; everything else was counted over
    /// calls in a row.
    #[serde(flatten)]
    pub cost: Cost,
    /// Processor time of a rank's own thread per call, where it waits for the end.
    pub thread_cpu: ThreadCpu,
    /// Entries and frames of a call; `None` where there are no service processes.
    pub handed_over: Option<HandedOver>,
}

/// Entries and frames of one call of all messages, on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandedOver {
    /// Entries of each rank for its service process (GP-5).
    pub entries_per_rank: f64,
    /// Frames between service processes.
    pub frames: f64,
    /// Those of them without payload.
    pub control_frames: f64,
    /// Entries of all ranks and frames without payload.
    pub control_messages: f64,
}

pub(super) fn rows(options: &RecordedOptions, system: &dyn System, launches: &[Launch<WayLine>]) -> Vec<RecordedRow> {
    let measured = options.sizes_and_ways().map(|(bytes, way)| ((bytes, way), options.call(bytes)));
    samples::rows((&options.setup, system), launches, measured, |subject, measured, found| {
        row(options, Subject { algorithm: ALGORITHM.to_owned(), ..subject }, measured, found)
    })
}

fn row(
    options: &RecordedOptions,
    subject: Subject,
    (block_bytes, way): (u64, Way),
    found: &Found<'_, WayLine>,
) -> RecordedRow {
    let (calls, ranks) = (f64::from(options.setup.all_repetitions()), f64::from(options.setup.ranks()));
    let each = |count: u64| count as f64 / calls;
    let handed_over = found.services().map(|counters| HandedOver {
        entries_per_rank: each(counters.entries) / ranks,
        frames: each(counters.frames),
        control_frames: each(counters.control_frames),
        control_messages: each(counters.entries + counters.control_frames),
    });
    RecordedRow {
        subject,
        way,
        block_bytes,
        cost: found.cost(options.setup.all_repetitions()),
        thread_cpu: ThreadCpu::of(&found.all(|line| &line.post_us), &found.all(|line| &line.ending_us)),
        handed_over,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::tests::{cost, subject, through_json};

    pub(in crate::recorded) fn row(system: &str, block_bytes: u64, way: Way, ms: f64) -> RecordedRow {
        let ours = system == "outboard";
        let handed_over =
            HandedOver { entries_per_rank: ms, frames: 40.0 * ms, control_frames: 30.0 * ms, control_messages: 60.0 };
        RecordedRow {
            subject: subject(system),
            way,
            block_bytes,
            cost: cost(ms),
            thread_cpu: ThreadCpu::of(&[ms], &[ms]),
            handed_over: ours.then_some(handed_over),
        }
    }

    #[test]
    fn rows_survive_json() {
        let row = through_json(row("outboard", 4096, Way::Recorded, 2.0));
        assert_eq!((row["way"].as_str(), row["block_bytes"].as_u64()), (Some("recorded"), Some(4096)));
        assert_eq!(row["handed_over"]["entries_per_rank"], 2.0);
    }
}
