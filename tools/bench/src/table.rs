//! The report as a table for people.

use crate::{CollectiveRow, Overlap, RepetitionCost, Subject, format_size};

/// A heading, and the function that gives a row's cell.
pub(crate) type Column<R> = (&'static str, fn(&R) -> String);

const FIRST: [Column<CollectiveRow>; 5] = [
    ("system", |row| if row.cost.verified { row.label() } else { format!("{}!", row.label()) }),
    ("algorithm", |row| if row.passed_through() { "-".into() } else { row.subject.algorithm.clone() }),
    ("ranks", |row| ranks_cell(&row.subject)),
    ("bytes/rank", |row| format_size(row.bytes_per_rank)),
    ("time ms [min..max]", |row| row.cost.time_ms.to_string()),
];
const OF_LIMITS: [Column<CollectiveRow>; 2] =
    [("limit ms", limit_cell), ("ratio", |row| or_none(row.limits.ratio_to_limit))];
/// Columns that replace the limits where links have none.
const OF_THROUGHPUT: [Column<CollectiveRow>; 2] = [
    ("Gbit/s", |row| or_none(row.throughput.map(|throughput| throughput.gbit_per_s))),
    ("cpu s/GB", |row| or_none(row.throughput.map(|throughput| throughput.cpu_s_per_gb))),
];
const LAST: [Column<CollectiveRow>; 6] = [
    ("wire MB/call", |row| format!("{:.3}", row.cost.wire_bytes / 1e6)),
    ("overlap %", |row| hidden(row, |overlap| format!("{:.0}", overlap.percent))),
    ("overall ms (compute)", |row| {
        hidden(row, |overlap| format!("{:.2} ({:.2})", overlap.overall_ms, overlap.compute_ms))
    }),
    ("with/alone", |row| hidden(row, |overlap| format!("{:.2}", overlap.paired_ratio))),
    ("cpu ms/call", |row| cpu_cell(&row.cost)),
    ("rank cpu us/call (waiting)", thread_cell),
];
/// The number of columns that hold names; the others hold numbers.
pub(crate) const LEFT_ALIGNED: usize = 2;

/// Renders rows as lines of text, grouped by size, fastest first.
///
/// A `!` behind the system's name says that it delivered wrong bytes.
pub fn render(rows: &[CollectiveRow]) -> String {
    let unlimited = rows.iter().any(|row| row.throughput.is_some());
    let columns = [&FIRST[..], if unlimited { &OF_THROUGHPUT } else { &OF_LIMITS }, &LAST].concat();
    table(&columns, by_time(rows, |row| row.bytes_per_rank, |row| &row.cost)) + &native_lines(rows) + &late_lines(rows)
}

/// Renders times alone, with a line for each size and a column for each system in the order of the rows. Compares
/// systems that differ in one setting (SP-8).
pub fn render_by_size(rows: &[CollectiveRow]) -> String {
    let mut systems: Vec<String> = Vec::new();
    for label in rows.iter().map(CollectiveRow::label) {
        if !systems.contains(&label) {
            systems.push(label);
        }
    }
    let mut sizes: Vec<u64> = rows.iter().map(|row| row.bytes_per_rank).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let time = |bytes: u64, system: &str| {
        let row = rows.iter().find(|row| row.bytes_per_rank == bytes && row.label() == system);
        row.map_or_else(|| "-".to_owned(), |row| format!("{:.2}", row.cost.time_ms.median))
    };
    let headings = std::iter::once("bytes/rank, ms".to_owned()).chain(systems.iter().cloned());
    let line = |bytes: u64| {
        std::iter::once(format_size(bytes)).chain(systems.iter().map(|system| time(bytes, system))).collect::<Vec<_>>()
    };
    let lines: Vec<Vec<String>> = std::iter::once(headings.collect()).chain(sizes.into_iter().map(line)).collect();
    lay_out(&lines, 0)
}

/// A line for each row of ours whose calls passed through to the MPI library.
fn native_lines(rows: &[CollectiveRow]) -> String {
    let line = |row: &CollectiveRow| {
        let offloaded = row.offloaded_calls.filter(|_| row.passed_through())?;
        let (system, size, collective) = (&row.subject.system, format_size(row.bytes_per_rank), &row.collective);
        Some(format!("{system}, {size}: NOT OFFLOADED: {offloaded:.2} of a call per {collective}\n"))
    };
    rows.iter().filter_map(line).collect()
}

/// A line for each row with a late rank: its effect on the other ranks.
fn late_lines(rows: &[CollectiveRow]) -> String {
    let line = |row: &CollectiveRow| {
        let late = row.late.as_ref()?;
        let (system, size) = (&row.subject.system, format_size(row.bytes_per_rank));
        let blocks = if late.silent { ", without blocks" } else { "" };
        let after = match late.others_after_call_ms {
            before if before < 0.0 => format!("the others ended {:.2} ms before it", -before),
            after => format!("the others end after {after:.2} ms (the links need {:.2})", late.contribution_ms),
        };
        Some(format!(
            "{system}, {size}: rank {} late by {:.1} ms{blocks}: the others take {:.2} ms ({:.2} with it on time); from its \
             call, itself {:.2} ms (a copy of what it missed {:.2}), {after}\n",
            late.rank, late.ms, late.others_ms, late.punctual_ms, late.own_ms, late.copy_ms
        ))
    };
    rows.iter().filter_map(line).collect()
}

/// Lays out lines with equal numbers of cells in aligned columns. The first `left_aligned` columns are aligned to the
/// left, the others to the right.
pub(crate) fn lay_out(lines: &[impl AsRef<[String]>], left_aligned: usize) -> String {
    let columns = lines.first().map_or(0, |line| line.as_ref().len());
    let width = |at: usize| lines.iter().map(|line| line.as_ref()[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    lines.iter().map(|line| render_line(line.as_ref(), &widths, left_aligned)).collect()
}

/// Rows as a Markdown table, below their headings.
pub(crate) fn markdown<'a, R: 'a>(columns: &[Column<R>], rows: impl IntoIterator<Item = &'a R>) -> String {
    let mut lines: Vec<_> = cells(columns, rows).iter().map(|line| format!("| {} |\n", line.join(" | "))).collect();
    lines.insert(1, format!("|{}{}\n", "---|".repeat(LEFT_ALIGNED), "---:|".repeat(columns.len() - LEFT_ALIGNED)));
    lines.concat()
}

fn render_line(cells: &[String], widths: &[usize], left_aligned: usize) -> String {
    let mut line = String::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let padded = if at < left_aligned { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
        line += if at == 0 { "" } else { "  " };
        line += &padded;
    }
    line.truncate(line.trim_end().len());
    line + "\n"
}

/// The name of the system, followed by a `!` if it delivered wrong results.
pub(crate) fn system_cell(subject: &Subject, cost: &RepetitionCost) -> String {
    format!("{}{}", subject.system, if cost.verified { "" } else { "!" })
}

/// Rows as lines of text, below their headings.
pub(crate) fn table<'a, R: 'a>(columns: &[Column<R>], rows: impl IntoIterator<Item = &'a R>) -> String {
    lay_out(&cells(columns, rows), LEFT_ALIGNED)
}

/// The headings, then the cells of each row.
pub(crate) fn cells<'a, R: 'a>(columns: &[Column<R>], rows: impl IntoIterator<Item = &'a R>) -> Vec<Vec<String>> {
    let headings = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let rows = rows.into_iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect());
    std::iter::once(headings).chain(rows).collect()
}

/// Rows grouped by a key, fastest first.
pub(crate) fn by_time<R, K: Ord>(rows: &[R], key: impl Fn(&R) -> K, cost: impl Fn(&R) -> &RepetitionCost) -> Vec<&R> {
    let mut sorted: Vec<&R> = rows.iter().collect();
    sorted.sort_by(|a, b| key(a).cmp(&key(b)).then(cost(a).time_ms.median.total_cmp(&cost(b).time_ms.median)));
    sorted
}

/// A figure with two decimals, or `-`.
pub(crate) fn or_none(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"))
}

pub(crate) fn ranks_cell(subject: &Subject) -> String {
    match subject.ranks_per_host {
        1 => subject.ranks.to_string(),
        several => format!("{} ({several} a host, {})", subject.ranks, subject.layout),
    }
}

pub(crate) fn cpu_cell(cost: &RepetitionCost) -> String {
    match cost.service_cpu_s {
        Some(service_s) => format!("{:.2} + {:.2} service", cost.host_cpu_s * 1e3, service_s * 1e3),
        None => format!("{:.2}", cost.host_cpu_s * 1e3),
    }
}

/// Processor time of the rank's own thread to post and to end a call, while it computes and while it waits.
fn thread_cell(row: &CollectiveRow) -> String {
    let (computing, waiting) = (row.thread_cpu_computing, row.thread_cpu_waiting);
    format!("{:.1} + {:.1} ({:.1} + {:.1})", computing.post_us, computing.ending_us, waiting.post_us, waiting.ending_us)
}

fn limit_cell(row: &CollectiveRow) -> String {
    let with_barriers = row.limits.limit_and_barriers_ms.map(|ms| format!(" ({ms:.2} with barriers)"));
    format!("{:.2}{}", row.limits.limit_ms, with_barriers.unwrap_or_default())
}

/// The text of `cell`; `-` where the links need no time that computing could hide.
fn hidden(row: &CollectiveRow, cell: impl Fn(&Overlap) -> String) -> String {
    if row.limits.raw_limit_ms > 0.0 { cell(&row.overlap) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::row;
    use crate::{LateRow, Throughput};

    #[test]
    fn rows_are_grouped_by_size_and_sorted_by_time() {
        let mut wrong = row("broken", 1 << 20, 20.0);
        wrong.cost.verified = false;
        let text =
            render(&[row("mpich", 4 << 20, 110.0), row("slow", 1 << 20, 40.0), wrong, row("fast", 1 << 20, 26.0)]);
        let systems: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(systems, ["broken!", "fast", "slow", "mpich"]);
    }

    #[test]
    fn columns_line_up() {
        let text = render(&[row("a", 1 << 20, 7.0), row("a much longer name", 4 << 20, 1234.5)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.chars().count() == lines[0].chars().count()), "{text}");
        assert!(lines[2].contains("1234.50 [1233.50..1236.50]"), "{text}");
    }

    /// SP-8: the effect of the number of service processes per host at each size.
    #[test]
    fn sp_8_systems_are_compared_size_by_size() {
        let mut rows = vec![row("outboard, 1 to a host", 4096, 1.5), row("outboard, 1 to a host", 65_536, 20.0)];
        rows.push(row("outboard, 4 to a host", 65_536, 10.25));
        let text = render_by_size(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "bytes/rank, ms  outboard, 1 to a host  outboard, 4 to a host",
                "            4K                   1.50                      -",
                "           64K                  20.00                  10.25"
            ]
        );
    }

    #[test]
    fn late_rank_is_shown() {
        let mut rows = [row("outboard", 1 << 20, 60.0), row("outboard", 4 << 20, 260.0)];
        let late = LateRow {
            rank: 5,
            ms: 50.0,
            silent: false,
            own_ms: 1.5,
            copy_ms: 1.25,
            others_ms: 60.0,
            others_after_call_ms: 10.0,
            contribution_ms: 8.39,
            punctual_ms: 40.0,
        };
        rows[1].late = Some(LateRow { others_ms: 45.0, others_after_call_ms: -5.0, ..late.clone() });
        rows[0].late = Some(late);
        assert_eq!(
            render(&rows).lines().skip(3).collect::<Vec<_>>(),
            [
                "outboard, 1M: rank 5 late by 50.0 ms: the others take 60.00 ms (40.00 with it on time); from its call, itself \
                 1.50 ms (a copy of what it missed 1.25), the others end after 10.00 ms (the links need 8.39)",
                "outboard, 4M: rank 5 late by 50.0 ms: the others take 45.00 ms (40.00 with it on time); from its call, itself \
                 1.50 ms (a copy of what it missed 1.25), the others ended 5.00 ms before it",
            ]
        );
    }

    #[test]
    fn passed_through_calls_are_shown() {
        let mut rows = [row("outboard", 1 << 20, 26.0), row("outboard below debian", 1 << 20, 40.0)];
        (rows[0].offloaded_calls, rows[1].offloaded_calls) = (Some(1.0), Some(0.0));
        let text = render(&rows);
        assert_eq!(
            text.lines().skip(3).collect::<Vec<_>>(),
            ["outboard below debian, 1M: NOT OFFLOADED: 0.00 of a call per allgather"]
        );
        assert!(text.contains("\noutboard  ") && text.contains("\noutboard below debian (NOT OFFLOADED)  "), "{text}");
        assert!(render_by_size(&rows).contains("outboard below debian (NOT OFFLOADED)"));
    }

    #[test]
    fn links_without_limit_are_judged_by_rate_and_cost() {
        let mut rows = [row("outboard", 8 << 20, 40.0), row("outboard", 0, 0.5)];
        rows.iter_mut().for_each(|row| row.limits.raw_limit_ms = 0.0);
        rows[0].throughput = Some(Throughput { gbit_per_s: 5.033, cpu_s_per_gb: 0.57 });
        let text = render(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("  Gbit/s  cpu s/GB  ") && !lines[0].contains("limit"), "{text}");
        assert!(lines[2].contains("  5.03      0.57  "), "{text}");
        let dashes = |line: &str| line.split_whitespace().filter(|word| *word == "-").count();
        assert_eq!((dashes(lines[1]), dashes(lines[2])), (5, 3), "nothing to overlap with: {text}");
    }

    #[test]
    fn layout_service_processes_and_the_own_thread_are_told() {
        let mut strided = row("outboard", 1 << 20, 52.0);
        strided.subject.layout = "strided".into();
        (strided.subject.ranks, strided.subject.ranks_per_host) = (8, 2);
        strided.cost.service_cpu_s = Some(0.025);
        let text = render(&[row("mpich", 1 << 20, 26.0), strided]);
        assert_eq!(text.matches("8 (2 a host, strided)").count(), 1, "{text}");
        assert_eq!(text.matches("1.00 + 25.00 service").count(), 1, "{text}");
        assert_eq!(text.matches("4.0 + 3.0 (4.0 + 250.0)").count(), 2, "computing and waiting: {text}");
    }
}
