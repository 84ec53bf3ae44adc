//! Who an end is: a key pair, as a rule of its own for each life, and an id that is a hash of the public key.
//!
//! Invariant: an id belongs to one key; whoever cannot prove the key does not get the id. Never writes a private key
//! anywhere.

use std::fmt;

use blake2::{Blake2s256, Digest};

use crate::PeerId;
use crate::secured::handshake;

/// Bytes of a public or private key (RFC 7748, X25519).
pub(crate) const KEY: usize = 32;
/// A public key.
pub type PublicKey = [u8; KEY];

/// A key pair.
#[derive(Clone)]
pub struct Identity {
    pub(crate) public: PublicKey,
    pub(super) private: [u8; KEY],
}

impl Identity {
    /// A fresh key pair from the kernel's random numbers.
    #[must_use]
    pub fn generate() -> Self {
        let (public, private) = handshake::key_pair();
        Identity { public, private }
    }

    /// The key pair that all holders of `shared` have: whoever proves it holds that key, and no more.
    #[must_use]
    pub fn of(shared: &SharedKey) -> Self {
        let private = Blake2s256::new().chain_update(b"outboard key pair").chain_update(shared.0).finalize().into();
        Identity { public: handshake::public_of(&private), private }
    }

    /// The half that others may know.
    #[must_use]
    pub fn public(&self) -> &PublicKey {
        &self.public
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
pub(crate) fn id_of(key: &PublicKey) -> PeerId {
    let hash = Blake2s256::digest(key);
    PeerId(u64::from_le_bytes(std::array::from_fn(|at| hash[at])))
}

/// What both ends know and nobody else; without one, all zeros, anybody may take part.
#[derive(Clone, Copy, Default)]
pub struct SharedKey(pub(super) [u8; KEY]);

impl SharedKey {
    /// The key that stands for the content of a file.
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
