//! Which algorithm carries out a collective: what things cost on a cluster, what algorithms spend, what people have set.
//!
//! [`Tuning`] is what the members of a group agree on, by [`Tuning::digest`]; [`Tuning::choose`] is a pure function of it and of
//! the call. [`terms()`] says in closed form what an algorithm spends, [`Cost::time`] how long that takes; [`estimate()`] plays
//! the actual programs and so checks the closed forms.
//!
//! Invariant: integer arithmetic throughout, so that all machines choose alike. Never measures anything.

mod algorithm;
mod choose;
mod cost;
mod estimate;
pub mod fit;
pub mod formula;
mod programs;
mod tuning;

pub use algorithm::{Choice, Collective, UnknownCollective};
pub use choose::{Because, Candidate, Chosen, WORTH};
pub use cost::{Cost, Estimate, Terms};
pub use estimate::{EstimateError, estimate};
pub use fit::{Sample, fit};
pub use formula::{Case, terms};
pub use outboard_units::{Duration, Rate, Size, UnitError};
pub use tuning::{Reason, Rule, Tuning, TuningError};
