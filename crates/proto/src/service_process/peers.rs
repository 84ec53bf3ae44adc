//! The links to other service processes, and the evidence that one of them is dead.
//!
//! A link lives as long as its peer: both ends count from the same start, so neither may forget it alone. A peer that
//! owes an acknowledgement for too long is dead; neighbours in the ring of a group are watched: when they are silent, they
//! are sent something to acknowledge. Nobody has to know by whom it is watched. A peer that was never heard and shares no
//! group with us is not dead but dormant: it may never have heard of us.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use crate::config::Config;
use crate::error::CollectiveError;
use crate::ids::{GroupHandle, Instant, SpId};
use crate::interface::{Event, MemRef, Transmit};
use crate::link::{Link, Tag, Tagged};
use crate::pacing::Portion;
use crate::transfer::{Bulk, Site};
use crate::wire::{GroupMessage, Message};

use super::ServiceProcess;

/// Dead peers that are remembered.
const MAX_LOST: usize = 4096;
/// Peers that were never heard and may stay silent; each keeps a connection.
const MAX_DORMANT: usize = 64;

/// Another service process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) link: Link,
    /// Known once a group with it is asked for here; nothing can be sent before.
    address: Option<Arc<[u8]>>,
    /// Groups in whose ring it is a neighbour.
    watched_by: u32,
    /// Groups with it.
    groups: u32,
    /// Nothing is sent to it until it is heard or needed again.
    dormant: bool,
    dead_after: std::time::Duration,
    /// The group whose bulk was queued last.
    served: Option<GroupHandle>,
}

impl Peer {
    /// A peer that was heard before a group with it was asked for here.
    pub(super) fn unknown(now: Instant, config: &Config) -> Self {
        let link = Link::new(now, config.retransmit_floor);
        let dead_after = config.dead_after;
        Peer { link, address: None, watched_by: 0, groups: 0, dormant: false, dead_after, served: None }
    }

    /// Whoever was never heard may not have been asked for the group yet, and then cannot answer.
    fn can_answer(&self) -> bool {
        self.link.heard() || self.watched_by > 0
    }

    /// When it has owed an acknowledgement for too long.
    fn overdue_at(&self) -> Option<Instant> {
        (self.link.backlog() > 0 && self.is_reachable()).then(|| self.link.last_owed() + self.dead_after)
    }

    fn dies_at(&self) -> Option<Instant> {
        self.overdue_at().filter(|_| self.can_answer())
    }

    /// When it is left alone: it need not answer, and no group is there for which it should. It is not dead for that: a
    /// rank of ours may have named it in a group that its ranks know nothing of.
    fn dormant_at(&self) -> Option<Instant> {
        self.overdue_at().filter(|_| !self.can_answer() && self.groups == 0)
    }

    /// Whether anything is to be sent to it.
    fn is_reachable(&self) -> bool {
        self.address.is_some() && !self.dormant
    }

    /// Messages that wait to be sent or acknowledged.
    pub(super) fn backlog(&self) -> usize {
        if self.dormant { 0 } else { self.link.backlog() }
    }

    /// It was heard.
    pub(super) fn wake(&mut self) {
        self.dormant = false;
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let link = self.is_reachable().then(|| self.link.poll_timeout()).flatten();
        [link, self.dies_at(), self.dormant_at()].into_iter().flatten().min()
    }

    pub(super) fn next_poll(&self) -> Option<Instant> {
        self.is_reachable().then(|| self.link.next_poll()).flatten()
    }
}

/// What a link may be asked for: [`Link::poll`] or [`Link::poll_message`].
type Poll = fn(&mut Link, Instant) -> Option<(Vec<u8>, Vec<MemRef>)>;

/// The frame of the first of `peers` that has one.
fn poll_first<'a>(peers: impl Iterator<Item = (&'a SpId, &'a mut Peer)>, now: Instant, poll: Poll) -> Option<Transmit> {
    peers.into_iter().filter(|(_, peer)| peer.is_reachable()).find_map(|(to, peer)| {
        let (header, payload) = poll(&mut peer.link, now)?;
        Some(Transmit::Frame { to: *to, header, payload })
    })
}

impl ServiceProcess {
    /// A group with `peer` is asked for.
    pub(super) fn meet_peer(&mut self, peer: SpId, address: &Arc<[u8]>) {
        let now = self.out.now;
        let entry = self.peers.entry(peer).or_insert_with(|| Peer::unknown(now, &self.config));
        if entry.address.is_none() {
            entry.address = Some(Arc::clone(address));
            self.out.events.push_back(Event::Connect { peer, address: Arc::clone(address) });
        }
    }

    /// A group with `peer` is there, or is gone.
    pub(super) fn count_group(&mut self, peer: SpId, there: bool) {
        let now = self.out.now;
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        entry.groups = if there { entry.groups + 1 } else { entry.groups - 1 };
        entry.dormant &= !there;
        if entry.groups == 0 {
            entry.link.expect_answer(now);
        }
    }

    /// Whether the peer was declared dead. It stays dead: its links and groups are gone, a restarted one is another.
    pub(super) fn is_lost(&self, peer: SpId) -> bool {
        self.lost_peers.contains(&peer)
    }

    /// Starts (or stops) to watch a neighbour of a group that is made.
    pub(super) fn watch_peer(&mut self, peer: SpId, start: bool) {
        let (now, period) = (self.out.now, self.config.heartbeat);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        if start && entry.watched_by == 0 {
            entry.link.expect_answer(now);
        }
        entry.watched_by = if start { entry.watched_by + 1 } else { entry.watched_by - 1 };
        entry.link.set_heartbeat((entry.watched_by > 0).then_some(period));
    }

    pub(super) fn push_message(&mut self, to: SpId, message: &Message) {
        // A peer that was lost has no link any more: its groups are broken, nobody waits for the message.
        if let Some(peer) = self.peers.get_mut(&to) {
            let ask = match message {
                Message::Group { group, body: GroupMessage::Instance { instance, body } } if body.is_nak() => {
                    Some((*group, *instance))
                }
                Message::Group { .. } | Message::Void => None,
            };
            let tag = ask.map(|(group, instance)| Tag { group, instance, what: Tagged::Nak, urgent: true });
            peer.link.push(self.out.now, message, Vec::new(), ask, tag);
        }
    }

    pub(super) fn time_peers(&mut self) {
        let now = self.out.now;
        let dead: Vec<SpId> =
            self.peers.iter().filter(|(_, p)| p.dies_at().is_some_and(|t| t <= now)).map(|(id, _)| *id).collect();
        for id in dead {
            self.lose_peer(id);
        }
        for p in self.peers.values_mut().filter(|p| p.dormant_at().is_some_and(|t| t <= now)) {
            p.dormant = true;
            p.link.forget_unsent();
        }
        let dormant: Vec<SpId> = self.peers.iter().filter(|(_, p)| p.dormant).map(|(id, _)| *id).collect();
        for id in dormant.into_iter().skip(MAX_DORMANT) {
            self.lose_peer(id);
        }
        self.peers.values_mut().for_each(|p| p.link.handle_timeout(now));
    }

    /// A peer is dead: its groups are broken.
    pub(super) fn lose_peer(&mut self, peer: SpId) {
        let known = self.peers.remove(&peer).is_some_and(|p| p.address.is_some());
        if !self.is_lost(peer) {
            if self.lost_peers.len() >= MAX_LOST {
                self.lost_peers.pop_front();
            }
            self.lost_peers.push_back(peer);
        }
        let hit: Vec<GroupHandle> =
            self.groups.iter().filter(|(_, g)| g.members.index_of(peer).is_some()).map(|(h, _)| *h).collect();
        for handle in hit {
            let members = &self.groups[&handle].members;
            let at = members.index_of(peer).expect("just found");
            let error = CollectiveError::PeerLost { sp: peer, rank: members.lowest_rank(at) };
            self.break_group(handle, error, true);
        }
        self.strangers.remove(&peer);
        if known {
            self.out.events.push_back(Event::Disconnect { peer });
        }
    }

    pub(super) fn poll_frame(&mut self, now: Instant, poll: Poll) -> Option<Transmit> {
        // In turns that everybody begins with another: sent to in one order by all, peers would wait for each other's bytes.
        let later = (Bound::Excluded(self.sent_to), Bound::Unbounded);
        let frame = poll_first(self.peers.range_mut(later), now, poll)
            .or_else(|| poll_first(self.peers.range_mut(..=self.sent_to), now, poll))?;
        if let Transmit::Frame { to, payload, .. } = &frame {
            self.sent_to = *to;
            self.out.counters.frames += 1;
            self.out.counters.control_frames += u64::from(payload.is_empty());
        }
        Some(frame)
    }

    /// Moves bulk (fragments, repairs) of the collectives in flight to links that have room, one piece to each, of the groups in
    /// turn (MC-13): what comes meanwhile waits behind no more than that while the fabric is full. Called when all links have
    /// sent what they had.
    pub(super) fn fill_links(&mut self) {
        let portion = Portion::new(&self.config, self.out.company);
        let mut targets = BTreeSet::new();
        for (group, instance) in self.turns.iter() {
            let Some(g) = self.groups.get_mut(&group) else { continue };
            targets.extend(g.transfer.bulk_targets());
            targets.extend(g.instance(instance).and_then(|found| found.bulk_target(&g.members)));
        }
        let links = targets.len();
        for to in targets {
            let Some(peer) = self.peers.get_mut(&to).filter(|p| p.address.is_some()) else { continue };
            peer.link.set_window(portion.queued(&self.config, links, peer.link.least_round_trip()));
            if peer.link.has_room() {
                let next = self.turns.after(peer.served).find_map(|(group, instances)| {
                    let g = self.groups.get_mut(&group)?;
                    let site = Site { config: &self.config, members: &g.members, out: &mut self.out };
                    let bulk = g.transfer.next_bulk(&site, to);
                    let repair = || {
                        instances.iter().find_map(|instance| {
                            let (mut cx, found) = g.parts(*instance, (&self.config, &mut self.out));
                            found?.next_bulk(&mut cx, to)
                        })
                    };
                    Some((group, bulk.or_else(repair)?))
                });
                let Some((group, bulk)) = next else { continue };
                peer.served = Some(group);
                let Bulk { instance, message, payload, tag } = bulk;
                peer.link.push(self.out.now, &message, payload, Some((group, instance)), tag);
                self.run_steps(group);
            }
        }
    }
}
