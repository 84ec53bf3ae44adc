//! The time from a fault until every surviving rank has its verdict, and whether all verdicts agree.
//!
//! Never does: causing faults (`outboard bench verdicts` does).

use crate::report::SampleSpread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The results of all runs of one fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictRow {
    /// The fault.
    pub fault: String,
    /// Shape of the cluster: HOSTSxRATE.
    pub cluster: String,
    /// Ranks on every host.
    pub ranks_per_host: u32,
    /// Seconds within which all surviving ranks must have their verdict.
    pub bound_s: f64,
    /// Milliseconds from the fault until the last surviving rank had its verdict, over all runs.
    pub verdict_ms: SampleSpread,
    /// Number of runs.
    pub runs: u32,
    /// Runs in which all ranks that can reach each other had one verdict.
    pub alike: u32,
    /// How often ranks received each verdict.
    pub statuses: BTreeMap<String, u32>,
    /// All verdicts of a run that had several.
    pub disagreement: Option<Vec<String>>,
}

impl VerdictRow {
    /// Whether every surviving rank had the same verdict, in time.
    pub fn holds(&self) -> bool {
        self.alike == self.runs && self.verdict_ms.max <= self.bound_s * 1e3
    }
}

/// The rows as a table, with its headings or without.
pub fn render_verdicts(rows: &[VerdictRow], headings: bool) -> String {
    let mut text = String::new();
    if headings {
        let _ = writeln!(
            text,
            "{:<16} {:>10} {:>10} {:>8} {:>7}  verdicts",
            "fault", "median s", "worst s", "bound s", "alike"
        );
    }
    for row in rows {
        let seconds = |ms: f64| format!("{:.3}", ms / 1e3);
        let statuses: Vec<String> = row.statuses.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let _ = writeln!(
            text,
            "{:<16} {:>10} {:>10} {:>8} {:>7}  {}{}",
            row.fault,
            seconds(row.verdict_ms.median),
            seconds(row.verdict_ms.max),
            row.bound_s,
            format!("{}/{}", row.alike, row.runs),
            statuses.join(", "),
            if row.holds() { "" } else { "  TOO LATE OR NOT ALIKE" }
        );
        row.disagreement.iter().flatten().for_each(|line| text += &format!("    {line}\n"));
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(alike: u32, worst_ms: f64) -> VerdictRow {
        VerdictRow {
            fault: "cut link".to_owned(),
            cluster: "4x1gbit".to_owned(),
            ranks_per_host: 2,
            bound_s: 5.0,
            verdict_ms: SampleSpread { median: 3512.0, min: 3400.0, max: worst_ms },
            runs: 20,
            alike,
            statuses: BTreeMap::from([("PeerLost".to_owned(), 140)]),
            disagreement: None,
        }
    }

    #[test]
    fn a_promise_is_kept_in_time_and_by_all() {
        assert!(row(20, 5000.0).holds() && !row(20, 5001.0).holds() && !row(19, 4000.0).holds());
        let text = render_verdicts(&[row(20, 3600.0), row(19, 3600.0)], true);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("3.512") && lines[1].ends_with("20/20  PeerLost 140"), "{text}");
        assert!(lines[2].ends_with("NOT ALIKE"), "{text}");
    }
}
