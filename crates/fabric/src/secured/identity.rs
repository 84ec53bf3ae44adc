//! The identity of an end: a key pair, normally fresh for each run of the end, an address, and an id. The id is a hash
//! of the public key and the address.
//!
//! Invariant: an id belongs to one key and one address. Only an end that proves the key gets the id, and nobody can
//! claim another address for the holder of a key. Never writes a private key anywhere.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use blake2::{Blake2s256, Digest};

use crate::PeerId;
use crate::secured::handshake;

/// Bytes of a public or private key (RFC 7748, X25519).
pub(crate) const KEY: usize = 32;
pub type PublicKey = [u8; KEY];

/// Bytes of an IPv4 address and a port, both in network order.
pub(crate) const SOCKET: usize = 4 + 2;
/// The address of an end that nobody dials by its id.
const NOWHERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

/// A key pair, and the address of its holder.
#[derive(Clone)]
pub struct Identity {
    pub(crate) public: PublicKey,
    pub(super) private: [u8; KEY],
    pub(super) at: SocketAddrV4,
}

impl Identity {
    /// A fresh key pair from the kernel's random numbers.
    #[must_use]
    pub fn generate() -> Self {
        let (public, private) = handshake::key_pair();
        Identity { public, private, at: NOWHERE }
    }

    /// The key pair derived from `shared`. An end that proves this key proves possession of `shared` and nothing else.
    #[must_use]
    pub fn of(shared: &SharedKey) -> Self {
        let private = Blake2s256::new().chain_update(b"outboard key pair").chain_update(shared.0).finalize().into();
        Identity { public: handshake::public_of(&private), private, at: NOWHERE }
    }

    /// This key pair with its holder at `socket`; the id differs.
    #[must_use]
    pub fn at(self, socket: SocketAddrV4) -> Self {
        Identity { at: socket, ..self }
    }

    #[must_use]
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    #[must_use]
    pub fn id(&self) -> PeerId {
        id_of(&self.public, self.at)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.id())
    }
}

/// The first eight bytes of the BLAKE2s hash (RFC 7693) of key and address.
pub(crate) fn id_of(key: &PublicKey, at: SocketAddrV4) -> PeerId {
    let hash = Blake2s256::new().chain_update(key).chain_update(socket_bytes(at)).finalize();
    PeerId(u64::from_le_bytes(std::array::from_fn(|at| hash[at])))
}

pub(crate) fn socket_bytes(at: SocketAddrV4) -> [u8; SOCKET] {
    let [a, b, c, d] = at.ip().octets();
    let [high, low] = at.port().to_be_bytes();
    [a, b, c, d, high, low]
}

pub(crate) fn socket_of([a, b, c, d, high, low]: [u8; SOCKET]) -> SocketAddrV4 {
    SocketAddrV4::new([a, b, c, d].into(), u16::from_be_bytes([high, low]))
}

/// A secret that both ends know and nobody else knows. All zeros mean that there is no secret, so anybody may take
/// part.
#[derive(Clone, Copy, Default)]
pub struct SharedKey(pub(super) [u8; KEY]);

impl SharedKey {
    /// The key derived from the content of a file.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        SharedKey(Blake2s256::new().chain_update(b"outboard cluster key").chain_update(content).finalize().into())
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 == [0; KEY] { "SharedKey(none)" } else { "SharedKey(secret)" })
    }
}
