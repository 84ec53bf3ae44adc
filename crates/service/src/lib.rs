//! The service process `outboardd`: binds the protocol machine to fabrics, shared memory and the network (SP-1, SP-3).
//!
//! ```text
//!  ranks ── attach socket ─┐                        ┌─ unicast fabric ── service processes of other hosts
//!        ── rings ─────────┤ conductor (one thread) ├─
//!        <─ completions ───┘      │         ▲       └─ mailbox
//!                            send jobs      │ reports
//!                                 ▼         │
//!                           datapath threads: multicast sender, receivers (MC-9)
//! ```
//!
//! On slow links there are no datapath threads: the conductor sends and receives multicast itself.
//!
//! Control goes by small messages (SP-2). Payload moves directly between rank memory and the network, without the
//! rank's CPU (SP-4). Input of ranks and peers is checked before use: bad input may cost a rank its connection, but
//! never ends the daemon. An idle service process sleeps.
//!
//! `outboard-proto` decides what a collective does, not this crate. Modules import no module above them; from the top:
//! conductor, ranks, driver, memory.

#![allow(missing_docs, reason = "names speak for themselves inside; programs are written against the client crate")]

mod attach_socket;
mod conductor;
pub mod daemon;
mod datapath;
mod driver;
mod memory;
mod poller;
mod ranks;
mod rejection;
pub mod settings;
mod socket;
mod telemetry;
pub mod topology;

pub use attach_socket::attach_socket;
pub use daemon::{StartError, run};
pub use memory::pieces::MemoryPieces;
pub use poller::{Poller, Trigger, WakeToken};
pub use ranks::MEMORY_CHECK_INTERVAL;
pub use ranks::admission::admit;
pub use ranks::attach::{
    MAX_RECORDING_BYTES, PinnedProcess, RefusedRequest, pin_process, random_words, read_sealed, read_sealed_recording,
    register_memory,
};
pub use ranks::docked::{DockedRank, DockedRanks};
pub use ranks::offers;
pub use ranks::submission::{SubmissionError, footprint};
pub use rejection::{reject_process, send_error};
pub use settings::Settings;
pub use socket::{NamedSocket, SocketError};
pub use telemetry::{statistics, turns};

pub use outboard_shm::variables::unknown as unknown_variables;

/// Number of a rank's connection.
pub(crate) type ConnectionId = u64;
