//! What order-triggered NICs send each other.

use crate::engine::Failure;

/// A packet from a port to a port, of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    pub job: u8,
    pub source_port: u16,
    pub port: u16,
    pub content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// One chunk of a message, with `bytes` of payload.
    Data {
        /// Which message of the pulse.
        seq: u8,
        /// The pulse, in 12 bits: nobody sends what the destination has no room for, so they tell pulses apart.
        pulse: u16,
        chunk: u16,
        /// Bytes behind the header.
        bytes: u32,
    },
    /// One chunk of a message from point to point (C = 0), with `bytes` of payload.
    Direct {
        /// Which message of the source to this port, counted from the job's first.
        number: u64,
        chunk: u16,
        /// Bytes behind the header.
        bytes: u32,
    },
    /// The source has named places for all such messages to it before this one: SwapRemoteAddr.
    Places {
        /// Counted from the job's first.
        before: u64,
    },
    /// The source is going to send pulses up to this one and knows of no room for them.
    Ask {
        /// Counted from the job's first.
        pulse: u64,
    },
    /// There is room for all pulses before this one.
    Grant {
        /// Counted from the job's first.
        before: u64,
    },
    /// The job is over.
    Abort(Failure),
}
