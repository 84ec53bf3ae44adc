//! What a forked child sees: its memory as it was at the fork, private from then on.
//!
//! A private mapping of the memfd would show the parent's later writes. So whoever forks copies what the range holds,
//! before the fork, to where the child finds it; the child puts the copy into the range's place, and the parent takes
//! its own back. What other threads of the parent write meanwhile may be in the copy, in parts or not at all.
//! posix_spawn, system, popen and vfork run no handlers, and their children become another program.
//!
//! | the forking thread | has |
//! |---|---|
//! | before the fork | made the copy, after jemalloc's handler has locked jemalloc |
//! | as the parent | given the copy back, before jemalloc's handler |
//! | as the child | the copy in the range's place, and neither memfd nor new allocations from the range |
//!
//! Handlers of others may use the heap: ours are registered before those of all other libraries (the library is loaded
//! as the first to be initialized), so that ours run last before the fork and first behind it.

use std::cell::Cell;

use crate::range::{self, Copied};
use crate::{plain, state};

thread_local! {
    /// The copy of the fork under way in this thread.
    static COPY: Cell<Option<Copied>> = const { Cell::new(None) };
}

/// Before all other initializers of this library, jemalloc's among them.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
    plain::find();
    // SAFETY: the handlers stay as long as the library does, which nothing unloads.
    if unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } != 0 {
        // A child would have no memory.
        state::close();
    }
}

extern "C" fn prepare() {
    let here = 0u8;
    if range::holds((&raw const here).cast()) {
        // Parent and child would run on one stack.
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
