//! The memory of this process as its own code may access it, without a signal where it may not.
//!
//! A rank uses this module for buffers of its program, which may be anything: read-only constants, pages that are gone,
//! or memory that only the processor reaches, such as rings of a device (`VM_IO`) or `memfd_secret`. The kernel copies
//! on behalf of this process: its page tables and rights count, and an address that has none is an error.

use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;

use crate::region::MemfdRegion;

/// The page size of most kernels; a larger one only costs time.
const PAGE: usize = 4096;
/// Up to this many pages are touched one by one if the kernel does not answer questions about mappings.
const TOUCHED_PAGES: usize = 16;
/// `ioctl` of `/proc/PID/maps` (Linux 6.11), of `struct procmap_query`.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
/// The mapping asked for is the one at the address, and must be writable.
const WRITABLE: u64 = 2;

/// An address that this process may not access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OwnFault {
    #[error("the memory at {address:#x} cannot be written: it is mapped read-only, or not mapped")]
    Unwritable { address: u64 },
    #[error("the memory at {address:#x} cannot be read: it is not mapped, or without the right to read")]
    Unreadable { address: u64 },
    #[error("the kernel does not copy {bytes} bytes at {address:#x} for this process: {errno}")]
    Refused { address: u64, bytes: usize, errno: Errno },
}

/// The kernel's `struct procmap_query`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct ProcmapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    rest: [u64; 7],
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);

/// Checks buffers of this process, and copies from and to them.
#[derive(Debug)]
pub struct OwnMemory {
    /// `/proc/self/maps`, which the kernel answers for this process's memory alone.
    maps: Option<File>,
}

impl OwnMemory {
    /// For the calling process; a forked child makes its own.
    pub fn new() -> OwnMemory {
        let here = 0u8;
        let answers = |maps: &File| !matches!(writable_at(maps, &raw const here as u64), Query::Unknown);
        OwnMemory { maps: File::open("/proc/self/maps").ok().filter(answers) }
    }

    /// Checks that this process may write to all of these pieces, each an address and a length. Changes no byte.
    ///
    /// # Errors
    /// [`OwnFault::Unwritable`] with the first address that may not be written.
    pub fn check_writable(&self, pieces: impl IntoIterator<Item = (u64, usize)>) -> Result<(), OwnFault> {
        let mut known = 0..0;
        for (start, bytes) in pieces {
            let end = start.saturating_add(bytes as u64);
            let mut at = start;
            while at < end {
                if known.contains(&at) {
                    at = known.end;
                    continue;
                }
                match self.maps.as_ref().map_or(Query::Unknown, |maps| writable_at(maps, at)) {
                    Query::Writable { start, end } => known = start..end,
                    Query::NotWritable => return Err(OwnFault::Unwritable { address: at }),
                    Query::Unknown => {
                        touch(at, end)?;
                        at = end;
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies `bytes` bytes at `from`, memory of the program, into the region.
    ///
    /// # Errors
    /// [`OwnFault::Unreadable`] or [`OwnFault::Refused`]; a part may have been copied.
    pub fn copy_in(&self, from: u64, bytes: usize, region: &MemfdRegion, offset: usize) -> Result<(), OwnFault> {
        let shared = region.at(offset, bytes).as_ptr() as u64;
        // SAFETY: the kernel reads at `from` what this process may read, and writes within the region.
        let refused = match unsafe { move_bytes(libc::SYS_process_vm_writev, from, shared, bytes) } {
            Ok(moved) if moved == bytes => return Ok(()),
            Ok(moved) => return Err(OwnFault::Unreadable { address: from + moved as u64 }),
            Err(Errno::FAULT) => return Err(OwnFault::Unreadable { address: from }),
            Err(errno) => OwnFault::Refused { address: from, bytes, errno },
        };
        // The kernel refuses the call. A write to the file beyond the limit on files would end the process.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < (offset + bytes) as u64) {
            return Err(refused);
        }
        by_file(bytes, |done| {
            let (start, left) = ((from + done as u64) as *const libc::c_void, bytes - done);
            // SAFETY: the kernel checks the program's memory, and writes to the region's file alone.
            unsafe { libc::pwrite(region.fd().as_raw_fd(), start, left, (offset + done) as libc::off_t) }
        })
        .map_err(|done| OwnFault::Unreadable { address: from + done as u64 })
    }

    /// Copies `bytes` bytes of the region to `to`, memory of the program.
    ///
    /// # Errors
    /// [`OwnFault::Unwritable`]; a part may have been copied.
    ///
    /// # Safety
    /// The program lends the bytes at `to`.
    pub unsafe fn copy_out(&self, region: &MemfdRegion, offset: usize, to: u64, bytes: usize) -> Result<(), OwnFault> {
        let shared = region.at(offset, bytes).as_ptr() as u64;
        // SAFETY: the caller's promise; the kernel writes at `to` only where this process may write.
        match unsafe { move_bytes(libc::SYS_process_vm_readv, to, shared, bytes) } {
            Ok(moved) if moved == bytes => return Ok(()),
            Ok(moved) => return Err(OwnFault::Unwritable { address: to + moved as u64 }),
            Err(Errno::FAULT) => return Err(OwnFault::Unwritable { address: to }),
            Err(_) => {}
        }
        by_file(bytes, |done| {
            let (start, left) = ((to + done as u64) as *mut libc::c_void, bytes - done);
            // SAFETY: the caller's promise; the kernel checks the program's memory.
            unsafe { libc::pread(region.fd().as_raw_fd(), start, left, (offset + done) as libc::off_t) }
        })
        .map_err(|done| OwnFault::Unwritable { address: to + done as u64 })
    }
}

impl Default for OwnMemory {
    fn default() -> Self {
        OwnMemory::new()
    }
}

enum Query {
    Writable {
        start: u64,
        end: u64,
    },
    NotWritable,
    /// The kernel does not answer, or the program has closed the file.
    Unknown,
}

/// Asks for the mapping at this address.
fn writable_at(maps: &File, address: u64) -> Query {
    let size = size_of::<ProcmapQuery>() as u64;
    let mut query = ProcmapQuery { size, flags: WRITABLE, address, ..ProcmapQuery::default() };
    // SAFETY: the structure is the one that the number names, and lives during the call.
    let asked = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    match asked {
        0 => Query::Writable { start: query.start, end: query.end },
        _ if last_error() == Errno::NOENT => Query::NotWritable,
        _ => Query::Unknown,
    }
}

/// Checks the pages from `start` to `end` by operations that change nothing.
fn touch(start: u64, end: u64) -> Result<(), OwnFault> {
    let first = start & !(PAGE as u64 - 1);
    let bytes = (end - first) as usize;
    if bytes.div_ceil(PAGE) > TOUCHED_PAGES {
        // The kernel makes the pages present, as the receive would. Older kernels do not know the advice.
        // SAFETY: the advice changes no byte.
        let populated = unsafe { libc::madvise(first as *mut libc::c_void, bytes, libc::MADV_POPULATE_WRITE) };
        if populated == 0 {
            return Ok(());
        }
    }
    let pages = std::iter::once(start & !3).chain((first + PAGE as u64..end).step_by(PAGE));
    for page in pages {
        let nobody = 0u32;
        // The operation combines the word with 0, atomically, and wakes nobody.
        let (wake, or_zero) = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG, libc::FUTEX_OP_OR << 28);
        // SAFETY: the operation leaves the word as it is.
        let done = unsafe { libc::syscall(libc::SYS_futex, &raw const nobody, wake, 0, 0, page, or_zero) };
        if done < 0 && last_error() == Errno::FAULT {
            return Err(OwnFault::Unwritable { address: page.max(start) });
        }
    }
    Ok(())
}

/// Moves bytes between `local`, at which this process's rights count, and `shared`, by one of the two system calls.
///
/// # Safety
/// The bytes that are written may be.
unsafe fn move_bytes(call: libc::c_long, local: u64, shared: u64, bytes: usize) -> Result<usize, Errno> {
    let place = |address: u64| libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes };
    let (local, shared) = (place(local), place(shared));
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the caller's promise; both places live during the call.
    let moved = unsafe { libc::syscall(call, pid, &raw const local, 1, &raw const shared, 1, 0) };
    usize::try_from(moved).map_err(|_| last_error())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Repeats `copy`, to which the number of bytes done is passed, until all is done. The error is that number.
fn by_file(bytes: usize, mut copy: impl FnMut(usize) -> isize) -> Result<(), usize> {
    let mut done = 0;
    while done < bytes {
        match usize::try_from(copy(done)) {
            Ok(moved @ 1..) => done += moved,
            Err(_) if last_error() == Errno::INTR => {}
            Ok(0) | Err(_) => return Err(done),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

    const BYTES: usize = 32 * PAGE;

    /// Mapped memory whose second half is read-only. Never freed.
    fn half_writable() -> u64 {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping; the protection changes for memory that nobody uses.
        unsafe {
            let start = rustix::mm::mmap_anonymous(std::ptr::null_mut(), BYTES, rights, MapFlags::PRIVATE).unwrap();
            start.cast::<u8>().write_bytes(7, BYTES);
            rustix::mm::mprotect(start.byte_add(BYTES / 2), BYTES / 2, MprotectFlags::READ).unwrap();
            start as u64
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn unwritable_page_is_named_with_and_without_the_kernels_answer() {
        let start = half_writable();
        let middle = start + BYTES as u64 / 2;
        for own in [OwnMemory::new(), OwnMemory { maps: None }] {
            let unwritable = |address| Err(OwnFault::Unwritable { address });
            assert_eq!(own.check_writable([(start + 1, BYTES / 2 - 1), (start + 3, 0)]), Ok(()));
            assert_eq!(own.check_writable([(start + 5, BYTES / 2)]), unwritable(middle));
            assert_eq!(own.check_writable([(start, 8), (middle + 9, 1)]), unwritable(middle + 9));
            assert_eq!(own.check_writable([(8, 1)]), unwritable(8));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn copies_end_with_an_error_where_this_process_may_not_access() {
        let (own, start, region) = (OwnMemory::new(), half_writable(), MemfdRegion::create("test", BYTES).unwrap());
        assert_eq!(own.copy_in(start, BYTES, &region, 0), Ok(()));
        let mut seen = [0; 2];
        region.read(BYTES - 2, &mut seen);
        assert_eq!(seen, [7, 7]);
        assert!(matches!(own.copy_in(8, 16, &region, 0), Err(OwnFault::Unreadable { address: 8 })));
        // SAFETY: memory of this test.
        let out = |to, bytes| unsafe { own.copy_out(&region, 0, to, bytes) };
        assert_eq!(out(start, BYTES / 2), Ok(()));
        let unwritable = out(start, BYTES);
        assert!(matches!(unwritable, Err(OwnFault::Unwritable { address }) if address >= start), "{unwritable:?}");
        assert_eq!(out(start + BYTES as u64 / 2, 8), Err(OwnFault::Unwritable { address: start + BYTES as u64 / 2 }));
    }
}
