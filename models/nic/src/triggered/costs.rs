//! Costs of a triggered NIC: processor time for posting, and NIC time for messages.
//!
//! The NIC keeps the contexts of queue pairs in a cache. If there are more queue pairs than entries, the hit rate is
//! the ratio of entries to queue pairs (CD Sec. IV-B and VI-G). The link acknowledges reception at no cost to the NIC.

use super::{Content, Packet, Post, Triggered};
use crate::costs::{self, Machine, Work};
use crate::profile::{ProfileError, Table};

/// The table `[triggered]` of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
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

impl Costs {
    pub(crate) fn read(table: &mut Table<'_, '_>) -> Result<Costs, ProfileError> {
        Ok(Costs {
            request: table.cost("request", "ns")?,
            message: table.cost("message", "ns")?,
            contexts: table.count("contexts", "queue pairs")?,
            miss: table.cost("miss", "ns")?,
            resident: table.cost("resident", "MB")?,
            resident_pair: table.cost("resident_pair", "MB")?,
        })
    }

    fn work(&self, packet: &Packet, contexts: usize) -> Work {
        match packet.content {
            Content::Message { .. } => {
                let missing = 1.0 - (f64::from(self.contexts) / contexts.max(1) as f64).min(1.0);
                Work { busy: self.message + self.miss * missing, lag: 0.0 }
            }
            Content::Connect | Content::Accept | Content::Taken { .. } | Content::NotReady { .. } => Work::default(),
        }
    }
}

impl costs::Costs<Triggered> for Costs {
    fn post(&self, machine: &Machine, post: &Post) -> f64 {
        machine.send + self.request * post.template.tasks.len() as f64
    }

    fn contexts(engine: &Triggered) -> usize {
        engine.pairs
    }

    fn send(&self, packet: &Packet, contexts: usize) -> Work {
        self.work(packet, contexts)
    }

    fn receive(&self, packet: &Packet, contexts: usize) -> Work {
        self.work(packet, contexts)
    }

    fn link(packet: &Packet) -> u32 {
        packet.link
    }
}
