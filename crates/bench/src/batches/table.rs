//! The report as a table for people.

use super::{BatchReport, BatchRow};
use crate::format_size;
use crate::table::{LEFT_ALIGNED, lay_out, offloaded_cell, ranks_cell};

const HEADINGS: [&str; 9] = [
    "system",
    "collective",
    "ranks",
    "bytes/rank",
    "calls",
    "time us [min..max]",
    "offloaded",
    "cpu us/call",
    "wire bytes",
];

/// Renders rows as lines of text, grouped by size, fastest first. Times and all else are of one call.
///
/// A `!` behind the system's name says that it delivered wrong bytes.
pub fn render(report: &BatchReport) -> String {
    let mut sorted: Vec<&BatchRow> = report.rows.iter().collect();
    sorted.sort_by(|a, b| {
        let by_size = a.bytes_per_rank.cmp(&b.bytes_per_rank);
        by_size.then(a.cost.time_ms.median.total_cmp(&b.cost.time_ms.median))
    });
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(sorted.into_iter().map(cells));
    lay_out(&lines, LEFT_ALIGNED)
}

fn cells(row: &BatchRow) -> [String; HEADINGS.len()] {
    let time = row.cost.time_ms;
    [
        if row.cost.verified { row.subject.system.clone() } else { format!("{}!", row.subject.system) },
        row.collective.clone(),
        ranks_cell(&row.subject),
        format_size(row.bytes_per_rank),
        row.batch_calls.to_string(),
        format!("{:.2} [{:.2}..{:.2}]", time.median * 1e3, time.min * 1e3, time.max * 1e3),
        offloaded_cell(row.offloaded_calls),
        format!("{:.1}", (row.cost.host_cpu_s + row.cost.service_cpu_s.unwrap_or(0.0)) * 1e6),
        format!("{:.0}", row.cost.wire_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batches::report::tests::row;

    #[test]
    fn rows_are_grouped_by_size_and_told_in_microseconds() {
        let mut ours = row("outboard", 8, 120.0);
        ours.offloaded_calls = Some(0.998);
        let rows = vec![row("debian", 1024, 90.0), ours, row("debian", 8, 60.5)];
        let text = render(&BatchReport { rows });
        let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..8], ["debian", "broadcast", "4", "8", "10", "60.50", "[30.25..121.00]", "-"]);
        assert_eq!(lines[1][..8], ["outboard", "broadcast", "4", "8", "10", "120.00", "[60.00..240.00]", "1.00"]);
        assert_eq!(lines[2][3], "1K");
    }
}
