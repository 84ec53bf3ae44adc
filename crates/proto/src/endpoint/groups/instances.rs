//! The instances of a group at one service process: open instances with their watches, and what is known of ended ones.
//!
//! Invariant: an instance has a watch from [`InstanceTable::insert`] to [`InstanceTable::end`]. Never sends anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use outboard_call::MOST_IN_FLIGHT;

use crate::group::lateness::LatenessWatch;
use crate::ids::InstanceId;
use crate::instance::{FirstCall, Instance};
use crate::link::serial::expand16;

/// Most open instances at a service process, counted from the first instance that has not ended at its own ranks.
/// Other ranks may be this far ahead of a late rank.
const WINDOW: u64 = 512;
/// Most instances that a rank can have open at another service process. A rank has no more requests in flight, and the
/// instances that the rank has ended lie within the window of the other service process. Instance numbers may be far
/// ahead, since exchanges end without the ranks that have no part in them.
const MAX_OPEN: usize = MOST_IN_FLIGHT as usize;
/// Most ended exchanges that are remembered. A rank with a different call in place of such an exchange gets an error.
const MAX_ENDED: usize = 256;

#[derive(Debug, Default)]
pub(in crate::endpoint) struct InstanceTable {
    open: BTreeMap<InstanceId, Instance>,
    watches: BTreeMap<InstanceId, LatenessWatch>,
    /// Instances `<= ended` and the instances in `ended_early` have ended here.
    ended: u64,
    ended_early: BTreeSet<u64>,
    /// Ended exchanges, each with a call of it.
    ended_exchanges: VecDeque<(InstanceId, FirstCall)>,
}

impl InstanceTable {
    pub(super) fn insert(&mut self, id: InstanceId, instance: Instance, watch: LatenessWatch) {
        self.open.insert(id, instance);
        self.watches.insert(id, watch);
    }

    /// Removes an instance that has ended. An exchange is remembered, since ranks without a part in it may call later.
    pub(super) fn end(&mut self, id: InstanceId) {
        let instance = self.open.remove(&id).expect("a collective ends once");
        self.watches.remove(&id);
        assert!(instance.ended(), "only what has ended is cleared away");
        self.ended_early.insert(id.0);
        while self.ended_early.remove(&(self.ended + 1)) {
            self.ended += 1;
        }
        if instance.may_end_alone() {
            if self.ended_exchanges.len() >= MAX_ENDED {
                self.ended_exchanges.pop_front();
            }
            self.ended_exchanges.push_back((id, instance.first_call()));
        }
    }

    pub(in crate::endpoint) fn get(&self, id: InstanceId) -> Option<&Instance> {
        self.open.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: InstanceId) -> Option<&mut Instance> {
        self.open.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (InstanceId, &Instance)> {
        self.open.iter().map(|(id, instance)| (*id, instance))
    }

    /// The open instances after this one.
    pub(super) fn after_mut(&mut self, id: InstanceId) -> impl Iterator<Item = (InstanceId, &mut Instance)> {
        let later = self.open.range_mut((Bound::Excluded(id), Bound::Unbounded));
        later.map(|(id, instance)| (*id, instance))
    }

    /// The open instances up to this one.
    pub(super) fn up_to(&self, id: InstanceId) -> Vec<InstanceId> {
        self.open.range(..=id).map(|(id, _)| *id).collect()
    }

    pub(super) fn oldest(&self) -> Option<InstanceId> {
        self.open.keys().next().copied()
    }

    pub(super) fn newest(&self) -> Option<InstanceId> {
        self.open.keys().next_back().copied()
    }

    /// Number of open instances.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(in crate::endpoint) fn watch(&self, id: InstanceId) -> Option<&LatenessWatch> {
        self.watches.get(&id)
    }

    pub(in crate::endpoint) fn watch_mut(&mut self, id: InstanceId) -> Option<&mut LatenessWatch> {
        self.watches.get_mut(&id)
    }

    /// A call of an open instance, or of a remembered exchange.
    pub(super) fn known_call(&self, id: InstanceId) -> Option<FirstCall> {
        let ended = || self.ended_exchanges.iter().find(|(ended, _)| *ended == id).map(|(_, call)| *call);
        self.get(id).map(Instance::first_call).or_else(ended)
    }

    pub(super) fn has_ended(&self, id: InstanceId) -> bool {
        id.0 <= self.ended || self.ended_early.contains(&id.0)
    }

    /// Whether one more instance may be open in a group of `ranks`. A peer that opens more misbehaves.
    pub(super) fn may_open(&self, id: InstanceId, ranks: u32) -> bool {
        self.open.contains_key(&id) || self.len() < MAX_OPEN * ranks as usize
    }

    /// The last instance that may begin.
    pub(super) fn window_end(&self) -> u64 {
        self.ended + WINDOW
    }

    /// The instance that a datagram's 16 bits stand for: the instance nearest to the newest known one.
    pub(super) fn expand_epoch(&self, epoch: u16) -> InstanceId {
        InstanceId(expand16(epoch, self.newest().map_or(self.ended, |newest| newest.0)))
    }
}
