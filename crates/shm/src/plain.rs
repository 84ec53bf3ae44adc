//! Private memory of this process, page by page from the kernel: what takes the place of a region where no region can be
//! made.

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use std::ptr::NonNull;

/// A zeroed, private mapping.
#[derive(Debug)]
pub struct PlainMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed through raw pointers only.
unsafe impl Send for PlainMemory {}
// SAFETY: methods that copy bytes take raw addresses and never form references.
unsafe impl Sync for PlainMemory {}

impl PlainMemory {
    /// Maps `len` zeroed bytes.
    ///
    /// # Errors
    /// The kernel has no memory or no addresses, or `len` is 0.
    pub fn new(len: usize) -> Result<PlainMemory, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that Rust knows of.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE) }?;
        Ok(PlainMemory { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn bytes(&self) -> usize {
        self.len
    }

    pub fn write(&self, offset: usize, from: &[u8]) {
        let end = offset.checked_add(from.len());
        assert!(end.is_some_and(|end| end <= self.len), "{} bytes at {offset} of {}", from.len(), self.len);
        // SAFETY: the range was checked to be mapped, and `copy` allows overlaps.
        unsafe { std::ptr::copy(from.as_ptr(), self.start.as_ptr().add(offset), from.len()) }
    }

    /// Leaves the mapping to the process, for good.
    pub fn leave_mapped(self) {
        std::mem::forget(self);
    }

    /// Moves the mapping to `address`, in place of whatever is mapped there, and leaves it to the process.
    ///
    /// # Errors
    /// The kernel's reason; the mapping is freed then.
    ///
    /// # Safety
    /// Nothing uses the memory that is mapped there, or nothing is mapped there.
    pub unsafe fn move_to(self, address: NonNull<u8>) -> Result<(), Errno> {
        let (start, to) = (self.start.as_ptr().cast(), address.as_ptr().cast());
        // SAFETY: the old mapping is ours; the caller's promise covers the new place.
        unsafe { rustix::mm::mremap_fixed(start, self.len, self.len, MremapFlags::MAYMOVE, to) }?;
        self.leave_mapped();
        Ok(())
    }
}

impl Drop for PlainMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and without borrowers.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
