//! The program's large allocations as memory that the service process maps: found where the preload library
//! liboutboard_heap serves them, and registered once, as one range.

use crate::connection::Connection;
use crate::error::Error;
use libloading::os::unix::Library;
use outboard_shm::attach::Request;
use std::ffi::c_int;
use std::io::Write;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// The preload library's one function for us: its memfd, and the range that this backs; negative where there is none.
const SYMBOL: &[u8] = b"outboard_heap\0";

/// The addresses of the heap, once the service process maps them; none where there is no heap.
///
/// A service process that refuses reaches them as any other memory. That is said, since somebody asked for more.
pub(crate) fn register(connection: &Connection) -> Result<Option<Range<usize>>, Error> {
    let Some((addresses, memfd)) = find() else { return Ok(None) };
    let (address, bytes) = (addresses.start as u64, addresses.len() as u64);
    match connection.order(&Request::RegisterMemory { address, bytes }, &[memfd]) {
        Ok(()) => Ok(Some(addresses)),
        Err(Error::Service { text, .. }) => {
            let _ = writeln!(
                std::io::stderr(),
                "outboard: the service process does not map the program's memory: {text}. Lower OUTBOARD_HEAP_BYTES \
                 ({bytes} now)"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn find() -> Option<(Range<usize>, BorrowedFd<'static>)> {
    let (mut address, mut bytes) = (0u64, 0u64);
    // SAFETY: the symbol is the preload library's, which belongs to this release and writes where it is told. It stays
    // loaded, as does whatever was there when the program started.
    let memfd = unsafe {
        let program = Library::this();
        let heap = program.get::<unsafe extern "C" fn(*mut u64, *mut u64) -> c_int>(SYMBOL).ok()?;
        heap(&raw mut address, &raw mut bytes)
    };
    // SAFETY: the heap keeps the descriptor open for good, and has just seen that it is.
    let memfd = (memfd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(memfd) })?;
    let start = usize::try_from(address).ok()?;
    Some((start..start.checked_add(usize::try_from(bytes).ok()?)?, memfd))
}
