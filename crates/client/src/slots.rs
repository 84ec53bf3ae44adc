//! Which completion word belongs to which request, and what is left of requests that were freed early.
//!
//! | a word is | because | next |
//! |---|---|---|
//! | free | nobody posted with it | owned, by a post |
//! | owned | a request holds it | free when the request has seen its result; orphaned when the request is freed before |
//! | orphaned | the collective goes on without a handle | free when its result is seen on the way |
//!
//! Invariant: a word is armed only while free, so a late result never meets a new request.

use crate::staging::Staged;

/// The words of one attachment.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Vec<u32>,
    /// The group that each word in use belongs to.
    group_of: Vec<Option<u64>>,
    orphans: Vec<Orphan>,
}

/// A request in flight whose handle is gone.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub(crate) slot: u32,
    pub(crate) staged: Option<Staged>,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Slots {
        Slots { free: (0..count).rev().collect(), group_of: vec![None; count as usize], orphans: Vec::new() }
    }

    /// How many requests can be in flight.
    pub(crate) fn count(&self) -> usize {
        self.group_of.len()
    }

    pub(crate) fn take(&mut self, group: u64) -> Option<u32> {
        let slot = self.free.pop()?;
        self.group_of[slot as usize] = Some(group);
        Some(slot)
    }

    pub(crate) fn give_back(&mut self, slot: u32) {
        let group = self.group_of[slot as usize].take();
        assert!(group.is_some(), "word {slot} given back twice");
        self.free.push(slot);
    }

    pub(crate) fn orphan(&mut self, orphan: Orphan) {
        self.orphans.push(orphan);
    }

    /// Takes the orphans that have ended out; their words are still in use.
    pub(crate) fn ended_orphans(&mut self, ended: impl Fn(u32) -> bool) -> Vec<Orphan> {
        if self.orphans.is_empty() {
            return Vec::new();
        }
        self.orphans.extract_if(.., |orphan| ended(orphan.slot)).collect()
    }

    /// The words in use for a group.
    pub(crate) fn of_group(&self, group: u64) -> Vec<u32> {
        let owned = self.group_of.iter().zip(0..).filter(|(owner, _)| **owner == Some(group));
        owned.map(|(_, slot)| slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_round_and_orphans_leave_when_ended() {
        let mut slots = Slots::new(2);
        assert_eq!((slots.take(7), slots.take(8), slots.take(7)), (Some(0), Some(1), None));
        assert_eq!(slots.of_group(7), [0]);
        slots.orphan(Orphan { slot: 0, staged: None });
        assert!(slots.ended_orphans(|_| false).is_empty());
        let ended = slots.ended_orphans(|slot| slot == 0);
        assert_eq!(ended.len(), 1);
        assert_eq!(slots.take(9), None, "the word is in use until it is given back");
        slots.give_back(0);
        assert_eq!(slots.take(9), Some(0));
    }
}
