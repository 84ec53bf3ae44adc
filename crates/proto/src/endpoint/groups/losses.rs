//! Ranks that are lost: what fails with them, and who hears of it.
//!
//! The service process of a rank tells all members after which instance the rank takes part in nothing. On each link
//! this news comes behind all that the rank owes. A member that still takes part in a later instance has not heard the
//! news, or was told something else: whoever has failed that instance answers it, once. Never decides that a rank is
//! lost.

use outboard_plan::Rank;

use super::{Group, State};
use crate::endpoint::Node;
use crate::error::CollectiveError;
use crate::ids::{InstanceId, SpId};
use crate::instance::tagged::TAGGED;
use crate::outbox::Outbox;
use crate::wire::{GroupMessage, Message};

/// How a rank left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    pub(super) after: InstanceId,
    /// Its calls up to then ended well.
    pub(super) well: bool,
    /// Whose loss failed its calls; itself otherwise. All ranks are told of the same one.
    pub(super) cause: Rank,
}

impl Group {
    /// After which instances some fail, and because of whom.
    pub(super) fn losses(&self) -> impl Iterator<Item = (InstanceId, Rank)> + '_ {
        self.lost.values().map(|lost| (lost.after, lost.cause)).chain(self.failing_elsewhere)
    }

    /// A member says that a rank is lost. False when there is no such rank.
    pub(super) fn handle_lost(&mut self, node: &mut Node, from: SpId, rank: Rank, lost: Lost) -> bool {
        if ![rank, lost.cause].iter().all(|rank| self.members.has_rank(*rank)) {
            return false;
        }
        if self.members.sp_of(rank) != from {
            self.hear_of_failing(node, (lost.after, lost.cause));
            return true;
        }
        self.lose_rank(node, rank, lost);
        match self.state {
            State::Ready => self.mind_lost(node, self.members.of_rank[rank.0 as usize] as usize),
            State::Creating { .. } | State::Broken(_) => self.mind_peers(node),
        }
        true
    }

    /// Instances after the last that `rank` took part in fail: they need it.
    pub(super) fn lose_rank(&mut self, node: &mut Node, rank: Rank, lost: Lost) {
        let Lost { after, cause, .. } = lost;
        let at = self.members.of_rank[rank.0 as usize] as usize;
        if self.lost.insert(rank, lost).is_none() {
            self.staying[at] -= 1;
        }
        self.last[at] = self.last[at].max(after);
        self.fail_instances(node, after, &CollectiveError::RankLost(cause));
        let open: Vec<InstanceId> = self.instances.range(..=after).map(|(instance, _)| *instance).collect();
        open.into_iter().for_each(|instance| self.compare_with_left(node, instance));
        self.with_tagged(node, |tagged, cx| tagged.lose(cx, rank));
    }

    /// A member takes part in what fails here: it hears why, in case it was told something else.
    pub(super) fn tell_failing(&mut self, out: &mut Outbox, to: SpId, instance: InstanceId) {
        let of_others = |(rank, lost): &(&Rank, &Lost)| lost.after < instance && self.members.sp_of(**rank) != to;
        let (group, fingerprint) = (self.members.handle, self.members.fingerprint);
        let (first, message) = match &self.state {
            State::Broken(error) => (TAGGED, Message::abort(group, fingerprint, error.clone())),
            State::Creating { .. } | State::Ready => match self.lost.iter().find(of_others) {
                Some((&rank, &Lost { after, well, cause })) => {
                    let body = GroupMessage::Lost { rank, after, well, cause };
                    (InstanceId(after.0 + 1), Message::Group { group, body })
                }
                None => return,
            },
        };
        if self.told_failing.get(&to).is_none_or(|told| first < *told) {
            self.told_failing.insert(to, first);
            out.messages.push_back((to, message));
        }
    }

    /// A member says which instances fail there because of a rank of somebody else. They fail here, too. Nothing else
    /// follows: what the rank still owes comes from its own service process.
    fn hear_of_failing(&mut self, node: &mut Node, (after, cause): (InstanceId, Rank)) {
        if self.failing_elsewhere.is_none_or(|(earlier, _)| after < earlier) {
            self.failing_elsewhere = Some((after, cause));
            self.fail_instances(node, after, &CollectiveError::RankLost(cause));
        }
    }
}
