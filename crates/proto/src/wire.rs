//! The wire codec: datagram headers, link frames and the messages in them. docs/wire.md describes every byte.
//!
//! All integers are little-endian. Every field is checked on decoding; a decoder never panics and never allocates more
//! than the input's own size allows. The codec never does IO.

mod datagram;
mod frame;
mod message;
mod recorded_memory;
mod transfer;

pub use crate::config::VERSION;
pub use datagram::{DATAGRAM_HEADER_BYTES, DatagramError, DatagramHeader, MulticastKey, PayloadHash, PayloadHasher};
pub use frame::{FRAME_HEADER_BYTES, FrameBytes, FrameHeader, FrameKind};
pub use message::{
    GroupMessage, InstanceMessage, MAX_ADDRESS, MAX_BLOCKS, MAX_OFFERS, MAX_RANGES, MAX_SOURCES, Message,
    MulticastMessage,
};
pub use outboard_call::codec::DecodeError;
pub use recorded_memory::{MAX_PIECES, RecordedMemory};
pub use transfer::{
    Cts, DataPiece, EarlyCts, Few, Fragment, MAX_CTS, MAX_DONE, MAX_PIECES_OF_DATA, MessageNumber, OfferOrigin, Rts,
    Scope, TransferMessage,
};

/// Largest frame without payload, bytes.
pub const MAX_FRAME_HEADER: usize = 512;
