//! Collectives as data: the movements of bytes, and their order, for every rank of a group.
//!
//! A [`Program`] holds the operations of one rank on spans of its buffers. Each operation names the operations that it
//! follows. Frontends call [`program()`] with the [`Algorithm`] that the group agrees on, or use a [`ProgramBuilder`].
//! Engines execute programs; the crate `outboard-plan-tools` proves, writes, reads and draws them. Programs are
//! produced one rank at a time, so that a group of 4,096 ranks never exists in memory as a whole.
//!
//! Invariants: a program depends on values that MPI makes equal on both ends of each message: group size, collective,
//! root, byte counts. A program depends on nothing else but the [`Algorithm`] and [`Topology`] that the group agrees
//! on. Ids are dense and dependencies point backwards. This crate never does IO, reads no clock, and never sees
//! payload.

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

pub use algorithm::{Algorithm, AlgorithmSettingError};
pub use allgather::Extents;
pub use alltoall::{BlocksError, alltoall};
pub use arguments::{Arguments, PlanError, program};
pub use builder::ProgramBuilder;
pub use combine::Vector;
pub use outboard_call::{Element, Operator, Reduction, ReductionError};
pub use partition::{subgroup_chunks, subgroup_of};
pub use program::{Buffer, MAX_RANKS, Op, OpId, Program, Rank, Span, Step};
pub use topology::Topology;
