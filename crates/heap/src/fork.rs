//! A forked child's view of the heap: its content at the fork, private from then on.
//!
//! A private mapping of the memfd would show the parent's later writes. So the forking process copies the content of
//! the range before the fork, to memory that the child inherits. The child moves the copy to the range's addresses; the
//! parent frees its own. Concurrent writes of other parent threads may be in the copy, in part or not at all.
//! posix_spawn, system, popen and vfork run no handlers, and their children become another program.
//!
//! | the forking thread | has done |
//! |---|---|
//! | before the fork | made the copy, after jemalloc's handler has locked jemalloc |
//! | as the parent | freed the copy, before jemalloc's handler |
//! | as the child | moved the copy to the range's addresses, dropped the memfd, and closed the heap to allocations |
//!
//! Handlers of other libraries may use the heap. This library is initialized first and so registers its handlers first.
//! They therefore run last before the fork and first after it.

use std::cell::Cell;

use crate::range::{self, Copied};
use crate::{plain, state};

thread_local! {
    /// The copy for the fork in progress in this thread.
    static COPY: Cell<Option<Copied>> = const { Cell::new(None) };
}

/// Runs before all other initializers of this library, including jemalloc's.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
    plain::find();
    // SAFETY: the handlers stay as long as the library, which is never unloaded.
    if unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } != 0 {
        // Without handlers a child would have no memory, so the heap stays closed.
        state::close();
    }
}

extern "C" fn prepare() {
    let here = 0u8;
    if range::holds((&raw const here).cast()) {
        // Parent and child would share one stack.
        state::say("fork() on a stack that malloc gave, in shared memory; run the program with OUTBOARD_HEAP=off");
        std::process::abort();
    }
    if !range::is_shared() {
        return;
    }
    let without = |why: &dyn std::fmt::Display| {
        state::say(format_args!("a forked child has none of its parent's shared memory: {why}"));
    };
    match range::shared().map(|shared| shared.copy()) {
        Some(Ok((copy, 0))) => COPY.set(Some(copy)),
        Some(Ok((copy, _))) => {
            COPY.set(Some(copy));
            state::forked();
        }
        Some(Err(errno)) => without(&errno),
        None => without(&"the program has closed the heap's descriptor"),
    }
}

extern "C" fn parent() {
    if let Some(copy) = COPY.take() {
        copy.discard();
    }
}

extern "C" fn child() {
    if !range::is_shared() {
        return;
    }
    state::close();
    if let Err(errno) = range::become_private(COPY.take()) {
        state::say(format_args!("a forked child cannot have its parent's memory: {errno}"));
        std::process::abort();
    }
}
