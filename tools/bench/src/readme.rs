//! The tables of measurements in docs, filled with figures of reports by the names of rows and columns.
//!
//! ```text
//!  <!-- figures: NAME -->
//!  | title | column | ...          the names of a row and a column select a figure
//!  |---|---|...
//!  | row | figure | ...
//!  <!-- end -->
//! ```
//!
//! Invariants: the page decides which figures it shows, and reports provide their values. A figure that no report has
//! stays as it is. A wrong result is never a figure. A call that passed through to another library is not a figure of
//! ours.
//!
//! Never does: measuring.

use crate::report::BenchReport;
use crate::{BatchRow, BenchError, CollectiveRow, GridCell, Peer, ProgramRow, Sockets, VerdictRow};
use outboard_units::Size;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- figures: ";
const BEGUN: &str = " -->\n";
const END: &str = "<!-- end -->";

/// One table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FigureTable {
    /// Name in the table's marker.
    pub name: String,
    /// The heading of the row names, then the headings of the figures.
    pub columns: Vec<String>,
    /// Rows in the order of the page.
    pub rows: Vec<TableRow>,
}

/// A row by name, with a figure or an empty text for each column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRow {
    /// Name, such as `allgather 4x1gbit, 1 MiB`.
    pub name: String,
    /// Figures as the page shows them.
    pub figures: Vec<String>,
}

/// A row of a report that has figures.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ReportRow {
    Collective(Box<CollectiveRow>),
    Batch(Box<BatchRow>),
    Program(Box<ProgramRow>),
    GridCell(Box<GridCell>),
    Verdict(Box<VerdictRow>),
}

/// A figure and its place.
#[derive(Debug, PartialEq)]
struct PlacedFigure {
    row: String,
    column: String,
    text: String,
}

/// The tables of a page, in the page's order.
///
/// # Errors
/// If a marker has no end, or a line behind it has another number of cells than the first line.
pub fn read_tables(readme: &str) -> Result<Vec<FigureTable>, BenchError> {
    let wrong = |text: &str| BenchError::Readme { text: text.lines().next().unwrap_or_default().to_owned() };
    readme.split(BEGIN).skip(1).map(|part| table(part).ok_or_else(|| wrong(part))).collect()
}

/// Parses a table; `part` begins with the name in the marker.
fn table(part: &str) -> Option<FigureTable> {
    let (name, rest) = part.split_once(BEGUN)?;
    let mut lines = rest.split_once(END)?.0.lines().map(cells);
    let columns = lines.next()??;
    lines.next()?;
    let row = |cells: Option<Vec<String>>| {
        let mut figures = cells.filter(|cells| cells.len() == columns.len())?;
        Some(TableRow { name: figures.remove(0), figures })
    };
    Some(FigureTable { name: name.to_owned(), rows: lines.map(row).collect::<Option<_>>()?, columns })
}

fn cells(line: &str) -> Option<Vec<String>> {
    let cells = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(cells.split('|').map(|cell| cell.trim().to_owned()).collect())
}

/// The page with its tables replaced by `tables`.
///
/// # Errors
/// The errors of [`read_tables`].
///
/// # Panics
/// If the page has another number of tables.
pub fn write_tables(readme: &str, tables: &[FigureTable]) -> Result<String, BenchError> {
    assert_eq!(read_tables(readme)?.len(), tables.len(), "its own tables, with other figures");
    let mut parts = readme.split(BEGIN);
    let before = parts.next().unwrap_or_default().to_owned();
    let behind = |part: &str| part.split_once(END).map_or_else(String::new, |(_, behind)| behind.to_owned());
    Ok(parts.zip(tables).fold(before, |text, (part, table)| text + &table.text() + &behind(part)))
}

impl FigureTable {
    /// The table in Markdown, with its markers.
    fn text(&self) -> String {
        let line = |name: &str, cells: &[String]| format!("| {name} |{}\n", cells.iter().map(cell).collect::<String>());
        let rows: String = self.rows.iter().map(|row| line(&row.name, &row.figures)).collect();
        let headings = line(&self.columns[0], &self.columns[1..]);
        format!("{BEGIN}{}{BEGUN}{headings}|{}\n{rows}{END}", self.name, "---|".repeat(self.columns.len()))
    }

    /// Puts figures in their places. Returns the names of the rows without any figure.
    fn fill(&mut self, figures: &[PlacedFigure]) -> Vec<String> {
        let mut left = Vec::new();
        for row in &mut self.rows {
            let of_row: Vec<&PlacedFigure> = figures.iter().filter(|figure| figure.row == row.name).collect();
            for (column, text) in self.columns[1..].iter().zip(&mut row.figures) {
                if let Some(figure) = of_row.iter().rfind(|figure| figure.column == *column) {
                    text.clone_from(&figure.text);
                }
            }
            if of_row.is_empty() {
                left.push(row.name.clone());
            }
        }
        left
    }
}

fn cell(text: &String) -> String {
    if text.is_empty() { " |".to_owned() } else { format!(" {text} |") }
}

/// Puts the figures of reports into the tables. Returns the names of the rows that no report has.
///
/// # Errors
/// If a file cannot be read, or is not a report on collectives, programs, a grid or verdicts.
pub fn fill_tables(tables: &mut [FigureTable], reports: &[impl AsRef<Path>]) -> Result<Vec<String>, BenchError> {
    let mut figures = Vec::new();
    for path in reports.iter().map(AsRef::as_ref) {
        let failed = || BenchError::system(format!("read {}", path.display()));
        let text = fs::read_to_string(path).map_err(failed())?;
        let report: BenchReport<ReportRow> = serde_json::from_str(&text).map_err(|error| failed()(error.into()))?;
        figures.extend(report.rows.iter().flat_map(ReportRow::figures));
    }
    Ok(tables.iter_mut().flat_map(|table| table.fill(&figures)).collect())
}

/// Copies figures from `all` into the rows of `tables`, by the names of tables and rows.
///
/// # Errors
/// [`BenchError::Readme`] with the table or the row that `all` lacks.
pub fn excerpt(tables: &mut [FigureTable], all: &[FigureTable]) -> Result<(), BenchError> {
    for table in tables {
        let lacks = |text: &str| BenchError::Readme { text: text.to_owned() };
        let same = |other: &&FigureTable| other.name == table.name && other.columns == table.columns;
        let whole = all.iter().find(same).ok_or_else(|| lacks(&table.name))?;
        for row in &mut table.rows {
            let found = whole.rows.iter().find(|other| other.name == row.name);
            row.figures.clone_from(&found.ok_or_else(|| lacks(&row.name))?.figures);
        }
    }
    Ok(())
}

impl ReportRow {
    fn figures(&self) -> Vec<PlacedFigure> {
        match self {
            Self::Collective(row) => collective_figures(row),
            Self::Batch(row) => batch_figure(row).into_iter().collect(),
            Self::Program(row) => program_figures(row),
            Self::GridCell(cell) => vec![cell_figure(cell)],
            Self::Verdict(row) => verdict_figures(row),
        }
    }
}

fn collective_figures(row: &CollectiveRow) -> Vec<PlacedFigure> {
    let plain = row.subject.ranks_per_host == 1 && row.subject.loss.is_none() && row.late.is_none();
    let Some(column) = column(&row.subject.system).filter(|_| plain) else { return Vec::new() };
    let core = if row.subject.comm_core { "+core" } else { "" };
    let name = format!("{} {}{core}, {}", row.collective, row.subject.lab, Size(row.bytes_per_rank));
    let figure =
        |more: &str, column: &str, text| PlacedFigure { row: format!("{name}{more}"), column: column.into(), text };
    let ours = |more: &str, text: String| {
        let shown = if row.passed_through() { "natively" } else { "wrong" };
        figure(more, column, if row.cost.verified && !row.passed_through() { text } else { shown.to_owned() })
    };
    let overlap = &row.overlap;
    if row.subject.comm_core {
        return vec![ours("", format!("{:.1} / {:.1}", overlap.overall_ms, overlap.compute_ms))];
    }
    let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
    let mut figures = vec![
        figure(", MB over the switch", "limit", megabytes(row.multicast_minimum_bytes as f64)),
        ours("", format!("{:.1}", row.cost.time_ms)),
        ours(", MB over the switch", megabytes(row.cost.wire_bytes)),
        ours(", processor ms", format!("{:.1}", row.cost.cpu_ms())),
    ];
    figures.extend(match row.throughput {
        None => [
            figure("", "limit", format!("{:.1}", row.limits.limit_ms)),
            ours(", meanwhile", format!("{:.0}", overlap.overall_ms)),
        ],
        Some(throughput) => [
            ours(", Gbit/s", format!("{:.2}", throughput.gbit_per_s)),
            ours(", processor s/GB", format!("{:.2}", throughput.cpu_s_per_gb)),
        ],
    });
    figures
}

/// Microseconds of a call in a batch.
fn batch_figure(row: &BatchRow) -> Option<PlacedFigure> {
    let plain = row.subject.ranks_per_host == 1 && row.subject.loss.is_none();
    Some(PlacedFigure {
        row: format!("{} {}, {}, us", row.collective, row.subject.lab, Size(row.bytes_per_rank)),
        column: column(&row.subject.system).filter(|_| plain)?.into(),
        text: if row.cost.verified { format!("{:.1}", row.cost.time_ms.times(1e3)) } else { "wrong".to_owned() },
    })
}

fn program_figures(row: &ProgramRow) -> Vec<PlacedFigure> {
    let figure = |column: &str, text: String| PlacedFigure {
        row: format!("{} {}", row.program, row.place),
        column: column.into(),
        text: if row.verified { text } else { "wrong".to_owned() },
    };
    vec![
        figure("natively", format!("{:.2}", row.native_s)),
        figure("preloaded", format!("{:.2}", row.below_s)),
        figure("ratio", format!("{:.3}", row.ratio)),
        figure("ratio of pairs", format!("{:.3}", row.pair_ratio)),
    ]
}

/// Microseconds natively and below the shim, and their ratio, in bold if the call was offloaded. The column is named
/// after the cluster, and after the library unless this is Debian's.
fn cell_figure(cell: &GridCell) -> PlacedFigure {
    let form = if cell.blocking { "" } else { "i" };
    let size = if cell.bytes_per_rank > 0 { format!(" {}", Size(cell.bytes_per_rank)) } else { String::new() };
    let us = |us: f64| if us < 1e3 { format!("{us:.1}") } else { format!("{us:.0}") };
    let ratio = match cell.offloaded() {
        true => format!("**{:.2}**", cell.ratio),
        false => format!("{:.2}", cell.ratio),
    };
    let times = format!("{} {} {ratio}", us(cell.native_us), us(cell.below_us));
    let library = column(&cell.native).filter(|_| cell.native != Peer::Debian.name());
    PlacedFigure {
        row: format!("{form}{}{size}", cell.collective),
        column: library.map_or(cell.place.clone(), |library| format!("{}, {library}", cell.place)),
        text: if cell.verified { times } else { "wrong".to_owned() },
    }
}

/// Seconds until the last surviving rank had its verdict; `alike` counts the runs whose ranks agreed.
fn verdict_figures(row: &VerdictRow) -> Vec<PlacedFigure> {
    let figure = |column: &str, text| PlacedFigure { row: row.fault.clone(), column: column.into(), text };
    let seconds = |ms: f64| format!("{:.3}", ms / 1e3);
    vec![
        figure("median", seconds(row.verdict_ms.median)),
        figure("worst", seconds(row.verdict_ms.max)),
        figure("alike", format!("{}/{}", row.alike, row.runs)),
    ]
}

/// The column of a system in the tables; `None` for a system that is in no table.
fn column(system: &str) -> Option<&'static str> {
    match system {
        "outboard" => Some("Outboard"),
        "outboard below debian" => Some("... below Open MPI 4.1"),
        "outboard below debian, shared heap" => Some("... with the shared heap"),
        Sockets::NAME => Some(Sockets::NAME),
        peer => match peer.parse().ok()? {
            Peer::Mpich => Some("MPICH 5.0"),
            Peer::OpenMpi => Some("Open MPI 5.0"),
            Peer::IntelMpi => Some("Intel MPI 2021"),
            Peer::Debian => Some("Open MPI 4.1"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Throughput;
    use crate::report::tests::row;

    const README: &str = "text\n<!-- figures: a -->\n| what | limit | Outboard | MPICH 5.0 |\n|---|---|---|---|\n\
        | allgather 4x1gbit, 1 MiB | 1 | 2 | 3 |\n| allgather 4x1gbit, 1 MiB, meanwhile | | 5 | - |\n\
        | scan 4x1gbit, 1 MiB | 6 | | 7 |\n<!-- end -->\nmore | text\n";

    fn filled(rows: &[CollectiveRow]) -> (String, Vec<String>) {
        let mut tables = read_tables(README).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        BenchReport { rows: rows.to_vec() }.write_json(&path).unwrap();
        let left = fill_tables(&mut tables, &[path]).unwrap();
        (write_tables(README, &tables).unwrap(), left)
    }

    #[test]
    fn what_was_not_measured_stays() {
        assert_eq!(write_tables(README, &read_tables(README).unwrap()).unwrap(), README);
        let (text, left) = filled(&[row("outboard", 1 << 20, 27.0)]);
        let expected = README.replace("| 1 | 2 | 3 |", "| 24.6 | 27.0 [26.0..29.0] | 3 |").replace("| 5 |", "| 30 |");
        assert_eq!((text, left), (expected, vec!["scan 4x1gbit, 1 MiB".to_owned()]));
    }

    #[test]
    fn processor_time_is_that_of_ranks_and_service_processes() {
        let mut ours = row("outboard below debian, shared heap", 1 << 20, 27.0);
        (ours.cost.host_cpu_s, ours.cost.service_cpu_s, ours.offloaded_calls) = (0.005, Some(0.015), Some(1.0));
        let figures = collective_figures(&ours);
        let figure = figures.iter().find(|figure| figure.text == "20.0").unwrap();
        let place = (figure.row.as_str(), figure.column.as_str());
        assert_eq!(place, ("allgather 4x1gbit, 1 MiB, processor ms", "... with the shared heap"));
    }

    #[test]
    fn links_without_limit_have_a_rate_and_a_cost_instead() {
        let mut row = row("mpich", 1 << 20, 27.0);
        row.throughput = Some(Throughput { gbit_per_s: 5.034, cpu_s_per_gb: 0.566 });
        let figures = collective_figures(&row);
        let of = |end: &str| figures.iter().find(|figure| figure.row.ends_with(end));
        let text = |end: &str| of(end).map(|figure| figure.text.as_str());
        assert_eq!((text("MiB, Gbit/s"), text("MiB, processor s/GB")), (Some("5.03"), Some("0.57")));
        assert_eq!(text(", meanwhile"), None);
    }

    #[test]
    fn what_was_wrong_or_of_others_is_no_figure() {
        let (mut wrong, mut passed, mut late) =
            (row("mpich", 1 << 20, 27.0), row("outboard", 1 << 20, 27.0), row("outboard", 1 << 20, 99.0));
        wrong.cost.verified = false;
        passed.offloaded_calls = Some(0.0);
        late.subject.ranks_per_host = 2;
        let (text, _) = filled(&[late, wrong, passed]);
        assert!(text.contains("| allgather 4x1gbit, 1 MiB | 24.6 | natively | wrong |"), "{text}");
    }

    #[test]
    fn cells_of_a_grid_lie_in_the_columns_of_their_clusters() {
        let mut cell = crate::grid::tests::cell(1024, 100.0, 34.0);
        assert_eq!(cell_figure(&cell).text, "100.0 34.0 0.34");
        (cell.blocking, cell.offloaded_calls) = (false, Some(0.99));
        let figure = cell_figure(&cell);
        let shown = (figure.row.as_str(), figure.column.as_str(), figure.text.as_str());
        assert_eq!(shown, ("ibroadcast 1 KiB", "2x1gbit", "100.0 34.0 **0.34**"));
        cell.native = "open-mpi".into();
        assert_eq!(cell_figure(&cell).column, "2x1gbit, Open MPI 5.0");
    }

    #[test]
    fn batch_times_are_shown_in_microseconds() {
        let row = crate::batches::tests::row("mpich", 8, 40.0);
        let json = serde_json::to_string(&BenchReport { rows: vec![row] }).unwrap();
        let report: BenchReport<ReportRow> = serde_json::from_str(&json).unwrap();
        let [figure] = report.rows[0].figures().try_into().unwrap();
        let expected = ("broadcast 4x1gbit, 8 B, us", "MPICH 5.0", "40.0 [20.0..80.0]");
        assert_eq!((figure.row.as_str(), figure.column.as_str(), figure.text.as_str()), expected);
    }

    #[test]
    fn verdicts_lie_in_the_rows_of_their_faults() {
        let row = crate::verdicts::tests::row(19, 4000.4);
        let json = serde_json::to_string(&BenchReport { rows: vec![row] }).unwrap();
        let report: BenchReport<ReportRow> = serde_json::from_str(&json).unwrap();
        let figures = report.rows[0].figures();
        let shown = |figure: &PlacedFigure| (figure.row.clone(), figure.column.clone(), figure.text.clone());
        let expected = [("median", "3.512"), ("worst", "4.000"), ("alike", "19/20")];
        assert_eq!(
            figures.iter().map(shown).collect::<Vec<_>>(),
            expected.map(|(column, text)| ("cut link".to_owned(), column.to_owned(), text.to_owned()))
        );
    }

    #[test]
    fn a_table_without_an_end_or_with_a_short_row_is_refused() {
        for text in [README.replace("<!-- end -->", ""), README.replace(" 1 | 2 |", " 1 |")] {
            let error = read_tables(&text).unwrap_err().to_string();
            assert!(error.contains("'a -->'"), "{error}");
        }
    }
}
