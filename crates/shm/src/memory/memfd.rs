//! The memfd tier: ranges of a rank's address space that are mapped in this process too. This tier is the service
//! process's half of the registration cache (GP-4): an ordered tree by address per rank. A mapping is made at the first
//! use and dropped when other mappings have been used more recently.
//!
//! | a range is | on | goes to |
//! |---|---|---|
//! | unknown | `register` | registered: checked, its descriptor kept |
//! | registered | its first use | mapped; beyond the bound the mapping used longest ago is dropped |
//! | mapped | the use of other ranges | registered |
//! | registered or mapped | `unregister` | unknown |
//!
//! Invariants: ranges do not overlap, and none wraps round the address space. The numbers of ranges and of mappings are
//! bounded. A mapping lives as long as any [`MappedBytes`] that points into it, even if the rank unregisters the range.
//! A range is never found for later memory at the same address: the rank keeps its own mapping in place until this side
//! has removed the range.

use crate::closer::MEMORY_CLOSER;
use crate::region::{MemfdRegion, RegionError};
use crate::sync::{AtomicU64, Ordering};
use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

/// Most ranges that one rank may register; each holds a descriptor.
pub const MOST_RANGES: u32 = 256;
/// Most ranges of one rank that are mapped at once. A process may have 65,530 mappings (`vm.max_map_count`), which the
/// mappings of a thousand ranks share.
const MOST_MAPPED: u32 = 48;

#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error("the range of {bytes} bytes at {address:#x} is empty, wraps round or overlaps a registered one")]
    Range { address: u64, bytes: u64 },
    #[error("{0} memory ranges are registered already; free some with outboard_dealloc")]
    TooMany(u32),
    #[error("no registered range starts at {address:#x}")]
    Unknown { address: u64 },
}

/// Bytes in this process that stay in place: memory of a rank, or memory used instead of a rank's.
#[derive(Debug, Clone)]
pub struct MappedBytes {
    start: NonNull<u8>,
    len: usize,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a pointer to bytes that the keeper keeps in place, usable from any thread.
unsafe impl Send for MappedBytes {}
// SAFETY: shared access goes through raw pointers to bytes that the keeper keeps in place.
unsafe impl Sync for MappedBytes {}

impl MappedBytes {
    /// Wraps bytes that belong to no rank.
    ///
    /// # Safety
    /// The bytes stay in place while the keeper lives, and are accessed through raw copies only.
    pub unsafe fn new(start: NonNull<u8>, len: usize, keeper: Arc<dyn Any + Send + Sync>) -> MappedBytes {
        MappedBytes { start, len, _keeper: keeper }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// `len` of the bytes, from `offset` on.
    pub(super) fn part(&self, offset: usize, len: usize) -> MappedBytes {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{len} bytes at {offset} of {}", self.len);
        // SAFETY: `offset` is within the bytes.
        MappedBytes { start: unsafe { self.start.add(offset) }, len, _keeper: Arc::clone(&self._keeper) }
    }

    /// Whether both name the same bytes.
    pub(super) fn is(&self, other: &MappedBytes) -> bool {
        (self.start, self.len) == (other.start, other.len)
    }

    /// The bytes as the kernel or a NIC expects them, to read and write. The content may differ between two reads.
    #[must_use]
    pub fn iovec(&self) -> libc::iovec {
        libc::iovec { iov_base: self.start.as_ptr().cast(), iov_len: self.len }
    }

    /// The bytes, to be passed to a copy or to the kernel.
    ///
    /// # Safety
    /// The rank can change the bytes at any moment: they may be copied, but two reads may differ.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes live while `_keeper` does; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn copy_out(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len);
        // SAFETY: `self.len` bytes are mapped at `start`, and `into` is a Rust slice, which never lies in a rank's
        // memory.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), into.as_mut_ptr(), self.len) }
    }

    pub(super) fn copy_in(&self, from: &[u8]) {
        assert_eq!(from.len(), self.len);
        // SAFETY: `self.len` bytes are mapped at `start`; `from` may be resident bytes itself, which `copy` allows.
        unsafe { std::ptr::copy(from.as_ptr(), self.start.as_ptr(), self.len) }
    }
}

#[derive(Debug)]
struct Range {
    bytes: u64,
    /// A memfd whose size was checked and cannot change.
    memfd: OwnedFd,
    mapping: Option<Arc<MemfdRegion>>,
    /// The tick of the range's last use.
    used: AtomicU64,
}

/// Another thread drops the ranges, since the last close of a memfd releases its pages.
impl Drop for MemfdRanges {
    fn drop(&mut self) {
        let ranges = std::mem::take(&mut *self.table());
        if !ranges.is_empty() {
            MEMORY_CLOSER.submit(|| drop(ranges));
        }
    }
}

/// The registered ranges of one rank.
#[derive(Debug)]
pub struct MemfdRanges {
    by_start: RwLock<BTreeMap<u64, Range>>,
    ticks: AtomicU64,
    most: u32,
    most_mapped: u32,
}

impl Default for MemfdRanges {
    fn default() -> Self {
        Self::bounded(MOST_RANGES, MOST_MAPPED)
    }
}

impl MemfdRanges {
    /// An empty set that has room for `most` ranges, of which `most_mapped` are mapped at once.
    fn bounded(most: u32, most_mapped: u32) -> Self {
        MemfdRanges { by_start: RwLock::default(), ticks: AtomicU64::new(0), most, most_mapped }
    }

    /// Registers the memfd that backs `bytes` bytes at `address` of the rank.
    ///
    /// # Errors
    /// [`RangeError`]; then nothing is registered.
    pub fn register(&self, address: u64, bytes: u64, memfd: OwnedFd) -> Result<(), RangeError> {
        let range = RangeError::Range { address, bytes };
        let Some(end) = address.checked_add(bytes).filter(|_| bytes > 0 && usize::try_from(bytes).is_ok()) else {
            return Err(range);
        };
        let mut by_start = self.table();
        if by_start.len() >= self.most as usize {
            return Err(RangeError::TooMany(self.most));
        }
        let before = by_start.range(..end).next_back();
        if before.is_some_and(|(start, range)| start + range.bytes > address) {
            return Err(range);
        }
        MemfdRegion::check(&memfd, bytes)?;
        by_start.insert(address, Range { bytes, memfd, mapping: None, used: AtomicU64::new(0) });
        Ok(())
    }

    /// Removes the range that starts at `address`.
    pub fn unregister(&self, address: u64) -> Result<(), RangeError> {
        let range = self.table().remove(&address).ok_or(RangeError::Unknown { address })?;
        MEMORY_CLOSER.submit(|| drop(range));
        Ok(())
    }

    /// Number of registered ranges, and of mapped ones among them.
    pub fn counts(&self) -> (usize, usize) {
        let by_start = self.by_start.read().unwrap_or_else(PoisonError::into_inner);
        (by_start.len(), by_start.values().filter(|range| range.mapping.is_some()).count())
    }

    /// The range in this process, if all of it lies in one registered range that can be mapped.
    pub fn find(&self, address: u64, bytes: u64) -> Option<MappedBytes> {
        let by_start = self.by_start.read().unwrap_or_else(PoisonError::into_inner);
        let (&start, range) = by_start.range(..=address).next_back()?;
        let (offset, end) = (address - start, address.checked_add(bytes)?);
        if end > start + range.bytes {
            return None;
        }
        range.used.store(self.ticks.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let region = match &range.mapping {
            Some(region) => Arc::clone(region),
            None => {
                drop(by_start);
                self.map(start)?
            }
        };
        // The range may have been registered again, and shorter, while the lock was not held.
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
        if offset.checked_add(len)? > region.bytes() {
            return None;
        }
        Some(MappedBytes { start: region.at(offset, len), len, _keeper: region })
    }

    /// Maps a registered range; drops the mapping that was used longest ago if there are too many.
    fn map(&self, start: u64) -> Option<Arc<MemfdRegion>> {
        let mut by_start = self.table();
        if let Some(region) = &by_start.get(&start)?.mapping {
            return Some(Arc::clone(region));
        }
        let mapped = || by_start.iter().filter(|(_, range)| range.mapping.is_some());
        if mapped().count() >= self.most_mapped as usize {
            let oldest = mapped().min_by_key(|(_, range)| range.used.load(Ordering::Relaxed)).map(|(start, _)| *start);
            by_start.get_mut(&oldest?)?.mapping = None;
        }
        let range = by_start.get_mut(&start)?;
        let region = Arc::new(MemfdRegion::attach(range.memfd.try_clone().ok()?, range.bytes as usize).ok()?);
        range.mapping = Some(Arc::clone(&region));
        Some(region)
    }

    fn table(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Range>> {
        self.by_start.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(bytes: usize) -> (MemfdRegion, OwnedFd) {
        let region = MemfdRegion::create("test", bytes).unwrap();
        let fd = region.fd().try_clone_to_owned().unwrap();
        (region, fd)
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn bytes_cross_a_registered_range_and_nothing_beyond_it() {
        let ranges = MemfdRanges::default();
        let (rank, fd) = memfd(8192);
        ranges.register(0x10_0000, 8192, fd).unwrap();
        ranges.find(0x10_0010, 4).unwrap().copy_in(b"down");
        let mut bytes = [0; 4];
        rank.read(0x10, &mut bytes);
        assert_eq!(&bytes, b"down");
        rank.write(8188, b"last");
        ranges.find(0x10_0000 + 8188, 4).unwrap().copy_out(&mut bytes);
        assert_eq!(&bytes, b"last");
        for address in [0x10_0000 - 1, 0x10_0000 + 8189, u64::MAX, 0] {
            assert!(ranges.find(address, 4).is_none(), "{address:#x}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn hostile_ranges_are_refused() {
        let ranges = MemfdRanges::default();
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

    /// GP-4: mappings are bounded, the mapping used longest ago is dropped first, and a new range at an old address
    /// gets a new mapping.
    #[test]
    #[cfg_attr(miri, ignore = "needs memfd_create")]
    fn mappings_come_and_go_and_none_outlives_its_range() {
        let ranges = MemfdRanges::bounded(4, 2);
        let regions: Vec<MemfdRegion> = (0..4u64)
            .map(|at| {
                let (region, fd) = memfd(4096);
                ranges.register(0x10_0000 + 0x1000 * at, 4096, fd).unwrap();
                region
            })
            .collect();
        assert_eq!(ranges.counts(), (4, 0));
        assert!(matches!(ranges.register(0x1000, 4096, memfd(4096).1), Err(RangeError::TooMany(4))));
        let write = |at: u64, bytes: &[u8; 4]| ranges.find(0x10_0000 + 0x1000 * at, 4).unwrap().copy_in(bytes);
        for round in 0..3u8 {
            for at in 0..4 {
                write(at, &[round + at as u8; 4]);
                assert!(ranges.counts().1 <= 2);
            }
        }
        write(2, b"used");
        write(0, b"used");
        let mapped = |at: u64| ranges.by_start.read().unwrap()[&(0x10_0000 + 0x1000 * at)].mapping.is_some();
        assert_eq!([mapped(0), mapped(1), mapped(2), mapped(3)], [true, false, true, false]);
        ranges.unregister(0x10_0000).unwrap();
        let (fresh, fd) = memfd(4096);
        ranges.register(0x10_0000, 4096, fd).unwrap();
        write(0, b"anew");
        let mut seen = [0; 4];
        fresh.read(0, &mut seen);
        assert_eq!(&seen, b"anew");
        regions[0].read(0, &mut seen);
        assert_eq!(&seen, b"used", "the memory that was there before is left alone");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn resident_bytes_outlive_the_registration() {
        let ranges = MemfdRanges::default();
        let (rank, fd) = memfd(4096);
        ranges.register(0x1000, 4096, fd).unwrap();
        let resident = ranges.find(0x1000, 5).unwrap();
        ranges.unregister(0x1000).unwrap();
        assert!(matches!(ranges.unregister(0x1000), Err(RangeError::Unknown { address: 0x1000 })));
        rank.write(0, b"still");
        // SAFETY: compared once, and no thread writes meanwhile.
        assert_eq!(unsafe { resident.bytes() }, b"still");
    }
}
