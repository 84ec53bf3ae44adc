//! The functions of `outboard.h` that send, receive and record.

use super::reductions::reduction;
use super::{borrow, borrow_mut, create_handle};
use crate::error::Error;
use crate::group::Group;
use crate::request::Request;
use crate::tagged::{Recorded, Recorder};
use std::ffi::{c_int, c_void};

posts! {
    extern "C" fn outboard_isend(to: u32, tag: u32, buffer: *const c_void, bytes: u64) => |group| {
        group.isend(to, tag, buffer.cast(), bytes)
    };
    extern "C" fn outboard_ireceive(from: u32, tag: u32, buffer: *mut c_void, bytes: u64) => |group| {
        group.ireceive(from, tag, buffer.cast(), bytes)
    };
}

/// Borrows a recorder; rejects one that a forked child inherited.
///
/// # Safety
/// As for [`borrow_mut`].
unsafe fn borrow_recorder<'a>(recorder: *mut Recorder) -> Result<&'a mut Recorder, Error> {
    // SAFETY: the caller's promise.
    let recorder = unsafe { borrow_mut(recorder, "recorder") }?;
    recorder.check_not_forked()?;
    Ok(recorder)
}

functions! {
    extern "C" fn outboard_record_begin(group: *mut Group, recorder: *mut *mut Recorder) {
        create_handle(recorder, "recorder", || {
            let group = borrow(group, "group")?;
            group.rank()?;
            Ok(group.record())
        })
    }

    extern "C" fn outboard_record_send(
        recorder: *mut Recorder, to: u32, tag: u32, buffer: *const c_void, bytes: u64
    ) {
        borrow_recorder(recorder)?.send(to, tag, buffer.cast(), bytes)
    }

    extern "C" fn outboard_record_receive(
        recorder: *mut Recorder, from: u32, tag: u32, buffer: *mut c_void, bytes: u64
    ) {
        borrow_recorder(recorder)?.receive(from, tag, buffer.cast(), bytes)
    }

    extern "C" fn outboard_record_copy(
        recorder: *mut Recorder, from: *const c_void, into: *mut c_void, bytes: u64
    ) {
        borrow_recorder(recorder)?.copy(from.cast(), into.cast(), bytes)
    }

    extern "C" fn outboard_record_reduce(
        recorder: *mut Recorder, from: *const c_void, into: *mut c_void, count: u64, op: c_int, element: c_int
    ) {
        borrow_recorder(recorder)?.reduce(reduction(op, element)?, from.cast(), into.cast(), count)
    }

    extern "C" fn outboard_record_barrier(recorder: *mut Recorder) {
        borrow_recorder(recorder)?.barrier();
        Ok(())
    }

    extern "C" fn outboard_record_end(recorder: *mut Recorder, recorded: *mut *mut Recorded) {
        borrow_recorder(recorder)?;
        // Ends the recording even if `recorded` is NULL: the other ranks count it.
        let ended = Box::from_raw(recorder).end();
        create_handle(recorded, "recorded", || ended)
    }

    extern "C" fn outboard_record_discard(recorder: *mut Recorder) {
        borrow_recorder(recorder)?;
        drop(Box::from_raw(recorder));
        Ok(())
    }

    extern "C" fn outboard_recorded_call(recorded: *mut Recorded, request: *mut *mut Request) {
        create_handle(request, "request", || borrow(recorded, "recorded")?.call())
    }

    extern "C" fn outboard_recorded_free(recorded: *mut Recorded) {
        // In a child the handle stays, to be rejected again.
        borrow(recorded, "recorded")?.check_not_forked()?;
        Box::from_raw(recorded).free()
    }
}
