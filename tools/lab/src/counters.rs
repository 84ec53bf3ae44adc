//! Wire counters of every port: rtnetlink reads them from the token buckets at both ends of the port's link.
//!
//! A queueing discipline counts a segmented burst as the packets that the burst becomes; a device counter does not. A
//! routing socket always belongs to the network namespace in which it was created. So the switch process reads the
//! hosts' ends without entering the hosts' namespaces.

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcMessage, TcStats2};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Room for one datagram of a dump; the kernel fills at most 32 KiB.
const DUMP_BYTES: usize = 64 * 1024;

/// Traffic of one host's link since the lab started. Bytes include Ethernet headers, not preamble and frame check
/// sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PortCounters {
    /// Number of the host, from 1.
    pub host: u16,
    /// Traffic that left the host.
    pub tx: LinkTraffic,
    /// Traffic that left the switch for the host, without packets that the lab's random loss dropped.
    pub rx: LinkTraffic,
}

/// One direction of a link's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkTraffic {
    /// Bytes that passed.
    pub bytes: u64,
    /// Packets that passed.
    pub packets: u64,
    /// Packets that the sending end dropped because its queue was full.
    pub drops: u64,
}

impl PortCounters {
    /// The growth of the counts since `earlier`, a reading of the same port.
    ///
    /// # Panics
    /// If `earlier` belongs to another port or is later than `self`.
    pub fn since(&self, earlier: &Self) -> Self {
        assert_eq!(self.host, earlier.host, "counters of different ports");
        let diff = |now: u64, then: u64| now.checked_sub(then).expect("counters never decrease");
        let since = |now: LinkTraffic, then: LinkTraffic| LinkTraffic {
            bytes: diff(now.bytes, then.bytes),
            packets: diff(now.packets, then.packets),
            drops: diff(now.drops, then.drops),
        };
        Self { host: self.host, tx: since(self.tx, earlier.tx), rx: since(self.rx, earlier.rx) }
    }
}

/// A routing socket of the calling thread's network namespace.
pub(crate) fn routing_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// The kind of queue at links without a rate limit.
pub(crate) const UNLIMITED: &str = "bfifo";

/// Traffic that left every token bucket in the socket's network namespace, by interface number.
pub(crate) fn read(socket: impl AsFd) -> io::Result<Vec<(i32, LinkTraffic)>> {
    request_dump(&socket)?;
    let mut ends = Vec::new();
    let mut datagram = vec![0; DUMP_BYTES];
    loop {
        let (length, _) =
            rustix::io::retry_on_intr(|| rustix::net::recv(&socket, datagram.as_mut_slice(), RecvFlags::empty()))?;
        let mut rest = &datagram[..length];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(ends),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewQueueDiscipline(tc)) => {
                    ends.extend(token_bucket(&tc));
                }
                _ => {}
            }
            let aligned = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(aligned..).unwrap_or_default();
        }
    }
}

fn request_dump(socket: impl AsFd) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let payload = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
    let mut message = NetlinkMessage::new(header, payload.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    rustix::net::send(socket, &bytes, SendFlags::empty())?;
    Ok(())
}

fn token_bucket(message: &TcMessage) -> Option<(i32, LinkTraffic)> {
    let counts = |kind: &str| kind == "tbf" || kind == UNLIMITED;
    let is_bucket = |attribute: &TcAttribute| matches!(attribute, TcAttribute::Kind(kind) if counts(kind));
    if !message.attributes.iter().any(is_bucket) {
        return None;
    }
    let mut end = LinkTraffic::default();
    let statistics = message.attributes.iter().filter_map(|attribute| match attribute {
        TcAttribute::Stats2(statistics) => Some(statistics),
        _ => None,
    });
    for statistic in statistics.flatten() {
        match statistic {
            TcStats2::Basic(basic) => (end.bytes, end.packets) = (basic.bytes, u64::from(basic.packets)),
            TcStats2::Queue(queue) => end.drops = u64::from(queue.drops),
            _ => {}
        }
    }
    Some((message.header.index, end))
}
