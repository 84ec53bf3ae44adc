//! Reports about a service process: its statistics, its timeline, overdue collectives, the length of its turns.
//!
//! Invariant: reports neither change the work nor wait for a reader. A report that was not requested costs one branch.

pub(crate) mod overdue;
pub mod statistics;
pub(crate) mod trace;
pub mod turns;
