//! Gathers and scatters for C.

use super::{Named, block_list, contribution, is_in_place, offloads, post};
use crate::error::Error;
use crate::group::{BlockList, Destination, Group};
use crate::request::Request;
use std::ffi::{c_int, c_void};

fn destination(receive: *mut c_void) -> Destination {
    if is_in_place(receive) { Destination::InPlace } else { Destination::At(receive.cast()) }
}

/// The blocks of all ranks, which only the root gives.
///
/// # Safety
/// On the root the lists are NULL or have an entry for every rank, as the header asks.
unsafe fn blocks<'a>(group: &Group, root: u32, bytes: Named, offsets: Named) -> Result<Option<BlockList<'a>>, Error> {
    if group.rank()? != root {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { block_list(group.size()?, bytes, offsets) }.map(Some)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_offloads_gather(group: *const Group, bytes_per_rank: u64) -> c_int {
    // SAFETY: as the header asks.
    unsafe { offloads(group, |group| group.offloads_gather(bytes_per_rank)) }
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
    // SAFETY: as the header asks, of the handle and of the buffers.
    unsafe { post(group, request, |group| group.igather(root, contribution(send), receive.cast(), bytes_per_rank)) }
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
    // SAFETY: as the header asks, of the handle and of the buffers.
    unsafe { post(group, request, |group| group.iscatter(root, send.cast(), destination(receive), bytes_per_rank)) }
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
    let (bytes, offsets) = ((receive_bytes, "receive_bytes"), (receive_offsets, "receive_offsets"));
    // SAFETY: as the header asks, of the lists and of the blocks.
    unsafe {
        post(group, request, |group| {
            let received = blocks(group, root, bytes, offsets)?;
            group.igatherv(root, (contribution(send), send_bytes), (receive.cast(), received))
        })
    }
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
    let (bytes, offsets) = ((send_bytes, "send_bytes"), (send_offsets, "send_offsets"));
    // SAFETY: as the header asks, of the lists and of the blocks.
    unsafe {
        post(group, request, |group| {
            let sent = blocks(group, root, bytes, offsets)?;
            group.iscatterv(root, (send.cast(), sent), (destination(receive), receive_bytes))
        })
    }
}
