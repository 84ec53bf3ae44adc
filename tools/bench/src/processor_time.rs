//! Processor time of calls, ranks and service processes together, as a table. An offload that takes more processor time
//! than it saves slows programs that compute on all cores.

use crate::table::{Column, or_none, table};
use crate::{CollectiveRow, Peer, format_size};

/// A row beside the processor time of Open MPI 5.0's call, if that was measured.
type Beside = (CollectiveRow, Option<f64>);

const COLUMNS: [Column<Beside>; 7] = [
    ("system", |(row, _)| if row.cost.verified { row.label() } else { format!("{}!", row.label()) }),
    ("collective", |(row, _)| row.collective.clone()),
    ("bytes/rank", |(row, _)| format_size(row.bytes_per_rank)),
    ("ranks ms", |(row, _)| format!("{:.2}", row.cost.host_cpu_s * 1e3)),
    ("services ms", |(row, _)| or_none(row.cost.service_cpu_s.map(|seconds| seconds * 1e3))),
    ("together ms", |(row, _)| format!("{:.2}", row.cost.cpu_ms())),
    ("of Open MPI 5.0's", |(row, open_mpi)| or_none(open_mpi.map(|open_mpi| row.cost.cpu_ms() / open_mpi))),
];

/// Renders rows as lines of text, grouped by call, least processor time first. Figures are per call.
///
/// A `!` behind the system's name says that it delivered wrong bytes.
pub fn render(rows: &[CollectiveRow]) -> String {
    let call = |row: &CollectiveRow| (row.collective.clone(), row.bytes_per_rank);
    let open_mpi = |row: &CollectiveRow| {
        let same = |other: &&CollectiveRow| other.subject.system == Peer::OpenMpi.name() && call(other) == call(row);
        rows.iter().find(same).map(|other| other.cost.cpu_ms())
    };
    let mut sorted: Vec<Beside> = rows.iter().map(|row| (row.clone(), open_mpi(row))).collect();
    sorted.sort_by(|(a, _), (b, _)| call(a).cmp(&call(b)).then(a.cost.cpu_ms().total_cmp(&b.cost.cpu_ms())));
    table(&COLUMNS, &sorted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::row;

    #[test]
    fn ranks_and_services_are_one_cost_over_open_mpi_s() {
        let mut ours = row("outboard below debian", 1 << 20, 27.0);
        (ours.cost.host_cpu_s, ours.cost.service_cpu_s, ours.offloaded_calls) = (0.005, Some(0.015), Some(1.0));
        let mut open_mpi = row("open-mpi", 1 << 20, 30.0);
        open_mpi.cost.host_cpu_s = 0.025;
        let text = render(&[open_mpi, ours.clone()]);
        let words: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["outboard", "below", "debian", "allgather", "1M", "5.00", "15.00", "20.00", "0.80"]);
        assert_eq!(words[1], ["open-mpi", "allgather", "1M", "25.00", "-", "25.00", "1.00"]);
        assert!(render(&[ours]).trim_end().ends_with("20.00                  -"), "nothing to compare with");
    }
}
