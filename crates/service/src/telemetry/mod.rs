//! Reports about a service process: its statistics, its timeline, overdue collectives, the length of its turns.
//!
//! Invariant: nothing here changes the work, and a report that was not requested costs a branch. It never waits for a
//! reader.

pub(crate) mod overdue;
pub mod statistics;
pub(crate) mod trace;
pub mod turns;
