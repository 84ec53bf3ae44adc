//! The hidden commands by which a program becomes a process of a lab.
//!
//! A process must enter namespaces before it has threads. So every lab process is a new execution of the program, whose
//! `main` begins with [`holder_main_if_requested`].

use crate::{exec, switch};
use std::ffi::OsString;

/// Becomes a lab's switch process; standard input is the lifeline.
pub(crate) const SWITCH_VERB: &str = "__lab-switch";
/// `SOCKET PROGRAM ARGS..`: runs a program inside the host whose agent listens at SOCKET.
pub(crate) const EXEC_VERB: &str = "__lab-exec";
/// `[OPTIONS] HOST WORDS..`: runs a command line inside a host with ssh's syntax, for MPI launchers.
pub(crate) const SHELL_VERB: &str = "__lab-rsh";

/// Turns this process into a process of a lab if it was started as one; otherwise returns.
///
/// Must be the first call in `main` of every program that starts labs, while the process has one thread.
pub fn holder_main_if_requested() {
    let mut args = std::env::args_os().skip(1);
    let Some(verb) = args.next() else { return };
    let rest: Vec<OsString> = args.collect();
    match verb.to_str() {
        Some(SWITCH_VERB) => switch::main(),
        Some(EXEC_VERB) => exec::client_main(&rest),
        Some(SHELL_VERB) => exec::shell_main(&rest),
        _ => {}
    }
}

/// Whether this process was started as a switch process. Such a process must call [`holder_main_if_requested`], not
/// start another lab.
pub(crate) fn hook_was_missed() -> bool {
    std::env::args_os().nth(1).is_some_and(|verb| verb == SWITCH_VERB)
}
