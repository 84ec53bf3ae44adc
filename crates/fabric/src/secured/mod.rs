//! Connections between two who have proven who they are: keys, a handshake, and records behind it.
//!
//! Used by the TCP fabric between service processes, and between relay and dock. Pure machines: bytes in, bytes out.
//! Invariants: nothing that comes before the end of the handshake, or in a record whose tag is wrong, is handed on;
//! whether there are records is part of what both ends must agree on, so nobody in between can talk them out of it.
//! Never does IO, never writes a private key anywhere.

mod handshake;
mod identity;
mod records;

pub use handshake::{Greeting, HandshakeError, Step, Terms};
pub use identity::{Identity, PublicKey, SharedKey};
pub(crate) use identity::{KEY, SOCKET, id_of, socket_bytes, socket_of};
pub use records::{Forged, Keys, Opener, Sealed, Sealer, Unsealing};
