//! Deadlines of many items. Every event polls for the next deadline, so the items are sorted by deadline.

use std::collections::BTreeSet;

use crate::ids::Instant;

/// The times at which items of kind `K` are due. The owner of an item reports every change of its time.
#[derive(Debug)]
pub struct Deadlines<K>(BTreeSet<(Instant, K)>);

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Deadlines(BTreeSet::new())
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// Moves the deadline of `key` from `before` to `after`.
    pub fn change(&mut self, key: K, before: Option<Instant>, after: Option<Instant>) {
        if before != after {
            if let Some(at) = before {
                self.0.remove(&(at, key));
            }
            self.0.extend(after.map(|at| (at, key)));
        }
    }

    pub fn first(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Removes and returns the first item that is due at `now`. The item has no deadline until the next change.
    pub fn pop_due(&mut self, now: Instant) -> Option<K> {
        self.first().filter(|at| *at <= now)?;
        self.0.pop_first().map(|(_, key)| key)
    }
}
