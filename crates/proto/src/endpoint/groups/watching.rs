//! Watches the peers that a group depends on: neighbours in the ring, and members that owe for an open instance.
//!
//! Invariant: once the group is made, a service process is watched as long as the group depends on it. Never detects a
//! death itself: the link does.

use std::collections::BTreeSet;

use super::{Group, GroupState};
use crate::endpoint::NodeState;
use crate::ids::SpId;

impl Group {
    /// The peers that must be alive: the nearest service processes on both sides of the ring that still serve a rank,
    /// and members that have left but may owe us something for an open instance. Lost members are not among them.
    fn required_peers(&mut self) -> BTreeSet<SpId> {
        let me = self.members.me as usize;
        let owing = (0..self.members.sps.len()).filter(|at| *at != me && self.is_awaited(*at));
        let owing: Vec<SpId> = owing.map(|at| self.members.sps[at]).collect();
        self.neighbours().chain(owing).collect()
    }

    /// The nearest serving neighbours. Members that left never return, so the search continues from the last result.
    fn neighbours(&mut self) -> impl Iterator<Item = SpId> + use<> {
        let (n, me) = (self.members.sps.len(), self.members.me as usize);
        let places = [|me, step, n| (me + step) % n, |me, step, n| (me + n - step) % n];
        let found = std::array::from_fn::<_, 2, _>(|side| {
            let place: fn(usize, usize, usize) -> usize = places[side];
            let step = (self.nearest[side]..n).find(|step| self.remaining_ranks[place(me, *step, n)] > 0);
            self.nearest[side] = step.unwrap_or(n);
            step.map(|step| self.members.sps[place(me, step, n)])
        });
        found.into_iter().flatten()
    }

    /// Whether a member owes something that it may still send.
    fn is_awaited(&self, at: usize) -> bool {
        self.owes(at) && !self.lost_members.contains(&self.members.sps[at])
    }

    pub(super) fn owes(&self, at: usize) -> bool {
        self.remaining_ranks[at] == 0 && self.instances.keys().next().is_some_and(|open| *open <= self.last[at])
    }

    /// Like [`Self::rearm_watches`], after a loss at one service process alone: the debts of others have not changed.
    pub(super) fn rearm_watches_after_loss(&mut self, node: &mut NodeState, at: usize) {
        if self.remaining_ranks[at] > 0 {
            return;
        }
        let (sp, now, period) = (self.members.sps[at], node.out.now, node.config.heartbeat);
        let owes = self.is_awaited(at);
        if !owes && self.watched.remove(&sp) {
            node.peers.watch(now, period, sp, false);
        }
        for sp in self.neighbours().chain(owes.then_some(sp)) {
            if self.watched.insert(sp) {
                node.peers.watch(now, period, sp, true);
            }
        }
        debug_assert_eq!(self.required_peers(), self.watched, "what is kept is what a look at all gives");
    }

    /// Watches the peers that the group depends on, once the group is made.
    pub(super) fn rearm_watches(&mut self, node: &mut NodeState) {
        let required_peers = self.required_peers();
        let watched = match self.state {
            GroupState::Ready => required_peers,
            GroupState::Creating { .. } | GroupState::Broken(_) => {
                self.watched.intersection(&required_peers).copied().collect()
            }
        };
        let watched_before = std::mem::replace(&mut self.watched, watched.clone());
        let (now, period) = (node.out.now, node.config.heartbeat);
        watched.difference(&watched_before).for_each(|sp| node.peers.watch(now, period, *sp, true));
        watched_before.difference(&watched).for_each(|sp| node.peers.watch(now, period, *sp, false));
    }
}
