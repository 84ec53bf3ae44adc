//! Gathers and scatters for C.

use super::{borrow, enter, list, place, store};
use crate::error::Error;
use crate::group::{BlockList, Contribution, Destination, Group};
use crate::request::Request;
use std::ffi::{c_int, c_void};

fn contribution(send: *const c_void) -> Contribution {
    if is_in_place(send) { Contribution::InPlace } else { Contribution::At(send.cast()) }
}

fn destination(receive: *mut c_void) -> Destination {
    if is_in_place(receive) { Destination::InPlace } else { Destination::At(receive.cast()) }
}

/// OUTBOARD_IN_PLACE.
fn is_in_place(buffer: *const c_void) -> bool {
    buffer.addr() == usize::MAX
}

/// The blocks of all ranks, which only the root gives.
///
/// # Safety
/// On the root the lists are NULL or have an entry for every rank, as the header asks.
unsafe fn blocks<'a>(
    group: &Group,
    root: u32,
    (bytes, bytes_name): (*const u64, &'static str),
    (offsets, offsets_name): (*const u64, &'static str),
) -> Result<Option<BlockList<'a>>, Error> {
    if group.rank()? != root {
        return Ok(None);
    }
    let ranks = group.size()?;
    // SAFETY: the caller's promise.
    let (bytes, offsets) = unsafe { (list(bytes, ranks, bytes_name)?, list(offsets, ranks, offsets_name)?) };
    Ok(Some(BlockList { bytes, offsets }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_offloads_gather(group: *const Group, bytes_per_rank: u64) -> c_int {
    // SAFETY: as the header asks.
    unsafe { group.as_ref() }.is_some_and(|group| group.offloads_gather(bytes_per_rank)).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_igather(
    group: *mut Group,
    send: *const c_void,
    receive: *mut c_void,
    bytes_per_rank: u64,
    root: u32,
    request: *mut *mut Request,
) -> c_int {
    enter(|| {
        place(request, "request")?;
        // SAFETY: as the header asks, of the handle and of the buffers.
        let posted =
            unsafe { borrow(group, "group")?.igather(root, contribution(send), receive.cast(), bytes_per_rank) }?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(request, Box::into_raw(Box::new(posted)), "request") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_iscatter(
    group: *mut Group,
    send: *const c_void,
    receive: *mut c_void,
    bytes_per_rank: u64,
    root: u32,
    request: *mut *mut Request,
) -> c_int {
    enter(|| {
        place(request, "request")?;
        // SAFETY: as the header asks, of the handle and of the buffers.
        let posted =
            unsafe { borrow(group, "group")?.iscatter(root, send.cast(), destination(receive), bytes_per_rank) }?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(request, Box::into_raw(Box::new(posted)), "request") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_igatherv(
    group: *mut Group,
    send: *const c_void,
    send_bytes: u64,
    receive: *mut c_void,
    receive_bytes: *const u64,
    receive_offsets: *const u64,
    root: u32,
    request: *mut *mut Request,
) -> c_int {
    enter(|| {
        place(request, "request")?;
        // SAFETY: as the header asks.
        let group = unsafe { borrow(group, "group") }?;
        let (bytes, offsets) = ((receive_bytes, "receive_bytes"), (receive_offsets, "receive_offsets"));
        // SAFETY: as the header asks.
        let received = unsafe { blocks(group, root, bytes, offsets) }?;
        // SAFETY: as the header asks, of the blocks.
        let posted = unsafe { group.igatherv(root, (contribution(send), send_bytes), (receive.cast(), received)) }?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(request, Box::into_raw(Box::new(posted)), "request") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_iscatterv(
    group: *mut Group,
    send: *const c_void,
    send_bytes: *const u64,
    send_offsets: *const u64,
    receive: *mut c_void,
    receive_bytes: u64,
    root: u32,
    request: *mut *mut Request,
) -> c_int {
    enter(|| {
        place(request, "request")?;
        // SAFETY: as the header asks.
        let group = unsafe { borrow(group, "group") }?;
        let (bytes, offsets) = ((send_bytes, "send_bytes"), (send_offsets, "send_offsets"));
        // SAFETY: as the header asks.
        let sent = unsafe { blocks(group, root, bytes, offsets) }?;
        // SAFETY: as the header asks, of the blocks.
        let posted = unsafe { group.iscatterv(root, (send.cast(), sent), (destination(receive), receive_bytes)) }?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(request, Box::into_raw(Box::new(posted)), "request") }
    })
}
