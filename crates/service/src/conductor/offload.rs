//! The engine beside the service process: lists of the machine go to libfabric, and libfabric reports their ends.
//!
//! Invariant: a list reads and writes memory of this process alone, which stays alive as long as the provider may touch
//! it. The machine decides what is offloaded, never this module.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use outboard_fabric::limited;
use outboard_fabric::ofi::{DeferredMessage, Ofi, OfiError};
use outboard_proto::{CallId, EngineMessage, MemRef, OffloadedCall};
use outboard_shm::memory::MappedBytes;

use crate::memory::MemoryFault;
use crate::telemetry::statistics::OffloadCounters;

/// Delay before the failure of a list is reported. A message to a dead service process fails shortly before the death
/// is known, and the call must fail with the death as the reason.
const FAILURE_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct OffloadEngine {
    ofi: Ofi,
    next: u64,
    /// Lists in flight, except withdrawn ones.
    lists: BTreeMap<u64, OffloadedCall>,
    /// Lists that the engine has given up, and the time at which each is reported.
    given_up: VecDeque<(Instant, OffloadedCall)>,
    /// Set by a sleep: whether lists were in flight during the sleep, and how many lists had been handed over before.
    slept: Option<(bool, u64)>,
    pub(crate) counts: OffloadCounters,
}

impl OffloadEngine {
    /// Opens libfabric's `provider` at an address of this host.
    pub(crate) fn open(provider: &str, at: Ipv4Addr) -> Result<OffloadEngine, OfiError> {
        let ofi = Ofi::open(provider, at)?;
        tracing::warn!(
            provider,
            %at,
            "the engine's endpoint is not authenticated and not encrypted: whoever reaches it can send to it, so use it \
             on closed networks alone"
        );
        let (lists, given_up) = (BTreeMap::new(), VecDeque::new());
        Ok(OffloadEngine { ofi, next: 0, lists, given_up, slept: None, counts: OffloadCounters::default() })
    }

    /// Address at which the engines of other service processes reach this one.
    pub(crate) fn address(&self) -> &[u8] {
        self.ofi.address()
    }

    /// Becomes readable when [`Self::take_ended`] has work.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.ofi.event_fd()
    }

    /// Notes that the conductor is about to sleep.
    pub(crate) fn note_sleep(&mut self) {
        self.slept = Some((!self.lists.is_empty(), self.counts.calls));
    }

    /// Counts the wake-up before this turn if lists were in flight during the sleep or have been handed over since.
    pub(crate) fn count_wake(&mut self) {
        let counts = self.slept.take().is_some_and(|(busy, calls)| busy || self.counts.calls > calls);
        self.counts.wakeups += u64::from(counts);
    }

    /// Hands a list over; `resident` finds the memory of its messages. Returns false if the engine does not accept the
    /// list.
    pub(crate) fn begin(
        &mut self,
        offload: outboard_proto::Offload,
        mut resident: impl FnMut(MemRef) -> Result<MappedBytes, MemoryFault>,
    ) -> bool {
        let outboard_proto::Offload { of, list, messages } = offload;
        let mut message = |EngineMessage { peer, tag, memory }: EngineMessage| {
            Ok(DeferredMessage { peer, tag, bytes: memory.map(&mut resident).transpose()? })
        };
        let messages = messages.into_iter().map(|one| one.map(&mut message).transpose());
        // If memory for a message was missing, the group has failed already.
        let Ok(messages) = messages.collect::<Result<Vec<_>, MemoryFault>>() else { return true };
        let token = self.next;
        self.next += 1;
        match self.ofi.post(token, &list, messages) {
            Ok(()) => {
                self.counts.calls += 1;
                self.lists.insert(token, of);
                true
            }
            Err(error) => {
                limited!(error, group = %of.group, %error, "the engine does not take a call");
                false
            }
        }
    }

    /// Drops the list of a failed call, whose result is not needed any more.
    pub(crate) fn withdraw(&mut self, call: CallId) {
        self.given_up.retain(|(_, listed)| listed.call != call);
        let found = self.lists.iter().find(|(_, listed)| listed.call == call).map(|(token, _)| *token);
        if let Some(token) = found {
            self.lists.remove(&token);
            self.ofi.withdraw(token);
        }
    }

    /// Time at which [`Self::take_ended`] must be called although no descriptor wakes the conductor.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.given_up.front().map(|(at, _)| *at)
    }

    /// Calls whose lists have ended, each with whether the list was carried out.
    pub(crate) fn take_ended(&mut self, now: Instant) -> Vec<(OffloadedCall, bool)> {
        let mut ended = Vec::new();
        for (token, result) in self.ofi.take_ended() {
            let Some(of) = self.lists.remove(&token) else { continue };
            match result {
                Ok(()) => ended.push((of, true)),
                Err(error) => {
                    limited!(error, group = %of.group, %error, "the engine gives a call up");
                    self.given_up.push_back((now + FAILURE_DELAY, of));
                }
            }
        }
        while self.due().is_some_and(|at| at <= now)
            && let Some((_, of)) = self.given_up.pop_front()
        {
            ended.push((of, false));
        }
        ended
    }
}
