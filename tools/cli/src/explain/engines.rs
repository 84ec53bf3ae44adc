//! `outboard explain engines`: shows which engine carries out which algorithm of a call, and why not.

use std::fmt::Write as _;

use clap::Args;
use outboard_plan::selection::Collective;
use outboard_sim::nics::{EngineKind, call_of};
use outboard_units::Size;

use crate::error::CliError;

/// The most ranks of a call. The command lowers every algorithm for a call of that many ranks.
const MOST_RANKS: u32 = 256;

/// The call that engines are to carry out.
#[derive(Debug, Args)]
pub(super) struct EnginesArgs {
    /// Ranks of the group
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RANKS)))]
    ranks: u32,
    /// Ranks on each host
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_host: u32,
    /// Bytes of a rank's block, or of the whole vector if there are no blocks
    #[arg(long, default_value = "64K")]
    size: Size,
}

pub(super) fn show(args: &EnginesArgs) -> Result<String, CliError> {
    let EnginesArgs { ranks, ranks_per_host, size } = *args;
    let hosts: Vec<u32> = (0..ranks).map(|rank| rank / ranks_per_host).collect();
    if size.0.checked_mul(u64::from(ranks).pow(2)).is_none() {
        return Err(CliError::Failed(format!("--size {}: blocks of {ranks} ranks exceed 64 bits", size.0)));
    }
    let mut text = format!("{ranks} ranks, {ranks_per_host} on a host, {} B\n", size.0);
    for collective in Collective::ALL {
        let _ = writeln!(text, "\n{collective}");
        for choice in collective.algorithms() {
            let _ = writeln!(text, "  {choice}");
            let call = call_of(choice, ranks, size.0);
            for engine in EngineKind::ALL {
                let said = match engine.takes(&hosts, &call) {
                    Ok(how) if how.is_empty() => "takes it".to_owned(),
                    Ok(how) => format!("takes it, {how}"),
                    Err(why) => format!("does not: {why}"),
                };
                let _ = writeln!(text, "    {engine:<16}{said}");
            }
        }
    }
    Ok(text)
}
