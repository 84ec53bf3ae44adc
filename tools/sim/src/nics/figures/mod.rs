//! The experiments of the papers on the engines' clock, beside the measured figures. Times follow from a profile alone.
//!
//! Never judges: tests check what has to hold, and the code that prints a number shows its error.

pub mod core_direct;
pub mod tianhe;

use thiserror::Error;

use super::NicViolation;

#[derive(Debug, Error)]
pub enum FigureError {
    #[error("profile {profile} has no [{table}]: name one that does")]
    Lacks { profile: String, table: &'static str },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Violation(#[from] NicViolation),
}
