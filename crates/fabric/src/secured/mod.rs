//! Connections between two ends that have proven their identity: keys, a handshake, and records after the handshake.
//!
//! The TCP fabric between service processes uses such connections, and so do relay and dock. Pure machines: bytes in,
//! bytes out.
//!
//! Invariants: bytes before the end of the handshake are never passed on, and neither are bytes of a record with a
//! wrong tag. Both ends must agree on the use of records, so a man in the middle cannot turn encryption off. Never does
//! IO, never writes a private key anywhere.

mod handshake;
mod identity;
mod records;

pub use handshake::{Handshake, HandshakeError, HandshakeStep, HandshakeTerms};
pub use identity::{Identity, PublicKey, SharedKey};
pub(crate) use identity::{KEY, SOCKET, id_of, socket_bytes, socket_of};
pub use records::{ForgedRecord, Keys, Opener, RecordReader, SealedRecord, Sealer};
