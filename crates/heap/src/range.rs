//! The address range that the heap serves from, and the memfd behind it.
//!
//! | pages are | on | go to |
//! |---|---|---|
//! | without access rights, without memory | `commit` | usable: the kernel allocates memory at the first access |
//! | usable | `purge` | usable, zero, without memory |
//!
//! Only allocated pages get access rights, so mlockall loads no page that the program did not request. A core dump
//! contains the pages that were ever usable: dumping all would allocate memory for the whole range. Purged pages stay
//! in the dump, because each exception would cost one of the program's mappings (`vm.max_map_count`). After a fork the
//! child's range is private memory at equal addresses.
//!
//! Invariants: the range never moves and is never freed; its memfd always has the size of the range. Memory comes from
//! the kernel's internal tmpfs, which has no size limit. If memory runs out, an access ends as an access to plain
//! memory does. Nothing is allocated before its first access: allocation in advance would cost little time, but memory
//! that many programs never use. Under strict accounting (`vm.overcommit_memory=2`) an access could end with SIGBUS, so
//! there is no range then.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use outboard_shm::region::{RegionError, sealed};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::process::Resource;

/// Least descriptor number of the memfd. Programs expect small descriptor numbers, and overwrite descriptors that have
/// such numbers.
const LEAST_DESCRIPTOR: RawFd = 512;

/// Limits of the process that the range must respect: each with the multiple of the range's size that the limit must
/// allow, and with the limit's name for users. A program that grows a file beyond `RLIMIT_FSIZE` would be killed. The
/// limit on addresses must allow the range, the copy in a forked child and plain memory. The limit on data must allow
/// the copy.
const LIMITS: [(Resource, u64, &str); 3] = [
    (Resource::Fsize, 1, "the size of files (`ulimit -f`)"),
    (Resource::As, 3, "addresses (`ulimit -v`)"),
    (Resource::Data, 1, "data (`ulimit -d`)"),
];

static START: AtomicUsize = AtomicUsize::new(0);
/// 0 until there is a range.
static BYTES: AtomicUsize = AtomicUsize::new(0);
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// The memfd's inode: the program may have closed the descriptor, and another file may have its number.
static INODE: AtomicU64 = AtomicU64::new(0);
/// End of the part that was ever usable. The arena uses the first addresses that fit.
static USABLE: AtomicUsize = AtomicUsize::new(0);
/// False in forked children.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Why there is no range.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReserveError {
    /// The kernel promises only memory that it has, page by page, and breaks the promise with SIGBUS.
    #[error("vm.overcommit_memory is 2, under which a lack of shared memory would end the program")]
    StrictAccounting,
    /// A limit that the range would exceed or use up.
    #[error(
        "the limit on {what} is {limit} bytes; a heap of {bytes} needs {needed}; lower OUTBOARD_HEAP_BYTES or raise it"
    )]
    Limit {
        /// The limited resource.
        what: &'static str,
        limit: u64,
        /// Requested size of the range.
        bytes: usize,
        /// Least value of the limit.
        needed: u64,
    },
    /// Creating the memfd failed.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// Reserving addresses failed.
    #[error("cannot {what} {bytes} bytes of addresses: {errno}; lower OUTBOARD_HEAP_BYTES")]
    Addresses {
        /// The step that failed.
        what: &'static str,
        /// Requested size of the range.
        bytes: usize,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// The range while it is shared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedRange {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) descriptor: RawFd,
}

/// Whether the address lies in the range.
pub(crate) fn contains(memory: *const c_void) -> bool {
    // The size is stored after the start and is 0 before.
    let bytes = BYTES.load(Ordering::Acquire);
    memory.addr().wrapping_sub(START.load(Ordering::Relaxed)) < bytes
}

/// First address and size in bytes; size 0 before there is a range.
pub(crate) fn bounds() -> (*mut c_void, usize) {
    let bytes = BYTES.load(Ordering::Acquire);
    (ptr::with_exposed_provenance_mut(START.load(Ordering::Relaxed)), bytes)
}

/// Reserves a range of `bytes` bytes, once.
///
/// # Errors
/// [`ReserveError`]; nothing is reserved then.
pub(crate) fn reserve(bytes: usize) -> Result<(), ReserveError> {
    if std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.first() == Some(&b'2')) {
        return Err(ReserveError::StrictAccounting);
    }
    for (resource, times, what) in LIMITS {
        let needed = (bytes as u64).saturating_mul(times);
        if let Some(limit) = rustix::process::getrlimit(resource).current.filter(|limit| *limit < needed) {
            return Err(ReserveError::Limit { what, limit, bytes, needed });
        }
    }
    let kernel = |what| move |errno| ReserveError::Addresses { what, bytes, errno };
    let low = sealed("outboard-heap", bytes)?;
    // If descriptors are scarce, the memfd keeps its low number.
    let memfd: OwnedFd = rustix::io::fcntl_dupfd_cloexec(&low, LEAST_DESCRIPTOR).unwrap_or(low);
    let inode = rustix::fs::fstat(&memfd).map_err(kernel("look at"))?.st_ino;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses fresh addresses, which nobody knows yet.
    let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::empty(), flags, &memfd, 0) }
        .map_err(kernel("reserve"))?;
    // A child made without fork's handlers faults in the range. Otherwise the child would write to its parent's memory.
    // SAFETY: the addresses belong to the range, and nobody uses them yet.
    unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontFork) }.map_err(kernel("keep from children"))?;
    // SAFETY: the addresses belong to the range, and nobody uses them yet.
    unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontDump) }.map_err(kernel("keep from core dumps"))?;
    if huge_pages_everywhere() {
        // malloc's plain memory would have huge pages without a request. The kernel may refuse huge pages to shared
        // memory.
        // SAFETY: the addresses belong to the range, and nobody uses them yet.
        let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxHugepage) };
    }
    START.store(start.expose_provenance(), Ordering::Relaxed);
    INODE.store(inode, Ordering::Relaxed);
    DESCRIPTOR.store(memfd.into_raw_fd(), Ordering::Relaxed);
    SHARED.store(true, Ordering::Release);
    BYTES.store(bytes, Ordering::Release);
    Ok(())
}

fn huge_pages_everywhere() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| setting.contains("[always]"))
}

/// The range, if this process shares it and its descriptor is still open.
pub(crate) fn shared() -> Option<SharedRange> {
    if !is_shared() {
        return None;
    }
    let descriptor = DESCRIPTOR.load(Ordering::Relaxed);
    // SAFETY: open unless the program has closed it, which fstat reports.
    let memfd = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let inode = rustix::fs::fstat(memfd.as_fd()).ok()?.st_ino;
    let (start, bytes) = bounds();
    (inode == INODE.load(Ordering::Relaxed)).then_some(SharedRange { start: start.addr(), bytes, descriptor })
}

/// Whether this process shares the range.
pub(crate) fn is_shared() -> bool {
    SHARED.load(Ordering::Acquire)
}

/// Makes pages usable; false if the kernel refuses.
pub(crate) fn commit(memory: *mut c_void, bytes: usize) -> bool {
    // SAFETY: pages of the range that the arena is about to give out.
    let usable = unsafe { rustix::mm::mprotect(memory, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok();
    if usable {
        USABLE.fetch_max(memory.addr().wrapping_add(bytes).wrapping_sub(bounds().0.addr()), Ordering::Relaxed);
        // A failure only leaves the pages out of core dumps.
        // SAFETY: the pages belong to the range, and the advice does not change their content.
        let _ = unsafe { rustix::mm::madvise(memory, bytes, Advice::LinuxDoDump) };
    }
    usable
}

/// Returns the memory of pages to the kernel; false if the kernel refuses, for example for locked pages.
///
/// Calls libc's madvise, because MPI libraries that registered these pages with a NIC intercept it.
pub(crate) fn purge(memory: *mut c_void, bytes: usize) -> bool {
    let advice = if is_shared() { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
    // SAFETY: pages of the range that the arena has not given out.
    unsafe { libc::madvise(memory, bytes, advice) == 0 }
}

impl SharedRange {
    fn memfd(&self) -> BorrowedFd<'_> {
        // SAFETY: `shared` has found the descriptor open.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }

    /// Copies the content of the range to private memory, without touching holes. Returns the copy and its bytes.
    pub(crate) fn copy(&self) -> rustix::io::Result<(RangeCopy, u64)> {
        // Covers only what was ever usable: the rest would count against limits, and mlockall would load it.
        let bytes = USABLE.load(Ordering::Relaxed).max(1);
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the kernel chooses fresh addresses.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, rights, flags) }?;
        let copy = RangeCopy { start, bytes };
        self.fill(copy).map(|copied| (copy, copied)).inspect_err(|_| copy.discard())
    }

    fn fill(&self, copy: RangeCopy) -> rustix::io::Result<u64> {
        let (mut at, mut copied) = (0, 0);
        while let Some((start, end)) = self.next_data(at)? {
            at = start;
            let end = end.min(copy.bytes as u64);
            if at >= end {
                break;
            }
            while at < end {
                // SAFETY: the slice lies within the fresh mapping.
                let into = unsafe {
                    std::slice::from_raw_parts_mut(copy.start.cast::<u8>().add(at as usize), (end - at) as usize)
                };
                match rustix::io::pread(self.memfd(), into, at)? {
                    0 => return Ok(copied),
                    count => (at, copied) = (at + count as u64, copied + count as u64),
                }
            }
        }
        Ok(copied)
    }

    /// The next range of the file, from `at` on, that holds data.
    fn next_data(&self, at: u64) -> rustix::io::Result<Option<(u64, u64)>> {
        match rustix::fs::seek(self.memfd(), SeekFrom::Data(at)) {
            Ok(start) => Ok(Some((start, rustix::fs::seek(self.memfd(), SeekFrom::Hole(start))?))),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// A copy of the range's content at a fork, at other addresses than the range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RangeCopy {
    start: *mut c_void,
    bytes: usize,
}

impl RangeCopy {
    /// Frees the copy.
    pub(crate) fn discard(self) {
        // SAFETY: the mapping comes from `SharedRange::copy`, and nobody uses it.
        let _ = unsafe { rustix::mm::munmap(self.start, self.bytes) };
    }
}

/// In a child: moves the copy to the addresses of the range, which the child lacks, and drops the parent's memory.
/// Addresses without a copy stay reserved: libc's blocks there would be taken for the heap's.
pub(crate) fn become_private(copy: Option<RangeCopy>) -> rustix::io::Result<()> {
    if let Some(shared) = shared() {
        // SAFETY: `shared` has checked the descriptor; nothing uses it from here on.
        unsafe { rustix::io::close(shared.memfd().as_raw_fd()) };
    }
    SHARED.store(false, Ordering::Release);
    let (start, bytes) = bounds();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: nothing is mapped there: children do not inherit the range, and this code runs first in a child.
    let reserved = unsafe { rustix::mm::mmap_anonymous(start, bytes, ProtFlags::empty(), flags) };
    match (copy, reserved) {
        // SAFETY: the copy is no larger than the range, which holds nothing else yet.
        (Some(RangeCopy { start: copy, bytes }), Ok(_)) => unsafe {
            rustix::mm::mremap_fixed(copy, bytes, bytes, rustix::mm::MremapFlags::MAYMOVE, start).map(drop)
        },
        (Some(_), Err(errno)) => Err(errno),
        (None, Ok(_)) => Ok(()),
        // A child that becomes another program needs neither copy nor range.
        (None, Err(_)) => {
            BYTES.store(0, Ordering::Release);
            Ok(())
        }
    }
}
