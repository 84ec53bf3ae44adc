//! The machine of one service process: its groups, its links, and everything in flight.
//!
//! [`groups`] makes, breaks and ends groups and routes calls and messages to their collectives. [`peers`] keeps the
//! links. This module is the driver's interface and defines the order of sending: control messages first, then bulk
//! where links have room, then multicast as fast as the pacer allows. Groups take turns with bulk and multicast
//! ([`turns`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use outboard_plan::Rank;

use crate::config::Config;
use crate::deadlines::Deadlines;
use crate::effects::Effects;
use crate::error::{CollectiveError, GroupRefusal};
use crate::ids::{CallId, GroupHandle, InstanceId, Instant, OfferId, SpId};
use crate::instance::Instance;
use crate::interface::{
    EndpointCounters, Event, GroupSpec, InFlightInstance, MulticastBatch, OffloadedCall, Order, RankCall,
    ReceivedDatagram, Transmit,
};
use crate::link::{Acked, AckedKind, FrameAge, MessageOwner, ReceivedFrame};
use crate::multicast::pacing::{Pacer, SmallCalls};
use crate::recording::{RecordError, Recording};
use crate::wire::{DecodeError, FrameHeader, GroupMessage, Message};

mod datagrams;
mod destination;
mod groups;
mod idle_peers;
mod lateness;
mod offers;
mod peers;
mod pending_group_messages;
mod stall;
mod tagged;
mod turns;
mod uplink;

use groups::{FailedGroup, Group};
use offers::{RankOffers, Withdrawn};
use peers::{LossCause, Peers};
use pending_group_messages::PendingGroupMessages;
use stall::Stall;
use turns::{CallLoad, TurnScheduler};
use uplink::Uplink;

/// Most multicast batches that the driver may hold at once.
const MAX_BATCHES: usize = 16;
/// Most ended groups that are remembered. Late messages for such a group are dropped, and late ranks get an answer.
const MAX_RETIRED: usize = 4096;
/// Most messages of ended groups that are kept, because their receivers may not have received them.
const MAX_UNDELIVERED: usize = 1024;
/// Most broken groups whose error and members' addresses are remembered.
const MAX_FAILED: usize = 256;

/// The protocol of one service process. The crate's documentation describes how to drive it.
#[derive(Debug)]
pub struct Endpoint {
    groups: BTreeMap<GroupHandle, Group>,
    node: NodeState,
    /// Messages that the last frame acknowledged. The list is kept to reuse its allocation.
    acked: Vec<Acked>,
    pending_group_messages: PendingGroupMessages,
    offers: RankOffers,
    /// Ended groups by handle and fingerprint.
    retired: VecDeque<(GroupHandle, u64)>,
    /// Messages of ended groups that their peers may not have received, because the link was lost.
    undelivered: VecDeque<(SpId, Message)>,
    failed_groups: VecDeque<FailedGroup>,
    /// When to examine groups that are being made, or have something in flight.
    group_checks: Deadlines<GroupHandle>,
    batches: BTreeMap<u64, SentBatch>,
    next_token: u64,
    pacer: Pacer,
    uplink: Uplink,
}

/// The state of a service process that all its groups share.
#[derive(Debug)]
struct NodeState {
    id: SpId,
    config: Config,
    out: Effects,
    peers: Peers,
    turns: TurnScheduler,
    /// Calls of messages and recordings in flight.
    messages: usize,
    /// Groups with calls of messages or recordings in flight.
    tagged_groups: usize,
    /// Groups that all local ranks may have left.
    left: Vec<GroupHandle>,
    stall: Option<Stall>,
}

impl NodeState {
    fn begin(&mut self, group: GroupHandle, instance: InstanceId) {
        self.turns.insert(group, instance);
        self.out.mark_changed(group, instance);
        self.out.contention = self.turns.contention(self.out.now);
    }

    /// From now on a local rank waits for the bytes that its call moves.
    fn note_load(&mut self, group: GroupHandle, instance: InstanceId, load: CallLoad) {
        self.turns.load(group, instance, load);
        self.out.contention = self.turns.contention(self.out.now);
    }
}

#[derive(Debug)]
struct SentBatch {
    group: GroupHandle,
    instance: InstanceId,
    source: Rank,
    run: Range<u64>,
}

impl Endpoint {
    /// A service process without groups. `seed` makes the timers of service processes differ.
    pub fn new(id: SpId, config: Config, seed: u64) -> Self {
        Endpoint {
            groups: BTreeMap::new(),
            acked: Vec::new(),
            pending_group_messages: PendingGroupMessages::default(),
            offers: RankOffers::default(),
            retired: VecDeque::new(),
            undelivered: VecDeque::new(),
            failed_groups: VecDeque::new(),
            group_checks: Deadlines::default(),
            batches: BTreeMap::new(),
            next_token: seed | 1,
            pacer: Pacer::new(config.link_rate, config.switch_queue),
            uplink: Uplink::new(config.link_rate),
            node: NodeState {
                id,
                out: Effects::new(&config),
                peers: Peers::new(id),
                turns: TurnScheduler::new(SmallCalls::new(&config)),
                messages: 0,
                tagged_groups: 0,
                left: Vec::new(),
                stall: None,
                config,
            },
        }
    }

    pub fn id(&self) -> SpId {
        self.node.id
    }

    pub fn config(&self) -> &Config {
        &self.node.config
    }

    pub fn counters(&self) -> EndpointCounters {
        EndpointCounters { link_retransmissions: self.node.peers.retransmissions(), ..self.node.out.counters }
    }

    /// Groups, collectives in flight, and messages queued on links, for tests of bounds.
    pub fn load(&self) -> (usize, usize, usize) {
        // All messages of a group together count as one instance in `turns`.
        let collectives = self.node.turns.len() - self.node.tagged_groups + self.node.messages;
        (self.groups.len(), collectives, self.node.peers.backlog())
    }

    /// Number of other service processes that are remembered.
    pub fn peers(&self) -> usize {
        self.node.peers.known()
    }

    /// Handles an input at `now`.
    fn input(&mut self, now: Instant, handle: impl FnOnce(&mut Self)) {
        self.advance(now);
        handle(self);
        self.progress();
    }

    /// A local rank has received an offer. From now on the rank may pass the offer to others.
    pub fn handle_offer(&mut self, offer: OfferId) {
        self.offers.open(offer);
    }

    /// A local rank will not request a group by this offer any more, because the rank is gone or is refused. An offer
    /// that was used before is not affected. The rank that makes the group gets an error.
    pub fn handle_offer_withdrawn(&mut self, now: Instant, offer: OfferId, refused: Option<GroupRefusal>) {
        self.input(now, |sp| sp.withdraw_offer(offer, refused.map_or(Withdrawn::Gone, Withdrawn::Refused)));
    }

    /// The driver refuses a local rank this group. All members are notified of the reason.
    pub fn handle_refusal(&mut self, now: Instant, spec: &GroupSpec, rank: Rank, why: GroupRefusal) {
        self.input(now, |sp| sp.refuse_group(spec, rank, why));
    }

    /// A local rank requests a group. [`Event::GroupReady`] answers every local rank that requests the group.
    pub fn handle_create_group(&mut self, now: Instant, spec: &GroupSpec, rank: Rank) {
        self.input(now, |sp| sp.create_group(spec, rank));
    }

    /// A local rank leaves a group in order (without a call in flight there) or because its process died. The rank's
    /// calls in flight end with an error on all ranks that need this rank. Every such call still gets `Completed`.
    pub fn handle_leave(&mut self, now: Instant, group: GroupHandle, rank: Rank) {
        self.input(now, |sp| sp.leave_group(group, rank));
    }

    /// A local rank has recorded operations. `number` exceeds all earlier ones (GP-2) and is equal on all ranks.
    pub fn handle_record(
        &mut self,
        group: GroupHandle,
        rank: Rank,
        number: u32,
        recording: impl Into<Arc<Recording>>,
    ) -> Result<(), RecordError> {
        let g = self.groups.get_mut(&group).ok_or(RecordError::Group)?;
        g.record(&mut self.node.out, rank, number, recording.into())
    }

    /// A local rank frees a recording. False while a call of the recording has not ended.
    pub fn handle_free(&mut self, group: GroupHandle, rank: Rank, number: u32) -> bool {
        let Some(g) = self.groups.get_mut(&group) else { return true };
        g.tagged.free(&mut self.node.out, rank, number)
    }

    /// A local rank calls a collective, a recorded group or a message. Exactly one [`Event::Completed`] answers it.
    pub fn handle_call(&mut self, now: Instant, call: RankCall) {
        self.input(now, |sp| sp.route_call(call));
    }

    /// The number of a local rank's next collective, without messages and recordings. `None` for an unknown group.
    pub fn next_instance(&self, group: GroupHandle, rank: Rank) -> Option<InstanceId> {
        let g = self.groups.get(&group)?;
        Some(g.ranks.next_instance(g.members.local(rank)?))
    }

    /// A frame has arrived: `header` without payload, and the number of payload bytes that came with it.
    pub fn handle_frame(&mut self, now: Instant, from: SpId, header: &[u8], payload_len: u32) {
        self.advance(now);
        let (frame, body) = match FrameHeader::decode(header, payload_len) {
            Ok(decoded) => decoded,
            Err(_) => return self.node.out.violation(Some(from), "a malformed frame"),
        };
        match self.node.peers.frame_age(from, &frame) {
            FrameAge::Stale if self.node.peers.has_link(from) => {
                return self.node.peers.handle_stale(now, from, &frame);
            }
            FrameAge::Stale => return self.handle_stale_request(from, body),
            FrameAge::Current => {}
            FrameAge::Newer => self.lose_peer(from, LossCause::Renewed),
        }
        let mut acked = std::mem::take(&mut self.acked);
        let message = match self.node.peers.handle_frame(now, &self.node.config, from, &frame, body, &mut acked) {
            ReceivedFrame::Nothing => None,
            ReceivedFrame::Message(body) => Some(Message::decode(body)),
        };
        // The payload is handled before the acknowledgements, which might change the answer that `destination` gave.
        let message = match message {
            Some(message) if payload_len > 0 => {
                self.receive_message(from, message, payload_len);
                None
            }
            other => other,
        };
        for tag in acked.drain(..).filter_map(|acked| acked.tag) {
            // A group may end before all its messages are acknowledged.
            let Some(g) = self.groups.get_mut(&tag.group) else { continue };
            match tag.kind {
                AckedKind::Message { number } => {
                    g.transfer.handle_acked(number);
                    g.run_steps(&mut self.node);
                }
                AckedKind::Nak => _ = g.with_instance(&mut self.node, tag.instance, |i, _| i.handle_nak_acknowledged()),
            }
        }
        self.acked = acked;
        if let Some(message) = message {
            self.receive_message(from, message, payload_len);
        }
        self.progress();
    }

    /// A frame over a link that this end has given up but the peer has not. Only a `RequestStep` is handled: it carries
    /// the address for its answer, and may be received twice. The frame with the answer announces the new link.
    fn handle_stale_request(&mut self, from: SpId, body: &[u8]) {
        if let Ok(message @ Message::Group { body: GroupMessage::RequestStep { .. }, .. }) = Message::decode(body) {
            self.route_message(from, message, 0);
            self.progress();
        }
    }

    fn receive_message(&mut self, from: SpId, message: Result<Message, DecodeError>, payload_len: u32) {
        match message {
            Ok(message) => self.route_message(from, message, payload_len),
            Err(_) => self.node.out.violation(Some(from), "a malformed message"),
        }
    }

    /// Datagrams have arrived. Allocates nothing per datagram.
    pub fn handle_datagrams(&mut self, now: Instant, batch: &[ReceivedDatagram<'_>]) {
        self.input(now, |sp| sp.route_datagrams(batch));
    }

    pub fn handle_multicast_done(&mut self, now: Instant, token: u64) {
        self.advance(now);
        let b = self.batches.remove(&token).expect("the driver hands back tokens that it was given");
        let group = self.groups.get_mut(&b.group);
        let sent = group.and_then(|g| g.handle_sent(&mut self.node, b));
        assert!(sent.is_some(), "a collective outlives its batches");
        self.progress();
    }

    /// The engine beside the service process has completed a list ([`Event::Offload`]), or could not complete the list.
    pub fn handle_offloaded(&mut self, now: Instant, call: OffloadedCall, carried_out: bool) {
        self.input(now, |sp| sp.route_offloaded(call, carried_out));
    }

    pub fn handle_memory_fault(&mut self, now: Instant, call: CallId) {
        self.input(now, |sp| sp.route_fault(call, CollectiveError::Memory));
    }

    /// The driver has no memory for [`Order::Stage`]. Only the calls of this group fail, on all ranks.
    pub fn handle_no_memory(&mut self, now: Instant, group: GroupHandle, bytes: u64) {
        self.advance(now);
        if let Some(g) = self.groups.get_mut(&group) {
            let error = CollectiveError::Staging { rank: g.members.locals[0], bytes };
            // Orders that name the missing memory were skipped.
            self.node.out.fail_ending_of_group(group, &error);
            g.break_up(&mut self.node, error, true);
        }
        self.progress();
    }

    /// The buffers of a call cannot be accessed because the rank's process has ended; `handle_leave` follows.
    pub fn handle_rank_gone(&mut self, now: Instant, call: CallId) {
        self.input(now, |sp| sp.route_fault(call, CollectiveError::RankLost));
    }

    /// The only rank that could copy some bytes of a call in flight is gone: the call ends with this error.
    pub fn handle_bytes_lost(&mut self, call: CallId, error: CollectiveError) {
        self.node.out.bytes_lost(call, error);
    }

    pub fn handle_peer_lost(&mut self, now: Instant, peer: SpId) {
        self.input(now, |sp| sp.lose_peer(peer, LossCause::Reported));
    }

    /// The driver has no descriptor for this peer. Groups with the peer fail; the error names this service process.
    pub fn handle_no_descriptors(&mut self, now: Instant, peer: SpId) {
        self.advance(now);
        for g in self.groups.values_mut().filter(|g| g.members.index_of(peer).is_some()) {
            let error = CollectiveError::Refused { rank: g.members.locals[0], why: GroupRefusal::Descriptors };
            g.break_up(&mut self.node, error, true);
        }
        self.lose_peer(peer, LossCause::Reported);
        self.progress();
    }

    /// The driver is `full` of frames to this peer, or has room again. While the driver is full it gets no frames to
    /// this peer. So frames to others do not wait for a peer that accepts none.
    pub fn handle_full(&mut self, peer: SpId, full: bool) {
        self.node.peers.set_full(peer, full);
    }

    /// Time has passed. An early call is harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        self.handle_peer_timeout();
        self.check_groups();
        if let Some(limit) = self.node.config.group_timeout {
            self.pending_group_messages.expire(now, limit);
            self.offers.expire(now, limit);
        }
        let due: BTreeSet<_> = std::iter::from_fn(|| self.node.turns.pop_due(now)).collect();
        for (group, instance) in due {
            self.node.out.mark_changed(group, instance);
            let Some(g) = self.groups.get_mut(&group) else { continue };
            if g.instance(instance).and_then(Instance::poll_timeout).is_some_and(|t| t <= now) {
                g.with_instance_or_break(&mut self.node, instance, Instance::handle_timeout);
            }
            if g.watch_due(instance).is_some_and(|t| t <= now) {
                g.handle_watch_timeout(&mut self.node, instance);
            }
        }
        while self.node.out.allowance.is_left()
            && let Some((group, instance)) = self.node.out.unfinished.pop_front()
        {
            self.groups.get_mut(&group).into_iter().for_each(|g| g.resume(&mut self.node, instance));
        }
        self.progress();
    }

    /// The next work on memory. Orders precede all other effects. See [`Order`].
    pub fn poll_order(&mut self) -> Option<Order> {
        self.node.out.orders.pop_front()
    }

    pub fn has_orders(&self) -> bool {
        !self.node.out.orders.is_empty()
    }

    /// The next frame or batch to send at `now`. The driver does not poll while it has no room.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.advance(now);
        let frame = self.poll_frame(false);
        let transmit = frame.or_else(|| {
            self.fill_links();
            self.poll_frame(true)
        });
        let transmit = transmit.or_else(|| self.next_batch(now));
        self.progress();
        transmit
    }

    /// The next event. Drain events after orders, before [`Self::poll_transmit`]: a connection precedes its first
    /// frame.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.poll_event_unless_deferred(|_, _| false)
    }

    /// Like [`Self::poll_event`], for a driver that postpones orders: until a rank has copied bytes that only this rank
    /// can reach, or until a later turn. A call with deferred orders does not complete yet. The second argument of
    /// `is_deferred` returns whether a call has failed.
    pub fn poll_event_unless_deferred(
        &mut self,
        is_deferred: impl Fn(CallId, &dyn Fn(CallId) -> bool) -> bool,
    ) -> Option<Event> {
        self.node.out.poll_event(is_deferred)
    }

    /// When [`Self::handle_timeout`] (followed by the polls) is due. Poll this again after every other call.
    pub fn poll_timeout(&self) -> Option<Instant> {
        debug_assert!(self.totals_match(), "what is kept of all instances is what a look at each gives");
        let at_once = self.node.out.unfinished.front().map(|_| self.node.out.now);
        let timers =
            [self.node.turns.poll_timeout(), self.node.peers.poll_timeout(), self.group_checks.first(), at_once];
        timers.into_iter().flatten().min()
    }

    /// Whether the totals over all instances match the instances.
    fn totals_match(&self) -> bool {
        let summary = |(group, instance)| self.groups.get(&group).and_then(|g| g.summary(instance));
        let all = || self.node.turns.iter().filter_map(summary);
        let messages: usize = self.groups.values().map(|g| g.tagged.in_flight()).sum();
        all().filter_map(|summary| summary.deadline).min() == self.node.turns.poll_timeout()
            && all().any(|summary| summary.multicasts) == self.node.turns.multicasts()
            && all().filter(|summary| summary.repairs).count() == self.node.turns.with_repairs().count()
            && messages == self.node.messages
    }

    /// When [`Self::poll_transmit`] has more to send than now, if the driver has room.
    pub fn next_transmit(&self) -> Option<Instant> {
        let pacer = self.wants_to_multicast().then(|| self.pacer.next());
        [self.node.peers.next_poll(), self.uplink.poll_timeout(), pacer].into_iter().flatten().min()
    }

    /// The collectives and messages in flight at `now`, each with the ranks that it waits for.
    pub fn in_flight(&self, now: Instant) -> impl Iterator<Item = InFlightInstance> + '_ {
        let instances = self.node.turns.iter().filter_map(move |(group, instance)| {
            let group = self.groups.get(&group)?;
            Some(group.instance(instance)?.in_flight_now(now, &group.members, &group.transfer))
        });
        let messages = self.groups.values().filter_map(move |group| group.tagged_in_flight(now));
        instances.chain(messages)
    }

    fn wants_to_multicast(&self) -> bool {
        self.batches.len() < MAX_BATCHES && self.node.turns.multicasts()
    }

    /// The next multicast batch of the group whose turn it is (MC-13), when the pacer allows a batch.
    fn next_batch(&mut self, now: Instant) -> Option<Transmit> {
        self.update_totals();
        if !self.node.turns.multicasts() {
            self.pacer.rest();
        }
        if now < self.pacer.next() || self.batches.len() >= MAX_BATCHES {
            return None;
        }
        let (group, instance) = self.node.turns.next_multicast()?;
        let found = self.groups.get_mut(&group).and_then(|g| g.next_batch(&mut self.node, instance));
        let (pace, batch) = found.expect("what is noted to multicast has a batch");
        let members = &self.groups[&group].members;
        let chunks = (batch.run.end - batch.run.start) as u32;
        let bytes = batch.memory.len;
        self.pacer.sent(now, bytes + u64::from(chunks * self.node.config.datagram_overhead), pace.rate);
        if batch.again {
            self.node.out.counters.retransmitted_bytes += bytes;
        } else {
            self.node.out.counters.multicast_bytes += bytes;
        }
        let token = self.next_token;
        self.next_token = self.next_token.wrapping_add(1);
        self.batches.insert(token, SentBatch { group, instance, source: batch.source, run: batch.run });
        Some(Transmit::Multicast(MulticastBatch {
            token,
            channel: batch.channel,
            reach: members.reach,
            header: batch.header,
            instance,
            key: members.key,
            chunks,
            chunk_bytes: self.node.config.chunk_bytes,
            memory: batch.memory,
        }))
    }

    /// After every input: passes messages to their links and removes ended collectives.
    fn progress(&mut self) {
        self.retire_left();
        while self.node.out.has_internal_work() {
            while let Some((owner, region)) = self.node.out.freed_memory.pop() {
                self.node.peers.void_memory(owner, region);
            }
            while let Some((to, message)) = self.node.out.messages.pop_front() {
                self.node.push_message(to, &message);
            }
            for (group, instance) in std::mem::take(&mut self.node.out.ended_instances) {
                self.node.turns.remove(self.node.out.now, group, instance);
                self.node.peers.void_owner(MessageOwner::Instance(group, instance));
                // The next collective may begin now and send more messages.
                let g = self.groups.get_mut(&group).expect("a group outlives its collectives");
                g.end_collective(&mut self.node, instance);
            }
            self.retire_left();
        }
        self.evict_idle_peers();
        self.update_totals();
        self.node.out.contention = self.node.turns.contention(self.node.out.now);
    }

    /// Updates the totals over all instances.
    fn update_totals(&mut self) {
        while let Some((group, instance)) = self.node.out.changed.pop() {
            let Some(g) = self.groups.get_mut(&group) else { continue };
            if let Some(summary) = g.summary(instance) {
                self.node.turns.note(group, instance, summary);
            }
            if let Some(at) = g.next_check(&self.node) {
                self.group_checks.change(group, None, Some(at));
            }
        }
    }
}
