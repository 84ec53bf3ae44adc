//! The report as tables for people, on the terminal and in Markdown.

use super::{Cell, GridReport, Verdict};
use crate::format_size;
use crate::table::{LEFT_ALIGNED, lay_out, markdown, offloaded_cell};

const HEADINGS: [&str; 10] = [
    "collective",
    "cluster",
    "bytes/rank",
    "native us",
    "below us",
    "ratio",
    "difference us",
    "noise us",
    "offloaded",
    "verdict",
];
/// How many of the worst and of the best cells stand at the end.
const EXTREMES: usize = 3;

type Line = [String; HEADINGS.len()];

/// Renders all cells as lines of text, then the worst and the best.
///
/// A `!` behind the collective says that bytes were wrong.
pub fn render_grid(report: &GridReport) -> String {
    let part = |title: &str, cells: &[&Cell]| format!("{title}{}", lay_out(&lines(cells), LEFT_ALIGNED));
    sections(report).map(|(title, cells)| part(&title, &cells)).concat()
}

/// The same as tables of Markdown.
pub fn render_grid_markdown(report: &GridReport) -> String {
    let part = |title: &str, cells: &[&Cell]| {
        let below_title = if title.is_empty() { "" } else { "\n" };
        format!("{title}{below_title}{}", markdown(&lines(cells), LEFT_ALIGNED))
    };
    sections(report).map(|(title, cells)| part(&title, &cells)).concat()
}

/// All cells, the worst, the best: each under its title.
fn sections(report: &GridReport) -> [(String, Vec<&Cell>); 3] {
    let all: Vec<&Cell> = report.rows.iter().collect();
    let mut sorted = all.clone();
    // A ratio that is within the noise of a short call is neither the worst nor the best.
    sorted.sort_by(|a, b| a.verdict.cmp(&b.verdict).then(b.ratio.total_cmp(&a.ratio)));
    let losses = all.iter().filter(|cell| cell.verdict == Verdict::Loss).count();
    let shown = EXTREMES.min(sorted.len());
    let best = sorted.iter().rev().take(shown).copied().collect();
    let title = format!("\n{losses} of {} cells lose; the worst:\n", all.len());
    sorted.truncate(shown);
    [(String::new(), all), (title, sorted), ("\nThe best:\n".to_owned(), best)]
}

fn lines(cells: &[&Cell]) -> Vec<Line> {
    std::iter::once(HEADINGS.map(str::to_owned)).chain(cells.iter().map(|cell| line(cell))).collect()
}

fn line(cell: &Cell) -> Line {
    [
        if cell.verified { cell.collective.clone() } else { format!("{}!", cell.collective) },
        cell.place.clone(),
        format_size(cell.bytes_per_rank),
        format!("{:.2}", cell.native_us),
        format!("{:.2}", cell.below_us),
        format!("{:.3}", cell.ratio),
        format!("{:+.2}", cell.difference_us),
        format!("{:.2}", cell.noise_us),
        offloaded_cell(cell.offloaded_calls),
        cell.verdict.cell().to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::tests::cell;

    fn report() -> GridReport {
        let times = [(8, 100.0, 120.0), (64, 1.0, 2.0), (1024, 100.0, 90.0), (4096, 100.0, 50.0)];
        GridReport { rows: times.map(|(bytes, native, below)| cell(bytes, native, below)).to_vec() }
    }

    #[test]
    fn the_worst_and_the_best_stand_below_all() {
        let text = render_grid(&report());
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words[1],
            ["broadcast", "2x1gbit", "8", "100.00", "120.00", "1.200", "+20.00", "0.00", "-", "LOSS"],
            "{text}"
        );
        assert_eq!(words[2][9], "-");
        assert_eq!(text.lines().nth(6), Some("1 of 4 cells lose; the worst:"));
        let sizes = |from: usize| words[from..from + 3].iter().map(|line| line[2]).collect::<Vec<_>>();
        assert_eq!((sizes(8), sizes(14)), (vec!["8", "64", "1K"], vec!["4K", "1K", "64"]), "{text}");
    }

    #[test]
    fn markdown_has_the_same_lines() {
        let text = render_grid_markdown(&report());
        assert_eq!(text.lines().nth(1), Some("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"));
        assert!(
            text.contains("\n| broadcast | 2x1gbit | 4K | 100.00 | 50.00 | 0.500 | -50.00 | 0.00 | - | win |\n"),
            "{text}"
        );
        assert!(text.contains("lose; the worst:\n\n| collective |"), "a table begins behind an empty line: {text}");
        assert_eq!(text.matches("|---|").count(), 3, "{text}");
    }
}
