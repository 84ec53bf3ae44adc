//! A task: one port's part in a job, pulse by pulse.
//!
//! Pulses of a job are counted through all its calls. The port has granted room for all pulses before `granted`, and
//! has carried out all before `done`; who wants to send something of a later one asks first. Invariants: `done <=
//! next`, `done < granted`; sequences start in the order of pulses, several at once.

use std::collections::{BTreeMap, VecDeque};

use super::Settings;
use super::descriptor::{PULSES, Sequence, Source};
use super::direct::Direct;
use crate::engine::Failure;

/// A sequence that holds a DMA counter.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) sequence: Sequence,
    /// The descriptor that is next, and the chunk of its message.
    pub(super) at: usize,
    pub(super) chunk: u64,
    /// The counter, and with it the place of intermediate results.
    pub(super) counter: usize,
}

/// What a port knows of another one of its job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    /// There is room at the peer for all pulses before this one.
    pub(super) granted: u64,
    /// The last pulse that was asked about.
    pub(super) asked: Option<u64>,
}

/// A peer that waits for room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    /// The last pulse that it has asked for; it may wait for earlier ones, too.
    pub(super) most: u64,
    /// What it knows to be granted.
    pub(super) told: u64,
}

/// A task that looks for a DMA counter again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    pub(super) at: u64,
    pub(super) tries: u32,
}

/// With what a call ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Pulse(u64),
    /// With all descriptors from point to point of the calls of that kind up to this one.
    Direct(u64),
}

#[derive(Debug)]
pub(super) struct Task {
    /// The unit that it uses, while it uses one.
    pub(super) unit: Option<usize>,
    pub(super) peers: BTreeMap<Source, Peer>,
    pub(super) failed: Option<Failure>,
    /// Posted, not started yet, from pulse `next - queue.len()` on.
    pub(super) queue: VecDeque<Sequence>,
    /// By pulse.
    pub(super) running: BTreeMap<u64, Running>,
    /// The pulse that is posted next.
    pub(super) next: u64,
    pub(super) done: u64,
    pub(super) granted: u64,
    /// Of calls in flight, in the order in which they were posted and are told.
    pub(super) ends: VecDeque<End>,
    pub(super) direct: Direct,
    /// Packets that wait, by pulse.
    pub(super) held: BTreeMap<u64, usize>,
    /// Who waits for room.
    pub(super) asks: BTreeMap<Source, Ask>,
    pub(super) retry: Option<Retry>,
}

impl Task {
    pub(super) fn new(peers: impl IntoIterator<Item = Source>, settings: &Settings) -> Self {
        let granted = settings.granted();
        Task {
            unit: None,
            peers: peers.into_iter().map(|peer| (peer, Peer { granted, asked: None })).collect(),
            failed: None,
            queue: VecDeque::new(),
            running: BTreeMap::new(),
            next: 0,
            done: 0,
            granted,
            ends: VecDeque::new(),
            direct: Direct::default(),
            held: BTreeMap::new(),
            asks: BTreeMap::new(),
            retry: None,
        }
    }

    /// The pulse whose number in 12 bits this is, if there is room for it.
    pub(super) fn pulse(&self, number: u16) -> Option<u64> {
        let ahead = (u64::from(number) + PULSES - self.done % PULSES) % PULSES;
        (self.done + ahead < self.granted).then_some(self.done + ahead)
    }

    /// Whether it needs a unit: something is posted, waits, or has been granted beyond what everybody has.
    pub(super) fn is_idle(&self, settings: &Settings) -> bool {
        self.queue.is_empty()
            && self.running.is_empty()
            && self.held.is_empty()
            && self.asks.is_empty()
            && self.granted == self.done + settings.granted()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ends.front().is_some_and(|end| match end {
            End::Pulse(pulse) => *pulse < self.done,
            End::Direct(call) => self.direct.is_over(*call),
        })
    }

    /// Whether the pulse that is first in the queue is the oldest that is not done.
    pub(super) fn queue_has_oldest(&self) -> bool {
        self.next - self.queue.len() as u64 == self.done
    }
}
