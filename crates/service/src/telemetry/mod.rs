//! What people are told of a service process: its statistics, its timeline, what is overdue, how
//! long its turns last.
//!
//! Invariant: nothing here changes what is done, and what nobody asked for costs a branch. Never waits for a reader.

pub(crate) mod overdue;
pub mod statistics;
pub(crate) mod trace;
pub mod turns;
