//! Collectives as data: what moves where, in which order, for every rank of a group.
//!
//! A [`Program`] is what one rank does: operations on spans of its buffers, each naming the operations it follows.
//! Frontends build programs with the pure functions of [`mod@allgather`], [`mod@alltoall`], [`mod@barrier`],
//! [`mod@broadcast`], [`mod@gather`] and [`mod@scatter`], of the modules of [`combine`] for reductions, by the
//! [`algorithm`] that the group agrees on, or with a [`ProgramBuilder`]; [`passes`] change how they do it; engines execute
//! them; [`verify()`] and [`verify_reduction()`] prove them; [`mod@text`] writes and reads them. Programs are produced one
//! rank at a time, so that a group of 4,096 ranks never exists in memory as a whole.
//!
//! Invariants: a program depends only on what MPI makes equal on both ends of each message (group size, collective,
//! root, byte counts) and on the [`Algorithm`] and [`Topology`] that the group agrees on. Operation ids are dense and
//! every dependency points backwards. This crate never does IO, never looks at a clock, never sees payload.

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod allgather;
pub mod alltoall;
pub mod barrier;
mod binomial;
pub mod broadcast;
mod builder;
pub mod combine;
pub mod core_direct;
pub mod gather;
pub mod goal;
mod partition;
pub mod passes;
mod program;
mod rooted;
pub mod rounds;
pub mod scatter;
pub mod selection;
pub mod text;
mod tokens;
mod topology;
mod verify;

pub use algorithm::{
    Algorithm, AlgorithmError, AllgatherAlgorithm, AlltoallAlgorithm, BarrierAlgorithm, BroadcastAlgorithm,
    LeaderExchange, RootedAlgorithm, SettingError,
};
pub use allgather::{AllgatherError, Extents, allgather, allgatherv};
pub use alltoall::{AlltoallError, alltoall};
pub use barrier::{BarrierError, barrier};
pub use broadcast::{BroadcastError, broadcast, broadcast_by_hosts};
pub use builder::ProgramBuilder;
pub use combine::allreduce::allreduce;
pub use combine::reduce::reduce;
pub use combine::reduce_scatter::reduce_scatter;
pub use combine::scan::{exscan, scan};
pub use combine::{
    AllreduceAlgorithm, CombineError, LeaderAllreduce, LeaderReduce, LeaderReduceScatter, ReduceAlgorithm,
    ReduceScatterAlgorithm, ScanAlgorithm, Vector,
};
pub use gather::{gather, gatherv};
pub use outboard_call::{Element, Operator, Reduction, ReductionError};
pub use partition::{chain_of, chain_ranks, subgroup_chunks, subgroup_of};
pub use program::{Buffer, MAX_RANKS, Op, OpId, Program, Rank, Span, Step};
pub use rooted::{RootedError, Share};
pub use rounds::Rounds;
pub use scatter::{scatter, scatterv};
pub use topology::Topology;
pub use verify::{
    At, Combination, Contract, Contributors, Fault, Piece, ReductionContract, VerifyError, verify, verify_reduction,
};
