//! Requests of a rank at its attach socket: answered here if they concern the rank's memory, else forwarded.

use std::os::fd::OwnedFd;

use outboard_fabric::limited;
use outboard_service::{Refused, register, sealed, sealed_recording};
use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachReply, AttachRequest, ChannelError, OFFER_BYTES, ReceivedMessage};
use outboard_shm::status::Status;

use super::relayed::{Gone, Relayed};
use crate::frame::{DATA_BYTES, Frame, MOST_HANDED};
use crate::recording::{Recorded, RecordingName};
use crate::session::Asked;

impl Relayed {
    pub(super) fn take_requests(&mut self) -> Result<bool, Gone> {
        match self.channel.receive::<AttachRequest>() {
            Ok(None) => Ok(false),
            Ok(Some(received)) => {
                self.request(received);
                Ok(true)
            }
            Err(ChannelError::Closed) => Err(Gone::Rank),
            Err(error) => {
                limited!(warn, pid = self.session.pid, %error, "a connection is given up");
                Err(Gone::Rank)
            }
        }
    }

    fn request(&mut self, received: ReceivedMessage<AttachRequest>) {
        let ReceivedMessage { token, message, descriptors } = received;
        if self.session.books().asked.contains_key(&token) {
            return self.session.answer(&self.channel, token, &error(Status::Protocol, "its token is in use"));
        }
        let local = match &message {
            AttachRequest::Hello(_) => Some(error(Status::Protocol, "this connection is attached already")),
            AttachRequest::RegisterMemory { address, bytes, .. } => {
                Some(register(&self.session.memory, descriptors, *address, *bytes).unwrap_or_else(Refused::reply))
            }
            AttachRequest::UnregisterMemory { address } => {
                Some(match self.session.memory.ranges().unregister(*address) {
                    Ok(()) => AttachReply::Done,
                    Err(unknown) => error(Status::Argument, unknown),
                })
            }
            AttachRequest::ErrorText { slot } => {
                let books = self.session.books();
                books
                    .failures
                    .get(slot)
                    .map(|(status, text)| AttachReply::ErrorText { status: *status, text: text.clone() })
            }
            AttachRequest::CreateGroup { ranks, rank } if !self.lost => {
                return self.create_group(token, (*ranks, *rank), descriptors);
            }
            AttachRequest::Record { group, recording, bytes } if !self.lost => {
                return self.record(token, (*group, *recording), *bytes, descriptors);
            }
            AttachRequest::FreeRecording { group, recording } if !self.lost => {
                self.free_recording((*group, *recording))
            }
            AttachRequest::Offer
            | AttachRequest::Record { .. }
            | AttachRequest::DestroyGroup { .. }
            | AttachRequest::SetDeadline { .. }
            | AttachRequest::FreeRecording { .. }
            | AttachRequest::Detach
            | AttachRequest::CreateGroup { .. } => None,
            AttachRequest::Restage(restaged) => {
                // The call may still lie in the ring, with the addresses from before the copy.
                while self.take_submissions() {}
                let taken = self.session.restage(restaged);
                if taken && let Some((slot, offset)) = self.stalled.take_if(|(slot, _)| *slot == restaged.slot) {
                    let sent = self.send_input(slot, offset);
                    self.note(sent);
                    self.send_outgoing();
                }
                Some(if taken { AttachReply::Done } else { error(Status::Argument, "the call has ended") })
            }
        };
        match (local, &message) {
            (Some(reply), _) => self.session.answer(&self.channel, token, &reply),
            (
                None,
                AttachRequest::DestroyGroup { .. } | AttachRequest::FreeRecording { .. } | AttachRequest::Detach,
            ) if self.lost => {
                self.session.answer(&self.channel, token, &AttachReply::Done);
            }
            (None, _) if self.lost => {
                let why = self.session.books().lost.clone().unwrap_or_default();
                self.session.answer(&self.channel, token, &error(Status::ServiceLost, why));
            }
            (None, request) => self.forward(token, request),
        }
    }

    fn forward(&self, token: u64, request: &AttachRequest) {
        let asked = match request {
            AttachRequest::DestroyGroup { group } => Asked::DestroyGroup(*group),
            _ => Asked::Other,
        };
        self.session.books().asked.insert(token, asked);
        self.note(self.session.wire.send(&Frame::AttachRequest(&request.encode(token))));
    }

    fn create_group(&self, token: u64, (ranks, rank): (u32, u32), descriptors: Vec<OwnedFd>) {
        let most = u32::from(u16::MAX);
        if ranks > most {
            let text = format!("{ranks} ranks exceed the {most} of a group");
            return self.session.answer(&self.channel, token, &error(Status::Argument, text));
        }
        if !self.session.books().may_hand(ranks as usize * OFFER_BYTES) {
            return self.session.answer(&self.channel, token, &too_much());
        }
        let offers = match sealed(descriptors, ranks as usize * OFFER_BYTES) {
            Ok(offers) => offers,
            Err(refused) => return self.session.answer(&self.channel, token, &refused.reply()),
        };
        self.session.books().asked.insert(token, Asked::CreateGroup(ranks, rank));
        self.hand(&Frame::CreateGroup { token, ranks, rank }, &offers);
    }

    /// Forwards a request, and after it the content of its descriptor.
    fn hand(&self, request: &Frame<'_>, content: &[u8]) {
        let wire = &self.session.wire;
        let sent = wire.send(request);
        let handed = || content.chunks(DATA_BYTES).try_for_each(|piece| wire.send(&Frame::Handed(piece)));
        self.note(sent.and_then(|()| handed()));
    }

    /// A recording crosses once; both sides derive from it which bytes its starts move (GP-5).
    fn record(&self, token: u64, name: RecordingName, bytes: u64, descriptors: Vec<OwnedFd>) {
        if !self.session.books().may_hand(usize::try_from(bytes).unwrap_or(MOST_HANDED)) {
            return self.session.answer(&self.channel, token, &too_much());
        }
        let encoded = match sealed_recording(descriptors, bytes) {
            Ok(encoded) => encoded,
            Err(refused) => return self.session.answer(&self.channel, token, &refused.reply()),
        };
        match Recorded::decode(&encoded) {
            Ok(recorded) => {
                self.session.books().asked.insert(token, Asked::Record(name, recorded.into(), encoded.len()));
                let (group, recording) = name;
                self.hand(&Frame::Record { token, group, recording, bytes }, &encoded);
            }
            Err(cause) => self.session.answer(&self.channel, token, &error(Status::Argument, cause)),
        }
    }

    /// Removes a recording, unless it is in use. Returns `None` if the service process must remove it too.
    fn free_recording(&mut self, name: RecordingName) -> Option<AttachReply> {
        // Starts that were posted before the request count.
        while self.take_submissions() {}
        let mut books = self.session.books();
        if books.recordings.get(&name).is_some_and(|kept| kept.busy.is_some()) {
            return Some(error(Status::Busy, "calls of the recording are in flight; wait for them"));
        }
        books.recordings.remove(&name);
        None
    }

    /// Logs a failed send. The rank gets its answer when the other thread reports the loss.
    pub(super) fn note(&self, sent: std::io::Result<()>) {
        if let Err(error) = sent {
            tracing::debug!(pid = self.session.pid, %error, "a frame does not reach the service process");
        }
    }
}

fn too_much() -> AttachReply {
    let text =
        format!("groups and recordings of {MOST_HANDED} bytes are under way to the service process; wait for them");
    error(Status::Resource, text)
}

fn error(status: Status, text: impl ToString) -> AttachReply {
    AttachReply::Error { status, text: text.to_string() }
}
