//! The functions of `outboard.h`, which documents them; here only what C needs on top of the Rust interface.
//!
//! Invariants: no panic crosses (it becomes OUTBOARD_ERR_INTERNAL); every failure leaves its sentence in the calling
//! thread; handles are boxes that C holds by pointer, and a NULL one is an argument error.
#![allow(clippy::missing_safety_doc, reason = "the contract of each function is in outboard.h")]

use crate::context::{Context, lock};
use crate::error::Error;
use crate::group::{BlockList, Contribution, Destination, Group, deadline};
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
use std::sync::{LazyLock, Mutex, TryLockError};
use std::time::Duration;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// The process's one attachment and how often it was asked for.
struct Attached {
    context: *mut Context,
    count: usize,
    guard: ForkGuard,
}

// SAFETY: the pointer is to a `Context`, which is shared between threads.
unsafe impl Send for Attached {}

static ATTACHED: Mutex<Option<Attached>> = Mutex::new(None);

static MEANINGS: LazyLock<Vec<(c_int, CString)>> = LazyLock::new(|| {
    let sentence = |status: Status| (status.code(), text_for_c(status.meaning()));
    Status::ALL.into_iter().map(sentence).collect()
});

fn text_for_c(text: &str) -> CString {
    let bytes = text.bytes().filter(|byte| *byte != 0).collect::<Vec<_>>();
    CString::new(bytes).unwrap_or_default()
}

fn remember(error: &Error) -> c_int {
    // A thread that is being torn down has nobody left to read the sentence.
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
        Err(error) => remember(&error),
    }
}

fn null(argument: &'static str) -> Error {
    Error::argument(argument, "is NULL")
}

/// # Safety
/// `pointer` is NULL or valid for reads, as the header asks.
unsafe fn borrow<'a, T>(pointer: *const T, argument: &'static str) -> Result<&'a T, Error> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(argument))
}

/// # Safety
/// `pointer` is NULL or valid for reads and writes and not used by others meanwhile, as the header asks.
unsafe fn borrow_mut<'a, T>(pointer: *mut T, argument: &'static str) -> Result<&'a mut T, Error> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(argument))
}

/// Stores a result where C wants it, which may be uninitialised.
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

/// Refuses NULL before anything happens that could not be undone.
fn place<T>(place: *mut T, argument: &'static str) -> Result<(), Error> {
    if place.is_null() { Err(null(argument)) } else { Ok(()) }
}

/// OUTBOARD_IN_PLACE.
fn is_in_place(buffer: *const c_void) -> bool {
    buffer.addr() == usize::MAX
}

fn contribution(send: *const c_void) -> Contribution {
    if is_in_place(send) { Contribution::InPlace } else { Contribution::At(send.cast()) }
}

fn destination(receive: *mut c_void) -> Destination {
    if is_in_place(receive) { Destination::InPlace } else { Destination::At(receive.cast()) }
}

/// Posts and hands the request out.
///
/// # Safety
/// `group` and `request` are as the header asks.
unsafe fn post(
    group: *mut Group,
    request: *mut *mut Request,
    post: impl FnOnce(&Group) -> Result<Request, Error>,
) -> c_int {
    enter(|| {
        place(request, "request")?;
        // SAFETY: the caller's promise.
        let posted = post(unsafe { borrow(group, "group") }?)?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(request, Box::into_raw(Box::new(posted)), "request") }
    })
}

/// Functions that say whether a group offloads something; none offloads nothing.
macro_rules! offloads {
    ($(extern $abi:literal fn $name:ident($($bytes:ident)?) => $asked:ident;)+) => {
        $(#[unsafe(no_mangle)]
        unsafe extern $abi fn $name(group: *const Group $(, $bytes: u64)?) -> c_int {
            // SAFETY: NULL or a group, as the header asks.
            unsafe { group.as_ref() }.is_some_and(|group| group.$asked($($bytes)?)).into()
        })+
    };
}

offloads! {
    extern "C" fn outboard_group_offloads_allgather(bytes_per_rank) => offloads_allgather;
    extern "C" fn outboard_group_offloads_broadcast(bytes) => offloads_broadcast;
    extern "C" fn outboard_group_offloads_allgatherv(total_bytes) => offloads_allgatherv;
    extern "C" fn outboard_group_offloads_alltoall(bytes_per_pair) => offloads_alltoall;
    extern "C" fn outboard_group_offloads_alltoallv() => offloads_alltoallv;
    extern "C" fn outboard_group_offloads_gather(bytes_per_rank) => offloads_gather;
    extern "C" fn outboard_group_offloads_barrier() => offloads_barrier;
    extern "C" fn outboard_group_offloads_reduction(bytes) => offloads_reduction;
}

/// Functions that post on a group, with the arguments between group and request.
macro_rules! posts {
    ($(extern $abi:literal fn $name:ident($($argument:ident: $type:ty),*) => |$group:ident| $post:expr;)+) => {
        $(#[unsafe(no_mangle)]
        unsafe extern $abi fn $name(group: *mut Group, $($argument: $type,)* request: *mut *mut Request) -> c_int {
            // SAFETY: as the header asks, of the handles, the lists and the buffers.
            unsafe { crate::c_interface::post(group, request, |$group| $post) }
        })+
    };
}

mod reductions;
mod tagged;

fn limit(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// Runs `body` on the process's attachment. A child forked while its parent was attaching finds the lock taken for
/// ever and is told so.
fn with_attached<T>(body: impl FnOnce(&mut Option<Attached>) -> Result<T, Error>) -> Result<T, Error> {
    let mut attached = match ATTACHED.try_lock() {
        Ok(attached) => attached,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) if MAIN_GUARD.as_ref().is_some_and(ForkGuard::forked) => {
            return Err(Error::Forked);
        }
        Err(TryLockError::WouldBlock) => lock(&ATTACHED),
    };
    if attached.as_ref().is_some_and(|attached| attached.guard.forked()) {
        // The parent's; its handle stays valid for being refused.
        std::mem::forget(attached.take());
    }
    body(&mut attached)
}

/// Made by the first attach, before it takes the lock.
static MAIN_GUARD: LazyLock<Option<ForkGuard>> = LazyLock::new(|| ForkGuard::new().ok());

/// Attaches, or counts once more where this process is attached.
fn attach_counted(path: Option<&Path>) -> Result<*mut Context, Error> {
    LazyLock::force(&MAIN_GUARD);
    with_attached(|attached| {
        if let Some(attached) = attached {
            attached.count += 1;
            return Ok(attached.context);
        }
        let guard =
            ForkGuard::new().map_err(|errno| Error::Resource(format!("cannot guard against forks: {errno}")))?;
        let context = Box::into_raw(Box::new(Context::attach(path)?));
        *attached = Some(Attached { context, count: 1, guard });
        Ok(context)
    })
}

/// Takes one count back; the last one ends the attachment.
fn detach_counted(context: *mut Context) -> Result<(), Error> {
    with_attached(|place| {
        let Some(attached) = place.as_mut().filter(|attached| attached.context == context) else {
            return Err(Error::argument("context", "is not attached"));
        };
        if attached.count > 1 {
            attached.count -= 1;
            return Ok(());
        }
        // SAFETY: the box that attach made, as just compared.
        unsafe { &*context }.detachable()?;
        *place = None;
        // SAFETY: as above; nobody else has it any more.
        unsafe { Box::from_raw(context) }.detach()
    })
}

#[unsafe(no_mangle)]
extern "C" fn outboard_abi_version() -> c_int {
    crate::ABI_VERSION as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_attach(socket_path: *const c_char, context: *mut *mut Context) -> c_int {
    enter(|| {
        place(context, "context")?;
        let path = if socket_path.is_null() {
            None
        } else {
            // SAFETY: a C string, as the header asks.
            Some(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(socket_path) }.to_bytes())))
        };
        let attached = attach_counted(path)?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(context, attached, "context") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_init(context: *mut *mut Context, world: *mut *mut Group) -> c_int {
    enter(|| {
        place(context, "context")?;
        place(world, "world")?;
        let attached = attach_counted(None)?;
        // SAFETY: what attaching just gave.
        let made = match unsafe { &*attached }.world() {
            Ok(made) => made,
            Err(error) => {
                // The first failure is the one to tell.
                let _ = detach_counted(attached);
                return Err(error);
            }
        };
        // SAFETY: not NULL, as checked above.
        unsafe { store(context, attached, "context") }?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(world, Box::into_raw(Box::new(made)), "world") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_detach(context: *mut Context) -> c_int {
    enter(|| {
        // SAFETY: as the header asks.
        unsafe { borrow(context, "context") }?.owned()?;
        detach_counted(context)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_offer(context: *mut Context, offer: *mut c_void) -> c_int {
    enter(|| {
        place(offer, "offer")?;
        // SAFETY: as the header asks.
        let bytes = unsafe { borrow(context, "context") }?.offer()?;
        // SAFETY: room for an offer, as the header asks.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), offer.cast(), OFFER_BYTES) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_create(
    context: *mut Context,
    offers: *const c_void,
    ranks: u32,
    rank: u32,
    group: *mut *mut Group,
) -> c_int {
    enter(|| {
        place(group, "group")?;
        place(offers.cast_mut(), "offers")?;
        // SAFETY: an offer for each rank, as the header asks.
        let offers = unsafe { std::slice::from_raw_parts(offers.cast::<u8>(), ranks as usize * OFFER_BYTES) };
        // SAFETY: as the header asks.
        let made = unsafe { borrow(context, "context") }?.create_group(offers, ranks, rank)?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(group, Box::into_raw(Box::new(made)), "group") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_world(context: *mut Context, group: *mut *mut Group) -> c_int {
    enter(|| {
        place(group, "group")?;
        // SAFETY: as the header asks.
        let made = unsafe { borrow(context, "context") }?.world()?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(group, Box::into_raw(Box::new(made)), "group") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_destroy(group: *mut Group) -> c_int {
    enter(|| {
        // In a child the handle stays, to be refused again.
        // SAFETY: as the header asks.
        unsafe { borrow(group, "group") }?.rank()?;
        // SAFETY: a box that creation made, given back by the caller.
        unsafe { Box::from_raw(group) }.destroy()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_rank(group: *const Group, rank: *mut u32) -> c_int {
    // SAFETY: as the header asks.
    enter(|| unsafe { store(rank, borrow(group, "group")?.rank()?, "rank") })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_size(group: *const Group, ranks: *mut u32) -> c_int {
    // SAFETY: as the header asks.
    enter(|| unsafe { store(ranks, borrow(group, "group")?.size()?, "ranks") })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_group_deadline(group: *mut Group, seconds: f64) -> c_int {
    // SAFETY: as the header asks.
    enter(|| unsafe { borrow(group, "group")?.set_deadline(deadline("seconds", seconds)?) })
}

/// A list with an entry for each of `ranks`.
///
/// # Safety
/// `list` is NULL or has so many entries.
unsafe fn list<'a>(list: *const u64, ranks: u32, argument: &'static str) -> Result<&'a [u64], Error> {
    place(list.cast_mut(), argument)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(list, ranks as usize) })
}

/// A list that C passes, and its name in the header.
type Named = (*const u64, &'static str);

/// The blocks of all `ranks`.
///
/// # Safety
/// Both lists are NULL or have so many entries.
unsafe fn block_list<'a>(ranks: u32, bytes: Named, offsets: Named) -> Result<BlockList<'a>, Error> {
    // SAFETY: the caller's promise.
    let [bytes, offsets] = [bytes, offsets].map(|(entries, name)| unsafe { list(entries, ranks, name) });
    Ok(BlockList { bytes: bytes?, offsets: offsets? })
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
        group.ialltoallv((send.cast(), sent), (receive.cast(), received))
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
        group.igatherv(root, (contribution(send), send_bytes), (receive.cast(), received))
    };
    extern "C" fn outboard_iscatterv(
        send: *const c_void, send_bytes: *const u64, send_offsets: *const u64,
        receive: *mut c_void, receive_bytes: u64, root: u32
    ) => |group| {
        let sent = blocks(group, root, (send_bytes, "send_bytes"), (send_offsets, "send_offsets"))?;
        group.iscatterv(root, (send.cast(), sent), (destination(receive), receive_bytes))
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_test(request: *mut Request, done: *mut c_int) -> c_int {
    enter(|| {
        place(done, "done")?;
        // SAFETY: as the header asks.
        let result = unsafe { borrow_mut(request, "request") }?.test();
        // SAFETY: not NULL, as checked above.
        unsafe { store(done, result.is_some().into(), "done") }?;
        result.unwrap_or(Ok(()))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_wait(request: *mut Request, timeout_ms: c_int, done: *mut c_int) -> c_int {
    enter(|| {
        if timeout_ms >= 0 {
            place(done, "done")?;
        }
        // SAFETY: as the header asks.
        let result = unsafe { borrow_mut(request, "request") }?.wait(limit(timeout_ms));
        if !done.is_null() {
            // SAFETY: not NULL.
            unsafe { store(done, result.is_some().into(), "done") }?;
        }
        result.unwrap_or(Ok(()))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_wait_some(requests: *const *mut Request, count: usize, timeout_ms: c_int) -> c_int {
    enter(|| {
        if count == 0 {
            return Ok(());
        }
        place(requests.cast_mut(), "requests")?;
        // SAFETY: `count` handles, as the header asks.
        let handles = unsafe { std::slice::from_raw_parts(requests, count) };
        // SAFETY: handles in use by this thread alone, as the header asks; NULL ones are skipped.
        let pending: Vec<&Request> = handles.iter().filter_map(|handle| unsafe { handle.as_ref() }).collect();
        wait_some(&pending, limit(timeout_ms))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_request_free(request: *mut Request) -> c_int {
    enter(|| {
        // SAFETY: as the header asks.
        unsafe { borrow(request, "request") }?.owned()?;
        // SAFETY: a box that posting made, given back by the caller.
        drop(unsafe { Box::from_raw(request) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_alloc(context: *mut Context, bytes: usize, memory: *mut *mut c_void) -> c_int {
    enter(|| {
        place(memory, "memory")?;
        // SAFETY: as the header asks.
        let start = unsafe { borrow(context, "context") }?.allocate(bytes)?;
        // SAFETY: not NULL, as checked above.
        unsafe { store(memory, start.as_ptr().cast(), "memory") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_dealloc(context: *mut Context, memory: *mut c_void) -> c_int {
    // SAFETY: as the header asks, of the handle and of the memory.
    enter(|| unsafe { borrow(context, "context")?.deallocate(memory.cast()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outboard_memory_tier(context: *const Context) -> *const c_char {
    // SAFETY: as the header asks.
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
        // SAFETY: a C string of this thread, which fails no further call meanwhile.
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
