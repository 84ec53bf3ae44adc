//! The address of a service process: its listening socket, and the key that the service process proves there. Bootstrap
//! offers carry it.
//!
//! Invariant: an id has one address, because it is a hash of the address. Nobody can forge another address for it.

use std::net::SocketAddrV4;

use crate::PeerId;
use crate::secured::{KEY, PublicKey, SOCKET, id_of, socket_bytes, socket_of};

/// First bytes of every address: kind and version of the framing.
const ADDRESS_TAG: [u8; 4] = *b"TCP3";
/// Tag, IPv4 address, port, public key.
const ADDRESS: usize = 4 + SOCKET + KEY;

/// The listening socket of a service process, and the key that the service process proves there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    pub(super) socket: SocketAddrV4,
    pub(super) key: PublicKey,
}

impl Address {
    pub(super) fn encode(&self) -> [u8; ADDRESS] {
        let mut bytes = [0; ADDRESS];
        bytes[..4].copy_from_slice(&ADDRESS_TAG);
        bytes[4..10].copy_from_slice(&socket_bytes(self.socket));
        bytes[10..].copy_from_slice(&self.key);
        bytes
    }

    pub(super) fn id(&self) -> PeerId {
        id_of(&self.key, self.socket)
    }

    /// The address of `peer`; none if the bytes are malformed or are another peer's address.
    pub(super) fn decode(peer: PeerId, bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&ADDRESS_TAG)?;
        let (&socket, key) = rest.split_first_chunk()?;
        let address = Address { socket: socket_of(socket), key: key.try_into().ok()? };
        (address.id() == peer).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secured::Identity;
    use std::net::Ipv4Addr;

    #[test]
    fn addresses_come_back_and_belong_to_one_id() {
        let socket = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 40_001);
        let identity = Identity::generate().at(socket);
        let address = Address { socket, key: identity.public };
        assert_eq!(Address::decode(identity.id(), &address.encode()), Some(address));
        assert_eq!(Address::decode(PeerId(identity.id().0 ^ 1), &address.encode()), None);
        for byte in 0..ADDRESS {
            let mut other = address.encode();
            other[byte] ^= 1;
            assert_eq!(Address::decode(identity.id(), &other), None, "byte {byte}");
        }
    }
}
