//! Listeners: a TCP port, and a Unix socket for service processes of the same host.
//!
//! The Unix socket lies in the abstract namespace of the host's network, under a name derived from the address. Nobody
//! knows the name before the socket is bound. The name of another host's service process is free on this host, so
//! anybody may bind that name. A dialer trusts only listeners of its own user or the superuser, so no other user can
//! keep peers apart.
//!
//! Invariant: sockets never block. A new connection has proven nothing, on either listener.

use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::option::set_option;
use crate::tcp::SILENCE;
use crate::tcp::address::Address;

/// Established connections that the kernel queues for this process.
const BACKLOG: i32 = 1024;
const NEW: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Most bytes by which reading is delayed. With 128 KiB, all-to-alls of 4 MiB on unlimited links take a tenth longer,
/// because copying starts later.
const MOST_AWAITED: usize = 64 << 10;

pub(super) enum Listener {
    Tcp(TcpListener),
    Sibling(OwnedFd),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Sibling(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    /// Listens on a port of this address that the kernel chooses.
    pub(super) fn tcp(at: std::net::Ipv4Addr) -> std::io::Result<(Listener, SocketAddrV4)> {
        let listener = TcpListener::bind((at, 0))?;
        listener.set_nonblocking(true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let SocketAddr::V4(socket) = listener.local_addr()? else { unreachable!("bound to an IPv4 address") };
        Ok((Listener::Tcp(listener), socket))
    }

    /// Listens for siblings that dial `address`.
    pub(super) fn sibling(address: &Address) -> Result<Listener, Errno> {
        let listener = unix()?;
        rustix::net::bind(&listener, &name(address)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Listener::Sibling(listener))
    }

    pub(super) fn accept(&self) -> Result<StreamSocket, Errno> {
        let accepted = rustix::net::accept_with(self, NEW)?;
        Ok(match self {
            Listener::Tcp(_) => StreamSocket::tcp(accepted)?,
            Listener::Sibling(_) => StreamSocket::Sibling(accepted),
        })
    }
}

pub(super) enum StreamSocket {
    /// The second field is the number of bytes that wakes the poller.
    Tcp(TcpStream, usize),
    Sibling(OwnedFd),
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            StreamSocket::Tcp(socket, _) => socket.as_fd(),
            StreamSocket::Sibling(socket) => socket.as_fd(),
        }
    }
}

impl StreamSocket {
    /// Sends messages without delay, and limits the time without acknowledgement to [`SILENCE`]. So a connection to an
    /// unreachable peer ends no later than the peer counts as lost. Without the limit the kernel would retransmit ever
    /// less often, and not at once when packets flow again.
    fn tcp(socket: OwnedFd) -> Result<StreamSocket, Errno> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_tcp_user_timeout(&socket, SILENCE.as_millis() as u32)?;
        Ok(StreamSocket::Tcp(socket.into(), 1))
    }

    /// Starts to connect, through the Unix socket if there is one.
    pub(super) fn dial(to: &Address, siblings: bool) -> Result<StreamSocket, Errno> {
        if let Some(socket) = siblings.then(|| dial_sibling(to)).and_then(Result::ok).flatten() {
            return Ok(StreamSocket::Sibling(socket));
        }
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, NEW, None)?;
        match rustix::net::connect(&socket, &to.socket) {
            Ok(()) | Err(Errno::INPROGRESS) => StreamSocket::tcp(socket),
            Err(errno) => Err(errno),
        }
    }

    /// Makes the poller report the socket once `bytes` bytes wait (at most [`MOST_AWAITED`]), or once the stream has
    /// ended. A long frame then wakes its reader once per [`MOST_AWAITED`] bytes instead of every few packets. That
    /// saves all-to-alls of 1 MiB among four hosts 7 % of the processor time.
    pub(super) fn await_bytes(&mut self, bytes: usize) -> Result<(), Errno> {
        let bytes = bytes.min(MOST_AWAITED);
        if let StreamSocket::Tcp(socket, awaited) = self
            && *awaited != bytes
        {
            set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes as libc::c_int)?;
            *awaited = bytes;
        }
        Ok(())
    }

    /// Makes the close of the socket send a reset, so that the peer learns of unread bytes. A Unix socket sends that
    /// reset by itself.
    pub(super) fn reset(&self) -> Result<(), Errno> {
        match self {
            StreamSocket::Tcp(socket, _) => sockopt::set_socket_linger(socket, Some(Duration::ZERO)),
            StreamSocket::Sibling(_) => Ok(()),
        }
    }

    pub(super) fn from(&self) -> String {
        match self {
            StreamSocket::Tcp(socket, _) => {
                socket.peer_addr().map_or_else(|error| error.to_string(), |address: SocketAddr| address.to_string())
            }
            StreamSocket::Sibling(_) => "this host".to_owned(),
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

/// Connects to a sibling; none if another user listens.
fn dial_sibling(to: &Address) -> Result<Option<OwnedFd>, Errno> {
    let socket = unix()?;
    rustix::net::connect(&socket, &name(to)?)?;
    let listener = sockopt::socket_peercred(&socket)?.uid;
    let trusted = listener == rustix::process::geteuid() || listener.is_root();
    Ok(trusted.then_some(socket))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Whether the poller reports the socket once it holds `bytes` bytes.
    fn is_reported(socket: &StreamSocket, bytes: u64) -> bool {
        while rustix::io::ioctl_fionread(socket).expect("a socket") < bytes {
            std::thread::yield_now();
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&now)).expect("a poll") == 1
    }

    #[test]
    fn the_poller_reports_awaited_bytes_and_the_end() {
        let (listener, at) = Listener::tcp(std::net::Ipv4Addr::LOCALHOST).expect("a door");
        let mut dialler = TcpStream::connect(at).expect("a connection");
        let mut socket = listener.accept().expect("a connection");
        dialler.write_all(&[1; 1000]).expect("room");
        assert!(is_reported(&socket, 1000), "any byte is awaited");
        socket.await_bytes(1001).expect("an option");
        assert!(!is_reported(&socket, 1000));
        dialler.write_all(&[1]).expect("room");
        assert!(is_reported(&socket, 1001));
        socket.await_bytes(usize::MAX).expect("an option");
        assert!(!is_reported(&socket, 1001));
        dialler.write_all(&[1; MOST_AWAITED - 1001]).expect("room");
        assert!(is_reported(&socket, MOST_AWAITED as u64), "no more is awaited");
        rustix::io::read(&socket, &mut [0; MOST_AWAITED][..]).expect("bytes");
        assert!(!is_reported(&socket, 0));
        drop(dialler);
        poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).expect("the end is reported");
        assert_eq!(rustix::io::read(&socket, &mut [0; 1][..]), Ok(0));
    }
}
