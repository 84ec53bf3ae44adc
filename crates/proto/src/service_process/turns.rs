//! Whose turn it is: the collectives in flight, group by group (MC-13).
//!
//! Every group gets one turn after another, however many collectives it has in flight; multicast goes round its collectives
//! likewise, a link serves them in the order of their calls. Where a call of one group is small beside those of the others
//! ([`Smallness`]), all unicast goes in small pieces, and for a while longer, because what is queued when the next small call
//! comes cannot be taken back. Groups of large calls alone move large ones: small ones cost processor time, and nobody there
//! gains by them.
//!
//! A call counts once a rank here has made it: before, nobody here waits for it, and nothing of an exchange is queued. So
//! ranks that wait in a barrier for one that still moves much elsewhere do not hold it up. Knows of bytes only how many.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use outboard_plan::Span;

use crate::ids::{GroupHandle, InstanceId, Instant};
use crate::interface::{Call, Moves, Pairs, Sizes};
use crate::pacing::{Company, Smallness};

/// How long small calls count after they were in flight beside large ones.
const AFTERWARDS: Duration = Duration::from_millis(100);

/// What the call of a rank moves, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// The same as the calls of the other ranks here.
    Shared(u64),
    /// Its own blocks, beside those of the other ranks.
    Own(u64),
    /// A message or recording, which no other call takes part in.
    Single(u64),
}

impl Load {
    /// That of a call in a group of `ranks`. Sizes are those of the call or an estimate: only how large they are counts.
    pub(super) fn of(call: &Call, ranks: u32) -> Self {
        let bytes = call.signature.bytes;
        let others = bytes.saturating_mul(u64::from(ranks) - 1);
        let all = |spans: &[Span]| {
            let moved = spans.iter().enumerate().filter(|(other, _)| *other != call.rank.0 as usize);
            moved.fold(0_u64, |sum, (_, span)| sum.saturating_add(span.len))
        };
        let class = call.signature.kind.class();
        match (class.moves, &call.blocks) {
            (Moves::Nothing, _) => Load::Shared(0),
            (Moves::Messages(_), _) => Load::Single(bytes),
            (Moves::Blocks(_), Some(blocks)) => Load::Own(all(&blocks.send).max(all(&blocks.receive))),
            (Moves::Blocks(Pairs::To(root) | Pairs::From(root)), None) if root != call.rank => Load::Own(bytes),
            (Moves::Blocks(_), None) => Load::Own(others),
            (Moves::ToAll | Moves::Combined(_), _) => match class.sizes {
                Sizes::Even => Load::Shared(others),
                Sizes::Whole | Sizes::Agreed(_) | Sizes::Paired => Load::Shared(bytes),
            },
        }
    }
}

/// What the calls of one collective, or all messages of a group, move.
#[derive(Debug, Clone, Copy)]
struct Moved {
    /// Of the smallest thing that is waited for by itself.
    least: u64,
    all: u64,
}

impl Moved {
    const NOTHING: Moved = Moved { least: u64::MAX, all: 0 };

    fn and(self, load: Load) -> Self {
        match load {
            Load::Shared(bytes) => Moved { least: bytes.max(self.all), all: bytes.max(self.all) },
            Load::Own(bytes) => {
                let all = self.all.saturating_add(bytes);
                Moved { least: all, all }
            }
            Load::Single(bytes) => Moved { least: self.least.min(bytes), all: self.all.saturating_add(bytes) },
        }
    }
}

/// What a group has in flight.
#[derive(Debug, Default)]
struct Group {
    instances: VecDeque<InstanceId>,
    /// Of those that a rank here has called.
    moved: BTreeMap<InstanceId, Moved>,
}

impl Group {
    fn least(&self) -> Option<u64> {
        self.moved.values().map(|moved| moved.least).min()
    }

    fn all(&self) -> u64 {
        self.moved.values().fold(0, |sum, moved| sum.saturating_add(moved.all))
    }
}

/// The collectives in flight at one service process.
#[derive(Debug)]
pub(super) struct Turns {
    groups: BTreeMap<GroupHandle, Group>,
    /// The group whose multicast went out last.
    last: Option<GroupHandle>,
    smallness: Smallness,
    /// A call in flight is small beside those of other groups.
    small: bool,
    small_until: Instant,
}

impl Turns {
    pub(super) fn new(smallness: Smallness) -> Self {
        Turns { groups: BTreeMap::new(), last: None, smallness, small: false, small_until: Instant(0) }
    }

    pub(super) fn insert(&mut self, group: GroupHandle, instance: InstanceId) {
        self.groups.entry(group).or_default().instances.push_back(instance);
    }

    /// A rank here has called a collective, or messages, that have turns; others do not count.
    pub(super) fn load(&mut self, group: GroupHandle, instance: InstanceId, load: Load) {
        let Some(found) = self.groups.get_mut(&group).filter(|g| g.instances.contains(&instance)) else { return };
        let moved = found.moved.entry(instance).or_insert(Moved::NOTHING);
        *moved = moved.and(load);
        self.small = self.has_small();
    }

    pub(super) fn remove(&mut self, now: Instant, group: GroupHandle, instance: InstanceId) {
        if self.small {
            self.small_until = now + AFTERWARDS;
        }
        if let Some(found) = self.groups.get_mut(&group) {
            found.instances.retain(|i| *i != instance);
            found.moved.remove(&instance);
            if found.instances.is_empty() {
                self.groups.remove(&group);
            }
        }
        self.small = self.has_small();
    }

    /// Whether some group has a call that is small beside those of another. Many that are alike wait for each other however
    /// their turns are cut.
    fn has_small(&self) -> bool {
        if self.groups.len() < 2 {
            return false;
        }
        let (mut most, mut next) = (0, 0);
        for all in self.groups.values().map(Group::all) {
            next = next.max(all.min(most));
            most = most.max(all);
        }
        let small = |group: &Group| {
            let other = if group.all() == most { next } else { most };
            group.least().is_some_and(|least| self.smallness.beside(least, other))
        };
        self.groups.values().any(small)
    }

    /// Whom what one group sends delays.
    pub(super) fn company(&self, now: Instant) -> Company {
        if self.small || now < self.small_until {
            Company::Small
        } else if self.groups.len() > 1 {
            Company::Large
        } else {
            Company::Nobody
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (GroupHandle, InstanceId)> + '_ {
        self.groups.iter().flat_map(|(group, found)| found.instances.iter().map(|instance| (*group, *instance)))
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
        self.groups.range((next, Bound::Unbounded)).chain(rest).map(|(group, found)| (*group, &found.instances))
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
        let instances = &mut self.groups.get_mut(&group).expect("just found").instances;
        let instance = instances.remove(at).expect("just found");
        instances.push_back(instance);
        Some((group, instance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn mc_13_groups_take_turns_however_many_collectives_they_have() {
        let mut turns = Turns::new(Smallness::new(&Config::default()));
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

    const LARGE: u64 = 4 << 20;

    /// Groups in flight by what their calls move, each with one collective.
    fn in_flight(loads: &[Load]) -> Turns {
        let mut turns = Turns::new(Smallness::new(&Config::default()));
        for (load, group) in loads.iter().zip(1..) {
            turns.insert(GroupHandle(group), InstanceId(1));
            turns.load(GroupHandle(group), InstanceId(1), *load);
        }
        turns
    }

    #[test]
    fn mc_13_company_is_small_as_long_as_a_small_call_is_beside_large_ones() {
        let company = |loads: &[Load]| in_flight(loads).company(Instant(5));
        let (large, small) = (Load::Own(LARGE), Load::Shared(4096));
        assert_eq!(company(&[large]), Company::Nobody);
        assert_eq!(company(&[small]), Company::Nobody);
        assert_eq!(company(&[large, Load::Shared(LARGE / 4)]), Company::Large);
        assert_eq!(company(&[large; 3]), Company::Large);
        assert_eq!(company(&[Load::Own(64 << 10); 40]), Company::Large, "alike, however many");
        let ascending = [Load::Own(LARGE / 16), Load::Own(LARGE / 4), large];
        assert_eq!(company(&ascending), Company::Large);
        assert_eq!(company(&[small, Load::Shared(8192)]), Company::Large, "neither is in the other's way");
        for small in [small, Load::Own(4096), Load::Single(4096), Load::Shared(0)] {
            assert_eq!(company(&[large, small]), Company::Small);
            assert_eq!(company(&[small, large, large]), Company::Small);
        }
    }

    #[test]
    fn mc_13_loads_of_one_collective_are_counted_as_it_moves_them() {
        let mut turns = in_flight(&[Load::Own(LARGE)]);
        let mut company = |group, loads: &[Load]| {
            turns.insert(GroupHandle(group), InstanceId(7));
            loads.iter().for_each(|load| turns.load(GroupHandle(group), InstanceId(7), *load));
            let company = turns.company(Instant(5));
            turns.remove(Instant(5), GroupHandle(group), InstanceId(7));
            company
        };
        assert_eq!(company(2, &[]), Company::Large, "nobody here waits for it");
        assert_eq!(company(2, &[Load::Own(4096), Load::Own(LARGE)]), Company::Large, "blocks of all ranks together");
        assert_eq!(company(2, &[Load::Single(LARGE), Load::Single(LARGE)]), Company::Large);
        assert_eq!(company(2, &[Load::Shared(4096); 100]), Company::Small, "however many ranks take part in it");
        let mut turns = in_flight(&[Load::Own(LARGE), Load::Single(LARGE)]);
        turns.load(GroupHandle(2), InstanceId(1), Load::Single(4096));
        assert_eq!(turns.company(Instant(5)), Company::Small, "each message is waited for");
    }

    #[test]
    fn mc_13_small_calls_count_for_a_while() {
        let mut turns = in_flight(&[Load::Own(LARGE), Load::Shared(4096)]);
        turns.remove(Instant(9), GroupHandle(2), InstanceId(1));
        assert_eq!(turns.company(Instant(10)), Company::Small, "the next call may come at any time");
        assert_eq!(turns.company(Instant(9) + AFTERWARDS), Company::Nobody);
        turns.remove(Instant(11), GroupHandle(1), InstanceId(1));
        assert_eq!(turns.company(Instant(9) + AFTERWARDS), Company::Nobody, "large calls need no room afterwards");
        assert_eq!(turns.iter().count(), 0);
    }
}
