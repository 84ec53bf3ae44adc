//! `outboard bench fft`: a three-dimensional FFT, its transposes by `MPI_Ialltoallv`, below every MPI library and below
//! the preloaded shim.

use std::process::ExitCode;

use clap::Args;
use outboard::placement::ServiceProcesses;
use outboard_bench::{Collective, FftOptions, render_fft_table, run_fft};

use super::{SetupArgs, finish, systems, unless_peers_only};
use crate::error::CliError;

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
    /// Only the peers, without an MPI library with Outboard below the program
    #[arg(long)]
    peers_only: bool,
    /// Pairs of a forward and a backward transform
    #[arg(long, default_value_t = 5)]
    repetitions: u32,
    /// Daemons on each host, which share its ranks: a number, or auto by ranks and processors
    #[arg(long, default_value_t)]
    service_processes: ServiceProcesses,
}

pub(super) fn fft(args: &FftArgs) -> Result<ExitCode, CliError> {
    let setup = args.setup.setup(args.repetitions)?;
    let options = FftOptions { setup, grids: args.grid.clone(), variables: args.variables };
    let daemons = args.setup.daemons(args.service_processes);
    let variant = (args.service_processes != ServiceProcesses::default())
        .then(|| format!("{} to a host", args.service_processes));
    let below = unless_peers_only(args.peers_only, &args.setup, Collective::Alltoallv, daemons)?;
    let ours: Vec<_> = below.into_iter().map(|system| system.with_variant(variant.as_deref())).collect();
    let report = run_fft(&options, &systems(&ours))?;
    finish(&args.setup, &report, &render_fft_table(&report), report.agrees())
}
