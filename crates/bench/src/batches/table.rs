//! The report as a table for people.

use super::{BatchReport, BatchRow};
use crate::format_size;
use crate::table::{offloaded_cell, ranks_cell, system_cell, table};

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
    table(HEADINGS, sorted, cells)
}

fn cells(row: &BatchRow) -> [String; HEADINGS.len()] {
    [
        system_cell(&row.subject, &row.cost),
        row.collective.clone(),
        ranks_cell(&row.subject),
        format_size(row.bytes_per_rank),
        row.batch_calls.to_string(),
        row.cost.time_ms.times(1e3).to_string(),
        offloaded_cell(row.offloaded_calls),
        format!("{:.1}", row.cost.cpu_ms() * 1e3),
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
