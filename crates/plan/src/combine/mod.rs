//! Collectives that combine: Reduce, Allreduce, Reduce-Scatter, Scan, Exscan.
//!
//! All of them see `Input` as a [`Vector`] of elements, cut only between elements, and combine element `i` of one rank
//! with element `i` of another, as the call's [`crate::Reduction`] says. Which contributions meet in which order depends
//! on the plan alone, so results have the same bits from run to run whatever arrives first (TH-2), and each contract
//! promises that order.
//!
//! Invariants: every message lands in memory of its own, because receives of data follow nothing (MC-4). A plan stays
//! right when `Input` and `Output` begin at the same address, as in a call in place: `Output` is written where the
//! bytes of `Input` at that place are not needed any more. These modules never compute anything.

mod algorithms;

pub use algorithms::{AlgorithmError, AllreduceAlgorithm, ReduceAlgorithm, ReduceScatterAlgorithm, ScanAlgorithm};
