//! Requests of a rank at its attach socket. Requests that concern the rank's memory are answered here, others are
//! forwarded.

use std::os::fd::OwnedFd;

use outboard_fabric::limited;
use outboard_service::{RefusedRequest, read_sealed, read_sealed_recording, register_memory};
use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachReply, AttachRequest, ChannelError, OFFER_BYTES, ReceivedMessage};
use outboard_shm::status::Status;

use super::relayed_rank::{RankEnd, RelayedRank};
use crate::frame::{DATA_BYTES, MOST_HANDED, RelayFrame};
use crate::recording::{RecordingName, RelayedRecording};
use crate::session::PendingRequest;

impl RelayedRank {
    pub(super) fn take_requests(&mut self) -> Result<bool, RankEnd> {
        match self.channel.receive::<AttachRequest>() {
            Ok(None) => Ok(false),
            Ok(Some(received)) => {
                self.request(received);
                Ok(true)
            }
            Err(ChannelError::Closed) => Err(RankEnd::Rank),
            Err(error) => {
                limited!(warn, pid = self.session.pid, %error, "a connection is given up");
                Err(RankEnd::Rank)
            }
        }
    }

    fn request(&mut self, received: ReceivedMessage<AttachRequest>) {
        let ReceivedMessage { token, message, descriptors } = received;
        if self.session.state().pending_requests.contains_key(&token) {
            return self.session.send_reply(&self.channel, token, &error(Status::Protocol, "its token is in use"));
        }
        let local = match &message {
            AttachRequest::Hello(_) => Some(error(Status::Protocol, "this connection is attached already")),
            AttachRequest::RegisterMemory { address, bytes, .. } => Some(
                register_memory(&self.session.memory, descriptors, *address, *bytes)
                    .unwrap_or_else(RefusedRequest::reply),
            ),
            AttachRequest::UnregisterMemory { address } => {
                Some(match self.session.memory.ranges().unregister(*address) {
                    Ok(()) => AttachReply::Done,
                    Err(unknown) => error(Status::Argument, unknown),
                })
            }
            AttachRequest::ErrorText { slot } => {
                let state = self.session.state();
                state
                    .failures
                    .get(slot)
                    .map(|(status, text)| AttachReply::ErrorText { status: *status, text: text.clone() })
            }
            AttachRequest::CreateGroup { ranks, rank } if !self.lost => {
                return self.create_group(token, *ranks, *rank, descriptors);
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
                // The call may still lie in the ring, with the addresses of the original buffers.
                while self.take_submissions() {}
                let taken = self.session.restage(restaged);
                if taken && let Some((slot, offset)) = self.stalled.take_if(|(slot, _)| *slot == restaged.slot) {
                    let sent = self.send_input(slot, offset);
                    self.log_failed_send(sent);
                    self.send_outgoing();
                }
                Some(if taken { AttachReply::Done } else { error(Status::Argument, "the call has ended") })
            }
            // Only a service process without a relay requests that single calls are staged.
            AttachRequest::RefuseRestage { .. } => Some(error(Status::Argument, "no copy was requested")),
        };
        match (local, &message) {
            (Some(reply), _) => self.session.send_reply(&self.channel, token, &reply),
            (
                None,
                AttachRequest::DestroyGroup { .. } | AttachRequest::FreeRecording { .. } | AttachRequest::Detach,
            ) if self.lost => {
                self.session.send_reply(&self.channel, token, &AttachReply::Done);
            }
            (None, _) if self.lost => {
                let why = self.session.state().lost.clone().unwrap_or_default();
                self.session.send_reply(&self.channel, token, &error(Status::ServiceLost, why));
            }
            (None, request) => self.forward(token, request),
        }
    }

    fn forward(&self, token: u64, request: &AttachRequest) {
        let pending_requests = match request {
            AttachRequest::DestroyGroup { group } => PendingRequest::DestroyGroup(*group),
            _ => PendingRequest::Other,
        };
        self.session.state().pending_requests.insert(token, pending_requests);
        self.log_failed_send(self.session.wire.send(&RelayFrame::AttachRequest(&request.encode(token))));
    }

    fn create_group(&self, token: u64, ranks: u32, rank: u32, descriptors: Vec<OwnedFd>) {
        let most = u32::from(u16::MAX);
        if ranks > most {
            let text = format!("{ranks} ranks exceed the {most} of a group");
            return self.session.send_reply(&self.channel, token, &error(Status::Argument, text));
        }
        if !self.session.state().may_forward(ranks as usize * OFFER_BYTES) {
            return self.session.send_reply(&self.channel, token, &too_much());
        }
        let offers = match read_sealed(descriptors, ranks as usize * OFFER_BYTES) {
            Ok(offers) => offers,
            Err(refused) => return self.session.send_reply(&self.channel, token, &refused.reply()),
        };
        self.session.state().pending_requests.insert(token, PendingRequest::CreateGroup(ranks, rank));
        self.forward_with_content(&RelayFrame::CreateGroup { token, ranks, rank }, &offers);
    }

    /// Forwards a request, then the content of the request's descriptor.
    fn forward_with_content(&self, request: &RelayFrame<'_>, content: &[u8]) {
        let wire = &self.session.wire;
        let sent = wire.send(request);
        let handed = || content.chunks(DATA_BYTES).try_for_each(|piece| wire.send(&RelayFrame::Handed(piece)));
        self.log_failed_send(sent.and_then(|()| handed()));
    }

    /// Forwards a recording, which crosses only once: both sides derive from it which bytes its starts move (GP-5).
    fn record(&self, token: u64, name: RecordingName, bytes: u64, descriptors: Vec<OwnedFd>) {
        if !self.session.state().may_forward(usize::try_from(bytes).unwrap_or(MOST_HANDED)) {
            return self.session.send_reply(&self.channel, token, &too_much());
        }
        let encoded = match read_sealed_recording(descriptors, bytes) {
            Ok(encoded) => encoded,
            Err(refused) => return self.session.send_reply(&self.channel, token, &refused.reply()),
        };
        match RelayedRecording::decode(&encoded) {
            Ok(recorded) => {
                self.session
                    .state()
                    .pending_requests
                    .insert(token, PendingRequest::Record(name, recorded.into(), encoded.len()));
                let (group, recording) = name;
                self.forward_with_content(&RelayFrame::Record { token, group, recording, bytes }, &encoded);
            }
            Err(cause) => self.session.send_reply(&self.channel, token, &error(Status::Argument, cause)),
        }
    }

    /// Removes a recording, unless it is in use. Returns the reply, or `None` if the service process must remove the
    /// recording too.
    fn free_recording(&mut self, name: RecordingName) -> Option<AttachReply> {
        // Starts that were posted before the request must count as uses.
        while self.take_submissions() {}
        let mut state = self.session.state();
        if state.recordings.get(&name).is_some_and(|stored| stored.busy.is_some()) {
            return Some(error(Status::Busy, "calls of the recording are in flight; wait for them"));
        }
        state.recordings.remove(&name);
        None
    }

    /// Logs a failed send. The rank gets its answer when the second thread reports the loss of the service process.
    pub(super) fn log_failed_send(&self, sent: std::io::Result<()>) {
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
