//! The experiments of the papers on the engines' clock, beside what was measured: times follow from a profile alone.
//!
//! Never judges: what has to hold is for tests to say, and how far a number is off for who prints it.

pub mod core_direct;
pub mod tianhe;

use thiserror::Error;

use super::NicBreach;

#[derive(Debug, Error)]
pub enum FigureError {
    #[error("profile {profile} has no [{table}]: name one that does")]
    Lacks { profile: String, table: &'static str },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Breach(#[from] NicBreach),
}
