//! Counts over all ranks, made on request.
//!
//! This module reads ranks only: it never changes a rank and never sends to one.

use super::{Attached, Ranks};
use crate::telemetry::statistics::{Present, Seated};
use crate::topology::Topology;

impl Ranks {
    pub(crate) fn present(&self, topology: &Topology) -> Present {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut present = Present {
            ranks: count(self.attached().count()),
            memberships: count(self.members.len()),
            calls: count(self.calls.len()),
            submissions: self.submissions,
            tiers_withdrawn: self.withdrawn,
            calls_restaged: self.restaged,
            memory_tiers_ever: self.departed,
            moved: self.moved,
            seated: self.attached().map(|rank| seated(rank, topology)).collect(),
            ..Present::default()
        };
        for rank in self.attached() {
            let (registered, mapped) = rank.memory.ranges().counts();
            present.registered_ranges += registered as u64;
            present.mapped_ranges += mapped as u64;
            present.memory_tiers.add(rank.memory.tier());
            present.memory_tiers_ever.add(rank.memory.tier());
            present.moved.add(rank.memory.moved());
        }
        present
    }
}

/// Seat of a rank now, named by the first group of the rank.
fn seated(rank: &Attached, topology: &Topology) -> Seated {
    let first = rank.groups.values().next();
    let place = rank.place(topology);
    Seated { pid: rank.pid, group: first.map(|m| m.handle.0), rank: first.map(|m| m.rank.0), place }
}
