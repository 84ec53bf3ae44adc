//! Costs of a triggered NIC: processor time for posting, and NIC time for messages.
//!
//! The NIC keeps the contexts of queue pairs in a cache. If there are more queue pairs than entries, the hit rate is
//! the ratio of entries to queue pairs (CD Sec. IV-B and VI-G). The link acknowledges reception at no cost to the NIC.

use super::{ListPost, TriggeredContent, TriggeredEngine, TriggeredPacket};
use crate::costs::{self, Machine, WorkTime};
use crate::profile_table::{ProfileError, ProfileTable};

/// The table `[triggered]` of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TriggeredCosts {
    /// Nanoseconds of a processor for each request that it posts.
    pub request: f64,
    /// Nanoseconds of the NIC for each message that it sends or receives.
    pub message: f64,
    /// Queue pairs whose contexts fit the cache of the NIC.
    pub contexts: u32,
    /// Nanoseconds to fetch a context that is not in the cache.
    pub miss: f64,
    /// MB of memory of a process without queue pairs.
    pub resident: f64,
    /// Additional MB for each queue pair.
    pub resident_pair: f64,
}

impl TriggeredCosts {
    pub(crate) fn read(table: &mut ProfileTable<'_, '_>) -> Result<TriggeredCosts, ProfileError> {
        Ok(TriggeredCosts {
            request: table.cost("request", "ns")?,
            message: table.cost("message", "ns")?,
            contexts: table.count("contexts", "queue pairs")?,
            miss: table.cost("miss", "ns")?,
            resident: table.cost("resident", "MB")?,
            resident_pair: table.cost("resident_pair", "MB")?,
        })
    }

    fn message_time(&self, packet: &TriggeredPacket, contexts: usize) -> WorkTime {
        match packet.content {
            TriggeredContent::Message { .. } => {
                let missing = 1.0 - (f64::from(self.contexts) / contexts.max(1) as f64).min(1.0);
                WorkTime { busy: self.message + self.miss * missing, lag: 0.0 }
            }
            TriggeredContent::Connect
            | TriggeredContent::Accept
            | TriggeredContent::Taken { .. }
            | TriggeredContent::NotReady { .. } => WorkTime::default(),
        }
    }
}

impl costs::EngineCosts<TriggeredEngine> for TriggeredCosts {
    fn post(&self, machine: &Machine, post: &ListPost) -> f64 {
        machine.send + self.request * post.template.tasks.len() as f64
    }

    fn contexts(engine: &TriggeredEngine) -> usize {
        engine.pairs
    }

    fn send(&self, packet: &TriggeredPacket, contexts: usize) -> WorkTime {
        self.message_time(packet, contexts)
    }

    fn receive(&self, packet: &TriggeredPacket, contexts: usize) -> WorkTime {
        self.message_time(packet, contexts)
    }

    fn link(packet: &TriggeredPacket) -> u32 {
        packet.link
    }
}
