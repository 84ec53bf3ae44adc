//! The region that ranks of a host share in a job.
//!
//! Invariant: the region serves one call at a time. A rank that is ahead waits until all others have ended the call, so
//! that the rank never overwrites data that a sibling has yet to read.

use std::collections::{BTreeSet, VecDeque};

use crate::registered::{RegisteredMemory, RegisteredPart};

#[derive(Debug, Default)]
pub(super) struct SharedRegion {
    /// Parts of memory, each with the first call that uses the part. A call that needs more than before adds a part.
    parts: VecDeque<(u64, RegisteredPart)>,
    /// The current call, counted among calls that share memory.
    pub(super) call: u64,
    /// Number of ranks that have ended the current call.
    ended: u32,
    /// Flags that are raised.
    raised: BTreeSet<u32>,
}

impl SharedRegion {
    /// Reserves memory for `call` when the first rank of the host posts it; returns whether there was enough memory.
    pub(super) fn reserve(&mut self, call: u64, bytes: u64, memory: &mut RegisteredMemory) -> bool {
        if self.parts.back().is_some_and(|(_, part)| part.bytes >= bytes) {
            return true;
        }
        let part = memory.allocate(bytes);
        self.parts.extend(part.map(|part| (call, part)));
        part.is_some()
    }

    /// The address at which the region begins for the current call.
    pub(super) fn address(&self) -> u64 {
        let part = self.parts.iter().rev().find(|(from, _)| *from <= self.call);
        part.map_or(0, |(_, part)| part.address)
    }

    pub(super) fn raise(&mut self, flag: u32) {
        self.raised.insert(flag);
    }

    pub(super) fn is_raised(&self, flag: u32) -> bool {
        self.raised.contains(&flag)
    }

    /// Counts one of `ranks` ranks that has ended the call; the last rank advances the region to the next call.
    pub(super) fn leave(&mut self, ranks: u32, memory: &mut RegisteredMemory) {
        self.ended += 1;
        if self.ended == ranks {
            (self.call, self.ended) = (self.call + 1, 0);
            self.raised.clear();
            while self.parts.get(1).is_some_and(|(from, _)| *from <= self.call) {
                memory.free(self.parts.pop_front().expect("there are two").1);
            }
        }
    }

    /// Whether no rank is between the beginning and the end of a call.
    pub(super) fn is_idle(&self) -> bool {
        self.ended == 0 && self.raised.is_empty()
    }

    pub(super) fn free(self, memory: &mut RegisteredMemory) {
        self.parts.into_iter().for_each(|(_, part)| memory.free(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that needs more memory adds a part; the old part is freed when the calls before are over.
    #[test]
    fn a_region_grows_with_its_calls() {
        let (mut memory, mut region) = (RegisteredMemory::new(100), SharedRegion::default());
        assert!(region.reserve(0, 10, &mut memory) && region.reserve(1, 40, &mut memory));
        assert!(region.reserve(0, 10, &mut memory) && !region.reserve(2, 60, &mut memory));
        assert_eq!((region.address(), memory.left()), (0, 50));
        region.raise(3);
        region.leave(2, &mut memory);
        assert!(region.is_raised(3) && region.call == 0);
        region.leave(2, &mut memory);
        assert!(!region.is_raised(3) && region.is_idle());
        assert_eq!((region.address(), memory.left()), (10, 60));
        region.free(&mut memory);
        assert_eq!(memory.left(), 100);
    }
}
