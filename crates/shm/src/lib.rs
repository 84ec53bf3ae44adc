//! Shared memory between ranks and the service process of their host, and access to a rank's own memory.
//!
//! - [`region`]: memfd regions, sealed so that a mapping can never fault.
//! - [`plain`]: private memory, where no region can be made.
//! - [`ring`]: the submission ring, rank to service process.
//! - [`completion`]: completion words and their futex, service process to rank.
//! - [`rank_copy`]: copies that the service process leaves to a rank that waits.
//! - [`control`]: ring, completion words and rank copies in one region with a versioned header, as each side sees them.
//! - [`entry`]: the entries that a rank submits.
//! - [`memory`]: reading and writing a rank's memory without its CPU (SP-4), in tiers.
//! - [`attach`]: the messages of the attach socket, their codec and their transport.
//! - [`lock`]: files that processes of one user lock.
//! - [`closer`]: threads that close large memory.
//! - [`functions!`]: functions of libraries loaded at run time, for the crates that need them.
//! - [`status`]: the result codes shared by the C interface, completion words and attach replies.
//!
//! This is the only crate with atomics; their protocols are checked by loom (`cfg(loom)`), the rest by unit tests. A
//! rank may write anything into memory that it shares. So the service process copies before it checks, keeps its own
//! position, and never reads back what it wrote. Nothing here depends on what a collective does.

#![allow(missing_docs, reason = "names speak for themselves inside; programs are written against the client crate")]

pub mod completion;
mod foreign;
pub mod rank_copy;
pub mod ring;
pub mod status;
mod sync;

#[cfg(not(loom))]
pub mod attach;
#[cfg(not(loom))]
pub mod closer;
#[cfg(not(loom))]
pub mod control;
#[cfg(not(loom))]
pub mod entry;
#[cfg(not(loom))]
pub mod fork;
#[cfg(not(loom))]
pub mod lock;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod plain;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod variables;
