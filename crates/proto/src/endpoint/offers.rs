//! The offers of local ranks: what is known of a group before a local rank requests it.
//!
//! A service process that makes a group and misses a member sends this member the offers of its ranks. The answer
//! follows from these states, so that a group ends at once when one of its ranks cannot request it any more:
//!
//! | state | event | next |
//! |---|---|---|
//! | open | another service process requests the rank | open, that service process is remembered as asker |
//! | open | the rank requests the group | forgotten |
//! | open | the rank is gone, or is refused the group | withdrawn, the askers are notified |
//! | withdrawn | another service process requests the rank | withdrawn, that service process is notified |
//! | withdrawn | the time limit for requesting a group is over | forgotten |
//!
//! Invariant: every asker has named the offer, which only members of its group know. Never sends anything itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use outboard_plan::Rank;

use crate::error::{CollectiveError, GroupRefusal};
use crate::ids::{GroupHandle, Instant, OfferId, SpId};

/// Most askers remembered per offer. Usually only the left neighbour asks; an asker that is not remembered asks again.
const MAX_WAITERS: usize = 4;
/// Withdrawn offers that are remembered.
const MAX_WITHDRAWN: usize = 1 << 14;

/// A service process that waits for the rank of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfferWaiter {
    pub(super) sp: SpId,
    pub(super) group: GroupHandle,
    pub(super) fingerprint: u64,
    pub(super) rank: Rank,
}

/// Why a rank does not request its group any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Withdrawn {
    Gone,
    Refused(GroupRefusal),
}

impl Withdrawn {
    pub(super) fn error(self, rank: Rank) -> CollectiveError {
        match self {
            Withdrawn::Gone => CollectiveError::RankLost(rank),
            Withdrawn::Refused(why) => CollectiveError::Refused { rank, why },
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct RankOffers {
    /// Open offers with their askers.
    open: BTreeMap<OfferId, Vec<OfferWaiter>>,
    withdrawn: BTreeMap<OfferId, Withdrawn>,
    /// When offers were withdrawn, oldest first.
    since: VecDeque<(Instant, OfferId)>,
    /// The offers of missing local ranks, with the group that waits for each. An offer belongs to one group.
    awaited: BTreeSet<(OfferId, GroupHandle, Rank)>,
}

impl RankOffers {
    pub(super) fn open(&mut self, offer: OfferId) {
        self.open.insert(offer, Vec::new());
    }

    /// The rank has requested its group.
    pub(super) fn redeem(&mut self, offer: OfferId) {
        self.open.remove(&offer);
    }

    /// Notes whether a group waits for this local rank.
    pub(super) fn set_awaited(&mut self, offer: OfferId, group: GroupHandle, rank: Rank, awaits: bool) {
        match awaits {
            true => self.awaited.insert((offer, group, rank)),
            false => self.awaited.remove(&(offer, group, rank)),
        };
    }

    /// The groups that wait for the rank of this offer.
    pub(super) fn groups_awaiting(&self, offer: OfferId) -> Vec<GroupHandle> {
        let all = (offer, GroupHandle(0), Rank(0))..=(offer, GroupHandle(u32::MAX), Rank(u32::MAX));
        self.awaited.range(all).map(|(_, group, _)| *group).collect()
    }

    /// Withdraws an offer and returns its askers.
    pub(super) fn withdraw(&mut self, now: Instant, offer: OfferId, why: Withdrawn) -> Vec<OfferWaiter> {
        let Some(waiters) = self.open.remove(&offer) else { return Vec::new() };
        if self.since.len() >= MAX_WITHDRAWN
            && let Some((_, oldest)) = self.since.pop_front()
        {
            self.withdrawn.remove(&oldest);
        }
        self.withdrawn.insert(offer, why);
        self.since.push_back((now, offer));
        waiters
    }

    /// Why the rank of this offer does not request its group any more.
    pub(super) fn withdrawn(&self, offer: OfferId) -> Option<Withdrawn> {
        self.withdrawn.get(&offer).copied()
    }

    /// Notes a service process that waits for the rank of this offer. False if no local rank has made the offer.
    pub(super) fn add_waiter(&mut self, offer: OfferId, waiter: OfferWaiter) -> bool {
        let Some(waiters) = self.open.get_mut(&offer) else { return self.withdrawn.contains_key(&offer) };
        if waiters.len() < MAX_WAITERS && !waiters.contains(&waiter) {
            waiters.push(waiter);
        }
        true
    }

    /// Forgets offers that were withdrawn longer ago than `limit`.
    pub(super) fn expire(&mut self, now: Instant, limit: Duration) {
        while self.since.front().is_some_and(|(at, _)| now.since(*at) > limit)
            && let Some((_, offer)) = self.since.pop_front()
        {
            self.withdrawn.remove(&offer);
        }
    }
}
