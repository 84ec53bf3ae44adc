//! The local ranks of a group: which ranks have requested the group or left it, and the last call of each rank.
//!
//! Invariant: the instances of a rank's calls are 1, 2, 3, ...

use std::collections::BTreeSet;

use outboard_plan::Rank;

use crate::ids::InstanceId;
use crate::interface::Signature;

/// The last call of a rank; `None` before the first call.
type LastCall = Option<(InstanceId, Signature)>;

#[derive(Debug)]
pub(in crate::endpoint) struct LocalRanks {
    requested: BTreeSet<Rank>,
    left: BTreeSet<Rank>,
    /// By the index of the rank among the local ranks of the group.
    last_calls: Vec<LastCall>,
}

impl LocalRanks {
    /// Local ranks that have not requested the group.
    pub(super) fn new(ranks: usize) -> Self {
        LocalRanks { requested: BTreeSet::new(), left: BTreeSet::new(), last_calls: vec![None; ranks] }
    }

    pub(super) fn note_request(&mut self, rank: Rank) {
        self.requested.insert(rank);
    }

    /// A rank leaves, or does not get the group that the rank has requested.
    pub(super) fn note_left(&mut self, rank: Rank) {
        self.left.insert(rank);
    }

    pub(super) fn has_requested(&self, rank: Rank) -> bool {
        self.requested.contains(&rank)
    }

    pub(super) fn has_left(&self, rank: Rank) -> bool {
        self.left.contains(&rank)
    }

    /// Whether the rank has requested the group and has not left it.
    pub(super) fn is_member(&self, rank: Rank) -> bool {
        self.has_requested(rank) && !self.has_left(rank)
    }

    /// Whether all ranks that requested the group have left it.
    pub(super) fn all_left(&self) -> bool {
        self.left.len() == self.requested.len()
    }

    pub(super) fn note_call(&mut self, local: usize, instance: InstanceId, signature: Signature) {
        self.last_calls[local] = Some((instance, signature));
    }

    /// The last call of each local rank.
    pub(in crate::endpoint) fn last_calls(&self) -> impl Iterator<Item = LastCall> {
        self.last_calls.iter().copied()
    }

    /// The instance of a rank's last call; 0 before the first call.
    pub(super) fn last_instance(&self, local: usize) -> InstanceId {
        self.last_calls[local].map_or(InstanceId(0), |(instance, _)| instance)
    }

    /// The instance of a rank's next call.
    pub(in crate::endpoint) fn next_instance(&self, local: usize) -> InstanceId {
        InstanceId(self.last_instance(local).0 + 1)
    }
}
