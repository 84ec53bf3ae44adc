//! An offload unit: a hash buffer, DMA counters, and the tasks that use them for now.
//!
//! Invariant: `tasks` have room for one pulse each, and `spare` for so many more of any of them.

use super::Settings;
use super::buffer::HashBuffer;

#[derive(Debug)]
pub(super) struct Unit {
    pub(super) buffer: HashBuffer,
    /// Counters that no sequence holds.
    pub(super) counters: Vec<usize>,
    /// Tasks that are bound to it, and those of them that hold a counter.
    pub(super) tasks: usize,
    pub(super) busy: usize,
    /// Pulses that may be granted beyond what every task has.
    pub(super) spare: u64,
}

impl Unit {
    pub(super) fn new(settings: &Settings) -> Self {
        Unit {
            buffer: HashBuffer::new(settings.slots()),
            counters: (0..settings.counters).rev().collect(),
            tasks: 0,
            busy: 0,
            spare: settings.spare(),
        }
    }

    /// What decides which unit gets a task: the least first.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.tasks, self.buffer.len())
    }

    pub(super) fn is_idle(&self, settings: &Settings) -> bool {
        self.buffer.is_empty()
            && self.counters.len() == settings.counters
            && (self.tasks, self.busy, self.spare) == (0, 0, settings.spare())
    }
}
