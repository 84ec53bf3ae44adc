//! Who a service process is: a key pair of its own for each life, an id that is a hash of the public key, an address
//! that carries it.
//!
//! Invariant: an id belongs to one key; whoever cannot prove the key does not get the id. Never writes a private key
//! anywhere.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use blake2::{Blake2s256, Digest};

use crate::PeerId;
use crate::tcp::handshake;

/// Bytes of a public or private key (RFC 7748, X25519).
pub(super) const KEY: usize = 32;
/// A public key.
pub(super) type PublicKey = [u8; KEY];

/// First bytes of every address: kind and version of the framing.
const ADDRESS_TAG: [u8; 4] = *b"TCP1";
/// Tag, IPv4 address, port, public key.
const ADDRESS: usize = 4 + 4 + 2 + KEY;

/// The key pair of one service process.
#[derive(Clone)]
pub struct Identity {
    pub(super) public: PublicKey,
    pub(super) private: [u8; KEY],
}

impl Identity {
    /// A fresh key pair from the kernel's random numbers.
    #[must_use]
    pub fn generate() -> Self {
        let (public, private) = handshake::key_pair();
        Identity { public, private }
    }

    /// What peers know the owner by.
    #[must_use]
    pub fn id(&self) -> PeerId {
        id_of(&self.public)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.id())
    }
}

/// The first eight bytes of the key's BLAKE2s hash (RFC 7693).
pub(super) fn id_of(key: &PublicKey) -> PeerId {
    let hash = Blake2s256::digest(key);
    PeerId(u64::from_le_bytes(std::array::from_fn(|at| hash[at])))
}

/// What all service processes of a cluster know and nobody else; without one, all zeros, anybody may take part.
#[derive(Clone, Copy, Default)]
pub struct ClusterKey(pub(super) [u8; KEY]);

impl ClusterKey {
    /// The key that stands for the content of a file.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        ClusterKey(Blake2s256::new().chain_update(b"outboard cluster key").chain_update(content).finalize().into())
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 == [0; KEY] { "ClusterKey(none)" } else { "ClusterKey(secret)" })
    }
}

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
