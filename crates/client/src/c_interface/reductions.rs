//! The functions of `outboard.h` that post barriers and reductions.

use super::{contribution, list, post};
use crate::error::Error;
use crate::group::Group;
use crate::request::Request;
use outboard_plan::Reduction;
use std::ffi::{c_int, c_void};

/// What an operator and an element of the header mean together.
pub(super) fn reduction(op: c_int, element: c_int) -> Result<Reduction, Error> {
    let code = |number: c_int, argument| {
        u8::try_from(number).map_err(|_| Error::argument(argument, format!("is {number}, which stands for nothing")))
    };
    let code = u16::from_be_bytes([code(op, "op")?, code(element, "element")?]);
    Reduction::from_code(code).map_err(|problem| Error::argument("op", format!("does not fit: {problem}")))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_offloads_barrier(group: *const Group) -> c_int {
    // SAFETY: as the header asks.
    unsafe { group.as_ref() }.is_some_and(Group::offloads_barrier).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_offloads_reduction(group: *const Group, bytes: u64) -> c_int {
    // SAFETY: as the header asks.
    unsafe { group.as_ref() }.is_some_and(|group| group.offloads_reduction(bytes)).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_ibarrier(group: *mut Group, request: *mut *mut Request) -> c_int {
    // SAFETY: as the header asks.
    unsafe { post(group, request, Group::ibarrier) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_ireduce(
    group: *mut Group,
    send: *const c_void,
    receive: *mut c_void,
    count: u64,
    op: c_int,
    element: c_int,
    root: u32,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the header asks, of the handle and of the buffers.
    unsafe {
        post(group, request, |group| {
            group.ireduce(root, contribution(send), receive.cast(), count, reduction(op, element)?)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_iallreduce(
    group: *mut Group,
    send: *const c_void,
    receive: *mut c_void,
    count: u64,
    op: c_int,
    element: c_int,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the header asks, of the handle and of the buffers.
    unsafe {
        post(group, request, |group| {
            group.iallreduce(contribution(send), receive.cast(), count, reduction(op, element)?)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_ireduce_scatter(
    group: *mut Group,
    send: *const c_void,
    receive: *mut c_void,
    counts: *const u64,
    op: c_int,
    element: c_int,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the header asks, of the handle, the list and the buffers.
    unsafe {
        post(group, request, |group| {
            let counts = list(counts, group.size()?, "counts")?;
            group.ireduce_scatter(contribution(send), receive.cast(), counts, reduction(op, element)?)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_ireduce_scatter_block(
    group: *mut Group,
    send: *const c_void,
    receive: *mut c_void,
    count: u64,
    op: c_int,
    element: c_int,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the header asks, of the handle and of the buffers.
    unsafe {
        post(group, request, |group| {
            group.ireduce_scatter_block(contribution(send), receive.cast(), count, reduction(op, element)?)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_iscan(
    group: *mut Group,
    send: *const c_void,
    receive: *mut c_void,
    count: u64,
    op: c_int,
    element: c_int,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the header asks, of the handle and of the buffers.
    unsafe {
        post(group, request, |group| group.iscan(contribution(send), receive.cast(), count, reduction(op, element)?))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_iexscan(
    group: *mut Group,
    send: *const c_void,
    receive: *mut c_void,
    count: u64,
    op: c_int,
    element: c_int,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the header asks, of the handle and of the buffers.
    unsafe {
        post(group, request, |group| group.iexscan(contribution(send), receive.cast(), count, reduction(op, element)?))
    }
}
