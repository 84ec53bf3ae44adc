//! What a machine takes for what all engines have it do, and what an engine's NIC takes beside that.
//!
//! Costs only delay: they say when something has happened, never what. Times are in nanoseconds, rates in GB/s, which
//! is bytes per nanosecond. Whoever plays an engine on a clock (`outboard_sim::nics`) puts them together.

use std::fmt::Debug;

use crate::engine::{Engine, Order};
use crate::profile::{ProfileError, Table};

/// Processors, memory, bus and link of a machine: the table `[machine]` of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Nanoseconds of a processor to tell its NIC to send.
    pub send: f64,
    /// Nanoseconds until a process that waits sees that a packet has come.
    pub notice: f64,
    /// Nanoseconds until it sees that its NIC has put a message straight to its place, which no packet says.
    pub poll: f64,
    /// GB/s that one processor copies.
    pub copy_rate: f64,
    /// GB/s that all processors of a machine copy together.
    pub memory_rate: f64,
    /// GB/s that one processor combines.
    pub combine_rate: f64,
    /// GB/s between memory and NIC, in each direction.
    pub bus_rate: f64,
    /// Nanoseconds from memory to NIC, and from NIC to memory.
    pub bus_latency: f64,
    /// GB/s of a link, in each direction.
    pub link_rate: f64,
    /// Nanoseconds from a NIC to another one.
    pub link_latency: f64,
}

impl Machine {
    pub(crate) fn read(table: &mut Table<'_, '_>) -> Result<Machine, ProfileError> {
        let (time, rate) = ("ns", "GB/s");
        Ok(Machine {
            send: table.cost("send", time)?,
            notice: table.cost("notice", time)?,
            poll: table.cost("poll", time)?,
            copy_rate: table.rate("copy_rate", rate)?,
            memory_rate: table.rate("memory_rate", rate)?,
            combine_rate: table.rate("combine_rate", rate)?,
            bus_rate: table.rate("bus_rate", rate)?,
            bus_latency: table.cost("bus_latency", time)?,
            link_rate: table.rate("link_rate", rate)?,
            link_latency: table.cost("link_latency", time)?,
        })
    }
}

/// Nanoseconds that a part of a NIC takes for one thing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// In which it does nothing else.
    pub busy: f64,
    /// Behind those, until it is done.
    pub lag: f64,
}

/// What the NICs of an engine take. Nothing costs anything unless it is said.
pub trait Costs<E: Engine>: Copy + Debug {
    /// Nanoseconds of the processor for a post.
    fn post(&self, machine: &Machine, post: &E::Post) -> f64;

    /// Part of the NIC's context cache that an engine uses.
    fn contexts(_engine: &E) -> usize {
        0
    }

    /// A packet leaves a NIC all of whose engines use so many contexts.
    fn send(&self, _packet: &E::Packet, _contexts: usize) -> Work {
        Work::default()
    }

    fn receive(&self, _packet: &E::Packet, _contexts: usize) -> Work {
        Work::default()
    }

    /// Nanoseconds of the NIC for work on memory that it does itself.
    fn order(&self, _order: &Order) -> f64 {
        0.0
    }

    fn link(_packet: &E::Packet) -> u32 {
        0
    }
}
