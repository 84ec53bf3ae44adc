//! The host's side: serves ranks in the place of a service process on another machine (SP-1, GP-9).
//!
//! Each rank has two threads and a connection. The first takes what the rank says and submits, reads its input and sends it
//! all; the second takes what comes and writes output and completions. A rank goes through these states:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | greeting | `Hello`, and the service process takes the rank | attached |
//! | greeting | anything else | gone, with the reason as reply |
//! | attached | the end of the connection | lost: every call in flight, and every one to come, ends with the reason |
//! | attached, lost | the rank's end, `Detach` answered | gone: the connection ends, the service process sees the rank leave |
//!
//! Invariants: the second thread waits for the connection alone, so what the service process sends always flows; memory of
//! the rank is written by it alone, before the completion that tells the rank so. Never does: ask the rank's processor.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_shm::attach::message::Message;
use outboard_shm::attach::{Channel, ChannelError, Hello, OFFER_BYTES, Received, Reply, Request, Welcome};
use outboard_shm::control::{LAYOUT_VERSION, ServiceSide};
use outboard_shm::entry::Entry;
use outboard_shm::memory::{AccessError, MemfdRanges, RankMemory, Tier};
use outboard_shm::region::read_sealed;
use outboard_shm::status::Status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::process::Pid;

use super::frame::{DATA_BYTES, Decoder, Frame};
use super::session::{Asked, InFlight, Session};
use super::submission::{NO_RECORDINGS, Submission, bytes_of};
use super::wire::{Wire, WireError};
use crate::admission::Admission;
use crate::attach::{Process, Refused, pin};
use crate::poller::{Poller, Token, Trigger};
use crate::socket::NamedSocket;
use crate::topology::{Place, Topology};

/// How long a rank may take to say who it is, and the service process to answer.
const GREETING_LIMIT: Duration = Duration::from_secs(20);
/// Submissions taken per turn, so that requests are looked at in between.
const SUBMISSIONS: usize = 64;

/// Where the service process is and who may attach here.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) service: SocketAddr,
    pub(crate) key: String,
    /// Ranks at a time.
    pub(crate) most: usize,
    /// Memory ranges of one rank, and how many of them are mapped at a time.
    pub(crate) most_ranges: u32,
    pub(crate) most_mapped: u32,
    /// This host's name.
    pub(crate) node: Arc<str>,
    pub(crate) topology: Topology,
    pub(crate) admission: Admission,
}

/// Serves ranks that attach at `socket` until `stopped` says so, see [`crate::run`].
///
/// # Errors
/// When the kernel refuses to let us wait.
pub(crate) fn run(
    socket: &mut NamedSocket,
    terms: Terms,
    stop: BorrowedFd<'_>,
    mut stopped: impl FnMut() -> bool,
) -> Result<(), Errno> {
    let terms = Arc::new(terms);
    let present = Arc::new(AtomicUsize::new(0));
    loop {
        let mut fds = [PollFd::new(&*socket, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        if !fds[1].revents().is_empty() && stopped() {
            return Ok(());
        }
        match Channel::accept(socket.as_fd()) {
            Ok(None) => {}
            Ok(Some(channel)) => take_in(channel, &terms, &present),
            Err(errno) => {
                tracing::error!(%errno, "a rank is turned away; raise the limit on descriptors");
                socket.turn_away(drop);
            }
        }
    }
}

fn take_in(channel: Channel, terms: &Arc<Terms>, present: &Arc<AtomicUsize>) {
    let (terms, counted) = (Arc::clone(terms), Arc::clone(present));
    if present.fetch_add(1, Ordering::Relaxed) >= terms.most {
        present.fetch_sub(1, Ordering::Relaxed);
        return tracing::warn!(most = terms.most, "a rank is turned away; raise --max-ranks");
    }
    let serve = move || {
        serve(channel, &terms);
        counted.fetch_sub(1, Ordering::Relaxed);
    };
    if let Err(error) = std::thread::Builder::new().name("relay-rank".into()).spawn(serve) {
        present.fetch_sub(1, Ordering::Relaxed);
        tracing::error!(%error, "no thread for a rank");
    }
}

/// Serves one rank to its end.
fn serve(channel: Channel, terms: &Terms) {
    let (token, hello, descriptors) = match greeted(&channel) {
        Ok(greeted) => greeted,
        Err(error) => return tracing::debug!(%error, "a connection did not greet"),
    };
    match attach(&channel, &hello, descriptors, terms) {
        Ok((session, side, welcome, decoder, pidfd)) => {
            let sent = channel.send(token, &Reply::Welcome(welcome), &side.descriptors());
            if sent.is_ok() {
                Relayed::start(channel, session, side, decoder, pidfd);
            }
        }
        Err(Refused { status, text }) => {
            tracing::warn!(pid = hello.pid, text, "a process may not attach");
            // It may have gone meanwhile.
            let _ = channel.send(token, &Reply::Error { status, text }, &[]);
        }
    }
}

fn greeted(channel: &Channel) -> Result<(u64, Hello, Vec<OwnedFd>), ChannelError> {
    channel.wait(GREETING_LIMIT)?;
    match channel.receive::<Request>()? {
        Some(Received { token, message: Request::Hello(hello), descriptors }) => Ok((token, hello, descriptors)),
        Some(Received { token, .. }) => {
            let text = "the first message of a connection is a greeting".to_owned();
            channel.send(token, &Reply::Error { status: Status::Protocol, text }, &[])?;
            Err(ChannelError::Closed)
        }
        None => Err(ChannelError::Backlogged),
    }
}

type Attached = (Session, ServiceSide, Welcome, Decoder, Option<OwnedFd>);

/// Finds out how the rank's memory is reached, and attaches it to the service process.
fn attach(channel: &Channel, hello: &Hello, descriptors: Vec<OwnedFd>, terms: &Terms) -> Result<Attached, Refused> {
    if hello.layout_version != LAYOUT_VERSION {
        let text = format!(
            "the library shares memory in layout {}, the relay in layout {LAYOUT_VERSION}; install both from one release",
            hello.layout_version
        );
        return Err(Refused { status: Status::Version, text });
    }
    let Process { pid, pidfd, memory, .. } = pin(channel, hello, descriptors, &terms.admission)?;
    let ranges = MemfdRanges::bounded(terms.most_ranges, terms.most_mapped);
    let memory = memory.with_ranges(ranges);
    let unreachable = |why: &dyn std::fmt::Display| Refused {
        status: Status::NoService,
        text: format!("the service process at {} does not take ranks of this host: {why}", terms.service),
    };
    let stream = TcpStream::connect_timeout(&terms.service, GREETING_LIMIT).map_err(|error| unreachable(&error))?;
    let wire = Wire::new(stream).map_err(|error| unreachable(&error))?;
    let seen = pidfd.as_ref().and_then(|_| Pid::from_raw(pid.cast_signed()));
    let Place { socket, core } = seen.map_or_else(Place::default, |pid| terms.topology.place_of(Some(pid)));
    let greeting = Frame::Greeting { pid, socket, core, node: &terms.node, key: terms.key.as_bytes() };
    let (decoder, mut welcome) = greet(&wire, &greeting).map_err(|error| unreachable(&error))?;
    (welcome.tier, welcome.most_ranges) = (memory.tier(), terms.most_ranges);
    let resource = |text: String| Refused { status: Status::Resource, text };
    let side = ServiceSide::create().map_err(|error| resource(error.to_string()))?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let bell = bell.map_err(|errno| resource(format!("the relay cannot make an eventfd: {errno}")))?;
    tracing::info!(pid, tier = %memory.tier(), service = %terms.service, "a rank attached");
    let session = Session {
        service: terms.service,
        pid,
        wire,
        memory,
        completions: side.completions(),
        books: Mutex::default(),
        bell,
    };
    Ok((session, side, welcome, decoder, pidfd))
}

/// Why the service process does not take a rank.
#[derive(Debug, thiserror::Error)]
enum GreetError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Kernel(#[from] std::io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("it answers what was not asked")]
    Nonsense,
}

fn greet(wire: &Wire, greeting: &Frame<'_>) -> Result<(Decoder, Welcome), GreetError> {
    wire.send(greeting)?;
    wire.stream().set_read_timeout(Some(GREETING_LIMIT))?;
    let mut decoder = Decoder::default();
    let welcome = loop {
        match decoder.next().map_err(WireError::from)? {
            // The codec refuses a tier that only a rank of the same host can have, and this one is replaced.
            Some(Frame::Reply(bytes)) => match Reply::decode(bytes) {
                Ok((_, Reply::Welcome(welcome))) => break welcome,
                _ => return Err(GreetError::Nonsense),
            },
            Some(Frame::Refused { text }) => return Err(GreetError::Refused(text.to_owned())),
            Some(_) => return Err(GreetError::Nonsense),
            None => wire.fill(&mut decoder)?,
        }
    };
    wire.stream().set_read_timeout(None)?;
    Ok((decoder, welcome))
}

/// How serving a rank ends.
enum Gone {
    /// The rank left or died.
    Rank,
    /// The kernel.
    Kernel(Errno),
}

/// A call that is to be sent.
struct Outgoing {
    entry: Entry,
    /// Bytes of it.
    input: u64,
    output: u64,
    table: Vec<u8>,
}

/// The thread that hears the rank.
struct Relayed {
    channel: Arc<Channel>,
    session: Arc<Session>,
    side: ServiceSide,
    poller: Poller,
    /// The tier that the rank knows.
    tier: Tier,
    /// The call whose input waits for the rank's own copy, and how much of it has been sent.
    stalled: Option<(u32, u64)>,
    /// Calls in flight that wait behind it, no more than the rank has completion words.
    outgoing: VecDeque<Outgoing>,
    lost: bool,
    buffer: Vec<u8>,
}

impl Relayed {
    fn start(channel: Channel, session: Session, side: ServiceSide, decoder: Decoder, pidfd: Option<OwnedFd>) {
        let (channel, session) = (Arc::new(channel), Arc::new(session));
        let (to, own) = (Arc::clone(&channel), Arc::clone(&session));
        let receiving =
            std::thread::Builder::new().name("relay-receive".into()).spawn(move || own.receive(&to, decoder));
        let receiving = match receiving {
            Ok(thread) => thread,
            Err(error) => return tracing::error!(%error, "no thread for a rank"),
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
                    stalled: None,
                    outgoing: VecDeque::new(),
                    lost: false,
                    buffer: Vec::new(),
                };
                relayed.serve(pidfd, receiving);
            }
            Err(errno) => {
                session.wire.end();
                tracing::error!(%errno, pid, "no descriptor for a rank");
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
            Gone::Kernel(errno) => tracing::error!(%errno, pid, "a rank is given up"),
        }
        // The service process sees the rank leave.
        self.session.wire.end();
        if receiving.join().is_err() {
            tracing::error!(pid, "the thread that receives for a rank panicked");
        }
    }

    fn turn_until_gone(&mut self) -> Gone {
        loop {
            self.announce();
            let mut worked = self.take_submissions();
            match self.take_requests() {
                Ok(some) => worked |= some,
                Err(gone) => return gone,
            }
            if worked {
                continue;
            }
            let woken = if self.side.prepare_sleep() { self.poller.sleep(None) } else { Ok(Vec::new()) };
            self.side.stay_awake();
            match woken {
                Ok(tokens) if tokens.contains(&Token::Process(0)) => return Gone::Rank,
                Ok(tokens) if tokens.contains(&Token::Mailbox) => self.lose_if_lost(),
                Ok(_) => {}
                Err(errno) => return Gone::Kernel(errno),
            }
        }
    }

    /// Tells the rank when the kernel has withdrawn a way to its memory, so that it copies.
    fn announce(&mut self) {
        let now = self.session.memory.tier();
        if now != self.tier {
            tracing::warn!(pid = self.session.pid, before = %self.tier, %now, "access to a rank's memory is withdrawn");
            self.tier = now;
            self.side.announce_tier(now);
        }
    }

    /// Where the service process is lost, whoever waits for it is told.
    fn lose_if_lost(&mut self) {
        let mut books = self.session.books();
        let Some(why) = books.lost.clone() else { return };
        (self.lost, self.stalled) = (true, None);
        self.outgoing.clear();
        tracing::warn!(pid = self.session.pid, why, "a rank is without its service process");
        let slots: Vec<u32> = books.in_flight.drain().map(|(slot, _)| slot).collect();
        let asked: Vec<u64> = books.asked.drain().map(|(token, _)| token).collect();
        drop(books);
        for slot in slots {
            self.session.fail(slot, Status::ServiceLost, why.clone());
        }
        for token in asked {
            let reply = Reply::Error { status: Status::ServiceLost, text: why.clone() };
            self.session.answer(&self.channel, token, &reply);
        }
    }

    fn take_submissions(&mut self) -> bool {
        for taken in 0..SUBMISSIONS {
            match self.side.take() {
                None => return taken > 0,
                Some(Ok(entry)) => self.submit(&entry),
                Some(Err(error)) => tracing::debug!(pid = self.session.pid, %error, "a submission is refused"),
            }
        }
        true
    }

    fn submit(&mut self, entry: &Entry) {
        let (session, slot) = (Arc::clone(&self.session), entry.slot());
        let mut books = session.books();
        if books.in_flight.contains_key(&slot) {
            return tracing::debug!(pid = session.pid, slot, "a completion word is used twice at once");
        }
        books.failures.remove(&slot);
        let refused = if let (true, Some(why)) = (self.lost, &books.lost) {
            Some((Status::ServiceLost, why.clone()))
        } else if !books.groups.contains_key(&entry.group()) {
            let group = entry.group();
            let text = format!(
                "group {group} is not one of this rank's; use a group between its creation and its destruction"
            );
            Some((Status::Argument, text))
        } else {
            None
        };
        let place = books.groups.get(&entry.group()).copied().unwrap_or_default();
        drop(books);
        if let Some((status, text)) = refused {
            return session.fail(slot, status, text);
        }
        match Submission::of(entry, place, &session.memory) {
            Ok(submission) => {
                let (input, output) = (bytes_of(&submission.input), bytes_of(&submission.output));
                let table = submission.table.clone();
                session.books().in_flight.insert(slot, InFlight::new(entry, submission));
                self.outgoing.push_back(Outgoing { entry: *entry, input, output, table });
                self.send_outgoing();
            }
            Err(error) => session.fail(slot, Status::Argument, error.to_string()),
        }
    }

    /// Sends the calls whose turn it is, each with what it reads.
    fn send_outgoing(&mut self) {
        while self.stalled.is_none() {
            let Some(call) = self.outgoing.pop_front() else { return };
            let sent = self.send(&call).and_then(|()| self.send_input(call.entry.slot(), 0));
            self.note(sent);
        }
    }

    /// Sends a call without its input.
    fn send(&self, Outgoing { entry, input, output, table }: &Outgoing) -> std::io::Result<()> {
        let (wire, slot, input, output) = (&self.session.wire, entry.slot(), *input, *output);
        wire.send(&Frame::Call { words: entry.encode(), input, table: table.len() as u64, output })?;
        for (at, bytes) in table.chunks(DATA_BYTES).enumerate() {
            wire.send(&Frame::Data { slot, offset: input + (at * DATA_BYTES) as u64, bytes })?;
        }
        Ok(())
    }

    /// Sends the input of a call from `offset` on, as far as it can be read.
    fn send_input(&mut self, slot: u32, mut offset: u64) -> std::io::Result<()> {
        let pieces = self.session.books().in_flight.get(&slot).map(InFlight::input);
        let (session, mut before) = (Arc::clone(&self.session), 0);
        for (address, length) in pieces.unwrap_or_default() {
            while offset < before + length {
                let count = (before + length - offset).min(DATA_BYTES as u64);
                self.buffer.resize(count as usize, 0);
                match session.memory.read(address + (offset - before), &mut self.buffer) {
                    Ok(()) => {}
                    Err(AccessError::Withdrawn { .. }) => {
                        self.stalled = Some((slot, offset));
                        return Ok(());
                    }
                    // It has died, which its process or its connection tells next: nobody is to blame its buffer.
                    Err(AccessError::Gone { .. }) => return Ok(()),
                    Err(error) => {
                        // The service process blames the rank, to all others too.
                        tracing::warn!(pid = session.pid, %error, "a rank's buffer cannot be read");
                        return session.wire.send(&Frame::Unreadable { slot });
                    }
                }
                session.wire.send(&Frame::Data { slot, offset, bytes: &self.buffer })?;
                offset += count;
            }
            before += length;
        }
        Ok(())
    }

    fn take_requests(&mut self) -> Result<bool, Gone> {
        match self.channel.receive::<Request>() {
            Ok(None) => Ok(false),
            Ok(Some(received)) => self.request(received).map(|()| true),
            Err(ChannelError::Closed) => Err(Gone::Rank),
            Err(error) => {
                tracing::warn!(pid = self.session.pid, %error, "a connection is given up");
                Err(Gone::Rank)
            }
        }
    }

    fn request(&mut self, received: Received<Request>) -> Result<(), Gone> {
        let Received { token, message, descriptors } = received;
        let local = match &message {
            Request::Hello(_) => Some(error(Status::Protocol, "this connection is attached already")),
            Request::RegisterMemory { address, bytes, .. } => {
                let memfd = descriptors.into_iter().next();
                return self.register(token, *address, *bytes, memfd);
            }
            Request::UnregisterMemory { address } => Some(match self.session.memory.ranges().unregister(*address) {
                Ok(()) => Reply::Done,
                Err(unknown) => error(Status::Argument, unknown),
            }),
            Request::ErrorText { slot } => {
                let books = self.session.books();
                books.failures.get(slot).map(|(status, text)| Reply::ErrorText { status: *status, text: text.clone() })
            }
            Request::CreateGroup { ranks, rank } if !self.lost => {
                return self.create_group(token, (*ranks, *rank), &descriptors);
            }
            Request::Offer
            | Request::DestroyGroup { .. }
            | Request::SetDeadline { .. }
            | Request::Detach
            | Request::CreateGroup { .. } => None,
            Request::Record { .. } | Request::FreeRecording { .. } => Some(error(Status::Argument, NO_RECORDINGS)),
            Request::Restage(restaged) => {
                // The call may still lie in the ring, where it was before the rank copied.
                while self.take_submissions() {}
                let taken = self.session.restage(restaged);
                if taken && let Some((slot, offset)) = self.stalled.take_if(|(slot, _)| *slot == restaged.slot) {
                    let sent = self.send_input(slot, offset);
                    self.note(sent);
                    self.send_outgoing();
                }
                Some(if taken { Reply::Done } else { error(Status::Argument, "the call has ended") })
            }
        };
        match (local, &message) {
            (Some(reply), _) => self.session.answer(&self.channel, token, &reply),
            (None, Request::DestroyGroup { .. } | Request::Detach) if self.lost => {
                self.session.answer(&self.channel, token, &Reply::Done);
            }
            (None, _) if self.lost => {
                let why = self.session.books().lost.clone().unwrap_or_default();
                self.session.answer(&self.channel, token, &error(Status::ServiceLost, why));
            }
            (None, request) => self.forward(token, request),
        }
        Ok(())
    }

    fn forward(&self, token: u64, request: &Request) {
        let asked = match request {
            Request::DestroyGroup { group } => Asked::DestroyGroup(*group),
            _ => Asked::Other,
        };
        self.session.books().asked.insert(token, asked);
        self.note(self.session.wire.send(&Frame::Request(&request.encode(token))));
    }

    fn create_group(&self, token: u64, (ranks, rank): (u32, u32), descriptors: &[OwnedFd]) -> Result<(), Gone> {
        let most = u32::from(u16::MAX);
        let [offers] = descriptors else { unreachable!("the message has one descriptor") };
        let offers = match read_sealed(offers.as_fd(), ranks.min(most) as usize * OFFER_BYTES) {
            Ok(offers) if ranks <= most => offers,
            Ok(_) => {
                let text = format!("{ranks} ranks exceed the {most} of a group");
                self.session.answer(&self.channel, token, &error(Status::Argument, text));
                return Ok(());
            }
            Err(cause) => {
                self.session.answer(&self.channel, token, &error(Status::Argument, cause));
                return Ok(());
            }
        };
        self.session.books().asked.insert(token, Asked::CreateGroup(ranks, rank));
        let wire = &self.session.wire;
        let sent = wire.send(&Frame::CreateGroup { token, ranks, rank });
        self.note(sent.and_then(|()| offers.chunks(DATA_BYTES).try_for_each(|piece| wire.send(&Frame::Offers(piece)))));
        Ok(())
    }

    fn register(&self, token: u64, address: u64, bytes: u64, memfd: Option<OwnedFd>) -> Result<(), Gone> {
        let memfd = memfd.expect("the message has one descriptor");
        let reply = match self.session.memory.ranges().register(address, bytes, memfd) {
            Ok(()) => Reply::Done,
            Err(cause) => error(Status::Argument, cause),
        };
        self.session.answer(&self.channel, token, &reply);
        Ok(())
    }

    /// What could not be sent is answered when the other thread hears of the loss.
    fn note(&self, sent: std::io::Result<()>) {
        if let Err(error) = sent {
            tracing::debug!(pid = self.session.pid, %error, "a frame does not reach the service process");
        }
    }
}

fn error(status: Status, text: impl ToString) -> Reply {
    Reply::Error { status, text: text.to_string() }
}
