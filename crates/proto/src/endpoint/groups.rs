//! Groups: made by a barrier that compares configurations, broken by deaths and disagreement, ended by leaving.
//!
//! | state | event | next |
//! |---|---|---|
//! | Creating | barrier done | Ready, the ranks that requested the group are notified |
//! | Creating | a rank is too late ([`Config::group_timeout`]), or cannot request the group any more | Broken |
//! | Creating, Ready | [`Group::break_up`] | Broken: every collective in flight and to come fails |
//! | Ready, Broken | the last local rank that requested the group leaves | retired |
//!
//! A local rank that requests a broken and retired group later receives the group's error. A rank that leaves or dies
//! takes part in nothing after the last instance that the rank completed: later instances fail on all ranks.
//!
//! | part of a [`Group`] | is for |
//! |---|---|
//! | [`LocalRanks`] | the ranks here: requests, leaving, calls |
//! | [`InstanceTable`] | collectives in flight and ended ones |
//! | [`Losses`] | ranks that have left or died, and the instances that fail with them |
//! | [`MemberLinks`] | what may be lost with a link |
//! | [`WatchedPeers`] | peers that must be alive |
//! | [`GroupChecks`] | examinations of a group that waits |

use std::collections::BTreeMap;
use std::sync::Arc;

use outboard_plan::Rank;

use crate::config::Config;
use crate::effects::Effects;
use crate::error::{CollectiveError, GroupError, Rejection};
use crate::group::barrier::Barrier;
use crate::group::members::Members;
use crate::ids::{GroupHandle, InstanceId, Instant, OfferId, SpId, TAGGED};
use crate::instance::tagged::TaggedCalls;
use crate::instance::{ChunkBatch, Context, FirstCall, Instance};
use crate::interface::{Event, GroupSpec, Milestone};
use crate::multicast::pacing::{Contention, Pace};
use crate::transfer::{Site, Transfer};
use crate::wire::{GroupMessage, InstanceMessage, Message};

mod calls;
mod checks;
mod instances;
mod local_ranks;
mod losses;
mod making;
mod member_links;
mod reconnect;
mod watching;

use self::checks::GroupChecks;
use self::instances::InstanceTable;
use self::local_ranks::LocalRanks;
use self::losses::{Losses, Lost};
use self::member_links::MemberLinks;
use self::watching::WatchedPeers;
use super::turns::InstanceSummary;
use super::{NodeState, SentBatch};

#[derive(Debug)]
enum GroupState {
    Creating { barrier: Barrier, requesters: Vec<Rank> },
    Ready,
    Broken(CollectiveError),
}

/// A group that broke, and that its local ranks have left.
#[derive(Debug)]
pub(super) struct FailedGroup {
    handle: GroupHandle,
    fingerprint: u64,
    error: CollectiveError,
    /// Addresses of the members: some members may not know of the break, since they could not be notified.
    addresses: Addresses,
}

type Addresses = BTreeMap<SpId, Arc<[u8]>>;

/// The service process that sent a message, and its index among the members.
#[derive(Debug, Clone, Copy)]
struct Sender {
    sp: SpId,
    index: u32,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Members,
    addresses: Addresses,
    /// Offers of all members, by rank.
    offers: Vec<OfferId>,
    state: GroupState,
    /// When a local rank first requested the group.
    since: Instant,
    pub(super) ranks: LocalRanks,
    pub(super) instances: InstanceTable,
    /// Tagged calls, beside the instances.
    pub(super) tagged: TaggedCalls,
    /// Messages from rank to rank, of instances and tagged calls.
    pub(super) transfer: Transfer,
    /// Tagged calls in flight at the last count.
    pub(super) messages: usize,
    losses: Losses,
    links: MemberLinks,
    watched: WatchedPeers,
    checks: GroupChecks,
}

impl Group {
    /// A group that no local rank has requested.
    fn new(members: Members, spec: &GroupSpec, since: Instant) -> Self {
        let barrier = Barrier::new(members.me, members.sps.len() as u32);
        Group {
            addresses: making::addresses(spec),
            offers: spec.members.iter().map(|member| member.offer).collect(),
            state: GroupState::Creating { barrier, requesters: Vec::new() },
            since,
            ranks: LocalRanks::new(members.locals.len()),
            instances: InstanceTable::default(),
            tagged: TaggedCalls::default(),
            transfer: Transfer::default(),
            messages: 0,
            losses: Losses::new(&members),
            links: MemberLinks::new(members.sps.len()),
            watched: WatchedPeers::new(),
            checks: GroupChecks::default(),
            members,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.instances.len() + self.tagged.in_flight()
    }

    pub(super) fn instance(&self, instance: InstanceId) -> Option<&Instance> {
        self.instances.get(instance)
    }

    /// An instance that an event changes, and its context.
    pub(super) fn parts<'a>(
        &'a mut self,
        config: &'a Config,
        out: &'a mut Effects,
        instance: InstanceId,
    ) -> (Context<'a>, Option<&'a mut Instance>) {
        out.mark_changed(self.members.handle, instance);
        let (cx, instances, _) = self.all(config, out);
        (cx, instances.get_mut(instance))
    }

    /// All instances and the tagged calls, and their context.
    pub(super) fn all<'a>(
        &'a mut self,
        config: &'a Config,
        out: &'a mut Effects,
    ) -> (Context<'a>, &'a mut InstanceTable, &'a mut TaggedCalls) {
        let cx = Context { config, members: &mut self.members, out, transfer: &mut self.transfer };
        (cx, &mut self.instances, &mut self.tagged)
    }

    /// The messages from rank to rank, and their context.
    pub(super) fn transfer<'a>(&'a mut self, node: &'a mut NodeState) -> (&'a mut Transfer, Site<'a>) {
        let site = Site { config: &node.config, members: &self.members, out: &mut node.out };
        (&mut self.transfer, site)
    }

    /// The part of an instance, or of the messages, in the totals over all instances.
    pub(super) fn summary(&self, instance: InstanceId) -> Option<InstanceSummary> {
        if instance == TAGGED {
            return Some(InstanceSummary::default());
        }
        let found = self.instance(instance)?;
        let timers = [found.poll_timeout(), self.watch_due(instance)];
        let deadline = timers.into_iter().flatten().min();
        Some(InstanceSummary { deadline, multicasts: found.has_batch(), repairs: found.has_repair() })
    }

    /// The instance that a datagram's 16 bits stand for: the instance nearest to the newest known one.
    pub(super) fn expand_epoch(&self, epoch: u16) -> InstanceId {
        self.instances.expand_epoch(epoch)
    }

    pub(super) fn has_ended(&self, instance: InstanceId) -> bool {
        self.instances.has_ended(instance)
    }

    /// Whether this rank is local, has requested the group and has not left it.
    pub(super) fn is_member(&self, rank: Rank) -> bool {
        self.ranks.is_member(rank)
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, GroupState::Ready)
    }

    /// Whether this service process has not entered the barrier that makes the group.
    fn has_not_entered(&self) -> bool {
        matches!(&self.state, GroupState::Creating { barrier, .. } if barrier.round().is_none())
    }

    /// The error that broke the group.
    pub(super) fn broken(&self) -> Option<&CollectiveError> {
        match &self.state {
            GroupState::Broken(error) => Some(error),
            GroupState::Creating { .. } | GroupState::Ready => None,
        }
    }

    /// Why an instance cannot succeed.
    pub(super) fn failure_of(&self, instance: InstanceId) -> Option<CollectiveError> {
        match &self.state {
            GroupState::Broken(e) => Some(e.clone()),
            GroupState::Creating { .. } | GroupState::Ready => {
                self.losses.failure_of(instance).map(|lost| CollectiveError::RankLost(lost.cause))
            }
        }
    }
}

impl Group {
    /// Handles a message of a member. An error names the violation of the protocol.
    fn handle_message(
        &mut self,
        node: &mut NodeState,
        sender: Sender,
        body: GroupMessage,
        payload_len: u32,
    ) -> Result<(), &'static str> {
        let Sender { sp: from, index } = sender;
        let handled = match body {
            GroupMessage::Instance { .. } | GroupMessage::Transfer(_) if self.has_not_entered() => {
                Err("a call before the barrier that makes the group".into())
            }
            GroupMessage::RequestStep { .. } => {
                self.handle_step_request(node, index);
                Ok(())
            }
            GroupMessage::Refuse { error, .. } => self.handle_refuse(from, error),
            GroupMessage::Create { step, digest, .. } => self.handle_create(node, sender, step, digest),
            GroupMessage::Lost { rank, after, cause } => self.handle_lost(node, from, rank, Lost { after, cause }),
            GroupMessage::QueryFailures { newest, oldest, .. } => {
                self.handle_query_failures(node, from, newest, oldest)
            }
            GroupMessage::Failures { after, cause, .. } => self.handle_failures(node, Lost { after, cause }),
            GroupMessage::Abort { error, .. } => {
                self.handle_abort(node, error);
                Ok(())
            }
            GroupMessage::Instance { instance, body } => {
                self.links.note_call(index);
                self.handle_instance_message(node, instance, sender, body, payload_len)
            }
            GroupMessage::Transfer(transfer) => {
                self.links.note_call(index);
                self.handle_transfer(node, from, transfer, payload_len)
            }
        };
        let handled = match handled {
            Ok(()) => Ok(()),
            Err(Rejection::Violation(violation)) => Err(violation),
            Err(Rejection::Error(error)) => {
                self.break_up(node, error, true);
                Ok(())
            }
        };
        self.run_steps(node);
        handled
    }

    fn handle_instance_message(
        &mut self,
        node: &mut NodeState,
        instance: InstanceId,
        Sender { sp: from, index }: Sender,
        body: InstanceMessage,
        payload_len: u32,
    ) -> Result<(), Rejection> {
        match body {
            InstanceMessage::Inquire => {
                self.handle_inquiry(&mut node.out, instance, from);
                Ok(())
            }
            InstanceMessage::Absent(ranks) => {
                self.handle_absent(&mut node.out, instance, from, &ranks);
                Ok(())
            }
            InstanceMessage::Ready { step, signature, rank } => {
                self.handle_ready(node, instance, index, step, FirstCall { rank, signature })
            }
            InstanceMessage::Sizes { first, sizes } => self.handle_sizes(node, instance, from, first, &sizes),
            InstanceMessage::RequestSizes => self.with_known_instance(node, instance, |i, cx| i.send_sizes(cx, from)),
            InstanceMessage::Multicast(multicast) => {
                self.with_known_instance(node, instance, |i, cx| i.handle_multicast(cx, from, &multicast, payload_len))
            }
        }
    }

    /// One more local rank requests the group. After the last local rank the service process enters the barrier.
    fn join(&mut self, node: &mut NodeState, rank: Rank) -> Result<(), GroupError> {
        self.ranks.note_request(rank);
        match &mut self.state {
            GroupState::Creating { requesters, .. } if requesters.contains(&rank) => {
                return Err(GroupError::Invalid("the rank has asked for it already"));
            }
            GroupState::Creating { barrier, requesters, .. } => {
                requesters.push(rank);
                if requesters.len() == self.members.locals.len() {
                    let mut steps = Vec::new();
                    barrier.enter(&mut steps);
                    self.send_create(node, steps);
                }
            }
            GroupState::Ready => {
                node.out.events.push_back(Event::GroupReady { group: self.members.handle, rank, result: Ok(()) });
            }
            GroupState::Broken(error) => {
                self.ranks.note_left(rank);
                node.left.push(self.members.handle);
                return Err(GroupError::Failed(error.clone()));
            }
        }
        Ok(())
    }

    fn send_create(&mut self, node: &mut NodeState, steps: Vec<(u32, u8)>) {
        let (group, fingerprint) = (self.members.handle, self.members.fingerprint);
        let digest = node.config.digest();
        for (to, step) in steps {
            let body = GroupMessage::Create { step, digest, fingerprint };
            node.out.messages.push_back((self.members.sps[to as usize], Message::Group { group, body }));
        }
        if let GroupState::Creating { barrier, requesters, .. } = &mut self.state
            && barrier.done()
        {
            for rank in std::mem::take(requesters) {
                node.out.events.push_back(Event::GroupReady { group, rank, result: Ok(()) });
            }
            self.state = GroupState::Ready;
            self.members.others().for_each(|sp| node.peers.expect_answer(node.out.now, sp));
            self.rearm_watches(node);
            self.advance_window(node);
        }
    }

    fn handle_create(
        &mut self,
        node: &mut NodeState,
        Sender { sp, index: from }: Sender,
        step: u8,
        peer_digest: u64,
    ) -> Result<(), Rejection> {
        let digest = node.config.digest();
        if peer_digest != digest {
            return Err(
                CollectiveError::Configuration { a: node.id, a_digest: digest, b: sp, b_digest: peer_digest }.into()
            );
        }
        let mut steps = Vec::new();
        let known = match &mut self.state {
            GroupState::Creating { barrier, .. } => barrier.handle(from, step, &mut steps),
            GroupState::Broken(_) => {
                self.handle_step_request(node, from);
                true
            }
            // The step was sent again because we requested it while it was on its way.
            GroupState::Ready => {
                Barrier::round_between(self.members.sps.len() as u32, from, self.members.me) == Some(step)
            }
        };
        self.send_create(node, steps);
        Rejection::unless(known, "a step of the barrier that makes the group, which another member sends")
    }

    /// Fails the instances after `after`; with 0, all instances.
    fn fail_instances(&mut self, node: &mut NodeState, after: InstanceId, error: &CollectiveError) {
        let (mut cx, instances, _) = self.all(&node.config, &mut node.out);
        for (id, instance) in instances.after_mut(after) {
            cx.out.mark_changed(cx.members.handle, id);
            instance.fail(&mut cx, error.clone());
        }
    }

    /// The next multicast batch of a collective that has one, and its pace.
    pub(super) fn next_batch(&mut self, node: &mut NodeState, instance: InstanceId) -> Option<(Pace, ChunkBatch)> {
        let contention = node.out.contention;
        let (mut cx, found) = self.parts(&node.config, &mut node.out, instance);
        let found = found?;
        let pace = Pace::new(cx.config, found.share(cx.members)?);
        let pace = match contention {
            Contention::None => pace,
            Contention::Large | Contention::Small => pace.contended(cx.config),
        };
        Some((pace, found.next_batch(&mut cx, pace.batch)?))
    }

    /// A multicast batch has left. `None` if this service process cannot have sent it.
    pub(super) fn handle_sent(&mut self, node: &mut NodeState, batch: SentBatch) -> Option<()> {
        self.with_instance(node, batch.instance, |i, cx| i.handle_sent(cx, batch.source, batch.run))
    }

    fn leave(&mut self, node: &mut NodeState, rank: Rank) {
        let Some(local) = self.members.local(rank) else { return };
        if !self.is_member(rank) {
            return;
        }
        self.ranks.note_left(rank);
        let open = self.instances.iter().find(|(_, c)| c.in_flight(rank)).map(|(i, _)| i);
        let before_open = open.map(|open| InstanceId(open.0 - 1));
        let failing = self.losses.failing();
        let ends = before_open.into_iter().chain(failing.map(|lost| lost.after));
        let after = ends.fold(self.ranks.last_instance(local), InstanceId::min);
        // News of an earlier loss may reach other members after this news, so this news names the earlier cause.
        let cause = failing.filter(|lost| lost.after <= after).map_or(rank, |lost| lost.cause);
        let body = match &mut self.state {
            GroupState::Creating { requesters, .. } => {
                requesters.retain(|requester| *requester != rank);
                return self.break_up(node, CollectiveError::RankLost(rank), true);
            }
            // A member that does not know yet why the group broke must not take the leaving for the reason.
            GroupState::Broken(error) => {
                GroupMessage::Abort { fingerprint: self.members.fingerprint, error: error.clone() }
            }
            GroupState::Ready => GroupMessage::Lost { rank, after, cause },
        };
        self.send_to_others(node, body);
        self.lose_rank(node, rank, Lost { after, cause });
        node.left.push(self.members.handle);
    }

    /// Whether a member serves a rank that has not left, or owes something for an open instance.
    fn is_active_member(&self, at: usize) -> bool {
        self.losses.serves(at) || self.owes(at)
    }

    /// The other members that are active: they serve a rank that has not left, or owe something.
    pub(super) fn active_members(&self) -> impl Iterator<Item = usize> + '_ {
        let active_members = |at: &usize| *at != self.members.me as usize && self.is_active_member(*at);
        (0..self.members.sps.len()).filter(active_members)
    }

    fn send_to_others(&self, node: &mut NodeState, body: GroupMessage) {
        let message = Message::Group { group: self.members.handle, body };
        node.out.messages.extend(self.active_members().map(|at| (self.members.sps[at], message.clone())));
    }

    /// Fails every collective of the group, in flight or to come.
    pub(super) fn break_up(&mut self, node: &mut NodeState, error: CollectiveError, notify: bool) {
        let requesters = match &mut self.state {
            GroupState::Broken(_) => return,
            GroupState::Creating { requesters, .. } => std::mem::take(requesters),
            GroupState::Ready => Vec::new(),
        };
        let group = self.members.handle;
        self.state = GroupState::Broken(error.clone());
        for rank in requesters {
            let result = if error.is_from_call() {
                // A rank has called, so the group is made, even if this is not known here yet: the local calls will
                // fail.
                Ok(())
            } else {
                self.ranks.note_left(rank);
                Err(GroupError::Failed(error.clone()))
            };
            node.out.events.push_back(Event::GroupReady { group, rank, result });
        }
        self.fail_instances(node, InstanceId(0), &error);
        let (mut cx, _, tagged) = self.all(&node.config, &mut node.out);
        tagged.fail_all(&mut cx, &error);
        self.update_turns(node);
        if notify {
            self.send_to_others(node, GroupMessage::Abort { fingerprint: self.members.fingerprint, error });
        }
        node.left.push(group);
    }

    pub(super) fn end_collective(&mut self, node: &mut NodeState, instance: InstanceId) {
        self.instances.end(instance);
        node.out.step(self.members.handle, instance, Milestone::Ended);
        let someone_left = !self.losses.is_empty();
        self.advance_window(node);
        if someone_left {
            self.rearm_watches(node);
        }
        node.left.push(self.members.handle);
    }

    /// Continues the instances that waited for earlier ones, or for the group to be made.
    fn advance_window(&mut self, node: &mut NodeState) {
        let opened = self.members.window_end + 1..=self.instances.window_end();
        self.members.window_end = self.instances.window_end();
        for instance in opened {
            self.with_instance_or_break(node, InstanceId(instance), Instance::try_enter);
            self.check_against_departed(node, InstanceId(instance));
        }
    }

    /// Whether all local ranks that requested the group have left, and nothing is in flight.
    fn may_retire(&self) -> bool {
        self.ranks.all_left() && self.in_flight() == 0
    }
}
