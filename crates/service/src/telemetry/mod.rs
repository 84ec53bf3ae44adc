//! Reports about a service process: its statistics, its timeline, overdue collectives, the length of its turns.
//!
//! Invariant: nothing here changes the work or waits for a reader. A report that was not requested costs a branch.

pub(crate) mod overdue;
pub mod statistics;
pub(crate) mod trace;
pub mod turns;
