//! Which algorithm carries out a collective: what things cost on a cluster, what algorithms spend, what people have
//! set.
//!
//! [`Tuning`] is what the members of a group agree on, by [`Tuning::digest`]; [`Tuning::choose`] is a pure function of
//! it and of the call. [`terms()`] says in closed form what an algorithm spends, [`Cost::time`] how long that takes;
//! the crate `outboard-plan-tools` plays the actual programs and so checks the closed forms.
//!
//! Invariant: integer arithmetic throughout, so that all machines choose alike. Never measures anything.

mod choice;
mod choose;
mod collective;
mod cost;
pub mod formula;
mod small;
mod tuning;

pub use choice::{AlgorithmError, Choice};
pub use choose::{Because, Candidate, Chosen, WORTH};
pub use collective::{Collective, UnknownCollective};
pub use cost::{Cost, Estimate, Links, Terms, at_rate, each};
pub use formula::{Case, rounds_of, terms};
pub use outboard_units::{Duration, Rate, Size, UnitError};
pub use small::chosen;
pub use tuning::{Rule, Tuning, TuningError};
