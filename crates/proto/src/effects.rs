//! The effects that the machines of one service process request, collected until the driver polls for them.
//!
//! Invariant: orders keep the order in which they were given. Staging never exceeds its quotas.

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::{Rank, Reduction};

use crate::config::Config;
use crate::error::CollectiveError;
use crate::ids::{CallId, GroupHandle, InstanceId, Instant, SpId, StagingId, TAGGED};
use crate::interface::{CallKind, EndpointCounters, Event, MemRef, MemRegion, Milestone, Offload, Order};
use crate::link::MessageOwner;
use crate::multicast::pacing::Contention;
use crate::staging::staging_size;
use crate::wire::Message;

/// Most bytes that a step of a recording copies or combines at once.
pub(crate) const PIECE: u64 = 4 << 20;

#[derive(Debug)]
pub(crate) struct Effects {
    pub(crate) now: Instant,
    /// Traffic in flight of the groups beside the sending one (MC-13).
    pub(crate) contention: Contention,
    pub(crate) orders: VecDeque<Order>,
    pub(crate) events: VecDeque<Event>,
    /// Calls that only wait for orders to complete, each with its result if the orders succeed.
    ending: VecDeque<(CallCompletion, Result<(), CollectiveError>)>,
    /// Calls in flight that will never have all their bytes, each with its error.
    bytes_lost: BTreeMap<CallId, CollectiveError>,
    /// Lists for the engine beside the service process. A list is handed out after the bytes of its call are copied.
    offloads: VecDeque<Offload>,
    /// Messages without payload, in order, for the links.
    pub(crate) messages: VecDeque<(SpId, Message)>,
    /// Ended collectives: links must not read their payload any more.
    pub(crate) ended_instances: Vec<(GroupHandle, InstanceId)>,
    /// Memory that links must not read any more: buffers of ended calls, and staging of ranks whose call has ended.
    pub(crate) freed_memory: Vec<(MessageOwner, MemRegion)>,
    /// Instances that an event has changed.
    pub(crate) changed: Vec<(GroupHandle, InstanceId)>,
    /// Remaining work of recordings and collectives until the driver has drained the effects.
    pub(crate) allowance: Allowance,
    /// Work that continues at the next timeout: collectives, and under [`TAGGED`] the recordings of groups.
    pub(crate) unfinished: VecDeque<(GroupHandle, InstanceId)>,
    pub(crate) counters: EndpointCounters,
    narrates: bool,
    /// By [`Quota`]: the limit, and the bytes in use.
    quotas: [(u64, u64); 3],
    next_staging: u64,
}

impl Effects {
    pub(crate) fn new(config: &Config) -> Self {
        Effects {
            now: Instant(0),
            contention: Contention::None,
            orders: VecDeque::new(),
            events: VecDeque::new(),
            ending: VecDeque::new(),
            bytes_lost: BTreeMap::new(),
            offloads: VecDeque::new(),
            messages: VecDeque::new(),
            ended_instances: Vec::new(),
            freed_memory: Vec::new(),
            changed: Vec::new(),
            allowance: Allowance::FULL,
            unfinished: VecDeque::new(),
            counters: EndpointCounters::default(),
            narrates: config.narrate,
            quotas: [config.staging_quota, config.scratch_quota, config.tables_quota].map(|most| (most, 0)),
            next_staging: 1,
        }
    }

    /// Allocates memory of the service process for a group; `None` when the quota has no room.
    pub(crate) fn stage(&mut self, quota: Quota, group: GroupHandle, bytes: u64) -> Option<Staging> {
        let size = staging_size(bytes).filter(|size| self.hold(quota, *size))?;
        self.counters.staging_peak = self.counters.staging_peak.max(self.staged());
        let id = StagingId(self.next_staging);
        self.next_staging += 1;
        self.orders.push_back(Order::Stage { id, bytes, group });
        Some(Staging { id, bytes, size, quota })
    }

    /// Bytes of staging and scratch in use.
    fn staged(&self) -> u64 {
        [Quota::Late, Quota::Calls].iter().map(|quota| self.quotas[*quota as usize].1).sum()
    }

    /// Whether a quota has room for an allocation of `size` bytes ([`staging_size`]).
    pub(crate) fn has_room(&self, quota: Quota, size: u64) -> bool {
        let (most, used) = self.quotas[quota as usize];
        size <= most - used
    }

    /// Counts `size` bytes to a quota, if the quota has room, until [`Self::release`].
    pub(crate) fn hold(&mut self, quota: Quota, size: u64) -> bool {
        let room = self.has_room(quota, size);
        self.quotas[quota as usize].1 += if room { size } else { 0 };
        room
    }

    pub(crate) fn release(&mut self, quota: Quota, size: u64) {
        self.quotas[quota as usize].1 -= size;
    }

    pub(crate) fn unstage(&mut self, staging: Staging) {
        self.release(staging.quota, staging.size);
        self.orders.push_back(Order::Unstage { id: staging.id });
    }

    /// Frees staging while its collective continues. Links send no more bytes from this staging.
    pub(crate) fn unstage_early(&mut self, group: GroupHandle, instance: InstanceId, staging: Staging) {
        self.freed_memory.push((MessageOwner::Instance(group, instance), MemRegion::Staging(staging.id)));
        self.unstage(staging);
    }

    pub(crate) fn copy(&mut self, from: MemRef, to: MemRef) {
        assert_eq!(from.len, to.len, "copies keep lengths");
        if from != to && from.len > 0 {
            self.allowance.note(from.len);
            self.orders.push_back(Order::Copy { from, to });
        }
    }

    pub(crate) fn reduce(&mut self, reduction: Reduction, from: MemRef, into: MemRef, from_left: bool) {
        assert_eq!(from.len, into.len, "operands have one length");
        assert!(from.len.is_multiple_of(reduction.element().bytes()), "operands are whole elements");
        if from.len > 0 {
            self.allowance.note(from.len);
            self.orders.push_back(Order::Reduce { from, into, reduction, from_left });
        }
    }

    /// Marks an instance as changed: state that depends on it must be updated.
    pub(crate) fn mark_changed(&mut self, group: GroupHandle, instance: InstanceId) {
        if self.changed.last() != Some(&(group, instance)) {
            self.changed.push((group, instance));
        }
    }

    /// Queues a list for the engine. The list is handed out when the orders before it are done.
    pub(crate) fn offload(&mut self, offload: Offload) {
        self.offloads.push_back(offload);
    }

    /// Ends a call as soon as its orders are done ([`Self::poll_event`]).
    pub(crate) fn complete(&mut self, completion: CallCompletion, result: Result<(), CollectiveError>) {
        let CallCompletion { call, group, instance, .. } = completion;
        // A list that was not handed out is dropped.
        self.offloads.retain(|offload| offload.of.call != call);
        let owner = if instance == TAGGED { MessageOwner::Call(call) } else { MessageOwner::Instance(group, instance) };
        self.ending.push_back((completion, result));
        self.freed_memory.extend([(owner, MemRegion::Input(call)), (owner, MemRegion::Output(call))]);
    }

    /// A rank calls an instance whose first news came at `began` (SP-9).
    pub(crate) fn late(
        &mut self,
        group: GroupHandle,
        rank: Rank,
        instance: InstanceId,
        kind: CallKind,
        began: Instant,
    ) {
        let by_ns = self.now.0 - began.0;
        self.counters.late_arrivals += 1;
        self.counters.late_ns += by_ns;
        self.events.push_back(Event::Late { group, rank, instance, kind, by_ns });
    }

    pub(crate) fn step(&mut self, group: GroupHandle, instance: InstanceId, step: Milestone) {
        if self.narrates {
            self.events.push_back(Event::Milestone { group, instance, step });
        }
    }

    /// Whether internal work remains before the driver may see effects.
    pub(crate) fn has_internal_work(&self) -> bool {
        !self.messages.is_empty() || !self.ended_instances.is_empty() || !self.freed_memory.is_empty()
    }

    /// The call, if it ends as soon as its orders are done.
    pub(crate) fn ending(&self, call: CallId) -> Option<&CallCompletion> {
        self.ending.iter().map(|(completion, _)| completion).find(|completion| completion.call == call)
    }

    /// An order on memory failed: no local rank may get success for missing bytes.
    pub(crate) fn fail_ending(&mut self, group: GroupHandle, instance: InstanceId, error: &CollectiveError) {
        self.fail_endings(|c| (c.group, c.instance) == (group, instance), error);
    }

    /// Like `fail_ending`, for all calls of a group.
    pub(crate) fn fail_ending_of_group(&mut self, group: GroupHandle, error: &CollectiveError) {
        self.fail_endings(|c| c.group == group, error);
    }

    fn fail_endings(&mut self, which: impl Fn(&CallCompletion) -> bool, error: &CollectiveError) {
        let those = self.ending.iter_mut().filter(|(completion, result)| result.is_ok() && which(completion));
        those.for_each(|(_, result)| *result = Err(error.clone()));
    }

    /// Bytes of a call in flight are lost in memory that the driver cannot reach: this call alone ends with the error.
    pub(crate) fn bytes_lost(&mut self, call: CallId, error: CollectiveError) {
        self.bytes_lost.insert(call, error);
    }

    /// The next event. The result of a call is decided here, once: when all orders of the call are done, also the
    /// orders that the driver has postponed. The second argument of `is_deferred` returns whether a call has failed.
    pub(crate) fn poll_event(
        &mut self,
        is_deferred: impl Fn(CallId, &dyn Fn(CallId) -> bool) -> bool,
    ) -> Option<Event> {
        if !self.events.is_empty() || !self.orders.is_empty() {
            return self.events.pop_front();
        }
        let failed = |call| self.ending.iter().any(|(completion, result)| completion.call == call && result.is_err());
        if let Some(at) = self.offloads.iter().position(|offload| !is_deferred(offload.of.call, &failed)) {
            return self.offloads.remove(at).map(|offload| Event::Offload(Box::new(offload)));
        }
        let Some(at) = self.ending.iter().position(|(completion, _)| !is_deferred(completion.call, &failed)) else {
            self.allowance = Allowance::FULL;
            return None;
        };
        let (CallCompletion { call, .. }, result) = self.ending.remove(at)?;
        let result = result.and(self.bytes_lost.remove(&call).map_or(Ok(()), Err));
        match &result {
            Ok(()) => self.counters.completed += 1,
            Err(_) => self.counters.failed += 1,
        }
        Some(Event::Completed { call, result })
    }

    pub(crate) fn violation(&mut self, peer: Option<SpId>, what: &'static str) {
        self.counters.violations += 1;
        // The counter counts all violations; the driver needs only a sample of a flood.
        if self.events.len() < 1024 {
            self.events.push_back(Event::Violation { peer, what });
        }
    }
}

/// The work that recordings and collectives may do at once. The steps take about a millisecond, and so do the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    steps: u32,
    bytes: u64,
}

impl Allowance {
    pub(crate) const FULL: Allowance = Allowance { steps: 1024, bytes: PIECE };

    /// Whether one more step is allowed; counts the step.
    pub(crate) fn step(&mut self) -> bool {
        let may = self.steps > 0 && self.bytes > 0;
        self.steps -= u32::from(may);
        may
    }

    pub(crate) fn is_left(self) -> bool {
        self.steps > 0 && self.bytes > 0
    }

    fn note(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CallCompletion {
    pub(crate) call: CallId,
    pub(crate) group: GroupHandle,
    pub(crate) instance: InstanceId,
    pub(crate) rank: Rank,
}

/// The limits on the memory of a service process, each for all ranks together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quota {
    /// Memory for ranks that have not called.
    Late,
    /// Memory for calls that all local ranks have made.
    Calls,
    /// Tables of groups, recordings and the chunks of blocks, beside staging.
    Tables,
}

/// Staging in use, until [`Effects::unstage`] frees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Staging {
    pub(crate) id: StagingId,
    pub(crate) bytes: u64,
    size: u64,
    pub(crate) quota: Quota,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A size that is allocated without rounding.
    const UNIT: u64 = 256;

    fn try_stage(out: &mut Effects, quota: Quota, units: u64) -> Option<Staging> {
        out.stage(quota, GroupHandle(1), units * UNIT)
    }

    fn stage(out: &mut Effects, quota: Quota, units: u64) -> Staging {
        try_stage(out, quota, units).expect("within the quota")
    }

    #[test]
    fn staging_of_late_ranks_and_of_calls_has_separate_quotas() {
        let (staging_quota, scratch_quota) = (96 * UNIT, 48 * UNIT);
        let mut out = Effects::new(&Config { staging_quota, scratch_quota, ..Config::default() });
        stage(&mut out, Quota::Late, 56);
        assert_eq!(try_stage(&mut out, Quota::Late, 41), None);
        stage(&mut out, Quota::Late, 40);
        let own = stage(&mut out, Quota::Calls, 48);
        assert_eq!(try_stage(&mut out, Quota::Calls, 1), None);
        out.unstage(own);
        assert_eq!(try_stage(&mut out, Quota::Late, 1), None);
        stage(&mut out, Quota::Calls, 48);
        assert_eq!((out.staged(), out.counters.staging_peak), (144 * UNIT, 144 * UNIT));
    }

    #[test]
    fn allocation_counts_rounded_up_by_an_eighth_at_most() {
        let mut out = Effects::new(&Config { staging_quota: 1000 * UNIT, ..Config::default() });
        let held: Vec<_> = std::iter::from_fn(|| out.stage(Quota::Late, GroupHandle(1), 1)).collect();
        assert_eq!(held.len(), 1000, "messages of one byte");
        held.into_iter().for_each(|staging| out.unstage(staging));
        assert_eq!(out.staged(), 0);
        for bytes in [0, 1, 256, 257, 4095, 4097, 33_000, (1 << 30) + 1, u64::MAX / 3] {
            let size = staging_size(bytes).expect("memory");
            assert!(size >= bytes.max(256) && size <= bytes.max(256) + bytes / 8 + 32, "{size} for {bytes}");
        }
        assert_eq!(staging_size(u64::MAX), None);
    }

    #[test]
    fn call_succeeds_after_its_orders_and_fails_when_bytes_are_lost() {
        let mut out = Effects::new(&Config::default());
        let completion = |call: u64, instance: u64| {
            let (call, instance) = (CallId(call), InstanceId(instance));
            CallCompletion { call, group: GroupHandle(1), instance, rank: Rank(0) }
        };
        let ended = |out: &mut Effects, is_deferred: &[u64]| match out
            .poll_event(|call, failed| !failed(call) && is_deferred.contains(&call.0))
        {
            Some(Event::Completed { call, result }) => Some((call.0, result.is_ok())),
            _ => None,
        };
        out.bytes_lost(CallId(3), CollectiveError::RankLost(Rank(7)));
        for call in 1..=4 {
            out.complete(completion(call, call), Ok(()));
        }
        assert_eq!(ended(&mut out, &[1, 2]), Some((3, false)), "others go on while two wait for copies");
        assert_eq!(ended(&mut out, &[1, 2]), Some((4, true)));
        assert_eq!(ended(&mut out, &[1, 2]), None);
        out.fail_ending(GroupHandle(1), InstanceId(2), &CollectiveError::Memory(Rank(0)));
        assert_eq!(ended(&mut out, &[1, 2]), Some((2, false)), "the copy cannot be written where it goes");
        assert_eq!(ended(&mut out, &[]), Some((1, true)));
        assert_eq!((out.counters.completed, out.counters.failed), (2, 2));
    }
}
