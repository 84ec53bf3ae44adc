//! NICs that progress collectives themselves: a host posts what a plan was lowered to, and the NIC carries it out with
//! the NICs of the other hosts until it writes the completion.
//!
//! Each kind is a machine that an [`Engine`] describes: posts, packets and time go in; orders on memory, packets and
//! completions come out. [`triggered`] is the NIC that CORE-Direct makes of InfiniBand, [`ordered`] the order-triggered
//! NIC of the Tianhe network, [`datapath`] the accelerator that receives multicast. [`host`] is what they are compared
//! with: processes that progress plans themselves.
//!
//! Invariants: an engine sees headers and places, never payload; what lies in the NIC's own memory is one more region
//! of the driver's store. What an operation costs stands beside the machines and only delays. This crate never does IO
//! and never looks at a clock.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the workspace alone uses it; names that say enough are the documentation")]

pub mod costs;
pub mod datapath;
mod engine;
pub mod host;
mod job;
pub mod ordered;
pub mod profile;
mod registered;
pub mod triggered;

pub use engine::{Completion, Engine, Failure, Node, Order, Output, Place, Port, Region, Worker};
pub use job::JobError;
