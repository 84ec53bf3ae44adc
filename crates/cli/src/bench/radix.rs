//! `outboard bench radix`: a parallel radix sort whose histograms are exchanged while keys are moved (CD-8), below
//! every MPI library and below the preloaded shim.

use std::process::ExitCode;

use clap::Args;
use outboard::placement::ServiceProcesses;
use outboard_bench::{Collective, OptionError, RadixOptions, parse_sizes, render_radix_table, run_radix};

use super::{SetupArgs, finish, systems, unless_peers_only};
use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct RadixArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Radices: values of a digit, separated by commas; by default those of the paper
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,10,12,14,16")]
    radices: Vec<u32>,
    /// Radices are bits of a digit
    #[arg(long)]
    digit_bits: bool,
    /// Keys of each rank, separated by commas; by default those of the paper
    #[arg(long, default_value = "4K,64K")]
    keys: String,
    /// Only the peers, without an MPI library with Outboard below the program
    #[arg(long)]
    peers_only: bool,
    /// Sorts with overlap, and as many without, in turn
    #[arg(long, default_value_t = 10)]
    repetitions: u32,
}

pub(super) fn radix(args: &RadixArgs) -> Result<ExitCode, CliError> {
    let setup = args.setup.setup(args.repetitions)?;
    let keys = parse_sizes(&args.keys).map_err(CliError::said)?;
    let keys = keys.into_iter().map(|keys| u32::try_from(keys).unwrap_or(u32::MAX)).collect();
    let options = RadixOptions { setup, buckets: buckets(&args.radices, args.digit_bits)?, keys };
    let mut daemons = args.setup.daemons(ServiceProcesses::default());
    // A small radix has histograms of few bytes: daemons leave such calls to the MPI library unless they are told.
    daemons.more.extend(["--offload-from", "0"].map(str::to_owned));
    let ours = unless_peers_only(args.peers_only, &args.setup, Collective::Allgather, daemons)?;
    let report = run_radix(&options, &systems(&ours))?;
    finish(&args.setup, &report, &render_radix_table(&report), report.verified())
}

fn buckets(radices: &[u32], digit_bits: bool) -> Result<Vec<u32>, CliError> {
    let of_bits = |bits: &u32| 1u32.checked_shl(*bits).ok_or(OptionError::Buckets { buckets: 0 });
    match digit_bits {
        true => radices.iter().map(of_bits).collect::<Result<_, _>>().map_err(CliError::said),
        false => Ok(radices.to_vec()),
    }
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
