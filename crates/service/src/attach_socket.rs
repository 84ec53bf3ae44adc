//! The socket at which ranks attach: a socket passed by a service manager, or a new one at the path of the settings or
//! in the user's runtime directory.
//!
//! Invariant: a directory that the daemon makes for its socket belongs to the user and is closed to all others.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use outboard_shm::attach;
use rustix::net::SocketType;

use crate::settings::Settings;
use crate::socket::{NamedSocket, SocketError};

/// Opens the socket of a service process or relay with these settings. `passed` is the socket of a service manager.
///
/// # Errors
/// If the socket cannot be opened; the file system then stays as it was.
pub fn attach_socket(settings: &Settings, passed: Option<OwnedFd>) -> Result<NamedSocket, SocketError> {
    if let Some(passed) = passed {
        return NamedSocket::passed(passed);
    }
    if let Some(path) = &settings.socket {
        if path.as_os_str().as_encoded_bytes().contains(&b':') {
            return Err(SocketError::List(path.clone()));
        }
        return NamedSocket::listen(path, SocketType::SEQPACKET);
    }
    let path = attach::user_socket();
    let directory = path.parent().expect("below the runtime directory");
    check(&attach::runtime_directory())?;
    let made = match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
        Err(error) => return Err(unusable(format!("cannot make {}: {error}", directory.display()))),
    };
    check(directory)?;
    NamedSocket::listen(&path, SocketType::SEQPACKET).inspect_err(|_| {
        if made {
            // `remove_dir` fails, as it should, if another daemon has put its socket into the directory meanwhile.
            let _ = std::fs::remove_dir(directory);
        }
    })
}

fn unusable(what: String) -> SocketError {
    SocketError::NoRuntimeDirectory(what)
}

/// Checks that `directory` is owned by this user and closed to all others.
fn check(directory: &Path) -> Result<(), SocketError> {
    let name = directory.display();
    let found = match std::fs::symlink_metadata(directory) {
        Ok(found) => found,
        Err(error) => return Err(unusable(format!("cannot use the directory {name}: {error}"))),
    };
    let (own, mode) = (rustix::process::geteuid().as_raw(), found.mode() & 0o7777);
    if !found.is_dir() {
        Err(unusable(format!("{name} is no directory")))
    } else if found.uid() != own {
        Err(unusable(format!("the directory {name} belongs to user {}, and not to user {own}", found.uid())))
    } else if mode & 0o077 != 0 {
        Err(unusable(format!("the directory {name} has mode {mode:o}, which lets other users in")))
    } else {
        Ok(())
    }
}
