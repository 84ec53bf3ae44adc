//! The links to other service processes, and the evidence that one of them is dead.
//!
//! A peer that owes an acknowledgement for too long is lost, with all its groups; such a group stays lost. A peer that
//! sends for a longer time but acknowledges nothing new is lost, too, and an event reports that peer. A peer that sends
//! but acknowledges nothing new may be silent a second longer than others. So on a one-way cut the end that receives
//! nothing reports first. The link stays for groups that were requested recently; without such a group the link is
//! lost, too. When packets flow again, the first new group makes a new link. An end that has not noticed the silence
//! learns of the new link by its number. `groups/reconnect.rs` decides which groups continue.
//!
//! Neighbours in the ring of a group are watched: a silent neighbour gets a message to acknowledge. A peer need not
//! know who watches it. A peer that has never sent may not know of the group yet. Such a peer may be silent until it
//! has received a `RequestStep` with the offers of its ranks and our address, or until the group is made. The last
//! peers without a group are remembered (`idle_peers.rs`); a forgotten peer gets a new link.
//!
//! Invariant: totals over all peers ([`PeerSummary`]) are updated when a peer changes, so that no event costs more with
//! more peers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::config::Config;
use crate::ids::{GroupHandle, InstanceId, Instant, SpId, TAGGED};
use crate::interface::{Event, FramePayload, MemRef, MemRegion, Transmit, payload_bytes};
use crate::link::{AckTag, Acked, AckedKind, FrameAge, Link, MessageOwner, ReceivedFrame};
use crate::multicast::pacing::Quantum;
use crate::transfer::Target;
use crate::wire::{FrameHeader, GroupMessage, Message};

use super::idle_peers::IdlePeers;
use super::{Endpoint, NodeState};
use crate::deadlines::Deadlines;

mod peer;

pub(super) use peer::Peer;
use peer::PeerSummary;

/// Messages that may wait for one peer's acknowledgement. A peer that causes more and acknowledges nothing is lost.
const MAX_BACKLOG: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LossCause {
    /// The peer owed an acknowledgement for too long, whether it sent or not.
    Silent,
    /// The peer has given up the link and made another.
    Renewed,
    /// The fabric reports that the peer is gone.
    Reported,
}

/// All other service processes that are known.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Boxed, since the tree is searched for every frame.
    all: BTreeMap<SpId, Box<Peer>>,
    /// Number of links made so far.
    links: u32,
    /// Peers whose backlog is too long.
    overfull: BTreeSet<SpId>,
    /// The receiver of the last frame.
    sent_to: Option<SpId>,
    /// Peers whose links have a message to send.
    messages: BTreeSet<SpId>,
    /// Peers whose links have an acknowledgement to send.
    acks: BTreeSet<SpId>,
    acks_due: Deadlines<SpId>,
    beats_due: Deadlines<SpId>,
    timers: Deadlines<SpId>,
    idle: IdlePeers,
    backlog: usize,
    /// Bytes of payload in messages that wait for sending or acknowledgement.
    payload: u64,
    retransmissions: u64,
    /// Peers to which frames may still be needed.
    connected: usize,
    /// Number of messages of an owner on a link.
    owned: BTreeMap<(MessageOwner, SpId), usize>,
}

impl Peers {
    /// No peers yet. The turns of the service process `id` begin with the peers after `id`.
    pub(super) fn new(id: SpId) -> Self {
        Peers { sent_to: Some(id), ..Peers::default() }
    }

    /// Messages that wait for sending or acknowledgement.
    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    pub(super) fn known(&self) -> usize {
        self.all.len()
    }

    /// The oldest peer without a group, if there are more than the limit, once silent for `dead_after`. A peer that
    /// still needs us would have sent again by then.
    fn excess(&self, now: Instant, config: &Config) -> Option<SpId> {
        let is_quiet = |peer: &SpId| self.all[peer].link.silent_since() + config.dead_after <= now;
        self.idle.excess(config.idle_peers).filter(is_quiet)
    }

    /// Whether a group with these peers may be made: see [`Config::peers`].
    pub(super) fn has_room(&self, others: impl Iterator<Item = SpId>, config: &Config) -> bool {
        let new = others.filter(|id| self.all.get(id).is_none_or(|peer| !peer.summary.connected)).count();
        new == 0 || self.connected + new <= config.peers
    }

    /// Notes whether a peer waits for a local rank to request a group.
    pub(super) fn set_awaits_rank(&mut self, peer: SpId, awaits_rank: bool) {
        self.change(peer, |peer| peer.awaits_rank = awaits_rank);
    }

    pub(super) fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// When [`Endpoint::handle_peer_timeout`] is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let first = self.timers.first();
        debug_assert_eq!(first, self.all.values().filter_map(|peer| peer.summary().timer).min(), "kept as it changes");
        first
    }

    /// When a link has more to send than now.
    pub(super) fn next_poll(&self) -> Option<Instant> {
        let waiting = (!self.acks.is_empty()).then_some(Instant(0));
        [waiting, self.acks_due.first(), self.beats_due.first()].into_iter().flatten().min()
    }

    fn change<T>(&mut self, id: SpId, change: impl FnOnce(&mut Peer) -> T) -> Option<T> {
        let peer = self.all.get_mut(&id)?;
        let result = change(peer);
        let (before, after) = (peer.summary, peer.summary());
        peer.summary = after;
        if before != after {
            self.note(id, before, after);
        }
        Some(result)
    }

    fn note(&mut self, id: SpId, before: PeerSummary, after: PeerSummary) {
        if before.message != after.message {
            _ = if after.message { self.messages.insert(id) } else { self.messages.remove(&id) };
        }
        self.acks.remove(&id);
        self.acks_due.change(id, before.ack, after.ack);
        self.beats_due.change(id, before.beat, after.beat);
        self.timers.change(id, before.timer, after.timer);
        if before.idle != after.idle {
            self.idle.note(id, after.idle);
        }
        self.connected = self.connected - usize::from(before.connected) + usize::from(after.connected);
        self.backlog = self.backlog - before.backlog + after.backlog;
        self.payload = self.payload - before.payload + after.payload;
        self.retransmissions += after.retransmissions - before.retransmissions;
    }

    /// Marks acknowledgements and signs of life that have become due for sending.
    fn mark_due(&mut self, now: Instant) {
        while let Some(id) = self.acks_due.pop_due(now) {
            self.acks.insert(id);
            self.all.get_mut(&id).into_iter().for_each(|peer| peer.summary.ack = None);
        }
        while let Some(id) = self.beats_due.pop_due(now) {
            self.messages.insert(id);
            let summary = self.all.get_mut(&id).map(|peer| &mut peer.summary);
            summary.into_iter().for_each(|summary| (summary.beat, summary.message) = (None, true));
        }
    }

    /// Makes this end of the link with a peer, if it does not exist.
    fn make_link(&mut self, now: Instant, config: &Config, id: SpId) {
        self.all.entry(id).or_insert_with(|| {
            self.links = self.links.checked_add(1).unwrap_or(1); // never 0
            Box::new(Peer::unknown(self.links, now, config))
        });
    }

    pub(super) fn has_link(&self, id: SpId) -> bool {
        self.all.contains_key(&id)
    }

    /// A peer was silent for too long. The link stays for the groups that continue, and these groups must be counted
    /// and watched again. The peer may be silent for `patience` until its next frame. Returns the peer's address.
    pub(super) fn keep_link(&mut self, now: Instant, id: SpId, patience: Duration) -> Option<Arc<[u8]>> {
        let keep_link = |peer: &mut Peer| {
            (peer.groups, peer.watched_by) = (0, 0);
            (peer.knows_us, peer.dead_after, peer.deaf_for) = (true, patience, Duration::ZERO);
            peer.link.set_heartbeat(None);
            peer.link.resume(now);
            peer.address.clone()
        };
        self.change(id, keep_link)?
    }

    /// Makes a new link over which groups continue. The peer may be silent for `patience` until its first frame.
    pub(super) fn renew_link(
        &mut self,
        now: Instant,
        config: &Config,
        id: SpId,
        address: Option<Arc<[u8]>>,
        patience: Duration,
    ) {
        self.make_link(now, config, id);
        self.change(id, |peer| {
            peer.address = address;
            peer.knows_us = true;
            peer.dead_after = patience;
        });
    }

    /// The other end of a link is a new one. Returns whether this end stays.
    pub(super) fn adopt_new_end(&mut self, id: SpId) -> bool {
        self.change(id, |peer| peer.link.adopt_new_end()).unwrap_or(false)
    }

    /// Handles a frame of a former link.
    pub(super) fn handle_stale(&mut self, now: Instant, from: SpId, frame: &FrameHeader) {
        self.change(from, |peer| peer.link.handle_stale(now, frame));
    }

    /// The link that a frame of a peer belongs to. A frame to a link that does not exist belongs to a former link.
    pub(super) fn frame_age(&self, from: SpId, frame: &FrameHeader) -> FrameAge {
        let without_link = if frame.to == 0 { FrameAge::Current } else { FrameAge::Stale };
        self.all.get(&from).map_or(without_link, |peer| peer.link.frame_age(frame))
    }

    /// Whether a frame carries the next message of a peer's link.
    pub(super) fn is_next(&self, from: SpId, frame: &FrameHeader) -> bool {
        self.all.get(&from).is_some_and(|peer| peer.link.is_next(frame))
    }

    /// Handles a frame of a peer and makes its link if needed. Appends acknowledged messages to `acked`.
    pub(super) fn handle_frame<'a>(
        &mut self,
        now: Instant,
        config: &Config,
        from: SpId,
        frame: &FrameHeader,
        body: &'a [u8],
        acked: &mut Vec<Acked>,
    ) -> ReceivedFrame<'a> {
        self.make_link(now, config, from);
        let received = self.change(from, |peer| peer.handle_frame(now, config, frame, body, acked));
        acked.iter().for_each(|acked| self.disown(acked.owner, from, 1));
        received.unwrap_or(ReceivedFrame::Nothing)
    }

    /// Queues a message. A message to a lost peer is dropped: such a peer has no link, or no address if it has sent
    /// again since. The groups of a lost peer are broken, so nothing waits for the message.
    pub(super) fn push(&mut self, now: Instant, to: SpId, message: &Message, payload: FramePayload, tags: Acked) {
        let backlog = self.change(to, |peer| {
            peer.address.as_ref()?;
            peer.link.push(now, message, payload, tags.owner, tags.tag);
            Some(peer.link.backlog())
        });
        if let Some(backlog) = backlog.flatten() {
            tags.owner.into_iter().for_each(|owner| *self.owned.entry((owner, to)).or_default() += 1);
            self.overfull.extend((backlog > MAX_BACKLOG).then_some(to));
        }
    }

    fn disown(&mut self, owner: Option<MessageOwner>, at: SpId, count: usize) {
        let Some(owner) = owner else { return };
        if let Some(held) = self.owned.get_mut(&(owner, at)) {
            *held -= count;
            if *held == 0 {
                self.owned.remove(&(owner, at));
            }
        }
    }

    /// The owner has ended: voids the owner's messages on all links.
    pub(super) fn void_owner(&mut self, owner: MessageOwner) {
        for at in self.holders(owner) {
            self.change(at, |peer| peer.link.void_owner(owner));
            self.owned.remove(&(owner, at));
        }
    }

    /// Memory of the owner is freed: links must not read this memory any more.
    pub(super) fn void_memory(&mut self, owner: MessageOwner, region: MemRegion) {
        for at in self.holders(owner) {
            let forgotten = self.change(at, |peer| peer.link.void_memory(region));
            self.disown(Some(owner), at, forgotten.unwrap_or(0));
        }
    }

    fn holders(&self, owner: MessageOwner) -> Vec<SpId> {
        self.owned.range((owner, SpId(0))..=(owner, SpId(u64::MAX))).map(|((_, at), _)| *at).collect()
    }

    /// Notes whether the driver has room for frames to a peer.
    pub(super) fn set_full(&mut self, peer: SpId, full: bool) {
        self.change(peer, |peer| peer.full = full);
    }

    pub(super) fn count_group(&mut self, now: Instant, peer: SpId, there: bool) {
        self.change(peer, |peer| {
            peer.groups = if there { peer.groups + 1 } else { peer.groups - 1 };
            peer.awaits_rank &= !there;
            peer.has_address &= there || peer.groups > 0;
            if peer.groups == 0 {
                peer.link.expect_answer(now);
            }
        });
    }

    /// Starts (or stops) watching a neighbour of a made group. A watched neighbour is polled after `period` of silence.
    pub(super) fn watch(&mut self, now: Instant, period: Duration, peer: SpId, start: bool) {
        self.change(peer, |peer| {
            if start && peer.watched_by == 0 {
                peer.link.expect_answer(now);
            }
            peer.watched_by = if start { peer.watched_by + 1 } else { peer.watched_by - 1 };
            peer.link.set_heartbeat((peer.watched_by > 0).then_some(period));
        });
    }

    /// A peer has our address, from a `RequestStep` or a group that is made. From now on its silence means that it is
    /// dead.
    pub(super) fn expect_answer(&mut self, now: Instant, peer: SpId) {
        self.change(peer, |peer| {
            if !std::mem::replace(&mut peer.has_address, true) {
                peer.link.expect_answer(now);
            }
        });
    }

    /// Handles the timers of peers. Returns the dead ones.
    fn handle_timeout(&mut self, now: Instant) -> Vec<SpId> {
        let mut dead = Vec::new();
        let due: Vec<SpId> = std::iter::from_fn(|| self.timers.pop_due(now)).collect();
        for id in due {
            let dies = self.change(id, |peer| {
                peer.summary.timer = None;
                peer.link.handle_timeout(now);
                peer.dies_at().is_some_and(|at| at <= now)
            });
            dead.extend(dies.filter(|dies| *dies).map(|_| id));
        }
        dead.extend(std::mem::take(&mut self.overfull));
        dead.sort_unstable();
        dead.dedup();
        dead
    }

    /// Whether the peer sends, and has acknowledged nothing new for too long.
    fn is_deaf(&self, peer: SpId) -> bool {
        self.all.get(&peer).is_some_and(|peer| peer.is_deaf())
    }

    pub(super) fn remove_peer(&mut self, peer: SpId) -> Option<Peer> {
        let lost = *self.all.remove(&peer)?;
        let retransmissions = lost.summary.retransmissions;
        self.note(peer, lost.summary, PeerSummary { retransmissions, ..PeerSummary::default() });
        self.owned.retain(|(_, at), _| *at != peer);
        self.overfull.remove(&peer);
        Some(lost)
    }

    fn serve(&mut self, to: SpId, group: GroupHandle) {
        self.all.get_mut(&to).into_iter().for_each(|peer| peer.served = Some(group));
    }

    /// The next frame with a message. If `bare`, the frame may also carry an acknowledgement alone.
    fn poll_frame(&mut self, now: Instant, bare: bool) -> Option<Transmit> {
        loop {
            self.mark_due(now);
            // Service processes begin with different peers: in one common order peers would wait for each other.
            let last = self.sent_to;
            let next = |ids: &BTreeSet<SpId>| {
                let later = last.and_then(|last| ids.range((Bound::Excluded(last), Bound::Unbounded)).next());
                later.or_else(|| ids.first()).copied()
            };
            let acks = next(&self.acks).filter(|_| bare);
            let to = next(&self.messages).into_iter().chain(acks).min_by_key(|id| (Some(*id) <= last, *id))?;
            let poll = if bare { Link::poll } else { Link::poll_message };
            if let Some((header, payload)) = self.change(to, |peer| poll(&mut peer.link, now))? {
                self.sent_to = Some(to);
                return Some(Transmit::Frame { to, header, payload });
            }
            // The pending message or acknowledgement has gone with another frame, or is not needed any more.
            self.messages.remove(&to);
            if bare {
                self.acks.remove(&to);
            }
        }
    }
}

impl NodeState {
    /// A local rank requests a group with `peer`, or the peer must learn that there is no such group.
    pub(super) fn connect_peer(&mut self, peer: SpId, address: &Arc<[u8]>) {
        self.peers.make_link(self.out.now, &self.config, peer);
        let connected = self.peers.change(peer, |peer| {
            let connected = peer.address.is_none();
            peer.address.get_or_insert_with(|| Arc::clone(address));
            connected
        });
        if connected == Some(true) {
            self.out.events.push_back(Event::Connect { peer, address: Arc::clone(address) });
        }
    }

    pub(super) fn push_message(&mut self, to: SpId, message: &Message) {
        let ask = match message {
            Message::Group { group, body: GroupMessage::Instance { instance, body } } if body.is_nak() => {
                Some((*group, *instance))
            }
            Message::Group { .. } | Message::Void => None,
        };
        let owner = ask.map(|(group, instance)| MessageOwner::Instance(group, instance));
        let tag = ask.map(|(group, instance)| AckTag { group, instance, kind: AckedKind::Nak, urgent: true });
        self.peers.push(self.out.now, to, message, FramePayload::Empty, Acked { owner, tag });
    }
}

impl Endpoint {
    pub(super) fn handle_peer_timeout(&mut self) {
        for peer in self.node.peers.handle_timeout(self.node.out.now) {
            if self.node.peers.is_deaf(peer) {
                self.node.out.violation(Some(peer), "the peer sends and acknowledges nothing: it is lost");
            }
            self.lose_peer(peer, LossCause::Silent);
        }
    }

    /// Forgets the oldest peers without a group beyond the limit, with their links.
    pub(super) fn evict_idle_peers(&mut self) {
        while let Some(peer) = self.node.peers.excess(self.node.out.now, &self.node.config) {
            let address = self.node.peers.remove_peer(peer).and_then(|lost| lost.address);
            self.node.out.events.extend(address.map(|_| Event::Disconnect { peer }));
        }
    }

    pub(super) fn poll_frame(&mut self, bare: bool) -> Option<Transmit> {
        let frame = self.node.peers.poll_frame(self.node.out.now, bare)?;
        if let Transmit::Frame { payload, .. } = &frame {
            self.node.out.counters.frames += 1;
            self.node.out.counters.control_frames += u64::from(payload.is_empty());
        }
        Some(frame)
    }

    /// Moves bulk (fragments, repairs) of the collectives in flight to links that have room. Each link gets one piece,
    /// from the groups in turn (MC-13). So while the fabric is full, new bulk waits behind a single piece. No bulk goes
    /// to other hosts while this host's link has enough to send. Called when all links have sent their messages.
    pub(super) fn fill_links(&mut self) {
        let quantum = Quantum::new(&self.node.config, self.node.out.contention);
        let mut targets: SmallVec<[Target; 8]> = SmallVec::new();
        for group in self.node.turns.with_transfers() {
            targets.extend(self.groups.get(&group).into_iter().flat_map(|g| g.transfer.bulk_targets()));
        }
        for (group, _) in self.node.turns.with_repairs() {
            targets.extend(self.groups.get(&group).map(|g| Target::of_frame(g.members.right())));
        }
        // If a peer has several targets, the target with the longest message counts.
        targets.sort_unstable_by_key(|target| (target.to, Reverse((target.bytes, target.is_whole))));
        targets.dedup_by_key(|target| target.to);
        let links = targets.len();
        let now = self.node.out.now;
        let is_shut = self.uplink.is_shut(now, &self.node.config, &targets, self.node.peers.payload);
        self.uplink.is_awaited = false;
        for Target { to, bytes, .. } in targets {
            let room = self.node.peers.change(to, |peer| {
                let round_trip = peer.link.least_round_trip();
                peer.link.set_window(quantum.queued(&self.node.config, links, round_trip, bytes));
                (peer.address.is_some() && peer.link.has_room()).then_some(peer.served)
            });
            let Some(Some(served)) = room else { continue };
            let next = self.node.turns.bulk_after(served).into_iter().find_map(|group| {
                let g = self.groups.get_mut(&group)?;
                let over_link = g.members.is_elsewhere(to);
                if over_link && is_shut {
                    self.uplink.is_awaited = true;
                    return None;
                }
                let (transfer, site) = g.transfer(&mut self.node);
                let bulk = transfer.next_bulk(&site, to, links);
                let repair = || {
                    self.node.turns.repairs_of(group).find_map(|instance| {
                        let (mut cx, found) = g.parts(&self.node.config, &mut self.node.out, instance);
                        found?.next_repair(&mut cx, to)
                    })
                };
                Some((group, over_link, bulk.or_else(repair)?))
            });
            let Some((group, over_link, bulk)) = next else { continue };
            if over_link {
                self.uplink.sent(now, &self.node.config, payload_bytes(&bulk.payload));
            }
            self.node.peers.serve(to, group);
            let owner = owner_of(group, bulk.instance, &bulk.payload);
            self.node.peers.push(now, to, &bulk.message, bulk.payload, Acked { owner, tag: bulk.tag });
            self.groups.get_mut(&group).into_iter().for_each(|g| g.run_steps(&mut self.node));
        }
    }
}

/// The owner whose end makes a bulk frame void: the instance, or for a tagged message the call of the buffer.
fn owner_of(group: GroupHandle, instance: InstanceId, payload: &[MemRef]) -> Option<MessageOwner> {
    if instance != TAGGED {
        return Some(MessageOwner::Instance(group, instance));
    }
    payload.first().and_then(|piece| match piece.region {
        MemRegion::Input(call) | MemRegion::Output(call) => Some(MessageOwner::Call(call)),
        MemRegion::Staging(_) => None,
    })
}
