//! libc's own allocator, under the names that no preload library takes from it.
//!
//! `dlsym` is left alone on the way of an allocation, since it may allocate itself.

use std::ffi::c_void;
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    pub(crate) fn __libc_malloc(size: usize) -> *mut c_void;
    pub(crate) fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    pub(crate) fn __libc_realloc(memory: *mut c_void, size: usize) -> *mut c_void;
    pub(crate) fn __libc_free(memory: *mut c_void);
    pub(crate) fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
}

type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;

/// Bytes of an allocation of libc's. The one function without a second name; looked up in libc itself, as what follows
/// in the order of libraries may be another allocator.
///
/// # Safety
/// The memory is null or libc's.
pub(crate) unsafe fn usable_size(memory: *mut c_void) -> usize {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut found = FOUND.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: names end with a zero; libc is loaded for good, since we need it.
        found = unsafe {
            let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            libc::dlsym(libc, c"malloc_usable_size".as_ptr())
        };
        FOUND.store(found, Ordering::Relaxed);
    }
    if found.is_null() {
        return 0;
    }
    // SAFETY: glibc's function of this name and type; the caller answers for the memory.
    unsafe { transmute::<*mut c_void, UsableSize>(found)(memory) }
}
