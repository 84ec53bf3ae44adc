//! Creates a group when a local rank requests it, routes messages to it, and retires it when all have left.

use std::collections::btree_map::Entry;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use outboard_plan::Rank;

use super::{Addresses, FailedGroup, Group, GroupState, Sender};
use crate::effects::Quota;
use crate::endpoint::offers::{OfferWaiter, Withdrawn};
use crate::endpoint::{Endpoint, MAX_FAILED, MAX_RETIRED, NodeState};
use crate::error::{CollectiveError, GroupError, GroupRefusal, Rejection};
use crate::group::barrier::Barrier;
use crate::group::members::Members;
use crate::ids::{GroupHandle, Instant, OfferId, SpId};
use crate::interface::{Event, GroupSpec};
use crate::wire::{GroupMessage, MAX_ADDRESS, MAX_OFFERS, Message};

/// Extra wait for remote ranks, so that the service process of a missing rank reports it first.
const LOCAL_FIRST: Duration = Duration::from_millis(250);

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
        if let Some(why) = self.missing_resource(spec.handle, &members) {
            // Members that request the rank get an answer.
            let why = Withdrawn::Refused(why);
            self.withdraw_offer(offer, why);
            return Err(why.error(rank).into());
        }
        self.offers.redeem(offer);
        let handle = spec.handle;
        if let Some(g) = self.groups.get_mut(&handle) {
            if g.members.fingerprint == members.fingerprint {
                self.offers.set_awaited(offer, handle, rank, false);
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
        self.connect_members(spec);
        for channel in &members.channels {
            self.node.out.events.push_back(Event::Join { channel: *channel, group: handle, key: members.key });
        }
        let now = self.node.out.now;
        members.others().for_each(|sp| self.node.peers.count_group(now, sp, true));
        assert!(self.node.out.hold(Quota::Tables, members.bytes()), "there was room");
        for local in members.locals.iter().filter(|local| **local != rank) {
            self.offers.set_awaited(spec.members[local.0 as usize].offer, handle, *local, true);
        }
        let group = self.groups.entry(handle).or_insert(Group::new(members, spec, now));
        self.group_checks.change(handle, None, group.next_check(&self.node));
        for (from, message) in self.pending_group_messages.take(handle) {
            self.route_message(from, message, 0);
        }
        let Some(group) = self.groups.get_mut(&handle) else { unreachable!("groups go when nothing is left to do") };
        group.join(&mut self.node, rank)?;
        let offers = &self.offers;
        group.fail_by_withdrawn(&mut self.node, |offer| offers.withdrawn(offer));
        Ok(())
    }

    /// The resource that the group lacks.
    fn missing_resource(&self, handle: GroupHandle, members: &Members) -> Option<GroupRefusal> {
        let NodeState { peers, out, config, .. } = &self.node;
        if !peers.has_room(members.others(), config) {
            Some(GroupRefusal::Peers)
        } else if !self.groups.contains_key(&handle) && !out.has_room(Quota::Tables, members.bytes()) {
            Some(GroupRefusal::Tables)
        } else {
            None
        }
    }

    /// A local rank will not request its group any more.
    pub(in crate::endpoint) fn withdraw_offer(&mut self, offer: OfferId, why: Withdrawn) {
        for OfferWaiter { sp, group, fingerprint, rank } in self.offers.withdraw(self.node.out.now, offer, why) {
            let body = GroupMessage::Refuse { fingerprint, error: why.error(rank) };
            self.node.peers.set_awaits_rank(sp, false);
            self.node.push_message(sp, &Message::Group { group, body });
        }
        for handle in self.offers.groups_awaiting(offer) {
            let Some(g) = self.groups.get_mut(&handle) else { continue };
            g.fail_by_withdrawn(&mut self.node, |one| (one == offer).then_some(why));
        }
    }

    /// The driver refuses a group to a local rank. Other local ranks may be members.
    pub(in crate::endpoint) fn refuse_group(&mut self, spec: &GroupSpec, rank: Rank, why: GroupRefusal) {
        let Ok(members) = Members::new(spec, self.node.id, &self.node.config) else { return };
        self.offers.redeem(spec.members[rank.0 as usize].offer);
        let (handle, fingerprint) = (spec.handle, members.fingerprint);
        let error = CollectiveError::Refused { rank, why };
        match self.groups.get_mut(&handle) {
            Some(g) if g.members.fingerprint == fingerprint => g.break_up(&mut self.node, error, true),
            // Another group has the handle, so the requested group could not be made anyway.
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

    /// A service process makes a group that is not known here, and waits for these local ranks.
    fn answer_step_request(
        &mut self,
        from: SpId,
        address: &Arc<[u8]>,
        waiter: OfferWaiter,
        offers: &[(Rank, OfferId)],
    ) {
        let mut ours = false;
        for &(rank, offer) in offers {
            ours |= self.offers.add_waiter(offer, OfferWaiter { rank, ..waiter });
        }
        // If the offers are forgotten here, nothing is known of their ranks.
        if !ours || address.is_empty() {
            return;
        }
        self.node.connect_peer(from, address);
        self.node.peers.set_awaits_rank(from, true);
        let withdrawn = offers.iter().find_map(|(rank, offer)| Some(self.offers.withdrawn(*offer)?.error(*rank)));
        if let Some(error) = withdrawn {
            let body = GroupMessage::Refuse { fingerprint: waiter.fingerprint, error };
            self.node.push_message(from, &Message::Group { group: waiter.group, body });
        }
    }

    /// Notes the addresses of a group's service processes.
    fn connect_members(&mut self, spec: &GroupSpec) {
        let mut seen = BTreeSet::from([self.node.id]);
        for m in &spec.members {
            if seen.insert(m.sp) {
                self.node.connect_peer(m.sp, &m.address);
            }
        }
    }

    /// The group cannot be made: all its service processes are notified, so that none of them waits.
    fn refuse(&mut self, spec: &GroupSpec, members: &Members, error: &CollectiveError) {
        self.connect_members(spec);
        let (group, fingerprint) = (members.handle, members.fingerprint);
        let message = Message::abort(group, fingerprint, error.clone());
        self.node.out.messages.extend(members.others().map(|sp| (sp, message.clone())));
    }

    /// Examines the groups that are due.
    pub(in crate::endpoint) fn check_groups(&mut self) {
        while let Some(handle) = self.group_checks.pop_due(self.node.out.now) {
            let Some(g) = self.groups.get_mut(&handle) else { continue };
            g.check(&mut self.node);
            self.group_checks.change(handle, None, g.next_check(&self.node));
        }
    }

    pub(in crate::endpoint) fn route_message(&mut self, from: SpId, message: Message, payload_len: u32) {
        let Message::Group { group: handle, body } = message else { return };
        let about = |g: &&mut Group| body.fingerprint().is_none_or(|fingerprint| fingerprint == g.members.fingerprint);
        let Some(g) = self.groups.get_mut(&handle).filter(about) else {
            return self.handle_unknown(from, handle, body);
        };
        // Over a fabric without authentication, a peer may use our own ID.
        let Some(index) = g.members.index_of(from).filter(|at| *at != g.members.me) else {
            return self.node.out.violation(Some(from), "a message for a group it is not in");
        };
        let handled = if payload_len == 0 || body.has_payload() {
            g.handle_message(&mut self.node, Sender { sp: from, index }, body, payload_len)
        } else {
            Err("a payload with a message that carries none")
        };
        if let Err(violation) = handled {
            self.node.out.violation(Some(from), violation);
            // The link does not send the message again, and its contents may matter to other members.
            g.break_up(&mut self.node, CollectiveError::Protocol(from), true);
        }
    }

    /// A message about a group that no local rank has requested, or that has ended.
    fn handle_unknown(&mut self, from: SpId, handle: GroupHandle, body: GroupMessage) {
        if let GroupMessage::Create { fingerprint, .. }
        | GroupMessage::RequestStep { fingerprint, .. }
        | GroupMessage::QueryFailures { fingerprint, .. } = body
            && let Some(failed) = FailedGroup::find(&self.failed_groups, handle, fingerprint)
        {
            let abort = Message::abort(handle, fingerprint, failed.error.clone());
            let Some(address) = failed.addresses.get(&from) else { return };
            self.node.connect_peer(from, address);
            return self.node.push_message(from, &abort);
        }
        if let GroupMessage::RequestStep { fingerprint, address, offers } = body {
            if self.retired.contains(&(handle, fingerprint)) {
                return self.send_undelivered(from, &address, handle);
            }
            let waiter = OfferWaiter { sp: from, group: handle, fingerprint, rank: Rank(0) };
            return self.answer_step_request(from, &address, waiter, &offers);
        }
        // If another group has the handle, a rank that requests the unknown group gets `HandleTaken`.
        let ended = self.groups.contains_key(&handle) || self.retired.iter().any(|(retired, _)| *retired == handle);
        if ended || matches!(body, GroupMessage::Refuse { .. } | GroupMessage::Failures { .. }) {
            return;
        }
        // Payload is dropped: no call precedes the barrier that makes the group, so a call's message ends the group.
        if !self.pending_group_messages.keep(self.node.out.now, from, Message::Group { group: handle, body }) {
            self.node.out.violation(Some(from), "a message for a group that is not known");
        }
    }

    pub(in crate::endpoint) fn leave_group(&mut self, handle: GroupHandle, rank: Rank) {
        self.groups.get_mut(&handle).into_iter().for_each(|g| g.leave(&mut self.node, rank));
    }

    /// Retires the groups that all local ranks have left.
    pub(in crate::endpoint) fn retire_left(&mut self) {
        while let Some(handle) = self.node.left.pop() {
            if let Entry::Occupied(g) = self.groups.entry(handle)
                && g.get().may_retire()
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
            self.offers.set_awaited(group.offers[rank.0 as usize], handle, *rank, false);
        }
        self.node.out.release(Quota::Tables, members.bytes() + group.tagged.table_bytes());
        if self.retired.len() >= MAX_RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back((handle, members.fingerprint));
        let (now, period) = (self.node.out.now, self.node.config.heartbeat);
        group.watched.iter().for_each(|sp| self.node.peers.watch(now, period, sp, false));
        let kept = members.others().filter(|sp| !group.links.is_lost(*sp));
        kept.for_each(|sp| self.node.peers.count_group(self.node.out.now, sp, false));
        for channel in &members.channels {
            self.node.out.events.push_back(Event::Leave { channel: *channel, group: handle });
        }
        if let GroupState::Broken(error) = group.state {
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
    /// When the group is given up. A service process that misses a local rank reports first, then a service process
    /// that misses its left neighbour. The others cannot know the missing rank and report last: their ranks may have
    /// requested the group earlier.
    pub(super) fn making_deadline(&self, node: &NodeState) -> Option<Instant> {
        let GroupState::Creating { barrier, .. } = &self.state else { return None };
        let timeout = node.config.group_timeout?;
        let grace = match barrier.round() {
            None => Duration::ZERO,
            Some(0) => LOCAL_FIRST,
            Some(_) => timeout + LOCAL_FIRST * 2,
        };
        Some(self.since + timeout + grace)
    }

    /// The time limit for making the group is over.
    pub(super) fn give_up_making(&mut self, node: &mut NodeState) {
        let GroupState::Creating { barrier, .. } = &self.state else { return };
        let missing = self.members.locals.iter().copied().find(|rank| !self.ranks.has_requested(*rank));
        let rank = match (missing, barrier.awaited()) {
            (Some(rank), _) => rank,
            (None, awaited) => self.members.lowest_rank(awaited.expect("whoever has entered waits for a member")),
        };
        let after = node.config.group_timeout.unwrap_or_default();
        self.break_up(node, CollectiveError::GroupNotRequested { rank, after_ms: after.as_millis() as u64 }, true);
    }

    /// Requests a member's ranks: the member's step has not come, or the link with it is new.
    pub(super) fn request_step(&self, node: &mut NodeState, awaited: u32) {
        let (group, fingerprint, to) =
            (self.members.handle, self.members.fingerprint, self.members.sps[awaited as usize]);
        let own = &self.addresses[&node.id];
        let address: Arc<[u8]> = if own.len() <= MAX_ADDRESS { Arc::clone(own) } else { Arc::from([]) };
        if !address.is_empty() {
            node.peers.expect_answer(node.out.now, to);
        }
        let served = self.members.of_rank.iter().zip(&self.offers).zip(0..).filter(|((at, _), _)| **at == awaited);
        let served: Vec<(Rank, OfferId)> = served.map(|((_, offer), rank)| (Rank(rank), *offer)).collect();
        for offers in served.chunks(MAX_OFFERS) {
            let body =
                GroupMessage::RequestStep { fingerprint, address: Arc::clone(&address), offers: offers.to_vec() };
            node.out.messages.push_back((to, Message::Group { group, body }));
        }
    }

    /// The group has broken: sends a member the reason.
    pub(super) fn report_failure(&self, node: &mut NodeState, to: SpId, error: &CollectiveError) {
        node.connect_peer(to, &self.addresses[&to]);
        let (group, fingerprint) = (self.members.handle, self.members.fingerprint);
        node.out.messages.push_back((to, Message::abort(group, fingerprint, error.clone())));
    }

    /// Breaks the group if a local rank has not requested the group and cannot request it any more.
    fn fail_by_withdrawn(&mut self, node: &mut NodeState, withdrawn: impl Fn(OfferId) -> Option<Withdrawn>) {
        if !matches!(self.state, GroupState::Creating { .. }) {
            return;
        }
        let mut missing = self.members.locals.iter().filter(|rank| !self.ranks.has_requested(**rank));
        let error = missing.find_map(|rank| Some(withdrawn(self.offers[rank.0 as usize])?.error(*rank)));
        if let Some(error) = error {
            self.break_up(node, error, true);
        }
    }

    /// A member reports that its rank cannot request the group any more.
    pub(super) fn handle_refuse(&self, from: SpId, error: CollectiveError) -> Result<(), Rejection> {
        let (CollectiveError::RankLost(rank) | CollectiveError::Refused { rank, .. }) = error else {
            return Err("a refusal without a rank".into());
        };
        self.check_served(rank, from)?;
        Err(error.into())
    }

    /// Checks that `from` serves the rank.
    pub(super) fn check_served(&self, rank: Rank, from: SpId) -> Result<(), Rejection> {
        let served = self.members.has_rank(rank) && self.members.sp_of(rank) == from;
        Rejection::unless(served, "news of a rank that its sender does not serve")
    }

    /// A member is still making the group. If the group has broken, the news was not sent to the member, or was lost
    /// with a link. A step that the member misses may have been dropped for lack of room.
    pub(super) fn handle_step_request(&mut self, node: &mut NodeState, from: u32) {
        let said = match &self.state {
            GroupState::Creating { barrier, .. } => barrier.sent_to(from),
            GroupState::Ready => Barrier::round_between(self.members.sps.len() as u32, self.members.me, from),
            GroupState::Broken(error) => return self.report_failure(node, self.members.sps[from as usize], error),
        };
        self.send_create(node, said.map(|round| (from, round)).into_iter().collect());
    }
}
