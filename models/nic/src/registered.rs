//! Registered memory of a host: an allocator of its parts.
//!
//! Invariant: parts do not overlap, and adjacent free parts are merged.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegisteredPart {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct RegisteredMemory {
    /// Free bytes, by address.
    free: BTreeMap<u64, u64>,
}

impl RegisteredMemory {
    pub(crate) fn new(bytes: u64) -> Self {
        RegisteredMemory { free: BTreeMap::from([(0, bytes)]) }
    }

    pub(crate) fn left(&self) -> u64 {
        self.free.values().sum()
    }

    /// Allocates from the first free part that is large enough.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<RegisteredPart> {
        if bytes == 0 {
            return Some(RegisteredPart { address: 0, bytes });
        }
        let (address, free) = self.free.iter().map(|(at, free)| (*at, *free)).find(|(_, free)| *free >= bytes)?;
        self.free.remove(&address);
        if free > bytes {
            self.free.insert(address + bytes, free - bytes);
        }
        Some(RegisteredPart { address, bytes })
    }

    pub(crate) fn free(&mut self, part: RegisteredPart) {
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
    fn freed_parts_are_merged() {
        let mut memory = RegisteredMemory::new(100);
        let parts: Vec<RegisteredPart> = [30, 30, 40].map(|bytes| memory.allocate(bytes).expect("room")).into();
        assert_eq!((memory.allocate(1), memory.left()), (None, 0));
        for at in [1, 0, 2] {
            memory.free(parts[at]);
        }
        assert_eq!(memory.allocate(100), Some(RegisteredPart { address: 0, bytes: 100 }));
    }
}
