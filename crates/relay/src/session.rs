//! State of a relayed rank that both of its threads on the host share: calls in flight, and the handling of their
//! frames.
//!
//! Invariants: a call is in flight from before its last frame is sent until its completion word is written. If only the
//! rank can store output, the output and the completion are held until the rank has copied its buffers.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use outboard_service::MemoryPieces;
use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachChannel, AttachReply, OFFER_BYTES, RestagedBuffers};
use outboard_shm::control::Completer;
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::memory::{AccessError, RankMemory, TieredMemory};
use outboard_shm::status::Status;

use crate::frame::{Decoder, MOST_HANDED, RelayFrame};
use crate::host::InFlightGuard;
use crate::recording::{RecordingName, RelayedRecording};
use crate::submission::Submission;
use crate::wire::{Wire, lock};

#[derive(Debug, Clone, Copy)]
pub(super) struct RelayedMembership {
    pub(super) ranks: u32,
    pub(super) me: u32,
}

#[derive(Debug)]
pub(super) struct OutgoingCall {
    pub(super) entry: SubmissionEntry,
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) table: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct StoredRecording {
    pub(super) recorded: Arc<RelayedRecording>,
    /// Completion word of the start that has been sent or is about to be sent.
    pub(super) busy: Option<u32>,
    /// Starts that wait for the end of that start, at most one for each completion word of the rank.
    pub(super) waiting_starts: VecDeque<OutgoingCall>,
}

/// The request that an outstanding reply answers.
#[derive(Debug)]
pub(super) enum PendingRequest {
    /// Number of ranks of the new group, and this rank's number in the group.
    CreateGroup(u32, u32),
    /// A recording, which is usable once the service process has stored it, and the length of its encoding.
    Record(RecordingName, Arc<RelayedRecording>, usize),
    DestroyGroup(u64),
    Other,
}

impl PendingRequest {
    /// Content bytes of the request. The dock holds them until the service process has taken them.
    fn handed(&self) -> usize {
        match self {
            PendingRequest::CreateGroup(ranks, _) => *ranks as usize * OFFER_BYTES,
            PendingRequest::Record(.., bytes) => *bytes,
            PendingRequest::DestroyGroup(_) | PendingRequest::Other => 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct RelayedCall {
    group: u64,
    instance: u64,
    recording: Option<RecordingName>,
    submission: Submission,
    /// Output that arrived while only the rank could store it, by offset; at most the output of the call.
    held: Vec<(u64, Vec<u8>)>,
    /// The call's result, if it waits for the rank's copy.
    ended: Option<Status>,
    /// Counts the call as in flight until the call is dropped.
    _counted: Option<InFlightGuard>,
}

impl RelayedCall {
    pub(super) fn new(
        entry: &SubmissionEntry,
        recording: Option<RecordingName>,
        submission: Submission,
        counted: Option<InFlightGuard>,
    ) -> RelayedCall {
        let (group, instance) = (entry.group, entry.instance);
        RelayedCall { group, instance, recording, submission, held: Vec::new(), ended: None, _counted: counted }
    }

    pub(super) fn input(&self) -> Arc<MemoryPieces> {
        Arc::clone(&self.submission.input)
    }
}

#[derive(Debug, Default)]
pub(super) struct RelayState {
    /// Calls in flight by completion word.
    pub(super) in_flight: HashMap<u32, RelayedCall>,
    pub(super) groups: HashMap<u64, RelayedMembership>,
    pub(super) recordings: HashMap<RecordingName, StoredRecording>,
    /// Recordings whose start has ended while other starts of the recording waited.
    pub(super) ended: Vec<RecordingName>,
    pub(super) pending_requests: HashMap<u64, PendingRequest>,
    /// Failures that the service process does not know, by completion word of the call.
    pub(super) failures: HashMap<u32, (Status, String)>,
    /// Counts this rank as a call until the rank's earlier submissions have been taken.
    pub(super) submission_guard: Option<InFlightGuard>,
    /// The reason why the service process is lost.
    pub(super) lost: Option<String>,
}

impl RelayState {
    /// Whether a request may pass this many bytes in addition to the unanswered requests.
    pub(super) fn may_forward(&self, bytes: usize) -> bool {
        self.pending_requests.values().map(PendingRequest::handed).sum::<usize>().saturating_add(bytes) <= MOST_HANDED
    }

    /// Fails a call on this rank alone, because its output cannot be written. The service process decides every other
    /// result. It cannot know of this failure, because it has ended the call when the bytes left its machine.
    fn fail_output(&mut self, slot: u32, error: &AccessError) {
        let group = self.in_flight.get(&slot).and_then(|call| self.groups.get(&call.group));
        let me = group.map_or_else(String::new, |group| format!(" of rank {} of the group", group.me));
        self.failures.insert(slot, (Status::Memory, format!("the receive buffer{me} cannot be written: {error}")));
    }
}

/// A relayed rank, which its two threads share.
#[derive(Debug)]
pub(super) struct RelaySession {
    pub(super) service: SocketAddr,
    pub(super) pid: u32,
    pub(super) wire: Wire,
    pub(super) memory: TieredMemory,
    pub(super) completions: Completer,
    pub(super) state: Mutex<RelayState>,
    /// Wakes the first thread when the connection has ended, when output waits for the rank, and when a recording may
    /// start again.
    pub(super) bell: OwnedFd,
}

impl RelaySession {
    pub(super) fn state(&self) -> MutexGuard<'_, RelayState> {
        lock(&self.state)
    }

    pub(super) fn receive(&self, channel: &AttachChannel, mut decoder: Decoder) {
        let why = loop {
            match self.drain(channel, &mut decoder) {
                Ok(()) => {}
                Err(why) => break why,
            }
            if let Err(error) = self.wire.fill(&mut decoder) {
                break format!("the service process at {} is lost: {error}", self.service);
            }
        };
        self.wire.end();
        self.state().lost = Some(why);
        self.ring();
    }

    fn drain(&self, channel: &AttachChannel, decoder: &mut Decoder) -> Result<(), String> {
        let nonsense = |what: &str| format!("the service process at {} sent {what}", self.service);
        while let Some(frame) = decoder.next().map_err(|error| nonsense(&error.to_string()))? {
            match frame {
                RelayFrame::AttachReply(bytes) => {
                    let (token, reply) = AttachReply::decode(bytes).map_err(|error| nonsense(&error.to_string()))?;
                    self.reply(channel, token, &reply);
                }
                RelayFrame::Data { slot, offset, bytes } => self.write(slot, offset, bytes),
                RelayFrame::Complete { slot, status } => self.complete(slot, status),
                RelayFrame::Refused { text } => {
                    return Err(format!("the service process at {} gave this rank up: {text}", self.service));
                }
                RelayFrame::Open
                | RelayFrame::Opened { .. }
                | RelayFrame::Greeting { .. }
                | RelayFrame::AttachRequest(_)
                | RelayFrame::CreateGroup { .. }
                | RelayFrame::Record { .. }
                | RelayFrame::Handed(_)
                | RelayFrame::Call { .. }
                | RelayFrame::Unreadable { .. } => return Err(nonsense("what only relays send")),
            }
        }
        Ok(())
    }

    fn reply(&self, channel: &AttachChannel, token: u64, reply: &AttachReply) {
        let mut state = self.state();
        match (state.pending_requests.remove(&token), reply) {
            (Some(PendingRequest::CreateGroup(ranks, me)), AttachReply::GroupReady(ready)) => {
                state.groups.insert(ready.group, RelayedMembership { ranks, me });
            }
            (Some(PendingRequest::DestroyGroup(group)), AttachReply::Done) => {
                state.groups.remove(&group);
                state.recordings.retain(|name, _| name.0 != group);
            }
            (Some(PendingRequest::Record(name, recorded, _)), AttachReply::Done) => {
                state
                    .recordings
                    .insert(name, StoredRecording { recorded, busy: None, waiting_starts: VecDeque::new() });
            }
            _ => {}
        }
        drop(state);
        self.send_reply(channel, token, reply);
    }

    /// Sends a reply. If the send fails, the first thread notices that the rank is gone.
    pub(super) fn send_reply(&self, channel: &AttachChannel, token: u64, reply: &AttachReply) {
        if let Err(error) = channel.send(token, reply, &[]) {
            tracing::debug!(pid = self.pid, %error, "a rank does not take a reply");
        }
    }

    /// Writes output to the rank's memory, or holds the output until the rank has copied its buffers.
    fn write(&self, slot: u32, offset: u64, bytes: &[u8]) {
        let Some(pieces) = self.state().in_flight.get(&slot).map(|call| Arc::clone(&call.submission.output)) else {
            return;
        };
        let Err(error) = scatter(&self.memory, &pieces, offset, bytes) else { return };
        let mut state = self.state();
        let Some(call) = state.in_flight.get_mut(&slot) else { return };
        let error = match error {
            AccessError::Withdrawn { .. } if Arc::ptr_eq(&call.submission.output, &pieces) => {
                call.held.push((offset, bytes.to_vec()));
                drop(state);
                return self.ring();
            }
            // The first thread ends the rank's session.
            AccessError::Gone { .. } => {
                drop(state);
                return self.ring();
            }
            // The rank has copied its buffers meanwhile, so the output goes to the copy.
            AccessError::Withdrawn { .. } => scatter(&self.memory, &call.submission.output, offset, bytes).err(),
            error => Some(error),
        };
        if let Some(error) = error {
            state.fail_output(slot, &error);
        }
    }

    fn complete(&self, slot: u32, status: Status) {
        let mut state = self.state();
        match state.in_flight.get_mut(&slot) {
            None => return,
            Some(call) if !call.held.is_empty() => {
                call.ended = Some(status);
                return;
            }
            Some(_) => {}
        }
        let ended = state.in_flight.remove(&slot);
        let status = state.failures.get(&slot).map_or(status, |(own, _)| *own);
        let name = ended.as_ref().and_then(|call| call.recording);
        let mut next = false;
        if let Some((name, stored)) = name.and_then(|name| Some((name, state.recordings.get_mut(&name)?))) {
            (stored.busy, next) = (None, !stored.waiting_starts.is_empty());
            if next {
                state.ended.push(name);
            }
        }
        drop(state);
        self.completions.complete(slot, status);
        // The call counts as in flight until the rank has its completion.
        drop(ended);
        if next {
            self.ring();
        }
    }

    /// Handles the rank's copy of the buffers of a call (GP-9): writes the held output. Returns false if the call has
    /// ended.
    pub(super) fn restage(&self, restaged: &RestagedBuffers) -> bool {
        let RestagedBuffers { group, instance, slot, send, receive } = *restaged;
        // The lock is held during the writes, so that the completion cannot precede them.
        let mut state = self.state();
        let Some(call) = state.in_flight.get_mut(&slot) else { return false };
        if (call.group, call.instance) != (group, instance) {
            return false;
        }
        call.submission.moved(send, receive);
        let held = std::mem::take(&mut call.held);
        let output = &call.submission.output;
        let written = held.iter().try_for_each(|(offset, bytes)| scatter(&self.memory, output, *offset, bytes));
        let ended = call.ended.take();
        if let Err(error) = written {
            state.fail_output(slot, &error);
        }
        drop(state);
        if let Some(status) = ended {
            self.complete(slot, status);
        }
        true
    }

    /// Wakes the thread that serves the rank's requests.
    pub(super) fn ring(&self) {
        // The write fails if the counter is at its maximum, and then the counter wakes the thread already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Ends a call that the service process does not know, or for which the service process has no reason.
    pub(super) fn fail(&self, slot: u32, status: Status, text: String) {
        self.state().failures.insert(slot, (status, text));
        self.completions.complete(slot, status);
    }
}

/// Writes `bytes` to the pieces from `offset` on. Bytes beyond the pieces are left out.
fn scatter(memory: &dyn RankMemory, pieces: &MemoryPieces, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
    let mut left = bytes;
    for (address, count) in pieces.places(offset, bytes.len() as u64) {
        // The counts of the places add up to the length of `bytes` at most, so the split is in range.
        let (now, rest) = left.split_at(count as usize);
        memory.write(address, now)?;
        left = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_shm::region::MemfdRegion;

    #[test]
    fn output_goes_to_its_pieces_and_nowhere_else() {
        let region = MemfdRegion::create("test", 4096).expect("memory");
        let memory = TieredMemory::default();
        memory.ranges().register(0x1000, 4096, region.fd().try_clone_to_owned().expect("a descriptor")).expect("free");
        let pieces = MemoryPieces::new([(0x1010, 3), (0x1020, 4), (0x1001, 2)]);
        for (offset, bytes) in [(2, &b"cdefgh"[..]), (0, b"ab"), (8, b"i-beyond"), (100, b"far")] {
            scatter(&memory, &pieces, offset, bytes).expect("mapped");
        }
        let mut seen = [0; 0x24];
        region.read(0, &mut seen);
        assert_eq!((&seen[0x10..0x13], &seen[0x20..0x24], &seen[1..3]), (&b"abc"[..], &b"defg"[..], &b"hi"[..]));
        assert_eq!(seen.iter().filter(|byte| **byte != 0).count(), 9);
        assert!(scatter(&memory, &MemoryPieces::new([(0x9000, 1)]), 0, b"x").is_err());
    }
}
