//! Messages between the processes of a lab: one JSON value per packet of a Unix `SOCK_SEQPACKET` socket, with file
//! descriptors attached.
//!
//! Both ends are the same program, so the format has no version. [`MAX_PACKET`] bounds a message; larger data (a
//! program's environment) travels in a memory file.

use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::{LabSpec, PortCounters, SetupFailure};

/// Largest packet: well below the kernel's default socket buffer, well above the counters of 250 hosts.
const MAX_PACKET: usize = 128 * 1024;
/// Most file descriptors attached to one packet: a program's request and its three standard streams.
const MAX_FDS: usize = 4;

/// Requests of the owner or any client to the switch process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SwitchRequest {
    /// First message on the lifeline: build this lab.
    Build(LabSpec),
    /// Keep the lab alive after the end of its lifeline.
    Detach,
    /// Report the lab's shape and processes.
    Describe,
    /// Report the counters of every port.
    Counters,
    /// End one host and its DPU, as a crash of its machine would.
    Crash(u16),
    /// End the lab.
    End,
}

/// Replies of the switch process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SwitchReply {
    /// Reply to `Build` and `Describe`.
    Up { spec: LabSpec, hosts: Vec<i32> },
    /// Reply to `Build`.
    Failed(SetupFailure),
    /// Reply to `Counters`.
    Counters(LinkCounters),
    /// Reply to `Detach` and `Crash`; the end of the connection answers `End`.
    Done,
    /// Reply to any request that failed.
    Refused(String),
}

/// The counters of all links, each in the order of hosts.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LinkCounters {
    /// Links to the switch.
    pub(crate) switch: Vec<PortCounters>,
    /// Links from host to DPU; empty without DPUs.
    pub(crate) pcie: Vec<PortCounters>,
}

/// Orders of the switch process to a host process while the lab is built.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HostOrder {
    /// Configure the host's link, which exists now.
    Configure,
}

/// Reports of a host process to the switch process while the lab is built.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HostReport {
    /// The host is up. A routing socket of its network namespace is attached. The numbers are the indices of its
    /// interfaces.
    Ready { eth0: i32, pcie0: Option<i32> },
    /// The host cannot be built.
    Failed(SetupFailure),
}

/// A program to run inside a host; travels in a memory file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExecRequest {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: PathBuf,
}

/// Requests of a client to a host's agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AgentRequest {
    /// Run the program in the attached memory file with the three attached standard streams.
    Exec,
    /// Signal the program of this connection.
    Signal(i32),
}

/// Replies of a host's agent to a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AgentReply {
    /// The program ended with this wait status.
    Exited(i32),
    /// The program could not be started.
    Failed(String),
}

/// A pair of connected message sockets.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A socket that listens at `path`.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// A connection to the socket at `path`.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Waits until some descriptors are readable or closed; returns which.
pub(crate) fn await_some<'a>(fds: impl Iterator<Item = &'a OwnedFd>) -> io::Result<Vec<bool>> {
    let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
    Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
}

/// Sends one message with file descriptors attached.
pub(crate) fn send<T: Serialize>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let packet = serde_json::to_vec(message)?;
    if packet.len() > MAX_PACKET {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message too large"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many file descriptors"));
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives one message and the attached file descriptors; `None` when the other end is closed.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut packet = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let fds = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    Ok(Some((serde_json::from_slice(&packet[..received.bytes])?, fds)))
}

/// Receives one message; the end of the connection is an error.
pub(crate) fn expect<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<T> {
    match receive(socket)? {
        Some((message, _)) => Ok(message),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
