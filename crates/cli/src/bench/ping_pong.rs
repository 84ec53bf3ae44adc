//! `outboard bench ping-pong`: half a round trip of a tagged message by the C interface, below the preloaded shim,
//! which leaves messages to the MPI library, and below the peers.

use std::process::ExitCode;

use clap::Args;
use outboard::placement::ServiceProcesses;
use outboard_bench::{BenchOptions, Choosing, Collective, Setup, parse_sizes, render_batches, run_batches};

use super::{SetupArgs, below_mpi, by_c_interface, finish, systems};
use crate::algorithm::Algorithms;
use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct PingPongArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Bytes of the message, separated by commas
    #[arg(long, default_value = "8,1K,64K,1M")]
    sizes: String,
    /// Rows of round trips that all ranks begin together; small messages make up to 1,000 in a row
    #[arg(long, default_value_t = 20)]
    repetitions: u32,
}

pub(super) fn ping_pong(args: &PingPongArgs) -> Result<ExitCode, CliError> {
    let sizes = parse_sizes(&args.sizes).map_err(CliError::said)?;
    let setup = Setup { blocking: true, ..args.setup.setup(args.repetitions)? };
    let options = BenchOptions::new(setup, Collective::PingPong, sizes);
    let daemons = args.setup.daemons(ServiceProcesses::default());
    let algorithms = Algorithms::of(Collective::PingPong, &daemons, &options.setup.lab)?;
    let ours = [
        by_c_interface(algorithms.clone(), daemons.clone())?,
        below_mpi(args.setup.mpi, algorithms, daemons, &Choosing::default())?,
    ];
    let report = run_batches(&options, &systems(&ours))?;
    finish(&args.setup, &report, &render_batches(&report), report.verified())
}
