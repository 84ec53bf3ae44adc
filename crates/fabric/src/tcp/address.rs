//! Where a service process listens, and the key that it proves there: what its offers carry.
//!
//! Invariant: an address belongs to one id.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::PeerId;
use crate::secured::{KEY, PublicKey, id_of};

/// First bytes of every address: kind and version of the framing.
const ADDRESS_TAG: [u8; 4] = *b"TCP2";
/// Tag, IPv4 address, port, public key.
const ADDRESS: usize = 4 + 4 + 2 + KEY;

/// Where a service process listens, and the key that it proves there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    pub(super) socket: SocketAddrV4,
    pub(super) key: PublicKey,
}

impl Address {
    pub(super) fn encode(&self) -> [u8; ADDRESS] {
        let mut bytes = [0; ADDRESS];
        bytes[..4].copy_from_slice(&ADDRESS_TAG);
        bytes[4..8].copy_from_slice(&self.socket.ip().octets());
        bytes[8..10].copy_from_slice(&self.socket.port().to_be_bytes());
        bytes[10..].copy_from_slice(&self.key);
        bytes
    }

    /// The address of `peer`; none when the bytes are not one, or that of another key.
    pub(super) fn decode(peer: PeerId, bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&ADDRESS_TAG)?;
        let (&ip, rest) = rest.split_first_chunk::<4>()?;
        let (&port, rest) = rest.split_first_chunk::<2>()?;
        let key: PublicKey = rest.try_into().ok()?;
        let socket = SocketAddrV4::new(Ipv4Addr::from(ip), u16::from_be_bytes(port));
        (id_of(&key) == peer).then_some(Address { socket, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secured::Identity;

    #[test]
    fn addresses_come_back_and_belong_to_one_id() {
        let identity = Identity::generate();
        let socket = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 40_001);
        let address = Address { socket, key: identity.public };
        assert_eq!(Address::decode(identity.id(), &address.encode()), Some(address));
        assert_eq!(Address::decode(PeerId(identity.id().0 ^ 1), &address.encode()), None);
        let mut other_key = address.encode();
        other_key[20] ^= 1;
        assert_eq!(Address::decode(identity.id(), &other_key), None);
    }
}
