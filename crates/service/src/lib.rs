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
//! Control goes by small messages (SP-2); payload moves straight between rank memory and the network, read and written
//! without the rank's CPU (SP-4). What a rank or a peer sends is checked before it is believed: it may cost that rank its
//! connection, never the daemon. Idle is asleep.
//!
//! Nothing here decides what a collective does: that is `outboard-proto`.

mod admission;
mod attach;
mod combine;
mod conductor;
pub mod daemon;
mod datapath;
mod deferred;
mod engine;
mod failure;
mod host;
mod lifetime;
mod mailbox;
mod memory;
pub mod offers;
mod outbox;
mod overdue;
mod poller;
mod quotas;
mod ranks;
mod relay;
pub mod settings;
mod socket;
mod staging;
pub mod statistics;
pub mod topology;
mod trace;

pub use daemon::{StartError, run};
pub use settings::Settings;
pub use socket::SocketError;
