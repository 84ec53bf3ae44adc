//! The engine beside a service process, like libfabric's deferred work: it carries out task lists by counters alone.
//!
//! Invariants: a task begins once, when its counter reaches its threshold. A receive is complete when a letter with its
//! tag has arrived, before or after the receive began. A complete task adds to its counter. Never touches a rank's
//! memory, nor decides what a list does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use outboard_plan::deferred::{DeferredAction, Threshold};
use outboard_proto::{CallId, EngineMessage, MemRef, MemRegion, Offload, OffloadedCall};

use crate::store::{AccessResult, CheckedMemory, StoredPayload};
use crate::violation::Violation;

/// A message between engines, with its payload if it has one.
#[derive(Debug, Clone)]
pub(crate) struct Letter {
    pub(crate) to: usize,
    pub(crate) tag: u64,
    payload: Option<StoredPayload>,
}

#[derive(Debug)]
struct RunningList {
    offload: Offload,
    counters: Vec<u64>,
    /// Whether each task is done, by task.
    done: Vec<bool>,
}

#[derive(Debug, Default)]
pub(crate) struct DeferredEngine {
    lists: Vec<RunningList>,
    /// Letters that no receive has matched, by tag.
    letters: BTreeMap<u64, Letter>,
    pub(crate) outbox: VecDeque<Letter>,
    pub(crate) ended: VecDeque<OffloadedCall>,
    pub(crate) taken: u64,
}

/// The address of the engine on a host.
pub(crate) fn engine_of(host: usize) -> Arc<[u8]> {
    Arc::from(&(host as u32).to_le_bytes()[..])
}

impl DeferredEngine {
    pub(crate) fn lists(&self) -> usize {
        self.lists.len()
    }

    pub(crate) fn begin(&mut self, memory: &mut CheckedMemory, offload: Offload) -> Result<(), Violation> {
        let (counters, done) = (vec![0; offload.list.counters as usize], vec![false; offload.list.tasks.len()]);
        self.lists.push(RunningList { offload, counters, done });
        self.taken += 1;
        self.progress(memory)
    }

    pub(crate) fn receive(&mut self, memory: &mut CheckedMemory, letter: Letter) -> Result<(), Violation> {
        let before = self.letters.insert(letter.tag, letter);
        assert!(before.is_none(), "two letters of one tag: {before:?}");
        self.progress(memory)
    }

    /// Drops the list of this call, for which nobody waits any more.
    pub(crate) fn withdraw(&mut self, call: CallId) {
        self.lists.retain(|list| list.offload.of.call != call);
    }

    fn progress(&mut self, memory: &mut CheckedMemory) -> Result<(), Violation> {
        let DeferredEngine { lists, letters, outbox, .. } = self;
        for list in &mut *lists {
            while list.progress_list(memory, letters, outbox)? {}
        }
        for RunningList { offload, .. } in lists.extract_if(.., |list| list.has_ended()) {
            self.ended.push_back(offload.of);
        }
        Ok(())
    }
}

impl RunningList {
    fn reached(&self, threshold: Threshold) -> bool {
        self.counters[threshold.counter as usize] >= threshold.value
    }

    fn has_ended(&self) -> bool {
        self.reached(self.offload.list.end)
    }

    /// Does what can be done now, and returns whether there was anything to do.
    fn progress_list(
        &mut self,
        memory: &mut CheckedMemory,
        letters: &mut BTreeMap<u64, Letter>,
        outbox: &mut VecDeque<Letter>,
    ) -> Result<bool, Violation> {
        let mut went = false;
        for at in 0..self.done.len() {
            let task = self.offload.list.tasks[at];
            if self.done[at] || !task.after.is_none_or(|after| self.reached(after)) {
                continue;
            }
            let message = self.offload.messages[at].as_ref();
            let counts = match (task.action, message) {
                (DeferredAction::Add { to }, _) => to,
                (DeferredAction::Send { counts, .. }, Some(EngineMessage { peer, tag, memory: from })) => {
                    let to = <[u8; 4]>::try_from(&peer[..]).expect("an address of an engine");
                    let payload = from.map(|from| done(from, memory.read(from)?)).transpose()?;
                    outbox.push_back(Letter { to: u32::from_le_bytes(to) as usize, tag: *tag, payload });
                    counts
                }
                (DeferredAction::Receive { counts, .. }, Some(EngineMessage { tag, memory: to, .. })) => {
                    let Some(letter) = letters.remove(tag) else { continue };
                    if let Some((to, payload)) = to.zip(letter.payload) {
                        done(to, memory.write(to, &payload, 0)?)?;
                    }
                    counts
                }
                (action, None) => unreachable!("no message for {action:?}"),
            };
            self.counters[counts as usize] += 1;
            (self.done[at], went) = (true, true);
        }
        Ok(went)
    }
}

/// Unwraps an access to memory of the service process, which never faults.
fn done<T>(at: MemRef, access: AccessResult<T>) -> Result<T, Violation> {
    assert!(matches!(at.region, MemRegion::Staging(_)), "an engine has {at:?}");
    match access {
        AccessResult::Done(done) => Ok(done),
        AccessResult::Fault(call) => unreachable!("staging of {call:?}"),
    }
}
