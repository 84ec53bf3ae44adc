//! NICs that progress collectives themselves. A host posts the lowered form of a plan. Its NIC carries the plan out
//! with the NICs of the other hosts until it writes the completion.
//!
//! Each kind is a machine with the interface of [`NicEngine`]: posts, packets and time go in; orders on memory, packets
//! and completions come out. [`triggered`] is InfiniBand with CORE-Direct, [`ordered`] the order-triggered NIC of the
//! Tianhe network, [`datapath`] the accelerator that receives multicast. [`host`] is the baseline for comparison:
//! processes that progress plans themselves.
//!
//! Invariants: an engine sees headers and places, never payload; the NIC's own memory is one more region of the
//! driver's store. The costs of operations stand beside the machines and only delay. This crate never does IO and never
//! reads a clock.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the workspace alone uses it; names that say enough are the documentation")]

pub mod costs;
pub mod datapath;
mod engine;
pub mod host;
mod job;
pub mod ordered;
pub mod profile;
mod profile_table;
mod registered;
pub mod triggered;

pub use engine::{
    AddressSpace, Executor, JobCompletion, JobFailure, MemorySegment, NicEngine, NicOrder, NodeId, Output, Port,
};
pub use job::JobError;
