//! Plans as task lists of a triggered NIC ([`outboard_nic::triggered`]): the NIC progresses a collective alone, the
//! host only posts the list and takes the last completion (CD-1).
//!
//! A [`Lowering`] makes a template for each rank; a printed template shows what the NIC executes. The messages that a
//! rank awaits in a round are sent by ranks that wait for earlier rounds only (see [`crate::rounds`]). So the strict
//! order of the management queue cannot deadlock. Ranks of one host exchange data through shared memory, before and
//! after the list (`phases.rs`). A plan that needs shared memory or a reduction in the middle of the list is rejected;
//! the error names the step.
//!
//! A [`Communicator`] keeps the templates (CD-3). If a plan grows with its blocks, one template for blocks of 1 byte
//! serves blocks of any size, so each protocol needs one template.

mod arrivals;
mod communicator;
mod connections;
mod lower;
mod phases;

pub use communicator::{Communicator, ListCall, LoweredLists};
pub use lower::{Lowering, TriggeredLowerError};
