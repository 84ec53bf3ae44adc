//! The program's large allocations as memory that the service process maps. The preload library liboutboard_heap serves
//! them; this module finds them and registers them once, as one range.

use crate::connection::ServiceConnection;
use crate::error::Error;
use libloading::os::unix::Library;
use outboard_shm::attach::AttachRequest;
use std::ffi::c_int;
use std::io::Write;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// The preload library's function that this module calls. It writes the heap's address and size, and returns the heap's
/// memfd, or a negative number if there is none.
const SYMBOL: &[u8] = b"outboard_heap\0";

/// The addresses of the heap, once the service process maps them; none if there is no heap.
///
/// If the service process refuses the heap, it accesses the heap as other memory. The refusal is reported, since the
/// user requested more.
pub(crate) fn register(connection: &ServiceConnection) -> Result<Option<Range<usize>>, Error> {
    let Some((addresses, memfd)) = find() else { return Ok(None) };
    let (address, bytes) = (addresses.start as u64, addresses.len() as u64);
    match connection.execute(&AttachRequest::RegisterMemory { address, bytes }, &[memfd]) {
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
    // SAFETY: the symbol belongs to the preload library of this release and writes only to the two places. The library
    // stays loaded, as does every library that was there when the program started.
    let memfd = unsafe {
        let program = Library::this();
        let heap = program.get::<unsafe extern "C" fn(*mut u64, *mut u64) -> c_int>(SYMBOL).ok()?;
        heap(&raw mut address, &raw mut bytes)
    };
    // SAFETY: the heap keeps the descriptor open for good, and has just checked that it is open.
    let memfd = (memfd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(memfd) })?;
    let start = usize::try_from(address).ok()?;
    Some((start..start.checked_add(usize::try_from(bytes).ok()?)?, memfd))
}
