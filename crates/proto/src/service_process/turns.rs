//! Whose turn it is: the collectives in flight, group by group (MC-13).
//!
//! Every group gets one turn after another, however many collectives it has in flight; multicast goes round its collectives
//! likewise, a link serves them in the order of their calls. Groups that were in flight together are in company for a
//! while longer, because what one of them has queued when the next small call of another comes cannot be taken back.
//! Never knows what a turn moves.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use crate::ids::{GroupHandle, InstanceId, Instant};

/// How long groups count as in company after they were.
const AFTERWARDS: Duration = Duration::from_millis(100);

/// The collectives in flight at one service process.
#[derive(Debug, Default)]
pub(super) struct Turns {
    groups: BTreeMap<GroupHandle, VecDeque<InstanceId>>,
    /// The group whose multicast went out last.
    last: Option<GroupHandle>,
    in_company_until: Instant,
}

impl Turns {
    pub(super) fn insert(&mut self, group: GroupHandle, instance: InstanceId) {
        self.groups.entry(group).or_default().push_back(instance);
    }

    pub(super) fn remove(&mut self, now: Instant, group: GroupHandle, instance: InstanceId) {
        if self.groups.len() > 1 {
            self.in_company_until = now + AFTERWARDS;
        }
        if let Some(instances) = self.groups.get_mut(&group) {
            instances.retain(|i| *i != instance);
            if instances.is_empty() {
                self.groups.remove(&group);
            }
        }
    }

    /// Whether what one group sends delays another.
    pub(super) fn in_company(&self, now: Instant) -> bool {
        self.groups.len() > 1 || now < self.in_company_until
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (GroupHandle, InstanceId)> + '_ {
        self.groups.iter().flat_map(|(group, instances)| instances.iter().map(|instance| (*group, *instance)))
    }

    /// The groups in the order of their turns, when `last` had the last one.
    pub(super) fn after(
        &self,
        last: Option<GroupHandle>,
    ) -> impl Iterator<Item = (GroupHandle, &VecDeque<InstanceId>)> {
        let (next, done) = match last {
            None => (Bound::Unbounded, None),
            Some(last) => (Bound::Excluded(last), Some(last)),
        };
        let rest = done.into_iter().flat_map(|done| self.groups.range(..=done));
        self.groups.range((next, Bound::Unbounded)).chain(rest).map(|(group, instances)| (*group, instances))
    }

    /// The next collective that may multicast, of which `wants` is true: it gets the turn.
    pub(super) fn next_multicast(
        &mut self,
        mut wants: impl FnMut(GroupHandle, InstanceId) -> bool,
    ) -> Option<(GroupHandle, InstanceId)> {
        let mut turns = self.after(self.last);
        let (group, at) =
            turns.find_map(|(group, instances)| Some((group, instances.iter().position(|i| wants(group, *i))?)))?;
        drop(turns);
        self.last = Some(group);
        let instances = self.groups.get_mut(&group).expect("just found");
        let instance = instances.remove(at).expect("just found");
        instances.push_back(instance);
        Some((group, instance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mc_13_groups_take_turns_however_many_collectives_they_have() {
        let mut turns = Turns::default();
        for (group, instance) in [(1, 1), (1, 2), (1, 3), (2, 1), (3, 7)] {
            turns.insert(GroupHandle(group), InstanceId(instance));
        }
        let mut took = |wants: fn(u32) -> bool| {
            turns.next_multicast(|group, _| wants(group.0)).map(|(group, instance)| (group.0, instance.0))
        };
        let all: Vec<_> = (0..6).filter_map(|_| took(|_| true)).collect();
        assert_eq!(all, [(1, 1), (2, 1), (3, 7), (1, 2), (2, 1), (3, 7)]);
        assert_eq!(took(|group| group != 1), Some((2, 1)), "a group with nothing to send is passed over");
        assert_eq!(took(|_| false), None);
    }

    #[test]
    fn mc_13_company_lasts_a_while() {
        let mut turns = Turns::default();
        turns.insert(GroupHandle(1), InstanceId(1));
        assert!(!turns.in_company(Instant(5)));
        turns.insert(GroupHandle(2), InstanceId(1));
        assert!(turns.in_company(Instant(5)));
        turns.remove(Instant(9), GroupHandle(2), InstanceId(1));
        assert!(turns.in_company(Instant(10)), "the next call may come at any time");
        assert!(!turns.in_company(Instant(9) + AFTERWARDS));
        turns.remove(Instant(11), GroupHandle(1), InstanceId(1));
        assert_eq!(turns.iter().count(), 0);
    }
}
