//! `outboard bench processor-time`: what two exchanges take of the processors below the shim, with the program's large
//! allocations in plain memory and in the shared heap, beside the peers and beside TCP sockets alone, in one run.

use std::process::ExitCode;

use clap::Args;
use outboard::placement::ServiceProcesses;
use outboard_bench::{BenchOptions, Choosing, Collective, Report, Sockets, System, parse_sizes, render_processor_time};

use super::{SetupArgs, below_mpi_in, finish};
use crate::algorithm::Algorithms;
use crate::error::CliError;
use crate::places::Heap;

/// Every rank has bytes for every other one: of its own, and the same.
const COLLECTIVES: [Collective; 2] = [Collective::Alltoallv, Collective::Allgather];

#[derive(Debug, Args)]
pub(crate) struct ProcessorTimeArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Bytes of a rank's block, of an alltoallv for each other rank, separated by commas
    #[arg(long, default_value = "1M")]
    sizes: String,
    /// Repetitions of each phase
    #[arg(long, default_value_t = 20)]
    repetitions: u32,
}

pub(super) fn processor_time(args: &ProcessorTimeArgs) -> Result<ExitCode, CliError> {
    let sizes = parse_sizes(&args.sizes).map_err(CliError::said)?;
    let daemons = args.setup.daemons(ServiceProcesses::default());
    let mut report = Report { rows: Vec::new() };
    for collective in COLLECTIVES {
        let options = BenchOptions::new(args.setup.setup(args.repetitions)?, collective, sizes.clone());
        let algorithms = Algorithms::of(collective, &daemons, &options.setup.lab)?;
        let below =
            |heap| below_mpi_in(heap, args.setup.mpi, algorithms.clone(), daemons.clone(), &Choosing::default());
        let (plain, shared) = (below(Heap::Plain)?, below(Heap::Shared)?);
        let systems: [&dyn System; 3] = [&plain, &shared, &Sockets];
        report.rows.extend(outboard_bench::run(&options, &systems)?.rows);
    }
    let right = report.rows.iter().all(|row| row.cost.verified);
    finish(&args.setup, &report, &render_processor_time(&report.rows), right)
}
