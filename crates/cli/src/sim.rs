//! `outboard sim`.
use crate::error::CliError;
use std::process::ExitCode;
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SimCommand {}
pub(crate) fn sim(_: SimCommand) -> Result<ExitCode, CliError> {
    Err(CliError::Failed("".into()))
}
