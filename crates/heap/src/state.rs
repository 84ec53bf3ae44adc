//! State of the heap: whether it exists, and whether it takes new allocations.
//!
//! | state | on | goes to |
//! |---|---|---|
//! | not started | the first large allocation, or liboutboard's call | starting |
//! | starting | the range and its arena exist | open |
//! | starting | `OUTBOARD_HEAP=off`, an invalid setting, or no range | closed |
//! | open | the last of [`MOST_FORKS`] forks that copied memory, or a fork in the child | closed |
//!
//! A closed heap frees and resizes its allocations, and makes no new ones. While one thread starts the heap, all others
//! get libc's memory: no thread waits, so none can deadlock.

use std::ffi::c_void;
use std::fmt::Display;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::{arena, range, settings};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum HeapState {
    NotStarted,
    Starting,
    Open,
    Closed,
}

/// After this many forks with a copy the heap closes. Later forks copy only memory still in use, which shrinks over
/// time.
const MOST_FORKS: u32 = 8;

static STATE: AtomicU8 = AtomicU8::new(HeapState::NotStarted as u8);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Prints a line for the user of the program.
pub(crate) fn print_line(what: impl Display) {
    let line = format!("outboard: {what}\n");
    // SAFETY: the bytes are valid. If standard error is closed, the line is lost.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

fn state_is(state: HeapState) -> bool {
    STATE.load(Ordering::Acquire) == state as u8
}

/// Memory from the heap, or null.
pub(crate) fn allocate(bytes: usize, alignment: usize, zeroed: bool) -> *mut c_void {
    if state_is(HeapState::NotStarted) {
        start();
    }
    if state_is(HeapState::Open) { arena::allocate(bytes, alignment, zeroed) } else { ptr::null_mut() }
}

/// Starts the heap, if enabled, unless it was started before.
pub(crate) fn start() {
    let (not_started, starting) = (HeapState::NotStarted as u8, HeapState::Starting as u8);
    if STATE.compare_exchange(not_started, starting, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let opened = open();
    if let Err(error) = &opened {
        print_line(format_args!("{error}. The program's memory is not shared"));
    }
    let state = if matches!(opened, Ok(true)) { HeapState::Open } else { HeapState::Closed };
    STATE.store(state as u8, Ordering::Release);
}

/// Why a requested heap does not open.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Setting(#[from] settings::HeapSettingError),
    #[error(transparent)]
    Reserve(#[from] range::ReserveError),
    #[error("jemalloc has no memory for its records")]
    Records,
}

/// Opens the heap; false if it is off.
fn open() -> Result<bool, OpenError> {
    let Some(bytes) = settings::requested_bytes()? else { return Ok(false) };
    range::reserve(arena::range_bytes_for(bytes))?;
    if arena::create(bytes) { Ok(true) } else { Err(OpenError::Records) }
}

/// From here on libc serves all new allocations of this process.
pub(crate) fn close() {
    STATE.store(HeapState::Closed as u8, Ordering::Release);
}

/// Records that a fork has copied memory for a child.
pub(crate) fn count_fork() {
    if FORKS.fetch_add(1, Ordering::Relaxed).wrapping_add(1) == MOST_FORKS {
        close();
        print_line(format_args!(
            "the program has forked {MOST_FORKS} times; its new memory is not shared, its old is still copied"
        ));
    }
}
