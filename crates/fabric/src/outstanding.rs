//! The bounds on messages that a fabric has accepted and that have not left yet, for every kind of fabric.
//!
//! Invariant: a peer never exceeds [`FabricLimits`], except that one message always fits. Sends nothing itself.

use crate::{Fabric, FabricLimits, MAX_HEADER, MAX_PAYLOAD, PeerId, SendBuffer, SendError, SendPayload};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendLoad {
    messages: usize,
    bytes: usize,
}

impl SendLoad {
    /// Whether a payload of `length` bytes has to wait.
    pub(crate) fn is_full(self, length: usize, limits: &FabricLimits) -> bool {
        let crowded = self.messages > 0 && self.bytes + length > limits.outstanding_bytes;
        crowded || self.messages >= limits.outstanding_messages
    }

    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    /// The load plus one message with `length` bytes of payload.
    pub(crate) fn with(self, length: usize) -> SendLoad {
        SendLoad { messages: self.messages + 1, bytes: self.bytes + length }
    }

    /// The load minus one message of `length` bytes, which has left.
    pub(crate) fn without(self, length: usize) -> SendLoad {
        SendLoad { messages: self.messages - 1, bytes: self.bytes - length }
    }
}

/// First step of [`Fabric::send`]: refuses a message that is too long or finds no room.
pub(crate) fn check(
    fabric: &mut impl Fabric,
    peer: PeerId,
    header: &[u8],
    payload: &SendPayload<'_>,
) -> Result<(), SendError> {
    let length = payload.len();
    if header.len() > MAX_HEADER || length > MAX_PAYLOAD {
        return Err(SendError::TooLong { header: header.len(), payload: length });
    }
    fabric.ready(peer, length)
}

/// Calls [`check`], then provides the payload in a buffer.
pub(crate) fn admit(
    fabric: &mut impl Fabric,
    peer: PeerId,
    header: &[u8],
    payload: SendPayload<'_>,
) -> Result<Option<SendBuffer>, SendError> {
    check(fabric, peer, header, &payload)?;
    Ok(match payload {
        SendPayload::Empty => None,
        SendPayload::Bytes(bytes) => {
            let mut buffer = fabric.payload_buffer(bytes.len()).ok_or(SendError::Full(peer))?;
            buffer.copy_from_slice(bytes);
            Some(buffer)
        }
        SendPayload::Buffer(buffer) => Some(buffer),
        SendPayload::Mapped(places) => {
            let mut buffer = fabric.payload_buffer(places.bytes()).ok_or(SendError::Full(peer))?;
            places.take(&mut buffer);
            Some(buffer)
        }
    })
}
