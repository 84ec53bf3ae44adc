//! When something is due, of many things: asked for at every event, so the next is at hand.

use std::collections::BTreeSet;

use crate::ids::Instant;

/// The times at which things of kind `K` are due. Whoever they belong to knows when, and tells it when that changes.
#[derive(Debug)]
pub struct Deadlines<K>(BTreeSet<(Instant, K)>);

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Deadlines(BTreeSet::new())
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// `key` was due at `before` and is due at `after` now.
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

    /// What is due at `now` first: it is taken out, and due at no time until that changes.
    pub fn pop_due(&mut self, now: Instant) -> Option<K> {
        self.first().filter(|at| *at <= now)?;
        self.0.pop_first().map(|(_, key)| key)
    }
}
