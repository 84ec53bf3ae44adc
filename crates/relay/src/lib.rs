//! Ranks of another machine: a relay beside them, a dock in the service process (DPU mode, SP-1, GP-9).
//!
//! ```text
//!   host                                         DPU
//!   rank -- attach socket, ring, memory -- relay == dock -- attach socket, ring, shadows -- conductor
//!                                    TCP, one connection per rank and one of control
//! ```
//!
//! The relay (`host`) serves ranks as a service process of their own host would, the dock (`dock`) attaches to the
//! service process as ranks of its own host do: the client library does not know that there are two machines, and the
//! conductor only lets the dock hear of writes. Memory is staged: a call's input crosses the link once, behind the
//! call, into a *shadow* (`shadow`) that the service process has mapped; its output crosses once, what is worth a frame
//! while it arrives (`output`), the rest before the completion.
//!
//! A recording crosses once (`recording`); each start of it is a call like others, whose input is what its program
//! reads.
//!
//! A dock serves one relay, and a relay one user, so no process has memory of two users.
//!
//! Invariants: each rank has a connection of its own, so that its end is the rank's end and its flow control the rank's
//! own; the relay always takes what comes without waiting for anything that the dock has to take, so the two never wait
//! for each other; a shadow holds no address that another rank could reach.
//!
//! Never does: look into what a collective does; survive the loss of the connection.

#![allow(missing_docs, reason = "a comment here says more than the name, or is not there")]
#![forbid(unsafe_code)]

mod dock;
mod frame;
mod host;
mod output;
mod recording;
mod session;
mod shadow;
mod spans;
mod submission;
mod wire;

pub use dock::{Dock, Relay, RelayError};
pub use host::serve;
