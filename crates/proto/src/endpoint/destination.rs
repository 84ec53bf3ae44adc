//! The destination of a payload that is still on its way, so that a fabric may read it straight into place.
//!
//! Invariant: if the frame comes next, [`Endpoint::handle_frame`] orders this destination
//! ([`Order::Deliver`](crate::Order)). The query changes nothing. The memory belongs to a posted receive, or is staging
//! of a receive. The bytes are not read until the message has come, so they may be written early, and again on a
//! retransmission.

use crate::endpoint::Endpoint;
use crate::endpoint::groups::Group;
use crate::ids::SpId;
use crate::interface::{FramePayload, MemRef};
use crate::wire::{FrameHeader, GroupMessage, Message, TransferMessage};

impl Endpoint {
    /// The destination of the payload of a frame whose `header` alone has come, piece after piece. Empty if there is no
    /// place for the payload yet, or the frame is not the next of its link. In both cases the driver keeps the payload
    /// until all of it has come. The answer holds until the next call into the machine.
    pub fn destination(&self, from: SpId, header: &[u8], payload_len: u32) -> FramePayload {
        let found = || {
            let (frame, body) = FrameHeader::decode(header, payload_len).ok()?;
            if payload_len == 0 || !self.node.peers.is_next(from, &frame) {
                return None;
            }
            let Message::Group { group, body } = Message::decode(body).ok()? else { return None };
            let GroupMessage::Transfer(message) = body else { return None };
            self.groups.get(&group)?.destination(from, &message, payload_len)
        };
        found().unwrap_or_default()
    }
}

impl Group {
    fn destination(&self, from: SpId, message: &TransferMessage, payload_len: u32) -> Option<FramePayload> {
        let pieces: Vec<MemRef> = match message {
            TransferMessage::Expected(fragment) => {
                let gone = self.has_ended(fragment.instance) || self.failure_of(fragment.instance).is_some();
                let comes = !gone && self.members.sp_of_member(fragment.source) == Some(from);
                self.transfer.place_of_fragment(fragment, payload_len).filter(|_| comes).into_iter().collect()
            }
            TransferMessage::Data(pieces) if self.broken().is_none() => {
                self.transfer.places_of_data(from, pieces, payload_len)?
            }
            TransferMessage::Data(_)
            | TransferMessage::Offer { .. }
            | TransferMessage::Cts(_)
            | TransferMessage::Done(_) => return None,
        };
        Some(pieces[..].into())
    }
}
