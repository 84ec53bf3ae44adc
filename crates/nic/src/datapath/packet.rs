//! What datapath accelerators send each other.

use outboard_plan::Rank;

/// Chunks of one source that travel in one subgroup: a worker has a bitmap for each of its own (MC-3, MC-10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    pub source: Rank,
    pub subgroup: u16,
}

/// Runs of chunks of a stream, as first and count.
pub type Ranges = Vec<(u32, u32)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Packet {
    pub job: u8,
    /// Calls of the job before.
    pub call: u64,
    pub from: Rank,
    pub content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Content {
    /// One chunk of what `from` multicasts, with `bytes` of payload.
    Chunk {
        subgroup: u16,
        /// Its number in the stream.
        psn: u32,
        /// Bytes behind the header.
        bytes: u32,
    },
    /// Something for one rank, by the reliable transport.
    Reliable { to: Rank, message: Message },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// It has entered this round of the ready barrier (MC-4).
    Ready(u8),
    /// It has the message with this index; one without bytes is over with it.
    Offer(u32),
    /// It reads that message.
    Read(u32),
    /// That message, of so many bytes.
    Data(u32, u64),
    /// It lacks chunks, and asks its left neighbour for them (MC-6).
    Nak(Stream, Ranges),
    /// It lacks chunks that its right neighbour has asked it for, and tells their source.
    Missing(Stream, Ranges),
    /// A run of chunks, of so many bytes, for the right neighbour.
    Repair(Stream, (u32, u32), u64),
    /// All of the stream lies there; for the right neighbour.
    Whole(Stream),
    /// It lacks nothing; for the left neighbour (MC-7).
    Complete,
}
