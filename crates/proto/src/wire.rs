//! The wire codec: datagram headers, link frames and the messages in them. docs/wire.md describes every byte.
//!
//! All integers are little-endian. Every field is checked on decoding; a decoder never panics and never allocates
//! more than the input's own size allows. It never does IO.

mod datagram;
mod frame;
mod message;
mod recording;
mod tagged;

pub use datagram::{DATAGRAM_HEADER_BYTES, DatagramError, DatagramHeader};
pub use frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};
pub use message::{MAX_BLOCKS, MAX_RANGES, MAX_SOURCES, MAX_TERMS, Message, Terms};
pub use outboard_call::codec::DecodeError;
pub use recording::{MAX_PIECES, RecordedMemory};
pub use tagged::{Filled, MAX_FILLED, MAX_NUMBERS, MAX_POSTED, Posted, TaggedMessage, Wanted};

/// Version of everything on the wire. Service processes of different versions refuse each other's groups.
pub const VERSION: u8 = 6;
/// Largest frame without payload, bytes.
pub const MAX_FRAME_HEADER: usize = 512;
