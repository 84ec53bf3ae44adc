//! The header of a link frame: sequence, acknowledgement and the clock echo that measures round trips.

use outboard_call::codec::{DecodeError, Reader};
use smallvec::SmallVec;

pub const FRAME_HEADER_BYTES: usize = 36;
const MAGIC: u8 = 0x6f;
const ACK_NOW: u8 = 1;

/// A frame without payload. Most frames are short and need no allocation.
pub type FrameBytes = SmallVec<[u8; 96]>;

/// Whether a frame carries a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Carries the message number `seq`.
    Message,
    /// Carries nothing but its header: an acknowledgement. `seq` is the number of the next message.
    Bare,
}

/// The header of every message between two service processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    pub kind: FrameKind,
    /// The sender requests the acknowledgement without delay.
    pub ack_now: bool,
    /// Number of the sender's end of the link, never 0. The sender's next end has a greater number.
    pub link: u32,
    /// Number of the receiver's end that the sender knows; 0: not known yet.
    pub to: u32,
    /// Low 32 bits of this message's number on this link.
    pub seq: u32,
    /// Low 32 bits of the number of the message expected next from the other end.
    pub ack: u32,
    /// Bytes of payload behind the message.
    pub payload_len: u32,
    /// Sender's clock in microseconds, low 32 bits.
    pub clock: u32,
    /// Last clock received from the other end.
    pub echo: u32,
    /// Microseconds from the receipt of the echoed clock to this frame; `u32::MAX` when no clock was received.
    pub echo_age: u32,
}

impl FrameHeader {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    /// The frame of the message `body`.
    pub(crate) fn frame(&self, body: &[u8]) -> FrameBytes {
        let mut frame = FrameBytes::with_capacity(FRAME_HEADER_BYTES + body.len());
        frame.extend_from_slice(&self.to_bytes());
        frame.extend_from_slice(body);
        frame
    }

    fn to_bytes(self) -> [u8; FRAME_HEADER_BYTES] {
        let kind = match self.kind {
            FrameKind::Message => 0,
            FrameKind::Bare => 1,
        };
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..4].copy_from_slice(&[MAGIC, super::VERSION, kind, if self.ack_now { ACK_NOW } else { 0 }]);
        let fields = [self.link, self.to, self.seq, self.ack, self.payload_len, self.clock, self.echo, self.echo_age];
        bytes[4..].chunks_exact_mut(4).zip(fields).for_each(|(to, field)| to.copy_from_slice(&field.to_le_bytes()));
        bytes
    }

    /// Splits a frame into its header and the message bytes.
    ///
    /// # Errors
    /// An error describes the invalid bytes. `payload_len` must be the length that really arrived.
    pub fn decode(bytes: &[u8], payload_len: u32) -> Result<(FrameHeader, &[u8]), DecodeError> {
        let mut r = Reader::new(bytes);
        if r.u8()? != MAGIC || r.u8()? != super::VERSION {
            return Err(DecodeError::Foreign);
        }
        let kind = match r.u8()? {
            0 => FrameKind::Message,
            1 => FrameKind::Bare,
            _ => return Err(DecodeError::Value("frame kind")),
        };
        let ack_now = match r.u8()? {
            0 => false,
            ACK_NOW => true,
            _ => return Err(DecodeError::Value("frame flags")),
        };
        let header = FrameHeader {
            kind,
            ack_now,
            link: r.u32()?,
            to: r.u32()?,
            seq: r.u32()?,
            ack: r.u32()?,
            payload_len: r.u32()?,
            clock: r.u32()?,
            echo: r.u32()?,
            echo_age: r.u32()?,
        };
        if header.link == 0 {
            return Err(DecodeError::Value("link number"));
        }
        if header.payload_len != payload_len {
            return Err(DecodeError::Value("payload length"));
        }
        let body = r.rest();
        if kind == FrameKind::Bare && (!body.is_empty() || payload_len != 0) {
            return Err(DecodeError::Trailing);
        }
        Ok((header, body))
    }
}
