//! libc's own allocator, under names that no preload library replaces.
//!
//! An allocation must not call `dlsym`, which may allocate itself. `dlsym` also waits for a thread that loads a
//! library, and that thread may wait for the allocating thread.

use std::ffi::{CStr, c_void};
use std::mem::{MaybeUninit, transmute};
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

/// libc's only function without a second name; null until the function is looked up.
static USABLE_SIZE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
const NAME: &CStr = c"malloc_usable_size";

/// Looks up the function without a second name, unless another allocator precedes libc. Runs before libc is initialized
/// and without an environment; `dlopen` here would initialize libc.
pub(crate) fn resolve_usable_size() {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, NAME.as_ptr()) };
    if library_of(found) == library_of(__libc_malloc as *const c_void) {
        USABLE_SIZE.store(found, Ordering::Relaxed);
    }
}

/// Base address of the library that contains a function; null if none does.
fn library_of(function: *const c_void) -> *mut c_void {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr writes to its argument; if it finds nothing, the null pointers stay, and they are valid.
    unsafe {
        libc::dladdr(function, found.as_mut_ptr());
        found.assume_init().dli_fbase
    }
}

/// Bytes of an allocation from libc.
///
/// # Safety
/// The memory is null or libc's.
pub(crate) unsafe fn usable_size(memory: *mut c_void) -> usize {
    let mut found = USABLE_SIZE.load(Ordering::Relaxed);
    if found.is_null() {
        // Searches libc itself, past the other allocator.
        // SAFETY: the names end with a zero; libc stays loaded, because this library needs it.
        found = unsafe {
            let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            libc::dlsym(libc, NAME.as_ptr())
        };
        USABLE_SIZE.store(found, Ordering::Relaxed);
    }
    if found.is_null() {
        return 0;
    }
    // SAFETY: glibc's function of this name and type; the caller is responsible for the memory.
    unsafe { transmute::<*mut c_void, UsableSize>(found)(memory) }
}
