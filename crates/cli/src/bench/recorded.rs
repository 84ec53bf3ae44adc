//! `outboard bench recorded`: a scatter-destination all-to-all by messages, one by one and as a recorded group, by the
//! C interface and by every MPI library.

use std::process::ExitCode;

use clap::Args;
use outboard::placement::ServiceProcesses;
use outboard_bench::{Collective, RecordedOptions, parse_sizes, render_recorded_table, run_recorded};

use super::{SetupArgs, by_c_interface, finish, systems};
use crate::algorithm::Algorithms;
use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct RecordedArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Bytes of the block that each rank has for each other, separated by commas
    #[arg(long, default_value = "4K,16K,64K,256K")]
    sizes: String,
    /// Calls of each way, of those that all ranks begin together as of those in a row
    #[arg(long, default_value_t = 20)]
    repetitions: u32,
    /// Daemons on each host, which share its ranks: a number, or auto by ranks and processors
    #[arg(long, default_value_t)]
    service_processes: ServiceProcesses,
}

pub(super) fn recorded(args: &RecordedArgs) -> Result<ExitCode, CliError> {
    let sizes = parse_sizes(&args.sizes).map_err(CliError::said)?;
    let options = RecordedOptions { setup: args.setup.setup(args.repetitions)?, sizes };
    let daemons = args.setup.daemons(args.service_processes);
    let algorithms = Algorithms::of(Collective::Alltoall, &daemons, &options.setup.lab)?;
    let ours = [by_c_interface(algorithms, daemons)?];
    let report = run_recorded(&options, &systems(&ours))?;
    finish(&args.setup, &report, &render_recorded_table(&report), report.verified())
}
