//! Why a subcommand failed, in a sentence for the person who typed it.

use std::fmt;
use std::io;

use outboard_bench::{BenchError, LaunchError};
use outboard_lab::LabError;
use thiserror::Error;

/// Why a subcommand failed.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// The emulated cluster.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Lab(#[from] LabError),
    /// A program that should have been started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The benchmark.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The system refused.
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    /// Everything else that has just a sentence.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// For `map_err`.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> CliError {
        let what = what.into();
        move |source| CliError::System { what, source }
    }

    /// What another part says, for `map_err`.
    pub(crate) fn said(error: impl fmt::Display) -> CliError {
        CliError::Failed(error.to_string())
    }
}
