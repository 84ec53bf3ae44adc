//! Private memory of this process, page by page from the kernel: what takes the place of a region where no region can
//! be made.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
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

/// The content of a memfd that another value keeps open, unless the program closes the descriptor.
#[derive(Debug)]
pub struct FileContent {
    descriptor: RawFd,
    /// The file's device and inode: the program may have given the number to another file.
    file: (u64, u64),
    len: usize,
}

#[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(file).map(|found| (found.st_dev as u64, found.st_ino as u64))
}

impl FileContent {
    pub(crate) fn of(file: BorrowedFd<'_>, len: usize) -> Option<FileContent> {
        Some(FileContent { descriptor: file.as_raw_fd(), file: identity(file).ok()?, len })
    }

    /// Copies the content to private memory, without touching holes.
    ///
    /// # Errors
    /// The kernel's reason; [`Errno::BADF`] if the program has closed the descriptor.
    pub fn copy(&self) -> Result<PlainMemory, Errno> {
        // SAFETY: the number is compared with the file; a closed one is an error.
        let file = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        if identity(file)? != self.file {
            return Err(Errno::BADF);
        }
        let copy = PlainMemory::new(self.len)?;
        let mut at = 0;
        while let Some((start, end)) = next_data(file, at, self.len)? {
            at = start;
            while at < end {
                // SAFETY: the part lies within the fresh mapping, which nobody else knows.
                let into = unsafe { std::slice::from_raw_parts_mut(copy.start.as_ptr().add(at), end - at) };
                match rustix::io::pread(file, into, at as u64)? {
                    0 => return Ok(copy),
                    count => at += count,
                }
            }
        }
        Ok(copy)
    }
}

/// The next part of the file, from `at` on and below `len`, that holds data.
fn next_data(file: BorrowedFd<'_>, at: usize, len: usize) -> Result<Option<(usize, usize)>, Errno> {
    match rustix::fs::seek(file, SeekFrom::Data(at as u64)) {
        Ok(start) if (start as usize) < len => {
            let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
            Ok(Some((start as usize, len.min(end as usize))))
        }
        Ok(_) | Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl Drop for PlainMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and without borrowers.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::MemfdRegion;

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn copy_has_the_data_of_a_file_and_no_memory_for_its_holes() {
        const BYTES: usize = 64 << 20;
        let region = MemfdRegion::create("test", BYTES).unwrap();
        for at in [0, BYTES / 2 + 5, BYTES - 4] {
            region.write(at, b"data");
        }
        let copy = region.content().unwrap().copy().unwrap();
        region.write(0, b"late");
        let mut seen = vec![0; BYTES];
        // SAFETY: the mapping has this many bytes, and nobody writes to it.
        unsafe { std::ptr::copy_nonoverlapping(copy.start().as_ptr(), seen.as_mut_ptr(), BYTES) };
        for at in [0, BYTES / 2 + 5, BYTES - 4] {
            assert_eq!(&seen[at..at + 4], b"data", "{at}");
        }
        assert!(seen[4..BYTES / 2].iter().all(|byte| *byte == 0));
        let allocated = rustix::fs::fstat(region.fd()).unwrap().st_blocks as usize * 512;
        assert!(allocated < BYTES / 4, "{allocated} bytes of the file: the copy has read its holes");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn another_file_under_the_same_number_is_not_copied() {
        let (region, other) = [(); 2].map(|()| MemfdRegion::create("test", 4096).unwrap()).into();
        let content = FileContent { descriptor: other.fd().as_raw_fd(), ..region.content().unwrap() };
        assert_eq!(content.copy().unwrap_err(), Errno::BADF);
    }
}
