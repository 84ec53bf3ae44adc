//! Tools for plans that people and tests need, but neither the daemon nor liboutboard.
//!
//! [`verify()`] proves that programs fulfil a [`contract()`]. [`mod@text`] and [`goal`] write and read plans, and
//! [`rounds`] computes when messages travel. [`triggered`] makes task lists of a triggered NIC, [`ordered`] makes
//! descriptors of an order-triggered NIC, [`datapath`] makes programs for an accelerator, and [`host`] makes programs
//! for processes. [`estimate()`] simulates programs event by event, and [`fit()`] finds the cost of a cluster from
//! measured times.
//!
//! Invariant: all tools work on the programs of a whole group, which a daemon never holds. This crate never does IO.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the workspace alone uses it; names that say enough are the documentation")]

mod contract;
pub mod datapath;
mod estimate;
mod fit;
pub mod goal;
pub mod host;
pub mod ordered;
mod programs;
pub mod rounds;
pub mod text;
mod tokens;
pub mod triggered;
mod verify;

pub use contract::{contract, exchange};
pub use estimate::{EstimateError, estimate, played};
pub use fit::{CostSample, factor, fit};
pub use programs::programs;
pub use rounds::Rounds;
pub use verify::{
    Contract, ContributionFault, ContributionSpan, Contributors, PromisedSpan, StepLocation, VerifyError, verify,
};
