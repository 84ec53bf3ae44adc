//! Receives the datagrams of joined multicast groups, many per system call (MC-2, MC-9, MC-11).
//!
//! One `recvmmsg` fills up to a batch of slabs, each with one burst that the kernel coalesced (UDP_GRO). The batch then
//! yields the single datagrams. A receiver gets only the groups that it joined, however many sockets share the port
//! (MC-10). Unicast datagrams to the port may arrive too, so a datagram must prove its origin. The kernel limits the
//! groups of a socket (`net.ipv4.igmp_max_memberships`, 20 by default), so a receiver may open several.
//!
//! Never blocks except in [`MulticastReceiver::wait`].

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::MulticastSettings;
use crate::option::set_option;

/// Bytes of a slab: the longest coalesced burst.
const SLAB: usize = 65_536;
const MAX_SLABS: usize = 32;
/// Room for the control messages of one burst: segment size, drop counter.
const CONTROL: usize = 64;
/// epoll tokens: 0 for the waker, 1 for every socket.
const WAKER: u64 = 0;
const SOCKET: u64 = 1;

/// Memory that [`MulticastReceiver::receive`] fills; reused from call to call.
#[derive(Debug)]
pub struct ReceiveBatch {
    slabs: Box<[u8]>,
    bursts: Vec<Burst>,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    from: Ipv4Addr,
    length: usize,
    segment: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// The source address in the datagram, which nothing authenticates.
    pub from: Ipv4Addr,
    pub bytes: &'a [u8],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiveOutcome {
    /// Bursts taken from the socket; zero when none wait. A burst holds at least one datagram. An empty burst, or one
    /// longer than a slab, adds no datagram to the batch; only foreign senders make such bursts.
    pub bursts: usize,
    /// Bursts dropped since the last call because the socket buffer was full.
    pub overflowed: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOutcome {
    Readable,
    /// A [`Waker`] woke the thread; datagrams may wait as well.
    Woken,
    TimedOut,
}

/// Ends a [`MulticastReceiver::wait`] from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

/// Receives the datagrams of joined groups; its own thread may own it (MC-9).
#[derive(Debug)]
pub struct MulticastReceiver {
    settings: MulticastSettings,
    /// The first socket always stays open.
    sockets: Vec<GroupSocket>,
    /// Index of the socket that the last receive read.
    turn: usize,
    wake: Waker,
    /// Waits for the waker and all sockets. Closing a socket removes it.
    epoll: OwnedFd,
    buffer_bytes: usize,
}

/// A socket that joins as many groups as the kernel allows.
#[derive(Debug)]
struct GroupSocket {
    fd: OwnedFd,
    groups: Vec<Ipv4Addr>,
    overflows: u32,
}

impl ReceiveBatch {
    /// A batch of `slabs` slabs of 64 KiB; `slabs` is clamped to 1 to 32.
    pub fn new(slabs: usize) -> Self {
        let slabs = slabs.clamp(1, MAX_SLABS);
        Self { slabs: vec![0; slabs * SLAB].into_boxed_slice(), bursts: Vec::with_capacity(slabs) }
    }

    /// The datagrams of the last receive, in order of arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let slabs = self.slabs.chunks_exact(SLAB);
        self.bursts.iter().zip(slabs).flat_map(|(burst, slab)| {
            let datagrams = slab[..burst.length].chunks(burst.segment);
            datagrams.map(|bytes| Datagram { from: burst.from, bytes })
        })
    }
}

impl Waker {
    /// Wakes the receiver's thread now, or at its next wait.
    pub fn wake(&self) {
        // The write fails only when the counter is full, and then a wake-up is pending.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl MulticastReceiver {
    /// A receiver at the interface of `settings` that has joined no group.
    ///
    /// # Errors
    /// When a socket that does not share the port holds it, or when a socket option is refused.
    pub fn new(settings: &MulticastSettings) -> io::Result<Self> {
        let wake = Waker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake.0, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        let first = GroupSocket::open(settings, &epoll)?;
        // Linux reports twice the usable size.
        let buffer_bytes = sockopt::socket_recv_buffer_size(&first.fd)? / 2;
        Ok(Self { sockets: vec![first], settings: settings.clone(), turn: 0, wake, epoll, buffer_bytes })
    }

    /// Bytes of the socket buffer that the kernel granted.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Starts receiving `group`.
    ///
    /// # Errors
    /// When the group is joined already (`EADDRINUSE`), or no further socket can be opened.
    pub fn join(&mut self, group: Ipv4Addr) -> io::Result<()> {
        if self.sockets.iter().any(|socket| socket.groups.contains(&group)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        for socket in &mut self.sockets {
            match socket.join(group, &self.settings) {
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                joined => return joined,
            }
        }
        let mut more = GroupSocket::open(&self.settings, &self.epoll)?;
        more.join(group, &self.settings)?;
        self.sockets.push(more);
        Ok(())
    }

    /// Stops receiving `group`. Datagrams that wait already may still be received.
    ///
    /// # Errors
    /// When the group is not joined (`EADDRNOTAVAIL`).
    pub fn leave(&mut self, group: Ipv4Addr) -> io::Result<()> {
        let has = |socket: &GroupSocket| socket.groups.contains(&group);
        let at = self.sockets.iter().position(has).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let socket = &mut self.sockets[at];
        socket.groups.retain(|joined| *joined != group);
        if at > 0 && socket.groups.is_empty() {
            self.sockets.swap_remove(at);
            return Ok(());
        }
        let (any, interface) = (Ipv4Addr::UNSPECIFIED, self.settings.interface.index());
        Ok(sockopt::set_ip_drop_membership_with_ifindex(&socket.fd, &group, &any, interface)?)
    }

    /// A handle with which other threads end [`wait`](Self::wait).
    pub fn waker(&self) -> Waker {
        self.wake.clone()
    }

    /// Readable when datagrams wait, or when the waker woke.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Sleeps until datagrams wait, the waker wakes, or `limit` has passed.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<WaitOutcome> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut ready = [const { MaybeUninit::uninit() }; 2];
        let (ready, _) = match epoll::wait(&self.epoll, &mut ready, limit.as_ref()) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(WaitOutcome::TimedOut),
            Err(error) => return Err(error.into()),
        };
        if ready.is_empty() {
            return Ok(WaitOutcome::TimedOut);
        }
        if ready.iter().all(|event| event.data.u64() != WAKER) {
            return Ok(WaitOutcome::Readable);
        }
        // Reading resets the eventfd.
        let _ = rustix::io::read(&*self.wake.0, &mut [0; 8]);
        Ok(WaitOutcome::Woken)
    }

    /// Replaces the content of `batch` by waiting datagrams of one socket; the sockets take turns.
    ///
    /// # Errors
    /// Any error of the kernel except `EAGAIN`.
    pub fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<ReceiveOutcome> {
        let mut received = ReceiveOutcome::default();
        for _ in 0..self.sockets.len() {
            self.turn = (self.turn + 1) % self.sockets.len();
            received = self.sockets[self.turn].receive(batch)?;
            if received != ReceiveOutcome::default() {
                break;
            }
        }
        Ok(received)
    }
}

impl GroupSocket {
    /// Opens a socket and adds it to `epoll`.
    fn open(settings: &MulticastSettings, epoll: &OwnedFd) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        let fd = socket.as_fd();
        // Service processes of all users of the host share the port. SO_REUSEPORT would require that all sockets belong
        // to one user.
        sockopt::set_socket_reuseaddr(fd, true)?;
        // Without this option a socket gets the groups that any other socket of the host joined.
        set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0_i32)?;
        set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1_i32)?;
        if let Err(error) = set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1_i32) {
            tracing::info!(%error, "the kernel does not coalesce datagrams");
        }
        if sockopt::set_socket_recv_buffer_size_force(fd, settings.buffer_bytes).is_err() {
            sockopt::set_socket_recv_buffer_size(fd, settings.buffer_bytes)?;
        }
        bind(fd, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, settings.port))?;
        epoll::add(epoll, fd, epoll::EventData::new_u64(SOCKET), epoll::EventFlags::IN)?;
        Ok(GroupSocket { fd: socket, groups: Vec::new(), overflows: 0 })
    }

    fn join(&mut self, group: Ipv4Addr, settings: &MulticastSettings) -> io::Result<()> {
        let (any, interface) = (Ipv4Addr::UNSPECIFIED, settings.interface.index());
        sockopt::set_ip_add_membership_with_ifindex(&self.fd, &group, &any, interface)?;
        self.groups.push(group);
        Ok(())
    }

    /// Replaces the content of `batch` by datagrams that wait at this socket.
    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<ReceiveOutcome> {
        batch.bursts.clear();
        let mut arguments = ReceiveArguments::new();
        let filled = match arguments.receive(&self.fd, &mut batch.slabs) {
            Ok(filled) => filled,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(error) => return Err(error),
        };
        let mut overflows = self.overflows;
        batch.bursts.extend((0..filled).map(|at| arguments.burst(at, &mut overflows)));
        let overflowed = overflows.wrapping_sub(self.overflows);
        self.overflows = overflows;
        Ok(ReceiveOutcome { bursts: filled, overflowed })
    }
}

/// Room for one burst's control messages, aligned as the kernel requires.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlBuffer([u8; CONTROL]);

struct ReceiveArguments {
    messages: [libc::mmsghdr; MAX_SLABS],
    names: [libc::sockaddr_in; MAX_SLABS],
    pieces: [libc::iovec; MAX_SLABS],
    controls: [ControlBuffer; MAX_SLABS],
}

impl ReceiveArguments {
    fn new() -> Self {
        // SAFETY: all-zero bytes are valid for all members: integers, null pointers, byte arrays.
        unsafe { std::mem::zeroed() }
    }

    /// Receives up to one burst per slab; returns how many.
    fn receive(&mut self, socket: &OwnedFd, slabs: &mut [u8]) -> io::Result<usize> {
        let count = slabs.len() / SLAB;
        for (at, slab) in slabs.chunks_exact_mut(SLAB).enumerate() {
            self.pieces[at] = libc::iovec { iov_base: slab.as_mut_ptr().cast(), iov_len: SLAB };
            let header = &mut self.messages[at].msg_hdr;
            header.msg_iov = &raw mut self.pieces[at];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            header.msg_control = (&raw mut self.controls[at]).cast();
            header.msg_controllen = CONTROL;
        }
        let none = std::ptr::null_mut();
        let messages = self.messages.as_mut_ptr();
        // SAFETY: the first `count` messages point to memory of `self` and `slabs`, with the given lengths. Both are
        // borrowed mutably during the call.
        let filled =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), messages, count as u32, libc::MSG_DONTWAIT as _, none) };
        usize::try_from(filled).map_err(|_| io::Error::last_os_error())
    }

    /// Burst `at` of a receive. A truncated burst is empty, so that bursts and slabs keep equal indices. Sets
    /// `overflows` to the socket's count of drops, if the kernel reports it.
    fn burst(&self, at: usize, overflows: &mut u32) -> Burst {
        let message = &self.messages[at];
        let cut = message.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        let length = if cut { 0 } else { message.msg_len as usize };
        let mut segment = length;
        // SAFETY: the kernel filled in the header and its control messages, and both are alive. Each value is read
        // unaligned and has the type that udp(7) and socket(7) document.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(&message.msg_hdr);
            while !control.is_null() {
                match ((*control).cmsg_level, (*control).cmsg_type) {
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        segment = libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned() as usize;
                    }
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                        *overflows = libc::CMSG_DATA(control).cast::<u32>().read_unaligned();
                    }
                    _ => {}
                }
                control = libc::CMSG_NXTHDR(&message.msg_hdr, control);
            }
        }
        // On an IPv4 socket the kernel fills in an IPv4 address as the name, or leaves the name all zeros.
        let from = Ipv4Addr::from(self.names[at].sin_addr.s_addr.to_ne_bytes());
        Burst { from, length, segment: segment.max(1) }
    }
}
