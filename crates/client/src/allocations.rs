//! Memory that the program has allocated from this library, and what a forked child has of it.
//!
//! The memory is shared with the service process, or plain where a limit of the program leaves no room for shared
//! memory. A child of `fork` finds at each address a private copy of the content at the fork. A private mapping of the
//! memfd would show later writes, so the forking thread copies the content before the fork, to memory that the child
//! inherits.
//!
//! | the forking thread | has done |
//! |---|---|
//! | before the fork | locked the list, copied the content of each live allocation |
//! | as the parent | freed the copies |
//! | as the child | moved each copy to its allocation's addresses, emptied the list |
//!
//! posix_spawn, system, popen and vfork run no handlers, and their children become another program. A child of a bare
//! `clone` runs none either: an access to the memory ends it by a signal. Writes of other parent threads during the fork
//! may be in the copy, in part or not at all.
//!
//! Invariant: only allocations of the program are copied, and of them only pages that hold data. Memory for staging
//! never is.

use crate::lock::lock;
use outboard_shm::plain::{FileContent, PlainMemory};
use outboard_shm::region::MemfdRegion;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The shared allocations of this process, by address.
static SHARED: Mutex<BTreeMap<usize, ForkSource>> = Mutex::new(BTreeMap::new());

/// Memory that was allocated for the program.
#[derive(Debug)]
pub(crate) enum Allocation {
    Shared(SharedAllocation),
    Plain(PlainMemory),
}

/// A shared allocation, which children get copies of.
#[derive(Debug)]
pub(crate) struct SharedAllocation(MemfdRegion);

/// The content of an allocation.
#[derive(Debug)]
struct ForkSource {
    start: NonNull<u8>,
    content: FileContent,
}

// SAFETY: the address is a plain number until the copy moves there.
unsafe impl Send for ForkSource {}

impl SharedAllocation {
    /// Announces the region to the handlers of fork. Returns the region if there can be no handlers: a child would lack
    /// the memory.
    pub(crate) fn new(region: MemfdRegion) -> Result<SharedAllocation, MemfdRegion> {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        let register = || {
            // SAFETY: the handlers are functions of this library, and libc removes them when the library is unloaded.
            unsafe {
                libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) == 0
            }
        };
        let Some(content) = region.content().filter(|_| *REGISTERED.get_or_init(register)) else { return Err(region) };
        let start = region.start();
        lock(&SHARED).insert(start.as_ptr().addr(), ForkSource { start, content });
        Ok(SharedAllocation(region))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The region, when the program has given the memory back.
    pub(crate) fn into_region(self) -> MemfdRegion {
        lock(&SHARED).remove(&self.0.start().as_ptr().addr());
        self.0
    }
}

impl Allocation {
    pub(crate) fn start(&self) -> NonNull<u8> {
        match self {
            Allocation::Shared(shared) => shared.0.start(),
            Allocation::Plain(plain) => plain.start(),
        }
    }

    /// Leaves the memory to the program, for good. Children still get copies, so the descriptor stays open.
    pub(crate) fn leave_mapped(self) {
        match self {
            Allocation::Shared(shared) => std::mem::forget(shared),
            Allocation::Plain(plain) => plain.leave_mapped(),
        }
    }
}

/// A fork in progress: the locked list, and the copies.
struct ForkInProgress {
    list: MutexGuard<'static, BTreeMap<usize, ForkSource>>,
    copies: Vec<(NonNull<u8>, PlainMemory)>,
}

thread_local! {
    static FORK: RefCell<Option<ForkInProgress>> = const { RefCell::new(None) };
}

/// Prints a line without a lock, which another thread may have held at the fork.
fn print_line(what: std::fmt::Arguments<'_>) {
    // If standard error is closed, the line is lost.
    let _ = rustix::io::write(rustix::stdio::stderr(), format!("outboard: {what}\n").as_bytes());
}

extern "C" fn before_fork() {
    let list = lock(&SHARED);
    let mut copies = Vec::with_capacity(list.len());
    for ForkSource { start, content } in list.values() {
        match content.copy() {
            Ok(copy) => copies.push((*start, copy)),
            Err(why) => print_line(format_args!("a forked child lacks the memory at {start:p} of its parent: {why}")),
        }
    }
    FORK.set(Some(ForkInProgress { list, copies }));
}

extern "C" fn after_fork_in_parent() {
    drop(FORK.take());
}

extern "C" fn after_fork_in_child() {
    let Some(ForkInProgress { mut list, copies }) = FORK.take() else { return };
    list.clear();
    for (start, copy) in copies {
        // SAFETY: the child does not inherit the allocation, so nothing is mapped there; this code runs first.
        if let Err(errno) = unsafe { copy.move_to(start) } {
            print_line(format_args!("a forked child cannot have the memory at {start:p} of its parent: {errno}"));
        }
    }
}
