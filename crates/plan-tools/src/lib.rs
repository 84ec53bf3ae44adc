//! What people and tests need of plans, and neither the daemon nor liboutboard does.
//!
//! [`verify()`] proves that programs do what a [`contract()`] promises; [`mod@text`] and [`goal`]
//! write and read plans; [`rounds`] tells when messages travel; [`triggered`] makes task lists of a triggered NIC,
//! [`ordered`] descriptors of an order-triggered one, [`datapath`] programs that an accelerator takes, [`host`] those
//! that processes carry out themselves;
//! [`estimate()`] plays programs event by event, and [`fit()`] finds the cost of a cluster from measured times.
//!
//! Invariant: all of it looks at the programs of a whole group, which a daemon never holds. This crate never does IO.

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
pub use fit::{Sample, factor, fit};
pub use programs::programs;
pub use rounds::Rounds;
pub use verify::{At, Combination, Contract, Contributors, Fault, Piece, VerifyError, verify};
