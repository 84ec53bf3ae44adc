//! Watches the peers that a group depends on: neighbours in the ring, and members that owe for an open instance.
//!
//! Invariant: once the group is made, a service process is watched as long as the group depends on it. Never detects a
//! death itself: the link does.

use std::collections::BTreeSet;

use super::losses::Losses;
use super::{Group, GroupState};
use crate::endpoint::NodeState;
use crate::group::members::Members;
use crate::ids::SpId;

/// The peers that a group watches.
#[derive(Debug)]
pub(super) struct WatchedPeers {
    watched: BTreeSet<SpId>,
    /// Steps round the ring, right and left, to the nearest service processes that still serve a rank.
    nearest: [usize; 2],
}

impl WatchedPeers {
    pub(super) fn new() -> Self {
        WatchedPeers { watched: BTreeSet::new(), nearest: [1; 2] }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SpId> {
        self.watched.iter().copied()
    }

    pub(super) fn contains(&self, sp: SpId) -> bool {
        self.watched.contains(&sp)
    }

    /// The peer is lost with its link, which is not watched any more.
    pub(super) fn forget(&mut self, sp: SpId) {
        self.watched.remove(&sp);
    }

    /// The nearest serving neighbours. Members that left never return, so the search continues from the last result.
    fn neighbours(&mut self, members: &Members, losses: &Losses) -> impl Iterator<Item = SpId> + use<> {
        let (n, me) = (members.sps.len(), members.me as usize);
        let places = [|me, step, n| (me + step) % n, |me, step, n| (me + n - step) % n];
        let found = std::array::from_fn::<_, 2, _>(|side| {
            let place: fn(usize, usize, usize) -> usize = places[side];
            let step = (self.nearest[side]..n).find(|step| losses.serves(place(me, *step, n)));
            self.nearest[side] = step.unwrap_or(n);
            step.map(|step| members.sps[place(me, step, n)])
        });
        found.into_iter().flatten()
    }

    /// Starts or ends the watch of one peer.
    fn change(&mut self, node: &mut NodeState, sp: SpId, watch: bool) {
        let changed = if watch { self.watched.insert(sp) } else { self.watched.remove(&sp) };
        if changed {
            node.peers.watch(node.out.now, node.config.heartbeat, sp, watch);
        }
    }

    /// Watches exactly these peers.
    fn replace(&mut self, node: &mut NodeState, watched: BTreeSet<SpId>) {
        let before = std::mem::replace(&mut self.watched, watched);
        let (now, period) = (node.out.now, node.config.heartbeat);
        self.watched.difference(&before).for_each(|sp| node.peers.watch(now, period, *sp, true));
        before.difference(&self.watched).for_each(|sp| node.peers.watch(now, period, *sp, false));
    }
}

impl Group {
    /// The peers that must be alive: the nearest service processes on both sides of the ring that still serve a rank,
    /// and members that have left but may owe us something for an open instance. Lost members are not among them.
    fn required_peers(&mut self) -> BTreeSet<SpId> {
        let me = self.members.me as usize;
        let owing = (0..self.members.sps.len()).filter(|at| *at != me && self.is_awaited(*at));
        let owing: Vec<SpId> = owing.map(|at| self.members.sps[at]).collect();
        self.watched.neighbours(&self.members, &self.losses).chain(owing).collect()
    }

    /// Whether a member owes something that it may still send.
    fn is_awaited(&self, at: usize) -> bool {
        self.owes(at) && !self.links.is_lost(self.members.sps[at])
    }

    pub(super) fn owes(&self, at: usize) -> bool {
        self.instances.oldest().is_some_and(|oldest| self.losses.owes(at, oldest))
    }

    /// Like [`Self::rearm_watches`], after a loss at one service process alone: the debts of others have not changed.
    pub(super) fn rearm_watches_after_loss(&mut self, node: &mut NodeState, at: usize) {
        if self.losses.serves(at) {
            return;
        }
        let (sp, owes) = (self.members.sps[at], self.is_awaited(at));
        if !owes {
            self.watched.change(node, sp, false);
        }
        for sp in self.watched.neighbours(&self.members, &self.losses).chain(owes.then_some(sp)) {
            self.watched.change(node, sp, true);
        }
        debug_assert_eq!(self.required_peers(), self.watched.watched, "what is kept is what a look at all gives");
    }

    /// Watches the peers that the group depends on, once the group is made.
    pub(super) fn rearm_watches(&mut self, node: &mut NodeState) {
        let required_peers = self.required_peers();
        let watched = match self.state {
            GroupState::Ready => required_peers,
            GroupState::Creating { .. } | GroupState::Broken(_) => {
                self.watched.iter().filter(|sp| required_peers.contains(sp)).collect()
            }
        };
        self.watched.replace(node, watched);
    }
}
