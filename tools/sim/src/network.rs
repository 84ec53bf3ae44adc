//! The network: hosts have an uplink and a downlink to one switch, which copies multicasts to all hosts that joined.
//!
//! A host of the simulator is a service process with its ranks. Siblings on one machine (SP-8) share its links, and
//! reach each other without the links and without loss.
//!
//! A link is a serial line with a queue before it; bytes that do not fit are dropped at the tail. Datagrams travel in
//! trains of up to 64 that share their bookkeeping, never their fate: loss and the queue decide for each datagram.
//! Invariant: bytes are counted once per link and only when they really go over it. Never reads payload.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use outboard_proto::wire::{DATAGRAM_HEADER_BYTES, MulticastKey, PayloadHash};
use outboard_proto::{FrameBytes, InstanceId, Instant, MulticastChannel};

use crate::store::StoredPayload;

/// The links and the fabric of every host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPlan {
    /// bit/s of every link, each way.
    pub rate: u64,
    /// Service processes that share each pair of links; they have neighbouring numbers.
    pub siblings: usize,
    /// Latency of one link, in addition to the time that the rate takes.
    pub latency: Duration,
    /// Bytes that fit in the queue before a link.
    pub queue_bytes: u64,
    /// Longest time between the request to join a channel and the first reception.
    pub join_delay: Duration,
    /// Frames that a host may have accepted and not yet sent before its fabric counts as full.
    pub outstanding_frames: usize,
    /// How many frames must have left a full fabric before it accepts more.
    pub room: usize,
    /// Multicast batches that a host may have accepted and not yet sent.
    pub outstanding_batches: usize,
    /// Most datagrams that travel together, 1 ..= 64.
    pub train: u32,
    /// Bytes of datagrams that wait for a stalled service process.
    pub receive_buffer: u64,
    /// How long a service process gathers further inputs after a datagram, to handle them in one batch.
    pub gather: Duration,
    /// How long a service process gathers further inputs after a frame.
    pub gather_frames: Duration,
}

impl Default for NetworkPlan {
    fn default() -> Self {
        NetworkPlan {
            rate: 1_000_000_000,
            siblings: 1,
            latency: Duration::from_micros(10),
            queue_bytes: 1 << 20,
            join_delay: Duration::from_micros(100),
            outstanding_frames: 64,
            room: 1,
            outstanding_batches: 8,
            train: 32,
            receive_buffer: 4 << 20,
            gather: Duration::ZERO,
            gather_frames: Duration::ZERO,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passage {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// One direction of one cable, with the queue before it.
#[derive(Debug, Clone)]
pub(crate) struct SerialLink {
    rate: u64,
    queue_bytes: u64,
    free_at: Instant,
    wire_bytes: u64,
    dropped_bytes: u64,
}

/// `n * by / over`. Products of more than 64 bits are rare, and dividing them takes long.
fn scaled(n: u64, by: u64, over: u64) -> u64 {
    match n.checked_mul(by) {
        Some(product) => product / over,
        None => (u128::from(n) * u128::from(by) / u128::from(over)) as u64,
    }
}

impl SerialLink {
    fn new(plan: &NetworkPlan) -> Self {
        SerialLink {
            rate: plan.rate,
            queue_bytes: plan.queue_bytes,
            free_at: Instant(0),
            wire_bytes: 0,
            dropped_bytes: 0,
        }
    }

    pub(crate) fn duration(&self, bytes: u64) -> Duration {
        Duration::from_nanos(scaled(bytes, 8_000_000_000, self.rate))
    }

    /// Bytes that the queue has room for at `now`.
    pub(crate) fn room(&self, now: Instant) -> u64 {
        let waiting = scaled(self.free_at.0.saturating_sub(now.0), self.rate, 8_000_000_000);
        self.queue_bytes.saturating_sub(waiting)
    }

    /// Sends `bytes`, of which the last byte is there at `ready`. The caller has checked for room.
    pub(crate) fn pass(&mut self, now: Instant, bytes: u64, ready: Instant) -> Passage {
        let start = self.free_at.max(now);
        let end = (start + self.duration(bytes)).max(ready);
        self.free_at = end;
        self.wire_bytes += bytes;
        Passage { start, end }
    }

    pub(crate) fn drop_tail(&mut self, bytes: u64) {
        self.dropped_bytes += bytes;
    }
}

/// Bytes that went over the links of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkBytes {
    pub up: u64,
    pub down: u64,
    /// Bytes that did not fit into a queue, both ways.
    pub dropped: u64,
}

/// Consecutive datagrams of one multicast batch.
#[derive(Debug)]
pub(crate) struct Train {
    pub(crate) from: usize,
    pub(crate) channel: MulticastChannel,
    pub(crate) headers: Vec<[u8; DATAGRAM_HEADER_BYTES]>,
    pub(crate) hashes: Vec<PayloadHash>,
    /// The key and the instance of the datagrams.
    pub(crate) key: MulticastKey,
    pub(crate) instance: InstanceId,
    /// The address from which the datagrams seem to come.
    pub(crate) address: Ipv4Addr,
    pub(crate) payload: StoredPayload,
    pub(crate) payload_len: u64,
    pub(crate) chunk_bytes: u32,
    /// Bytes on the wire of each datagram beside its payload.
    pub(crate) overhead: u32,
    /// When the whole train is at the switch.
    pub(crate) ready: Instant,
}

impl Train {
    pub(crate) fn all(&self) -> u64 {
        u64::MAX >> (64 - self.headers.len())
    }

    pub(crate) fn len_of(&self, datagram: u32) -> u32 {
        let start = u64::from(datagram) * u64::from(self.chunk_bytes);
        (self.payload_len - start).min(u64::from(self.chunk_bytes)) as u32
    }

    /// Bytes on the wire of the datagrams `among`.
    pub(crate) fn wire_bytes(&self, among: u64) -> u64 {
        let n = u64::from(among.count_ones());
        let last = self.headers.len() as u32 - 1;
        let short = if among >> last & 1 == 1 { u64::from(self.chunk_bytes - self.len_of(last)) } else { 0 };
        n * u64::from(self.chunk_bytes + self.overhead) - short
    }
}

#[derive(Debug)]
pub(crate) struct TransitFrame {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) header: FrameBytes,
    pub(crate) payload: StoredPayload,
    pub(crate) payload_len: u32,
    pub(crate) wire_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Network {
    up: Vec<SerialLink>,
    down: Vec<SerialLink>,
    joined: BTreeMap<MulticastChannel, Rc<Vec<usize>>>,
    siblings: usize,
}

impl Network {
    pub(crate) fn new(plan: &NetworkPlan, hosts: usize) -> Self {
        assert!((1..=64).contains(&plan.train), "a train has 1 to 64 datagrams");
        assert!((1..=plan.outstanding_frames).contains(&plan.room), "an empty fabric has room");
        let links = vec![SerialLink::new(plan); hosts.div_ceil(plan.siblings)];
        Network { up: links.clone(), down: links, joined: BTreeMap::new(), siblings: plan.siblings }
    }

    pub(crate) fn link_of(&self, host: usize) -> usize {
        host / self.siblings
    }

    pub(crate) fn uplink(&mut self, host: usize) -> &mut SerialLink {
        let at = self.link_of(host);
        &mut self.up[at]
    }

    /// Whether two hosts reach each other without the network.
    pub(crate) fn siblings(&self, one: usize, other: usize) -> bool {
        self.link_of(one) == self.link_of(other)
    }

    pub(crate) fn join(&mut self, channel: MulticastChannel, host: usize) {
        let hosts = Rc::make_mut(self.joined.entry(channel).or_default());
        if let Err(at) = hosts.binary_search(&host) {
            hosts.insert(at, host);
        }
    }

    pub(crate) fn leave(&mut self, channel: MulticastChannel, host: usize) {
        if let Some(hosts) = self.joined.get_mut(&channel) {
            Rc::make_mut(hosts).retain(|h| *h != host);
        }
    }

    /// The hosts that receive a channel, ascending; siblings are neighbours.
    pub(crate) fn receivers(&self, channel: MulticastChannel) -> Rc<Vec<usize>> {
        self.joined.get(&channel).cloned().unwrap_or_default()
    }

    /// Puts the datagrams `among` of a train on downlink `to`. Returns those that fit, and their time of arrival.
    pub(crate) fn train_down(&mut self, now: Instant, to: usize, train: &Train, among: u64) -> (u64, Instant) {
        let link = &mut self.down[to];
        let mut fit = among;
        let room = link.room(now);
        while train.wire_bytes(fit) > room {
            fit &= !(1 << (63 - fit.leading_zeros()));
        }
        link.drop_tail(train.wire_bytes(among) - train.wire_bytes(fit));
        if fit == 0 {
            return (0, now);
        }
        (fit, link.pass(now, train.wire_bytes(fit), train.ready).end)
    }

    /// Puts a frame on the downlink of its receiver. Returns its time of arrival, or `None` when the queue is full.
    pub(crate) fn frame_down(&mut self, now: Instant, frame: &TransitFrame) -> Option<Instant> {
        let at = self.link_of(frame.to);
        let link = &mut self.down[at];
        if link.room(now) < frame.wire_bytes {
            link.drop_tail(frame.wire_bytes);
            return None;
        }
        Some(link.pass(now, frame.wire_bytes, now).end)
    }

    pub(crate) fn bytes(&self) -> Vec<LinkBytes> {
        let both = self.up.iter().zip(&self.down);
        both.map(|(u, d)| LinkBytes {
            up: u.wire_bytes,
            down: d.wire_bytes,
            dropped: u.dropped_bytes + d.dropped_bytes,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(datagrams: usize, payload_len: u64) -> Train {
        Train {
            from: 0,
            channel: MulticastChannel(1),
            headers: vec![[0; DATAGRAM_HEADER_BYTES]; datagrams],
            hashes: vec![PayloadHash::default(); datagrams],
            key: MulticastKey::new([0; 2], true),
            instance: InstanceId(1),
            address: Ipv4Addr::LOCALHOST,
            payload: StoredPayload::Bytes(vec![0; payload_len as usize]),
            payload_len,
            chunk_bytes: 100,
            overhead: 25,
            ready: Instant(0),
        }
    }

    fn plan(queue_bytes: u64) -> NetworkPlan {
        NetworkPlan { rate: 8_000_000_000, queue_bytes, ..NetworkPlan::default() }
    }

    #[test]
    fn a_link_is_serial_and_drops_at_the_tail_of_its_queue() {
        let mut n = Network::new(&plan(300), 2);
        let t = train(3, 250);
        assert_eq!(t.wire_bytes(t.all()), 325);
        assert_eq!(n.train_down(Instant(0), 1, &t, t.all()), (0b011, Instant(250)), "the third does not fit");
        assert_eq!(n.train_down(Instant(0), 1, &t, 0b100), (0, Instant(0)), "75 do not fit into 50");
        assert_eq!(n.train_down(Instant(100), 1, &t, 0b100), (0b100, Instant(325)), "waits its turn");
        assert_eq!(n.bytes()[1], LinkBytes { up: 0, down: 325, dropped: 150 });
    }

    #[test]
    fn the_switch_copies_to_those_who_joined() {
        let mut n = Network::new(&plan(300), 3);
        for host in [2, 0, 1, 2] {
            n.join(MulticastChannel(1), host);
        }
        assert_eq!(**n.receivers(MulticastChannel(1)), [0, 1, 2]);
        n.leave(MulticastChannel(1), 2);
        assert_eq!(**n.receivers(MulticastChannel(1)), [0, 1]);
        assert!(n.receivers(MulticastChannel(2)).is_empty());
    }
}
