//! `outboard explain`: what Outboard would do, and why.

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::CliError;
use crate::places;

/// What is explained.
#[derive(Debug, Subcommand)]
pub(crate) enum ExplainCommand {
    /// The daemon's settings as flags, environment and defaults make them
    Config {
        /// Flags as the daemon would get them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
}

pub(crate) fn explain(ExplainCommand::Config { flags }: ExplainCommand) -> Result<ExitCode, CliError> {
    let status = std::process::Command::new(places::daemon()?)
        .args(flags)
        .arg("--print-settings")
        .status()
        .map_err(CliError::system("start outboardd"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
