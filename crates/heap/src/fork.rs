//! A forked child's view of the heap: its content at the fork, private from then on.
//!
//! A private mapping of the memfd would show the parent's later writes. So the forking process copies the content of
//! the range before the fork, to memory that the child inherits. The child moves the copy to the range's addresses; the
//! parent frees its copy. Concurrent writes of other parent threads may be in the copy, in part or not at all.
//! posix_spawn, system, popen and vfork run no handlers, and their children become another program.
//!
//! | the forking thread | has done |
//! |---|---|
//! | before the fork | made the copy, after jemalloc's handler has locked jemalloc |
//! | as the parent | freed the copy, before jemalloc's handler |
//! | as the child | moved the copy to the range's addresses, dropped the memfd, and closed the heap to allocations |
//!
//! Handlers of other libraries may use the heap. This library is initialized first and so registers its handlers first.
//! This library's handlers therefore run last before the fork and first after it.

use std::cell::Cell;

use crate::range::{self, RangeCopy};
use crate::{libc_allocator, state};

thread_local! {
    /// The copy for the fork in progress in this thread.
    static COPY: Cell<Option<RangeCopy>> = const { Cell::new(None) };
}

/// Runs before all other initializers of this library, including jemalloc's.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
    libc_allocator::resolve_usable_size();
    // SAFETY: the handlers stay as long as the library, which is never unloaded.
    if unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) } != 0 {
        // Without handlers a child would have no memory, so the heap stays closed.
        state::close();
    }
}

extern "C" fn before_fork() {
    let here = 0u8;
    if range::contains((&raw const here).cast()) {
        // Parent and child would share one stack.
        state::print_line(
            "fork() on a stack that malloc gave, in shared memory; run the program with OUTBOARD_HEAP=off",
        );
        std::process::abort();
    }
    if !range::is_shared() {
        return;
    }
    let print_reason = |why: &dyn std::fmt::Display| {
        state::print_line(format_args!("a forked child has none of its parent's shared memory: {why}"));
    };
    match range::shared().map(|shared| shared.copy()) {
        Some(Ok((copy, 0))) => COPY.set(Some(copy)),
        Some(Ok((copy, _))) => {
            COPY.set(Some(copy));
            state::count_fork();
        }
        Some(Err(errno)) => print_reason(&errno),
        None => print_reason(&"the program has closed the heap's descriptor"),
    }
}

extern "C" fn after_fork_in_parent() {
    if let Some(copy) = COPY.take() {
        copy.discard();
    }
}

extern "C" fn after_fork_in_child() {
    if !range::is_shared() {
        return;
    }
    state::close();
    if let Err(errno) = range::become_private(COPY.take()) {
        state::print_line(format_args!("a forked child cannot have its parent's memory: {errno}"));
        std::process::abort();
    }
}
