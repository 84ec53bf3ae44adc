//! The reading thread of an attached rank: passes frames of the relay to the service process, and replies to the relay.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, ChannelError, OFFER_BYTES};
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::region::seal_bytes;
use rustix::event::{PollFd, PollFlags, poll};

use super::call::{DockedCall, ProxyLayout};
use super::delivery::DockDelivery;
use super::{SessionEnd, refuse_with};
use crate::frame::{Decoder, MOST_HANDED, RelayFrame};
use crate::recording::{RecordingName, RelayedRecording, recording_of};
use crate::wire::WireError;
use outboard_service::MAX_RECORDING_BYTES;

/// Serves an attached rank until its session ends, or until `relay_over` is readable because the relay has ended.
pub(super) fn attached(
    channel: &AttachChannel,
    shared: &Arc<DockDelivery>,
    decoder: &mut Decoder,
    relay_over: &OwnedFd,
) -> Result<(), SessionEnd> {
    let delivering = Arc::clone(shared);
    let recording_of = std::thread::Builder::new().name("dock-deliver".into()).spawn(move || delivering.deliver());
    if let Err(error) = recording_of {
        return refuse_with(format!("no thread is left for another rank: {error}"));
    }
    let mut session = DockSession {
        channel,
        shared,
        filling: None,
        receive_content: None,
        under_way: HashMap::new(),
        pending_replies: HashMap::new(),
        recordings: HashMap::new(),
    };
    loop {
        while let Some(frame) = decoder.next().map_err(WireError::from)? {
            session.handle_frame(frame)?;
        }
        let mut fds = [
            PollFd::new(shared.wire.stream(), PollFlags::IN),
            PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
            PollFd::new(relay_over, PollFlags::IN),
        ];
        if let Err(errno) = rustix::io::retry_on_intr(|| poll(&mut fds, None)) {
            return refuse_with(format!("the service process cannot wait: {errno}"));
        }
        let [from_relay, from_service, relay_over] = [0, 1, 2].map(|at| !fds[at].revents().is_empty());
        if relay_over {
            return Err(SessionEnd::Over);
        }
        if from_service {
            session.replies()?;
        }
        if from_relay {
            shared.wire.fill(decoder)?;
        }
    }
}

/// A request whose descriptor content has not arrived completely.
#[derive(Debug)]
struct PartialRequest {
    token: u64,
    request: AttachRequest,
    whole: usize,
    bytes: Vec<u8>,
}

/// The request that an outstanding reply answers.
#[derive(Debug)]
enum PendingReply {
    /// A recording, which is usable once the service process has stored it.
    Record(RecordingName, Arc<RelayedRecording>),
    DestroyGroup(u64),
}

struct DockSession<'a> {
    channel: &'a AttachChannel,
    shared: &'a DockDelivery,
    filling: Option<DockedCall>,
    receive_content: Option<PartialRequest>,
    /// Content bytes of each unanswered request, by token.
    under_way: HashMap<u64, usize>,
    pending_replies: HashMap<u64, PendingReply>,
    /// Recordings that the service process has stored.
    recordings: HashMap<RecordingName, Arc<RelayedRecording>>,
}

fn ended(error: &ChannelError) -> SessionEnd {
    match error {
        ChannelError::Closed => SessionEnd::Over,
        error => SessionEnd::Refused(format!("the service process does not take a request: {error}")),
    }
}

impl DockSession<'_> {
    fn handle_frame(&mut self, frame: RelayFrame<'_>) -> Result<(), SessionEnd> {
        match frame {
            RelayFrame::AttachRequest(bytes) => self.request(bytes),
            RelayFrame::CreateGroup { token, ranks, rank } => {
                if rank >= ranks || ranks > u32::from(u16::MAX) {
                    return refuse_with("malformed relay frame: a group that cannot be");
                }
                self.begin_request(token, AttachRequest::CreateGroup { ranks, rank }, ranks as usize * OFFER_BYTES)
            }
            RelayFrame::Record { token, group, recording, bytes } => {
                let whole = usize::try_from(bytes).ok().filter(|_| (1..=MAX_RECORDING_BYTES).contains(&bytes));
                let Some(whole) = whole else {
                    return refuse_with("malformed relay frame: a recording that cannot be");
                };
                self.begin_request(token, AttachRequest::Record { group, recording, bytes }, whole)
            }
            RelayFrame::Handed(bytes) => self.receive_content(bytes),
            RelayFrame::Call { words, input, table, output } => {
                let slots = self.shared.side.slots();
                let Ok(entry) = SubmissionEntry::decode(&words, slots) else {
                    return refuse_with("malformed relay frame: bad call");
                };
                self.call(entry, input, table, output)
            }
            RelayFrame::Unreadable { slot } => match self.filling.take_if(|call| call.entry.slot == slot) {
                Some(call) => self.post_call(call.unreadable()),
                None => refuse_with("malformed relay frame: no such call needs bytes"),
            },
            RelayFrame::Data { slot, offset, bytes } => {
                let call = self.filling.as_mut().filter(|call| call.entry.slot == slot);
                if !call.is_some_and(|call| call.fill(offset, bytes)) {
                    return refuse_with("malformed relay frame: bytes that no call needs");
                }
                match self.filling.take_if(|call| call.missing == 0) {
                    Some(call) => self.post_call(call),
                    None => Ok(()),
                }
            }
            RelayFrame::Open
            | RelayFrame::Opened { .. }
            | RelayFrame::Greeting { .. }
            | RelayFrame::AttachReply(_)
            | RelayFrame::Complete { .. }
            | RelayFrame::Refused { .. } => refuse_with("malformed relay frame: not an attached rank's"),
        }
    }

    fn request(&mut self, bytes: &[u8]) -> Result<(), SessionEnd> {
        let (token, request) = match AttachRequest::decode(bytes) {
            Ok(decoded) => decoded,
            Err(error) => return refuse_with(error),
        };
        match &request {
            AttachRequest::DestroyGroup { group } => {
                drop(self.pending_replies.insert(token, PendingReply::DestroyGroup(*group)))
            }
            AttachRequest::FreeRecording { group, recording } => drop(self.recordings.remove(&(*group, *recording))),
            _ => {}
        }
        match request {
            AttachRequest::Offer
            | AttachRequest::DestroyGroup { .. }
            | AttachRequest::FreeRecording { .. }
            | AttachRequest::SetDeadline { .. }
            | AttachRequest::ErrorText { .. }
            | AttachRequest::Detach => self.channel.send(token, &request, &[]).map_err(|error| ended(&error)),
            _ => refuse_with("malformed relay frame: a request that is the relay's to answer"),
        }
    }

    /// Begins a request with a descriptor; the content of the descriptor follows in other frames.
    fn begin_request(&mut self, token: u64, request: AttachRequest, whole: usize) -> Result<(), SessionEnd> {
        if self.receive_content.is_some() || whole == 0 {
            return refuse_with("malformed relay frame: a request amid another");
        }
        let others: usize = self.under_way.values().sum();
        if others + whole > MOST_HANDED || self.under_way.insert(token, whole).is_some() {
            return refuse_with("malformed relay frame: more content than a relay passes on at once");
        }
        self.receive_content = Some(PartialRequest { token, request, whole, bytes: Vec::new() });
        Ok(())
    }

    fn receive_content(&mut self, bytes: &[u8]) -> Result<(), SessionEnd> {
        let Some(partial) = &mut self.receive_content else {
            return refuse_with("malformed relay frame: content of no request");
        };
        if bytes.len() > partial.whole - partial.bytes.len() {
            return refuse_with("malformed relay frame: more content than announced");
        }
        partial.bytes.extend(bytes);
        let Some(PartialRequest { token, request, bytes, .. }) =
            self.receive_content.take_if(|partial| partial.bytes.len() == partial.whole)
        else {
            return Ok(());
        };
        let name = match request {
            AttachRequest::Record { group, recording, .. } => {
                let recorded = RelayedRecording::decode(&bytes).or_else(refuse_with)?;
                self.pending_replies.insert(token, PendingReply::Record((group, recording), Arc::new(recorded)));
                "outboard-recording"
            }
            _ => "outboard-offers",
        };
        let sealed = seal_bytes(name, &bytes).or_else(refuse_with)?;
        self.channel.send(token, &request, &[sealed.as_fd()]).map_err(|error| ended(&error))
    }

    /// Layout of a call, and the length of its proxy buffer.
    fn layout(
        &self,
        entry: &SubmissionEntry,
        input: u64,
        table: u64,
        output: u64,
    ) -> Result<(ProxyLayout, u64), SessionEnd> {
        match recording_of(entry).and_then(|name| self.recordings.get(&name)) {
            None => match ProxyLayout::apart(input, table, output) {
                Some(laid_out) => Ok(laid_out),
                None => refuse_with("malformed relay frame: a call that exceeds the address space"),
            },
            Some(recorded) if (recorded.reads.total(), 0, recorded.writes.total()) == (input, table, output) => {
                Ok((ProxyLayout::Recorded(Arc::clone(recorded)), recorded.memory.total()))
            }
            Some(_) => refuse_with("malformed relay frame: a start that is not as it was recorded"),
        }
    }

    fn call(&mut self, entry: SubmissionEntry, input: u64, table: u64, output: u64) -> Result<(), SessionEnd> {
        let slot = entry.slot;
        let (layout, bytes) = self.layout(&entry, input, table, output)?;
        let mut state = self.shared.state();
        if state.posted.contains_key(&slot) || self.filling.is_some() {
            return refuse_with("malformed relay frame: a call amid another");
        }
        let proxy_buffer = state.proxy_buffers.take(bytes).or_else(refuse_with)?;
        drop(state);
        let call = DockedCall::new(entry, proxy_buffer, layout);
        if call.missing == 0 {
            return self.post_call(call);
        }
        self.filling = Some(call);
        Ok(())
    }

    /// Posts a call whose input is complete, or will never arrive.
    fn post_call(&mut self, call: DockedCall) -> Result<(), SessionEnd> {
        let (mut state, slot) = (self.shared.state(), call.entry.slot);
        self.shared.side.arm(slot);
        let posted = self.shared.side.post(&call.entry_in_buffer());
        state.posted.insert(slot, call);
        drop(state);
        self.shared.changed.notify_all();
        posted.or_else(refuse_with)
    }

    fn replies(&mut self) -> Result<(), SessionEnd> {
        while let Some(reply) = self.channel.receive::<AttachReply>().map_err(|error| ended(&error))? {
            self.under_way.remove(&reply.token);
            match (self.pending_replies.remove(&reply.token), &reply.message) {
                (Some(PendingReply::Record(name, recorded)), AttachReply::Done) => {
                    drop(self.recordings.insert(name, recorded))
                }
                (Some(PendingReply::DestroyGroup(group)), AttachReply::Done) => {
                    self.recordings.retain(|name, _| name.0 != group)
                }
                _ => {}
            }
            self.shared.wire.send(&RelayFrame::AttachReply(&reply.message.encode(reply.token)))?;
        }
        Ok(())
    }
}
