//! The rows of a run, as they go into the JSON file and the charts.

use super::FftOptions;
use super::launch::{GridSamples, Launch};
use super::traffic::Traffic;
use crate::BenchError;
use crate::job::System;
use crate::plot::{Figure, Point, Scale};
use crate::report::{LossRow, Spread, write_json};
use crate::run::sum_services;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Forward and backward.
const DIRECTIONS: u32 = 2;

/// Everything that one run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FftReport {
    /// One row per system and grid, systems in the order they were measured.
    pub rows: Vec<FftRow>,
}

impl FftReport {
    /// Writes the report as JSON: an object with `rows`.
    pub fn write_json(&self, path: &Path) -> Result<(), BenchError> {
        write_json(self, path)
    }

    /// Whether every result was right and every system got the same bits.
    pub fn agrees(&self) -> bool {
        self.rows.iter().all(|row| row.verified && self.rows.iter().all(|other| row.same_bits(other)))
    }

    pub(super) fn figures(&self) -> [Figure; 3] {
        let points = |value: fn(&FftRow) -> f64| {
            let point = |row: &FftRow| Point { system: row.system.clone(), x: row.grid.into(), value: value(row) };
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
                points(|row| ratio(row.time_ms.median, row.limit_ms)),
            ),
            figure(
                "mpi.svg",
                "Share of that time in MPI",
                "in MPI, %",
                0.0,
                points(|row| ratio(row.mpi_ms.median, row.time_ms.median) * 100.0),
            ),
            figure(
                "wire.svg",
                "Bytes over all switch ports, over what must cross them",
                "wire bytes / payload",
                1.0,
                points(|row| ratio(row.wire_bytes, row.payload_bytes as f64)),
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
    /// Name of the system: `outboard below debian`, `mpich`, ...
    pub system: String,
    /// What the library says that it is.
    pub library: String,
    /// Algorithm asked for; `auto` where the system chooses.
    pub algorithm: String,
    /// Shape of the cluster: HOSTSxRATE.
    pub lab: String,
    /// Largest IP packet of the links in bytes.
    pub mtu: u32,
    /// Random loss in the switch.
    pub loss: Option<LossRow>,
    /// Ranks shared core 0, all else had core 1.
    pub comm_core: bool,
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks on every host.
    pub ranks_per_host: u32,
    /// How ranks lie on the hosts: `contiguous` or `strided`.
    pub layout: String,
    /// Ranks along y and along z: `2x4`.
    pub process_grid: String,
    /// Points along each axis.
    pub grid: u32,
    /// Fields in the pipeline.
    pub variables: u32,
    /// Measured repetitions of all rounds together.
    pub repetitions: u32,
    /// A repetition, of the slowest rank.
    pub time_ms: Spread,
    /// Of it inside MPI (posting and waiting), the mean over all ranks.
    pub mpi_ms: Spread,
    /// Least time at the rate of the links, were nothing computed.
    pub limit_ms: f64,
    /// Bytes per repetition over all switch ports, in and out, as the queueing disciplines counted them.
    pub wire_bytes: f64,
    /// Bytes of blocks between ranks of different hosts, over the same ports.
    pub payload_bytes: u64,
    /// Calls of `MPI_Ialltoallv` per rank and repetition among more than one rank.
    pub exchanges: u32,
    /// Of these carried out by service processes; 0 where all passed through, `None` where there are none.
    pub offloaded_exchanges: Option<f64>,
    /// Processor time per repetition of all ranks, progress threads included.
    pub host_cpu_s: f64,
    /// Processor time per repetition of the service processes; `None` where there are none.
    pub service_cpu_s: Option<f64>,
    /// Bytes sent again in all repetitions together; `None` where the system does not tell.
    pub retransmitted_bytes: Option<u64>,
    /// Messages for ranks that had not called yet, likewise (SP-9).
    pub late_arrivals: Option<u64>,
    /// Of all bits of the spectra and of what came back; equal for all systems of a run.
    pub checksum: String,
    /// Every repetition had the right results, and the same bits as the others.
    pub verified: bool,
    /// Ranks and repetitions without.
    pub wrong_results: u64,
}

impl FftRow {
    /// Whether the two have the same results, to the last bit, where they have computed the same.
    pub(super) fn same_bits(&self, other: &Self) -> bool {
        let computed = |row: &Self| (row.grid, row.variables, row.process_grid.clone());
        computed(self) != computed(other) || self.checksum == other.checksum
    }
}

pub(super) fn rows(options: &FftOptions, system: &dyn System, launches: &[Launch]) -> Vec<FftRow> {
    let per_grid = options.grids.iter().enumerate();
    per_grid
        .map(|(at, grid)| {
            let samples: Vec<&GridSamples> = launches.iter().map(|launch| &launch.grids[at]).collect();
            let library = launches.last().map(|launch| launch.library.clone()).unwrap_or_default();
            FftRow { library, ..row(options, system, *grid, &samples) }
        })
        .collect()
}

fn row(options: &FftOptions, system: &dyn System, grid: u32, samples: &[&GridSamples]) -> FftRow {
    let repetitions = options.repetitions * options.rounds;
    let per_repetition = |sum: f64| sum / f64::from(repetitions);
    let all = |pick: fn(&GridSamples) -> &Vec<f64>| -> Vec<f64> {
        samples.iter().flat_map(|sample| pick(sample).iter().copied()).collect()
    };
    let (rows, columns) = options.process_grid();
    let traffic = Traffic::of(options, grid);
    let services = sum_services(samples.iter().map(|sample| sample.counted.services));
    let checksum = samples.first().map(|sample| sample.line.checksum.clone()).unwrap_or_default();
    let other_bits = samples.iter().filter(|sample| sample.line.checksum != checksum).count() as u64;
    let wrong_results = samples.iter().map(|sample| sample.line.wrong).sum::<u64>() + other_bits;
    let between = u32::from(rows > 1) + u32::from(columns > 1);
    FftRow {
        program: "fft".to_owned(),
        system: system.name(),
        library: String::new(),
        algorithm: system.algorithm(),
        lab: options.lab.to_string(),
        mtu: options.lab.link().mtu(),
        loss: options.lab.loss().map(LossRow::from),
        comm_core: options.comm_core,
        ranks: options.ranks(),
        ranks_per_host: options.ranks_per_host,
        layout: options.layout.name().to_owned(),
        process_grid: format!("{rows}x{columns}"),
        grid,
        variables: options.variables,
        repetitions,
        time_ms: Spread::of(&all(|sample| &sample.line.slowest_ms)),
        mpi_ms: Spread::of(&all(|sample| &sample.line.mpi_ms)),
        limit_ms: traffic.limit_ms(&options.lab.link()),
        wire_bytes: per_repetition(samples.iter().map(|sample| sample.counted.wire_bytes as f64).sum()),
        payload_bytes: traffic.bytes(),
        exchanges: between * DIRECTIONS * options.variables,
        offloaded_exchanges: services
            .and_then(|counters| counters.completed)
            .map(|completed| per_repetition(completed as f64) / f64::from(options.ranks())),
        host_cpu_s: per_repetition(samples.iter().map(|sample| sample.line.cpu_s).sum()),
        service_cpu_s: services.and_then(|counters| counters.cpu_s).map(per_repetition),
        retransmitted_bytes: services.and_then(|counters| counters.retransmitted_bytes),
        late_arrivals: services.and_then(|counters| counters.late_arrivals),
        checksum,
        verified: wrong_results == 0,
        wrong_results,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::fft) fn row(system: &str, grid: u32, ms: f64) -> FftRow {
        FftRow {
            program: "fft".into(),
            system: system.into(),
            library: "a library".into(),
            algorithm: "auto".into(),
            lab: "4x1gbit".into(),
            mtu: 1500,
            loss: None,
            comm_core: false,
            ranks: 4,
            ranks_per_host: 1,
            layout: "contiguous".into(),
            process_grid: "2x2".into(),
            grid,
            variables: 4,
            repetitions: 5,
            time_ms: Spread { median: ms, min: ms - 1.0, max: ms + 2.0 },
            mpi_ms: Spread::of(&[ms / 2.0]),
            limit_ms: ms / 3.0,
            wire_bytes: 1e6,
            payload_bytes: 900_000,
            exchanges: 16,
            offloaded_exchanges: None,
            host_cpu_s: 0.1,
            service_cpu_s: None,
            retransmitted_bytes: None,
            late_arrivals: None,
            checksum: "a".into(),
            verified: true,
            wrong_results: 0,
        }
    }

    #[test]
    fn rows_survive_json() {
        let report = FftReport { rows: vec![row("mpich", 128, 27.0)] };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        report.write_json(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<FftReport>(&text).unwrap(), report);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for field in ["system", "grid", "time_ms", "mpi_ms", "wire_bytes", "offloaded_exchanges", "checksum", "layout"]
        {
            assert!(value["rows"][0].as_object().unwrap().contains_key(field), "{field}");
        }
    }
}
