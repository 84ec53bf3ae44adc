//! The hidden commands by which a program becomes a process of a lab.
//!
//! Namespaces are entered before any thread exists: that is why a lab's processes are fresh executions, and why the
//! hook stands first in `main`.

use crate::{exec, switch};
use std::ffi::OsString;

/// Become a lab's switch process; standard input is the lifeline.
pub(crate) const SWITCH_VERB: &str = "__lab-switch";
/// `SOCKET PROGRAM ARGS..`: run a program inside the host whose agent listens at SOCKET.
pub(crate) const EXEC_VERB: &str = "__lab-exec";
/// `[OPTIONS] HOST WORDS..`: the same called like ssh, for MPI launchers.
pub(crate) const SHELL_VERB: &str = "__lab-rsh";

/// Turns this process into a process of a lab if it was started as one; returns otherwise.
///
/// Must be the first call in `main` of every program that starts labs, while the process has a single thread.
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

/// Whether this process was started as a switch process: then it must not start another lab, but call the hook.
pub(crate) fn hook_was_missed() -> bool {
    std::env::args_os().nth(1).is_some_and(|verb| verb == SWITCH_VERB)
}
