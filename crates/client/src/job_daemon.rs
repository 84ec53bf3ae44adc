//! The embedded default: if neither the job nor its user has a service process, the first rank starts one for the job
//! on this host.
//!
//! All files lie in the directory `outboard-USER-JOB` below the directory of temporary files. If that directory has a
//! path too long for sockets, is missing or cannot be written to, all ranks use `/tmp`, then `/dev/shm`. With several
//! service processes on the host (`OUTBOARD_SERVICE_PROCESSES`, SP-8) each has a directory with its number appended:
//!
//! | file | content |
//! |---|---|
//! | `lock` | held by a rank that searches for a service process, starts one, or cleans up |
//! | `socket` | where ranks attach; if two service processes start, the one that binds it wins |
//! | `stats` | the statistics, for `outboard top` |
//! | `log` | the output of the service process |
//!
//! The service process ends with its last rank (`--exit-when-idle`) and removes all files (`--job-directory`). A rank
//! that finds it ending starts the next.
//!
//! Invariants: a socket named by the user is never replaced. Every wait ends. A directory of another user, or one that
//! other users may enter, is never used, so no other user holds its lock. The rank never has a child that its program
//! could notice, and its death ends nothing but its own attachment.

mod unseen_child;

use crate::bootstrap::environment;
use crate::error::{Error, this_host};
use crate::service_processes;
use outboard_shm::attach::{AttachChannel, user_socket};
use outboard_shm::lock::LockError;
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use std::ffi::{CStr, OsStr, c_void};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Variable: whether ranks start service processes, `auto` or `off`.
const CHOICE: &str = "OUTBOARD_DAEMON";
const PROGRAM: &str = "OUTBOARD_OUTBOARDD";
const LOCK: &str = "lock";
const SOCKET: &str = "socket";
const LOG: &str = "log";
const STATISTICS: &str = "stats";
/// Variable: another statistics socket, which the service process reads.
const STATISTICS_VARIABLE: &str = "OUTBOARD_STATS";
/// Variables that are meant for the rank alone.
const RANKS_VARIABLES: [&str; 3] = ["LD_PRELOAD", "OUTBOARD_READY_FD", "OUTBOARD_DIE_WITH_PARENT"];
/// Variable: the network interface of the job's service processes.
const INTERFACE: &str = "OUTBOARD_INTERFACE";
/// The longest path of a directory whose sockets have paths short enough for the kernel (107 bytes).
const LONGEST_PARENT: usize = 55;
/// The most time in which a rank looks for a service process, starts one, and looks again.
const LIMIT: Duration = Duration::from_secs(30);
/// Pause between two checks of a state that another process is about to change.
const PAUSE: Duration = Duration::from_millis(5);
/// The bytes of the log's end that an error quotes.
const EXCERPT: usize = 400;

/// Whether a rank may start a service process; values other than `auto` and `off` are errors.
pub(crate) fn is_enabled() -> Result<bool, Error> {
    match environment::process(CHOICE).as_deref() {
        None | Some("auto") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => {
            let problem = format!("is `{other}`; set it to auto or off");
            Err(Error::Environment { variable: CHOICE.to_owned(), problem })
        }
    }
}

/// Attaches by `attach` to the job's service process, else to the user's, else to one that this rank starts for the
/// job.
pub(crate) fn attach<T>(attach: impl Fn(&Path) -> Result<T, Error>) -> Result<T, Error> {
    let job = environment::job(&environment::process)?;
    let (number, siblings) = service_processes::index_and_count()?;
    let directory = JobDirectory::of_job(job, number, siblings);
    let deadline = Instant::now() + LIMIT;
    loop {
        directory.check()?;
        match attach(&directory.socket()) {
            // There is no service process, or it is just ending.
            Err(Error::NoService { .. } | Error::ServiceLost { .. }) if Instant::now() < deadline => {}
            other => return other,
        }
        match attach(&user_socket()) {
            Err(Error::NoService { .. } | Error::NotPermitted { .. }) => {}
            other => return other,
        }
        if directory.start(deadline)? == StartOutcome::Retry {
            std::thread::sleep(PAUSE);
        }
    }
}

/// The log of the job's service process at `socket`, if the process died without cleaning up.
pub(crate) fn log_beside(socket: &Path) -> Option<PathBuf> {
    let log = socket.with_file_name(LOG);
    (socket.ends_with(SOCKET) && log.exists()).then_some(log)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartOutcome {
    Started,
    /// Another process is starting or ending a service process: look again.
    Retry,
}

struct JobDirectory {
    directory: PathBuf,
    siblings: u32,
}

impl JobDirectory {
    /// The directory of service process `number` of `siblings` on this host.
    fn of_job(job: u64, number: u32, siblings: u32) -> JobDirectory {
        let user = rustix::process::geteuid().as_raw();
        let which = if siblings > 1 { format!(".{number}") } else { String::new() };
        let directory = parent().join(format!("outboard-{user}-{job:016x}{which}"));
        JobDirectory { directory, siblings }
    }

    fn parent(&self) -> &Path {
        self.directory.parent().expect("the directory has a parent")
    }

    fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    fn log(&self) -> PathBuf {
        self.directory.join(LOG)
    }

    fn failure(&self, reason: impl Into<String>) -> Error {
        let mut reason = reason.into();
        // The file that did not fit may be gone by now, so the disk may have room again.
        if self.disk_is_full() || reason.contains("No space left on device") {
            reason += &format!("; no room is left in {}: make some, or set TMPDIR", self.parent().display());
        }
        Error::JobDaemon { reason, log: self.log() }
    }

    /// Whether the file system of the directory is full: failed operations do not always report that.
    fn disk_is_full(&self) -> bool {
        // File systems without a fixed number of files report 0 free files.
        let full = |found: rustix::fs::StatVfs| found.f_bavail == 0 || (found.f_files > 0 && found.f_favail == 0);
        rustix::fs::statvfs(self.parent()).is_ok_and(full)
    }

    /// Removes the directory in which no service process could be started. Ranks that wait for the lock begin again.
    fn remove_directory(&self) {
        let _ = std::fs::remove_file(self.directory.join(LOCK));
        // Fails harmlessly if another process put a file there.
        let _ = std::fs::remove_dir(&self.directory);
    }

    fn start(&self, deadline: Instant) -> Result<StartOutcome, Error> {
        check_interface()?;
        self.make_directory()?;
        let Some(_lock) = self.lock(deadline)? else { return Ok(StartOutcome::Retry) };
        if AttachChannel::connect(&self.socket()).is_ok() {
            return Ok(StartOutcome::Retry);
        }
        let log = File::options().create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(self.log());
        let log = match log {
            Ok(log) => log,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StartOutcome::Retry),
            Err(error) => {
                let failure = self.failure(format!("cannot open its log: {error}"));
                self.remove_directory();
                return Err(failure);
            }
        };
        let program = program();
        let (socket, directory) = (self.socket(), &self.directory);
        let mut arguments: Vec<&OsStr> = ["--background", "--exit-when-idle", "--socket"].map(OsStr::new).into();
        arguments.extend([socket.as_os_str(), OsStr::new("--job-directory"), directory.as_os_str()]);
        if self.siblings > 1 && environment::process(INTERFACE).is_none() {
            // Several service processes need a network even on a single host.
            arguments.extend(service_processes::SINGLE_HOST.map(OsStr::new));
        }
        let statistics = self.directory.join(STATISTICS);
        if environment::process(STATISTICS_VARIABLE).is_none() {
            arguments.extend([OsStr::new("--stats"), statistics.as_os_str()]);
        }
        match unseen_child::run(&program, &arguments, &RANKS_VARIABLES, &log) {
            // The next attach shows the outcome.
            Ok(true) => Ok(StartOutcome::Started),
            Ok(false) => Err(self.failure(format!("{} {}", program.display(), self.last_log_line()))),
            Err(error) => Err(self.failure(format!("cannot run {}: {error}; name it in {PROGRAM}", program.display()))),
        }
    }

    fn last_log_line(&self) -> String {
        let output = std::fs::read(self.log()).unwrap_or_default();
        let end = String::from_utf8_lossy(&output[output.len().saturating_sub(EXCERPT)..]).trim().to_owned();
        match end.lines().last() {
            Some(line) => format!("says: {line}"),
            None => "ended without a word".to_owned(),
        }
    }

    fn make_directory(&self) -> Result<(), Error> {
        match std::fs::DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.failure(format!("cannot make {}: {error}", self.directory.display())));
            }
            Ok(()) | Err(_) => {}
        }
        self.check()
    }

    /// Whether the directory, if it exists, belongs to this user and is closed to others.
    fn check(&self) -> Result<(), Error> {
        let refused = |what: &str| {
            let remedy = "remove it, or set TMPDIR to a directory of your own in all ranks";
            Err(self.failure(format!("{} {what}; {remedy}", self.directory.display())))
        };
        match std::fs::symlink_metadata(&self.directory) {
            Ok(found) if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() => {
                refused("is not a directory of this user")
            }
            Ok(found) if found.mode() & 0o077 != 0 => refused("is open to other users"),
            // The directory is missing; taking the lock notices that.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The lock, or `None` if the directory was removed meanwhile.
    fn lock(&self, deadline: Instant) -> Result<Option<OwnedFd>, Error> {
        let path = self.directory.join(LOCK);
        match outboard_shm::lock::lock(&path, deadline) {
            Ok(lock) => Ok(Some(lock)),
            Err(LockError::Kernel(Errno::NOENT)) => Ok(None),
            Err(error) => {
                let failure = self.failure(format!("cannot lock {}: {error}", path.display()));
                // Fails harmlessly if another process put a file there.
                let _ = std::fs::remove_dir(&self.directory);
                Err(failure)
            }
        }
    }
}

/// The directory in which all ranks of this user on this host have their jobs' directories. Other processes must choose
/// the same one, so the room that is left does not matter.
fn parent() -> PathBuf {
    let temporary = std::env::temp_dir();
    let serves = |directory: &PathBuf| {
        directory.as_os_str().len() <= LONGEST_PARENT
            && directory.is_dir()
            && rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    };
    let others = ["/tmp", "/dev/shm"].map(PathBuf::from);
    std::iter::once(temporary.clone()).chain(others).find(serves).unwrap_or(temporary)
}

/// Fails if the job's service process cannot have the interface that it is to use.
fn check_interface() -> Result<(), Error> {
    let Some(name) = environment::process(INTERFACE) else { return Ok(()) };
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    let found = socket.and_then(|socket| rustix::net::netdevice::name_to_index(&socket, &name));
    // The service process reports all other failures.
    if found == Err(Errno::NODEV) { Err(Error::NoInterface { name, host: this_host() }) } else { Ok(()) }
}

/// The program to start: from the variable, else the one of this library, else from the search path.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os(PROGRAM).filter(|named| !named.is_empty()) {
        return named.into();
    }
    own_file().and_then(|library| beside(&library)).unwrap_or_else(|| "outboardd".into())
}

/// The daemon in the library's folder, as a build leaves it, or in `../bin`, as an installation has it.
fn beside(library: &Path) -> Option<PathBuf> {
    let folder = library.parent()?;
    let places = [Some(folder.join("outboardd")), folder.parent().map(|prefix| prefix.join("bin/outboardd"))];
    places.into_iter().flatten().find(|program| program.is_file())
}

/// The file that holds this code: liboutboard.so, or the program that contains it.
fn own_file() -> Option<PathBuf> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here = own_file as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: the function accepts any address.
    if unsafe { libc::dladdr(here, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string of the dynamic loader, which stays valid while this code is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    name.canonicalize().ok()
}
