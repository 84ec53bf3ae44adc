//! Shares a program's large allocations with the service process, which maps them too (SP-4): a preload library.
//!
//! `LD_PRELOAD=liboutboard_heap.so OUTBOARD_HEAP=shared` puts this library's malloc and related functions before
//! libc's. Allocations from 64 KiB on come from one address range that a memfd backs. When liboutboard attaches, it
//! passes that memfd to the service process ([`outboard_heap`]). libc serves all other allocations, and every
//! allocation once the range is full.
//!
//! | module | answers the question |
//! |---|---|
//! | `range` | where do the addresses and their pages come from, and how are pages returned? |
//! | `arena` | which bytes of the range are allocated? (jemalloc) |
//! | `state` | is there a heap, and does it take new allocations? |
//! | `fork` | what does a forked child see? |
//! | `libc_allocator` | how is libc's own allocator reached? |
//!
//! Invariants: memory belongs to the heap if and only if its address lies in the range, so one comparison finds the
//! owner. A page fault in the range ends as in any memory, never with SIGBUS. A child never sees its parent's later
//! writes. The allocation path never calls an allocator recursively, panics or waits, except for jemalloc's locks.
//! Needs glibc.

mod arena;
mod fork;
mod libc_allocator;
mod range;
mod settings;
mod state;

use std::ffi::{c_int, c_void};
use std::ptr;

/// Least bytes of an allocation that the heap serves.
const LARGE: usize = 64 << 10;
/// Assumed page size, which only the kernel knows exactly; a wrong value costs room and nothing else.
const PAGE: usize = 4096;

/// Memory from the heap; null if the heap does not serve the allocation.
fn allocate_shared(size: usize, alignment: usize, zeroed: bool) -> *mut c_void {
    match size >= LARGE && alignment.is_power_of_two() {
        true => state::allocate(size, alignment, zeroed),
        false => ptr::null_mut(),
    }
}

fn allocate_aligned(alignment: usize, size: usize) -> *mut c_void {
    let memory = allocate_shared(size, alignment, false);
    // SAFETY: libc's own function, with the program's arguments.
    if memory.is_null() { unsafe { libc_allocator::__libc_memalign(alignment, size) } } else { memory }
}

fn fail_with(errno: c_int) -> *mut c_void {
    // SAFETY: errno belongs to the calling thread.
    unsafe { *libc::__errno_location() = errno };
    ptr::null_mut()
}

/// Behaves as in C.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    let memory = allocate_shared(size, 1, false);
    // SAFETY: libc's own function, with the program's arguments.
    if memory.is_null() { unsafe { libc_allocator::__libc_malloc(size) } } else { memory }
}

/// Behaves as in C.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let memory = allocate_shared(count.saturating_mul(size), 1, true);
    // SAFETY: libc's own function, with the program's arguments.
    if memory.is_null() { unsafe { libc_allocator::__libc_calloc(count, size) } } else { memory }
}

/// Behaves as in C.
///
/// # Safety
/// Nothing uses the memory afterwards, as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    if range::contains(memory) {
        arena::free(memory);
    } else {
        // SAFETY: memory outside the range is libc's; the caller is responsible for the rest.
        unsafe { libc_allocator::__libc_free(memory) }
    }
}

/// Behaves as in C.
///
/// # Safety
/// If the result is not null, nothing uses the old memory afterwards, as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    let held = range::contains(memory);
    if held && size >= LARGE {
        let resized = arena::resize(memory, size);
        if !resized.is_null() {
            return resized;
        }
    }
    if !held && (memory.is_null() || size < LARGE) {
        // SAFETY: libc's own memory, or none.
        return if memory.is_null() { malloc(size) } else { unsafe { libc_allocator::__libc_realloc(memory, size) } };
    }
    // The allocation moves from one allocator to the other.
    let moved = match (held, size) {
        (true, 0) => ptr::null_mut(),
        // SAFETY: libc's own function.
        (true, _) => unsafe { libc_allocator::__libc_malloc(size) },
        (false, _) => allocate_shared(size, 1, false),
    };
    match (moved.is_null(), held) {
        // SAFETY: the memory is libc's own, and the heap has no room for it.
        (true, false) => return unsafe { libc_allocator::__libc_realloc(memory, size) },
        (true, true) if size > 0 => return moved,
        _ => {}
    }
    // SAFETY: both allocations hold the copied bytes and are distinct; the caller gives the old one up.
    unsafe {
        if !moved.is_null() {
            ptr::copy_nonoverlapping(memory.cast::<u8>(), moved.cast(), malloc_usable_size(memory).min(size));
        }
        free(memory);
    }
    moved
}

/// Behaves as in glibc.
///
/// # Safety
/// The contract of [`realloc`] holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(memory: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller keeps this contract.
        Some(bytes) => unsafe { realloc(memory, bytes) },
        None => fail_with(libc::ENOMEM),
    }
}

/// Behaves as in glibc.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    allocate_aligned(alignment, size)
}

/// Behaves as in C.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    allocate_aligned(alignment, size)
}

/// Behaves as in POSIX.
///
/// # Safety
/// `memory` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(memory: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*const c_void>()) {
        return libc::EINVAL;
    }
    let allocated = preserve_errno(|| allocate_aligned(alignment, size));
    if allocated.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller keeps this contract.
    unsafe { *memory = allocated };
    0
}

/// Behaves as in glibc.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    allocate_aligned(PAGE, size)
}

/// Behaves as in glibc.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(PAGE) {
        Some(size) => allocate_aligned(PAGE, size),
        None => fail_with(libc::ENOMEM),
    }
}

/// Behaves as in glibc.
///
/// # Safety
/// The memory is null or was allocated here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    match range::contains(memory) {
        true => arena::usable_size(memory),
        // SAFETY: memory outside the range is libc's, or null.
        false => unsafe { libc_allocator::usable_size(memory) },
    }
}

/// Behaves as in C23. Later versions of glibc have this function, and would not recognize the heap's memory.
///
/// # Safety
/// The contract of [`free`] holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(memory: *mut c_void, _size: usize) {
    // SAFETY: the caller keeps this contract.
    unsafe { free(memory) }
}

/// Behaves as in C23, and is here for the same reason as `free_sized`.
///
/// # Safety
/// The contract of [`free`] holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(memory: *mut c_void, _alignment: usize, _size: usize) {
    // SAFETY: the caller keeps this contract.
    unsafe { free(memory) }
}

/// Returns the memfd that backs the heap, and stores the address and size of the range. liboutboard calls this when it
/// attaches. The range begins at the memfd's first byte, and the heap keeps the descriptor. Returns a negative number
/// and stores nothing if there is no heap: it is off, or this process is a forked child with private memory.
///
/// # Safety
/// `address` and `bytes` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_heap(address: *mut u64, bytes: *mut u64) -> c_int {
    state::start();
    let Some(shared) = range::shared() else { return -1 };
    // SAFETY: the caller keeps this contract.
    unsafe { (*address, *bytes) = (shared.start as u64, shared.bytes as u64) };
    shared.descriptor
}

/// Runs `body` and restores errno, which free and posix_memalign must not change.
fn preserve_errno<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: errno belongs to the calling thread.
    let errno = unsafe { *libc::__errno_location() };
    let result = body();
    fail_with(errno);
    result
}
