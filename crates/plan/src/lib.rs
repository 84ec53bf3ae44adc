//! Collectives as data: what moves where, in which order, for every rank of a group.
//!
//! A [`Program`] is what one rank does: operations on spans of its buffers, each naming the operations it follows.
//! Frontends have programs built by [`program()`], by the [`Algorithm`] that the group agrees on, or build them with a
//! [`ProgramBuilder`]; engines execute them; the crate `outboard-plan-tools` proves, writes, reads and draws them.
//! Programs are produced one rank at a time, so that a group of 4,096 ranks never exists in memory as a whole.
//!
//! Invariants: a program depends only on what MPI makes equal on both ends of each message (group size, collective,
//! root, byte counts) and on the [`Algorithm`] and [`Topology`] that the group agrees on. Operation ids are dense and
//! every dependency points backwards. This crate never does IO, never looks at a clock, never sees payload.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the workspace alone uses it; names that say enough are the documentation")]

pub mod algorithm;
pub mod allgather;
pub mod alltoall;
mod arguments;
mod barrier;
mod binomial;
pub mod broadcast;
mod builder;
pub mod combine;
pub mod deferred;
mod partition;
mod print;
mod program;
mod rooted;
pub mod selection;
mod topology;

pub use algorithm::{Algorithm, SettingError};
pub use allgather::Extents;
pub use alltoall::{BlocksError, alltoall};
pub use arguments::{Arguments, PlanError, program};
pub use builder::ProgramBuilder;
pub use combine::Vector;
pub use outboard_call::{Element, Operator, Reduction, ReductionError};
pub use partition::{subgroup_chunks, subgroup_of};
pub use program::{Buffer, MAX_RANKS, Op, OpId, Program, Rank, Span, Step};
pub use topology::Topology;
