//! The functions of `outboard.h` that send, receive and record.

use super::reductions::reduction;
use super::{borrow, borrow_mut, enter, place, store};
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

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_record_begin(group: *mut Group, recorder: *mut *mut Recorder) -> c_int {
    enter(|| {
        place(recorder, "recorder")?;
        // SAFETY: as the header asks.
        let group = unsafe { borrow(group, "group") }?;
        group.rank()?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(recorder, Box::into_raw(Box::new(group.record())), "recorder") }
    })
}

/// # Safety
/// `recorder` is as the header asks.
unsafe fn record(recorder: *mut Recorder, step: impl FnOnce(&mut Recorder) -> Result<(), Error>) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| step(unsafe { borrow_mut(recorder, "recorder") }?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_record_send(
    recorder: *mut Recorder,
    to: u32,
    tag: u32,
    buffer: *const c_void,
    bytes: u64,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { record(recorder, |recorder| recorder.send(to, tag, buffer.cast(), bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_record_receive(
    recorder: *mut Recorder,
    from: u32,
    tag: u32,
    buffer: *mut c_void,
    bytes: u64,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { record(recorder, |recorder| recorder.receive(from, tag, buffer.cast(), bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_record_copy(
    recorder: *mut Recorder,
    from: *const c_void,
    into: *mut c_void,
    bytes: u64,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { record(recorder, |recorder| recorder.copy(from.cast(), into.cast(), bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_record_reduce(
    recorder: *mut Recorder,
    from: *const c_void,
    into: *mut c_void,
    count: u64,
    op: c_int,
    element: c_int,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { record(recorder, |recorder| recorder.reduce(reduction(op, element)?, from.cast(), into.cast(), count)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_record_barrier(recorder: *mut Recorder) -> c_int {
    let barrier = |recorder: &mut Recorder| {
        recorder.barrier();
        Ok(())
    };
    // SAFETY: as the header asks.
    unsafe { record(recorder, barrier) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_record_end(recorder: *mut Recorder, recorded: *mut *mut Recorded) -> c_int {
    enter(|| {
        place(recorded, "recorded")?;
        place(recorder, "recorder")?;
        // SAFETY: a box that beginning made, given back by the caller.
        let ended = unsafe { Box::from_raw(recorder) }.end()?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(recorded, Box::into_raw(Box::new(ended)), "recorded") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_record_discard(recorder: *mut Recorder) -> c_int {
    enter(|| {
        place(recorder, "recorder")?;
        // SAFETY: a box that beginning made, given back by the caller.
        drop(unsafe { Box::from_raw(recorder) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_recorded_call(recorded: *mut Recorded, request: *mut *mut Request) -> c_int {
    enter(|| {
        place(request, "request")?;
        // SAFETY: as the header asks, of the handle and of the memory that was recorded.
        let posted = unsafe { borrow(recorded, "recorded")?.call() }?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(request, Box::into_raw(Box::new(posted)), "request") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_recorded_free(recorded: *mut Recorded) -> c_int {
    enter(|| {
        place(recorded, "recorded")?;
        // SAFETY: a box that ending made, given back by the caller.
        unsafe { Box::from_raw(recorded) }.free()
    })
}
