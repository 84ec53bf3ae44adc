//! Registered memory of a host: an allocator of its parts.
//!
//! Invariant: parts do not overlap, and adjacent free parts are merged.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Registered {
    /// Free bytes, by address.
    free: BTreeMap<u64, u64>,
}

impl Registered {
    pub(crate) fn new(bytes: u64) -> Self {
        Registered { free: BTreeMap::from([(0, bytes)]) }
    }

    pub(crate) fn left(&self) -> u64 {
        self.free.values().sum()
    }

    /// Allocates from the first free part that is large enough.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Part> {
        if bytes == 0 {
            return Some(Part { address: 0, bytes });
        }
        let (address, free) = self.free.iter().map(|(at, free)| (*at, *free)).find(|(_, free)| *free >= bytes)?;
        self.free.remove(&address);
        if free > bytes {
            self.free.insert(address + bytes, free - bytes);
        }
        Some(Part { address, bytes })
    }

    pub(crate) fn give_back(&mut self, part: Part) {
        if part.bytes == 0 {
            return;
        }
        let (mut address, mut bytes) = (part.address, part.bytes);
        if let Some(behind) = self.free.remove(&(address + bytes)) {
            bytes += behind;
        }
        let before = self.free.range(..address).next_back().map(|(at, free)| (*at, *free));
        if let Some((at, free)) = before.filter(|(at, free)| at + free == address) {
            (address, bytes) = (at, free + bytes);
        }
        self.free.insert(address, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_given_back_become_one_again() {
        let mut memory = Registered::new(100);
        let parts: Vec<Part> = [30, 30, 40].map(|bytes| memory.take(bytes).expect("room")).into();
        assert_eq!((memory.take(1), memory.left()), (None, 0));
        for at in [1, 0, 2] {
            memory.give_back(parts[at]);
        }
        assert_eq!(memory.take(100), Some(Part { address: 0, bytes: 100 }));
    }
}
