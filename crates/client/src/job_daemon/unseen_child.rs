//! Runs a program to its end without a child that the calling process could notice: no SIGCHLD comes, and no wait of
//! the calling program returns the child.
//!
//! ```text
//!  caller --clone, no exit signal--> process in between --posix_spawn--> program
//! ```
//!
//! A child without exit signal is returned only to a wait with `__WCLONE`. Executing a program would give the child
//! SIGCHLD as exit signal, so the process in between executes none. It shares the caller's memory, like a child of
//! vfork, so nothing is copied and memory registered with a network card stays as it is.
//!
//! Invariant: the calling thread stands still with all signals blocked while the process in between lives, and no
//! memory is allocated there.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

const STACK_BYTES: usize = 256 << 10;
/// Exit code of the process in between if the program failed. Smaller codes but 0 are error numbers of the start.
const FAILED: c_int = 255;
const NOWHERE: &CStr = c"/dev/null";

/// Arguments of posix_spawnp, for the process in between.
struct Start {
    program: *const c_char,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    /// The process that starts the program.
    caller: libc::pid_t,
}

/// Runs `program`, as the search path finds it, without the variables `without` and with its standard error in `log`.
/// Returns whether the program succeeded. If this process ignores SIGCHLD, the kernel keeps no status, and success is
/// assumed.
pub(super) fn run(program: &Path, arguments: &[&OsStr], without: &[&str], log: &File) -> io::Result<bool> {
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
    let words = std::iter::once(program.as_os_str()).chain(arguments.iter().copied());
    let words = words.map(text).collect::<io::Result<Vec<_>>>()?;
    let kept = std::env::vars_os().filter(|(name, _)| without.iter().all(|other| name != other));
    let assignment = |(mut name, value): (std::ffi::OsString, std::ffi::OsString)| {
        name.push("=");
        name.push(value);
        text(&name)
    };
    let environment = kept.map(assignment).collect::<io::Result<Vec<_>>>()?;
    let (arguments, environment) = (pointers(&words), pointers(&environment));
    let mut actions = MaybeUninit::uninit();
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: both objects are initialised before use and destroyed once; all pointers outlive the calls.
    unsafe {
        check(libc::posix_spawn_file_actions_init(actions.as_mut_ptr()))?;
        check(libc::posix_spawnattr_init(attributes.as_mut_ptr()))?;
        let prepared = prepare(actions.as_mut_ptr(), attributes.as_mut_ptr(), log);
        let start = Start {
            program: words[0].as_ptr(),
            arguments: arguments.as_ptr(),
            environment: environment.as_ptr(),
            actions: actions.as_ptr(),
            attributes: attributes.as_ptr(),
            caller: libc::getpid(),
        };
        let outcome = prepared.and_then(|()| with_signals_blocked(|| by_process_in_between(&start)));
        libc::posix_spawnattr_destroy(attributes.as_mut_ptr());
        libc::posix_spawn_file_actions_destroy(actions.as_mut_ptr());
        outcome
    }
}

/// A list of C strings, ended by a null pointer.
fn pointers(texts: &[CString]) -> Vec<*mut c_char> {
    texts.iter().map(|text| text.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
}

fn check(error: c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Sets the program's standard streams, and gives it an empty signal mask and the default SIGCHLD and SIGPIPE.
///
/// # Safety
/// Both objects are initialised.
unsafe fn prepare(
    actions: *mut libc::posix_spawn_file_actions_t,
    attributes: *mut libc::posix_spawnattr_t,
    log: &File,
) -> io::Result<()> {
    let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
    let mut none = MaybeUninit::uninit();
    let mut default = MaybeUninit::uninit();
    // SAFETY: the caller vouches for the objects; sigemptyset initialises the sets before use.
    unsafe {
        for (descriptor, access) in [(0, libc::O_RDONLY), (1, libc::O_WRONLY)] {
            check(libc::posix_spawn_file_actions_addopen(actions, descriptor, NOWHERE.as_ptr(), access, 0))?;
        }
        check(libc::posix_spawn_file_actions_adddup2(actions, log.as_raw_fd(), 2))?;
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigemptyset(default.as_mut_ptr());
        libc::sigaddset(default.as_mut_ptr(), libc::SIGCHLD);
        libc::sigaddset(default.as_mut_ptr(), libc::SIGPIPE);
        check(libc::posix_spawnattr_setsigmask(attributes, none.as_ptr()))?;
        check(libc::posix_spawnattr_setsigdefault(attributes, default.as_ptr()))?;
        check(libc::posix_spawnattr_setflags(attributes, flags as libc::c_short))
    }
}

/// A handler of the caller would run on the caller's memory in the process in between, too.
fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset and the first call initialise the sets before use. The calls fail for invalid arguments alone.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        result
    }
}

fn by_process_in_between(start: &Start) -> io::Result<bool> {
    let mut stack: Vec<u128> = vec![0; STACK_BYTES / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    let start = ptr::from_ref(start).cast_mut().cast::<c_void>();
    // SAFETY: the stack and `start` outlive the process, since this thread stands still until the process has ended
    // (CLONE_VFORK). The stack grows down from its aligned end.
    let process = unsafe { libc::clone(in_between, top, libc::CLONE_VM | libc::CLONE_VFORK, start) };
    if process < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut status = 0;
    // SAFETY: the status is a valid place for the result.
    while unsafe { libc::waitpid(process, &raw mut status, libc::__WCLONE) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    if !libc::WIFEXITED(status) {
        return Err(io::Error::other("the process that starts it was killed"));
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(true),
        FAILED => Ok(false),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Starts the program, waits for its end, and returns the exit code of the process in between. The process ends with
/// its caller, since it keeps the caller's files, and so the lock of a job's directory.
extern "C" fn in_between(start: *mut c_void) -> c_int {
    let mut program = 0;
    let mut status = 0;
    // SAFETY: the caller of clone passes a `Start` whose pointers are valid until this process ends. posix_spawnp and
    // waitpid allocate no memory of the shared heap.
    unsafe {
        let start = &*start.cast::<Start>();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != start.caller {
            return FAILED;
        }
        let (arguments, environment) = (start.arguments, start.environment);
        let error = libc::posix_spawnp(
            &raw mut program,
            start.program,
            start.actions,
            start.attributes,
            arguments,
            environment,
        );
        if error != 0 {
            return error;
        }
        // All signals are blocked, so an error means that the kernel has kept no status.
        if libc::waitpid(program, &raw mut status, 0) == program && status != 0 { FAILED } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static SIGNALS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: c_int) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }

    /// One test, because the handler of SIGCHLD belongs to the whole process.
    #[test]
    fn a_program_runs_to_its_end_and_the_caller_has_no_child_and_no_signal() {
        let handler = count as extern "C" fn(c_int) as libc::sighandler_t;
        // SAFETY: the handler only counts.
        let before = unsafe { libc::signal(libc::SIGCHLD, handler) };
        let log = tempfile::tempfile().expect("a file");
        let shell = |script: &str| {
            let words = ["-c", script].map(OsStr::new);
            run(Path::new("sh"), &words, &["CARGO_MANIFEST_DIR"], &log)
        };
        assert!(shell("test -z \"$CARGO_MANIFEST_DIR\" && test -n \"$PATH\"").expect("started"));
        assert!(!shell("exit 3").expect("started"));
        assert!(!shell("kill -KILL $$").expect("started"));
        let missing = run(Path::new("/nowhere/outboardd"), &[], &[], &log);
        assert_eq!(missing.expect_err("no such file").kind(), io::ErrorKind::NotFound);
        assert_eq!(SIGNALS.load(Ordering::Relaxed), 0);
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) }, -1, "no child is left");
        // SAFETY: the disposition is that from before the test; the second is one of the system's own.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        assert!(shell("exit 3").expect("started"), "the kernel keeps no status");
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGCHLD, before) };
    }
}
