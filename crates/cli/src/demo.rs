//! `outboard demo`.
use crate::error::CliError;
use std::process::ExitCode;
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {}
pub(crate) fn demo(_: &DemoArgs) -> Result<ExitCode, CliError> {
    Err(CliError::Failed("".into()))
}
