//! Benches on one cluster beyond a single collective: FFT, radix sort, recorded messages, processor time of exchanges.

use std::process::ExitCode;

use clap::Args;
use outboard::service_processes::ServiceProcesses;
use outboard_bench::{
    BenchOptions, BenchReport, Collective, FftOptions, OptionError, RadixOptions, RecordedOptions, ShimChoice, Sockets,
    System, parse_sizes, render_fft_table, render_processor_time, render_radix_table, render_recorded_table, run_fft,
    run_radix, run_recorded,
};

use super::{SetupArgs, below_mpi, by_c_interface, finish};
use crate::algorithm::Algorithms;
use crate::error::CliError;
use crate::places::Heap;

#[derive(Debug, Args)]
pub(crate) struct FftArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Points along each axis, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "128,256")]
    grid: Vec<u32>,
    /// Fields in the pipeline
    #[arg(long, default_value_t = 4)]
    variables: u32,
    /// Pairs of a forward and a backward transform
    #[arg(long, default_value_t = 5)]
    repetitions: u32,
}

pub(super) fn fft(args: &FftArgs) -> Result<ExitCode, CliError> {
    let setup = args.setup.setup(args.repetitions)?;
    let options = FftOptions { setup, grids: args.grid.clone(), variables: args.variables };
    let daemons = args.setup.daemons(ServiceProcesses::default());
    let algorithms = Algorithms::of(Collective::Alltoallv, &daemons, &args.setup.lab)?;
    let below = below_mpi(Heap::from_environment()?, args.setup.mpi, algorithms, daemons, &ShimChoice::default())?;
    let report = run_fft(&options, &[&below])?;
    finish(&args.setup, &report, &render_fft_table(&report), report.agrees())
}

#[derive(Debug, Args)]
pub(crate) struct RadixArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Radices: values of a digit, separated by commas; by default the paper's
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,10,12,14,16")]
    radices: Vec<u32>,
    /// Radices are given in bits of a digit
    #[arg(long)]
    digit_bits: bool,
    /// Keys of each rank, separated by commas; by default the paper's
    #[arg(long, default_value = "4K,64K")]
    keys: String,
    /// Sorts with overlap; each alternates with a sort without overlap
    #[arg(long, default_value_t = 10)]
    repetitions: u32,
}

pub(super) fn radix(args: &RadixArgs) -> Result<ExitCode, CliError> {
    let setup = args.setup.setup(args.repetitions)?;
    let keys = parse_sizes(&args.keys).map_err(CliError::failed)?;
    let keys = keys.into_iter().map(|keys| u32::try_from(keys).unwrap_or(u32::MAX)).collect();
    let options = RadixOptions { setup, buckets: buckets(&args.radices, args.digit_bits)?, keys };
    let mut daemons = args.setup.daemons(ServiceProcesses::default());
    // A small radix has histograms of few bytes, which daemons leave to the MPI library by default.
    daemons.more.extend(["--offload-from", "0"].map(str::to_owned));
    let algorithms = Algorithms::of(Collective::Allgather, &daemons, &args.setup.lab)?;
    let below = below_mpi(Heap::from_environment()?, args.setup.mpi, algorithms, daemons, &ShimChoice::default())?;
    let report = run_radix(&options, &[&below])?;
    finish(&args.setup, &report, &render_radix_table(&report), report.all(|row| row.cost.verified))
}

fn buckets(radices: &[u32], digit_bits: bool) -> Result<Vec<u32>, CliError> {
    let of_bits = |bits: &u32| 1u32.checked_shl(*bits).ok_or(OptionError::Buckets { buckets: 0 });
    match digit_bits {
        true => radices.iter().map(of_bits).collect::<Result<_, _>>().map_err(CliError::failed),
        false => Ok(radices.to_vec()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct RecordedArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Bytes of the block that each rank has for each other rank, separated by commas
    #[arg(long, default_value = "4K,16K,64K,256K")]
    sizes: String,
    /// Calls of each way, both those that all ranks begin together and those in a row
    #[arg(long, default_value_t = 20)]
    repetitions: u32,
}

pub(super) fn recorded(args: &RecordedArgs) -> Result<ExitCode, CliError> {
    let sizes = parse_sizes(&args.sizes).map_err(CliError::failed)?;
    let options = RecordedOptions { setup: args.setup.setup(args.repetitions)?, sizes };
    let daemons = args.setup.daemons(ServiceProcesses::default());
    let algorithms = Algorithms::of(Collective::Alltoall, &daemons, &options.setup.lab)?;
    let report = run_recorded(&options, &[&by_c_interface(algorithms, daemons)?])?;
    finish(&args.setup, &report, &render_recorded_table(&report), report.all(|row| row.cost.verified))
}

/// In an alltoallv every rank has different bytes for every other rank, in an allgather equal bytes.
const COLLECTIVES: [Collective; 2] = [Collective::Alltoallv, Collective::Allgather];

#[derive(Debug, Args)]
pub(crate) struct ProcessorTimeArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Bytes of a rank's block, separated by commas; for an alltoallv bytes for each other rank
    #[arg(long, default_value = "1M")]
    sizes: String,
    /// Repetitions of each phase
    #[arg(long, default_value_t = 20)]
    repetitions: u32,
}

pub(super) fn processor_time(args: &ProcessorTimeArgs) -> Result<ExitCode, CliError> {
    let sizes = parse_sizes(&args.sizes).map_err(CliError::failed)?;
    let daemons = args.setup.daemons(ServiceProcesses::default());
    let mut report = BenchReport { rows: Vec::new() };
    for collective in COLLECTIVES {
        let options = BenchOptions::new(args.setup.setup(args.repetitions)?, collective, sizes.clone());
        let algorithms = Algorithms::of(collective, &daemons, &options.setup.lab)?;
        let below = |heap| below_mpi(heap, args.setup.mpi, algorithms.clone(), daemons.clone(), &ShimChoice::default());
        let (plain, shared) = (below(Heap::Plain)?, below(Heap::Shared)?);
        let systems: [&dyn System; 3] = [&plain, &shared, &Sockets];
        report.rows.extend(outboard_bench::run(&options, &systems)?.rows);
    }
    finish(&args.setup, &report, &render_processor_time(&report.rows), report.all(|row| row.cost.verified))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_radix_is_a_base_or_bits() {
        assert_eq!(buckets(&[2, 10], false).expect("bases"), [2, 10]);
        assert_eq!(buckets(&[2, 10, 16], true).expect("bits"), [4, 1024, 65_536]);
        assert!(buckets(&[32], true).is_err());
    }
}
