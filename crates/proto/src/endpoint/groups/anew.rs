//! Groups when a peer is silent for too long, or has made another end of the link.
//!
//! A silent peer is lost for its groups. Recently requested groups continue over the same link: earlier messages may
//! still arrive, and received ones are not sent again. Without such a group the link is given up.
//!
//! If the peer has given up the link, the two ends may have received different messages. One rule decides: a group
//! continues over the next link if no message of a call has come from the peer. All other messages of a group may
//! safely be received twice. So unacknowledged messages are sent again, and the peer receives an `Ask` for the group.
//! If a message of a call had come there, the peer has broken the group by the same rule, and answers so. If all have
//! left the group there, the peer sends again what was lost with the link.
//!
//! | event | a group without any message of a call from the peer |
//! |---|---|
//! | the peer has made another end | continues, over another link |
//! | the peer owed an acknowledgement for too long | continues once, if it is being made or was requested recently |
//! | the fabric reports that the peer is gone | as in the line above; the fabric must connect once more |
//!
//! A group counts as requested recently for as long as an acknowledgement may be owed. Silence from before the request
//! is not counted against it, nor are connection attempts that the fabric gives up. Never decides that a link is lost.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::{Group, State};
use crate::config::Config;
use crate::endpoint::peers::{Loss, Peer};
use crate::endpoint::{Endpoint, MAX_UNHEARD, Node};
use crate::error::CollectiveError;
use crate::ids::{GroupHandle, Instant, SpId};
use crate::interface::Event;
use crate::link::Link;
use crate::wire::{GroupMessage, Message};

impl Endpoint {
    /// A peer is lost for its groups, except for the groups that continue over another link.
    pub(in crate::endpoint) fn lose_peer(&mut self, peer: SpId, loss: Loss) {
        let now = self.node.out.now;
        let goes_on = |g: &mut Group, node: &Node| g.goes_on((now, &node.config), peer, loss);
        if loss == Loss::Renewed && self.node.peers.follow(peer) {
            self.early.forget(peer);
            for g in self.groups.values_mut().filter(|g| g.members.index_of(peer).is_some()) {
                if goes_on(g, &self.node) { g.begin_anew(&mut self.node, peer) } else { g.miss(&mut self.node, peer) }
            }
            return;
        }
        // A peer without a link was lost before.
        if !self.node.peers.has_link(peer) {
            return;
        }
        let mut going_on = BTreeSet::new();
        let mut patience = self.node.config.heartbeat;
        for (handle, g) in &mut self.groups {
            if goes_on(g, &self.node) {
                going_on.insert(*handle);
                patience = patience.max((g.since + self.node.config.dead_after).since(now));
            } else {
                g.lose_peer(&mut self.node, peer);
            }
        }
        let patience = if loss == Loss::Silent { patience } else { self.node.config.dead_after };
        let given_up = if loss == Loss::Renewed || going_on.is_empty() {
            self.node.peers.lose(peer)
        } else {
            let address = self.node.peers.stay(now, peer, patience).filter(|_| loss == Loss::Reported);
            let again = address.map(|address| [Event::Disconnect { peer }, Event::Connect { peer, address }]);
            self.node.out.events.extend(again.into_iter().flatten());
            None
        };
        if let Some(Peer { address, link, .. }) = given_up {
            self.early.forget(peer);
            if loss != Loss::Renewed {
                self.node.out.events.extend(address.map(|_| Event::Disconnect { peer }));
                return self.keep_unheard(peer, link);
            }
            self.node.peers.renew((now, &self.node.config), peer, address, patience);
            self.say_again(peer, &going_on, link);
        }
        for handle in &going_on {
            self.node.peers.count_group(now, peer, true);
            self.groups[handle].watch_again(&mut self.node, peer);
        }
        for handle in &going_on {
            self.groups.get_mut(handle).into_iter().for_each(|g| g.begin_anew(&mut self.node, peer));
        }
    }

    /// Sends unacknowledged messages over the new link: of groups that are made and continue, and of groups that all
    /// local ranks have left in order, which the peer may not know.
    fn say_again(&mut self, peer: SpId, going_on: &BTreeSet<GroupHandle>, link: Link) {
        for (message, payload, acked) in link.into_unheard() {
            let Message::Group { group, .. } = &message else { continue };
            if self.groups.get(group).is_none_or(|g| g.is_ready() && going_on.contains(group)) {
                self.node.peers.push(self.node.out.now, peer, (&message, payload), acked);
            }
        }
    }

    /// Keeps unacknowledged messages of groups that all local ranks have left: the peer may not know that they were
    /// made, or which ranks have left them. Broken groups need no more than their errors.
    fn keep_unheard(&mut self, peer: SpId, link: Link) {
        for (message, ..) in link.into_unheard() {
            let Message::Group { group, body: GroupMessage::Create { .. } | GroupMessage::Lost { .. } } = &message
            else {
                continue;
            };
            if self.groups.contains_key(group) {
                continue;
            }
            if self.unheard.len() >= MAX_UNHEARD {
                self.unheard.pop_front();
            }
            self.unheard.push_back((peer, message));
        }
    }

    /// A peer requests a group that all local ranks have left. It gets the kept messages that it may not have received.
    pub(super) fn say_unheard(&mut self, (peer, address): (SpId, &Arc<[u8]>), handle: GroupHandle) {
        let about = |(to, message): &(SpId, Message)| {
            *to == peer && matches!(message, Message::Group { group, .. } if *group == handle)
        };
        let (said, kept): (VecDeque<_>, _) = std::mem::take(&mut self.unheard).into_iter().partition(about);
        self.unheard = kept;
        if !said.is_empty() && !address.is_empty() {
            self.node.meet_peer(peer, address);
        }
        said.iter().for_each(|(_, message)| self.node.push_message(peer, message));
    }
}

impl Group {
    /// Whether the group continues over another link with a peer: see the module.
    fn goes_on(&mut self, (now, config): (Instant, &Config), peer: SpId, loss: Loss) -> bool {
        let Some(at) = self.members.index_of(peer) else { return false };
        let young = match self.state {
            State::Creating { .. } => true,
            State::Ready => now < self.since + config.dead_after,
            State::Broken(_) => return false,
        };
        let excused = match loss {
            Loss::Renewed => true,
            Loss::Silent | Loss::Reported => young && self.is_concerned(at as usize) && !self.forgiven.contains(&peer),
        };
        let goes_on = excused && !self.heard_calls[at as usize] && !self.cut_off.contains(&peer);
        if goes_on && loss != Loss::Renewed {
            self.forgiven.insert(peer);
        }
        goes_on
    }

    /// Sends the peer our last step over the new link, and requests the peer's step.
    fn begin_anew(&mut self, node: &mut Node, peer: SpId) {
        let Some(at) = self.members.index_of(peer) else { return };
        self.renewed.insert(peer);
        let step = match &self.state {
            State::Creating { barrier, .. } => barrier.sent_to(at),
            State::Ready | State::Broken(_) => None,
        };
        self.send_create(node, step.map(|step| (at, step)).into_iter().collect());
        // A member that has left may not know the group any more, and owes no answer.
        if self.staying[at as usize] > 0 {
            self.ask(node, at);
        }
    }

    /// Watches the peer on the new link, if this group watches it.
    fn watch_again(&self, node: &mut Node, peer: SpId) {
        if self.watched.contains(&peer) {
            node.peers.watch((node.out.now, node.config.heartbeat), peer, true);
        }
    }

    /// A service process is lost with its link.
    fn lose_peer(&mut self, node: &mut Node, peer: SpId) {
        if self.members.index_of(peer).is_some() {
            self.watched.remove(&peer);
            self.cut_off.insert(peer);
            self.miss(node, peer);
        }
    }

    /// A member is lost, or gave the group up. This breaks the group, unless its ranks have left and it owes nothing.
    fn miss(&mut self, node: &mut Node, peer: SpId) {
        let Some(at) = self.members.index_of(peer) else { return };
        if !self.is_concerned(at as usize) {
            return;
        }
        let error = self.loss_of(node, at);
        self.break_up(node, error, true);
    }

    /// The error for a lost member. After a stall this service process names itself, as the others do.
    fn loss_of(&self, node: &Node, at: u32) -> CollectiveError {
        match node.stalled(self.since) {
            Some(lasted) => {
                let (sp, rank) = (node.id, self.members.lowest_rank(self.members.me));
                CollectiveError::Stalled { sp, rank, ms: lasted.as_millis() as u64 }
            }
            None => self.members.loss_of(at),
        }
    }

    /// A member reports why the group has broken.
    pub(super) fn handle_abort(&mut self, node: &mut Node, error: CollectiveError) {
        self.tell_the_lost(node, &error);
        let names_us = matches!(error, CollectiveError::PeerLost { sp, .. } if sp == node.id);
        let error = if names_us { self.loss_of(node, self.members.me) } else { error };
        self.break_up(node, error, false);
    }

    /// The reporter could not notify the service process that it lost. That one may be alive, with a link to us.
    fn tell_the_lost(&self, node: &mut Node, error: &CollectiveError) {
        if let CollectiveError::PeerLost { sp, .. } = error
            && *sp != node.id
            && self.broken().is_none()
        {
            let (group, fingerprint) = (self.members.handle, self.members.fingerprint);
            node.out.messages.push_back((*sp, Message::abort(group, fingerprint, error.clone())));
        }
    }
}
