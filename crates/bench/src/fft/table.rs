//! The report as a table for people.

use super::{FftReport, FftRow};
use crate::report::passed_through;
use crate::table::{cpu_cell, ranks_cell, system_cell, table};

const HEADINGS: [&str; 9] = [
    "system",
    "algorithm",
    "ranks",
    "grid",
    "time ms [min..max]",
    "in MPI ms [min..max]",
    "links ms",
    "wire MB",
    "cpu ms",
];

/// Renders rows as lines of text, grouped by grid, fastest first. Figures are for a forward and a backward transform of
/// all fields.
///
/// A `!` behind the system's name says that its results were wrong.
pub fn render(report: &FftReport) -> String {
    let mut sorted: Vec<&FftRow> = report.rows.iter().collect();
    sorted.sort_by(|a, b| {
        (a.grid, a.cost.time_ms.median).partial_cmp(&(b.grid, b.cost.time_ms.median)).expect("times are numbers")
    });
    table(HEADINGS, sorted.iter().copied(), cells)
        + &sorted.iter().filter_map(|row| offloading(row)).collect::<String>()
        + &different_bits(&sorted)
}

/// How many of the exchanges service processes carried out.
fn offloading(row: &FftRow) -> Option<String> {
    let offloaded = row.offloaded_exchanges?;
    let verdict = if passed_through(offloaded, row.exchanges) { "NOT OFFLOADED: " } else { "" };
    Some(format!(
        "{}, grid {}: {verdict}service processes carried out {offloaded:.1} calls a repetition, which has {} \
         exchanges\n",
        row.subject.system, row.grid, row.exchanges
    ))
}

fn different_bits(rows: &[&FftRow]) -> String {
    let differs = |row: &&&FftRow| rows.iter().any(|other| !row.same_bits(other));
    let line = |row: &&FftRow| format!("{}, grid {}: DIFFERENT BITS: {}\n", row.subject.system, row.grid, row.checksum);
    rows.iter().filter(differs).map(line).collect()
}

fn cells(row: &FftRow) -> [String; HEADINGS.len()] {
    [
        system_cell(&row.subject, &row.cost),
        row.subject.algorithm.clone(),
        ranks_cell(&row.subject),
        format!("{}^3 x {}", row.grid, row.variables),
        format!("{:.1}", row.cost.time_ms),
        format!("{:.1}", row.mpi_ms),
        format!("{:.1}", row.limit_ms),
        format!("{:.1} ({:.1} payload)", row.cost.wire_bytes / 1e6, row.payload_bytes as f64 / 1e6),
        cpu_cell(&row.cost),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fft::report::tests::row;

    #[test]
    fn rows_are_grouped_by_grid_and_sorted_by_time() {
        let mut wrong = row("broken", 128, 20.0);
        wrong.cost.verified = false;
        let text = render(&FftReport { rows: vec![row("slow", 256, 9.0), row("fast", 256, 8.0), wrong] });
        let systems: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(systems, ["broken!", "fast", "slow"]);
    }

    #[test]
    fn what_passed_through_is_told() {
        let mut rows = vec![row("outboard below debian", 128, 20.0), row("outboard below debian", 256, 90.0)];
        (rows[0].offloaded_exchanges, rows[1].offloaded_exchanges) = (Some(0.0), Some(16.0));
        let text = render(&FftReport { rows });
        assert_eq!(
            text.lines().skip(3).collect::<Vec<_>>(),
            [
                "outboard below debian, grid 128: NOT OFFLOADED: service processes carried out 0.0 calls a repetition, \
                 which has 16 exchanges",
                "outboard below debian, grid 256: service processes carried out 16.0 calls a repetition, which has 16 \
                 exchanges"
            ]
        );
    }

    #[test]
    fn different_bits_are_told() {
        let mut rows = vec![row("one", 128, 20.0), row("two", 128, 21.0), row("three", 256, 90.0)];
        rows[2].checksum = "c".into();
        let mut report = FftReport { rows };
        assert!(report.agrees() && !render(&report).contains("DIFFERENT"), "another grid has other bits");
        report.rows[1].checksum = "b".into();
        assert!(!report.agrees());
        assert_eq!(render(&report).matches("grid 128: DIFFERENT BITS").count(), 2);
    }
}
