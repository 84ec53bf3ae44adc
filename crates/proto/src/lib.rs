//! The protocol of the service processes, without IO.
//!
//! [`Endpoint`] is the whole protocol of one service process: groups, the ready barrier, the plan executor,
//! reliable multicast with its recovery, lateness, heartbeat. The endpoint is a sans-IO machine: the driver (the
//! daemon, or the simulator) reports to it what happened (`handle_*`), then drains what the endpoint wants
//! ([`Endpoint::poll_order`], [`Endpoint::poll_transmit`], [`Endpoint::poll_event`]) and calls
//! [`Endpoint::handle_timeout`] at [`Endpoint::poll_timeout`].
//!
//! Other engines carry out plans with parts of this crate: [`models`].
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
mod recording;
mod staging;
mod transfer;

pub use config::Config;
pub use endpoint::Endpoint;
pub use error::{Absentee, Absentees, CollectiveError, DeadlineMissed, GroupError, GroupRefusal, MAX_ABSENT};
pub use ids::{CallId, GroupHandle, HostId, InstanceId, Instant, MulticastChannel, OfferId, SpId, StagingId};
pub use interface::{
    BlockSizes, CallClass, CallKind, CallMovement, EndpointCounters, EngineMessage, Event, ExchangePairs, FramePayload,
    GroupMember, GroupSpec, InFlightInstance, MemRef, MemRegion, Milestone, MulticastBatch, Offload, OffloadedCall,
    Order, Overdue, RankCall, Reach, ReceivedDatagram, Signature, TaggedCall, Transmit, sizes_digest,
};
pub use recording::{MAX_STEPS, RecordError, Recording};
pub use staging::staging_size;
pub use wire::FrameBytes;

/// Parts of the protocol with which the models of NICs execute plans.
pub mod models {
    pub use crate::deadlines::Deadlines;
    pub use crate::group::barrier::Barrier;
    pub use crate::instance::run::ProgramRun;
    pub use crate::multicast::block::{Block, DetectedLosses, Patience};
}
