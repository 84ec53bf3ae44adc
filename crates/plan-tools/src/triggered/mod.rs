//! Plans as task lists of a triggered NIC ([`outboard_nic::triggered`]): the NIC carries a collective on by itself, the
//! host only posts the list and takes the last completion (CD-1).
//!
//! A [`Lowering`] makes a template for each rank; what is printed of it is what the NIC executes. Inside a round, all
//! that a rank waits for is sent by ranks that wait for earlier rounds only (see [`crate::rounds`]), so that the strict
//! order of the management queue cannot deadlock. What ranks of one host have for each other goes through memory that
//! they share, before the list and behind it (`phases.rs`); a plan that needs it, or a reduction, in between is refused
//! by its step.
//!
//! A [`Communicator`] keeps the templates (CD-3): where a plan grows with its blocks, one template for blocks of 1 byte
//! serves blocks of any size, which makes one for each protocol.

mod arrivals;
mod communicator;
mod connections;
mod lower;
mod phases;

pub use communicator::{Call, Communicator, Lowered};
pub use lower::{LowerError, Lowering};
