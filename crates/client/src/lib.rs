//! The library of a rank: the Rust interface, and the C interface of `outboard.h` on top of it.
//!
//! A [`Context`] attaches to the service process of the host. A [`Group`] is made with other ranks; a post on it
//! returns a [`Request`], which the rank tests or waits for. [`bootstrap`] connects the ranks of a job.
//!
//! Invariants: posting never blocks and makes no system call while the service process is awake (staging may, the first
//! time a size is seen). A request ends with the right bytes or with an [`Error`] that names the culprit. When the
//! service process dies, every call returns. A forked child gets [`Error::Forked`] from every inherited handle. No
//! panic crosses the C interface. This library starts no thread, installs no signal handler and never loads UCX. PMIx,
//! if the launcher uses it, has a thread of its own while the ranks are connected.
//!
//! ```no_run
#![doc = include_str!("../../../examples/allgather.rs")]
//! ```

mod adaptive_polling;
mod allocations;
mod attachment;
mod blocking;
pub mod bootstrap;
mod c_interface;
mod call_sequence;
mod connection;
mod context;
mod copy_agent;
mod error;
mod group;
mod heap;
mod job_daemon;
mod lock;
mod operator;
mod request;
mod segment_cache;
pub mod service_processes;
mod slots;
mod staging;
mod tagged;
mod wait_trace;

pub use context::Context;
pub use error::Error;
pub use group::{BlockList, Contribution, Destination, Group, ReductionOutcome};
pub use operator::{ReductionOperator, UserOperator};
pub use outboard_call::{Element, Operator, Reduction, ReductionError};
pub use outboard_shm::attach::OFFER_BYTES;
pub use outboard_shm::memory::Tier;
pub use outboard_shm::status::Status;
pub use request::{Request, wait_some};
pub use tagged::{Recorded, Recorder};

/// Version of the C interface, as in `outboard.h`.
pub const ABI_VERSION: u32 = 1;
