//! The report as a table for people.

use super::{HandedOver, RecordedReport, RecordedRow, Way};
use crate::format_size;
use crate::table::{LEFT_ALIGNED, lay_out, ranks_cell, system_cell};

const HEADINGS: [&str; 11] = [
    "system",
    "way",
    "ranks",
    "block",
    "time ms [min..max]",
    "entries/rank",
    "control msgs",
    "between services",
    "services cpu us",
    "ranks cpu us",
    "wire MB",
];

/// Renders rows as lines of text, grouped by size; below the two ways of a system what the recorded one takes of the
/// basic one. All figures but the entries are of a call on all ranks together; control messages are the ranks' entries
/// and the frames without payload between service processes.
///
/// A `!` behind the system's name says that it delivered wrong bytes.
pub fn render(report: &RecordedReport) -> String {
    let mut sorted: Vec<&RecordedRow> = report.rows.iter().collect();
    // Stable: systems keep the order in which they were measured.
    sorted.sort_by_key(|row| row.block_bytes);
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    for row in &sorted {
        lines.push(cells(row));
        let same = |basic: &&&RecordedRow| {
            (basic.way, basic.block_bytes) == (Way::Basic, row.block_bytes)
                && basic.subject.system == row.subject.system
        };
        if row.way == Way::Recorded
            && let Some(basic) = sorted.iter().find(same)
        {
            lines.push(ratios(row, basic));
        }
    }
    lay_out(&lines, LEFT_ALIGNED)
}

fn cells(row: &RecordedRow) -> [String; HEADINGS.len()] {
    let handed = |what: fn(&HandedOver) -> f64| {
        row.handed_over.as_ref().map_or_else(|| "-".to_owned(), |handed_over| format!("{:.1}", what(handed_over)))
    };
    let between = row.handed_over.map_or_else(
        || "-".to_owned(),
        |handed| format!("{:.1} of {:.1} frames", handed.control_frames, handed.frames),
    );
    [
        system_cell(&row.subject, &row.cost),
        row.way.name().to_owned(),
        ranks_cell(&row.subject),
        format_size(row.block_bytes),
        format!("{:.3}", row.cost.time_ms),
        handed(|handed| handed.entries_per_rank),
        handed(|handed| handed.control_messages),
        between,
        row.cost.service_cpu_s.map_or_else(|| "-".to_owned(), |seconds| format!("{:.0}", seconds * 1e6)),
        format!("{:.0}", row.cost.host_cpu_s * 1e6),
        format!("{:.3}", row.cost.wire_bytes / 1e6),
    ]
}

/// The figures of recorded calls, divided by those of messages one by one.
fn ratios(recorded: &RecordedRow, basic: &RecordedRow) -> [String; HEADINGS.len()] {
    let ratio = |of: &dyn Fn(&RecordedRow) -> Option<f64>| match (of(recorded), of(basic)) {
        (Some(recorded), Some(basic)) if basic > 0.0 => format!("x {:.2}", recorded / basic),
        _ => "-".to_owned(),
    };
    [
        String::new(),
        "recorded/basic".to_owned(),
        String::new(),
        String::new(),
        ratio(&|row| Some(row.cost.time_ms.median)),
        ratio(&|row| Some(row.handed_over?.entries_per_rank)),
        ratio(&|row| Some(row.handed_over?.control_messages)),
        ratio(&|row| Some(row.handed_over?.control_frames)),
        ratio(&|row| row.cost.service_cpu_s),
        ratio(&|row| Some(row.cost.host_cpu_s)),
        ratio(&|row| Some(row.cost.wire_bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::report::tests::row;

    #[test]
    fn ways_stand_beside_each_other_with_their_ratio() {
        let mut wrong = row("mpich", 4096, Way::Recorded, 3.0);
        wrong.cost.verified = false;
        let rows = vec![
            row("outboard", 65_536, Way::Basic, 9.0),
            row("outboard", 4096, Way::Basic, 4.0),
            row("outboard", 4096, Way::Recorded, 1.0),
            row("mpich", 4096, Way::Basic, 2.0),
            wrong,
        ];
        let text = render(&RecordedReport { rows });
        let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..2], ["outboard", "basic"]);
        assert_eq!(lines[1][..2], ["outboard", "recorded"]);
        assert_eq!(lines[2][..7], ["recorded/basic", "x", "0.25", "x", "0.25", "x", "1.00"]);
        assert_eq!(lines[4][..2], ["mpich!", "recorded"]);
        assert_eq!(lines[5][..4], ["recorded/basic", "x", "1.50", "-"], "{text}");
        assert_eq!(lines[6][..2], ["outboard", "basic"]);
        assert_eq!(lines.len(), 7, "no ratio without both ways");
    }
}
