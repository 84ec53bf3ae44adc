//! The report as a table for people.

use super::{RadixReport, RadixRow};
use crate::format_size;
use crate::report::passed_through;
use crate::table::{cpu_cell, ranks_cell, system_cell, table};

const HEADINGS: [&str; 12] = [
    "system",
    "algorithm",
    "ranks",
    "keys/rank",
    "radix",
    "time ms [min..max]",
    "in turn ms [min..max]",
    "histograms ms",
    "moving ms",
    "overlap %",
    "offloaded",
    "cpu ms",
];

/// Renders rows as lines of text, grouped by sort, fastest first. Figures are for one sort.
///
/// A `!` behind the system's name says that its results were wrong.
pub fn render(report: &RadixReport) -> String {
    let mut sorted: Vec<&RadixRow> = report.rows.iter().collect();
    sorted.sort_by(|a, b| {
        (a.keys, a.buckets).cmp(&(b.keys, b.buckets)).then(a.cost.time_ms.median.total_cmp(&b.cost.time_ms.median))
    });
    table(HEADINGS, sorted, cells)
}

fn cells(row: &RadixRow) -> [String; HEADINGS.len()] {
    let histogram = &row.histogram;
    [
        system_cell(&row.subject, &row.cost),
        row.subject.algorithm.clone(),
        ranks_cell(&row.subject),
        format_size(row.keys.into()),
        format!("{}, {} passes", row.buckets, row.passes),
        row.cost.time_ms.to_string(),
        row.in_turn_ms.to_string(),
        format!("{:.2}", histogram.exchange_ms),
        format!("{:.2}", histogram.moving_ms),
        format!("{:.0}", histogram.overlap_percent),
        row.offloaded_histograms.map_or_else(|| "-".to_owned(), |histograms| offloaded_cell(row, histograms)),
        cpu_cell(&row.cost),
    ]
}

fn offloaded_cell(row: &RadixRow, histograms: f64) -> String {
    let told = if passed_through(histograms, row.passes) { "NOT OFFLOADED: " } else { "" };
    format!("{told}{histograms:.1} of {}", row.passes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::radix::report::tests::row;

    #[test]
    fn rows_are_grouped_by_sort_and_sorted_by_time() {
        let mut wrong = row("broken", 4, 20.0);
        wrong.cost.verified = false;
        let text = render(&RadixReport { rows: vec![row("slow", 16, 9.0), row("fast", 16, 8.0), wrong] });
        let systems: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(systems, ["broken!", "fast", "slow"]);
        assert!(text.contains("  16, 8 passes  ") && text.contains("  8.00 [7.00..10.00]  "), "{text}");
    }

    #[test]
    fn what_passed_through_is_told() {
        let mut rows = vec![row("outboard", 4, 20.0), row("outboard", 16, 90.0)];
        (rows[0].offloaded_histograms, rows[1].offloaded_histograms) = (Some(0.0), Some(8.0));
        let text = render(&RadixReport { rows });
        assert!(text.contains("  NOT OFFLOADED: 0.0 of 8  ") && text.contains("  8.0 of 8  "), "{text}");
    }
}
