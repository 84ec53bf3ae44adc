//! Sends chunks to a multicast group without copying them (MC-1, MC-11).
//!
//! One call of `sendmmsg` takes several bursts, each of up to 64 datagrams that the kernel or the card cuts
//! (UDP_SEGMENT). Once the kernel has refused segmentation, each message of a call is a single datagram. Never resends
//! a datagram that the kernel dropped.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::{MAX_DATAGRAM, MulticastSettings, Reach};
use crate::option::set_option;

/// Datagrams of one segmented burst: the kernel's UDP_MAX_SEGMENTS before Linux 6.7.
const SEGMENTS: usize = 64;
/// Pieces of memory per system call: header and chunk of each datagram.
const PIECES: usize = 512;
const BURSTS: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use = "datagrams may be left over"]
pub struct SendOutcome {
    /// Datagrams that the kernel accepted, counted from the first.
    pub datagrams: usize,
    /// The interface's queue was full: the datagram after the accepted ones was dropped, the rest was not tried. Part
    /// of a dropped burst may have left. A sender that does not wait also reports a full socket buffer this way.
    pub congested: bool,
}

/// Sends chunks to multicast groups; its own thread may own it (MC-9).
#[derive(Debug)]
pub struct MulticastSender {
    socket: OwnedFd,
    port: u16,
    /// Segment size set at the socket; none if the kernel or the interface refuses segmentation.
    segment: Option<usize>,
    calls: u64,
    reach: Reach,
}

impl MulticastSender {
    pub fn new(settings: &MulticastSettings) -> io::Result<Self> {
        let waits = if settings.waits { SocketFlags::empty() } else { SocketFlags::NONBLOCK };
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC | waits, None)?;
        let fd = socket.as_fd();
        let by = libc::ip_mreqn {
            imr_multiaddr: libc::in_addr { s_addr: 0 },
            imr_address: libc::in_addr { s_addr: 0 },
            imr_ifindex: settings.interface.index() as i32,
        };
        set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, by)?;
        if let Ok(address) = settings.interface.address() {
            // The kernel would choose among several addresses of the interface. Receivers know this address.
            bind(fd, &SocketAddrV4::new(address, 0))?;
        }
        // Without this option Linux hides that the interface's queue dropped a datagram.
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1_i32)?;
        if sockopt::set_socket_send_buffer_size_force(fd, settings.buffer_bytes).is_err() {
            sockopt::set_socket_send_buffer_size(fd, settings.buffer_bytes)?;
        }
        let segment = set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0_i32).is_ok().then_some(0);
        let MulticastSettings { port, reach, .. } = *settings;
        let mut sender = Self { socket, port, segment, calls: 0, reach };
        sender.apply(reach)?;
        Ok(sender)
    }

    /// Sets the reach of all further sends. A reach that includes this host also includes receivers of this process.
    pub fn set_reach(&mut self, reach: Reach) -> io::Result<()> {
        if self.reach == reach { Ok(()) } else { self.apply(reach) }
    }

    /// The loop option makes the kernel copy datagrams to this host's sockets; time to live 0 keeps them on the host.
    fn apply(&mut self, reach: Reach) -> io::Result<()> {
        let (looped, ttl) = match reach {
            Reach::Network => (false, 1),
            Reach::Everywhere => (true, 1),
            Reach::Host => (true, 0),
        };
        sockopt::set_ip_multicast_loop(&self.socket, looped)?;
        sockopt::set_ip_multicast_ttl(&self.socket, ttl)?;
        self.reach = reach;
        Ok(())
    }

    /// Whether the kernel or the card cuts bursts.
    pub fn segments(&self) -> bool {
        self.segment.is_some()
    }

    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Sends `payload` to the group `to`, cut into chunks of `chunk` bytes, each after its header. The last chunk may
    /// be short. A sender with `waits` blocks while the socket buffer is full.
    ///
    /// # Errors
    /// The kernel's error for the first unsent datagram, unless a queue is full. A network that is down is an error.
    ///
    /// # Panics
    /// When the headers do not match the chunks one to one, or a datagram would exceed [`MAX_DATAGRAM`].
    pub fn send<const H: usize>(
        &mut self,
        to: Ipv4Addr,
        chunk: usize,
        headers: &[[u8; H]],
        payload: &[u8],
    ) -> io::Result<SendOutcome> {
        assert!(chunk > 0 && chunk + H <= MAX_DATAGRAM, "a datagram of {H} + {chunk} bytes");
        assert_eq!(headers.len(), payload.len().div_ceil(chunk).max(1), "headers for {} bytes", payload.len());
        let mut sent = 0;
        while sent < headers.len() {
            let segmenting = self.segment_by(H + chunk)?;
            let mut batch = SendBatch::new(to, self.port);
            let burst = if segmenting { SEGMENTS.min(MAX_DATAGRAM / (H + chunk)) } else { 1 };
            batch.fill(burst, &headers[sent..], chunk, &payload[(sent * chunk).min(payload.len())..]);
            self.calls += 1;
            match batch.send(&self.socket) {
                Ok(datagrams) => sent += datagrams,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOBUFS | libc::EAGAIN) => return Ok(SendOutcome { datagrams: sent, congested: true }),
                    Some(libc::EINTR) => {}
                    // No checksum offload (EIO), or a segment exceeds the interface's packets (EINVAL).
                    Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP) if segmenting => {
                        tracing::info!(%error, "segmentation offload is refused, sending datagrams one by one");
                        set_option(self.socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0_i32)?;
                        self.segment = None;
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(SendOutcome { datagrams: sent, congested: false })
    }

    /// Sets the segment size to `length` bytes. Returns whether segmentation works.
    fn segment_by(&mut self, length: usize) -> io::Result<bool> {
        let Some(current) = self.segment else { return Ok(false) };
        if current != length {
            set_option(self.socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, length as i32)?;
            self.segment = Some(length);
        }
        Ok(true)
    }
}

struct SendBatch {
    to: libc::sockaddr_in,
    pieces: [libc::iovec; PIECES],
    bursts: [usize; BURSTS],
    count: usize,
}

impl SendBatch {
    fn new(to: Ipv4Addr, port: u16) -> Self {
        Self {
            to: libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: port.to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.octets()) },
                sin_zero: [0; 8],
            },
            pieces: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES],
            bursts: [0; BURSTS],
            count: 0,
        }
    }

    /// Fills the batch with bursts of up to `burst` datagrams.
    fn fill<const H: usize>(&mut self, burst: usize, headers: &[[u8; H]], chunk: usize, payload: &[u8]) {
        let piece = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut used = 0;
        for (index, header) in headers.iter().enumerate() {
            if index % burst == 0 {
                if self.count == BURSTS || used + 2 * burst > PIECES {
                    break;
                }
                self.count += 1;
            }
            let start = (index * chunk).min(payload.len());
            let end = (start + chunk).min(payload.len());
            self.pieces[used] = piece(header);
            self.pieces[used + 1] = piece(&payload[start..end]);
            self.bursts[self.count - 1] += 2;
            used += 2;
        }
    }

    /// Sends the filled bursts; returns how many datagrams the kernel accepted.
    fn send(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        // SAFETY: all-zero bytes are a valid mmsghdr: null pointers and integers.
        let mut messages: [libc::mmsghdr; BURSTS] = unsafe { std::mem::zeroed() };
        let mut first = 0;
        for (message, &pieces) in messages.iter_mut().zip(&self.bursts).take(self.count) {
            message.msg_hdr.msg_name = (&raw mut self.to).cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            message.msg_hdr.msg_iov = &raw mut self.pieces[first];
            message.msg_hdr.msg_iovlen = pieces;
            first += pieces;
        }
        // SAFETY: the first `count` messages point to the address and to filled pieces, all alive during the call,
        // which only reads through the pointers.
        let taken = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), self.count as u32, 0) };
        let taken = usize::try_from(taken).map_err(|_| io::Error::last_os_error())?;
        Ok(self.bursts[..taken].iter().sum::<usize>() / 2)
    }
}
