//! Counts over all ranks, made on request.
//!
//! This module only reads ranks: it never changes a rank and never sends to one.

use super::{AttachedRank, Ranks};
use crate::telemetry::statistics::{PlacedRank, RankCounts};
use crate::topology::CpuTopology;

impl Ranks {
    pub(crate) fn rank_counts(&self, topology: &CpuTopology) -> RankCounts {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut rank_counts = RankCounts {
            ranks: count(self.attached().count()),
            memberships: count(self.members.len()),
            calls: count(self.calls.len()),
            submissions: self.submissions,
            tiers_withdrawn: self.withdrawn,
            calls_restaged: self.restaged,
            memory_tiers_ever: self.departed,
            moved: self.moved,
            seated: self.attached().map(|rank| seated(rank, topology)).collect(),
            ..RankCounts::default()
        };
        for rank in self.attached() {
            let (registered, mapped) = rank.memory.ranges().counts();
            rank_counts.registered_ranges += registered as u64;
            rank_counts.mapped_ranges += mapped as u64;
            rank_counts.memory_tiers.add(rank.memory.tier());
            rank_counts.memory_tiers_ever.add(rank.memory.tier());
            rank_counts.moved.add(rank.memory.moved());
        }
        rank_counts
    }
}

/// Current place of a rank, with its first group and its number in that group.
fn seated(rank: &AttachedRank, topology: &CpuTopology) -> PlacedRank {
    let first = rank.groups.values().next();
    let place = rank.place(topology);
    PlacedRank { pid: rank.pid, group: first.map(|m| m.handle.0), rank: first.map(|m| m.rank.0), place }
}
