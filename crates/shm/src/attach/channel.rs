//! One connection of the attach socket: whole messages with their descriptors, either way.
//!
//! Invariants: sending never blocks; a peer that does not read is an error. A received message carries exactly the
//! descriptors of its kind; other descriptors are closed on arrival. All descriptors are close-on-exec.

use super::message::{AttachDecodeError, AttachMessage, MESSAGE_BYTES};
use outboard_call::codec;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the other process closed the attach socket or ended")]
    Closed,
    #[error(
        "descriptors that came with an attach message could not be taken; raise this process's limit on them (`ulimit -n`)"
    )]
    Descriptors,
    #[error("the other process does not read the attach socket")]
    Backlogged,
    #[error(transparent)]
    Decode(#[from] AttachDecodeError),
    #[error("attach socket: {0}")]
    Kernel(Errno),
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => ChannelError::Closed,
            Errno::AGAIN | Errno::NOBUFS => ChannelError::Backlogged,
            errno => ChannelError::Kernel(errno),
        }
    }
}

/// The process at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The process number; `None` if the process is in a process namespace that is not visible here.
    pub pid: Option<Pid>,
    pub uid: u32,
}

#[derive(Debug)]
pub struct ReceivedMessage<M> {
    pub token: u64,
    pub message: M,
    /// The descriptors of the message's kind.
    pub descriptors: Vec<OwnedFd>,
}

/// A connected attach socket.
#[derive(Debug)]
pub struct AttachChannel(OwnedFd);

impl AttachChannel {
    /// Connects to the service process that listens at `path`.
    ///
    /// # Errors
    /// The kernel's reason, such as `NOENT` or `CONNREFUSED` if no process listens.
    pub fn connect(path: &Path) -> Result<AttachChannel, Errno> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(AttachChannel(socket))
    }

    /// The process at the other end, as the kernel reports it: the process that has connected or that listens.
    pub fn peer(&self) -> Result<PeerCredentials, Errno> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        // SAFETY: `ucred` is valid with any bits. (The kernel reports 0 for a process of a foreign namespace. rustix
        // would turn that 0 into a process number.)
        unsafe { self.option(libc::SO_PEERCRED, &mut found)? };
        Ok(PeerCredentials { pid: Pid::from_raw(found.pid), uid: found.uid })
    }

    /// A descriptor of the process that has connected. The descriptor becomes readable when that process ends, even if
    /// another process holds the socket then, and in whichever namespace the process is. None if the kernel cannot give
    /// one: before Linux 6.5, for a process that is not visible here.
    ///
    /// # Errors
    /// The kernel's reason: the process has ended, or descriptors are exhausted.
    pub fn peer_pidfd(&self) -> Result<Option<OwnedFd>, Errno> {
        let mut found: libc::c_int = -1;
        // SAFETY: any bits make an integer.
        match unsafe { self.option(libc::SO_PEERPIDFD, &mut found) } {
            // SAFETY: the kernel has made this descriptor for the caller.
            Ok(()) => return Ok(Some(unsafe { OwnedFd::from_raw_fd(found) })),
            Err(Errno::NOPROTOOPT) => {}
            Err(errno) => return Err(errno),
        }
        let Some(pid) = self.peer()?.pid else { return Ok(None) };
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // If the connection still exists, the number belonged to the process that has connected.
        if self.hung_up() { Err(Errno::SRCH) } else { Ok(Some(pidfd)) }
    }

    /// Reads an option of the socket from the kernel.
    ///
    /// # Safety
    /// Any bits make a valid `T`.
    unsafe fn option<T>(&self, option: libc::c_int, found: &mut T) -> Result<(), Errno> {
        let mut length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes.
        let answer = unsafe {
            let found = std::ptr::from_mut(found).cast();
            libc::getsockopt(self.as_fd().as_raw_fd(), libc::SOL_SOCKET, option, found, &raw mut length)
        };
        if answer == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    /// Sends a message with its descriptors, whole or not at all; never blocks.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] or [`ChannelError::Backlogged`].
    ///
    /// # Panics
    /// If the number of descriptors does not match the message's kind.
    pub fn send<M: AttachMessage>(
        &self,
        token: u64,
        message: &M,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        assert_eq!(descriptors.len(), message.descriptors(), "descriptors of the message");
        let bytes = message.encode(token);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "room for two descriptors");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next message, or `None` if none has arrived; never blocks.
    ///
    /// # Errors
    /// [`ChannelError`]; after any error the connection is unusable.
    pub fn receive<M: AttachMessage>(&self) -> Result<Option<ReceivedMessage<M>>, ChannelError> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut into = [IoSliceMut::new(&mut bytes)];
        let received = match rustix::net::recvmsg(&self.0, &mut into, &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let mut descriptors = Vec::new();
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        let (token, message) = decode_message(&bytes[..received.bytes], received.flags, descriptors.len())?;
        Ok(Some(ReceivedMessage { token, message, descriptors }))
    }

    /// Sleeps until a message or the end of the connection has arrived, at most `limit`.
    pub fn wait(&self, limit: Duration) -> Result<bool, ChannelError> {
        let mut watched = [PollFd::new(&self.0, PollFlags::IN)];
        let limit = Timespec::try_from(limit).map_err(|_| ChannelError::Kernel(Errno::INVAL))?;
        match poll(&mut watched, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(ChannelError::Kernel(errno)),
        }
    }

    /// Whether the other process has closed its end or ended; messages may be left to receive.
    pub fn hung_up(&self) -> bool {
        let mut watched = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let ended = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        matches!(poll(&mut watched, Some(&Timespec::default())), Ok(1) if watched[0].revents().intersects(ended))
    }
}

/// The token and message in `bytes`; `actual` descriptors came with them.
fn decode_message<M: AttachMessage>(bytes: &[u8], flags: ReturnFlags, actual: usize) -> Result<(u64, M), ChannelError> {
    if flags.contains(ReturnFlags::TRUNC) {
        return Err(AttachDecodeError::from(codec::DecodeError::Trailing).into());
    }
    // Either the message had too many descriptors, which no release sends, or this process has no descriptor left.
    if flags.contains(ReturnFlags::CTRUNC) {
        return Err(ChannelError::Descriptors);
    }
    let (token, message) = M::decode(bytes)?;
    let expected = message.descriptors();
    if expected != actual {
        return Err(AttachDecodeError::Descriptors { expected, actual }.into());
    }
    Ok((token, message))
}

/// One end of a connection that was accepted elsewhere.
impl From<OwnedFd> for AttachChannel {
    fn from(socket: OwnedFd) -> Self {
        AttachChannel(socket)
    }
}

impl AsFd for AttachChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{AttachReply, AttachRequest, Welcome};
    use super::*;
    use crate::control::{RankSide, ServiceSide};
    use crate::memory::Tier;

    fn pair() -> (AttachChannel, AttachChannel) {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (one, two) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        (AttachChannel(one), AttachChannel(two))
    }

    #[test]
    #[cfg_attr(miri, ignore = "passes descriptors between sockets")]
    fn a_welcome_carries_the_control_region() {
        let (service, rank) = pair();
        assert!(rank.receive::<AttachReply>().unwrap().is_none());
        assert_eq!(service.peer().unwrap().pid, Some(rustix::process::getpid()));
        let pidfd = service.peer_pidfd().unwrap().expect("we see ourselves");
        assert_eq!(poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&Timespec::default())), Ok(0), "we live");
        rank.send(4, &AttachRequest::Offer, &[]).unwrap();
        let request = service.receive::<AttachRequest>().unwrap().unwrap();
        assert_eq!((request.token, request.message), (4, AttachRequest::Offer));

        let side = ServiceSide::create().unwrap();
        let welcome = Welcome { tier: Tier::CrossMemory, config_digest: 1, most_ranges: 1, link_rate: 1 };
        service.send(5, &AttachReply::Welcome(welcome), &side.descriptors()).unwrap();
        assert!(rank.wait(Duration::from_secs(10)).unwrap());
        let mut reply = rank.receive::<AttachReply>().unwrap().unwrap();
        let doorbell = reply.descriptors.pop().unwrap();
        RankSide::attach(reply.descriptors.pop().unwrap(), doorbell).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "passes messages between sockets")]
    fn the_end_of_the_other_process_is_seen_both_ways() {
        let (service, rank) = pair();
        assert!(!rank.hung_up());
        drop(service);
        assert!(rank.hung_up());
        assert!(matches!(rank.receive::<AttachReply>(), Err(ChannelError::Closed)));
        assert!(matches!(rank.send(1, &AttachRequest::Offer, &[]), Err(ChannelError::Closed)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "passes messages between sockets")]
    fn garbage_and_missing_descriptors_are_errors() {
        let (service, rank) = pair();
        rustix::net::send(&rank.0, b"garbage", SendFlags::empty()).unwrap();
        assert!(matches!(
            service.receive::<AttachRequest>(),
            Err(ChannelError::Decode(AttachDecodeError::Malformed(_)))
        ));
        let lonely = AttachRequest::CreateGroup { ranks: 1, rank: 0 }.encode(1);
        rustix::net::send(&rank.0, &lonely, SendFlags::empty()).unwrap();
        let error = service.receive::<AttachRequest>().unwrap_err();
        assert!(matches!(error, ChannelError::Decode(AttachDecodeError::Descriptors { expected: 1, actual: 0 })));
        rustix::net::send(&rank.0, &[0; MESSAGE_BYTES + 1], SendFlags::empty()).unwrap();
        assert!(matches!(
            service.receive::<AttachRequest>(),
            Err(ChannelError::Decode(AttachDecodeError::Malformed(codec::DecodeError::Trailing)))
        ));
    }

    #[test]
    #[cfg_attr(miri, ignore = "passes messages between sockets")]
    fn a_peer_that_does_not_read_is_an_error() {
        let (_service, rank) = pair();
        let backlogged = (0..1_000_000).find_map(|token| rank.send(token, &AttachRequest::Offer, &[]).err());
        assert!(matches!(backlogged, Some(ChannelError::Backlogged)));
    }
}
