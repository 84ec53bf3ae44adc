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
//! takes part in nothing after the last instance it completed: later ones fail on all. Invariant: the instances of a
//! rank's calls are 1, 2, 3, ...

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use outboard_call::MOST_IN_FLIGHT;
use outboard_plan::Rank;

use crate::config::Config;
use crate::error::{CollectiveError, GroupError, Rejection};
use crate::group::barrier::Barrier;
use crate::group::lateness::Watch;
use crate::group::members::Members;
use crate::ids::{CallId, GroupHandle, InstanceId, Instant, OfferId, SpId};
use crate::instance::tagged::{TAGGED, TaggedCalls};
use crate::instance::{Batch, Context, Instance};
use crate::interface::{Event, GroupSpec, Signature, Step};
use crate::link::serial::expand16;
use crate::multicast::pacing::{Contention, Pace};
use crate::outbox::Outbox;
use crate::transfer::{Site, Transfer};
use crate::wire::{GroupMessage, InstanceMessage, Message};

mod anew;
mod calls;
mod losses;
mod making;
mod watching;

use self::losses::Lost;
use super::turns::Standing;
use super::{Node, SentBatch};

/// Open instances at a service process, counted from the first that has not ended at its own ranks. Others may be this
/// far ahead of a late rank.
const WINDOW: u64 = 512;
/// Most instances that a rank can have open at other service processes. A rank has no more requests in flight, and the
/// instances that it has ended are within the window there. Their numbers may be far ahead, since exchanges end without
/// the ranks that have no part in them.
const MAX_OPEN: usize = MOST_IN_FLIGHT as usize;
/// Remembered ended exchanges, so that a rank with a different call in their place gets an error.
const MAX_ENDED: usize = 256;

#[derive(Debug)]
enum State {
    Creating { barrier: Barrier, askers: Vec<Rank> },
    Ready,
    Broken(CollectiveError),
}

/// A group that broke, and that its local ranks have left.
#[derive(Debug)]
pub(super) struct FailedGroup {
    handle: GroupHandle,
    fingerprint: u64,
    error: CollectiveError,
    /// Addresses of the members: some may not know of the break, since they could not be notified.
    addresses: Addresses,
}

type Addresses = BTreeMap<SpId, Arc<[u8]>>;

#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Members,
    addresses: Addresses,
    /// Offers of all members, by rank.
    offers: Vec<OfferId>,
    state: State,
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
    exchanged: VecDeque<(InstanceId, Rank, Signature)>,
    /// The watch of each instance in flight.
    pub(super) watches: BTreeMap<InstanceId, Watch>,
    /// By local rank: the number of its calls, and the signature of the last.
    pub(super) calls: Vec<(u64, Option<Signature>)>,
    /// The peers that this group watches.
    watched: BTreeSet<SpId>,
    /// Members that were lost with their links: the group does not continue over later links.
    cut_off: BTreeSet<SpId>,
    /// When to examine the group, and the oldest instance and call in flight at the last examination.
    look_at: Option<Instant>,
    seen: (Option<InstanceId>, Option<CallId>),
    /// Members whose silence was forgiven once.
    forgiven: BTreeSet<SpId>,
    /// Members that learn of the group over another link: messages over the former link may be lost.
    renewed: BTreeSet<SpId>,
    /// By service process: whether a message of a call has come from it.
    heard_calls: Vec<bool>,
    /// Steps round the ring, right and left, to the nearest service processes that still serve a rank.
    nearest: [usize; 2],
    /// Local ranks that have requested the group, and those that have left it.
    asked: BTreeSet<Rank>,
    left: BTreeSet<Rank>,
    /// Ranks that take part in nothing after an instance.
    lost: BTreeMap<Rank, Lost>,
    /// The instances after this one fail, because of this rank: the earliest known loss.
    failing: Option<(InstanceId, Rank)>,
    /// By service process: the number of its ranks that are not lost, and the last instance of a lost one.
    staying: Vec<u32>,
    last: Vec<InstanceId>,
}

impl Group {
    /// A group that no local rank has requested.
    fn new(members: Members, spec: &GroupSpec, since: Instant) -> Self {
        let addresses = making::addresses(spec);
        let offers = spec.members.iter().map(|member| member.offer).collect();
        let barrier = Barrier::new(members.me, members.sps.len() as u32);
        let mut staying = vec![0; members.sps.len()];
        members.of_rank.iter().for_each(|at| staying[*at as usize] += 1);
        let calls = vec![(0, None); members.locals.len()];
        Group {
            members,
            addresses,
            offers,
            state: State::Creating { barrier, askers: Vec::new() },
            since,
            instances: BTreeMap::new(),
            tagged: TaggedCalls::default(),
            transfer: Transfer::default(),
            messages: 0,
            ended: 0,
            ended_early: BTreeSet::new(),
            exchanged: VecDeque::new(),
            watches: BTreeMap::new(),
            calls,
            watched: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            forgiven: BTreeSet::new(),
            renewed: BTreeSet::new(),
            heard_calls: vec![false; staying.len()],
            look_at: None,
            seen: (None, None),
            nearest: [1; 2],
            asked: BTreeSet::new(),
            left: BTreeSet::new(),
            lost: BTreeMap::new(),
            failing: None,
            last: vec![InstanceId(0); staying.len()],
            staying,
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
        (config, out): (&'a Config, &'a mut Outbox),
        instance: InstanceId,
    ) -> (Context<'a>, Option<&'a mut Instance>) {
        out.touch(self.members.handle, instance);
        let (cx, instances, _) = self.all((config, out));
        (cx, instances.get_mut(&instance))
    }

    /// All instances and the tagged calls, and their context.
    pub(super) fn all<'a>(
        &'a mut self,
        (config, out): (&'a Config, &'a mut Outbox),
    ) -> (Context<'a>, &'a mut BTreeMap<InstanceId, Instance>, &'a mut TaggedCalls) {
        let cx = Context { config, members: &mut self.members, out, transfer: &mut self.transfer };
        (cx, &mut self.instances, &mut self.tagged)
    }

    /// The messages from rank to rank, and their context.
    pub(super) fn transfer<'a>(&'a mut self, node: &'a mut Node) -> (&'a mut Transfer, Site<'a>) {
        let site = Site { config: &node.config, members: &self.members, out: &mut node.out };
        (&mut self.transfer, site)
    }

    /// The part of an instance, or of the messages, in the totals over all instances.
    pub(super) fn standing(&self, instance: InstanceId) -> Option<Standing> {
        if instance == TAGGED {
            return Some(Standing::default());
        }
        let found = self.instances.get(&instance)?;
        let timers = [found.poll_timeout(), self.watch_due(instance)];
        let deadline = timers.into_iter().flatten().min();
        Some(Standing { deadline, multicasts: found.has_batch(), repairs: found.has_repair() })
    }

    /// The instance that a datagram's 16 bits stand for: the nearest to the newest known.
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
        self.asked.contains(&rank) && !self.left.contains(&rank)
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Whether this service process has not entered the barrier that makes the group.
    fn has_not_entered(&self) -> bool {
        matches!(&self.state, State::Creating { barrier, .. } if barrier.round().is_none())
    }

    /// The error that broke the group.
    pub(super) fn broken(&self) -> Option<&CollectiveError> {
        match &self.state {
            State::Broken(error) => Some(error),
            State::Creating { .. } | State::Ready => None,
        }
    }

    /// Why an instance cannot succeed.
    pub(super) fn doom(&self, instance: InstanceId) -> Option<CollectiveError> {
        match &self.state {
            State::Broken(e) => Some(e.clone()),
            State::Creating { .. } | State::Ready => {
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
        node: &mut Node,
        (from, from_index): (SpId, u32),
        body: GroupMessage,
        payload_len: u32,
    ) -> Result<(), &'static str> {
        let handled = match body {
            GroupMessage::Instance { .. } | GroupMessage::Transfer(_) if self.has_not_entered() => {
                Err("a call before the barrier that makes the group".into())
            }
            GroupMessage::Ask { .. } => {
                self.handle_ask(node, from_index);
                Ok(())
            }
            GroupMessage::Refuse { error, .. } => self.handle_refuse(from, error),
            GroupMessage::Create { step, digest, .. } => self.handle_create(node, (from, from_index, step), digest),
            GroupMessage::Lost { rank, after, cause } => self.handle_lost(node, from, rank, Lost { after, cause }),
            GroupMessage::Waits { newest, oldest, .. } => self.handle_waits(node, from, newest, oldest),
            GroupMessage::Fails { after, cause, .. } => self.handle_fails(node, after, cause),
            GroupMessage::Abort { error, .. } => {
                self.handle_abort(node, error);
                Ok(())
            }
            GroupMessage::Instance { instance, body } => {
                self.heard_calls[from_index as usize] = true;
                self.handle_instance_message(node, instance, (from, from_index), body, payload_len)
            }
            GroupMessage::Transfer(transfer) => {
                self.heard_calls[from_index as usize] = true;
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
        node: &mut Node,
        instance: InstanceId,
        (from, from_index): (SpId, u32),
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
                self.handle_ready(node, instance, (from_index, step), (signature, rank))
            }
            InstanceMessage::Sizes { first, sizes } => self.handle_sizes(node, instance, (from, first), &sizes),
            InstanceMessage::AskSizes => self.with_known(node, instance, |i, cx| i.tell_sizes(cx, from)),
            InstanceMessage::Multicast(multicast) => {
                self.with_known(node, instance, |i, cx| i.handle_multicast(cx, from, &multicast, payload_len))
            }
        }
    }

    /// One more local rank requests the group; the last one lets the service process enter the barrier.
    fn join(&mut self, node: &mut Node, rank: Rank) -> Result<(), GroupError> {
        self.asked.insert(rank);
        match &mut self.state {
            State::Creating { askers, .. } if askers.contains(&rank) => {
                return Err(GroupError::Invalid("the rank has asked for it already"));
            }
            State::Creating { barrier, askers, .. } => {
                askers.push(rank);
                if askers.len() == self.members.locals.len() {
                    let mut steps = Vec::new();
                    barrier.enter(&mut steps);
                    self.send_create(node, steps);
                }
            }
            State::Ready => {
                node.out.events.push_back(Event::GroupReady { group: self.members.handle, rank, result: Ok(()) });
            }
            State::Broken(error) => {
                self.left.insert(rank);
                node.left.push(self.members.handle);
                return Err(GroupError::Failed(error.clone()));
            }
        }
        Ok(())
    }

    fn send_create(&mut self, node: &mut Node, steps: Vec<(u32, u8)>) {
        let (group, fingerprint) = (self.members.handle, self.members.fingerprint);
        let digest = node.config.digest();
        for (to, step) in steps {
            let body = GroupMessage::Create { step, digest, fingerprint };
            node.out.messages.push_back((self.members.sps[to as usize], Message::Group { group, body }));
        }
        if let State::Creating { barrier, askers, .. } = &mut self.state
            && barrier.done()
        {
            for rank in std::mem::take(askers) {
                node.out.events.push_back(Event::GroupReady { group, rank, result: Ok(()) });
            }
            self.state = State::Ready;
            self.members.others().for_each(|sp| node.peers.expect_answer(node.out.now, sp));
            self.mind_peers(node);
            self.move_window(node);
        }
    }

    fn handle_create(
        &mut self,
        node: &mut Node,
        (sp, from, step): (SpId, u32, u8),
        theirs: u64,
    ) -> Result<(), Rejection> {
        let digest = node.config.digest();
        if theirs != digest {
            return Err(CollectiveError::Configuration { a: node.id, a_digest: digest, b: sp, b_digest: theirs }.into());
        }
        let mut steps = Vec::new();
        let known = match &mut self.state {
            State::Creating { barrier, .. } => barrier.handle(from, step, &mut steps),
            State::Broken(_) => {
                self.handle_ask(node, from);
                true
            }
            // The step was sent again because we requested it while it was on its way.
            State::Ready => Barrier::round_between(self.members.sps.len() as u32, from, self.members.me) == Some(step),
        };
        self.send_create(node, steps);
        Rejection::unless(known, "a step of the barrier that makes the group, which another member sends")
    }

    /// Fails the instances after this one; all of them, after 0.
    fn fail_instances(&mut self, node: &mut Node, after: InstanceId, error: &CollectiveError) {
        let (mut cx, instances, _) = self.all((&node.config, &mut node.out));
        for (id, instance) in instances.range_mut((Bound::Excluded(after), Bound::Unbounded)) {
            cx.out.touch(cx.members.handle, *id);
            instance.fail(&mut cx, error.clone());
        }
    }

    /// The next multicast batch of a collective that has one, and its pace.
    pub(super) fn next_batch(&mut self, node: &mut Node, instance: InstanceId) -> Option<(Pace, Batch)> {
        let contention = node.out.contention;
        let (mut cx, found) = self.parts((&node.config, &mut node.out), instance);
        let found = found?;
        let pace = Pace::new(cx.config, found.share(cx.members)?);
        let pace = match contention {
            Contention::None => pace,
            Contention::Large | Contention::Small => pace.contended(cx.config),
        };
        Some((pace, found.next_batch(&mut cx, pace.batch)?))
    }

    /// A multicast batch has left. `None` if this service process cannot have sent it.
    pub(super) fn handle_sent(&mut self, node: &mut Node, batch: SentBatch) -> Option<()> {
        self.with_instance(node, batch.instance, |i, cx| i.handle_sent(cx, batch.source, batch.run))
    }

    fn leave(&mut self, node: &mut Node, rank: Rank) {
        let Some(local) = self.members.local(rank) else { return };
        if !self.asked.contains(&rank) || !self.left.insert(rank) {
            return;
        }
        let open = self.instances.iter().find(|(_, c)| c.in_flight(rank)).map(|(i, _)| *i);
        let before_open = open.map(|open| InstanceId(open.0 - 1));
        let failing = self.failing.map(|(after, _)| after);
        let called = InstanceId(self.calls[local].0);
        let after = before_open.into_iter().chain(failing).fold(called, InstanceId::min);
        // News of that loss may follow this news on the way to others.
        let earlier = self.failing.filter(|(lost, _)| *lost <= after);
        let cause = earlier.map_or(rank, |(_, cause)| cause);
        let body = match &mut self.state {
            State::Creating { askers, .. } => {
                askers.retain(|asker| *asker != rank);
                return self.break_up(node, CollectiveError::RankLost(rank), true);
            }
            // A member that does not know yet why the group broke must not take the leaving for the reason.
            State::Broken(error) => GroupMessage::Abort { fingerprint: self.members.fingerprint, error: error.clone() },
            State::Ready => GroupMessage::Lost { rank, after, cause },
        };
        self.tell_others(node, body);
        self.lose_rank(node, rank, Lost { after, cause });
        node.left.push(self.members.handle);
    }

    /// Whether a member serves a rank that has not left, or owes something for an open instance.
    fn is_concerned(&self, at: usize) -> bool {
        self.staying[at] > 0 || self.owes(at)
    }

    /// The other members that are concerned.
    pub(super) fn concerned(&self) -> impl Iterator<Item = usize> + '_ {
        let concerned = |at: &usize| *at != self.members.me as usize && self.is_concerned(*at);
        (0..self.members.sps.len()).filter(concerned)
    }

    fn tell_others(&self, node: &mut Node, body: GroupMessage) {
        let message = Message::Group { group: self.members.handle, body };
        node.out.messages.extend(self.concerned().map(|at| (self.members.sps[at], message.clone())));
    }

    /// Fails every collective of the group, in flight or to come.
    pub(super) fn break_up(&mut self, node: &mut Node, error: CollectiveError, tell: bool) {
        let askers = match &mut self.state {
            State::Broken(_) => return,
            State::Creating { askers, .. } => std::mem::take(askers),
            State::Ready => Vec::new(),
        };
        let group = self.members.handle;
        self.state = State::Broken(error.clone());
        for rank in askers {
            let result = if error.comes_of_a_call() {
                // A rank could call, so the group is made, though this is not known here: the local calls will fail.
                Ok(())
            } else {
                self.left.insert(rank);
                Err(GroupError::Failed(error.clone()))
            };
            node.out.events.push_back(Event::GroupReady { group, rank, result });
        }
        self.fail_instances(node, InstanceId(0), &error);
        let (mut cx, _, tagged) = self.all((&node.config, &mut node.out));
        tagged.fail_all(&mut cx, &error);
        self.mind_turns(node);
        if tell {
            self.tell_others(node, GroupMessage::Abort { fingerprint: self.members.fingerprint, error });
        }
        node.left.push(group);
    }

    pub(super) fn end_collective(&mut self, node: &mut Node, instance: InstanceId) {
        let i = self.instances.remove(&instance).expect("a collective ends once");
        self.watches.remove(&instance);
        node.out.step(self.members.handle, instance, Step::Ended);
        assert!(i.ended(), "only what has ended is cleared away");
        self.note_ended(instance);
        let (rank, signature) = i.signature();
        if i.ends_alone() {
            if self.exchanged.len() >= MAX_ENDED {
                self.exchanged.pop_front();
            }
            self.exchanged.push_back((instance, rank, signature));
        }
        let someone_left = !self.lost.is_empty();
        self.move_window(node);
        if someone_left {
            self.mind_peers(node);
        }
        node.left.push(self.members.handle);
    }

    /// Continues the instances that waited for earlier ones, or for the group to be made.
    fn move_window(&mut self, node: &mut Node) {
        let opened = self.members.window_end + 1..=self.ended + WINDOW;
        self.members.window_end = self.ended + WINDOW;
        for instance in opened {
            self.with_instance_or_break(node, InstanceId(instance), Instance::try_enter);
            self.compare_with_left(node, InstanceId(instance));
        }
    }

    /// Whether all local ranks that requested the group have left, and nothing is in flight.
    fn is_left(&self) -> bool {
        self.left.len() == self.asked.len() && self.in_flight() == 0
    }
}
