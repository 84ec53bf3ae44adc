//! What the environment asks for.

use std::ffi::CStr;
use std::str::FromStr;

use outboard_units::{Size, UnitError};

/// Whether there is a heap: `off` or `shared`.
const HEAP: &CStr = c"OUTBOARD_HEAP";
/// How many bytes it may have.
const BYTES: &CStr = c"OUTBOARD_HEAP_BYTES";
/// Less would serve next to nothing.
const LEAST: u64 = 1 << 20;

/// Why a setting is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingError {
    /// Neither on nor off.
    #[error("OUTBOARD_HEAP is `{0}`; set it to off or shared")]
    Heap(String),
    /// No size.
    #[error("OUTBOARD_HEAP_BYTES is wrong: {0}")]
    Bytes(#[from] UnitError),
    /// A size that serves nothing, or that no computer has.
    #[error("OUTBOARD_HEAP_BYTES is {0}; set it to 1 MiB at least, and to no more than there are addresses")]
    Range(Size),
}

/// By libc, since a program may change its environment by nothing else.
fn variable(name: &CStr) -> Option<String> {
    // SAFETY: the text is copied before this thread does anything else; a program must not change its environment in
    // one thread while another reads it, which libc itself does.
    let found = unsafe { libc::getenv(name.as_ptr()).as_ref().map(|text| CStr::from_ptr(text)) }?;
    Some(found.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
}

/// How many bytes the heap is to have; none where it is off.
pub(crate) fn wanted() -> Result<Option<usize>, SettingError> {
    match variable(HEAP).as_deref() {
        None | Some("off") => return Ok(None),
        Some("shared") => {}
        Some(other) => return Err(SettingError::Heap(other.to_owned())),
    }
    let size = match variable(BYTES) {
        Some(text) => Size::from_str(&text)?,
        None => Size(memory().max(LEAST)),
    };
    let bytes = usize::try_from(size.0).ok().filter(|bytes| *bytes <= isize::MAX as usize / 4);
    match bytes {
        Some(bytes) if size.0 >= LEAST => Ok(Some(bytes)),
        _ => Err(SettingError::Range(size)),
    }
}

/// Memory of this machine. A cgroup may allow less; then a touch beyond it ends as that of plain memory does.
fn memory() -> u64 {
    let found = rustix::system::sysinfo();
    found.totalram.saturating_mul(u64::from(found.mem_unit))
}
