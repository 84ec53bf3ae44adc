//! Errors of subcommands, in sentences for the user who typed the command.

use std::fmt;
use std::io;

use outboard_bench::{BenchError, LaunchError};
use outboard_lab::LabError;
use thiserror::Error;

/// Why a subcommand failed.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// The emulated cluster failed.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Lab(#[from] LabError),
    /// A program could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The benchmark failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A system call failed.
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    /// Any other failure, as a sentence.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// A system error with its context, for `map_err`.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> CliError {
        let what = what.into();
        move |source| CliError::System { what, source }
    }

    /// Wraps the error of another part of Outboard, for `map_err`.
    pub(crate) fn failed(error: impl fmt::Display) -> CliError {
        CliError::Failed(error.to_string())
    }
}
