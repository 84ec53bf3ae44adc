//! Chooses the algorithm of a collective from the costs on a cluster, the terms of each algorithm, and user settings.
//!
//! The members of a group agree on a [`Tuning`] by [`Tuning::digest`]. [`Tuning::choose`] is a pure function of the
//! tuning and the call. [`terms()`] returns in closed form what an algorithm spends, and [`Cost::time`] how long that
//! takes. The crate `outboard-plan-tools` plays the actual programs and so checks the closed forms.
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
pub use choose::{Candidate, ChoiceReason, Chosen, WORTH};
pub use collective::{Collective, UnknownCollective};
pub use cost::{Cost, CostTerms, Estimate, Links, at_rate, each};
pub use formula::{Case, rounds_of, terms};
pub use outboard_units::{Duration, Rate, Size, UnitError};
pub use small::chosen;
pub use tuning::{Rule, Tuning, TuningError};
