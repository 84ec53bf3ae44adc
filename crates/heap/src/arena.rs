//! jemalloc on the range: one separate arena, whose extents all come from the range.
//!
//! The arena takes the whole range as one extent, without access rights. Then it splits and merges extents. jemalloc
//! keeps its data about extents in private memory. So the range holds the program's bytes alone, and a forked child
//! inherits consistent copies of bytes and data. Freed memory is kept warm within [`MOST_DIRTY`] bytes, then purged.

use std::ffi::{c_char, c_uint, c_void};
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize, AtomicUsize, Ordering};

use tikv_jemalloc_sys as jemalloc;
use tikv_jemalloc_sys::extent_hooks_t;

use crate::{preserve_errno, range};

/// Most freed bytes kept for reuse: this many, or the bytes in use divided by `DIRTY_PART` if that is more.
const MOST_DIRTY: isize = 64 << 20;
const DIRTY_PART: isize = 4;
/// Room beyond the largest allocation, so that it also fits at an odd alignment.
const MARGIN: usize = 4 << 20;

/// jemalloc's settings: neither memory nor threads for unused features.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub(crate) static SETTINGS: Option<&'static c_char> =
    // SAFETY: the pointer leads to the first character of a zero-terminated text.
    Some(unsafe {
        &*c"narenas:1,tcache:false,oversize_threshold:0,dirty_decay_ms:10000,muzzy_decay_ms:0".as_ptr()
    });

/// Flags by which jemalloc finds the arena; 0 before there is one.
static FLAGS: AtomicI32 = AtomicI32::new(0);
/// The arena's number.
static NUMBER: AtomicUsize = AtomicUsize::new(0);
/// Whether jemalloc has taken the range.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// While true, jemalloc takes the range: it allocates and frees all of it, and nobody touches the memory.
static TAKING: AtomicBool = AtomicBool::new(false);
/// Bytes in use.
static USED: AtomicIsize = AtomicIsize::new(0);
/// Approximate bytes that are free and still have memory.
static DIRTY: AtomicIsize = AtomicIsize::new(0);

static HOOKS: extent_hooks_t = extent_hooks_t {
    alloc: Some(extent_alloc),
    // jemalloc keeps the range for good.
    dalloc: None,
    destroy: None,
    commit: Some(extent_set_usable::<true>),
    decommit: Some(extent_set_usable::<false>),
    purge_lazy: None,
    purge_forced: Some(extent_set_usable::<false>),
    split: Some(split),
    merge: Some(merge),
};

/// Argument of jemalloc's `experimental.arenas_create_ext`.
#[repr(C)]
struct Configuration {
    hooks: *const extent_hooks_t,
    metadata_use_hooks: bool,
}

/// Size of a range that can serve `bytes` bytes of allocations.
pub(crate) fn range_bytes_for(bytes: usize) -> usize {
    // SAFETY: nallocx only computes; 0 means that no allocation is so large.
    unsafe { jemalloc::nallocx(bytes, 0) }.max(bytes).saturating_add(MARGIN)
}

/// Creates the arena on the range; false if jemalloc lacks the memory.
pub(crate) fn create(bytes: usize) -> bool {
    let configuration = Configuration { hooks: &raw const HOOKS, metadata_use_hooks: false };
    let (mut number, mut length): (c_uint, _) = (0, size_of::<c_uint>());
    // SAFETY: all pointers are valid for the call, and the hooks for good.
    let failed = unsafe {
        jemalloc::mallctl(
            c"experimental.arenas_create_ext".as_ptr(),
            (&raw mut number).cast(),
            &raw mut length,
            (&raw const configuration).cast_mut().cast(),
            size_of::<Configuration>(),
        )
    };
    if failed != 0 {
        return false;
    }
    NUMBER.store(number as usize, Ordering::Relaxed);
    let flags = jemalloc::MALLOCX_ARENA(number as usize) | jemalloc::MALLOCX_TCACHE_NONE;
    FLAGS.store(flags, Ordering::Release);
    // The first allocation takes the range as one extent; all others are parts of it.
    TAKING.store(true, Ordering::Relaxed);
    // SAFETY: the size is not 0, and the flags name the arena; freed with the flags of its allocation.
    let taken = unsafe {
        let all = jemalloc::mallocx(bytes, flags);
        if !all.is_null() {
            jemalloc::dallocx(all, flags);
            purge();
        }
        !all.is_null()
    };
    TAKING.store(false, Ordering::Relaxed);
    taken
}

/// Null if the range has no room, or if jemalloc serves this thread from another arena.
pub(crate) fn allocate(bytes: usize, alignment: usize, zeroed: bool) -> *mut c_void {
    let zero = if zeroed { jemalloc::MALLOCX_ZERO } else { 0 };
    let flags = FLAGS.load(Ordering::Acquire) | jemalloc::MALLOCX_LG_ALIGN(alignment.trailing_zeros() as usize) | zero;
    // SAFETY: the size is not 0, and the flags name an arena that stays.
    let memory = unsafe { jemalloc::mallocx(bytes, flags) };
    if memory.is_null() {
        return memory;
    }
    if !range::contains(memory) {
        // An ending thread gets memory of another arena once it has dropped jemalloc's thread state.
        // SAFETY: allocated above, with equal flags except for the arena, which jemalloc finds by the address.
        unsafe { jemalloc::dallocx(memory, flags) };
        return ptr::null_mut();
    }
    count_allocated(usable_size(memory));
    memory
}

/// Null if the range has no room; the memory is then unchanged.
pub(crate) fn resize(memory: *mut c_void, bytes: usize) -> *mut c_void {
    let before = usable_size(memory);
    // SAFETY: allocated by this arena, which the caller has checked by the address.
    let resized = unsafe { jemalloc::rallocx(memory, bytes, FLAGS.load(Ordering::Acquire)) };
    if !resized.is_null() {
        let after = usable_size(resized);
        if after < before {
            count_freed(before.wrapping_sub(after))
        } else {
            count_allocated(after.wrapping_sub(before))
        }
    }
    resized
}

pub(crate) fn free(memory: *mut c_void) {
    let bytes = usable_size(memory);
    preserve_errno(|| {
        // SAFETY: allocated by this arena, which the caller has checked by the address.
        unsafe { jemalloc::dallocx(memory, FLAGS.load(Ordering::Acquire)) };
        count_freed(bytes);
    });
}

pub(crate) fn usable_size(memory: *mut c_void) -> usize {
    // SAFETY: allocated by this arena, which the caller has checked by the address.
    unsafe { jemalloc::sallocx(memory, FLAGS.load(Ordering::Acquire)) }
}

/// Counts an allocation, which reuses free memory first.
fn count_allocated(bytes: usize) {
    USED.fetch_add(bytes as isize, Ordering::Relaxed);
    let left = DIRTY.fetch_sub(bytes as isize, Ordering::Relaxed).wrapping_sub(bytes as isize);
    if left < 0 {
        DIRTY.store(0, Ordering::Relaxed);
    }
}

fn count_freed(bytes: usize) {
    let in_use = USED.fetch_sub(bytes as isize, Ordering::Relaxed).wrapping_sub(bytes as isize);
    let all = DIRTY.fetch_add(bytes as isize, Ordering::Relaxed).wrapping_add(bytes as isize);
    if all > MOST_DIRTY.max(in_use / DIRTY_PART) {
        DIRTY.store(0, Ordering::Relaxed);
        purge();
    }
}

/// Returns the memory of all free pages to the kernel.
fn purge() {
    let mut name = [0; 3];
    let mut length = name.len();
    // SAFETY: the name is known and has three parts; the second one is the arena's number.
    unsafe {
        if jemalloc::mallctlnametomib(c"arena.0.purge".as_ptr(), name.as_mut_ptr(), &raw mut length) == 0 {
            name[1] = NUMBER.load(Ordering::Relaxed);
            jemalloc::mallctlbymib(name.as_ptr(), length, ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0);
        }
    }
}

/// Gives jemalloc the start of the range, once: the first request is the largest that will ever come.
unsafe extern "C" fn extent_alloc(
    _hooks: *mut extent_hooks_t,
    at: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    _committed: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    let (start, bytes) = range::bounds();
    if !at.is_null() || size > bytes || !start.addr().is_multiple_of(alignment.max(1)) {
        return ptr::null_mut();
    }
    if TAKEN.swap(true, Ordering::Relaxed) {
        return ptr::null_mut();
    }
    // SAFETY: the variable belongs to jemalloc. Fresh memory is zero.
    unsafe { *zero = true };
    start
}

/// Makes pages usable, or returns their memory to the kernel.
unsafe extern "C" fn extent_set_usable<const USABLE: bool>(
    _hooks: *mut extent_hooks_t,
    memory: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    let pages = memory.wrapping_byte_add(offset);
    let change = if USABLE { range::commit } else { range::purge };
    !TAKING.load(Ordering::Relaxed) && !change(pages, length)
}

unsafe extern "C" fn split(
    _hooks: *mut extent_hooks_t,
    _memory: *mut c_void,
    _size: usize,
    _first: usize,
    _second: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

unsafe extern "C" fn merge(
    _hooks: *mut extent_hooks_t,
    _first: *mut c_void,
    _first_size: usize,
    _second: *mut c_void,
    _second_size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}
