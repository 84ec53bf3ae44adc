//! An attacker who receives multicast and sends an altered datagram before the receiver has the original.
//!
//! The attacker knows no key, but has captured datagrams. A captured datagram of an instance 65,536 calls away, or of
//! another group with the same handle, is authentic for that instance or group. One kind of forgery alters the source
//! address alone. Receivers must reject every altered datagram; an accepted one shows as wrong bytes.

use std::rc::Rc;

use outboard_proto::wire::{DATAGRAM_HEADER_BYTES, DatagramHeader, MulticastKey};
use outboard_proto::{InstanceId, Instant};
use rand::Rng;

use super::{Cluster, ClusterEvent, address_of};
use crate::host::Input;
use crate::network::Train;

/// The number of a machine that does not exist.
const NOWHERE: usize = 1 << 16;

impl<P: std::fmt::Debug> Cluster<P> {
    /// Alters a datagram of a train on its way to a host, if the dice decide so.
    pub(super) fn forge(&mut self, now: Instant, train: &Train, host: usize) {
        let Some(rng) = self.dice.forges(now) else { return };
        let at = rng.random_range(0..train.headers.len());
        let Ok(parsed) = DatagramHeader::parse(&train.headers[at]) else { return };
        let (start, mut len) = (at as u64 * u64::from(train.chunk_bytes), u64::from(train.len_of(at as u32)));
        let hasher = train.key.hasher();
        let (mut header, mut payload) = (train.headers[at], train.payload.part(start, len));
        let mut address = train.address;
        match rng.random_range(0..6) {
            0 => {
                let bit = rng.random_range(0..DATAGRAM_HEADER_BYTES * 8);
                header[bit / 8] ^= 1 << (bit % 8);
            }
            1 => {
                len = rng.random_range(0..len);
                payload = payload.part(0, len);
            }
            2 => payload = payload.another(),
            3 => {
                let far = InstanceId(train.instance.0 + (rng.random_range(1..=3) << 16));
                payload = payload.another();
                header = parsed.encode(&train.key, far, payload.hash(&hasher, 0, len));
            }
            4 => {
                let key = MulticastKey::new(rng.random(), true);
                header = parsed.encode(&key, train.instance, payload.hash(&key.hasher(), 0, len));
            }
            _ => address = address_of(NOWHERE),
        }
        let hashes = vec![payload.hash(&hasher, 0, len)];
        let (headers, chunk_bytes) = (vec![header], train.chunk_bytes);
        let forged = Train { headers, hashes, address, payload, payload_len: len, chunk_bytes, ..*train };
        self.forged[host] += 1;
        self.queue.schedule(now, ClusterEvent::Input { host, input: Input::Datagrams(Rc::new(forged), 1) });
    }
}
