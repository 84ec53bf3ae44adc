//! Packets of order-triggered NICs.

use crate::engine::JobFailure;

/// A packet from one port of a job to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderedPacket {
    pub job: u8,
    pub source_port: u16,
    pub port: u16,
    pub content: OrderedContent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderedContent {
    /// One chunk of a message, with `bytes` of payload.
    Data {
        /// The message within the pulse.
        seq: u8,
        /// The pulse. 12 bits suffice, because no sender sends a pulse that the destination has no room for.
        pulse: u16,
        chunk: u16,
        /// Bytes behind the header.
        bytes: u32,
    },
    /// One chunk of a point-to-point message (C = 0), with `bytes` of payload.
    Direct {
        /// The message from the source to this port, counted from the first of the job.
        number: u64,
        chunk: u16,
        /// Bytes behind the header.
        bytes: u32,
    },
    /// SwapRemoteAddr: the sender has named places for all point-to-point messages to the sender before this number.
    Places {
        /// Counted from the first of the job.
        before: u64,
    },
    /// The sender requests room for all pulses up to this one, because it has no grant for them.
    RequestRoom {
        /// Counted from the first of the job.
        pulse: u64,
    },
    /// The sender grants room for all pulses before this one.
    Grant {
        /// Counted from the first of the job.
        before: u64,
    },
    /// The job has failed.
    Abort(JobFailure),
}
