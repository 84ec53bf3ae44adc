//! Groups: made by a barrier that compares configurations, broken by deaths and disagreement, ended by leaving.
//!
//! | state | event | next |
//! |---|---|---|
//! | Creating | barrier done | Ready, the ranks that asked are told |
//! | Creating, Ready | [`Endpoint::break_group`] | Broken: every collective in flight and to come fails |
//! | Ready, Broken | the last local rank that asked for it leaves | retired |
//!
//! Local ranks that ask for a group that broke and was retired without them are told why it broke.
//! A rank that leaves or dies takes part in nothing after the last instance it completed: later ones fail on all.
//! Invariant: the instances of a rank's calls are 1, 2, 3, ...

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use outboard_plan::Rank;

use crate::config::Config;
use crate::error::{CollectiveError, GroupError};
use crate::group::barrier::Barrier;
use crate::group::lateness::Watch;
use crate::group::members::Members;
use crate::ids::{GroupHandle, InstanceId, SpId};
use crate::instance::Context;
use crate::instance::Instance;
use crate::instance::tagged::{TAGGED, TaggedCalls};
use crate::interface::{Event, GroupSpec, Signature, Step};
use crate::link::serial::expand16;
use crate::outbox::Outbox;
use crate::transfer::Transfer;
use crate::wire::{GroupMessage, InstanceMessage, Message};

mod calls;

use super::turns::Standing;
use super::{Endpoint, MAX_EARLY, MAX_RETIRED};

/// Collectives that a service process takes part in beyond the last before which all have ended at its own ranks: so far
/// may others be ahead of a rank that is late.
const WINDOW: u64 = 512;
/// Instances that a rank can have open at others: no rank has more requests in flight. How far ahead their numbers are says
/// nothing: exchanges end without those who have no part in them.
const MAX_OPEN: usize = 1024;
/// Exchanges that have ended and are remembered, so that whoever calls something else in their place is told.
const MAX_ENDED: usize = 256;

#[derive(Debug)]
enum State {
    Creating { barrier: Barrier, askers: Vec<Rank> },
    Ready,
    Broken(CollectiveError),
}

/// How a rank left.
#[derive(Debug, Clone, Copy)]
struct Lost {
    after: InstanceId,
    /// Its calls up to then ended well.
    well: bool,
}

/// A group that broke before all local ranks had asked for it, and that those who had have left.
#[derive(Debug)]
pub(super) struct FailedGroup {
    handle: GroupHandle,
    fingerprint: u64,
    error: CollectiveError,
}

/// One group at one of its service processes.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Members,
    state: State,
    instances: BTreeMap<InstanceId, Instance>,
    /// Tagged calls, beside the instances.
    pub(super) tagged: TaggedCalls,
    /// Messages from rank to rank, of both.
    pub(super) transfer: Transfer,
    /// Its calls in flight, as they were when they were last counted.
    pub(super) messages: usize,
    /// Instances `<= ended` have ended here, and those in `ended_early`.
    ended: u64,
    ended_early: BTreeSet<u64>,
    /// Exchanges that have ended, with one who called them.
    exchanged: VecDeque<(InstanceId, Rank, Signature)>,
    /// By instance in flight: when it takes too long.
    pub(super) watches: BTreeMap<InstanceId, Watch>,
    /// By local rank: how many calls it has made, and what the last was.
    pub(super) calls: Vec<(u64, Option<Signature>)>,
    /// The neighbours that are watched.
    watched: BTreeSet<SpId>,
    /// Local ranks that have asked for it, and those of them that have left.
    asked: BTreeSet<Rank>,
    left: BTreeSet<Rank>,
    /// Ranks that take part in nothing after an instance.
    lost: BTreeMap<Rank, Lost>,
    /// A call of a rank here has ended with an error.
    failed: bool,
    /// By service process: how many of its ranks are not lost, and the last instance that a lost one took part in.
    staying: Vec<u32>,
    last: Vec<InstanceId>,
}

impl Group {
    pub(super) fn in_flight(&self) -> usize {
        self.instances.len() + self.tagged.in_flight()
    }

    pub(super) fn instance(&self, instance: InstanceId) -> Option<&Instance> {
        self.instances.get(&instance)
    }

    /// An instance, to which something is to happen, and what it works with.
    pub(super) fn parts<'a>(
        &'a mut self,
        (config, out): (&'a Config, &'a mut Outbox),
        instance: InstanceId,
    ) -> (Context<'a>, Option<&'a mut Instance>) {
        out.touch(self.members.handle, instance);
        (
            Context { config, members: &mut self.members, out, transfer: &mut self.transfer },
            self.instances.get_mut(&instance),
        )
    }

    /// What an instance, or the messages, add to that which is asked of all of them together.
    pub(super) fn standing(&self, instance: InstanceId) -> Option<Standing> {
        if instance == TAGGED {
            return Some(Standing::default());
        }
        let found = self.instances.get(&instance)?;
        let timers = [found.poll_timeout(), self.watch_due(instance)];
        let deadline = timers.into_iter().flatten().min();
        Some(Standing { deadline, multicasts: found.has_batch(), repairs: found.has_repair() })
    }

    /// Who must be alive: the nearest service processes on both sides of the ring that still serve a rank of the group, and
    /// those that have left but may owe us something for an instance that is open here.
    fn to_watch(&self) -> BTreeSet<SpId> {
        let (members, n) = (&self.members, self.members.sps.len());
        let me = members.me as usize;
        let stays = |at: &usize| self.staying[*at] > 0;
        let right = (1..n).map(|step| (me + step) % n).find(stays);
        let left = (1..n).map(|step| (me + n - step) % n).find(stays);
        let open = self.instances.keys().next().copied();
        let owes = |at: &usize| !stays(at) && open.is_some_and(|open| open <= self.last[*at]);
        let owing = (0..n).filter(|at| *at != me).filter(owes);
        right.into_iter().chain(left).chain(owing).map(|at| members.sps[at]).collect()
    }

    /// The instance that a datagram's 16 bits mean: the nearest to the newest known.
    pub(super) fn expand_epoch(&self, epoch: u16) -> InstanceId {
        let newest = self.instances.keys().next_back().map_or(self.ended, |i| i.0);
        InstanceId(expand16(epoch, newest))
    }

    fn has_ended(&self, instance: InstanceId) -> bool {
        instance.0 <= self.ended || self.ended_early.contains(&instance.0)
    }

    /// Whether there may be one instance more. Whoever asks for more misbehaves.
    fn may_open(&self, instance: InstanceId) -> bool {
        self.instances.contains_key(&instance) || self.instances.len() < MAX_OPEN * self.members.of_rank.len()
    }

    fn note_ended(&mut self, instance: InstanceId) {
        self.ended_early.insert(instance.0);
        while self.ended_early.remove(&(self.ended + 1)) {
            self.ended += 1;
        }
    }

    /// Whether this rank is served here, has asked for the group and not left it.
    pub(super) fn is_member(&self, rank: Rank) -> bool {
        self.asked.contains(&rank) && !self.left.contains(&rank)
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Why nothing succeeds any more.
    pub(super) fn broken(&self) -> Option<&CollectiveError> {
        match &self.state {
            State::Broken(error) => Some(error),
            State::Creating { .. } | State::Ready => None,
        }
    }

    /// Why an instance cannot succeed.
    fn doom(&self, instance: InstanceId) -> Option<CollectiveError> {
        match &self.state {
            State::Broken(e) => Some(e.clone()),
            State::Creating { .. } | State::Ready => {
                let lost = self.lost.iter().find(|(_, lost)| lost.after < instance);
                lost.map(|(rank, _)| CollectiveError::RankLost(*rank))
            }
        }
    }
}

impl Endpoint {
    pub(super) fn create_group(&mut self, spec: &GroupSpec, rank: Rank) {
        if let Err(error) = self.try_create_group(spec, rank) {
            self.out.events.push_back(Event::GroupReady { group: spec.handle, rank, result: Err(error) });
        }
    }

    fn try_create_group(&mut self, spec: &GroupSpec, rank: Rank) -> Result<(), GroupError> {
        let members = Members::new(spec, self.id, &self.config, WINDOW).map_err(GroupError::Invalid)?;
        if members.local(rank).is_none() {
            return Err(GroupError::Invalid("the rank that asks is not served here"));
        }
        let handle = spec.handle;
        if let Some(g) = self.groups.get_mut(&handle) {
            if g.members.fingerprint == members.fingerprint {
                return self.join_group(handle, rank);
            }
            return Err(self.refuse(spec, &members, CollectiveError::HandleTaken(handle)));
        }
        if let Some(failed) =
            self.failed_groups.iter().find(|u| (u.handle, u.fingerprint) == (handle, members.fingerprint))
        {
            return Err(GroupError::Failed(failed.error.clone()));
        }
        if let Some(at) = members.sps.iter().position(|sp| self.peers.is_lost(*sp)) {
            let error = CollectiveError::PeerLost { sp: members.sps[at], rank: members.lowest_rank(at as u32) };
            return Err(self.refuse(spec, &members, error));
        }
        self.retired.retain(|h| *h != handle);
        self.introduce(spec, &members);
        for channel in members.channels.clone() {
            let users = self.channels.entry(channel).or_insert(0);
            *users += 1;
            if *users == 1 {
                self.out.events.push_back(Event::Join(channel));
            }
        }
        members.others().for_each(|sp| self.peers.count_group(self.out.now, sp, true));
        let barrier = Barrier::new(members.me, members.sps.len() as u32);
        let mut staying = vec![0; members.sps.len()];
        members.of_rank.iter().for_each(|at| staying[*at as usize] += 1);
        let calls = vec![(0, None); members.locals.len()];
        let group = Group {
            members,
            state: State::Creating { barrier, askers: Vec::new() },
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
            asked: BTreeSet::new(),
            left: BTreeSet::new(),
            lost: BTreeMap::new(),
            failed: false,
            last: vec![InstanceId(0); staying.len()],
            staying,
        };
        self.groups.insert(handle, group);
        self.join_group(handle, rank)?;
        self.replay_early(handle);
        Ok(())
    }

    /// One more local rank asks; the last one brings the service process into the barrier.
    fn join_group(&mut self, handle: GroupHandle, rank: Rank) -> Result<(), GroupError> {
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        g.asked.insert(rank);
        match &mut g.state {
            State::Creating { askers, .. } if askers.contains(&rank) => {
                return Err(GroupError::Invalid("the rank has asked for it already"));
            }
            State::Creating { barrier, askers } => {
                askers.push(rank);
                if askers.len() == g.members.locals.len() {
                    let mut steps = Vec::new();
                    barrier.enter(&mut steps);
                    self.send_create(handle, steps);
                }
            }
            State::Ready => self.out.events.push_back(Event::GroupReady { group: handle, rank, result: Ok(()) }),
            State::Broken(e) => {
                let error = e.clone();
                g.left.insert(rank);
                self.retire_if_left(handle);
                return Err(GroupError::Failed(error));
            }
        }
        Ok(())
    }

    fn introduce(&mut self, spec: &GroupSpec, members: &Members) {
        let mut seen = BTreeSet::from([self.id]);
        for m in spec.members.iter().filter(|m| members.index_of(m.sp).is_some()) {
            if seen.insert(m.sp) && !self.peers.is_lost(m.sp) {
                self.meet_peer(m.sp, &m.address);
            }
        }
    }

    /// The group cannot be made: all its service processes are told, so that nobody waits.
    fn refuse(&mut self, spec: &GroupSpec, members: &Members, error: CollectiveError) -> GroupError {
        self.introduce(spec, members);
        let (group, fingerprint) = (members.handle, members.fingerprint);
        let message = Message::Group { group, body: GroupMessage::Abort { fingerprint, error: error.clone() } };
        self.out.messages.extend(members.others().map(|sp| (sp, message.clone())));
        error.into()
    }

    fn send_create(&mut self, handle: GroupHandle, steps: Vec<(u32, u8)>) {
        let (sp, digest) = (self.id, self.config.digest());
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        for (to, step) in steps {
            let to = g.members.sps[to as usize];
            let fingerprint = g.members.fingerprint;
            let body = GroupMessage::Create { step, sp, digest, fingerprint };
            self.out.messages.push_back((to, Message::Group { group: handle, body }));
        }
        if let State::Creating { barrier, askers } = &mut g.state
            && barrier.done()
        {
            for rank in std::mem::take(askers) {
                self.out.events.push_back(Event::GroupReady { group: handle, rank, result: Ok(()) });
            }
            g.state = State::Ready;
            self.mind_peers(handle);
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

    pub(super) fn route_message(&mut self, from: SpId, message: Message, payload_len: u32) {
        let Message::Group { group: handle, body } = message else { return };
        let carries = body.carries();
        if payload_len > 0 && !carries {
            return self.out.violation(Some(from), "payload with a message that has none");
        }
        let Some(g) = self.groups.get_mut(&handle) else {
            if self.retired.contains(&handle) {
                return;
            }
            let kept = self.early.get(&from).map_or(0, VecDeque::len);
            // A message with payload cannot be kept; an offer of a collective has none, and may come first.
            if payload_len > 0 || kept >= MAX_EARLY {
                return self.out.violation(Some(from), "a message for a group that is not known");
            }
            return self.early.entry(from).or_default().push_back(Message::Group { group: handle, body });
        };
        let Some(from_index) = g.members.index_of(from) else {
            return self.out.violation(Some(from), "a message for a group it is not in");
        };
        let known = match body {
            // Another group with this handle: nobody gets into this one by it, and its own members are told otherwise.
            GroupMessage::Create { fingerprint, .. } if fingerprint != g.members.fingerprint => false,
            GroupMessage::Create { step, sp, digest, .. } => {
                self.handle_create(handle, (from_index, step), (sp, digest))
            }
            GroupMessage::Lost { rank, after, well } => self.handle_lost(handle, from, rank, Lost { after, well }),
            GroupMessage::Abort { fingerprint, error } => {
                let ours = fingerprint == g.members.fingerprint;
                let sound = !ours || g.members.names_members(&error);
                if ours {
                    // The group is of no use to its sender either way; who is to blame is taken from nobody outside.
                    let error = if sound { error } else { CollectiveError::Protocol(from) };
                    self.break_group(handle, error, false);
                }
                sound
            }
            GroupMessage::Instance { instance, body } => {
                self.handle_instance_message(handle, instance, (from, from_index), body, payload_len)
            }
            GroupMessage::Transfer(transfer) => self.handle_transfer(handle, from, transfer, payload_len),
        };
        self.run_steps(handle);
        if !known {
            self.out.violation(Some(from), "a message that cannot come now");
        }
    }

    fn handle_instance_message(
        &mut self,
        handle: GroupHandle,
        instance: InstanceId,
        (from, from_index): (SpId, u32),
        body: InstanceMessage,
        payload_len: u32,
    ) -> bool {
        let Some(g) = self.groups.get_mut(&handle) else { return false };
        match body {
            InstanceMessage::Inquire => g.handle_inquiry(&mut self.out, instance, from),
            InstanceMessage::Absent(ranks) => g.handle_absent(&mut self.out, instance, from, &ranks),
            InstanceMessage::Ready { step, signature, rank } => {
                self.handle_ready(handle, instance, (from_index, step), (signature, rank))
            }
            InstanceMessage::Sizes { first, sizes } => self.handle_sizes(handle, instance, (from, first), &sizes),
            InstanceMessage::AskSizes => self.with_collective(handle, instance, |collective, cx| {
                collective.tell_sizes(cx, from);
                true
            }),
            InstanceMessage::Multicast(multicast) => self.with_collective(handle, instance, |collective, cx| {
                collective.handle_multicast(cx, from, &multicast, payload_len)
            }),
        }
    }

    fn handle_create(&mut self, handle: GroupHandle, (from, step): (u32, u8), theirs: (SpId, u64)) -> bool {
        let digest = self.config.digest();
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        if g.members.index_of(theirs.0).is_none() {
            return false;
        }
        if theirs.1 != digest {
            let error =
                CollectiveError::Configuration { a: self.id, a_digest: digest, b: theirs.0, b_digest: theirs.1 };
            self.break_group(handle, error, true);
            return true;
        }
        let mut steps = Vec::new();
        let known = match &mut g.state {
            State::Creating { barrier, .. } => barrier.handle(from, step, &mut steps),
            State::Broken(_) => true,
            State::Ready => false,
        };
        self.send_create(handle, steps);
        known
    }

    fn handle_lost(&mut self, handle: GroupHandle, from: SpId, rank: Rank, lost: Lost) -> bool {
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        if !g.members.has_rank(rank) || g.members.sp_of(rank) != from {
            return false;
        }
        self.lose_rank(handle, rank, lost);
        self.mind_peers(handle);
        true
    }

    /// Watches those on whom something depends once the group is made.
    fn mind_peers(&mut self, handle: GroupHandle) {
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        let to_watch = g.to_watch();
        let watched = match g.state {
            State::Ready => to_watch,
            State::Creating { .. } | State::Broken(_) => g.watched.intersection(&to_watch).copied().collect(),
        };
        let watched_before = std::mem::replace(&mut g.watched, watched.clone());
        let since = (self.out.now, self.config.heartbeat);
        watched.difference(&watched_before).for_each(|sp| self.peers.watch(since, *sp, true));
        watched_before.difference(&watched).for_each(|sp| self.peers.watch(since, *sp, false));
    }

    /// Instances after the last that `rank` took part in fail: they need it.
    fn lose_rank(&mut self, handle: GroupHandle, rank: Rank, lost: Lost) {
        let after = lost.after;
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        let at = g.members.of_rank[rank.0 as usize] as usize;
        if g.lost.insert(rank, lost).is_none() {
            g.staying[at] -= 1;
        }
        g.last[at] = g.last[at].max(after);
        let error = CollectiveError::RankLost(rank);
        for (instance, c) in g.instances.range_mut((Bound::Excluded(after), Bound::Unbounded)) {
            self.out.touch(handle, *instance);
            c.fail(
                &mut Context {
                    config: &self.config,
                    members: &mut g.members,
                    out: &mut self.out,
                    transfer: &mut g.transfer,
                },
                error.clone(),
            );
        }
        let open: Vec<InstanceId> = g.instances.range(..=after).map(|(instance, _)| *instance).collect();
        open.into_iter().for_each(|instance| self.compare_with_left(handle, instance));
        self.with_tagged(handle, |tagged, cx| tagged.lose(cx, rank));
    }

    pub(super) fn leave_group(&mut self, handle: GroupHandle, rank: Rank) {
        let Some(g) = self.groups.get_mut(&handle) else { return };
        let Some(local) = g.members.local(rank) else { return };
        if !g.asked.contains(&rank) || !g.left.insert(rank) {
            return;
        }
        let first = g.instances.iter().find(|(_, c)| c.in_flight(rank)).map(|(i, _)| i.0 - 1);
        let after = InstanceId(first.unwrap_or(g.calls[local].0));
        let creating = matches!(g.state, State::Creating { .. });
        if let State::Creating { askers, .. } = &mut g.state {
            askers.retain(|asker| *asker != rank);
        }
        let (well, others) = (!g.failed, g.members.others().collect::<Vec<SpId>>());
        if creating {
            self.break_group(handle, CollectiveError::RankLost(rank), true);
        } else {
            let body = match &g.state {
                // Whoever has not heard yet why the group broke must not take the leaving for the reason.
                State::Broken(error) => {
                    GroupMessage::Abort { fingerprint: g.members.fingerprint, error: error.clone() }
                }
                State::Creating { .. } | State::Ready => GroupMessage::Lost { rank, after, well },
            };
            let message = Message::Group { group: handle, body };
            self.out.messages.extend(others.into_iter().map(|sp| (sp, message.clone())));
            self.lose_rank(handle, rank, Lost { after, well });
        }
        self.retire_if_left(handle);
    }

    /// Every collective of the group fails, those in flight and those to come.
    pub(super) fn break_group(&mut self, handle: GroupHandle, error: CollectiveError, tell: bool) {
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        let askers = match &mut g.state {
            State::Broken(_) => return,
            State::Creating { askers, .. } => std::mem::take(askers),
            State::Ready => Vec::new(),
        };
        g.state = State::Broken(error.clone());
        for rank in askers {
            let result = if error.comes_of_a_call() {
                // Somebody could call, so the group is made, though we have not heard it yet: the calls here will fail.
                Ok(())
            } else {
                g.left.insert(rank);
                Err(GroupError::Failed(error.clone()))
            };
            self.out.events.push_back(Event::GroupReady { group: handle, rank, result });
        }
        for (instance, c) in &mut g.instances {
            self.out.touch(handle, *instance);
            c.fail(
                &mut Context {
                    config: &self.config,
                    members: &mut g.members,
                    out: &mut self.out,
                    transfer: &mut g.transfer,
                },
                error.clone(),
            );
        }
        g.failed |= g.tagged.in_flight() > 0;
        g.tagged.fail_all(
            &mut Context {
                config: &self.config,
                members: &mut g.members,
                out: &mut self.out,
                transfer: &mut g.transfer,
            },
            &error,
        );
        self.mind_turns(handle);
        let g = self.groups.get_mut(&handle).expect("found above");
        if tell {
            let (group, fingerprint) = (handle, g.members.fingerprint);
            let message = Message::Group { group, body: GroupMessage::Abort { fingerprint, error } };
            self.out.messages.extend(g.members.others().map(|sp| (sp, message.clone())));
        }
        self.retire_if_left(handle);
    }

    /// Clears away a collective that has ended.
    pub(super) fn end_collective(&mut self, handle: GroupHandle, instance: InstanceId) {
        let g = self.groups.get_mut(&handle).expect("a group outlives its collectives");
        let i = g.instances.remove(&instance).expect("a collective ends once");
        g.watches.remove(&instance);
        self.out.step(handle, instance, Step::Ended);
        assert!(i.ended(), "only what has ended is cleared away");
        g.failed |= i.failed();
        g.note_ended(instance);
        let (rank, signature) = i.signature();
        if signature.kind.is_exchange() {
            if g.exchanged.len() >= MAX_ENDED {
                g.exchanged.pop_front();
            }
            g.exchanged.push_back((instance, rank, signature));
        }
        let someone_left = !g.lost.is_empty();
        let opened = g.members.window_end + 1..=g.ended + WINDOW;
        g.members.window_end = g.ended + WINDOW;
        for instance in opened {
            self.with_instance_or_break(handle, InstanceId(instance), Instance::try_enter);
            self.compare_with_left(handle, InstanceId(instance));
        }
        if !self.groups.contains_key(&handle) {
            // Broken by what began, after all had left.
            return;
        }
        if someone_left {
            self.mind_peers(handle);
        }
        self.retire_if_left(handle);
    }

    fn retire_if_left(&mut self, handle: GroupHandle) {
        let done = |g: &Group| g.left.len() == g.asked.len() && g.in_flight() == 0;
        if self.groups.get(&handle).is_some_and(done) {
            let g = self.groups.remove(&handle).expect("just found");
            self.retire(handle, &g);
        }
    }

    fn retire(&mut self, handle: GroupHandle, group: &Group) {
        let members = &group.members;
        if self.retired.len() >= MAX_RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back(handle);
        if let State::Broken(error) = &group.state
            && group.asked.len() < members.locals.len()
        {
            if self.failed_groups.len() >= MAX_RETIRED {
                self.failed_groups.pop_front();
            }
            let (fingerprint, error) = (members.fingerprint, error.clone());
            self.failed_groups.push_back(FailedGroup { handle, fingerprint, error });
        }
        let since = (self.out.now, self.config.heartbeat);
        group.watched.iter().for_each(|sp| self.peers.watch(since, *sp, false));
        members.others().for_each(|sp| self.peers.count_group(self.out.now, sp, false));
        for channel in &members.channels {
            let users = self.channels.get_mut(channel).expect("joined with the group");
            *users -= 1;
            if *users == 0 {
                self.channels.remove(channel);
                self.out.events.push_back(Event::Leave(*channel));
            }
        }
    }
}
