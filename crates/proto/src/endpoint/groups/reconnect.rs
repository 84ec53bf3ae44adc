//! Groups when a peer is silent for too long, or has made another end of the link.
//!
//! A silent peer is lost for its groups. Recently requested groups continue over the same link: earlier messages may
//! still arrive, and received ones are not sent again. Without such a group the link is given up.
//!
//! If the peer has given up the link, the two ends may have received different messages. One rule decides: a group
//! continues over the next link if no message of a call has come from the peer. All other messages of a group may
//! safely be received twice. So unacknowledged messages are sent again, and the peer receives a `RequestStep` for the
//! group. If the peer had received a message of a call, it has broken the group by the same rule, and answers with the
//! error. If all ranks have left the group there, the peer sends again the messages that were lost with the link.
//!
//! | event | a group without any message of a call from the peer |
//! |---|---|
//! | the peer has made another end | continues, over another link |
//! | the peer owed an acknowledgement for too long | continues once, if it is being made or was requested recently |
//! | the fabric reports that the peer is gone | continues once, if being made or requested recently; reconnects |
//!
//! A group counts as requested recently for as long as an acknowledgement may be owed. Silence from before the request
//! does not count against the group, and neither do connection attempts that the fabric gives up. Never decides that a
//! link is lost.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::{Group, GroupState};
use crate::config::Config;
use crate::endpoint::peers::{LossCause, Peer};
use crate::endpoint::{Endpoint, MAX_UNDELIVERED, NodeState};
use crate::error::CollectiveError;
use crate::ids::{GroupHandle, Instant, SpId};
use crate::interface::Event;
use crate::link::Link;
use crate::wire::{GroupMessage, Message};

impl Endpoint {
    /// A peer is lost for its groups, except for the groups that continue over another link.
    pub(in crate::endpoint) fn lose_peer(&mut self, peer: SpId, loss: LossCause) {
        let now = self.node.out.now;
        let survives_loss = |g: &mut Group, node: &NodeState| g.survives_loss(now, &node.config, peer, loss);
        if loss == LossCause::Renewed && self.node.peers.adopt_new_end(peer) {
            self.pending_group_messages.forget(peer);
            for g in self.groups.values_mut().filter(|g| g.members.index_of(peer).is_some()) {
                if survives_loss(g, &self.node) {
                    g.resume_with(&mut self.node, peer)
                } else {
                    g.handle_member_loss(&mut self.node, peer)
                }
            }
            return;
        }
        // A peer without a link was lost before.
        if !self.node.peers.has_link(peer) {
            return;
        }
        let mut surviving = BTreeSet::new();
        let mut patience = self.node.config.heartbeat;
        for (handle, g) in &mut self.groups {
            if survives_loss(g, &self.node) {
                surviving.insert(*handle);
                patience = patience.max((g.since + self.node.config.dead_after).since(now));
            } else {
                g.lose_peer(&mut self.node, peer);
            }
        }
        let patience = if loss == LossCause::Silent { patience } else { self.node.config.dead_after };
        let given_up = if loss == LossCause::Renewed || surviving.is_empty() {
            self.node.peers.remove_peer(peer)
        } else {
            let address = self.node.peers.keep_link(now, peer, patience).filter(|_| loss == LossCause::Reported);
            let again = address.map(|address| [Event::Disconnect { peer }, Event::Connect { peer, address }]);
            self.node.out.events.extend(again.into_iter().flatten());
            None
        };
        if let Some(Peer { address, link, .. }) = given_up {
            self.pending_group_messages.forget(peer);
            if loss != LossCause::Renewed {
                self.node.out.events.extend(address.map(|_| Event::Disconnect { peer }));
                return self.keep_undelivered(peer, link);
            }
            self.node.peers.renew_link(now, &self.node.config, peer, address, patience);
            self.resend_unacknowledged(peer, &surviving, link);
        }
        for handle in &surviving {
            self.node.peers.count_group(now, peer, true);
            self.groups[handle].watch_again(&mut self.node, peer);
        }
        for handle in &surviving {
            self.groups.get_mut(handle).into_iter().for_each(|g| g.resume_with(&mut self.node, peer));
        }
    }

    /// Sends unacknowledged messages over the new link: messages of made groups that continue, and messages of groups
    /// that all local ranks have left in order. The peer may not know of the leaving.
    fn resend_unacknowledged(&mut self, peer: SpId, surviving: &BTreeSet<GroupHandle>, link: Link) {
        for (message, payload, acked) in link.into_unacknowledged() {
            let Message::Group { group, .. } = &message else { continue };
            if self.groups.get(group).is_none_or(|g| g.is_ready() && surviving.contains(group)) {
                self.node.peers.push(self.node.out.now, peer, &message, payload, acked);
            }
        }
    }

    /// Keeps unacknowledged messages of groups that all local ranks have left. The peer may not know that these groups
    /// were made, or which ranks have left them. Broken groups need no more than their errors.
    fn keep_undelivered(&mut self, peer: SpId, link: Link) {
        for (message, ..) in link.into_unacknowledged() {
            let Message::Group { group, body: GroupMessage::Create { .. } | GroupMessage::Lost { .. } } = &message
            else {
                continue;
            };
            if self.groups.contains_key(group) {
                continue;
            }
            if self.undelivered.len() >= MAX_UNDELIVERED {
                self.undelivered.pop_front();
            }
            self.undelivered.push_back((peer, message));
        }
    }

    /// A peer requests a group that all local ranks have left. Sends the kept messages that the peer may lack.
    pub(super) fn send_undelivered(&mut self, peer: SpId, address: &Arc<[u8]>, handle: GroupHandle) {
        let about = |(to, message): &(SpId, Message)| {
            *to == peer && matches!(message, Message::Group { group, .. } if *group == handle)
        };
        let (said, kept): (VecDeque<_>, _) = std::mem::take(&mut self.undelivered).into_iter().partition(about);
        self.undelivered = kept;
        if !said.is_empty() && !address.is_empty() {
            self.node.connect_peer(peer, address);
        }
        said.iter().for_each(|(_, message)| self.node.push_message(peer, message));
    }
}

impl Group {
    /// Whether the group continues over another link with a peer: see the module.
    fn survives_loss(&mut self, now: Instant, config: &Config, peer: SpId, loss: LossCause) -> bool {
        let Some(at) = self.members.index_of(peer) else { return false };
        let young = match self.state {
            GroupState::Creating { .. } => true,
            GroupState::Ready => now < self.since + config.dead_after,
            GroupState::Broken(_) => return false,
        };
        let excused = match loss {
            LossCause::Renewed => true,
            LossCause::Silent | LossCause::Reported => {
                young && self.is_active_member(at as usize) && !self.links.is_excused(peer)
            }
        };
        let survives_loss = excused && self.links.may_continue(peer, at);
        if survives_loss && loss != LossCause::Renewed {
            self.links.excuse(peer);
        }
        survives_loss
    }

    /// Sends the peer our last step over the new link, and requests the peer's step.
    fn resume_with(&mut self, node: &mut NodeState, peer: SpId) {
        let Some(at) = self.members.index_of(peer) else { return };
        self.links.note_renewed(peer);
        let step = match &self.state {
            GroupState::Creating { barrier, .. } => barrier.sent_to(at),
            GroupState::Ready | GroupState::Broken(_) => None,
        };
        self.send_create(node, step.map(|step| (at, step)).into_iter().collect());
        // A member that has left may not know the group any more, and owes no answer.
        if self.losses.serves(at as usize) {
            self.request_step(node, at);
        }
    }

    /// Watches the peer on the new link, if this group watches it.
    fn watch_again(&self, node: &mut NodeState, peer: SpId) {
        if self.watched.contains(peer) {
            node.peers.watch(node.out.now, node.config.heartbeat, peer, true);
        }
    }

    /// A service process is lost with its link.
    fn lose_peer(&mut self, node: &mut NodeState, peer: SpId) {
        if self.members.index_of(peer).is_some() {
            self.watched.forget(peer);
            self.links.lose(peer);
            self.handle_member_loss(node, peer);
        }
    }

    /// A member is lost, or gave the group up. The group breaks, unless the member has no rank left and owes nothing.
    fn handle_member_loss(&mut self, node: &mut NodeState, peer: SpId) {
        let Some(at) = self.members.index_of(peer) else { return };
        if !self.is_active_member(at as usize) {
            return;
        }
        let error = self.loss_of(node, at);
        self.break_up(node, error, true);
    }

    /// The error for a lost member. After a stall this service process names itself, as all other members do.
    fn loss_of(&self, node: &NodeState, at: u32) -> CollectiveError {
        match node.stalled(self.since) {
            Some(lasted) => {
                let (sp, rank) = (node.id, self.members.lowest_rank(self.members.me));
                CollectiveError::Stalled { sp, rank, ms: lasted.as_millis() as u64 }
            }
            None => self.members.loss_of(at),
        }
    }

    /// A member reports why the group has broken.
    pub(super) fn handle_abort(&mut self, node: &mut NodeState, error: CollectiveError) {
        self.notify_lost_peer(node, &error);
        let names_us = matches!(error, CollectiveError::PeerLost { sp, .. } if sp == node.id);
        let error = if names_us { self.loss_of(node, self.members.me) } else { error };
        self.break_up(node, error, false);
    }

    /// The reporter could not notify the peer that it lost. The lost peer may be alive, with a link to us.
    fn notify_lost_peer(&self, node: &mut NodeState, error: &CollectiveError) {
        if let CollectiveError::PeerLost { sp, .. } = error
            && *sp != node.id
            && self.broken().is_none()
        {
            let (group, fingerprint) = (self.members.handle, self.members.fingerprint);
            node.out.messages.push_back((*sp, Message::abort(group, fingerprint, error.clone())));
        }
    }
}
