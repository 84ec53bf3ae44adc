//! The errors of a rank, as sentences.

use crate::bootstrap::{BootstrapError, EnvironmentError};
use outboard_shm::control::ControlError;
use outboard_shm::memory::OwnFault;
use outboard_shm::region::RegionError;
use outboard_shm::status::Status;
use std::path::{Path, PathBuf};

/// The reason for which a call or a collective failed. [`Error::status`] gives the code of the C interface.
#[allow(missing_docs, reason = "the messages are the documentation")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The caller's argument is wrong.
    #[error("argument `{argument}` {problem}")]
    Argument { argument: &'static str, problem: String },
    /// A needed variable is missing or wrong.
    #[error("environment variable {variable} {problem}")]
    Environment { variable: String, problem: String },
    /// The process is a child of the one that attached.
    #[error("this handle belongs to the parent process; a child attaches anew")]
    Forked,
    /// Something still uses the object.
    #[error("cannot {action}: {count} {what}")]
    Busy { action: &'static str, count: usize, what: &'static str },
    /// No process answers at the socket.
    #[error(
        "no service process answers at {} on host {host}: {reason}; start outboardd there, or name its socket in \
         OUTBOARD_SOCKET", path.display()
    )]
    NoService { path: PathBuf, host: String, reason: String },
    /// The interface of the job's own service process is missing.
    #[error("host {host} has no network interface {name}; set OUTBOARD_INTERFACE to one of `ip link`")]
    NoInterface { name: String, host: String },
    /// A process of another user listens, or the socket is closed to this user.
    #[error(
        "user {user} may not attach at {} on host {host}: {reason}; run outboardd as user {user}, or name its socket in \
         OUTBOARD_SOCKET", path.display()
    )]
    NotPermitted { path: PathBuf, host: String, user: u32, reason: String },
    /// The job's own service process cannot be started.
    #[error(
        "cannot start a service process for this job: {reason}; its log is {}; start outboardd by hand and name its socket \
         in OUTBOARD_SOCKET, or mend the cause", log.display()
    )]
    JobDaemon { reason: String, log: PathBuf },
    /// The releases of library and service process differ.
    #[error("{0}")]
    Version(String),
    /// The service process is gone.
    #[error(
        "the service process of this host (socket {}) ended or closed the connection; its requests cannot complete{}",
        path.display(), log_hint(log.as_deref())
    )]
    ServiceLost { path: PathBuf, log: Option<PathBuf> },
    /// The program itself may not access a buffer that it passed.
    #[error("{0}; pass memory that stays mapped, and writable where received, until the request completes")]
    Memory(String),
    /// A resource is exhausted.
    #[error("{0}")]
    Resource(String),
    /// The service process reported an error of a request or a collective.
    #[error("{text}")]
    Service { status: Status, text: String },
    /// The service process broke the protocol.
    #[error("the service process broke the attach protocol: {0}")]
    Protocol(String),
    /// The ranks did not find each other.
    #[error("{text}")]
    Bootstrap { status: Status, text: String },
    /// A defect of Outboard.
    #[error("defect in Outboard, please report it: {0}")]
    Internal(String),
}

fn log_hint(log: Option<&Path>) -> String {
    log.map_or_else(String::new, |log| format!("; its log is {}", log.display()))
}

pub(crate) fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Error {
    /// The code of the C interface; never [`Status::Ok`].
    pub fn status(&self) -> Status {
        match self {
            Error::Argument { .. } | Error::Environment { .. } => Status::Argument,
            Error::Forked => Status::Forked,
            Error::Busy { .. } => Status::Busy,
            Error::NoService { .. }
            | Error::NoInterface { .. }
            | Error::NotPermitted { .. }
            | Error::JobDaemon { .. } => Status::NoService,
            Error::Version(_) => Status::Version,
            Error::ServiceLost { .. } => Status::ServiceLost,
            Error::Memory(_) => Status::Memory,
            Error::Resource(_) => Status::Resource,
            Error::Service { status, .. } | Error::Bootstrap { status, .. } => *status,
            Error::Protocol(_) => Status::Protocol,
            Error::Internal(_) => Status::Internal,
        }
    }

    /// No process answers at `path` on this host.
    pub(crate) fn no_service(path: &Path, reason: String) -> Error {
        Error::NoService { path: path.to_owned(), host: this_host(), reason }
    }

    /// This user may not attach at `path` on this host.
    pub(crate) fn not_permitted(path: &Path, reason: String) -> Error {
        let user = rustix::process::geteuid().as_raw();
        Error::NotPermitted { path: path.to_owned(), host: this_host(), user, reason }
    }

    pub(crate) fn argument(argument: &'static str, problem: impl Into<String>) -> Error {
        Error::Argument { argument, problem: problem.into() }
    }
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Kernel { .. } | RegionError::FileLimit { .. } => Error::Resource(error.to_string()),
            RegionError::Untrusted(_) | RegionError::Size { .. } => Error::Protocol(error.to_string()),
        }
    }
}

impl From<OwnFault> for Error {
    fn from(fault: OwnFault) -> Self {
        match fault {
            OwnFault::Unwritable { .. } | OwnFault::Unreadable { .. } => Error::Memory(fault.to_string()),
            OwnFault::Refused { .. } => Error::Resource(fault.to_string()),
        }
    }
}

impl From<ControlError> for Error {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Region(error) => error.into(),
            ControlError::Version { .. } => Error::Version(error.to_string()),
            ControlError::Malformed(_) => Error::Protocol(error.to_string()),
            ControlError::Doorbell(_) => Error::Resource(error.to_string()),
        }
    }
}

impl From<EnvironmentError> for Error {
    fn from(EnvironmentError { variable, problem }: EnvironmentError) -> Self {
        Error::Environment { variable, problem }
    }
}

impl From<BootstrapError> for Error {
    fn from(error: BootstrapError) -> Self {
        match error {
            BootstrapError::Blob(problem) => Error::argument("blob", problem),
            BootstrapError::Environment(error) => error.into(),
            BootstrapError::Tcp(_) | BootstrapError::Pmix(_) => {
                Error::Bootstrap { status: error.status(), text: error.to_string() }
            }
        }
    }
}
