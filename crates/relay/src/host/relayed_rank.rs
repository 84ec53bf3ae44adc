//! The thread that serves a rank's requests: takes the rank's submissions, reads the memory that they send, and sends
//! both.
//!
//! Starts of one recording are sent one after another. Each start is sent after the start before has ended, because it
//! may read bytes that the start before has written, and these bytes arrive only then. Waiting starts do not delay
//! other calls.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use outboard_call::CallKind;
use outboard_fabric::limited;
use outboard_shm::attach::{AttachChannel, AttachReply};
use outboard_shm::control::ServiceSide;
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::memory::{AccessError, RankMemory, Tier};
use outboard_shm::status::Status;
use rustix::io::Errno;

use super::CallsInFlight;
use crate::frame::{DATA_BYTES, Decoder, RelayFrame};
use crate::recording::recording_of;
use crate::session::{OutgoingCall, RelaySession, RelayedCall};
use crate::submission::Submission;
use outboard_service::{MEMORY_CHECK_INTERVAL, Poller, SubmissionError, Trigger, WakeToken};

/// Submissions taken per turn, so that requests are polled in between.
const SUBMISSIONS: usize = 64;

pub(super) enum RankEnd {
    Rank,
    Kernel(Errno),
}

/// The state of the thread that serves a rank's requests.
pub(super) struct RelayedRank {
    pub(super) channel: Arc<AttachChannel>,
    pub(super) session: Arc<RelaySession>,
    side: ServiceSide,
    poller: Poller,
    /// The tier that was last announced to the rank.
    tier: Tier,
    calls_in_flight: Arc<CallsInFlight>,
    /// Completion word of the call whose input waits for the rank's own copy, and the number of input bytes already
    /// sent.
    pub(super) stalled: Option<(u32, u64)>,
    /// Calls that wait behind the stalled call, at most one for each completion word of the rank.
    outgoing: VecDeque<OutgoingCall>,
    pub(super) lost: bool,
    buffer: Vec<u8>,
}

impl RelayedRank {
    pub(super) fn start(
        channel: AttachChannel,
        session: RelaySession,
        side: ServiceSide,
        calls_in_flight: Arc<CallsInFlight>,
        decoder: Decoder,
        pidfd: Option<OwnedFd>,
    ) {
        let (channel, session) = (Arc::new(channel), Arc::new(session));
        calls_in_flight.add_rank(&session);
        let (to, own) = (Arc::clone(&channel), Arc::clone(&session));
        let receiving =
            std::thread::Builder::new().name("relay-receive".into()).spawn(move || own.receive(&to, decoder));
        let receiving = match receiving {
            Ok(thread) => thread,
            Err(error) => return limited!(error, %error, "no thread for a rank"),
        };
        let pid = session.pid;
        match Poller::new() {
            Ok(poller) => {
                let tier = session.memory.tier();
                let relayed = RelayedRank {
                    channel,
                    session,
                    side,
                    poller,
                    tier,
                    calls_in_flight,
                    stalled: None,
                    outgoing: VecDeque::new(),
                    lost: false,
                    buffer: Vec::new(),
                };
                relayed.serve(pidfd, receiving);
            }
            Err(errno) => {
                session.wire.end();
                limited!(error, %errno, pid, "no descriptor for a rank");
            }
        }
    }

    fn serve(mut self, pidfd: Option<OwnedFd>, receiving: JoinHandle<()>) {
        let watch = || {
            self.poller.watch(&*self.channel, WakeToken::Channel(0), Trigger::Level)?;
            self.poller.watch(self.side.doorbell(), WakeToken::Doorbell(0), Trigger::Edge)?;
            self.poller.watch(&self.session.bell, WakeToken::Mailbox, Trigger::Edge)?;
            pidfd.as_ref().map_or(Ok(()), |pidfd| self.poller.watch(pidfd, WakeToken::Process(0), Trigger::Level))
        };
        let end = match watch() {
            Ok(()) => self.run(),
            Err(errno) => RankEnd::Kernel(errno),
        };
        let pid = self.session.pid;
        match end {
            RankEnd::Rank => tracing::info!(pid, "a rank is gone"),
            RankEnd::Kernel(errno) => limited!(error, %errno, pid, "a rank is given up"),
        }
        // From the end of the connection the service process notices that the rank has left.
        self.session.wire.end();
        if receiving.join().is_err() {
            tracing::error!(pid, "the thread that receives for a rank panicked");
        }
    }

    fn run(&mut self) -> RankEnd {
        loop {
            self.announce();
            if self.session.memory.is_gone() {
                return RankEnd::Rank;
            }
            let mut worked = self.take_submissions();
            match self.take_requests() {
                Ok(some) => worked |= some,
                Err(end) => return end,
            }
            if worked {
                continue;
            }
            let asleep = self.side.prepare_sleep();
            let woken = if asleep { self.poller.sleep(Some(MEMORY_CHECK_INTERVAL)) } else { Ok(Vec::new()) };
            self.side.stay_awake();
            match woken {
                Ok(tokens) if asleep && tokens.is_empty() => self.session.memory.check_address_space(),
                Ok(tokens) if tokens.contains(&WakeToken::Process(0)) => return RankEnd::Rank,
                Ok(tokens) if tokens.contains(&WakeToken::Mailbox) => {
                    self.fail_if_service_lost();
                    self.send_next_starts();
                    let submission_guard = self.session.state().submission_guard.take();
                    while submission_guard.is_some() && self.take_submissions() {}
                }
                Ok(_) => {}
                Err(errno) => return RankEnd::Kernel(errno),
            }
        }
    }

    /// Notifies the rank if the kernel has withdrawn a tier of the rank's memory, so that the rank copies its buffers.
    fn announce(&mut self) {
        let now = self.session.memory.tier();
        if now != self.tier {
            limited!(warn, pid = self.session.pid, before = %self.tier, %now, "access to a rank's memory is withdrawn");
            self.tier = now;
            self.side.announce_tier(now);
        }
    }

    /// Fails all calls and requests that wait for the service process, if the service process is lost.
    fn fail_if_service_lost(&mut self) {
        let mut state = self.session.state();
        let Some(why) = state.lost.clone() else { return };
        (self.lost, self.stalled) = (true, None);
        self.outgoing.clear();
        limited!(warn, pid = self.session.pid, why, "a rank is without its service process");
        state.recordings.clear();
        let calls: Vec<(u32, RelayedCall)> = state.in_flight.drain().collect();
        let pending_requests: Vec<u64> = state.pending_requests.drain().map(|(token, _)| token).collect();
        drop(state);
        for (slot, call) in calls {
            self.session.fail(slot, Status::ServiceLost, why.clone());
            drop(call);
        }
        for token in pending_requests {
            let reply = AttachReply::Error { status: Status::ServiceLost, text: why.clone() };
            self.session.send_reply(&self.channel, token, &reply);
        }
    }

    pub(super) fn take_submissions(&mut self) -> bool {
        for taken in 0..SUBMISSIONS {
            match self.side.pop() {
                None => return taken > 0,
                Some(Ok(entry)) => self.submit(&entry),
                Some(Err(error)) => tracing::debug!(pid = self.session.pid, %error, "a submission is refused"),
            }
        }
        true
    }

    fn submit(&mut self, entry: &SubmissionEntry) {
        let (session, slot) = (Arc::clone(&self.session), entry.slot);
        let mut state = session.state();
        if state.in_flight.contains_key(&slot) {
            return tracing::debug!(pid = session.pid, slot, "a completion word is used twice at once");
        }
        state.failures.remove(&slot);
        if let (true, Some(why)) = (self.lost, state.lost.clone()) {
            drop(state);
            return session.fail(slot, Status::ServiceLost, why);
        }
        let place = state
            .groups
            .get(&entry.group)
            .map(|group| (group.ranks, group.me))
            .ok_or(SubmissionError::Group(entry.group));
        let name = recording_of(entry);
        let recorded = name.and_then(|name| state.recordings.get(&name)).map(|stored| Arc::clone(&stored.recorded));
        drop(state);
        let place_known = place.is_ok();
        match place.and_then(|(ranks, me)| Submission::of(entry, ranks, me, recorded, &session.memory)) {
            Ok(submission) => {
                let (input, output) = (submission.input.total(), submission.output.total());
                let outgoing = OutgoingCall { entry: submission.entry, input, output, table: submission.table.clone() };
                let call = RelayedCall::new(entry, name, submission, self.calls_in_flight.count_call());
                let mut state = session.state();
                state.in_flight.insert(slot, call);
                // The recording still exists, because only this thread removes recordings.
                if let Some(stored) = name.and_then(|name| state.recordings.get_mut(&name)) {
                    if stored.busy.is_some() {
                        return stored.waiting_starts.push_back(outgoing);
                    }
                    stored.busy = Some(slot);
                }
                drop(state);
                self.outgoing.push_back(outgoing);
                self.send_outgoing();
            }
            Err(refusal) if place_known && !matches!(entry.call.kind, CallKind::Tagged(_)) => {
                self.refuse_collective(entry, &refusal);
            }
            Err(refusal) => session.fail(slot, refusal.status(), refusal.to_string()),
        }
    }

    /// Posts a call that the service process refuses, in place of the collective, so that the other ranks do not wait
    /// for this rank.
    fn refuse_collective(&mut self, entry: &SubmissionEntry, refusal: &SubmissionError) {
        let submission = Submission::out_of_turn(entry);
        let outgoing = OutgoingCall { entry: submission.entry, input: 0, output: 0, table: Vec::new() };
        let call = RelayedCall::new(entry, None, submission, self.calls_in_flight.count_call());
        let mut state = self.session.state();
        state.failures.insert(entry.slot, (refusal.status(), refusal.to_string()));
        state.in_flight.insert(entry.slot, call);
        drop(state);
        self.outgoing.push_back(outgoing);
        self.send_outgoing();
    }

    /// Sends the next start of each recording whose last start has ended.
    fn send_next_starts(&mut self) {
        let mut state = self.session.state();
        for name in std::mem::take(&mut state.ended) {
            let Some(stored) = state.recordings.get_mut(&name).filter(|stored| stored.busy.is_none()) else { continue };
            let Some(next) = stored.waiting_starts.pop_front() else { continue };
            stored.busy = Some(next.entry.slot);
            self.outgoing.push_back(next);
        }
        drop(state);
        self.send_outgoing();
    }

    /// Sends the waiting calls, each with its input, until one stalls.
    pub(super) fn send_outgoing(&mut self) {
        while self.stalled.is_none() {
            let Some(call) = self.outgoing.pop_front() else { return };
            let sent = self.send(&call).and_then(|()| self.send_input(call.entry.slot, 0));
            self.log_failed_send(sent);
        }
    }

    /// Sends a call and its table, without the call's input.
    fn send(&self, OutgoingCall { entry, input, output, table }: &OutgoingCall) -> std::io::Result<()> {
        let (wire, slot, input, output) = (&self.session.wire, entry.slot, *input, *output);
        wire.send(&RelayFrame::Call { words: entry.encode(), input, table: table.len() as u64, output })?;
        for (at, bytes) in table.chunks(DATA_BYTES).enumerate() {
            wire.send(&RelayFrame::Data { slot, offset: input + (at * DATA_BYTES) as u64, bytes })?;
        }
        Ok(())
    }

    /// Sends the input of a call from `offset` on, until the input ends or cannot be read.
    pub(super) fn send_input(&mut self, slot: u32, mut offset: u64) -> std::io::Result<()> {
        let Some(pieces) = self.session.state().in_flight.get(&slot).map(RelayedCall::input) else { return Ok(()) };
        let session = Arc::clone(&self.session);
        while let Some((address, count)) = pieces.places(offset, DATA_BYTES as u64).next() {
            self.buffer.resize(count as usize, 0);
            match session.memory.read(address, &mut self.buffer) {
                Ok(()) => {}
                Err(AccessError::Withdrawn { .. }) => {
                    self.stalled = Some((slot, offset));
                    return Ok(());
                }
                // The process has ended or runs another program, so the buffer is not at fault.
                Err(AccessError::Gone { .. }) => return Ok(()),
                Err(error) => {
                    // The service process fails the call on all ranks, as the fault of this rank.
                    limited!(warn, pid = session.pid, %error, "a rank's buffer cannot be read");
                    return session.wire.send(&RelayFrame::Unreadable { slot });
                }
            }
            session.wire.send(&RelayFrame::Data { slot, offset, bytes: &self.buffer })?;
            offset += count;
        }
        Ok(())
    }
}
