//! Packets of datapath accelerators.

use outboard_plan::Rank;

/// The chunks of one source that travel in one subgroup; a worker has one bitmap for each of its streams (MC-3, MC-10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkStream {
    pub source: Rank,
    pub subgroup: u16,
}

/// Runs of chunks of a stream, as pairs of first chunk and count.
pub type ChunkRanges = Vec<(u32, u32)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DatapathPacket {
    pub job: u8,
    /// Number of calls of the job before this one.
    pub call: u64,
    pub from: Rank,
    pub content: DatapathContent,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DatapathContent {
    /// One chunk that `from` multicasts, with `bytes` of payload.
    Chunk {
        subgroup: u16,
        /// The number of the chunk in the stream.
        psn: u32,
        /// Bytes behind the header.
        bytes: u32,
    },
    /// A message to one rank, by the reliable transport.
    Reliable { to: Rank, message: ReliableMessage },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReliableMessage {
    /// The sender has entered this round of the ready barrier (MC-4).
    Ready(u8),
    /// The sender offers the message with this index; an empty message is complete with its offer.
    Offer(u32),
    /// The sender reads the message with this index.
    Read(u32),
    /// The message with this index, and its number of bytes.
    Data(u32, u64),
    /// The sender lacks chunks and requests them from its left neighbour (MC-6).
    Nak(ChunkStream, ChunkRanges),
    /// Report to the source: the sender and its right neighbour lack these chunks.
    Missing(ChunkStream, ChunkRanges),
    /// A run of chunks for the right neighbour, as first chunk and count, and its number of bytes.
    Repair(ChunkStream, (u32, u32), u64),
    /// Report to the right neighbour: the sender has the complete stream.
    StreamComplete(ChunkStream),
    /// Report to the left neighbour: the sender lacks nothing (MC-7).
    Complete,
}
