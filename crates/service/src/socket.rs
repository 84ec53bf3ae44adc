//! Unix sockets with a name. A socket file is replaced if its daemon is dead, is left alone if its daemon lives, and is
//! removed when its daemon ends.
//!
//! Two daemons that start at once must not mistake each other's new file for a stale one. So a daemon takes a lock on a
//! file beside the socket (`NAME.lock`). Only the user of the daemon can open the lock file, so no other user can hold
//! the lock. The lock file exists only while a socket is made.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outboard_shm::lock::LockError;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Length of the accept queue.
const BACKLOG: i32 = 128;

/// The longest path of a socket: `sockaddr_un` holds this many bytes before the terminating zero.
const MOST_BYTES: usize = 107;

/// Time to wait for the lock, which another daemon of this user may hold.
const LOCKED: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("{by} listens at {path} already; end it, or give another path by --socket")]
    Live { path: PathBuf, by: String },
    #[error("the path {0} is too long for a socket, which takes {MOST_BYTES} bytes; give a shorter one by --socket")]
    TooLong(PathBuf),
    #[error("`{0}` names several sockets; give this daemon one of them by --socket")]
    List(PathBuf),
    #[error("{0}; set XDG_RUNTIME_DIR to a directory of this user alone, or give another path by --socket")]
    NoRuntimeDirectory(String),
    #[error(
        "the descriptor passed by the service manager is no listening Unix socket of type SEQPACKET; have the \
             .socket unit say ListenSequentialPacket="
    )]
    Passed,
    #[error("{0} is no file of this user alone; remove it, or give a path in a directory that nobody else writes to")]
    Occupied(PathBuf),
    #[error("another daemon holds {0}; end it, or give another path")]
    Locked(PathBuf),
    #[error("cannot {what} {path}: {errno}; give a path in a directory that exists and that you may write to")]
    Kernel { what: &'static str, path: PathBuf, errno: Errno },
}

/// A listening socket. Dropping it removes the socket's file if this process has made the file.
#[derive(Debug)]
pub struct NamedSocket {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file that this process has made.
    made: Option<(u64, u64)>,
    /// A descriptor that is closed for a moment to accept a connection when no other descriptor is left.
    spare: Option<OwnedFd>,
}

impl NamedSocket {
    /// Listens at `path` for processes of this user.
    pub fn listen(path: &Path, kind: SocketType) -> Result<NamedSocket, SocketError> {
        let kernel = |what| move |errno| SocketError::Kernel { what, path: path.to_owned(), errno };
        let address = match SocketAddrUnix::new(path) {
            Err(Errno::NAMETOOLONG) => return Err(SocketError::TooLong(path.to_owned())),
            address => address.map_err(kernel("name"))?,
        };
        let _lock = SocketLock::take(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).map_err(kernel("open"));
        let probe = socket()?;
        match rustix::net::connect(&probe, &address) {
            Err(Errno::NOENT) => {}
            Err(Errno::CONNREFUSED) => {
                let file = rustix::fs::lstat(path).map_err(kernel("look at"))?;
                if !rustix::fs::FileType::from_raw_mode(file.st_mode).is_socket() {
                    return Err(kernel("replace what is no socket at")(Errno::EXIST));
                }
                rustix::fs::unlink(path).map_err(kernel("replace"))?;
            }
            Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
                return Err(SocketError::Live { path: path.to_owned(), by: listener(&probe) });
            }
            Err(errno) => return Err(kernel("probe")(errno)),
        }
        let fd = socket()?;
        rustix::net::bind(&fd, &address).map_err(kernel("bind"))?;
        let made = rustix::fs::lstat(path).map_err(kernel("look at"))?;
        let made = Some((made.st_dev, made.st_ino));
        let socket = NamedSocket { fd, path: path.to_owned(), made, spare: spare() };
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(kernel("set the mode of"))?;
        rustix::net::listen(&socket.fd, BACKLOG).map_err(kernel("listen at"))?;
        Ok(socket)
    }

    /// Takes over a listening socket of the service manager. The socket's file stays when the socket is dropped.
    pub fn passed(fd: OwnedFd) -> Result<NamedSocket, SocketError> {
        let unix = sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX);
        let kind = sockopt::socket_type(&fd) == Ok(SocketType::SEQPACKET);
        if !unix || !kind || sockopt::socket_acceptconn(&fd) != Ok(true) {
            return Err(SocketError::Passed);
        }
        let name = rustix::net::getsockname(&fd).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
        let path = name.and_then(|name| Some(PathBuf::from(OsStr::from_bytes(name.path()?.to_bytes()))));
        let path = path.unwrap_or_default();
        rustix::io::ioctl_fionbio(&fd, true)
            // `listen` is called again, because the kernel reports the last process that called it to ranks as the
            // listener.
            .and_then(|()| rustix::net::listen(&fd, BACKLOG))
            .map_err(|errno| SocketError::Kernel { what: "listen at", path: path.clone(), errno })?;
        Ok(NamedSocket { fd, path, made: None, spare: spare() })
    }

    /// Path of the socket; empty if the service manager has set none.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next waiting connection, if any.
    ///
    /// # Errors
    /// Usually because no descriptor is left.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Accepts the next connection and passes it to `farewell`. This is for exhausted descriptors, when a waiting
    /// connection would wake the conductor again and again.
    pub fn turn_away(&mut self, farewell: impl FnOnce(OwnedFd)) {
        self.spare = None;
        match self.accept() {
            Ok(Some(connection)) => farewell(connection),
            Ok(None) => {}
            Err(errno) => tracing::debug!(%errno, "no connection to turn away"),
        }
        self.spare = spare();
    }
}

/// The process at the other end of a connection, as text for messages.
fn listener(probe: &OwnedFd) -> String {
    let Ok(peer) = sockopt::socket_peercred(probe) else { return "another process".to_owned() };
    let pid = peer.pid.as_raw_nonzero();
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{} (process {pid} of user {})", name.trim(), peer.uid.as_raw()),
        Err(_) => format!("process {pid} of user {}", peer.uid.as_raw()),
    }
}

/// The right to make a socket of this name. Dropping it removes the lock file.
struct SocketLock {
    path: PathBuf,
    /// Holds the lock until the descriptor is closed, after the lock file is removed.
    _file: OwnedFd,
}

impl SocketLock {
    fn take(socket: &Path) -> Result<SocketLock, SocketError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        match outboard_shm::lock::lock(&path, Instant::now() + LOCKED) {
            Ok(file) => Ok(SocketLock { path, _file: file }),
            Err(LockError::Occupied) => Err(SocketError::Occupied(path)),
            Err(LockError::Held) => Err(SocketError::Locked(path)),
            Err(LockError::Kernel(errno)) => Err(SocketError::Kernel { what: "lock", path, errno }),
        }
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        if let Err(errno) = rustix::fs::unlink(&self.path) {
            tracing::warn!(path = %self.path.display(), %errno, "cannot remove the lock");
        }
    }
}

fn spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

impl AsFd for NamedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for NamedSocket {
    fn drop(&mut self) {
        // Another daemon may have replaced the file meanwhile, and its file must stay.
        let ours = |made| rustix::fs::lstat(&self.path).is_ok_and(|file| (file.st_dev, file.st_ino) == made);
        if self.made.is_some_and(ours)
            && let Err(errno) = rustix::fs::unlink(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %errno, "cannot remove the socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::fs::PermissionsExt;

    fn listen(path: &Path, kind: SocketType) -> Result<NamedSocket, SocketError> {
        NamedSocket::listen(path, kind)
    }

    #[test]
    fn a_dead_daemons_socket_is_replaced_and_a_live_ones_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let first = listen(&path, SocketType::SEQPACKET).expect("free");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused = listen(&path, SocketType::SEQPACKET).expect_err("a live one").to_string();
        assert!(refused.contains(&format!("process {} of user", std::process::id())), "{refused}");
        assert!(matches!(listen(&path, SocketType::STREAM), Err(SocketError::Live { .. })));
        // A killed daemon leaves its socket file without a listener.
        let (fd, identity) = (first.fd.try_clone().expect("descriptor"), first.made);
        std::mem::forget(first);
        drop(fd);
        assert!(matches!(listen(&path, SocketType::SEQPACKET), Err(SocketError::Live { .. })));
        std::fs::remove_file(&path).expect("there");
        let stale = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("socket");
        rustix::net::bind(&stale, &SocketAddrUnix::new(&path).expect("short")).expect("free");
        drop(stale);
        let second = listen(&path, SocketType::SEQPACKET).expect("the stale file is replaced");
        assert_ne!(second.made, identity);
        drop(second);
        assert!(!path.exists());
    }

    /// Any user who may read a directory may lock the directory, so the lock is a file.
    #[test]
    fn nobody_else_holds_up_a_daemon_or_takes_its_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let held = std::fs::File::open(directory.path()).expect("a directory");
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("free");
        drop(listen(&path, SocketType::SEQPACKET).expect("the directory's lock is nobody's business"));
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0, "nothing stays");
        let lock = directory.path().join("socket.lock");
        let occupied = || {
            let refused = listen(&path, SocketType::SEQPACKET).expect_err("occupied");
            assert!(matches!(refused, SocketError::Occupied(_)), "{refused}");
            assert!(refused.to_string().contains("socket.lock"), "{refused}");
        };
        let precious = directory.path().join("precious");
        std::os::unix::fs::symlink(&precious, &lock).expect("fresh");
        occupied();
        assert!(!precious.exists(), "links are not followed");
        std::fs::remove_file(&lock).expect("there");
        std::fs::write(&lock, "").expect("fresh");
        std::fs::set_permissions(&lock, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("ours");
        occupied();
        std::fs::remove_file(&lock).expect("there");
        std::fs::create_dir(&lock).expect("fresh");
        occupied();
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused_and_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let refused = listen(&directory.path().join("s".repeat(120)), SocketType::SEQPACKET).expect_err("too long");
        assert!(refused.to_string().contains("takes 107 bytes"), "{refused}");
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_passed_socket_keeps_its_file_and_other_descriptors_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let own = listen(&path, SocketType::SEQPACKET).expect("free");
        let passed = NamedSocket::passed(own.fd.try_clone().expect("descriptor")).expect("it listens");
        assert_eq!(passed.path(), path);
        drop(passed);
        assert!(path.exists());
        let stream = listen(&directory.path().join("stream"), SocketType::STREAM).expect("free");
        let deaf = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("socket");
        let network = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").into();
        let file = std::fs::File::open("/dev/null").expect("there").into();
        for wrong in [stream.fd.try_clone().expect("descriptor"), deaf, network, file] {
            assert!(matches!(NamedSocket::passed(wrong), Err(SocketError::Passed)));
        }
    }

    #[test]
    fn other_files_are_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "precious").expect("written");
        assert!(listen(&path, SocketType::SEQPACKET).is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "precious");
        assert!(listen(&directory.path().join("no/such"), SocketType::SEQPACKET).is_err());
    }
}
