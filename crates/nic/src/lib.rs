//! NICs that progress collectives themselves: a host posts what a plan was lowered to, and the NIC carries it out with
//! the NICs of the other hosts until it writes the completion.
//!
//! Each kind is a machine that an [`Engine`] describes: posts, packets and time go in; orders on memory, packets and
//! completions come out. [`ordered`] is the order-triggered NIC of the Tianhe network.
//!
//! Invariants: an engine sees headers and places, never payload; what lies in the NIC's own memory is one more region
//! of the driver's store. What an operation costs stands beside the machines and only delays. This crate never does IO
//! and never looks at a clock.

#![forbid(unsafe_code)]

mod engine;
pub mod ordered;

pub use engine::{Engine, Node, Order, Output, Place, Port, Region};
