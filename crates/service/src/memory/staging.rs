//! Memory of the service process itself, which stands in for ranks that have not called yet (SP-6) and for ranks whose
//! memory cannot be accessed (GP-9).
//!
//! Invariants: a [`StagingBuffer`] is accessed through raw copies only, so the conductor and a datapath thread may
//! access different parts of a buffer at once. No access of the machine goes beyond the length of a buffer. Allocations
//! have the size that the machine counts ([`staging_size`]). Freed buffers are kept for reuse up to [`KEPT_BYTES`], so
//! a repeated collective causes no new page faults.
//!
//! Large buffers do not delay the conductor: the kernel zeroes a page of a mapping only when the page is touched, and
//! another thread releases the pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use outboard_proto::staging_size;
use outboard_shm::closer::MEMORY_CLOSER;
use outboard_shm::memory::MappedBytes;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Freed bytes kept for reuse.
const KEPT_BYTES: usize = 64 << 20;
/// Buffers start on cache lines.
const ALIGN: usize = 64;
/// From this size on a buffer is a separate mapping. The allocator would clear an aligned buffer at once, which takes
/// 10 us for this size. A mapping takes a system call, and a page fault for each page.
const MAPPED_BYTES: usize = 256 << 10;

/// A buffer that threads share.
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the allocation is bound to no thread and is accessed through raw copies only.
unsafe impl Send for StagingBuffer {}
// SAFETY: the allocation is accessed through raw copies only, and the protocol orders reads and writes (a batch is done
// before its memory changes).
unsafe impl Sync for StagingBuffer {}

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size, ALIGN).ok()
}

impl StagingBuffer {
    fn allocate(size: usize) -> Option<StagingBuffer> {
        let start = if size < MAPPED_BYTES {
            // SAFETY: the layout has a size above zero.
            unsafe { alloc_zeroed(layout(size)?) }
        } else {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that Rust knows of.
            unsafe { mmap_anonymous(std::ptr::null_mut(), size, rights, MapFlags::PRIVATE) }.ok()?.cast()
        };
        Some(StagingBuffer { start: NonNull::new(start)?, size })
    }

    /// Usable bytes: the requested size, rounded up.
    pub(crate) fn len(&self) -> u64 {
        self.size as u64
    }

    /// Address of `len` bytes at `offset`, which lie within the buffer.
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let start = usize::try_from(offset).expect("offset within memory");
        let end = start.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.size), "{len} bytes at {offset} of {}", self.size);
        // SAFETY: `start` is within the allocation.
        unsafe { self.start.as_ptr().add(start) }
    }

    pub(crate) fn copy_out(&self, offset: u64, into: &mut [u8]) {
        // SAFETY: `at` checked the source. `into` is a unique borrow, so it does not overlap our raw allocations.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset, into.len()), into.as_mut_ptr(), into.len()) }
    }

    /// Copies `from` into the buffer at `offset`. `from` may lie in this buffer.
    pub(crate) fn copy_in(&self, offset: u64, from: &[u8]) {
        // SAFETY: `at` checked the destination, which no other work of the machine names now. `copy` allows overlaps.
        unsafe { std::ptr::copy(from.as_ptr(), self.at(offset, from.len()), from.len()) }
    }

    /// The `len` bytes at `offset`, for the kernel to read or write.
    pub(crate) fn resident(self: &Arc<Self>, offset: u64, len: usize) -> Option<MappedBytes> {
        let keeper: Arc<StagingBuffer> = Arc::clone(self);
        // SAFETY: the allocation lives as long as the buffer, and is accessed through raw copies only.
        NonNull::new(self.at(offset, len)).map(|start| unsafe { MappedBytes::new(start, len, keeper) })
    }

    /// Lets `write` fill `len` bytes at `offset`.
    pub(crate) fn fill<T>(&self, offset: u64, len: usize, write: impl FnOnce(&mut [u8]) -> T) -> T {
        // SAFETY: `at` checked the range, which is initialised since its allocation. No other work of the machine names
        // the range now.
        write(unsafe { std::slice::from_raw_parts_mut(self.at(offset, len), len) })
    }

    /// Passes `len` bytes at `offset` to `read`.
    pub(crate) fn lend<T>(&self, offset: u64, len: usize, read: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: `at` checked the range, which is initialised since its allocation. Nothing writes to the range while
        // a copy is ordered.
        read(unsafe { std::slice::from_raw_parts(self.at(offset, len), len) })
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        match layout(self.size).filter(|_| self.size < MAPPED_BYTES) {
            // SAFETY: the memory was allocated with this layout and is freed once; borrowers hold the `Arc`.
            Some(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            None => {
                let mapping = Mapping { start: self.start, size: self.size };
                MEMORY_CLOSER.submit(|| drop(mapping));
            }
        }
    }
}

/// A mapping that nobody borrows.
struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is bound to no thread.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this unmaps a whole mapping of ours, which nobody borrows.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
        debug_assert_eq!(unmapped, Ok(()), "{} bytes at {:?}", self.size, self.start);
    }
}

/// Freed buffers, kept for reuse.
#[derive(Debug, Default)]
pub(crate) struct StagingBufferPool {
    free: Vec<Arc<StagingBuffer>>,
    kept: usize,
}

impl StagingBufferPool {
    /// A buffer of at least `bytes` bytes with arbitrary content; `None` if memory is exhausted.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Arc<StagingBuffer>> {
        let size = usize::try_from(staging_size(bytes)?).ok()?;
        if let Some(at) = self.free.iter().position(|buffer| buffer.size == size) {
            self.kept -= size;
            return Some(self.free.swap_remove(at));
        }
        StagingBuffer::allocate(size).map(Arc::new)
    }

    /// Takes a buffer back. The buffer is not reused while a datapath thread reads it or a payload is being received
    /// into it. Such a buffer is freed when the access ends.
    pub(crate) fn give_back(&mut self, buffer: Arc<StagingBuffer>) {
        let size = buffer.size;
        if Arc::strong_count(&buffer) == 1 && self.kept + size <= KEPT_BYTES {
            self.kept += size;
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn bounds_hold_and_buffers_are_reused() {
        let mut pool = StagingBufferPool::default();
        let buffer = pool.take(1000).expect("memory");
        buffer.copy_in(900, &[7; 100]);
        let mut back = [0; 100];
        buffer.copy_out(900, &mut back);
        assert_eq!(back, [7; 100]);
        assert!(std::panic::catch_unwind(|| buffer.at(1000, 25)).is_err());
        let address = buffer.start;
        pool.give_back(buffer);
        let again = pool.take(970).expect("memory");
        assert_eq!(again.start, address);
        let reader = Arc::clone(&again);
        pool.give_back(again);
        assert_ne!(pool.take(970).expect("memory").start, reader.start, "a buffer that is read is not reused");
        assert!(pool.take(u64::MAX).is_none());
    }
    /// Number of pages of this process that are backed by memory.
    fn resident_pages() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").expect("Linux counts them");
        text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a count")
    }

    #[test]
    fn large_memory_is_taken_without_touching_its_pages_and_reads_as_zeros() {
        const BYTES: u64 = 4 << 30;
        let pages = BYTES / 4096;
        let before = resident_pages();
        let buffer = StagingBufferPool::default().take(BYTES).expect("address space");
        let (mut first, mut last) = ([7; 64], [7; 64]);
        buffer.copy_out(0, &mut first);
        buffer.copy_out(BYTES - 64, &mut last);
        assert_eq!((first, last), ([0; 64], [0; 64]));
        let more = resident_pages().saturating_sub(before);
        assert!(more < pages / 64, "{more} of {pages} pages have memory");
    }

    #[test]
    fn large_memory_is_given_back_after_its_last_drop() {
        let buffer = StagingBufferPool::default().take(MAPPED_BYTES as u64).expect("memory");
        buffer.copy_in(0, &[7; 64]);
        let (start, size) = (buffer.start.as_ptr() as usize, buffer.size);
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux lists mappings");
            maps.lines().any(|line| {
                let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
                let address = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
                address(from) <= start && start + size <= address(to)
            })
        };
        assert!(mapped());
        drop(buffer);
        let limit = Instant::now() + Duration::from_secs(60);
        while mapped() {
            assert!(Instant::now() < limit, "nobody has given {size} bytes back");
            std::thread::yield_now();
        }
    }
}
