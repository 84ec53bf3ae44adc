//! The heap's environment variables.

use std::ffi::CStr;
use std::str::FromStr;

use outboard_units::{Size, UnitError};

/// Whether there is a heap: `off` or `shared`.
const HEAP: &CStr = c"OUTBOARD_HEAP";
/// Size of the heap.
const BYTES: &CStr = c"OUTBOARD_HEAP_BYTES";
/// A smaller heap would serve hardly any allocation.
const LEAST: u64 = 1 << 20;

/// Why a setting is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeapSettingError {
    /// Neither off nor shared.
    #[error("OUTBOARD_HEAP is `{0}`; set it to off or shared")]
    Heap(String),
    /// Not a size.
    #[error("OUTBOARD_HEAP_BYTES is wrong: {0}")]
    Bytes(#[from] UnitError),
    /// A size that is too small, or larger than any address space.
    #[error("OUTBOARD_HEAP_BYTES is {0}; set it to 1 MiB at least, and to no more than there are addresses")]
    Range(Size),
}

/// Reads the variable through libc, the only way by which a program may change its environment.
fn variable(name: &CStr) -> Option<String> {
    // SAFETY: the text is copied before this thread does anything else. A program must not change its environment in
    // one thread while another thread reads the environment, and libc itself reads it.
    let found = unsafe { libc::getenv(name.as_ptr()).as_ref().map(|text| CStr::from_ptr(text)) }?;
    Some(found.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
}

/// The requested size of the heap in bytes; none if the heap is off.
pub(crate) fn requested_bytes() -> Result<Option<usize>, HeapSettingError> {
    match variable(HEAP).as_deref() {
        None | Some("off") => return Ok(None),
        Some("shared") => {}
        Some(other) => return Err(HeapSettingError::Heap(other.to_owned())),
    }
    let size = match variable(BYTES) {
        Some(text) => Size::from_str(&text)?,
        None => Size(machine_memory().max(LEAST)),
    };
    let bytes = usize::try_from(size.0).ok().filter(|bytes| *bytes <= isize::MAX as usize / 4);
    match bytes {
        Some(bytes) if size.0 >= LEAST => Ok(Some(bytes)),
        _ => Err(HeapSettingError::Range(size)),
    }
}

/// Memory of this machine. A cgroup may allow less; an access beyond that limit ends as an access to plain memory does.
fn machine_memory() -> u64 {
    let found = rustix::system::sysinfo();
    found.totalram.saturating_mul(u64::from(found.mem_unit))
}
