//! Groups come and go: made when a local rank asks, told of messages, retired when all have left.

use std::collections::btree_map::Entry;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use outboard_plan::Rank;

use super::{FailedGroup, Group, State, WINDOW};
use crate::endpoint::peers::Loss;
use crate::endpoint::{Endpoint, MAX_EARLY, MAX_FAILED, MAX_RETIRED, Node};
use crate::error::{CollectiveError, GroupError};
use crate::group::members::Members;
use crate::ids::{Channel, GroupHandle, Instant, SpId};
use crate::instance::tagged::TAGGED;
use crate::interface::{Event, GroupSpec};
use crate::wire::{GroupMessage, Message};

/// How much longer than a rank of its own a service process waits for one elsewhere, which is missed there first.
const LOCAL_FIRST: Duration = Duration::from_millis(250);
/// How often a group is looked at, times its service processes: one message a look goes to each.
const LOOK_PER_PEER: Duration = Duration::from_millis(10);

impl Endpoint {
    pub(in crate::endpoint) fn create_group(&mut self, spec: &GroupSpec, rank: Rank) {
        if let Err(error) = self.try_create_group(spec, rank) {
            self.node.out.events.push_back(Event::GroupReady { group: spec.handle, rank, result: Err(error) });
        }
    }

    fn try_create_group(&mut self, spec: &GroupSpec, rank: Rank) -> Result<(), GroupError> {
        let members = Members::new(spec, self.node.id, &self.node.config, WINDOW).map_err(GroupError::Invalid)?;
        if members.local(rank).is_none() {
            return Err(GroupError::Invalid("the rank that asks is not served here"));
        }
        let handle = spec.handle;
        if let Some(g) = self.groups.get_mut(&handle) {
            if g.members.fingerprint == members.fingerprint {
                return g.join(&mut self.node, rank);
            }
            return Err(self.refuse(spec, &members, CollectiveError::HandleTaken(handle)));
        }
        if let Some(failed) = FailedGroup::find(&self.failed_groups, handle, members.fingerprint) {
            return Err(GroupError::Failed(failed.error.clone()));
        }
        self.retired.retain(|h| *h != handle);
        self.introduce(spec);
        let addresses = spec.members.iter().map(|member| (member.sp, Arc::clone(&member.address))).collect();
        for channel in &members.channels {
            if self.users(*channel).next().is_none() {
                self.node.out.events.push_back(Event::Join(*channel));
            }
            self.channels.insert((*channel, handle));
        }
        let now = self.node.out.now;
        members.others().for_each(|sp| self.node.peers.count_group(now, sp, true));
        let group = self.groups.entry(handle).or_insert(Group::new(members, addresses, now));
        self.looks.change(handle, None, group.look_next(&self.node));
        group.join(&mut self.node, rank)?;
        self.replay_early(handle);
        Ok(())
    }

    fn introduce(&mut self, spec: &GroupSpec) {
        let mut seen = BTreeSet::from([self.node.id]);
        for m in &spec.members {
            if seen.insert(m.sp) {
                self.node.meet_peer(m.sp, &m.address);
            }
        }
    }

    /// The group cannot be made: all its service processes are told, so that nobody waits.
    fn refuse(&mut self, spec: &GroupSpec, members: &Members, error: CollectiveError) -> GroupError {
        self.introduce(spec);
        let (group, fingerprint) = (members.handle, members.fingerprint);
        let message = Message::abort(group, fingerprint, error.clone());
        self.node.out.messages.extend(members.others().map(|sp| (sp, message.clone())));
        error.into()
    }

    /// Looks at the groups for which it is time.
    pub(in crate::endpoint) fn look_at_groups(&mut self) {
        while let Some(handle) = self.looks.pop_due(self.node.out.now) {
            let Some(g) = self.groups.get_mut(&handle) else { continue };
            g.look(&mut self.node);
            self.looks.change(handle, None, g.look_next(&self.node));
        }
    }

    /// Messages that came before the group was asked for here.
    fn replay_early(&mut self, handle: GroupHandle) {
        for (from, all) in std::mem::take(&mut self.early) {
            let (mine, rest): (VecDeque<_>, VecDeque<_>) =
                all.into_iter().partition(|m| matches!(m, Message::Group { group, .. } if *group == handle));
            if !rest.is_empty() {
                self.early.insert(from, rest);
            }
            for message in mine {
                self.route_message(from, message, 0);
            }
        }
    }

    pub(in crate::endpoint) fn route_message(&mut self, from: SpId, message: Message, payload_len: u32) {
        let Message::Group { group: handle, body } = message else { return };
        if payload_len > 0 && !body.carries() {
            return self.node.out.violation(Some(from), "payload with a message that has none");
        }
        let Some(g) = self.groups.get_mut(&handle) else {
            if let GroupMessage::Create { fingerprint, .. } | GroupMessage::Ask { fingerprint } = body
                && let Some(failed) = FailedGroup::find(&self.failed_groups, handle, fingerprint)
            {
                let abort = Message::abort(handle, fingerprint, failed.error.clone());
                let Some(address) = failed.addresses.get(&from) else { return };
                self.node.meet_peer(from, address);
                return self.node.push_message(from, &abort);
            }
            if self.retired.contains(&handle) || matches!(body, GroupMessage::Ask { .. }) {
                return;
            }
            let kept = self.early.get(&from).map_or(0, VecDeque::len);
            // A message with payload cannot be kept; an offer of a collective has none, and may come first.
            if payload_len > 0 || kept >= MAX_EARLY {
                return self.node.out.violation(Some(from), "a message for a group that is not known");
            }
            return self.early.entry(from).or_default().push_back(Message::Group { group: handle, body });
        };
        let Some(from_index) = g.members.index_of(from) else {
            return self.node.out.violation(Some(from), "a message for a group it is not in");
        };
        if !g.handle_message(&mut self.node, (from, from_index), body, payload_len) {
            self.node.out.violation(Some(from), "a message that cannot come now");
        }
    }

    pub(in crate::endpoint) fn leave_group(&mut self, handle: GroupHandle, rank: Rank) {
        self.groups.get_mut(&handle).into_iter().for_each(|g| g.leave(&mut self.node, rank));
    }

    /// Groups that all have left are not known any more.
    pub(in crate::endpoint) fn retire_left(&mut self) {
        while let Some(handle) = self.node.left.pop() {
            if let Entry::Occupied(g) = self.groups.entry(handle)
                && g.get().is_left()
            {
                let group = g.remove();
                self.retire(handle, group);
            }
        }
    }

    fn retire(&mut self, handle: GroupHandle, group: Group) {
        self.node.turns.note_transfer(handle, false);
        let members = &group.members;
        if self.retired.len() >= MAX_RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back(handle);
        let since = (self.node.out.now, self.node.config.heartbeat);
        group.watched.iter().for_each(|sp| self.node.peers.watch(since, *sp, false));
        let kept = members.others().filter(|sp| !group.cut_off.contains(sp));
        kept.for_each(|sp| self.node.peers.count_group(self.node.out.now, sp, false));
        for channel in &members.channels {
            self.channels.remove(&(*channel, handle));
            if self.users(*channel).next().is_none() {
                self.node.out.events.push_back(Event::Leave(*channel));
            }
        }
        if let State::Broken(error) = group.state {
            if self.failed_groups.len() >= MAX_FAILED {
                self.failed_groups.pop_front();
            }
            let (fingerprint, addresses) = (group.members.fingerprint, group.addresses);
            self.failed_groups.push_back(FailedGroup { handle, fingerprint, error, addresses });
        }
    }

    /// The groups that receive a channel.
    fn users(&self, channel: Channel) -> impl Iterator<Item = GroupHandle> + '_ {
        let all = (channel, GroupHandle(0))..=(channel, GroupHandle(u32::MAX));
        self.channels.range(all).map(|(_, group)| *group)
    }
}

impl FailedGroup {
    fn find(all: &VecDeque<FailedGroup>, handle: GroupHandle, fingerprint: u64) -> Option<&FailedGroup> {
        all.iter().find(|failed| (failed.handle, failed.fingerprint) == (handle, fingerprint))
    }
}

impl Group {
    /// When the group is to be looked at, if that is not known yet: regularly, the more seldom the larger it is, while
    /// it is being made or has something in flight.
    pub(in crate::endpoint) fn look_next(&mut self, node: &Node) -> Option<Instant> {
        let waits = match &self.state {
            State::Creating { .. } => true,
            State::Ready => self.in_flight() > 0,
            State::Broken(_) => false,
        };
        if !waits || self.look_at.is_some_and(|at| at > node.out.now) {
            return None;
        }
        let period = node.config.heartbeat.max(LOOK_PER_PEER * self.members.sps.len() as u32);
        let at = self.makes_until(node).into_iter().chain([node.out.now + period]).min();
        self.look_at = at;
        at
    }

    /// Something takes long. Links of which nobody else would notice that they are dead, since only this group needs
    /// them, are made to show it.
    fn look(&mut self, node: &mut Node) {
        let oldest = self.instances.keys().next().copied().or((self.in_flight() > 0).then_some(TAGGED));
        let waits_still = oldest.is_some() && oldest == self.seen;
        self.seen = oldest;
        match &self.state {
            State::Creating { barrier, .. } => {
                if self.makes_until(node).is_some_and(|until| until <= node.out.now) {
                    return self.make_no_more(node);
                }
                if let Some(awaited) = barrier.awaited() {
                    let (group, fingerprint) = (self.members.handle, self.members.fingerprint);
                    let ask = Message::Group { group, body: GroupMessage::Ask { fingerprint } };
                    node.out.messages.push_back((self.members.sps[awaited as usize], ask));
                }
            }
            State::Ready if waits_still => self.members.others().for_each(|sp| node.peers.probe(node.out.now, sp)),
            State::Ready | State::Broken(_) => {}
        }
    }

    /// Until when it is made, or not at all. Whose left neighbour is missing speaks behind those who miss a rank of
    /// their own, and before all others, who cannot tell who is missing: they may have been asked so much earlier.
    fn makes_until(&self, node: &Node) -> Option<Instant> {
        let State::Creating { barrier, since, .. } = &self.state else { return None };
        let timeout = node.config.group_timeout?;
        let grace = match barrier.round() {
            None => Duration::ZERO,
            Some(0) => LOCAL_FIRST,
            Some(_) => timeout + LOCAL_FIRST * 2,
        };
        Some(*since + timeout + grace)
    }

    /// Its time to be made is over.
    fn make_no_more(&mut self, node: &mut Node) {
        let State::Creating { barrier, .. } = &self.state else { return };
        let missing = self.members.locals.iter().copied().find(|rank| !self.asked.contains(rank));
        let rank = match (missing, barrier.awaited()) {
            (Some(rank), _) => rank,
            (None, awaited) => self.members.lowest_rank(awaited.expect("whoever has entered waits for a member")),
        };
        let after = node.config.group_timeout.unwrap_or_default();
        self.break_up(node, CollectiveError::NotAsked { rank, after_ms: after.as_millis() as u64 }, true);
    }

    /// A link is lost. A group of which nothing has come over it is made over the next one: returns whether this is
    /// one. If the other end gave up the group with the old link, it says so. Silence is forgiven once.
    pub(in crate::endpoint) fn survives(&mut self, node: &mut Node, peer: SpId, loss: Loss) -> bool {
        let Some(at) = self.members.index_of(peer) else { return false };
        let State::Creating { barrier, .. } = &self.state else { return false };
        let lost = match loss {
            Loss::Silent => !self.forgiven.insert(peer),
            Loss::Renewed => false,
            Loss::Reported => true,
        };
        if lost || barrier.has_heard(at) {
            return false;
        }
        let steps = barrier.sent_to(at).map(|round| (at, round));
        self.send_create(node, steps.into_iter().collect());
        true
    }

    /// Somebody makes the group still. Whoever does not know that it has broken was not told, or its link has begun
    /// anew.
    pub(super) fn handle_ask(&self, node: &mut Node, from: u32) {
        let Some(error) = self.broken() else { return };
        let (group, fingerprint, to) = (self.members.handle, self.members.fingerprint, self.members.sps[from as usize]);
        node.meet_peer(to, &self.addresses[&to]);
        node.out.messages.push_back((to, Message::abort(group, fingerprint, error.clone())));
    }

    /// Whoever lost a service process could not tell it. It may live, with a link to us.
    pub(super) fn tell_the_lost(&self, node: &mut Node, error: &CollectiveError) {
        if let CollectiveError::PeerLost { sp, .. } = error
            && *sp != node.id
            && self.broken().is_none()
        {
            let (group, fingerprint) = (self.members.handle, self.members.fingerprint);
            node.out.messages.push_back((*sp, Message::abort(group, fingerprint, error.clone())));
        }
    }

    /// A service process is lost with its link, which breaks the group if it is a member.
    pub(in crate::endpoint) fn lose_peer(&mut self, node: &mut Node, peer: SpId) {
        let Some(at) = self.members.index_of(peer) else { return };
        self.watched.remove(&peer);
        self.cut_off.insert(peer);
        let error = CollectiveError::PeerLost { sp: peer, rank: self.members.lowest_rank(at) };
        self.break_up(node, error, true);
    }
}
