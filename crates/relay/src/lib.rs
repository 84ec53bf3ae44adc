//! Ranks of another machine: a relay on their host, a dock in the service process (DPU mode, SP-1, GP-9).
//!
//! ```text
//!   host                                         DPU
//!   rank -- attach socket, ring, memory -- relay == dock -- attach socket, ring, buffers -- conductor
//!                                    TCP, one connection per rank and one of control
//! ```
//!
//! The relay (`host`) serves ranks as a service process of their own host does. The dock (`dock`) attaches to the
//! service process as ranks of the service process's host do. The client library does not know that there are two
//! machines, and the conductor only notifies the dock of writes. Memory is staged. Once a call is posted, its input
//! crosses the link once, into a *proxy buffer* that the service process has mapped. The call's output crosses once
//! too: long runs as soon as they are written (`output`), the rest before the completion.
//!
//! A recording crosses once (`recording`). Each start of a recording is a call like others; its input is the bytes that
//! the recording's program reads.
//!
//! A dock serves one relay, and a relay serves one user, so no process has memory of two users.
//!
//! Invariants: each rank has its own connection, and the end and flow control of the connection concern only this rank.
//! The relay always receives, and never waits until the dock has accepted something before it receives. So relay and
//! dock never wait for each other. A proxy buffer contains no address that another rank could access.
//!
//! The relay never interprets a collective, and does not survive the loss of the connection.

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
