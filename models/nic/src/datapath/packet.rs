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
    /// The message with this index, of so many bytes.
    Data(u32, u64),
    /// The sender lacks chunks and requests them from its left neighbour (MC-6).
    Nak(ChunkStream, ChunkRanges),
    /// The sender lacks chunks that its right neighbour has requested, and reports them to their source.
    Missing(ChunkStream, ChunkRanges),
    /// A run of chunks, of so many bytes, for the right neighbour.
    Repair(ChunkStream, (u32, u32), u64),
    /// The sender has the complete stream; for the right neighbour.
    StreamComplete(ChunkStream),
    /// The sender lacks nothing; for the left neighbour (MC-7).
    Complete,
}
