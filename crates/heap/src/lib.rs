//! A program's large allocations as memory that the service process maps too (SP-4): a preload library.
//!
//! `LD_PRELOAD=liboutboard_heap.so OUTBOARD_HEAP=shared` puts this library's malloc and its kin before libc's. From
//! 64 KiB on they serve from one range of addresses, which a memfd backs; liboutboard hands that memfd to the
//! service process when it attaches ([`outboard_heap`]). Smaller allocations, and what the range has no room for, are
//! libc's.
//!
//! | module | answers |
//! |---|---|
//! | `range` | where do the addresses and their pages come from, and how do pages go back? |
//! | `arena` | which bytes of the range are whose? (jemalloc) |
//! | `state` | is there a heap, and does it take new allocations? |
//! | `fork` | what does a forked child see? |
//! | `plain` | how is libc's own allocator reached? |
//!
//! Invariants: memory belongs to the heap if and only if its address lies in the range, so one comparison decides who
//! frees it; a fault in the range is answered by the kernel as in any memory, never by SIGBUS; a child never sees what
//! its parent writes after the fork. On the way of an allocation nothing here allocates, panics or waits, but for the
//! locks of jemalloc. Needs glibc.

mod arena;
mod fork;
mod plain;
mod range;
mod settings;
mod state;

use std::ffi::{c_int, c_void};
use std::ptr;

/// Allocations of so many bytes and more are the heap's.
const LARGE: usize = 64 << 10;
/// Bytes of a page where the kernel says nothing else; a wrong one costs room and nothing else.
const PAGE: usize = 4096;

/// From the heap, or null where the allocation is not the heap's.
fn from_heap(size: usize, alignment: usize, zeroed: bool) -> *mut c_void {
    match size >= LARGE && alignment.is_power_of_two() {
        true => state::allocate(size, alignment, zeroed),
        false => ptr::null_mut(),
    }
}

fn aligned(alignment: usize, size: usize) -> *mut c_void {
    let memory = from_heap(size, alignment, false);
    // SAFETY: libc's own function, with what the program gave.
    if memory.is_null() { unsafe { plain::__libc_memalign(alignment, size) } } else { memory }
}

fn fail(errno: c_int) -> *mut c_void {
    // SAFETY: the calling thread's own word.
    unsafe { *libc::__errno_location() = errno };
    ptr::null_mut()
}

/// As in C.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    let memory = from_heap(size, 1, false);
    // SAFETY: libc's own function, with what the program gave.
    if memory.is_null() { unsafe { plain::__libc_malloc(size) } } else { memory }
}

/// As in C.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let memory = from_heap(count.saturating_mul(size), 1, true);
    // SAFETY: libc's own function, with what the program gave.
    if memory.is_null() { unsafe { plain::__libc_calloc(count, size) } } else { memory }
}

/// As in C.
///
/// # Safety
/// As in C: nothing uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    if range::holds(memory) {
        arena::free(memory);
    } else {
        // SAFETY: what is not ours is libc's; the caller answers for the rest.
        unsafe { plain::__libc_free(memory) }
    }
}

/// As in C.
///
/// # Safety
/// As in C: if the result is not null, nothing uses the old memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    let held = range::holds(memory);
    if held && size >= LARGE {
        let resized = arena::resize(memory, size);
        if !resized.is_null() {
            return resized;
        }
    }
    if !held && (memory.is_null() || size < LARGE) {
        // SAFETY: libc's own memory, or none.
        return if memory.is_null() { malloc(size) } else { unsafe { plain::__libc_realloc(memory, size) } };
    }
    // It moves from one allocator to the other.
    let moved = match (held, size) {
        (true, 0) => ptr::null_mut(),
        // SAFETY: libc's own function.
        (true, _) => unsafe { plain::__libc_malloc(size) },
        (false, _) => from_heap(size, 1, false),
    };
    match (moved.is_null(), held) {
        // SAFETY: libc's own memory, which the heap has no room for.
        (true, false) => return unsafe { plain::__libc_realloc(memory, size) },
        (true, true) if size > 0 => return moved,
        _ => {}
    }
    // SAFETY: both allocations have so many bytes, and are two; the caller gives the old one up.
    unsafe {
        if !moved.is_null() {
            ptr::copy_nonoverlapping(memory.cast::<u8>(), moved.cast(), malloc_usable_size(memory).min(size));
        }
        free(memory);
    }
    moved
}

/// As in glibc.
///
/// # Safety
/// As [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(memory: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller answers for it.
        Some(bytes) => unsafe { realloc(memory, bytes) },
        None => fail(libc::ENOMEM),
    }
}

/// As in glibc.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    aligned(alignment, size)
}

/// As in C.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    aligned(alignment, size)
}

/// As in POSIX.
///
/// # Safety
/// `memory` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(memory: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*const c_void>()) {
        return libc::EINVAL;
    }
    let allocated = keeping_errno(|| aligned(alignment, size));
    if allocated.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller answers for it.
    unsafe { *memory = allocated };
    0
}

/// As in glibc.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    aligned(PAGE, size)
}

/// As in glibc.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(PAGE) {
        Some(size) => aligned(PAGE, size),
        None => fail(libc::ENOMEM),
    }
}

/// As in glibc.
///
/// # Safety
/// The memory is null or was allocated here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    match range::holds(memory) {
        true => arena::usable_size(memory),
        // SAFETY: what is not ours is libc's, or null.
        false => unsafe { plain::usable_size(memory) },
    }
}

/// As in C23: later versions of glibc have it, and would not know our memory.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(memory: *mut c_void, _size: usize) {
    // SAFETY: the caller answers for it.
    unsafe { free(memory) }
}

/// As in C23, as above.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(memory: *mut c_void, _alignment: usize, _size: usize) {
    // SAFETY: the caller answers for it.
    unsafe { free(memory) }
}

/// What liboutboard asks for when it attaches: the memfd that backs the heap, and where in this process it lies, all of
/// it from its first byte on. The descriptor stays the heap's. Negative, and nothing written, where there is no heap:
/// it is off, or this process is a forked child, whose memory is its own.
///
/// # Safety
/// `address` and `bytes` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_heap(address: *mut u64, bytes: *mut u64) -> c_int {
    state::start();
    let Some(shared) = range::shared() else { return -1 };
    // SAFETY: the caller answers for it.
    unsafe { (*address, *bytes) = (shared.start as u64, shared.bytes as u64) };
    shared.descriptor
}

/// Runs what may change errno, as free and posix_memalign must not.
fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: the calling thread's own word.
    let errno = unsafe { *libc::__errno_location() };
    let result = body();
    fail(errno);
    result
}
