//! The protocol of the service processes, without IO.
//!
//! [`ServiceProcess`] is the whole protocol of one service process: groups, the ready barrier, the plan executor,
//! reliable multicast with its recovery, lateness, heartbeat. It is a machine in the sans-IO manner: the driver
//! (the daemon, or the simulator) feeds it what happened (`handle_*`), then drains what it wants
//! ([`ServiceProcess::poll_order`], [`ServiceProcess::poll_transmit`], [`ServiceProcess::poll_event`]) and calls
//! [`ServiceProcess::handle_timeout`] at [`ServiceProcess::poll_timeout`].
//!
//! Invariants: the machine sees headers and (region, offset, length), never payload; its only clock is the
//! [`Instant`] it is given; its only randomness is the seed it is given; every queue is bounded. A peer that
//! misbehaves causes an event and a counter, never a panic. It never does IO.

#![forbid(unsafe_code)]

pub mod chunks;
pub mod config;
pub mod ids;
pub mod link;
pub mod serial;
pub mod wire;

mod barrier;
mod collective;
mod error;
mod exchange;
mod executor;
mod group;
mod instance;
mod interface;
mod messaging;
mod multicast;
mod outbox;
mod overdue;
mod pacing;
mod service_process;
mod sizes;
mod transfer;

pub use config::Config;
pub use error::{CollectiveError, GroupError};
pub use ids::{CallId, Channel, GroupHandle, HostId, InstanceId, Instant, SpId, StagingId};
pub use interface::{
    Call, CallKind, Class, Counters, Event, FrameBytes, GroupSpec, InFlight, MemRef, Member, Moves, MulticastBatch,
    Order, Pairs, Payload, Reach, ReceivedDatagram, Region, Signature, Sizes, Step, TaggedCall, Transmit, sizes_digest,
};
pub use messaging::{MAX_RECORDINGS, MAX_STEPS, RecordError, Recording};
pub use overdue::{Absentee, Absentees, DeadlineMissed, MAX_ABSENT, Overdue};
pub use service_process::ServiceProcess;
