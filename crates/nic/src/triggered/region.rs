//! The region that ranks of a host share in a job.
//!
//! Invariant: it is in one call at a time; ranks that are ahead wait until all others have ended it, so that nobody
//! writes over what a sibling has yet to read.

use std::collections::{BTreeSet, VecDeque};

use crate::registered::{Part, Registered};

/// What the ranks of a host share in one job.
#[derive(Debug, Default)]
pub(super) struct SharedRegion {
    /// Memory, with the call from which on it is used; a call that needs more than there was has brought the next.
    parts: VecDeque<(u64, Part)>,
    /// The call that it is in, of those that share.
    pub(super) call: u64,
    /// Ranks that have ended it.
    ended: u32,
    /// Flags that are up.
    raised: BTreeSet<u32>,
}

impl SharedRegion {
    /// Sees to memory for `call`, of which a rank of the host is the first to know; whether there is some.
    pub(super) fn reserve(&mut self, call: u64, bytes: u64, memory: &mut Registered) -> bool {
        if self.parts.back().is_some_and(|(_, part)| part.bytes >= bytes) {
            return true;
        }
        let part = memory.take(bytes);
        self.parts.extend(part.map(|part| (call, part)));
        part.is_some()
    }

    /// Where the region begins for the call that it is in.
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

    /// One of `ranks` ranks has ended the call; the last one takes the region to the next.
    pub(super) fn leave(&mut self, ranks: u32, memory: &mut Registered) {
        self.ended += 1;
        if self.ended == ranks {
            (self.call, self.ended) = (self.call + 1, 0);
            self.raised.clear();
            while self.parts.get(1).is_some_and(|(from, _)| *from <= self.call) {
                memory.give_back(self.parts.pop_front().expect("there are two").1);
            }
        }
    }

    /// Whether no rank is between the beginning and the end of a call.
    pub(super) fn is_idle(&self) -> bool {
        self.ended == 0 && self.raised.is_empty()
    }

    pub(super) fn free(self, memory: &mut Registered) {
        self.parts.into_iter().for_each(|(_, part)| memory.give_back(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that needs more brings more; what served the calls before goes when they are over.
    #[test]
    fn a_region_grows_with_its_calls() {
        let (mut memory, mut region) = (Registered::new(100), SharedRegion::default());
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
