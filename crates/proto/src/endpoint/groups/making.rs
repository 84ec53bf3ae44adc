//! Groups come and go: made when a local rank asks, told of messages, retired when all have left.

use std::collections::btree_map::Entry;
use std::collections::{BTreeSet, VecDeque};

use outboard_plan::Rank;

use super::{FailedGroup, Group, State, WINDOW};
use crate::endpoint::{Endpoint, MAX_EARLY, MAX_RETIRED};
use crate::error::{CollectiveError, GroupError};
use crate::group::members::Members;
use crate::ids::{Channel, GroupHandle, SpId};
use crate::interface::{Event, GroupSpec};
use crate::wire::{GroupMessage, Message};

impl Endpoint {
    pub(in crate::endpoint) fn create_group(&mut self, spec: &GroupSpec, rank: Rank) {
        if let Err(error) = self.try_create_group(spec, rank) {
            self.node.out.events.push_back(Event::GroupReady { group: spec.handle, rank, result: Err(error) });
        }
    }

    fn try_create_group(&mut self, spec: &GroupSpec, rank: Rank) -> Result<(), GroupError> {
        let members = Members::new(spec, self.node.id, &self.node.config, WINDOW).map_err(GroupError::Invalid)?;
        if members.local(rank).is_none() {
            return Err(GroupError::Invalid("the rank that asks is not served here"));
        }
        let handle = spec.handle;
        if let Some(g) = self.groups.get_mut(&handle) {
            if g.members.fingerprint == members.fingerprint {
                return g.join(&mut self.node, rank);
            }
            return Err(self.refuse(spec, &members, CollectiveError::HandleTaken(handle)));
        }
        if let Some(failed) =
            self.failed_groups.iter().find(|u| (u.handle, u.fingerprint) == (handle, members.fingerprint))
        {
            return Err(GroupError::Failed(failed.error.clone()));
        }
        if let Some(at) = members.sps.iter().position(|sp| self.node.peers.is_lost(*sp)) {
            let error = CollectiveError::PeerLost { sp: members.sps[at], rank: members.lowest_rank(at as u32) };
            return Err(self.refuse(spec, &members, error));
        }
        self.retired.retain(|h| *h != handle);
        self.introduce(spec);
        for channel in &members.channels {
            if self.users(*channel).next().is_none() {
                self.node.out.events.push_back(Event::Join(*channel));
            }
            self.channels.insert((*channel, handle));
        }
        members.others().for_each(|sp| self.node.peers.count_group(self.node.out.now, sp, true));
        self.groups.entry(handle).or_insert(Group::new(members)).join(&mut self.node, rank)?;
        self.replay_early(handle);
        Ok(())
    }

    fn introduce(&mut self, spec: &GroupSpec) {
        let mut seen = BTreeSet::from([self.node.id]);
        for m in &spec.members {
            if seen.insert(m.sp) && !self.node.peers.is_lost(m.sp) {
                self.node.meet_peer(m.sp, &m.address);
            }
        }
    }

    /// The group cannot be made: all its service processes are told, so that nobody waits.
    fn refuse(&mut self, spec: &GroupSpec, members: &Members, error: CollectiveError) -> GroupError {
        self.introduce(spec);
        let (group, fingerprint) = (members.handle, members.fingerprint);
        let message = Message::Group { group, body: GroupMessage::Abort { fingerprint, error: error.clone() } };
        self.node.out.messages.extend(members.others().map(|sp| (sp, message.clone())));
        error.into()
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

    pub(in crate::endpoint) fn route_message(&mut self, from: SpId, message: Message, payload_len: u32) {
        let Message::Group { group: handle, body } = message else { return };
        if payload_len > 0 && !body.carries() {
            return self.node.out.violation(Some(from), "payload with a message that has none");
        }
        let Some(g) = self.groups.get_mut(&handle) else {
            if self.retired.contains(&handle) {
                return;
            }
            let kept = self.early.get(&from).map_or(0, VecDeque::len);
            // A message with payload cannot be kept; an offer of a collective has none, and may come first.
            if payload_len > 0 || kept >= MAX_EARLY {
                return self.node.out.violation(Some(from), "a message for a group that is not known");
            }
            return self.early.entry(from).or_default().push_back(Message::Group { group: handle, body });
        };
        let Some(from_index) = g.members.index_of(from) else {
            return self.node.out.violation(Some(from), "a message for a group it is not in");
        };
        if !g.handle_message(&mut self.node, (from, from_index), body, payload_len) {
            self.node.out.violation(Some(from), "a message that cannot come now");
        }
    }

    pub(in crate::endpoint) fn leave_group(&mut self, handle: GroupHandle, rank: Rank) {
        self.groups.get_mut(&handle).into_iter().for_each(|g| g.leave(&mut self.node, rank));
    }

    /// Groups that all have left are not known any more.
    pub(in crate::endpoint) fn retire_left(&mut self) {
        while let Some(handle) = self.node.left.pop() {
            if let Entry::Occupied(g) = self.groups.entry(handle)
                && g.get().is_left()
            {
                let group = g.remove();
                self.retire(handle, &group);
            }
        }
    }

    fn retire(&mut self, handle: GroupHandle, group: &Group) {
        self.node.turns.note_transfer(handle, false);
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
        let since = (self.node.out.now, self.node.config.heartbeat);
        group.watched.iter().for_each(|sp| self.node.peers.watch(since, *sp, false));
        members.others().for_each(|sp| self.node.peers.count_group(self.node.out.now, sp, false));
        for channel in &members.channels {
            self.channels.remove(&(*channel, handle));
            if self.users(*channel).next().is_none() {
                self.node.out.events.push_back(Event::Leave(*channel));
            }
        }
    }

    /// The groups that receive a channel.
    fn users(&self, channel: Channel) -> impl Iterator<Item = GroupHandle> + '_ {
        let all = (channel, GroupHandle(0))..=(channel, GroupHandle(u32::MAX));
        self.channels.range(all).map(|(_, group)| *group)
    }
}
