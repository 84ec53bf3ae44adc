//! The range of addresses that the heap serves from, and the memfd behind it.
//!
//! | pages are | on | go to |
//! |---|---|---|
//! | without rights, and without memory | `commit` | usable: the kernel gives memory at the first touch |
//! | usable | `purge` | usable, zero and without memory |
//!
//! Rights are given only to what is allocated, so that mlockall brings in no page that nobody asked for. A core dump
//! has what was ever usable and no more: the kernel would give memory to the whole range to write it out. What is
//! purged stays in it, since each change there would cost the program one of its mappings (`vm.max_map_count`). After
//! a fork the child's range is private memory of its own, at the same addresses.
//!
//! Invariants: the range never moves and is never given back; its memfd has the size of the range for good. Memory
//! comes from the kernel's own tmpfs, which knows no limit of its own: where there is none left a touch ends as one of
//! plain memory does. So nothing is backed before it is touched; that would cost no time, but memory that many programs
//! never use. Under strict accounting (`vm.overcommit_memory=2`) it could end with SIGBUS, so there is no range then.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use outboard_shm::region::{RegionError, sealed};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::process::Resource;

/// Programs count on the small numbers of descriptors, and replace what has them.
const LEAST_DESCRIPTOR: RawFd = 512;

/// What bounds the range, how many times its size that has to be, and what people call it. Growing a file beyond its
/// limit would end the program; addresses have to do for a fork's copy and for plain memory too, data for the copy.
const LIMITS: [(Resource, u64, &str); 3] = [
    (Resource::Fsize, 1, "the size of files (`ulimit -f`)"),
    (Resource::As, 3, "addresses (`ulimit -v`)"),
    (Resource::Data, 1, "data (`ulimit -d`)"),
];

static START: AtomicUsize = AtomicUsize::new(0);
/// 0 until there is a range.
static BYTES: AtomicUsize = AtomicUsize::new(0);
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// The memfd's inode: the program may have closed the descriptor, and its number may be another file's.
static INODE: AtomicU64 = AtomicU64::new(0);
/// How many of its first bytes have ever been usable, in parts at least; the arena gives out the first that fit.
static USABLE: AtomicUsize = AtomicUsize::new(0);
/// False in children.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Why there is no range.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    /// The kernel promises no more memory than it has, by page, and breaks the promise by SIGBUS.
    #[error("vm.overcommit_memory is 2, under which a lack of shared memory would end the program")]
    Strict,
    /// A limit that the range would break or use up.
    #[error(
        "the limit on {what} is {limit} bytes; a heap of {bytes} needs {needed}; lower OUTBOARD_HEAP_BYTES or raise it"
    )]
    Limit {
        /// What it bounds.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// What was wanted.
        bytes: usize,
        /// What the limit had to be.
        needed: u64,
    },
    /// No memfd.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// No addresses.
    #[error("cannot {what} {bytes} bytes of addresses: {errno}; lower OUTBOARD_HEAP_BYTES")]
    Addresses {
        /// The step that failed.
        what: &'static str,
        /// What was wanted.
        bytes: usize,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// The range while it is shared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) descriptor: RawFd,
}

/// Whether the address lies in the range.
pub(crate) fn holds(memory: *const c_void) -> bool {
    // The size comes after the start and is 0 before.
    let bytes = BYTES.load(Ordering::Acquire);
    memory.addr().wrapping_sub(START.load(Ordering::Relaxed)) < bytes
}

/// First address and bytes; none of them before there is a range.
pub(crate) fn whole() -> (*mut c_void, usize) {
    let bytes = BYTES.load(Ordering::Acquire);
    (ptr::with_exposed_provenance_mut(START.load(Ordering::Relaxed)), bytes)
}

/// Reserves `bytes` bytes, once.
///
/// # Errors
/// [`Unavailable`]; then nothing is reserved.
pub(crate) fn reserve(bytes: usize) -> Result<(), Unavailable> {
    if std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.first() == Some(&b'2')) {
        return Err(Unavailable::Strict);
    }
    for (resource, times, what) in LIMITS {
        let needed = (bytes as u64).saturating_mul(times);
        if let Some(limit) = rustix::process::getrlimit(resource).current.filter(|limit| *limit < needed) {
            return Err(Unavailable::Limit { what, limit, bytes, needed });
        }
    }
    let kernel = |what| move |errno| Unavailable::Addresses { what, bytes, errno };
    let low = sealed("outboard-heap", bytes)?;
    // Where descriptors are few it keeps its number.
    let memfd: OwnedFd = rustix::io::fcntl_dupfd_cloexec(&low, LEAST_DESCRIPTOR).unwrap_or(low);
    let inode = rustix::fs::fstat(&memfd).map_err(kernel("look at"))?.st_ino;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: fresh addresses of the kernel's choice, which nobody knows yet.
    let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::empty(), flags, &memfd, 0) }
        .map_err(kernel("reserve"))?;
    // A child that is made without fork's handlers faults there; it would write to its parent's memory otherwise.
    // SAFETY: our own addresses, which nobody uses yet.
    unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontFork) }.map_err(kernel("keep from children"))?;
    // SAFETY: as above.
    unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontDump) }.map_err(kernel("keep from core dumps"))?;
    if huge_pages_everywhere() {
        // What malloc's memory would have without being asked. The kernel may keep it from shared memory.
        // SAFETY: as above.
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

/// The range, if this process shares it and still has its descriptor.
pub(crate) fn shared() -> Option<Shared> {
    if !is_shared() {
        return None;
    }
    let descriptor = DESCRIPTOR.load(Ordering::Relaxed);
    // SAFETY: open unless the program has closed it, which the kernel tells.
    let memfd = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let inode = rustix::fs::fstat(memfd.as_fd()).ok()?.st_ino;
    let (start, bytes) = whole();
    (inode == INODE.load(Ordering::Relaxed)).then_some(Shared { start: start.addr(), bytes, descriptor })
}

/// Whether this process shares the range.
pub(crate) fn is_shared() -> bool {
    SHARED.load(Ordering::Acquire)
}

/// Makes pages usable; false where the kernel refuses.
pub(crate) fn commit(memory: *mut c_void, bytes: usize) -> bool {
    // SAFETY: pages of the range that the arena gives out next.
    let usable = unsafe { rustix::mm::mprotect(memory, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok();
    if usable {
        USABLE.fetch_max(memory.addr().wrapping_add(bytes).wrapping_sub(whole().0.addr()), Ordering::Relaxed);
        // A failure leaves them out of core dumps and does no other harm.
        // SAFETY: as above; the advice leaves their content alone.
        let _ = unsafe { rustix::mm::madvise(memory, bytes, Advice::LinuxDoDump) };
    }
    usable
}

/// Gives the memory of pages back to the kernel; false where it does not take it, as of locked pages.
///
/// By libc's madvise, as MPI libraries that registered these pages with a NIC watch it.
pub(crate) fn purge(memory: *mut c_void, bytes: usize) -> bool {
    let advice = if is_shared() { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
    // SAFETY: pages of the range that the arena has not given out.
    unsafe { libc::madvise(memory, bytes, advice) == 0 }
}

impl Shared {
    fn memfd(&self) -> BorrowedFd<'_> {
        // SAFETY: `shared` has found it open.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }

    /// Copies what the range holds to private memory elsewhere, without touching what holds nothing. Returns the copy,
    /// and how many bytes were copied.
    pub(crate) fn copy(&self) -> rustix::io::Result<(Copied, u64)> {
        // No more than was ever usable: the rest would count to the program's limits, and mlockall would bring it in.
        let bytes = USABLE.load(Ordering::Relaxed).max(1);
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: fresh addresses of the kernel's choice.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, rights, flags) }?;
        let copy = Copied { start, bytes };
        self.fill(copy).map(|copied| (copy, copied)).inspect_err(|_| copy.discard())
    }

    fn fill(&self, copy: Copied) -> rustix::io::Result<u64> {
        let (mut at, mut copied) = (0, 0);
        while let Some((start, end)) = self.next_data(at)? {
            at = start;
            let end = end.min(copy.bytes as u64);
            if at >= end {
                break;
            }
            while at < end {
                // SAFETY: within the fresh mapping.
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

    /// The next bytes of the file from `at` on that hold something.
    fn next_data(&self, at: u64) -> rustix::io::Result<Option<(u64, u64)>> {
        match rustix::fs::seek(self.memfd(), SeekFrom::Data(at)) {
            Ok(start) => Ok(Some((start, rustix::fs::seek(self.memfd(), SeekFrom::Hole(start))?))),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// What the range held when its process forked, elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    start: *mut c_void,
    bytes: usize,
}

impl Copied {
    /// Takes it back.
    pub(crate) fn discard(self) {
        // SAFETY: a mapping of `Shared::copy` that nobody uses.
        let _ = unsafe { rustix::mm::munmap(self.start, self.bytes) };
    }
}

/// In a child: puts the copy into the place of the range, which it does not have, and parts with the parent's memory.
/// The addresses without a copy stay the range's: libc would have blocks there that the heap took for its own.
pub(crate) fn become_private(copy: Option<Copied>) -> rustix::io::Result<()> {
    if let Some(shared) = shared() {
        // SAFETY: found to be ours; nothing uses it from here on.
        unsafe { rustix::io::close(shared.memfd().as_raw_fd()) };
    }
    SHARED.store(false, Ordering::Release);
    let (start, bytes) = whole();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: nothing is mapped there, since the range is kept from children and this is the first that runs in one.
    let reserved = unsafe { rustix::mm::mmap_anonymous(start, bytes, ProtFlags::empty(), flags) };
    match (copy, reserved) {
        // SAFETY: the copy is no larger than the range, which has nothing else yet.
        (Some(Copied { start: copy, bytes }), Ok(_)) => unsafe {
            rustix::mm::mremap_fixed(copy, bytes, bytes, rustix::mm::MremapFlags::MAYMOVE, start).map(drop)
        },
        (Some(_), Err(errno)) => Err(errno),
        (None, Ok(_)) => Ok(()),
        // A child that becomes another program needs neither.
        (None, Err(_)) => {
            BYTES.store(0, Ordering::Release);
            Ok(())
        }
    }
}
