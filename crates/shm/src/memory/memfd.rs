//! The memfd tier: ranges of a rank's address space that are mapped in this process too.
//!
//! Invariants: ranges do not overlap, none wraps round the address space, and their number is bounded; a mapping lives
//! as long as any [`Resident`] that points into it, also when the rank unregisters it meanwhile.

use super::{AccessError, RankMemory, ReadPiece, WritePiece};
use crate::region::{Region, RegionError};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

/// Ranges that one rank may register.
const MOST_RANGES: usize = 4096;

/// Why a range was not registered or not unregistered.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// The descriptor.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Empty, wrapping round the address space, or overlapping another.
    #[error("the range of {bytes} bytes at {address:#x} is empty, wraps round or overlaps a registered one")]
    Range {
        /// First address.
        address: u64,
        /// Length.
        bytes: u64,
    },
    /// Too many.
    #[error("{MOST_RANGES} memory ranges are registered already; free some with outboard_dealloc")]
    TooMany,
    /// Nothing starts there.
    #[error("no registered range starts at {address:#x}")]
    Unknown {
        /// The address given.
        address: u64,
    },
}

/// Bytes of a rank that are mapped here, kept mapped.
#[derive(Debug, Clone)]
pub struct Resident {
    start: NonNull<u8>,
    len: usize,
    _region: Arc<Region>,
}

// SAFETY: a pointer into a mapping that the region keeps alive, usable from any thread.
unsafe impl Send for Resident {}
// SAFETY: as above.
unsafe impl Sync for Resident {}

impl Resident {
    /// First byte, mapped for reading and writing.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, to be handed to a copy or to the kernel.
    ///
    /// # Safety
    /// The rank can change the bytes at any moment: they may be copied, but nothing may depend on reading the same twice.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: mapped while `_region` lives; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// The registered ranges of one rank.
#[derive(Debug, Default)]
pub struct MemfdRanges {
    by_start: RwLock<BTreeMap<u64, Arc<Region>>>,
}

impl MemfdRanges {
    /// No ranges.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps the memfd that backs `bytes` bytes at `address` of the rank.
    ///
    /// # Errors
    /// [`RangeError`]; nothing is registered then.
    pub fn register(&self, address: u64, bytes: u64, memfd: OwnedFd) -> Result<(), RangeError> {
        let range = RangeError::Range { address, bytes };
        let (Some(end), Ok(len)) = (address.checked_add(bytes), usize::try_from(bytes)) else {
            return Err(range);
        };
        let mut by_start = self.by_start.write().unwrap_or_else(PoisonError::into_inner);
        if by_start.len() >= MOST_RANGES {
            return Err(RangeError::TooMany);
        }
        let before = by_start.range(..end).next_back();
        if len == 0 || before.is_some_and(|(start, region)| start + region.bytes() as u64 > address) {
            return Err(range);
        }
        by_start.insert(address, Arc::new(Region::attach(memfd, len)?));
        Ok(())
    }

    /// Forgets the range that starts at `address`.
    ///
    /// # Errors
    /// [`RangeError::Unknown`].
    pub fn unregister(&self, address: u64) -> Result<(), RangeError> {
        let removed = self.by_start.write().unwrap_or_else(PoisonError::into_inner).remove(&address);
        removed.map(drop).ok_or(RangeError::Unknown { address })
    }

    /// The range in this process, if all of it lies in one registered range.
    pub fn find(&self, address: u64, bytes: u64) -> Option<Resident> {
        let by_start = self.by_start.read().unwrap_or_else(PoisonError::into_inner);
        let (start, region) = by_start.range(..=address).next_back()?;
        let (offset, end) = (address - start, address.checked_add(bytes)?);
        if end > start + region.bytes() as u64 {
            return None;
        }
        // Both fit, as the region is mapped.
        let (offset, len) = (offset as usize, bytes as usize);
        Some(Resident { start: region.at(offset, len), len, _region: region.clone() })
    }

    fn find_or_fail(&self, address: u64, bytes: usize) -> Result<Resident, AccessError> {
        let bytes = bytes as u64;
        self.find(address, bytes).ok_or(AccessError::Unreachable { address, bytes })
    }
}

impl Resident {
    pub(super) fn copy_out(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len);
        // SAFETY: `self.len` bytes are mapped at `start`, and `into` is a Rust slice, which never lies in a rank's memory.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), into.as_mut_ptr(), self.len) }
    }

    pub(super) fn copy_in(&self, from: &[u8]) {
        assert_eq!(from.len(), self.len);
        // SAFETY: `self.len` bytes are mapped at `start`; `from` may be resident bytes itself, which `copy` allows.
        unsafe { std::ptr::copy(from.as_ptr(), self.start.as_ptr(), self.len) }
    }
}

impl RankMemory for MemfdRanges {
    fn readv(&self, batch: &mut [ReadPiece<'_>]) -> Result<(), AccessError> {
        for piece in batch {
            self.find_or_fail(piece.address, piece.local.len())?.copy_out(piece.local);
        }
        Ok(())
    }

    fn writev(&self, batch: &[WritePiece<'_>]) -> Result<(), AccessError> {
        for piece in batch {
            self.find_or_fail(piece.address, piece.local.len())?.copy_in(piece.local);
        }
        Ok(())
    }

    fn resident(&self, address: u64, bytes: u64) -> Option<Resident> {
        self.find(address, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(bytes: usize) -> (Region, OwnedFd) {
        let region = Region::create("test", bytes).unwrap();
        let fd = region.fd().try_clone_to_owned().unwrap();
        (region, fd)
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn bytes_cross_a_registered_range_and_nothing_beyond_it() {
        let ranges = MemfdRanges::new();
        let (rank, fd) = memfd(8192);
        ranges.register(0x10_0000, 8192, fd).unwrap();
        ranges.write(0x10_0010, b"down").unwrap();
        let mut bytes = [0; 4];
        rank.read(0x10, &mut bytes);
        assert_eq!(&bytes, b"down");
        rank.write(8188, b"last");
        ranges.read(0x10_0000 + 8188, &mut bytes).unwrap();
        assert_eq!(&bytes, b"last");
        for address in [0x10_0000 - 1, 0x10_0000 + 8189, u64::MAX, 0] {
            assert_eq!(ranges.read(address, &mut bytes), Err(AccessError::Unreachable { address, bytes: 4 }));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn hostile_ranges_are_refused() {
        let ranges = MemfdRanges::new();
        ranges.register(0x10_0000, 8192, memfd(8192).1).unwrap();
        for (address, bytes) in [(0x10_0000, 8192), (0xf_f000, 8192), (0x10_1000, 8192), (u64::MAX - 100, 8192)] {
            let refused = ranges.register(address, bytes, memfd(8192).1);
            assert!(matches!(refused, Err(RangeError::Range { .. })), "{address:#x}: {refused:?}");
        }
        assert!(matches!(ranges.register(0x20_0000, 0, memfd(8192).1), Err(RangeError::Range { .. })));
        assert!(matches!(ranges.register(0x20_0000, 1 << 40, memfd(8192).1), Err(RangeError::Region(_))));
        ranges.register(0x10_2000, 8192, memfd(8192).1).unwrap();
        assert!(ranges.find(0x10_0000, 16384).is_none(), "neighbours are separate mappings");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn resident_bytes_outlive_the_registration() {
        let ranges = MemfdRanges::new();
        let (rank, fd) = memfd(4096);
        ranges.register(0x1000, 4096, fd).unwrap();
        let resident = ranges.find(0x1000, 5).unwrap();
        ranges.unregister(0x1000).unwrap();
        assert!(matches!(ranges.unregister(0x1000), Err(RangeError::Unknown { address: 0x1000 })));
        rank.write(0, b"still");
        // SAFETY: compared once, and nobody writes meanwhile.
        assert_eq!(unsafe { resident.bytes() }, b"still");
    }
}
