//! Queues by key. Most queues have one entry and are removed with this entry.
//!
//! Invariants: no queue is empty. The memory of a few emptied queues is reused, so that a message in steady state
//! allocates none.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

/// Most emptied queues whose memory is kept, and the most entries that such a queue has room for.
const MAX_SPARE: usize = 4;
const MAX_SPARE_ENTRIES: usize = 64;
/// Most entries that a new entry may pass, so that long queues do not make each entry more expensive.
const MAX_PASSED: usize = 64;

#[derive(Debug)]
pub(super) struct Queues<K, T> {
    queues: BTreeMap<K, VecDeque<T>>,
    spare: Vec<VecDeque<T>>,
}

impl<K, T> Default for Queues<K, T> {
    fn default() -> Self {
        Queues { queues: BTreeMap::new(), spare: Vec::new() }
    }
}

impl<K: Copy + Ord, T> Queues<K, T> {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(super) fn has(&self, key: &K) -> bool {
        self.queues.contains_key(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.queues.keys()
    }

    pub(super) fn firsts(&self) -> impl Iterator<Item = (&K, &T)> {
        self.queues.iter().filter_map(|(key, queue)| Some((key, queue.front()?)))
    }

    pub(super) fn first_key(&self) -> Option<K> {
        self.queues.first_key_value().map(|(key, _)| *key)
    }

    pub(super) fn push(&mut self, key: K, entry: T) {
        self.insert(key, entry, |_| false);
    }

    /// Like [`Self::push`], but before the last entries that are `later`, at most [`MAX_PASSED`] entries.
    pub(super) fn insert(&mut self, key: K, entry: T, later: impl Fn(&T) -> bool) {
        let queue = self.queues.entry(key).or_insert_with(|| self.spare.pop().unwrap_or_default());
        let passed = queue.iter().rev().take(MAX_PASSED).take_while(|other| later(other)).count();
        queue.insert(queue.len() - passed, entry);
    }

    pub(super) fn first(&self, key: &K) -> Option<&T> {
        self.queues.get(key)?.front()
    }

    pub(super) fn first_mut(&mut self, key: &K) -> Option<&mut T> {
        self.queues.get_mut(key)?.front_mut()
    }

    /// Removes and returns the first entry of a key.
    pub(super) fn pop(&mut self, key: &K) -> Option<T> {
        let queue = self.queues.get_mut(key)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.forget(key);
        }
        first
    }

    fn forget(&mut self, key: &K) {
        let emptied = self.queues.remove(key).filter(|queue| queue.capacity() <= MAX_SPARE_ENTRIES);
        if self.spare.len() < MAX_SPARE {
            self.spare.extend(emptied);
        }
    }

    pub(super) fn of(&self, key: &K) -> impl Iterator<Item = &T> {
        self.queues.get(key).into_iter().flatten()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &T)> {
        self.queues.iter().flat_map(|(key, queue)| queue.iter().map(move |entry| (key, entry)))
    }

    pub(super) fn range(&self, keys: RangeInclusive<K>) -> impl Iterator<Item = (&K, &T)> {
        self.queues.range(keys).flat_map(|(key, queue)| queue.iter().map(move |entry| (key, entry)))
    }

    pub(super) fn remove(&mut self, key: &K, gone: impl Fn(&T) -> bool) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.retain(|entry| !gone(entry));
        if queue.is_empty() {
            self.forget(key);
        }
    }

    pub(super) fn extract(&mut self, mut gone: impl FnMut(&K, &T) -> bool) -> Vec<(K, T)> {
        let mut extracted = Vec::new();
        self.queues.retain(|key, queue| {
            let (out, stay) = std::mem::take(queue).into_iter().partition(|entry| gone(key, entry));
            *queue = stay;
            let out: VecDeque<T> = out;
            extracted.extend(out.into_iter().map(|entry| (*key, entry)));
            !queue.is_empty()
        });
        extracted
    }
}
