//! A task: one port's part in a job, pulse by pulse.
//!
//! Pulses of a job are counted across all its calls. The port has granted room for all pulses before `granted`, and has
//! carried out all pulses before `done`. A peer requests room before it sends a later pulse. Invariants:
//! `done <= next`, `done < granted`; sequences start in the order of pulses, several may run at once.

use std::collections::{BTreeMap, VecDeque};

use super::OrderedSettings;
use super::descriptor::{PULSES, PortAddress, Sequence};
use super::direct::DirectState;
use crate::engine::JobFailure;

/// A sequence that holds a DMA counter.
#[derive(Debug)]
pub(super) struct RunningSequence {
    pub(super) sequence: Sequence,
    /// The next descriptor, and the next chunk of its message.
    pub(super) at: usize,
    pub(super) chunk: u64,
    /// The counter, which also determines the place of intermediate results.
    pub(super) counter: usize,
}

/// State of a peer, another port of the job.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskPeer {
    /// The peer has room for all pulses before this one.
    pub(super) granted: u64,
    /// The last pulse for which room was requested.
    pub(super) requested: Option<u64>,
}

/// A peer that waits for room.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoomRequest {
    /// The last pulse for which the peer requested room; the peer may also wait for earlier ones.
    pub(super) most: u64,
    /// The last grant that was sent to the peer.
    pub(super) last_grant: u64,
}

/// The next retry of a task that waits for a DMA counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    pub(super) at: u64,
    pub(super) tries: u32,
}

/// The event that ends a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum CallEnd {
    Pulse(u64),
    /// The end of the point-to-point descriptors of all calls up to this number.
    Direct(u64),
}

#[derive(Debug)]
pub(super) struct Task {
    /// The unit that the task is bound to, if any.
    pub(super) unit: Option<usize>,
    pub(super) peers: BTreeMap<PortAddress, TaskPeer>,
    pub(super) failed: Option<JobFailure>,
    /// Sequences that are posted but not started, from pulse `next - queue.len()` on.
    pub(super) queue: VecDeque<Sequence>,
    /// Running sequences, by pulse.
    pub(super) running: BTreeMap<u64, RunningSequence>,
    /// The next pulse to be posted.
    pub(super) next: u64,
    pub(super) done: u64,
    pub(super) granted: u64,
    /// Ends of calls in flight, in the order of posting, which is also the order of reporting.
    pub(super) ends: VecDeque<CallEnd>,
    pub(super) direct: DirectState,
    /// Number of waiting packets, by pulse.
    pub(super) held: BTreeMap<u64, usize>,
    /// Peers that wait for room.
    pub(super) room_requests: BTreeMap<PortAddress, RoomRequest>,
    pub(super) retry: Option<Retry>,
}

impl Task {
    pub(super) fn new(peers: impl IntoIterator<Item = PortAddress>, settings: &OrderedSettings) -> Self {
        let granted = settings.granted();
        Task {
            unit: None,
            peers: peers.into_iter().map(|peer| (peer, TaskPeer { granted, requested: None })).collect(),
            failed: None,
            queue: VecDeque::new(),
            running: BTreeMap::new(),
            next: 0,
            done: 0,
            granted,
            ends: VecDeque::new(),
            direct: DirectState::default(),
            held: BTreeMap::new(),
            room_requests: BTreeMap::new(),
            retry: None,
        }
    }

    /// The pulse with this 12-bit number, if there is room for it.
    pub(super) fn pulse(&self, number: u16) -> Option<u64> {
        let ahead = (u64::from(number) + PULSES - self.done % PULSES) % PULSES;
        (self.done + ahead < self.granted).then_some(self.done + ahead)
    }

    /// Whether the task needs no unit: nothing is posted or waits, and it holds no extra grant.
    pub(super) fn is_idle(&self, settings: &OrderedSettings) -> bool {
        self.queue.is_empty()
            && self.running.is_empty()
            && self.held.is_empty()
            && self.room_requests.is_empty()
            && self.granted == self.done + settings.granted()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ends.front().is_some_and(|end| match end {
            CallEnd::Pulse(pulse) => *pulse < self.done,
            CallEnd::Direct(call) => self.direct.has_finished(*call),
        })
    }

    /// Whether the first pulse in the queue is the oldest unfinished one.
    pub(super) fn queue_has_oldest(&self) -> bool {
        self.next - self.queue.len() as u64 == self.done
    }
}
