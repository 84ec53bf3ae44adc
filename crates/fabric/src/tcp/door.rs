//! Where peers knock: a TCP port, and for service processes of the same host a Unix socket.
//!
//! The Unix socket lies in the abstract namespace, which is that of the host's network, under a name that follows from
//! the address: nobody knows it before it is taken. Whoever takes the name of a service process of another host, which
//! is free here, runs as the same user or the superuser, or is not dialled: nobody else can keep peers apart.
//!
//! Invariant: sockets never block. Whoever connects has proven nothing, by either door.

use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::tcp::SILENCE;
use crate::tcp::address::Address;

/// Connections that the kernel keeps for us.
const BACKLOG: i32 = 1024;
const NEW: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A listening socket.
pub(super) enum Door {
    Tcp(TcpListener),
    Sibling(OwnedFd),
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Door::Tcp(listener) => listener.as_fd(),
            Door::Sibling(listener) => listener.as_fd(),
        }
    }
}

impl Door {
    /// A port of this address that the kernel chooses.
    pub(super) fn tcp(at: std::net::Ipv4Addr) -> std::io::Result<(Door, SocketAddrV4)> {
        let listener = TcpListener::bind((at, 0))?;
        listener.set_nonblocking(true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let SocketAddr::V4(socket) = listener.local_addr()? else { unreachable!("bound to an IPv4 address") };
        Ok((Door::Tcp(listener), socket))
    }

    /// That for siblings of whoever has this address.
    pub(super) fn sibling(address: &Address) -> Result<Door, Errno> {
        let listener = unix()?;
        rustix::net::bind(&listener, &name(address)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Door::Sibling(listener))
    }

    pub(super) fn accept(&self) -> Result<Socket, Errno> {
        let accepted = rustix::net::accept_with(self, NEW)?;
        Ok(match self {
            Door::Tcp(_) => Socket::tcp(accepted)?,
            Door::Sibling(_) => Socket::Sibling(accepted),
        })
    }
}

/// A connection to a peer.
pub(super) enum Socket {
    Tcp(TcpStream),
    Sibling(OwnedFd),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Sibling(socket) => socket.as_fd(),
        }
    }
}

impl Socket {
    /// Messages wait for nothing, and a peer that is cut off is not waited for longer than its service process is: the
    /// kernel would try again less and less often, and not at once when packets flow again.
    fn tcp(socket: OwnedFd) -> Result<Socket, Errno> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_tcp_user_timeout(&socket, SILENCE.as_millis() as u32)?;
        Ok(Socket::Tcp(socket.into()))
    }

    /// Begins to connect, by the Unix socket where there is one.
    pub(super) fn dial(to: &Address, siblings: bool) -> Result<Socket, Errno> {
        if let Some(socket) = siblings.then(|| dial_sibling(to)).and_then(Result::ok).flatten() {
            return Ok(Socket::Sibling(socket));
        }
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, NEW, None)?;
        match rustix::net::connect(&socket, &to.socket) {
            Ok(()) | Err(Errno::INPROGRESS) => Socket::tcp(socket),
            Err(errno) => Err(errno),
        }
    }

    /// The other end, for the log.
    pub(super) fn from(&self) -> String {
        match self {
            Socket::Tcp(socket) => {
                socket.peer_addr().map_or_else(|error| error.to_string(), |address: SocketAddr| address.to_string())
            }
            Socket::Sibling(_) => "this host".to_owned(),
        }
    }
}

fn unix() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, NEW, None)
}

fn name(address: &Address) -> Result<SocketAddrUnix, Errno> {
    let hex: String = address.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddrUnix::new_abstract_name(format!("outboard/{hex}").as_bytes())
}

/// Connects to a sibling; none where another user listens.
fn dial_sibling(to: &Address) -> Result<Option<OwnedFd>, Errno> {
    let socket = unix()?;
    rustix::net::connect(&socket, &name(to)?)?;
    let listener = sockopt::socket_peercred(&socket)?.uid;
    let trusted = listener == rustix::process::geteuid() || listener.is_root();
    Ok(trusted.then_some(socket))
}
