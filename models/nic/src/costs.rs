//! Costs of a machine, which all engines share, and the interface to the costs of an engine's NIC.
//!
//! Costs only delay: they decide when something has happened, never what. Times are in nanoseconds. Rates are in GB/s,
//! which is bytes per nanosecond. A simulator that runs an engine on a clock (`outboard_sim::nics`) adds the costs up.

use std::fmt::Debug;

use crate::engine::{NicEngine, NicOrder};
use crate::profile_table::{ProfileError, ProfileTable};

/// Processors, memory, bus and link of a machine: the table `[machine]` of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Nanoseconds that a processor needs to hand a send to its NIC.
    pub send: f64,
    /// Nanoseconds until a waiting process notices a packet that has come.
    pub notice: f64,
    /// Nanoseconds until a process notices that its NIC has written a message straight to its place, without a packet.
    pub poll: f64,
    /// GB/s at which one processor copies.
    pub copy_rate: f64,
    /// GB/s at which all processors of a machine copy together.
    pub memory_rate: f64,
    /// GB/s at which one processor combines.
    pub combine_rate: f64,
    /// GB/s between memory and NIC, in each direction.
    pub bus_rate: f64,
    /// Nanoseconds from memory to NIC, and from NIC to memory.
    pub bus_latency: f64,
    /// GB/s of a link, in each direction.
    pub link_rate: f64,
    /// Nanoseconds from one NIC to another.
    pub link_latency: f64,
}

impl Machine {
    pub(crate) fn read(table: &mut ProfileTable<'_, '_>) -> Result<Machine, ProfileError> {
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

/// Nanoseconds that a part of a NIC takes for one piece of work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WorkTime {
    /// Nanoseconds in which the part does nothing else.
    pub busy: f64,
    /// Nanoseconds from the end of `busy` until the work is done.
    pub lag: f64,
}

/// Costs of the NICs of an engine. An operation without a cost of its own costs nothing.
pub trait EngineCosts<E: NicEngine>: Copy + Debug {
    /// Nanoseconds of the processor for one post.
    fn post(&self, machine: &Machine, post: &E::Post) -> f64;

    /// Entries of the NIC's context cache that an engine uses.
    fn contexts(_engine: &E) -> usize {
        0
    }

    /// Cost of sending a packet; `contexts` counts the contexts of all engines of the NIC.
    fn send(&self, _packet: &E::Packet, _contexts: usize) -> WorkTime {
        WorkTime::default()
    }

    fn receive(&self, _packet: &E::Packet, _contexts: usize) -> WorkTime {
        WorkTime::default()
    }

    /// Nanoseconds of the NIC for an order on memory that it carries out itself.
    fn order(&self, _order: &NicOrder) -> f64 {
        0.0
    }

    fn link(_packet: &E::Packet) -> u32 {
        0
    }
}
