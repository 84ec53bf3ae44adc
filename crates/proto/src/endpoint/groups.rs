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
//! takes part in nothing after the last instance that the rank completed: later instances fail on all ranks. Invariant:
//! the instances of a rank's calls are 1, 2, 3, ...

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use outboard_call::MOST_IN_FLIGHT;
use outboard_plan::Rank;

use crate::config::Config;
use crate::effects::Effects;
use crate::error::{CollectiveError, GroupError, Rejection};
use crate::group::barrier::Barrier;
use crate::group::lateness::LatenessWatch;
use crate::group::members::Members;
use crate::ids::{CallId, GroupHandle, InstanceId, Instant, OfferId, SpId, TAGGED};
use crate::instance::tagged::TaggedCalls;
use crate::instance::{ChunkBatch, Context, FirstCall, Instance};
use crate::interface::{Event, GroupSpec, Milestone, Signature};
use crate::link::serial::expand16;
use crate::multicast::pacing::{Contention, Pace};
use crate::transfer::{Site, Transfer};
use crate::wire::{GroupMessage, InstanceMessage, Message};

mod calls;
mod losses;
mod making;
mod reconnect;
mod watching;

use self::losses::Lost;
use super::turns::InstanceSummary;
use super::{NodeState, SentBatch};

/// Most open instances at a service process, counted from the first instance that has not ended at its own ranks.
/// Other ranks may be this far ahead of a late rank.
const WINDOW: u64 = 512;
/// Most instances that a rank can have open at another service process. A rank has no more requests in flight, and the
/// instances that the rank has ended lie within the window of the other service process. Instance numbers may be far
/// ahead, since exchanges end without the ranks that have no part in them.
const MAX_OPEN: usize = MOST_IN_FLIGHT as usize;
/// Most ended exchanges that are remembered. A rank with a different call in place of such an exchange gets an error.
const MAX_ENDED: usize = 256;

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
    instances: BTreeMap<InstanceId, Instance>,
    /// Tagged calls, beside the instances.
    pub(super) tagged: TaggedCalls,
    /// Messages from rank to rank, of instances and tagged calls.
    pub(super) transfer: Transfer,
    /// Tagged calls in flight at the last count.
    pub(super) messages: usize,
    /// Instances `<= ended` and the instances in `ended_early` have ended here.
    ended: u64,
    ended_early: BTreeSet<u64>,
    /// Ended exchanges, each with a rank that called it.
    ended_exchanges: VecDeque<(InstanceId, Rank, Signature)>,
    /// The watch of each instance in flight.
    pub(super) watches: BTreeMap<InstanceId, LatenessWatch>,
    /// By local rank: the number of its calls, and the signature of the last.
    pub(super) calls: Vec<(u64, Option<Signature>)>,
    /// The peers that this group watches.
    watched: BTreeSet<SpId>,
    /// Members that were lost with their links: the group does not continue over later links.
    lost_members: BTreeSet<SpId>,
    /// When to examine the group, and the oldest instance and call in flight at the last examination.
    check_at: Option<Instant>,
    oldest_at_check: (Option<InstanceId>, Option<CallId>),
    /// Members whose silence was forgiven once.
    silence_excused: BTreeSet<SpId>,
    /// Members that learn of the group over another link: messages over the former link may be lost.
    reconnected: BTreeSet<SpId>,
    /// By service process: whether a message of a call has come from it.
    has_sent_call: Vec<bool>,
    /// Steps round the ring, right and left, to the nearest service processes that still serve a rank.
    nearest: [usize; 2],
    /// Local ranks that have requested the group, and local ranks that have left it.
    requested: BTreeSet<Rank>,
    left: BTreeSet<Rank>,
    /// Lost ranks. A lost rank takes part in nothing after an instance.
    lost: BTreeMap<Rank, Lost>,
    /// The earliest known loss: the instances after this instance fail, because of this rank.
    failing: Option<(InstanceId, Rank)>,
    /// By service process: the number of its ranks that are not lost, and the last instance of its lost ranks.
    remaining_ranks: Vec<u32>,
    last: Vec<InstanceId>,
}

impl Group {
    /// A group that no local rank has requested.
    fn new(members: Members, spec: &GroupSpec, since: Instant) -> Self {
        let addresses = making::addresses(spec);
        let offers = spec.members.iter().map(|member| member.offer).collect();
        let barrier = Barrier::new(members.me, members.sps.len() as u32);
        let mut remaining_ranks = vec![0; members.sps.len()];
        members.of_rank.iter().for_each(|at| remaining_ranks[*at as usize] += 1);
        let calls = vec![(0, None); members.locals.len()];
        Group {
            members,
            addresses,
            offers,
            state: GroupState::Creating { barrier, requesters: Vec::new() },
            since,
            instances: BTreeMap::new(),
            tagged: TaggedCalls::default(),
            transfer: Transfer::default(),
            messages: 0,
            ended: 0,
            ended_early: BTreeSet::new(),
            ended_exchanges: VecDeque::new(),
            watches: BTreeMap::new(),
            calls,
            watched: BTreeSet::new(),
            lost_members: BTreeSet::new(),
            silence_excused: BTreeSet::new(),
            reconnected: BTreeSet::new(),
            has_sent_call: vec![false; remaining_ranks.len()],
            check_at: None,
            oldest_at_check: (None, None),
            nearest: [1; 2],
            requested: BTreeSet::new(),
            left: BTreeSet::new(),
            lost: BTreeMap::new(),
            failing: None,
            last: vec![InstanceId(0); remaining_ranks.len()],
            remaining_ranks,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.instances.len() + self.tagged.in_flight()
    }

    pub(super) fn instance(&self, instance: InstanceId) -> Option<&Instance> {
        self.instances.get(&instance)
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
        (cx, instances.get_mut(&instance))
    }

    /// All instances and the tagged calls, and their context.
    pub(super) fn all<'a>(
        &'a mut self,
        config: &'a Config,
        out: &'a mut Effects,
    ) -> (Context<'a>, &'a mut BTreeMap<InstanceId, Instance>, &'a mut TaggedCalls) {
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
        let found = self.instances.get(&instance)?;
        let timers = [found.poll_timeout(), self.watch_due(instance)];
        let deadline = timers.into_iter().flatten().min();
        Some(InstanceSummary { deadline, multicasts: found.has_batch(), repairs: found.has_repair() })
    }

    /// The instance that a datagram's 16 bits stand for: the instance nearest to the newest known one.
    pub(super) fn expand_epoch(&self, epoch: u16) -> InstanceId {
        let newest = self.instances.keys().next_back().map_or(self.ended, |i| i.0);
        InstanceId(expand16(epoch, newest))
    }

    pub(super) fn has_ended(&self, instance: InstanceId) -> bool {
        instance.0 <= self.ended || self.ended_early.contains(&instance.0)
    }

    /// Whether one more instance may be open. A peer that opens more misbehaves.
    fn may_open(&self, instance: InstanceId) -> bool {
        self.instances.contains_key(&instance) || self.instances.len() < MAX_OPEN * self.members.of_rank.len()
    }

    fn note_ended(&mut self, instance: InstanceId) {
        self.ended_early.insert(instance.0);
        while self.ended_early.remove(&(self.ended + 1)) {
            self.ended += 1;
        }
    }

    /// Whether this rank is local, has requested the group and has not left it.
    pub(super) fn is_member(&self, rank: Rank) -> bool {
        self.requested.contains(&rank) && !self.left.contains(&rank)
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
                let failing = self.failing.filter(|(after, _)| *after < instance);
                failing.map(|(_, cause)| CollectiveError::RankLost(cause))
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
            GroupMessage::Failures { after, cause, .. } => self.handle_failures(node, after, cause),
            GroupMessage::Abort { error, .. } => {
                self.handle_abort(node, error);
                Ok(())
            }
            GroupMessage::Instance { instance, body } => {
                self.has_sent_call[index as usize] = true;
                self.handle_instance_message(node, instance, sender, body, payload_len)
            }
            GroupMessage::Transfer(transfer) => {
                self.has_sent_call[index as usize] = true;
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
        self.requested.insert(rank);
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
                self.left.insert(rank);
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
        for (id, instance) in instances.range_mut((Bound::Excluded(after), Bound::Unbounded)) {
            cx.out.mark_changed(cx.members.handle, *id);
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
        if !self.requested.contains(&rank) || !self.left.insert(rank) {
            return;
        }
        let open = self.instances.iter().find(|(_, c)| c.in_flight(rank)).map(|(i, _)| *i);
        let before_open = open.map(|open| InstanceId(open.0 - 1));
        let failing = self.failing.map(|(after, _)| after);
        let called = InstanceId(self.calls[local].0);
        let after = before_open.into_iter().chain(failing).fold(called, InstanceId::min);
        // News of an earlier loss may reach other members after this news, so this news names the earlier cause.
        let earlier = self.failing.filter(|(lost, _)| *lost <= after);
        let cause = earlier.map_or(rank, |(_, cause)| cause);
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
        self.remaining_ranks[at] > 0 || self.owes(at)
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
                self.left.insert(rank);
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
        let i = self.instances.remove(&instance).expect("a collective ends once");
        self.watches.remove(&instance);
        node.out.step(self.members.handle, instance, Milestone::Ended);
        assert!(i.ended(), "only what has ended is cleared away");
        self.note_ended(instance);
        let (rank, signature) = i.signature();
        if i.may_end_alone() {
            if self.ended_exchanges.len() >= MAX_ENDED {
                self.ended_exchanges.pop_front();
            }
            self.ended_exchanges.push_back((instance, rank, signature));
        }
        let someone_left = !self.lost.is_empty();
        self.advance_window(node);
        if someone_left {
            self.rearm_watches(node);
        }
        node.left.push(self.members.handle);
    }

    /// Continues the instances that waited for earlier ones, or for the group to be made.
    fn advance_window(&mut self, node: &mut NodeState) {
        let opened = self.members.window_end + 1..=self.ended + WINDOW;
        self.members.window_end = self.ended + WINDOW;
        for instance in opened {
            self.with_instance_or_break(node, InstanceId(instance), Instance::try_enter);
            self.check_against_departed(node, InstanceId(instance));
        }
    }

    /// Whether all local ranks that requested the group have left, and nothing is in flight.
    fn may_retire(&self) -> bool {
        self.left.len() == self.requested.len() && self.in_flight() == 0
    }
}
