//! Lost ranks: which instances fail with them, and which members are notified.
//!
//! When a rank leaves or dies, its service process notifies all members of the last instance that the rank takes part
//! in. On each link this news follows all messages that the rank owes. A lost link may lose the news. Then one member
//! waits for another member whose calls have failed. A member that waits long queries the active members for failures
//! (`Group::check`): members that still serve a rank, or owe something. An instance that fails at the answering member
//! then fails here, too, because of the same rank. Never decides that a rank is lost.

use outboard_plan::Rank;

use super::{Group, GroupState};
use crate::endpoint::NodeState;
use crate::error::{CollectiveError, Rejection};
use crate::ids::{InstanceId, SpId};
use crate::instance::FirstCall;
use crate::interface::Signature;
use crate::wire::{GroupMessage, Message};

/// The violation of a message that names a rank which is not in the group.
pub(super) const UNKNOWN_RANK: &str = "a rank that is not in the group";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    /// The rank's calls up to this one ended well.
    pub(super) after: InstanceId,
    /// The rank whose loss fails later instances: the lost rank, unless its service process knew of another loss.
    pub(super) cause: Rank,
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
        if let Some(said) = self.lost.get(&rank) {
            return Rejection::unless(*said == lost, "two reports of a lost rank that differ");
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
        let Lost { after, cause } = lost;
        let at = self.members.of_rank[rank.0 as usize] as usize;
        assert!(self.lost.insert(rank, lost).is_none(), "a rank is lost once");
        self.remaining_ranks[at] -= 1;
        self.last[at] = self.last[at].max(after);
        self.fail_after(node, after, cause);
        let open: Vec<InstanceId> = self.instances.range(..=after).map(|(instance, _)| *instance).collect();
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
        if let Some((after, cause)) = self.failing.filter(|(after, _)| *after < newest) {
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
    pub(super) fn handle_failures(
        &mut self,
        node: &mut NodeState,
        after: InstanceId,
        cause: Rank,
    ) -> Result<(), Rejection> {
        Rejection::unless(self.members.has_rank(cause), UNKNOWN_RANK)?;
        self.fail_after(node, after, cause);
        Ok(())
    }

    /// Fails the instances after this one because of this rank.
    fn fail_after(&mut self, node: &mut NodeState, after: InstanceId, cause: Rank) {
        self.failing = self.failing.into_iter().chain([(after, cause)]).min();
        self.fail_instances(node, after, &CollectiveError::RankLost(cause));
    }
}
