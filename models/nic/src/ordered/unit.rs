//! An offload unit: a hash buffer, DMA counters, and the tasks that use them for now.
//!
//! Invariant: each of the `tasks` has room for one pulse, and there is room for `spare` more pulses of any task.

use super::OrderedSettings;
use super::buffer::HashBuffer;

#[derive(Debug)]
pub(super) struct Unit {
    pub(super) buffer: HashBuffer,
    /// Counters that no sequence holds.
    pub(super) counters: Vec<usize>,
    /// Number of tasks bound to the unit, and number of tasks that hold a counter.
    pub(super) tasks: usize,
    pub(super) busy: usize,
    /// Pulses that may be granted beyond the one that every task has.
    pub(super) spare: u64,
}

impl Unit {
    pub(super) fn new(settings: &OrderedSettings) -> Self {
        Unit {
            buffer: HashBuffer::new(settings.slots()),
            counters: (0..settings.counters).rev().collect(),
            tasks: 0,
            busy: 0,
            spare: settings.spare(),
        }
    }

    /// The load of the unit; a task is bound to the unit with the least load.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.tasks, self.buffer.len())
    }

    pub(super) fn is_idle(&self, settings: &OrderedSettings) -> bool {
        self.buffer.is_empty()
            && self.counters.len() == settings.counters
            && (self.tasks, self.busy, self.spare) == (0, 0, settings.spare())
    }
}
