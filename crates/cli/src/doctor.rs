//! `outboard doctor`.
use crate::error::CliError;
use std::process::ExitCode;
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {}
pub(crate) fn doctor(_: &DoctorArgs) -> Result<ExitCode, CliError> {
    Err(CliError::Failed("".into()))
}
