//! The report as a table for people, on the terminal and in Markdown.

use super::{ProgramRow, ProgramsReport};
use crate::report::Spread;
use crate::table::{LEFT_ALIGNED, lay_out, markdown};

const HEADINGS: [&str; 9] = [
    "program",
    "cluster",
    "pairs",
    "native s [min..max]",
    "below s [min..max]",
    "ratio",
    "pairs' ratio [min..max]",
    "offloaded/rank",
    "verdict",
];

/// Renders rows as lines of text.
///
/// A `!` behind the program says that results were wrong.
pub fn render_programs(report: &ProgramsReport) -> String {
    lay_out(&lines(report), LEFT_ALIGNED)
}

/// The same as a table of Markdown.
pub fn render_programs_markdown(report: &ProgramsReport) -> String {
    markdown(&lines(report), LEFT_ALIGNED)
}

fn lines(report: &ProgramsReport) -> Vec<[String; HEADINGS.len()]> {
    std::iter::once(HEADINGS.map(str::to_owned)).chain(report.rows.iter().map(line)).collect()
}

fn line(row: &ProgramRow) -> [String; HEADINGS.len()] {
    let seconds = |of: Spread| format!("{:.3} [{:.3}..{:.3}]", of.median, of.min, of.max);
    [
        if row.verified { row.program.clone() } else { format!("{}!", row.program) },
        row.place.clone(),
        row.pairs.to_string(),
        seconds(row.native_s),
        seconds(row.below_s),
        format!("{:.3}", row.ratio),
        seconds(row.pair_ratio),
        row.offloaded_calls.map_or_else(|| "-".to_owned(), |calls| format!("{calls:.0}")),
        row.verdict.cell().to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::report::tests::row;

    #[test]
    fn a_line_has_both_times_and_both_ratios() {
        let report = ProgramsReport { rows: vec![row(&[(1.0, "ok"), (2.0, "ok")], &[(1.5, "ok"), (2.5, "wrong")])] };
        let text = render_programs_markdown(&report);
        let line = "| cg! | 2x1gbit | 2 | 1.500 [1.000..2.000] | 2.000 [1.500..2.500] | 1.333 | \
                    1.375 [1.250..1.500] | - | LOSS |";
        assert_eq!(text.lines().nth(2), Some(line), "{text}");
        assert_eq!(render_programs(&report).lines().count(), 2);
    }
}
