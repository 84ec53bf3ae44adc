//! The functions of `outboard.h`, which documents them. Here is only what C needs on top of the Rust interface.
//!
//! Invariants: no panic crosses the boundary (it becomes OUTBOARD_ERR_INTERNAL). Every failure leaves its message in
//! the calling thread. Handles are boxes that C holds by pointer, and a NULL handle is an argument error.
#![allow(clippy::missing_safety_doc, reason = "the contract of each function is in outboard.h")]

use crate::context::Context;
use crate::error::Error;
use crate::group::{BlockList, Contribution, Destination, Group, deadline};
use crate::lock::lock;
use crate::request::{Request, wait_some};
use outboard_shm::attach::OFFER_BYTES;
use outboard_shm::fork::ForkGuard;
use outboard_shm::memory::Tier;
use outboard_shm::status::Status;
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Duration;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// The process's one attachment and the number of attach calls.
struct CountedAttachment {
    context: *mut Context,
    count: usize,
}

// SAFETY: the pointer is to a `Context`, which threads may share.
unsafe impl Send for CountedAttachment {}

/// State of one process. A forked child makes a state of its own, since the parent's lock may stay taken for ever in
/// the child.
struct ProcessState {
    guard: ForkGuard,
    attached: Mutex<Option<CountedAttachment>>,
}

/// State of this process, or of its parent if this process was forked. Never freed.
static PROCESS: AtomicPtr<ProcessState> = AtomicPtr::new(std::ptr::null_mut());

static MEANINGS: LazyLock<Vec<(c_int, CString)>> = LazyLock::new(|| {
    let sentence = |status: Status| (status.code(), text_for_c(status.meaning()));
    Status::ALL.into_iter().map(sentence).collect()
});

fn text_for_c(text: &str) -> CString {
    let bytes = text.bytes().filter(|byte| *byte != 0).collect::<Vec<_>>();
    CString::new(bytes).unwrap_or_default()
}

fn record_error(error: &Error) -> c_int {
    // A thread that is ending has no reader for the message.
    let _ = LAST_ERROR.try_with(|last| last.replace(text_for_c(&error.to_string())));
    error.status().code()
}

/// Runs the body of a C function: errors are remembered, panics become errors.
fn enter(body: impl FnOnce() -> Result<(), Error>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Err(Error::Internal(text.unwrap_or("panic").to_owned()))
    });
    match result {
        Ok(()) => Status::Ok.code(),
        Err(error) => record_error(&error),
    }
}

fn null(argument: &'static str) -> Error {
    Error::argument(argument, "is NULL")
}

/// # Safety
/// `pointer` is NULL or valid for reads, as the header requires.
unsafe fn borrow<'a, T>(pointer: *const T, argument: &'static str) -> Result<&'a T, Error> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(argument))
}

/// # Safety
/// `pointer` is NULL or valid for reads and writes and not used by others meanwhile, as the header requires.
unsafe fn borrow_mut<'a, T>(pointer: *mut T, argument: &'static str) -> Result<&'a mut T, Error> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(argument))
}

/// Stores a result in C's memory, which may be uninitialised.
///
/// # Safety
/// `place` is NULL or valid for writes.
unsafe fn store<T>(place: *mut T, value: T, argument: &'static str) -> Result<(), Error> {
    if place.is_null() {
        return Err(null(argument));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Rejects NULL before any step that could not be undone.
fn place<T>(place: *mut T, argument: &'static str) -> Result<(), Error> {
    if place.is_null() { Err(null(argument)) } else { Ok(()) }
}

/// Whether the buffer is OUTBOARD_IN_PLACE.
fn is_in_place(buffer: *const c_void) -> bool {
    buffer.addr() == usize::MAX
}

fn contribution(send: *const c_void) -> Contribution {
    if is_in_place(send) { Contribution::InPlace } else { Contribution::At(send.cast()) }
}

fn destination(receive: *mut c_void) -> Destination {
    if is_in_place(receive) { Destination::InPlace } else { Destination::At(receive.cast()) }
}

/// Makes the object behind a handle and stores the handle; rejects a NULL place before making anything.
///
/// # Safety
/// `to` is NULL or valid for writes.
unsafe fn create_handle<T>(
    to: *mut *mut T,
    argument: &'static str,
    make: impl FnOnce() -> Result<T, Error>,
) -> Result<(), Error> {
    place(to, argument)?;
    // SAFETY: the caller's promise.
    unsafe { store(to, Box::into_raw(Box::new(make()?)), argument) }
}

/// Functions that return a status, with their bodies.
macro_rules! functions {
    ($(extern $abi:literal fn $name:ident($($argument:ident: $type:ty),*) $body:block)+) => {
        $(#[unsafe(no_mangle)]
        unsafe extern $abi fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the header requires valid handles, lists, buffers and places for results. A handle that is given
            // back is a box that another of these functions made.
            crate::c_interface::enter(|| unsafe { $body })
        })+
    };
}

/// Functions that report whether a group offloads a call; a NULL group offloads nothing.
macro_rules! offloads {
    ($(extern $abi:literal fn $name:ident($($bytes:ident)?) => $query:ident;)+) => {
        $(#[unsafe(no_mangle)]
        unsafe extern $abi fn $name(group: *const Group $(, $bytes: u64)?) -> c_int {
            // SAFETY: NULL or a group, as the header requires.
            unsafe { group.as_ref() }.is_some_and(|group| group.$query($($bytes)?)).into()
        })+
    };
}

offloads! {
    extern "C" fn outboard_group_offloads_allgather(bytes_per_rank) => offloads;
    extern "C" fn outboard_group_offloads_broadcast(bytes) => offloads;
    extern "C" fn outboard_group_offloads_allgatherv(total_bytes) => offloads_allgatherv;
    extern "C" fn outboard_group_offloads_alltoall(bytes_per_pair) => offloads_alltoall;
    extern "C" fn outboard_group_offloads_alltoallv() => offloads_any_size;
    extern "C" fn outboard_group_offloads_gather(bytes_per_rank) => offloads;
    extern "C" fn outboard_group_offloads_barrier() => offloads_any_size;
    extern "C" fn outboard_group_offloads_reduction(bytes) => offloads;
}

/// Functions that post on a group, with the arguments between group and request.
macro_rules! posts {
    ($(extern $abi:literal fn $name:ident($($argument:ident: $type:ty),*) => |$group:ident| $post:expr;)+) => {
        functions! {
            $(extern $abi fn $name(group: *mut Group $(, $argument: $type)*, request: *mut *mut Request) {
                crate::c_interface::create_handle(request, "request", || {
                    let $group = crate::c_interface::borrow(group, "group")?;
                    $post
                })
            })+
        }
    };
}

mod reductions;
mod tagged;

fn limit(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// The requests in an array of handles; NULL entries are skipped.
///
/// # Safety
/// `requests` points to `count` handles that live as long as the result, unless `count` is 0.
unsafe fn pending<'a>(requests: *const *mut Request, count: usize) -> Result<Vec<&'a Request>, Error> {
    if count == 0 {
        return Ok(Vec::new());
    }
    place(requests.cast_mut(), "requests")?;
    // SAFETY: as the caller promises.
    let handles = unsafe { std::slice::from_raw_parts(requests, count) };
    // SAFETY: each handle is NULL or a request of this library.
    Ok(handles.iter().filter_map(|handle| unsafe { handle.as_ref() }).collect())
}

/// The process's attachment. The parent's attachment stays in place, so that its handle can be rejected.
fn attached() -> Result<MutexGuard<'static, Option<CountedAttachment>>, Error> {
    loop {
        let found = PROCESS.load(Ordering::Acquire);
        // SAFETY: NULL, or a box that was leaked below for good.
        if let Some(process) = unsafe { found.as_ref() }.filter(|process| !process.guard.forked()) {
            return Ok(lock(&process.attached));
        }
        let guard =
            ForkGuard::new().map_err(|errno| Error::Resource(format!("cannot guard against forks: {errno}")))?;
        let made = Box::into_raw(Box::new(ProcessState { guard, attached: Mutex::default() }));
        if PROCESS.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the box made here, which no other thread has seen.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// Attaches, or adds one to the count if this process is attached.
fn attach_counted(path: Option<&Path>) -> Result<*mut Context, Error> {
    let mut place = attached()?;
    if let Some(attached) = place.as_mut() {
        attached.count += 1;
        return Ok(attached.context);
    }
    let context = Box::into_raw(Box::new(Context::attach(path)?));
    *place = Some(CountedAttachment { context, count: 1 });
    Ok(context)
}

/// Subtracts one from the count; the last one ends the attachment.
fn detach_counted(context: *mut Context) -> Result<(), Error> {
    let mut place = attached()?;
    let Some(attached) = place.as_mut().filter(|attached| attached.context == context) else {
        return Err(Error::argument("context", "is not attached"));
    };
    if attached.count > 1 {
        attached.count -= 1;
        return Ok(());
    }
    // SAFETY: the box that attach made, as just compared.
    unsafe { &*context }.check_detachable()?;
    *place = None;
    // SAFETY: the box that attach made, as compared above; no other owner is left.
    unsafe { Box::from_raw(context) }.detach()
}

#[unsafe(no_mangle)]
extern "C" fn outboard_abi_version() -> c_int {
    crate::ABI_VERSION as c_int
}

functions! {
    extern "C" fn outboard_attach(socket_path: *const c_char, context: *mut *mut Context) {
        place(context, "context")?;
        let path = (!socket_path.is_null()).then(|| OsStr::from_bytes(CStr::from_ptr(socket_path).to_bytes()));
        store(context, attach_counted(path.map(Path::new))?, "context")
    }

    extern "C" fn outboard_init(context: *mut *mut Context, world: *mut *mut Group) {
        place(context, "context")?;
        place(world, "world")?;
        let attached = attach_counted(None).map_err(Context::report_not_attached)?;
        let made = (*attached).world().inspect_err(|_| {
            // The first failure is the one to report.
            let _ = detach_counted(attached);
        })?;
        store(context, attached, "context")?;
        create_handle(world, "world", || Ok(made))
    }

    extern "C" fn outboard_detach(context: *mut Context) {
        borrow(context, "context")?.check_not_forked()?;
        detach_counted(context)
    }

    extern "C" fn outboard_group_offer(context: *mut Context, offer: *mut c_void) {
        place(offer, "offer")?;
        let bytes = borrow(context, "context")?.offer()?;
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), offer.cast(), OFFER_BYTES);
        Ok(())
    }

    extern "C" fn outboard_group_create(
        context: *mut Context, offers: *const c_void, ranks: u32, rank: u32, group: *mut *mut Group
    ) {
        create_handle(group, "group", || {
            place(offers.cast_mut(), "offers")?;
            let offers = std::slice::from_raw_parts(offers.cast::<u8>(), ranks as usize * OFFER_BYTES);
            borrow(context, "context")?.create_group(offers, ranks, rank)
        })
    }

    extern "C" fn outboard_group_world(context: *mut Context, group: *mut *mut Group) {
        create_handle(group, "group", || borrow(context, "context")?.world())
    }

    extern "C" fn outboard_group_destroy(group: *mut Group) {
        // In a child the handle stays, to be rejected again.
        borrow(group, "group")?.rank()?;
        Box::from_raw(group).destroy()
    }

    extern "C" fn outboard_group_rank(group: *const Group, rank: *mut u32) {
        store(rank, borrow(group, "group")?.rank()?, "rank")
    }

    extern "C" fn outboard_group_size(group: *const Group, ranks: *mut u32) {
        store(ranks, borrow(group, "group")?.size()?, "ranks")
    }

    extern "C" fn outboard_group_reduction_most(group: *const Group, bytes: *mut u64) {
        let group = borrow(group, "group")?;
        group.rank()?;
        store(bytes, group.reduction_most(), "bytes")
    }

    extern "C" fn outboard_group_deadline(group: *mut Group, seconds: f64) {
        borrow(group, "group")?.set_deadline(deadline("seconds", seconds)?)
    }
}

/// A list with an entry for each of `ranks`.
///
/// # Safety
/// `list` is NULL or has an entry for each of `ranks`.
unsafe fn list<'a>(list: *const u64, ranks: u32, argument: &'static str) -> Result<&'a [u64], Error> {
    place(list.cast_mut(), argument)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(list, ranks as usize) })
}

/// A list that C passes, and its name in the header.
type NamedList = (*const u64, &'static str);

/// The blocks of all `ranks`.
///
/// # Safety
/// Both lists are NULL or have an entry for each of `ranks`.
unsafe fn block_list<'a>(ranks: u32, bytes: NamedList, offsets: NamedList) -> Result<BlockList<'a>, Error> {
    // SAFETY: the caller's promise.
    let [bytes, offsets] = [bytes, offsets].map(|(entries, name)| unsafe { list(entries, ranks, name) });
    Ok(BlockList { bytes: bytes?, offsets: offsets? })
}

/// The blocks of all ranks, which only the root passes.
///
/// # Safety
/// On the root the lists are NULL or have an entry for every rank, as the header requires.
unsafe fn blocks<'a>(
    group: &Group,
    root: u32,
    bytes: NamedList,
    offsets: NamedList,
) -> Result<Option<BlockList<'a>>, Error> {
    if group.rank()? != root {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { block_list(group.size()?, bytes, offsets) }.map(Some)
}

posts! {
    extern "C" fn outboard_ibarrier() => |group| group.ibarrier();
    extern "C" fn outboard_iallgather(send: *const c_void, receive: *mut c_void, bytes_per_rank: u64) => |group| {
        group.iallgather(contribution(send), receive.cast(), bytes_per_rank)
    };
    extern "C" fn outboard_ibroadcast(buffer: *mut c_void, bytes: u64, root: u32) => |group| {
        group.ibroadcast(root, buffer.cast(), bytes)
    };
    extern "C" fn outboard_iallgatherv(
        send: *const c_void, receive: *mut c_void, bytes: *const u64, offsets: *const u64
    ) => |group| {
        let received = block_list(group.size()?, (bytes, "bytes"), (offsets, "offsets"))?;
        group.iallgatherv(contribution(send), receive.cast(), received)
    };
    extern "C" fn outboard_ialltoall(send: *const c_void, receive: *mut c_void, bytes_per_pair: u64) => |group| {
        group.ialltoall(send.cast(), receive.cast(), bytes_per_pair)
    };
    extern "C" fn outboard_ialltoallv(
        send: *const c_void, send_bytes: *const u64, send_offsets: *const u64,
        receive: *mut c_void, receive_bytes: *const u64, receive_offsets: *const u64
    ) => |group| {
        let ranks = group.size()?;
        let sent = block_list(ranks, (send_bytes, "send_bytes"), (send_offsets, "send_offsets"))?;
        let offsets = (receive_offsets, "receive_offsets");
        let received = block_list(ranks, (receive_bytes, "receive_bytes"), offsets)?;
        group.ialltoallv(send.cast(), sent, receive.cast(), received)
    };
    extern "C" fn outboard_igather(
        send: *const c_void, receive: *mut c_void, bytes_per_rank: u64, root: u32
    ) => |group| {
        group.igather(root, contribution(send), receive.cast(), bytes_per_rank)
    };
    extern "C" fn outboard_iscatter(
        send: *const c_void, receive: *mut c_void, bytes_per_rank: u64, root: u32
    ) => |group| {
        group.iscatter(root, send.cast(), destination(receive), bytes_per_rank)
    };
    extern "C" fn outboard_igatherv(
        send: *const c_void, send_bytes: u64,
        receive: *mut c_void, receive_bytes: *const u64, receive_offsets: *const u64, root: u32
    ) => |group| {
        let received = blocks(group, root, (receive_bytes, "receive_bytes"), (receive_offsets, "receive_offsets"))?;
        group.igatherv(root, contribution(send), send_bytes, receive.cast(), received)
    };
    extern "C" fn outboard_iscatterv(
        send: *const c_void, send_bytes: *const u64, send_offsets: *const u64,
        receive: *mut c_void, receive_bytes: u64, root: u32
    ) => |group| {
        let sent = blocks(group, root, (send_bytes, "send_bytes"), (send_offsets, "send_offsets"))?;
        group.iscatterv(root, send.cast(), sent, destination(receive), receive_bytes)
    };
}

functions! {
    extern "C" fn outboard_test(request: *mut Request, done: *mut c_int) {
        place(done, "done")?;
        let result = borrow_mut(request, "request")?.test();
        store(done, result.is_some().into(), "done")?;
        result.unwrap_or(Ok(()))
    }

    extern "C" fn outboard_wait(request: *mut Request, timeout_ms: c_int, done: *mut c_int) {
        if timeout_ms >= 0 {
            place(done, "done")?;
        }
        let result = borrow_mut(request, "request")?.wait(limit(timeout_ms));
        if !done.is_null() {
            store(done, result.is_some().into(), "done")?;
        }
        result.unwrap_or(Ok(()))
    }

    extern "C" fn outboard_wait_some(requests: *const *mut Request, count: usize, timeout_ms: c_int) {
        wait_some(&pending(requests, count)?, limit(timeout_ms))
    }

    extern "C" fn outboard_wait_some_us(requests: *const *mut Request, count: usize, timeout_us: c_int) {
        wait_some(&pending(requests, count)?, u64::try_from(timeout_us).ok().map(Duration::from_micros))
    }

    extern "C" fn outboard_request_free(request: *mut Request) {
        borrow(request, "request")?.check_not_forked()?;
        drop(Box::from_raw(request));
        Ok(())
    }

    extern "C" fn outboard_alloc(context: *mut Context, bytes: usize, memory: *mut *mut c_void) {
        place(memory, "memory")?;
        store(memory, borrow(context, "context")?.allocate(bytes)?.as_ptr().cast(), "memory")
    }

    extern "C" fn outboard_dealloc(context: *mut Context, memory: *mut c_void) {
        borrow(context, "context")?.deallocate(memory.cast())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_memory_tier(context: *const Context) -> *const c_char {
    // SAFETY: as the header requires.
    let tier = unsafe { context.as_ref() }.map_or(Tier::Staging, Context::memory_tier);
    let name = match tier {
        Tier::Memfd => c"memfd",
        Tier::CrossMemory => c"cross-memory attach",
        Tier::MemoryDescriptor => c"memory descriptor",
        Tier::Staging => c"staging",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn outboard_strerror(code: c_int) -> *const c_char {
    let known = MEANINGS.iter().find(|(known, _)| *known == code);
    known.map_or(c"unknown code", |(_, meaning)| meaning).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn outboard_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_text() {
        assert_eq!(enter(|| panic!("slot {}", 7)), Status::Internal.code());
        // SAFETY: a C string of this thread, which makes no further failing call meanwhile.
        let text = unsafe { CStr::from_ptr(outboard_last_error()) }.to_str().unwrap();
        assert!(text.contains("slot 7"), "{text}");
    }

    #[test]
    fn every_code_has_a_meaning() {
        let meaning = |code| {
            // SAFETY: a C string that lives as long as the process.
            unsafe { CStr::from_ptr(outboard_strerror(code)) }.to_str().unwrap()
        };
        for status in Status::ALL {
            assert_eq!(meaning(status.code()), status.meaning());
        }
        assert_eq!(meaning(-1000), "unknown code");
    }
}
