//! Groups come and go: made when a local rank asks, told of messages, retired when all have left.

use std::collections::btree_map::Entry;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use outboard_plan::Rank;

use super::{Addresses, FailedGroup, Group, State};
use crate::endpoint::offers::{Asker, Withdrawn};
use crate::endpoint::{Endpoint, MAX_FAILED, MAX_RETIRED, Node};
use crate::error::{CollectiveError, GroupError, Refusal};
use crate::group::barrier::Barrier;
use crate::group::members::Members;
use crate::ids::{GroupHandle, Instant, OfferId, SpId};
use crate::instance::tagged::TAGGED;
use crate::interface::{Event, GroupSpec};
use crate::outbox::Quota;
use crate::wire::{GroupMessage, MAX_ASKER, MAX_OFFERS, Message};

/// How much longer than a rank of its own a service process waits for one elsewhere, which is missed there first.
const LOCAL_FIRST: Duration = Duration::from_millis(250);
/// How long a group may be made before it is looked at first: longer than ranks that call together are apart.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// How often a group is looked at, times its service processes: a look says one thing to each.
const LOOK_PER_PEER: Duration = Duration::from_millis(10);

impl Endpoint {
    pub(in crate::endpoint) fn create_group(&mut self, spec: &GroupSpec, rank: Rank) {
        if let Err(error) = self.try_create_group(spec, rank) {
            self.node.out.events.push_back(Event::GroupReady { group: spec.handle, rank, result: Err(error) });
        }
    }

    fn try_create_group(&mut self, spec: &GroupSpec, rank: Rank) -> Result<(), GroupError> {
        let members = Members::new(spec, self.node.id, &self.node.config).map_err(GroupError::Invalid)?;
        if members.local(rank).is_none() {
            return Err(GroupError::Invalid("the rank that asks is not served here"));
        }
        let offer = spec.members[rank.0 as usize].offer;
        if let Some(why) = self.lacks(spec.handle, &members) {
            // Members ask for the rank, and are answered.
            let why = Withdrawn::Refused(why);
            self.withdraw_offer(offer, why);
            return Err(why.error(rank).into());
        }
        self.offers.take_up(offer);
        let handle = spec.handle;
        if let Some(g) = self.groups.get_mut(&handle) {
            if g.members.fingerprint == members.fingerprint {
                self.offers.await_rank(offer, handle, rank, false);
                return g.join(&mut self.node, rank);
            }
            let error = CollectiveError::HandleTaken(handle);
            self.refuse(spec, &members, &error);
            return Err(error.into());
        }
        if let Some(failed) = FailedGroup::find(&self.failed_groups, handle, members.fingerprint) {
            return Err(GroupError::Failed(failed.error.clone()));
        }
        self.retired.retain(|(retired, _)| *retired != handle);
        self.introduce(spec);
        for channel in &members.channels {
            self.node.out.events.push_back(Event::Join { channel: *channel, group: handle, key: members.key });
        }
        let now = self.node.out.now;
        members.others().for_each(|sp| self.node.peers.count_group(now, sp, true));
        assert!(self.node.out.hold(Quota::Tables, members.bytes()), "there was room");
        for local in members.locals.iter().filter(|local| **local != rank) {
            self.offers.await_rank(spec.members[local.0 as usize].offer, handle, *local, true);
        }
        let group = self.groups.entry(handle).or_insert(Group::new(members, spec, now));
        self.looks.change(handle, None, group.look_next(&self.node));
        for (from, message) in self.early.take(handle) {
            self.route_message(from, message, 0);
        }
        let Some(group) = self.groups.get_mut(&handle) else { unreachable!("groups go when nothing is left to do") };
        group.join(&mut self.node, rank)?;
        let offers = &self.offers;
        group.fail_by_withdrawn(&mut self.node, |offer| offers.withdrawn(offer));
        Ok(())
    }

    /// What there is no room for.
    fn lacks(&self, handle: GroupHandle, members: &Members) -> Option<Refusal> {
        let Node { peers, out, config, .. } = &self.node;
        if !peers.has_room(members.others(), config) {
            Some(Refusal::Peers)
        } else if !self.groups.contains_key(&handle) && !out.has_room(Quota::Tables, members.bytes()) {
            Some(Refusal::Tables)
        } else {
            None
        }
    }

    /// A rank here does not ask for its group any more.
    pub(in crate::endpoint) fn withdraw_offer(&mut self, offer: OfferId, why: Withdrawn) {
        for Asker { sp, group, fingerprint, rank } in self.offers.withdraw(self.node.out.now, offer, why) {
            let body = GroupMessage::Refuse { fingerprint, error: why.error(rank) };
            self.node.peers.note_asking(sp, false);
            self.node.push_message(sp, &Message::Group { group, body });
        }
        for handle in self.offers.awaiting(offer) {
            let Some(g) = self.groups.get_mut(&handle) else { continue };
            g.fail_by_withdrawn(&mut self.node, |one| (one == offer).then_some(why));
        }
    }

    /// The driver refuses a rank here a group, of which others here may be.
    pub(in crate::endpoint) fn refuse_group(&mut self, spec: &GroupSpec, rank: Rank, why: Refusal) {
        let Ok(members) = Members::new(spec, self.node.id, &self.node.config) else { return };
        self.offers.take_up(spec.members[rank.0 as usize].offer);
        let (handle, fingerprint) = (spec.handle, members.fingerprint);
        let error = CollectiveError::Refused { rank, why };
        match self.groups.get_mut(&handle) {
            Some(g) if g.members.fingerprint == fingerprint => g.break_up(&mut self.node, error, true),
            // Another group has the handle, so that this one could not be made anyway.
            Some(_) => self.refuse(spec, &members, &error),
            None if FailedGroup::find(&self.failed_groups, handle, fingerprint).is_some() => {}
            None => {
                self.refuse(spec, &members, &error);
                self.remember_failed(FailedGroup { handle, fingerprint, error, addresses: addresses(spec) });
            }
        }
    }

    fn remember_failed(&mut self, failed: FailedGroup) {
        if self.failed_groups.len() >= MAX_FAILED {
            self.failed_groups.pop_front();
        }
        self.failed_groups.push_back(failed);
    }

    /// Somebody makes a group that is not known here, and misses these ranks.
    fn answer_ask(&mut self, (from, address): (SpId, &Arc<[u8]>), ask: Asker, offers: &[(Rank, OfferId)]) {
        let mut ours = false;
        for &(rank, offer) in offers {
            ours |= self.offers.note_asker(offer, Asker { rank, ..ask });
        }
        // The offers may be forgotten here: nothing is known of their ranks then.
        if !ours || address.is_empty() {
            return;
        }
        self.node.meet_peer(from, address);
        self.node.peers.note_asking(from, true);
        let withdrawn = offers.iter().find_map(|(rank, offer)| Some(self.offers.withdrawn(*offer)?.error(*rank)));
        if let Some(error) = withdrawn {
            let body = GroupMessage::Refuse { fingerprint: ask.fingerprint, error };
            self.node.push_message(from, &Message::Group { group: ask.group, body });
        }
    }

    /// Notes where the service processes of a group are.
    fn introduce(&mut self, spec: &GroupSpec) {
        let mut seen = BTreeSet::from([self.node.id]);
        for m in &spec.members {
            if seen.insert(m.sp) {
                self.node.meet_peer(m.sp, &m.address);
            }
        }
    }

    /// The group cannot be made: all its service processes are notified, so that none of them waits.
    fn refuse(&mut self, spec: &GroupSpec, members: &Members, error: &CollectiveError) {
        self.introduce(spec);
        let (group, fingerprint) = (members.handle, members.fingerprint);
        let message = Message::abort(group, fingerprint, error.clone());
        self.node.out.messages.extend(members.others().map(|sp| (sp, message.clone())));
    }

    /// Looks at the groups for which it is time.
    pub(in crate::endpoint) fn look_at_groups(&mut self) {
        while let Some(handle) = self.looks.pop_due(self.node.out.now) {
            let Some(g) = self.groups.get_mut(&handle) else { continue };
            g.look(&mut self.node);
            self.looks.change(handle, None, g.look_next(&self.node));
        }
    }

    pub(in crate::endpoint) fn route_message(&mut self, from: SpId, message: Message, payload_len: u32) {
        let Message::Group { group: handle, body } = message else { return };
        let about = |g: &&mut Group| body.fingerprint().is_none_or(|fingerprint| fingerprint == g.members.fingerprint);
        let Some(g) = self.groups.get_mut(&handle).filter(about) else {
            return self.handle_unknown(from, handle, body);
        };
        // A fabric that proves no names may name us.
        let Some(from_index) = g.members.index_of(from).filter(|at| *at != g.members.me) else {
            return self.node.out.violation(Some(from), "a message for a group it is not in");
        };
        let fits = payload_len == 0 || body.carries();
        if !fits || !g.handle_message(&mut self.node, (from, from_index), body, payload_len) {
            self.node.out.violation(Some(from), "a message that cannot come now");
            // Its link does not send it again, and some other member may have to be told what it said.
            g.break_up(&mut self.node, CollectiveError::Protocol(from), true);
        }
    }

    /// A message about a group that nobody here has asked for, or that has ended.
    fn handle_unknown(&mut self, from: SpId, handle: GroupHandle, body: GroupMessage) {
        if let GroupMessage::Create { fingerprint, .. }
        | GroupMessage::Ask { fingerprint, .. }
        | GroupMessage::Waits { fingerprint, .. } = body
            && let Some(failed) = FailedGroup::find(&self.failed_groups, handle, fingerprint)
        {
            let abort = Message::abort(handle, fingerprint, failed.error.clone());
            let Some(address) = failed.addresses.get(&from) else { return };
            self.node.meet_peer(from, address);
            return self.node.push_message(from, &abort);
        }
        if let GroupMessage::Ask { fingerprint, asker, offers } = body {
            if self.retired.contains(&(handle, fingerprint)) {
                return self.say_unheard((from, &asker), handle);
            }
            let ask = Asker { sp: from, group: handle, fingerprint, rank: Rank(0) };
            return self.answer_ask((from, &asker), ask, &offers);
        }
        // Where another group has the handle, whoever asks for this one is told so.
        let ended = self.groups.contains_key(&handle) || self.retired.iter().any(|(retired, _)| *retired == handle);
        if ended || matches!(body, GroupMessage::Refuse { .. } | GroupMessage::Fails { .. }) {
            return;
        }
        // Payload is dropped: no call precedes the barrier that makes the group, so a message of one ends the group.
        if !self.early.keep(self.node.out.now, from, Message::Group { group: handle, body }) {
            self.node.out.violation(Some(from), "a message for a group that is not known");
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
        for rank in &members.locals {
            self.offers.await_rank(group.offers[rank.0 as usize], handle, *rank, false);
        }
        self.node.out.release(Quota::Tables, members.bytes() + group.tagged.kept());
        if self.retired.len() >= MAX_RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back((handle, members.fingerprint));
        let since = (self.node.out.now, self.node.config.heartbeat);
        group.watched.iter().for_each(|sp| self.node.peers.watch(since, *sp, false));
        let kept = members.others().filter(|sp| !group.cut_off.contains(sp));
        kept.for_each(|sp| self.node.peers.count_group(self.node.out.now, sp, false));
        for channel in &members.channels {
            self.node.out.events.push_back(Event::Leave { channel: *channel, group: handle });
        }
        if let State::Broken(error) = group.state {
            let (fingerprint, addresses) = (group.members.fingerprint, group.addresses);
            self.remember_failed(FailedGroup { handle, fingerprint, error, addresses });
        }
    }
}

pub(super) fn addresses(spec: &GroupSpec) -> Addresses {
    spec.members.iter().map(|member| (member.sp, Arc::clone(&member.address))).collect()
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
        let period = match (&self.state, self.look_at) {
            (State::Creating { .. }, None) => FIRST_LOOK,
            _ => node.config.heartbeat.max(LOOK_PER_PEER * self.members.sps.len() as u32),
        };
        let at = self.makes_until(node).into_iter().chain([node.out.now + period]).min();
        self.look_at = at;
        at
    }

    /// Something takes long. Whoever is concerned is asked whether it fails there. Links of which nobody else would
    /// notice that they are dead, since only this group needs them, show it by that.
    fn look(&mut self, node: &mut Node) {
        let oldest = (self.instances.keys().next().copied(), self.tagged.oldest_call());
        let seen = std::mem::replace(&mut self.seen, oldest);
        let waits_still = (oldest.0.is_some() && oldest.0 == seen.0) || (oldest.1.is_some() && oldest.1 == seen.1);
        match &self.state {
            State::Creating { barrier, .. } => {
                if self.makes_until(node).is_some_and(|until| until <= node.out.now) {
                    return self.make_no_more(node);
                }
                if let Some(awaited) = barrier.awaited() {
                    self.ask(node, awaited);
                }
            }
            State::Ready => {
                if !waits_still {
                    return;
                }
                // Whatever fails there fails the newest, too.
                let newest = self.instances.keys().next_back().copied().unwrap_or(TAGGED);
                let oldest = self.instances.first_key_value().map(|(instance, i)| {
                    let (rank, signature) = i.signature();
                    (*instance, signature, rank)
                });
                let fingerprint = self.members.fingerprint;
                self.tell_others(node, GroupMessage::Waits { fingerprint, newest, oldest });
            }
            State::Broken(_) => {}
        }
    }

    /// When the group is given up, unless it is made. Who misses a rank of its own speaks first, then who misses its
    /// left neighbour. The others cannot tell who is missing and speak last: they may have been asked earlier.
    fn makes_until(&self, node: &Node) -> Option<Instant> {
        let State::Creating { barrier, .. } = &self.state else { return None };
        let timeout = node.config.group_timeout?;
        let grace = match barrier.round() {
            None => Duration::ZERO,
            Some(0) => LOCAL_FIRST,
            Some(_) => timeout + LOCAL_FIRST * 2,
        };
        Some(self.since + timeout + grace)
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

    /// Asks a member for the ranks that it serves: its step does not come, or there is another link with it.
    pub(super) fn ask(&self, node: &mut Node, awaited: u32) {
        let (group, fingerprint, to) =
            (self.members.handle, self.members.fingerprint, self.members.sps[awaited as usize]);
        let own = &self.addresses[&node.id];
        let asker: Arc<[u8]> = if own.len() <= MAX_ASKER { Arc::clone(own) } else { Arc::from([]) };
        if !asker.is_empty() {
            node.peers.expect_answer(node.out.now, to);
        }
        let served = self.members.of_rank.iter().zip(&self.offers).zip(0..).filter(|((at, _), _)| **at == awaited);
        let served: Vec<(Rank, OfferId)> = served.map(|((_, offer), rank)| (Rank(rank), *offer)).collect();
        for offers in served.chunks(MAX_OFFERS) {
            let body = GroupMessage::Ask { fingerprint, asker: Arc::clone(&asker), offers: offers.to_vec() };
            node.out.messages.push_back((to, Message::Group { group, body }));
        }
    }

    /// The group has broken: a member hears why.
    pub(super) fn say_broken(&self, node: &mut Node, to: SpId, error: &CollectiveError) {
        node.meet_peer(to, &self.addresses[&to]);
        let (group, fingerprint) = (self.members.handle, self.members.fingerprint);
        node.out.messages.push_back((to, Message::abort(group, fingerprint, error.clone())));
    }

    /// Whether a rank here that has not asked for the group cannot do so any more: then there will be none.
    fn fail_by_withdrawn(&mut self, node: &mut Node, withdrawn: impl Fn(OfferId) -> Option<Withdrawn>) {
        if !matches!(self.state, State::Creating { .. }) {
            return;
        }
        let mut missing = self.members.locals.iter().filter(|rank| !self.asked.contains(rank));
        let error = missing.find_map(|rank| Some(withdrawn(self.offers[rank.0 as usize])?.error(*rank)));
        if let Some(error) = error {
            self.break_up(node, error, true);
        }
    }

    /// A member reports that its rank cannot ask for the group any more. False if it cannot say so.
    pub(super) fn handle_refuse(&mut self, node: &mut Node, from: SpId, error: CollectiveError) -> bool {
        let (CollectiveError::RankLost(rank) | CollectiveError::Refused { rank, .. }) = error else { return false };
        if !self.members.has_rank(rank) || self.members.sp_of(rank) != from {
            return false;
        }
        self.break_up(node, error, true);
        true
    }

    /// Somebody makes the group still. Whoever does not know that it has broken was not told, or its link has begun
    /// anew; a step that it misses may have come when it had no room for it.
    pub(super) fn handle_ask(&mut self, node: &mut Node, from: u32) {
        let said = match &self.state {
            State::Creating { barrier, .. } => barrier.sent_to(from),
            State::Ready => Barrier::round_between(self.members.sps.len() as u32, self.members.me, from),
            State::Broken(error) => return self.say_broken(node, self.members.sps[from as usize], error),
        };
        self.send_create(node, said.map(|round| (from, round)).into_iter().collect());
    }
}
