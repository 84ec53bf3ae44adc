//! The rows of a run, as they go into the JSON file and the charts.

use super::FftOptions;
use super::launch::GridLine;
use super::traffic::Traffic;
use crate::job::System;
use crate::plot::{Figure, Point, Scale};
use crate::report::{Cost, Report, Spread, Subject};
use crate::samples::{self, Found, Launch};
use serde::{Deserialize, Serialize};

/// Forward and backward.
const DIRECTIONS: u32 = 2;

/// Everything that one run found.
pub type FftReport = Report<FftRow>;

impl FftReport {
    /// Whether every result was right and every system got the same bits.
    pub fn agrees(&self) -> bool {
        self.rows.iter().all(|row| row.cost.verified && self.rows.iter().all(|other| row.same_bits(other)))
    }

    pub(super) fn figures(&self) -> [Figure; 3] {
        let points = |value: fn(&FftRow) -> f64| {
            let point =
                |row: &FftRow| Point { system: row.subject.system.clone(), x: row.grid.into(), value: value(row) };
            self.rows.iter().map(point).collect()
        };
        let figure = |file, title, unit, reference, points| Figure {
            file,
            title,
            unit,
            scale: Scale::Linear,
            reference: Some(reference),
            x_title: "points along each axis",
            x_label: |grid| grid.to_string(),
            points,
        };
        [
            figure(
                "time.svg",
                "Time of a forward and a backward FFT of all fields",
                "time / what the links take",
                1.0,
                points(|row| ratio(row.cost.time_ms.median, row.limit_ms)),
            ),
            figure(
                "mpi.svg",
                "Share of that time in MPI",
                "in MPI, %",
                0.0,
                points(|row| ratio(row.mpi_ms.median, row.cost.time_ms.median) * 100.0),
            ),
            figure(
                "wire.svg",
                "Bytes over all switch ports, over what must cross them",
                "wire bytes / payload",
                1.0,
                points(|row| ratio(row.cost.wire_bytes, row.payload_bytes as f64)),
            ),
        ]
    }
}

/// 0 where there is nothing to compare with.
fn ratio(value: f64, least: f64) -> f64 {
    if least > 0.0 { value / least } else { 0.0 }
}

/// One system on one grid. A repetition is a forward and a backward transform of all fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FftRow {
    /// `fft`.
    pub program: String,
    /// Who and where.
    #[serde(flatten)]
    pub subject: Subject,
    /// Ranks along y and along z: `2x4`.
    pub process_grid: String,
    /// Points along each axis.
    pub grid: u32,
    /// Fields in the pipeline.
    pub variables: u32,
    /// Of a repetition; wrong are also bits that differ from another repetition's.
    #[serde(flatten)]
    pub cost: Cost,
    /// Of the time inside MPI (posting and waiting), the mean over all ranks.
    pub mpi_ms: Spread,
    /// Least time at the rate of the links, were nothing computed.
    pub limit_ms: f64,
    /// Bytes of blocks between ranks of different hosts, over all switch ports.
    pub payload_bytes: u64,
    /// Calls of `MPI_Ialltoallv` per rank and repetition among more than one rank.
    pub exchanges: u32,
    /// Calls of a repetition that service processes carried out, its barriers included; 0 where all passed
    /// through, `None` where there are no service processes.
    pub offloaded_exchanges: Option<f64>,
    /// Of all bits of the spectra and of what came back; equal for all systems of a run.
    pub checksum: String,
}

impl FftRow {
    /// Whether the two have the same results, to the last bit, where they have computed the same.
    pub(super) fn same_bits(&self, other: &Self) -> bool {
        let computed = |row: &Self| (row.grid, row.variables, row.process_grid.clone());
        computed(self) != computed(other) || self.checksum == other.checksum
    }
}

pub(super) fn rows(options: &FftOptions, system: &dyn System, launches: &[Launch<GridLine>]) -> Vec<FftRow> {
    let grids = options.grids.iter().map(|grid| (*grid, options.exchange()));
    samples::rows((&options.setup, system), launches, grids, |subject, grid, found| row(options, subject, grid, found))
}

fn row(options: &FftOptions, subject: Subject, grid: u32, found: &Found<'_, GridLine>) -> FftRow {
    let repetitions = options.setup.all_repetitions();
    let (rows, columns) = options.process_grid();
    let traffic = Traffic::of(options, grid);
    let checksum = found.told().next().map(|told| told.own.checksum.clone()).unwrap_or_default();
    let mut cost = found.cost(repetitions);
    cost.wrong_results += found.told().filter(|told| told.own.checksum != checksum).count() as u64;
    cost.verified = cost.wrong_results == 0;
    let between = u32::from(rows > 1) + u32::from(columns > 1);
    let rank_repetitions = f64::from(repetitions * options.setup.ranks());
    FftRow {
        program: "fft".to_owned(),
        subject,
        process_grid: format!("{rows}x{columns}"),
        grid,
        variables: options.variables,
        cost,
        mpi_ms: found.spread(|line| &line.mpi_ms),
        limit_ms: traffic.limit_ms(&options.setup.lab.link()),
        payload_bytes: traffic.bytes(),
        exchanges: between * DIRECTIONS * options.variables,
        offloaded_exchanges: found.services().map(|counters| counters.completed as f64 / rank_repetitions),
        checksum,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::tests::{cost, subject, through_json};

    pub(in crate::fft) fn row(system: &str, grid: u32, ms: f64) -> FftRow {
        FftRow {
            program: "fft".into(),
            subject: subject(system),
            process_grid: "2x2".into(),
            grid,
            variables: 4,
            cost: cost(ms),
            mpi_ms: Spread::of(&[ms / 2.0]),
            limit_ms: ms / 3.0,
            payload_bytes: 900_000,
            exchanges: 16,
            offloaded_exchanges: None,
            checksum: "a".into(),
        }
    }

    #[test]
    fn rows_survive_json() {
        let row = through_json(row("mpich", 128, 27.0));
        for field in ["system", "grid", "time_ms", "mpi_ms", "wire_bytes", "offloaded_exchanges", "checksum", "layout"]
        {
            assert!(row.get(field).is_some(), "{field}");
        }
    }
}
