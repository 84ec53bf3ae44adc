//! The thread that serves a rank's requests: takes its submissions, sends them, and reads the memory that they send.
//!
//! Starts of one recording are sent one after another, each after the end of the start before it: the next start may
//! read bytes that the last one has written, which arrive only then. Waiting starts do not delay other calls.

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

use super::Flights;
use crate::frame::{DATA_BYTES, Decoder, Frame};
use crate::recording::started;
use crate::session::{InFlight, Outgoing, Session};
use crate::submission::Submission;
use outboard_service::{LOOK, Poller, Refusal, Token, Trigger};

/// Submissions taken per turn, so that requests are polled in between.
const SUBMISSIONS: usize = 64;

pub(super) enum Gone {
    Rank,
    Kernel(Errno),
}

/// The state of the thread that serves a rank's requests.
pub(super) struct Relayed {
    pub(super) channel: Arc<AttachChannel>,
    pub(super) session: Arc<Session>,
    side: ServiceSide,
    poller: Poller,
    /// The tier that was announced to the rank.
    tier: Tier,
    flights: Arc<Flights>,
    /// The call whose input waits for the rank's own copy, and the bytes of it that have been sent.
    pub(super) stalled: Option<(u32, u64)>,
    /// Calls in flight behind the stalled call, at most one for each completion word of the rank.
    outgoing: VecDeque<Outgoing>,
    pub(super) lost: bool,
    buffer: Vec<u8>,
}

impl Relayed {
    pub(super) fn start(
        channel: AttachChannel,
        session: Session,
        (side, flights): (ServiceSide, Arc<Flights>),
        decoder: Decoder,
        pidfd: Option<OwnedFd>,
    ) {
        let (channel, session) = (Arc::new(channel), Arc::new(session));
        flights.of(&session);
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
                let relayed = Relayed {
                    channel,
                    session,
                    side,
                    poller,
                    tier,
                    flights,
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
            self.poller.watch(&*self.channel, Token::Channel(0), Trigger::Level)?;
            self.poller.watch(self.side.doorbell(), Token::Doorbell(0), Trigger::Edge)?;
            self.poller.watch(&self.session.bell, Token::Mailbox, Trigger::Edge)?;
            pidfd.as_ref().map_or(Ok(()), |pidfd| self.poller.watch(pidfd, Token::Process(0), Trigger::Level))
        };
        let gone = match watch() {
            Ok(()) => self.turn_until_gone(),
            Err(errno) => Gone::Kernel(errno),
        };
        let pid = self.session.pid;
        match gone {
            Gone::Rank => tracing::info!(pid, "a rank is gone"),
            Gone::Kernel(errno) => limited!(error, %errno, pid, "a rank is given up"),
        }
        // The service process then notices that the rank has left.
        self.session.wire.end();
        if receiving.join().is_err() {
            tracing::error!(pid, "the thread that receives for a rank panicked");
        }
    }

    fn turn_until_gone(&mut self) -> Gone {
        loop {
            self.announce();
            if self.session.memory.is_gone() {
                return Gone::Rank;
            }
            let mut worked = self.take_submissions();
            match self.take_requests() {
                Ok(some) => worked |= some,
                Err(gone) => return gone,
            }
            if worked {
                continue;
            }
            let asleep = self.side.prepare_sleep();
            let woken = if asleep { self.poller.sleep(Some(LOOK)) } else { Ok(Vec::new()) };
            self.side.stay_awake();
            match woken {
                Ok(tokens) if asleep && tokens.is_empty() => self.session.memory.check_address_space(),
                Ok(tokens) if tokens.contains(&Token::Process(0)) => return Gone::Rank,
                Ok(tokens) if tokens.contains(&Token::Mailbox) => {
                    self.lose_if_lost();
                    self.send_next_starts();
                    let looked_for = self.session.books().looked_for.take();
                    while looked_for.is_some() && self.take_submissions() {}
                }
                Ok(_) => {}
                Err(errno) => return Gone::Kernel(errno),
            }
        }
    }

    /// Notifies the rank when the kernel has withdrawn a tier of its memory, so that the rank copies.
    fn announce(&mut self) {
        let now = self.session.memory.tier();
        if now != self.tier {
            limited!(warn, pid = self.session.pid, before = %self.tier, %now, "access to a rank's memory is withdrawn");
            self.tier = now;
            self.side.announce_tier(now);
        }
    }

    /// If the service process is lost, ends all calls and requests that wait for it.
    fn lose_if_lost(&mut self) {
        let mut books = self.session.books();
        let Some(why) = books.lost.clone() else { return };
        (self.lost, self.stalled) = (true, None);
        self.outgoing.clear();
        limited!(warn, pid = self.session.pid, why, "a rank is without its service process");
        books.recordings.clear();
        let calls: Vec<(u32, InFlight)> = books.in_flight.drain().collect();
        let asked: Vec<u64> = books.asked.drain().map(|(token, _)| token).collect();
        drop(books);
        for (slot, call) in calls {
            self.session.fail(slot, Status::ServiceLost, why.clone());
            drop(call);
        }
        for token in asked {
            let reply = AttachReply::Error { status: Status::ServiceLost, text: why.clone() };
            self.session.answer(&self.channel, token, &reply);
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
        let mut books = session.books();
        if books.in_flight.contains_key(&slot) {
            return tracing::debug!(pid = session.pid, slot, "a completion word is used twice at once");
        }
        books.failures.remove(&slot);
        if let (true, Some(why)) = (self.lost, books.lost.clone()) {
            drop(books);
            return session.fail(slot, Status::ServiceLost, why);
        }
        let place =
            books.groups.get(&entry.group).map(|group| (group.ranks, group.me)).ok_or(Refusal::Group(entry.group));
        let name = started(entry);
        let recorded = name.and_then(|name| books.recordings.get(&name)).map(|kept| Arc::clone(&kept.recorded));
        drop(books);
        let place_known = place.is_ok();
        match place.and_then(|place| Submission::of(entry, place, recorded, &session.memory)) {
            Ok(submission) => {
                let (input, output) = (submission.input.total(), submission.output.total());
                let outgoing = Outgoing { entry: submission.entry, input, output, table: submission.table.clone() };
                let call = InFlight::new(entry, name, submission, self.flights.one_more());
                let mut books = session.books();
                books.in_flight.insert(slot, call);
                // It was there above, and only this thread removes it.
                if let Some(kept) = name.and_then(|name| books.recordings.get_mut(&name)) {
                    if kept.busy.is_some() {
                        return kept.behind.push_back(outgoing);
                    }
                    kept.busy = Some(slot);
                }
                drop(books);
                self.outgoing.push_back(outgoing);
                self.send_outgoing();
            }
            Err(refusal) if place_known && !matches!(entry.call.kind, CallKind::Tagged(_)) => {
                self.refuse_collective(entry, &refusal);
            }
            Err(refusal) => session.fail(slot, refusal.status(), refusal.to_string()),
        }
    }

    /// Posts a call that the service process refuses instead, so that the other ranks do not wait for this rank.
    fn refuse_collective(&mut self, entry: &SubmissionEntry, refusal: &Refusal) {
        let submission = Submission::out_of_turn(entry);
        let outgoing = Outgoing { entry: submission.entry, input: 0, output: 0, table: Vec::new() };
        let call = InFlight::new(entry, None, submission, self.flights.one_more());
        let mut books = self.session.books();
        books.failures.insert(entry.slot, (refusal.status(), refusal.to_string()));
        books.in_flight.insert(entry.slot, call);
        drop(books);
        self.outgoing.push_back(outgoing);
        self.send_outgoing();
    }

    /// Sends the next starts of recordings whose last start has ended.
    fn send_next_starts(&mut self) {
        let mut books = self.session.books();
        for name in std::mem::take(&mut books.ended) {
            let Some(kept) = books.recordings.get_mut(&name).filter(|kept| kept.busy.is_none()) else { continue };
            let Some(next) = kept.behind.pop_front() else { continue };
            kept.busy = Some(next.entry.slot);
            self.outgoing.push_back(next);
        }
        drop(books);
        self.send_outgoing();
    }

    /// Sends the calls whose turn has come, each with its input.
    pub(super) fn send_outgoing(&mut self) {
        while self.stalled.is_none() {
            let Some(call) = self.outgoing.pop_front() else { return };
            let sent = self.send(&call).and_then(|()| self.send_input(call.entry.slot, 0));
            self.note(sent);
        }
    }

    /// Sends a call without its input.
    fn send(&self, Outgoing { entry, input, output, table }: &Outgoing) -> std::io::Result<()> {
        let (wire, slot, input, output) = (&self.session.wire, entry.slot, *input, *output);
        wire.send(&Frame::Call { words: entry.encode(), input, table: table.len() as u64, output })?;
        for (at, bytes) in table.chunks(DATA_BYTES).enumerate() {
            wire.send(&Frame::Data { slot, offset: input + (at * DATA_BYTES) as u64, bytes })?;
        }
        Ok(())
    }

    /// Sends the input of a call from `offset` on, as far as it can be read.
    pub(super) fn send_input(&mut self, slot: u32, mut offset: u64) -> std::io::Result<()> {
        let Some(pieces) = self.session.books().in_flight.get(&slot).map(InFlight::input) else { return Ok(()) };
        let session = Arc::clone(&self.session);
        while let Some((address, count)) = pieces.places(offset, DATA_BYTES as u64).next() {
            self.buffer.resize(count as usize, 0);
            match session.memory.read(address, &mut self.buffer) {
                Ok(()) => {}
                Err(AccessError::Withdrawn { .. }) => {
                    self.stalled = Some((slot, offset));
                    return Ok(());
                }
                // The process has ended or runs another program, so its buffer is not at fault.
                Err(AccessError::Gone { .. }) => return Ok(()),
                Err(error) => {
                    // The service process fails the call as the rank's fault, on all ranks.
                    limited!(warn, pid = session.pid, %error, "a rank's buffer cannot be read");
                    return session.wire.send(&Frame::Unreadable { slot });
                }
            }
            session.wire.send(&Frame::Data { slot, offset, bytes: &self.buffer })?;
            offset += count;
        }
        Ok(())
    }
}
