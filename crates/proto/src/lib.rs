//! The protocol of the service processes, without IO.
//!
//! [`Endpoint`] is the whole protocol of one service process: groups, the ready barrier, the plan executor,
//! reliable multicast with its recovery, lateness, heartbeat. The endpoint is a sans-IO machine: the driver (the
//! daemon, or the simulator) reports to it what happened (`handle_*`), then drains what the endpoint wants
//! ([`Endpoint::poll_order`], [`Endpoint::poll_transmit`], [`Endpoint::poll_event`]) and calls
//! [`Endpoint::handle_timeout`] at [`Endpoint::poll_timeout`].
//!
//! Other engines carry out plans with parts of this crate: [`Barrier`], [`Block`], [`ProgramRun`], [`Deadlines`].
//!
//! Invariants: the machine sees headers and (region, offset, length), never payload; its only clock is the
//! [`Instant`] it is given; its only randomness is the seed it is given; every queue is bounded. A peer that
//! misbehaves causes an event and a counter, never a panic. The crate never does IO.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "programs use the client alone; here names that say enough are the documentation")]

pub mod config;
pub mod ids;
pub mod link;
pub mod wire;

mod deadlines;
mod effects;
mod endpoint;
mod error;
mod group;
mod instance;
mod interface;
mod multicast;
mod transfer;

pub use config::Config;
pub use deadlines::Deadlines;
pub use endpoint::Endpoint;
pub use error::{CollectiveError, GroupError, GroupRefusal};
pub use group::barrier::Barrier;
pub use group::lateness::{Absentee, Absentees, DeadlineMissed, MAX_ABSENT, Overdue};
pub use ids::{CallId, GroupHandle, HostId, InstanceId, Instant, MulticastChannel, OfferId, SpId, StagingId};
pub use instance::recording::{MAX_STEPS, RecordError, Recording};
pub use instance::run::ProgramRun;
pub use interface::{
    BlockSizes, CallClass, CallKind, CallMovement, EndpointCounters, EngineMessage, Event, ExchangePairs, FrameBytes,
    FramePayload, GroupMember, GroupSpec, InFlightInstance, MemRef, MemRegion, Milestone, MulticastBatch, Offload,
    Order, PostedCall, Reach, ReceivedDatagram, Signature, TaggedCall, Transmit, sizes_digest, staging_size,
};
pub use multicast::block::{Block, DetectedLosses, Patience};
