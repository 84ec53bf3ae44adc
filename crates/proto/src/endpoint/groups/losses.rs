//! Lost ranks: which instances fail with them, and which members are notified.
//!
//! When a rank leaves or dies, its service process notifies all members of the last instance that the rank takes part
//! in. On each link this news follows all messages that the rank owes. A lost link may lose the news. Then one member
//! waits for another member whose calls have failed. A member that waits long queries the active members for failures
//! (`Group::check`): members that still serve a rank, or owe something. An instance that fails at the answering member
//! then fails here, too, because of the same rank. Never decides that a rank is lost.

use std::collections::BTreeMap;

use outboard_plan::Rank;

use super::{Group, GroupState};
use crate::endpoint::NodeState;
use crate::error::{CollectiveError, Rejection};
use crate::group::members::Members;
use crate::ids::{InstanceId, SpId};
use crate::instance::FirstCall;
use crate::interface::Signature;
use crate::wire::{GroupMessage, Message};

/// The violation of a message that names a rank which is not in the group.
pub(super) const UNKNOWN_RANK: &str = "a rank that is not in the group";

/// A loss. The order of losses is the order of their instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lost {
    /// The rank's calls up to this one ended well.
    pub(super) after: InstanceId,
    /// The rank whose loss fails later instances: the lost rank, unless its service process knew of another loss.
    pub(super) cause: Rank,
}

/// The lost ranks of one service process.
#[derive(Debug, Clone, Copy)]
struct MemberLosses {
    /// Number of ranks that are not lost.
    remaining: u32,
    /// The last instance of the lost ranks.
    last: InstanceId,
}

/// The lost ranks of a group, and the instances that fail with them.
#[derive(Debug)]
pub(super) struct Losses {
    lost: BTreeMap<Rank, Lost>,
    /// The earliest known loss. The report of another member may name a loss that is not known here.
    failing: Option<Lost>,
    members: Vec<MemberLosses>,
}

impl Losses {
    pub(super) fn new(members: &Members) -> Self {
        let mut by_member = vec![MemberLosses { remaining: 0, last: InstanceId(0) }; members.sps.len()];
        members.of_rank.iter().for_each(|at| by_member[*at as usize].remaining += 1);
        Losses { lost: BTreeMap::new(), failing: None, members: by_member }
    }

    /// Whether no rank is lost.
    pub(super) fn is_empty(&self) -> bool {
        self.lost.is_empty()
    }

    /// The service process with this index loses a rank.
    fn insert(&mut self, at: usize, rank: Rank, lost: Lost) {
        assert!(self.lost.insert(rank, lost).is_none(), "a rank is lost once");
        let member = &mut self.members[at];
        member.remaining -= 1;
        member.last = member.last.max(lost.after);
    }

    /// Instances after this loss fail.
    fn note_failing(&mut self, lost: Lost) {
        self.failing = self.failing.into_iter().chain([lost]).min();
    }

    /// The earliest known loss.
    pub(super) fn failing(&self) -> Option<Lost> {
        self.failing
    }

    /// The loss with which this instance fails.
    pub(super) fn failure_of(&self, instance: InstanceId) -> Option<Lost> {
        self.failing.filter(|lost| lost.after < instance)
    }

    /// The lost ranks that took part in this instance.
    pub(super) fn departed(&self, instance: InstanceId) -> Vec<Rank> {
        self.lost.iter().filter(|(_, lost)| lost.after >= instance).map(|(rank, _)| *rank).collect()
    }

    /// Whether the service process with this index serves a rank that is not lost.
    pub(super) fn serves(&self, at: usize) -> bool {
        self.members[at].remaining > 0
    }

    /// Whether a service process without a rank may owe something for this instance.
    pub(super) fn owes(&self, at: usize, instance: InstanceId) -> bool {
        !self.serves(at) && instance <= self.members[at].last
    }
}

impl Group {
    /// A member reports a lost rank, perhaps again over another link.
    pub(super) fn handle_lost(
        &mut self,
        node: &mut NodeState,
        from: SpId,
        rank: Rank,
        lost: Lost,
    ) -> Result<(), Rejection> {
        self.check_served(rank, from)?;
        Rejection::unless(self.members.has_rank(lost.cause), UNKNOWN_RANK)?;
        if let Some(known) = self.losses.lost.get(&rank) {
            return Rejection::unless(*known == lost, "two reports of a lost rank that differ");
        }
        self.lose_rank(node, rank, lost);
        match self.state {
            GroupState::Ready => self.rearm_watches_after_loss(node, self.members.of_rank[rank.0 as usize] as usize),
            GroupState::Creating { .. } | GroupState::Broken(_) => self.rearm_watches(node),
        }
        Ok(())
    }

    /// Fails the instances after the last that `rank` took part in: these instances need the rank.
    pub(super) fn lose_rank(&mut self, node: &mut NodeState, rank: Rank, lost: Lost) {
        self.losses.insert(self.members.of_rank[rank.0 as usize] as usize, rank, lost);
        self.fail_after(node, lost);
        let open = self.instances.up_to(lost.after);
        open.into_iter().for_each(|instance| self.check_against_departed(node, instance));
        self.with_tagged(node, |tagged, cx| tagged.cancel_rank(cx, rank));
    }

    /// A member waits long. Sends the member the reason for failures here, since a lost link may have lost the news.
    /// Compares the member's oldest call with the call here, since some mismatched calls only wait for each other.
    pub(super) fn handle_query_failures(
        &mut self,
        node: &mut NodeState,
        from: SpId,
        newest: InstanceId,
        oldest: Option<(InstanceId, Signature, Rank)>,
    ) -> Result<(), Rejection> {
        if let Some(error) = self.broken() {
            self.report_failure(node, from, error);
            return Ok(());
        }
        if let Some(Lost { after, cause }) = self.losses.failure_of(newest) {
            let body = GroupMessage::Failures { fingerprint: self.members.fingerprint, after, cause };
            node.out.messages.push_back((from, Message::Group { group: self.members.handle, body }));
        }
        let Some((instance, signature, rank)) = oldest else { return Ok(()) };
        Rejection::unless(self.members.has_rank(rank), UNKNOWN_RANK)?;
        if self.failure_of(instance).is_none() {
            // A mismatch has been sent to all members already.
            drop(self.compare_with_known(node, instance, FirstCall { rank, signature }));
        }
        Ok(())
    }

    /// The answer to a query for failures: an instance that fails at a member fails here, too. Nothing else follows
    /// from the answer, since the messages that a lost rank owes come from the rank's own service process.
    pub(super) fn handle_failures(&mut self, node: &mut NodeState, lost: Lost) -> Result<(), Rejection> {
        Rejection::unless(self.members.has_rank(lost.cause), UNKNOWN_RANK)?;
        self.fail_after(node, lost);
        Ok(())
    }

    /// Fails the instances after a loss.
    fn fail_after(&mut self, node: &mut NodeState, lost: Lost) {
        self.losses.note_failing(lost);
        self.fail_instances(node, lost.after, &CollectiveError::RankLost(lost.cause));
    }
}
