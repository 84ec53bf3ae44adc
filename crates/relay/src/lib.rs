//! Ranks of another machine: a relay on their host, a dock in the service process (DPU mode, SP-1, GP-9).
//!
//! ```text
//!   host                                         DPU
//!   rank -- attach socket, ring, memory -- relay == dock -- attach socket, ring, buffers -- conductor
//!                                    TCP, one connection per rank and one of control
//! ```
//!
//! The relay (`host`) serves ranks as a service process of their own host does. The dock (`dock`) attaches to the
//! service process as ranks of its own host do. The client library does not know that there are two machines, and the
//! conductor only notifies the dock of writes. Memory is staged: a call's input crosses the link once, after the call,
//! into a *proxy buffer* that the service process has mapped. Its output crosses once too: runs worth a frame
//! while they arrive (`output`), the rest before the completion.
//!
//! A recording crosses once (`recording`). Each of its starts is a call like others, whose input is the bytes that its
//! program reads.
//!
//! A dock serves one relay, and a relay serves one user, so no process has memory of two users.
//!
//! Invariants: each rank has its own connection, whose end and flow control are the rank's. The relay always receives,
//! and never waits for the dock to accept something first, so the two never wait for each other. A proxy buffer holds
//! no address that another rank could access.
//!
//! The relay never interprets a collective, and it does not survive the loss of the connection.

#![allow(missing_docs, reason = "a comment here says more than the name, or is not there")]
#![forbid(unsafe_code)]

mod dock;
mod frame;
mod host;
mod output;
mod proxy_buffer;
mod recording;
mod session;
mod spans;
mod submission;
mod wire;

pub use dock::{Dock, Relay, RelayError};
pub use host::serve;
