//! The order in which groups and their collectives in flight send (MC-13).
//!
//! Groups take turns, however many collectives each has in flight. Multicast also goes round the collectives of a
//! group. A link serves the collectives in the order of their calls, but much shorter messages first. While a call of
//! one group is small beside the calls of the others ([`SmallCalls`]), all unicast goes in small pieces. Small pieces
//! stay in use for a while, because bytes queued when the next small call comes cannot be taken back. Groups with only
//! large calls move large pieces, because small pieces would cost processor time without a benefit.
//!
//! A call counts once a local rank has made it. Before this first local call no local rank waits, and no bytes of an
//! exchange are queued. So ranks that wait in a barrier for a rank with much traffic elsewhere do not slow that
//! traffic. Knows only the number of bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use outboard_plan::Span;
use smallvec::SmallVec;

use crate::ids::{GroupHandle, InstanceId, Instant};
use crate::interface::{BlockSizes, CallMovement, ExchangePairs, RankCall};
use crate::multicast::pacing::{Contention, SmallCalls};

use crate::deadlines::Deadlines;

/// How long a small call beside large ones still counts after its end.
const AFTERWARDS: Duration = Duration::from_millis(100);

/// The bytes that a rank's call moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallLoad {
    /// Bytes that all local ranks wait for together; they move once.
    Shared(u64),
    /// Bytes of the rank's own blocks, which add to the blocks of the other local ranks.
    Own(u64),
    /// A message or recording, which no other call takes part in.
    Single(u64),
}

impl CallLoad {
    /// The load of a call in a group of `ranks`, or an estimate.
    pub(super) fn of(call: &RankCall, ranks: u32) -> Self {
        let bytes = call.signature.bytes;
        let others = bytes.saturating_mul(u64::from(ranks) - 1);
        let all = |spans: &[Span]| {
            let moved = spans.iter().enumerate().filter(|(other, _)| *other != call.rank.0 as usize);
            moved.fold(0_u64, |sum, (_, span)| sum.saturating_add(span.len))
        };
        let class = call.signature.kind.class();
        match (class.moves, &call.blocks) {
            (CallMovement::Nothing, _) => CallLoad::Shared(0),
            (CallMovement::Messages(_), _) => CallLoad::Single(bytes),
            (CallMovement::Blocks(_), Some(blocks)) => CallLoad::Own(all(&blocks.send).max(all(&blocks.receive))),
            (CallMovement::Blocks(ExchangePairs::To(root) | ExchangePairs::From(root)), None) if root != call.rank => {
                CallLoad::Own(bytes)
            }
            (CallMovement::Blocks(_), None) => CallLoad::Own(others),
            (CallMovement::ToAll | CallMovement::Combined(_), _) => match class.sizes {
                BlockSizes::Even => CallLoad::Shared(others),
                BlockSizes::Whole | BlockSizes::Agreed(_) | BlockSizes::Paired => CallLoad::Shared(bytes),
            },
        }
    }
}

/// The bytes that the calls of one collective, or all messages of a group, move.
#[derive(Debug, Clone, Copy)]
struct TrafficLoad {
    /// Bytes of the smallest unit that a rank waits for.
    least: u64,
    all: u64,
}

impl TrafficLoad {
    const NOTHING: TrafficLoad = TrafficLoad { least: u64::MAX, all: 0 };

    fn and(self, load: CallLoad) -> Self {
        match load {
            CallLoad::Shared(bytes) => TrafficLoad { least: bytes.max(self.all), all: bytes.max(self.all) },
            CallLoad::Own(bytes) => {
                let all = self.all.saturating_add(bytes);
                TrafficLoad { least: all, all }
            }
            CallLoad::Single(bytes) => {
                TrafficLoad { least: self.least.min(bytes), all: self.all.saturating_add(bytes) }
            }
        }
    }
}

/// One instance's part in the totals over all instances: the next deadline, and what it has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct InstanceSummary {
    /// When the instance's timer is due.
    pub(super) deadline: Option<Instant>,
    /// The instance has chunks to multicast.
    pub(super) multicasts: bool,
    /// The instance may have repairs for its right neighbour.
    pub(super) repairs: bool,
}

/// A collective in flight, or all messages of a group.
#[derive(Debug, Clone, Copy)]
struct TurnEntry {
    /// The place of the instance among the instances of its group.
    turn: u64,
    summary: InstanceSummary,
    /// The bytes that local ranks wait for, once a local rank has called the instance.
    moved: Option<TrafficLoad>,
}

#[derive(Debug, Default)]
struct GroupTraffic {
    instances: usize,
    /// Bytes of all instances.
    all: u128,
    /// By instance that a local rank has called: the smallest unit that a rank waits for.
    least: BTreeSet<(u64, InstanceId)>,
}

impl GroupTraffic {
    fn least(&self) -> Option<u64> {
        self.least.first().map(|(least, _)| *least)
    }

    fn change(&mut self, instance: InstanceId, before: Option<TrafficLoad>, after: Option<TrafficLoad>) {
        if let Some(before) = before {
            self.least.remove(&(before.least, instance));
            self.all -= u128::from(before.all);
        }
        self.least.extend(after.map(|moved| (moved.least, instance)));
        self.all += after.map_or(0, |moved| moved.all.into());
    }

    fn all(&self) -> u64 {
        u64::try_from(self.all).unwrap_or(u64::MAX)
    }
}

/// A collective, sorted by turns.
type TurnKey = (GroupHandle, u64, InstanceId);

/// The collectives in flight at one service process.
#[derive(Debug)]
pub(super) struct TurnScheduler {
    instances: BTreeMap<(GroupHandle, InstanceId), TurnEntry>,
    groups: BTreeMap<GroupHandle, GroupTraffic>,
    /// A group with nothing in flight, kept to reuse its memory.
    spare: GroupTraffic,
    /// Groups by their bytes, and by the smallest unit that a rank waits for.
    by_all: BTreeSet<(u64, GroupHandle)>,
    by_least: BTreeSet<(u64, GroupHandle)>,
    last_turn: u64,
    multicasting: BTreeSet<TurnKey>,
    repairs: BTreeSet<TurnKey>,
    /// Groups whose messages from rank to rank have bulk for links.
    transfers: BTreeSet<GroupHandle>,
    deadlines: Deadlines<(GroupHandle, InstanceId)>,
    /// The group that multicast last.
    last: Option<GroupHandle>,
    small_calls: SmallCalls,
    /// A call in flight is small beside the calls of other groups.
    small: bool,
    small_until: Instant,
}

impl TurnScheduler {
    pub(super) fn new(small_calls: SmallCalls) -> Self {
        TurnScheduler {
            instances: BTreeMap::new(),
            groups: BTreeMap::new(),
            spare: GroupTraffic::default(),
            by_all: BTreeSet::new(),
            by_least: BTreeSet::new(),
            last_turn: 0,
            multicasting: BTreeSet::new(),
            repairs: BTreeSet::new(),
            transfers: BTreeSet::new(),
            deadlines: Deadlines::default(),
            last: None,
            small_calls,
            small: false,
            small_until: Instant(0),
        }
    }

    pub(super) fn insert(&mut self, group: GroupHandle, instance: InstanceId) {
        self.last_turn += 1;
        let new = TurnEntry { turn: self.last_turn, summary: InstanceSummary::default(), moved: None };
        self.instances.insert((group, instance), new);
        self.change_group(group, |g| g.instances += 1);
    }

    /// A local rank has called a collective, or messages. Calls without a turn are ignored.
    pub(super) fn load(&mut self, group: GroupHandle, instance: InstanceId, load: CallLoad) {
        let Some(found) = self.instances.get_mut(&(group, instance)) else { return };
        let before = found.moved;
        let after = before.unwrap_or(TrafficLoad::NOTHING).and(load);
        found.moved = Some(after);
        self.change_group(group, |g| g.change(instance, before, Some(after)));
        self.small = self.has_small();
    }

    pub(super) fn remove(&mut self, now: Instant, group: GroupHandle, instance: InstanceId) {
        if self.small {
            self.small_until = now + AFTERWARDS;
        }
        self.note(group, instance, InstanceSummary::default());
        if let Some(found) = self.instances.remove(&(group, instance)) {
            self.change_group(group, |g| {
                g.instances -= 1;
                g.change(instance, found.moved, None);
            });
        }
        self.small = self.has_small();
    }

    fn change_group(&mut self, group: GroupHandle, change: impl FnOnce(&mut GroupTraffic)) {
        let g = self.groups.entry(group).or_insert_with(|| std::mem::take(&mut self.spare));
        self.by_all.remove(&(g.all(), group));
        g.least().into_iter().for_each(|least| _ = self.by_least.remove(&(least, group)));
        change(g);
        if g.instances == 0 {
            self.spare = self.groups.remove(&group).unwrap_or_default();
        } else {
            self.by_all.insert((g.all(), group));
            self.by_least.extend(g.least().map(|least| (least, group)));
        }
    }

    pub(super) fn note(&mut self, group: GroupHandle, instance: InstanceId, summary: InstanceSummary) {
        let Some(found) = self.instances.get_mut(&(group, instance)) else { return };
        let before = std::mem::replace(&mut found.summary, summary);
        let turn = (group, found.turn, instance);
        let set = |all: &mut BTreeSet<TurnKey>, there| if there { all.insert(turn) } else { all.remove(&turn) };
        if before.multicasts != summary.multicasts {
            set(&mut self.multicasting, summary.multicasts);
        }
        if before.repairs != summary.repairs {
            set(&mut self.repairs, summary.repairs);
        }
        self.deadlines.change((group, instance), before.deadline, summary.deadline);
    }

    /// When [`Self::pop_due`] has something.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first()
    }

    /// The next instance whose timer is due. The caller must [note](Self::note) the next deadline of the instance
    /// afterwards.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(GroupHandle, InstanceId)> {
        let due = self.deadlines.pop_due(now)?;
        self.instances.get_mut(&due).into_iter().for_each(|found| found.summary.deadline = None);
        Some(due)
    }

    /// Whether some group has a call that is small beside another group's. Similar calls wait for each other anyway.
    fn has_small(&self) -> bool {
        let mut largest = self.by_all.iter().rev();
        let (Some(&(most, top)), Some(&(next, _))) = (largest.next(), largest.next()) else { return false };
        let beside = |least: Option<u64>, other| least.is_some_and(|least| self.small_calls.beside(least, other));
        let smallest = self.by_least.iter().find(|(_, group)| *group != top).map(|(least, _)| *least);
        beside(smallest, most) || beside(self.groups[&top].least(), next)
    }

    /// The contention that a sending group causes for others.
    pub(super) fn contention(&self, now: Instant) -> Contention {
        if self.small || now < self.small_until {
            Contention::Small
        } else if self.groups.len() > 1 {
            Contention::Large
        } else {
            Contention::None
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (GroupHandle, InstanceId)> + '_ {
        self.instances.keys().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.instances.len()
    }

    /// Notes whether the messages of a group have bulk.
    pub(super) fn note_transfer(&mut self, group: GroupHandle, bulk: bool) {
        if bulk {
            self.transfers.insert(group);
        } else {
            self.transfers.remove(&group);
        }
    }

    /// Groups whose messages have bulk.
    pub(super) fn with_transfers(&self) -> impl Iterator<Item = GroupHandle> + '_ {
        self.transfers.iter().copied()
    }

    /// Collectives that may have repairs.
    pub(super) fn with_repairs(&self) -> impl Iterator<Item = (GroupHandle, InstanceId)> + '_ {
        self.repairs.iter().map(|(group, _, instance)| (*group, *instance))
    }

    /// Collectives of one group that may have repairs, in the order of their turns.
    pub(super) fn repairs_of(&self, group: GroupHandle) -> impl Iterator<Item = InstanceId> + '_ {
        let all = (group, 0, InstanceId(0))..=(group, u64::MAX, InstanceId(u64::MAX));
        self.repairs.range(all).map(|(_, _, instance)| *instance)
    }

    /// Groups with bulk or repairs in the order of their turns, if `last` had the last turn.
    pub(super) fn bulk_after(&self, last: Option<GroupHandle>) -> SmallVec<[GroupHandle; 4]> {
        let mut groups: SmallVec<[GroupHandle; 4]> = self.transfers.iter().copied().collect();
        groups.extend(self.repairs.iter().map(|(group, ..)| *group));
        groups.sort_unstable_by_key(|group| (last.is_some_and(|last| *group <= last), *group));
        groups.dedup();
        groups
    }

    pub(super) fn multicasts(&self) -> bool {
        !self.multicasting.is_empty()
    }

    /// The next collective that may multicast. This collective gets the turn.
    pub(super) fn next_multicast(&mut self) -> Option<(GroupHandle, InstanceId)> {
        let (group, _, instance) = after(&self.multicasting, self.last).next()?;
        self.last = Some(group);
        let found = self.instances.get_mut(&(group, instance))?;
        let (before, summary) = (found.turn, found.summary);
        self.last_turn += 1;
        found.turn = self.last_turn;
        for (all, there) in [(&mut self.multicasting, summary.multicasts), (&mut self.repairs, summary.repairs)] {
            if there {
                all.remove(&(group, before, instance));
                all.insert((group, found.turn, instance));
            }
        }
        Some((group, instance))
    }
}

/// Turns from the group after `last` on, round to `last` itself.
fn after(turns: &BTreeSet<TurnKey>, last: Option<GroupHandle>) -> impl Iterator<Item = TurnKey> + '_ {
    let end = last.map(|last| (last, u64::MAX, InstanceId(u64::MAX)));
    let rest = end.into_iter().flat_map(|end| turns.range(..=end));
    let next = end.map_or(Bound::Unbounded, Bound::Excluded);
    turns.range((next, Bound::Unbounded)).chain(rest).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn mc_13_groups_take_turns_however_many_collectives_they_have() {
        let mut turns = TurnScheduler::new(SmallCalls::new(&Config::default()));
        for (group, instance) in [(1, 1), (1, 2), (1, 3), (2, 1), (3, 7)] {
            turns.insert(GroupHandle(group), InstanceId(instance));
        }
        let mut took = |wants: fn(u32) -> bool| {
            for (group, instance) in turns.iter().collect::<Vec<_>>() {
                turns.note(
                    group,
                    instance,
                    InstanceSummary { multicasts: wants(group.0), ..InstanceSummary::default() },
                );
            }
            turns.next_multicast().map(|(group, instance)| (group.0, instance.0))
        };
        let all: Vec<_> = (0..6).filter_map(|_| took(|_| true)).collect();
        assert_eq!(all, [(1, 1), (2, 1), (3, 7), (1, 2), (2, 1), (3, 7)]);
        assert_eq!(took(|group| group != 1), Some((2, 1)), "a group with nothing to send is passed over");
        assert_eq!(took(|_| false), None);
    }

    const LARGE: u64 = 4 << 20;

    /// Groups in flight, each with one collective that has one of these loads.
    fn in_flight(loads: &[CallLoad]) -> TurnScheduler {
        let mut turns = TurnScheduler::new(SmallCalls::new(&Config::default()));
        for (load, group) in loads.iter().zip(1..) {
            turns.insert(GroupHandle(group), InstanceId(1));
            turns.load(GroupHandle(group), InstanceId(1), *load);
        }
        turns
    }

    #[test]
    fn mc_13_contention_is_small_as_long_as_a_small_call_is_beside_large_ones() {
        let contention = |loads: &[CallLoad]| in_flight(loads).contention(Instant(5));
        let (large, small) = (CallLoad::Own(LARGE), CallLoad::Shared(4096));
        assert_eq!(contention(&[large]), Contention::None);
        assert_eq!(contention(&[small]), Contention::None);
        assert_eq!(contention(&[large, CallLoad::Shared(LARGE / 4)]), Contention::Large);
        assert_eq!(contention(&[large; 3]), Contention::Large);
        assert_eq!(contention(&[CallLoad::Own(64 << 10); 40]), Contention::Large, "alike, however many");
        let ascending = [CallLoad::Own(LARGE / 16), CallLoad::Own(LARGE / 4), large];
        assert_eq!(contention(&ascending), Contention::Large);
        assert_eq!(contention(&[small, CallLoad::Shared(8192)]), Contention::Large, "neither is in the other's way");
        for small in [small, CallLoad::Own(4096), CallLoad::Single(4096), CallLoad::Shared(0)] {
            assert_eq!(contention(&[large, small]), Contention::Small);
            assert_eq!(contention(&[small, large, large]), Contention::Small);
        }
    }

    #[test]
    fn mc_13_loads_of_one_collective_add_up_by_kind() {
        let mut turns = in_flight(&[CallLoad::Own(LARGE)]);
        let mut contention = |group, loads: &[CallLoad]| {
            turns.insert(GroupHandle(group), InstanceId(7));
            loads.iter().for_each(|load| turns.load(GroupHandle(group), InstanceId(7), *load));
            let contention = turns.contention(Instant(5));
            turns.remove(Instant(5), GroupHandle(group), InstanceId(7));
            contention
        };
        assert_eq!(contention(2, &[]), Contention::Large, "nobody here waits for it");
        assert_eq!(
            contention(2, &[CallLoad::Own(4096), CallLoad::Own(LARGE)]),
            Contention::Large,
            "blocks of all ranks together"
        );
        assert_eq!(contention(2, &[CallLoad::Single(LARGE), CallLoad::Single(LARGE)]), Contention::Large);
        assert_eq!(
            contention(2, &[CallLoad::Shared(4096); 100]),
            Contention::Small,
            "however many ranks take part in it"
        );
        let mut turns = in_flight(&[CallLoad::Own(LARGE), CallLoad::Single(LARGE)]);
        turns.load(GroupHandle(2), InstanceId(1), CallLoad::Single(4096));
        assert_eq!(turns.contention(Instant(5)), Contention::Small, "each message is waited for");
    }

    #[test]
    fn mc_13_small_calls_count_for_a_while() {
        let mut turns = in_flight(&[CallLoad::Own(LARGE), CallLoad::Shared(4096)]);
        turns.remove(Instant(9), GroupHandle(2), InstanceId(1));
        assert_eq!(turns.contention(Instant(10)), Contention::Small, "the next call may come at any time");
        assert_eq!(turns.contention(Instant(9) + AFTERWARDS), Contention::None);
        turns.remove(Instant(11), GroupHandle(1), InstanceId(1));
        assert_eq!(turns.contention(Instant(9) + AFTERWARDS), Contention::None, "large calls need no room afterwards");
        assert_eq!(turns.iter().count(), 0);
    }
}
