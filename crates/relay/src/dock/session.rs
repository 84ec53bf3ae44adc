//! The reading side of an attached rank: frames of its relay go to the service process, replies go back.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, ChannelError, OFFER_BYTES};
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::region::seal_bytes;
use rustix::event::{PollFd, PollFlags, poll};

use super::call::{Docked, Layout};
use super::delivery::Shared;
use super::{End, refused};
use crate::frame::{Decoder, Frame, MOST_HANDED};
use crate::recording::{Recorded, RecordingName, started};
use crate::wire::WireError;
use outboard_service::MOST_RECORDED;

/// Serves an attached rank until its session ends, or `relay_over` is readable because its relay has ended.
pub(super) fn attached(
    channel: &AttachChannel,
    shared: &Arc<Shared>,
    decoder: &mut Decoder,
    relay_over: &OwnedFd,
) -> Result<(), End> {
    let delivering = Arc::clone(shared);
    let started = std::thread::Builder::new().name("dock-deliver".into()).spawn(move || delivering.deliver());
    if let Err(error) = started {
        return refused(format!("no thread is left for another rank: {error}"));
    }
    let mut session = Session {
        channel,
        shared,
        filling: None,
        handed: None,
        under_way: HashMap::new(),
        asked: HashMap::new(),
        recordings: HashMap::new(),
    };
    loop {
        while let Some(frame) = decoder.next().map_err(WireError::from)? {
            session.take(frame)?;
        }
        let mut fds = [
            PollFd::new(shared.wire.stream(), PollFlags::IN),
            PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
            PollFd::new(relay_over, PollFlags::IN),
        ];
        if let Err(errno) = rustix::io::retry_on_intr(|| poll(&mut fds, None)) {
            return refused(format!("the service process cannot wait: {errno}"));
        }
        let [from_relay, from_service, relay_over] = [0, 1, 2].map(|at| !fds[at].revents().is_empty());
        if relay_over {
            return Err(End::Over);
        }
        if from_service {
            session.replies()?;
        }
        if from_relay {
            shared.wire.fill(decoder)?;
        }
    }
}

/// A request whose descriptor content is still arriving.
#[derive(Debug)]
struct Handing {
    token: u64,
    request: AttachRequest,
    whole: usize,
    bytes: Vec<u8>,
}

/// The request behind an outstanding reply.
#[derive(Debug)]
enum Asked {
    /// The recording becomes known once the service process has stored it.
    Record(RecordingName, Arc<Recorded>),
    DestroyGroup(u64),
}

struct Session<'a> {
    channel: &'a AttachChannel,
    shared: &'a Shared,
    filling: Option<Docked>,
    handed: Option<Handing>,
    /// Content bytes of unanswered requests, by token.
    under_way: HashMap<u64, usize>,
    asked: HashMap<u64, Asked>,
    /// Recordings that the service process has stored.
    recordings: HashMap<RecordingName, Arc<Recorded>>,
}

fn ended(error: &ChannelError) -> End {
    match error {
        ChannelError::Closed => End::Over,
        error => End::Refused(format!("the service process does not take a request: {error}")),
    }
}

impl Session<'_> {
    fn take(&mut self, frame: Frame<'_>) -> Result<(), End> {
        match frame {
            Frame::AttachRequest(bytes) => self.request(bytes),
            Frame::CreateGroup { token, ranks, rank } => {
                if rank >= ranks || ranks > u32::from(u16::MAX) {
                    return refused("malformed relay frame: a group that cannot be");
                }
                self.hand(token, AttachRequest::CreateGroup { ranks, rank }, ranks as usize * OFFER_BYTES)
            }
            Frame::Record { token, group, recording, bytes } => {
                let whole = usize::try_from(bytes).ok().filter(|_| (1..=MOST_RECORDED).contains(&bytes));
                let Some(whole) = whole else { return refused("malformed relay frame: a recording that cannot be") };
                self.hand(token, AttachRequest::Record { group, recording, bytes }, whole)
            }
            Frame::Handed(bytes) => self.handed(bytes),
            Frame::Call { words, input, table, output } => {
                let slots = self.shared.side.slots();
                let Ok(entry) = SubmissionEntry::decode(&words, slots) else {
                    return refused("malformed relay frame: bad call");
                };
                self.call(entry, input, table, output)
            }
            Frame::Unreadable { slot } => match self.filling.take_if(|call| call.entry.slot == slot) {
                Some(call) => self.filled(call.unreadable()),
                None => refused("malformed relay frame: no such call needs bytes"),
            },
            Frame::Data { slot, offset, bytes } => {
                let call = self.filling.as_mut().filter(|call| call.entry.slot == slot);
                if !call.is_some_and(|call| call.fill(offset, bytes)) {
                    return refused("malformed relay frame: bytes that no call needs");
                }
                match self.filling.take_if(|call| call.missing == 0) {
                    Some(call) => self.filled(call),
                    None => Ok(()),
                }
            }
            Frame::Open
            | Frame::Opened { .. }
            | Frame::Greeting { .. }
            | Frame::AttachReply(_)
            | Frame::Complete { .. }
            | Frame::Refused { .. } => refused("malformed relay frame: not an attached rank's"),
        }
    }

    fn request(&mut self, bytes: &[u8]) -> Result<(), End> {
        let (token, request) = match AttachRequest::decode(bytes) {
            Ok(decoded) => decoded,
            Err(error) => return refused(error),
        };
        match &request {
            AttachRequest::DestroyGroup { group } => drop(self.asked.insert(token, Asked::DestroyGroup(*group))),
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
            _ => refused("malformed relay frame: a request that is the relay's to answer"),
        }
    }

    /// A request with a descriptor begins; its content follows.
    fn hand(&mut self, token: u64, request: AttachRequest, whole: usize) -> Result<(), End> {
        if self.handed.is_some() || whole == 0 {
            return refused("malformed relay frame: a request amid another");
        }
        let others: usize = self.under_way.values().sum();
        if others + whole > MOST_HANDED || self.under_way.insert(token, whole).is_some() {
            return refused("malformed relay frame: more content than a relay passes on at once");
        }
        self.handed = Some(Handing { token, request, whole, bytes: Vec::new() });
        Ok(())
    }

    fn handed(&mut self, bytes: &[u8]) -> Result<(), End> {
        let Some(handing) = &mut self.handed else { return refused("malformed relay frame: content of no request") };
        if bytes.len() > handing.whole - handing.bytes.len() {
            return refused("malformed relay frame: more content than announced");
        }
        handing.bytes.extend(bytes);
        let Some(Handing { token, request, bytes, .. }) =
            self.handed.take_if(|handing| handing.bytes.len() == handing.whole)
        else {
            return Ok(());
        };
        let name = match request {
            AttachRequest::Record { group, recording, .. } => {
                let recorded = Recorded::decode(&bytes).or_else(refused)?;
                self.asked.insert(token, Asked::Record((group, recording), Arc::new(recorded)));
                "outboard-recording"
            }
            _ => "outboard-offers",
        };
        let sealed = seal_bytes(name, &bytes).or_else(refused)?;
        self.channel.send(token, &request, &[sealed.as_fd()]).map_err(|error| ended(&error))
    }

    /// Layout of a call, and the bytes of its shadow.
    fn layout(&self, entry: &SubmissionEntry, (input, table, output): (u64, u64, u64)) -> Result<(Layout, u64), End> {
        match started(entry).and_then(|name| self.recordings.get(&name)) {
            None => match Layout::apart(input, table, output) {
                Some(laid_out) => Ok(laid_out),
                None => refused("malformed relay frame: a call that exceeds the address space"),
            },
            Some(recorded) if (recorded.reads.total(), 0, recorded.writes.total()) == (input, table, output) => {
                Ok((Layout::Recorded(Arc::clone(recorded)), recorded.memory.total()))
            }
            Some(_) => refused("malformed relay frame: a start that is not as it was recorded"),
        }
    }

    fn call(&mut self, entry: SubmissionEntry, input: u64, table: u64, output: u64) -> Result<(), End> {
        let slot = entry.slot;
        let (layout, bytes) = self.layout(&entry, (input, table, output))?;
        let mut books = self.shared.books();
        if books.posted.contains_key(&slot) || self.filling.is_some() {
            return refused("malformed relay frame: a call amid another");
        }
        let shadow = books.shadows.take(bytes).or_else(refused)?;
        drop(books);
        let call = Docked::new(entry, shadow, layout);
        if call.missing == 0 {
            return self.filled(call);
        }
        self.filling = Some(call);
        Ok(())
    }

    /// The input is complete, or will never arrive: posts the call.
    fn filled(&mut self, call: Docked) -> Result<(), End> {
        let (mut books, slot) = (self.shared.books(), call.entry.slot);
        self.shared.side.arm(slot);
        let posted = self.shared.side.post(&call.placed());
        books.posted.insert(slot, call);
        drop(books);
        self.shared.changed.notify_all();
        posted.or_else(refused)
    }

    fn replies(&mut self) -> Result<(), End> {
        while let Some(reply) = self.channel.receive::<AttachReply>().map_err(|error| ended(&error))? {
            self.under_way.remove(&reply.token);
            match (self.asked.remove(&reply.token), &reply.message) {
                (Some(Asked::Record(name, recorded)), AttachReply::Done) => {
                    drop(self.recordings.insert(name, recorded))
                }
                (Some(Asked::DestroyGroup(group)), AttachReply::Done) => {
                    self.recordings.retain(|name, _| name.0 != group)
                }
                _ => {}
            }
            self.shared.wire.send(&Frame::AttachReply(&reply.message.encode(reply.token)))?;
        }
        Ok(())
    }
}
