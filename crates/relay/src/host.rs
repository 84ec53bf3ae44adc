//! The side of the ranks' host: serves ranks in the place of a service process on another machine (SP-1, GP-9).
//!
//! A relay has a control connection to the dock (`control`), on which the dock reports where the relay's ranks connect.
//! Each rank has two threads and a connection. The first thread takes the rank's requests and submissions, reads the
//! rank's input, and sends all frames. The second thread receives frames, and writes output and completions. A rank
//! goes through these states:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | greeting, without threads | `Hello`, and a free slot | attaching |
//! | greeting | anything else | gone |
//! | attaching | the service process accepts the rank | attached |
//! | attaching | anything else | gone, with the reason as reply |
//! | attached | the end of the connection | lost: every call, in flight or later, ends with the reason |
//! | attached, lost | the rank's end, `Detach` answered | gone: the connection ends, and the service process notices |
//!
//! Invariants: a connection without a greeting takes no rank's slot. A connection of a user who may not attach takes no
//! slot either. The second thread only waits for the connection, so the service process can always send. The second
//! thread writes memory of the rank; the first thread writes it only after the rank's copy. Both write before the
//! completion. The relay needs the rank's processor only for these copies.

mod control;
mod relayed_rank;
mod requests;

use std::collections::HashMap;
use std::io::{PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use outboard_fabric::limited;
use outboard_service::daemon::raise_descriptor_limit;
use outboard_service::topology::{self, CpuBinding, CpuTopology, Seat};
use outboard_service::{
    NamedSocket, PinnedProcess, Poller, RefusedRequest, Settings, StartError, Trigger, WakeToken, admit, pin_process,
    reject_process, send_error,
};
use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, ChannelError, Hello, ReceivedMessage, Welcome};
use outboard_shm::closer::REFUSAL_CLOSER;
use outboard_shm::control::ServiceSide;
use outboard_shm::memory::MOST_RANGES;
use outboard_shm::status::Status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use self::control::ControlConnection;
use self::relayed_rank::RelayedRank;
use crate::frame::{Decoder, RelayFrame};
use crate::session::RelaySession;
use crate::wire::{ANSWER_LIMIT, Wire};

/// The error for a service process that breaks the protocol.
const UNEXPECTED_ANSWER: &str = "it answers what was not asked";

/// The address of the service process, and the settings of this relay.
#[derive(Debug)]
struct RelayContext {
    settings: Settings,
    service: SocketAddr,
    control: ControlConnection,
    /// The name of this host.
    node: Arc<str>,
    topology: CpuTopology,
}

/// A guard that each call in flight holds. When the last guard is dropped, the pipe ends.
pub(super) type InFlightGuard = Arc<PipeWriter>;

/// Counts the calls of all ranks that have not ended.
#[derive(Debug)]
pub(super) struct CallsInFlight {
    held: Weak<PipeWriter>,
    /// The ranks, including some that are gone.
    ranks: Mutex<Vec<Weak<RelaySession>>>,
}

impl CallsInFlight {
    /// Adds a rank whose calls are counted.
    fn add_rank(&self, rank: &Arc<RelaySession>) {
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        ranks.retain(|rank| rank.strong_count() > 0);
        ranks.push(Arc::downgrade(rank));
    }

    /// Gives each rank a guard until the rank's earlier submissions have been taken.
    fn count_waiting_submissions(&self) {
        for rank in self.ranks.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade) {
            rank.state().submission_guard = self.count_call();
            rank.ring();
        }
    }

    /// A guard for one more call; `None` if counting has ended.
    fn count_call(&self) -> Option<InFlightGuard> {
        self.held.upgrade()
    }
}

/// Serves this host's ranks, which attach at `socket`, in the place of the service process at `service`. Ends as
/// [`outboard_service::run`] does: once `stopped` reports a stop no rank can attach any more, and calls in flight may
/// complete for as long as the settings allow.
pub fn serve(
    settings: &Settings,
    mut socket: NamedSocket,
    service: SocketAddr,
    stop: BorrowedFd<'_>,
    stopped: impl FnMut() -> bool,
    ready: impl FnOnce(),
) -> Result<(), StartError> {
    let key = settings.read_relay_key()?;
    raise_descriptor_limit();
    tracing::info!(%service, socket = %socket.path().display(), "relaying");
    ready();
    let (settings, node) = (settings.clone(), topology::node());
    let context = RelayContext {
        settings,
        service,
        control: ControlConnection::new(service, key),
        node,
        topology: CpuTopology::detect(),
    };
    accept(&mut socket, context, stop, stopped)
        .map_err(|errno| StartError::Kernel { what: "wait for ranks", source: errno.into() })
}

fn accept(
    socket: &mut NamedSocket,
    context: RelayContext,
    stop: BorrowedFd<'_>,
    mut stopped: impl FnMut() -> bool,
) -> Result<(), Errno> {
    let (present, context) = (Arc::new(()), Arc::new(context));
    let (none, held) = std::io::pipe().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let held = Arc::new(held);
    let calls_in_flight = Arc::new(CallsInFlight { held: Arc::downgrade(&held), ranks: Mutex::default() });
    let mut pending_ranks = PendingRanks::new()?;
    pending_ranks.poller.watch(&*socket, WakeToken::Attach, Trigger::Level)?;
    pending_ranks.poller.watch(stop, WakeToken::Stop, Trigger::Level)?;
    loop {
        for token in pending_ranks.poller.sleep(None)? {
            match token {
                WakeToken::Stop if stopped() => {
                    calls_in_flight.count_waiting_submissions();
                    drop(held);
                    pending_ranks.channels.values().for_each(farewell);
                    drop(pending_ranks);
                    return drain(socket, &calls_in_flight, &none, &context, stop, stopped);
                }
                WakeToken::Attach => match socket.accept() {
                    Ok(None) => {}
                    Ok(Some(connection)) => pending_ranks.serve_in_thread(connection.into()),
                    Err(errno) => {
                        limited!(error, %errno, "a rank is turned away; raise the limit on descriptors");
                        socket.turn_away(|connection| REFUSAL_CLOSER.submit(move || drop(connection)));
                    }
                },
                WakeToken::Channel(id) => {
                    let Some(channel) = pending_ranks.remove(id) else { continue };
                    match greeted(&channel) {
                        Ok(greeting) => serve_in_thread(channel, greeting, &context, &present, &calls_in_flight),
                        Err(error) => tracing::debug!(%error, "a connection did not greet"),
                    }
                }
                _ => {}
            }
        }
    }
}

/// Connections that have not sent a greeting yet.
struct PendingRanks {
    poller: Poller,
    channels: HashMap<u64, AttachChannel>,
    last: u64,
}

impl PendingRanks {
    fn new() -> Result<PendingRanks, Errno> {
        Ok(PendingRanks { poller: Poller::new()?, channels: HashMap::new(), last: 0 })
    }

    /// Adds a connection of a user who may attach.
    fn serve_in_thread(&mut self, channel: AttachChannel) {
        self.last += 1;
        let user = match channel.peer() {
            Ok(peer) => peer.uid,
            Err(errno) => return limited!(warn, %errno, "a connection of nobody"),
        };
        if let Err(text) = admit(rustix::process::geteuid().as_raw(), user) {
            limited!(warn, text, "a process may not attach");
            return reject_process(channel, text);
        }
        if let Err(errno) = self.poller.watch(&channel, WakeToken::Channel(self.last), Trigger::Level) {
            return limited!(error, %errno, "a rank is turned away");
        }
        self.channels.insert(self.last, channel);
    }

    /// Removes a connection that is readable or has ended.
    fn remove(&mut self, id: u64) -> Option<AttachChannel> {
        let channel = self.channels.remove(&id)?;
        self.poller.unwatch(&channel);
        Some(channel)
    }
}

/// Reports to a rank that the relay is ending and serves no more ranks.
fn farewell(rank: &AttachChannel) {
    let why = "the relay of this host was told to end and takes no more ranks; attach when it is back";
    send_error(rank, Status::NoService, why.to_owned());
}

/// Waits until no call is in flight, the time limit of the settings is over, or another stop arrives. Rejects new
/// ranks.
fn drain(
    socket: &mut NamedSocket,
    calls_in_flight: &CallsInFlight,
    none: &PipeReader,
    context: &RelayContext,
    stop: BorrowedFd<'_>,
    mut stopped: impl FnMut() -> bool,
) -> Result<(), Errno> {
    let until = Instant::now() + context.settings.drain;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let in_flight = calls_in_flight.held.strong_count();
        if in_flight == 0 {
            return Ok(());
        }
        if left.is_zero() {
            tracing::warn!(in_flight, "calls in flight did not end in time");
            return Ok(());
        }
        let mut fds = [
            PollFd::new(none, PollFlags::IN),
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::new(&*socket, PollFlags::IN),
        ];
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))?;
        let [ended, again, rank] = [0, 1, 2].map(|at| !fds[at].revents().is_empty());
        if ended || again && stopped() {
            return Ok(());
        }
        match rank.then(|| socket.accept()) {
            Some(Ok(Some(connection))) => farewell(&connection.into()),
            Some(Err(_)) => socket.turn_away(|connection| REFUSAL_CLOSER.submit(move || drop(connection))),
            Some(Ok(None)) | None => {}
        }
    }
}

/// The first message of a process.
struct RankGreeting {
    token: u64,
    hello: Hello,
    descriptors: Vec<OwnedFd>,
}

/// Serves a rank on a new thread, which holds `present` until it ends.
fn serve_in_thread(
    channel: AttachChannel,
    greeting: RankGreeting,
    context: &Arc<RelayContext>,
    present: &Arc<()>,
    calls_in_flight: &Arc<CallsInFlight>,
) {
    let most = context.settings.max_ranks;
    if Arc::strong_count(present) > most as usize {
        let text = format!("{most} ranks are attached through this relay already; raise its --max-ranks");
        limited!(warn, text, "a rank is turned away");
        return send_error(&channel, Status::Resource, text);
    }
    let (context, present, calls_in_flight) = (Arc::clone(context), Arc::clone(present), Arc::clone(calls_in_flight));
    let serve = move || {
        serve_rank(channel, greeting, &context, calls_in_flight);
        drop(present);
    };
    if let Err(error) = std::thread::Builder::new().name("relay-rank".into()).spawn(serve) {
        limited!(error, %error, "no thread for a rank");
    }
}

/// Serves one rank until the rank ends.
fn serve_rank(
    channel: AttachChannel,
    greeting: RankGreeting,
    context: &RelayContext,
    calls_in_flight: Arc<CallsInFlight>,
) {
    let RankGreeting { token, hello, descriptors } = greeting;
    match attach(&channel, &hello, descriptors, context) {
        Ok((session, side, welcome, decoder, pidfd)) => {
            let sent = channel.send(token, &AttachReply::Welcome(welcome), &side.descriptors());
            if sent.is_ok() {
                RelayedRank::start(channel, session, side, calls_in_flight, decoder, pidfd);
            }
        }
        Err(RefusedRequest { status, text }) => {
            limited!(warn, pid = hello.pid, text, "a process may not attach");
            // The send fails if the rank is gone meanwhile.
            let _ = channel.send(token, &AttachReply::Error { status, text }, &[]);
        }
    }
}

/// Receives the first message of a connection, which must be a greeting.
fn greeted(channel: &AttachChannel) -> Result<RankGreeting, ChannelError> {
    match channel.receive::<AttachRequest>()? {
        Some(ReceivedMessage { token, message: AttachRequest::Hello(hello), descriptors }) => {
            Ok(RankGreeting { token, hello, descriptors })
        }
        Some(ReceivedMessage { token, .. }) => {
            let text = "the first message of a connection is a greeting".to_owned();
            channel.send(token, &AttachReply::Error { status: Status::Protocol, text }, &[])?;
            Err(ChannelError::Closed)
        }
        None => Err(ChannelError::Backlogged),
    }
}

type RankAttachment = (RelaySession, ServiceSide, Welcome, Decoder, Option<OwnedFd>);

/// Finds out how the rank's memory can be accessed, and attaches the rank to the service process.
fn attach(
    channel: &AttachChannel,
    hello: &Hello,
    descriptors: Vec<OwnedFd>,
    context: &RelayContext,
) -> Result<RankAttachment, RefusedRequest> {
    let PinnedProcess { pid, visible_pid, pidfd, memory, .. } = pin_process(channel, hello, descriptors)?;
    let unreachable = |why: &dyn std::fmt::Display| RefusedRequest {
        status: Status::NoService,
        text: format!("the service process at {} does not take ranks of this host: {why}", context.service),
    };
    let wire = context.control.dial().map_err(|error| unreachable(&error))?;
    let place = visible_pid.map_or_else(CpuBinding::default, |pid| context.topology.binding_of(Some(pid)));
    let seat = Seat { node: Arc::clone(&context.node), place };
    let greeting = RelayFrame::Greeting { pid, seat };
    let (decoder, mut welcome) = greet(&wire, &greeting).map_err(|error| unreachable(&error))?;
    (welcome.tier, welcome.most_ranges) = (memory.tier(), MOST_RANGES);
    let resource = |text: String| RefusedRequest { status: Status::Resource, text };
    let side = ServiceSide::create().map_err(|error| resource(error.to_string()))?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let bell = bell.map_err(|errno| resource(format!("the relay cannot make an eventfd: {errno}")))?;
    tracing::info!(pid, tier = %memory.tier(), service = %context.service, "a rank attached");
    let session = RelaySession {
        service: context.service,
        pid,
        wire,
        memory,
        completions: side.completions(),
        state: Mutex::default(),
        bell,
    };
    Ok((session, side, welcome, decoder, pidfd))
}

/// Sends the greeting to the dock; returns the welcome. The error is the reason why the service process refuses the
/// rank.
fn greet(wire: &Wire, greeting: &RelayFrame<'_>) -> Result<(Decoder, Welcome), Box<dyn std::error::Error>> {
    wire.send(greeting)?;
    let mut decoder = Decoder::default();
    let answer = wire.first(&mut decoder, ANSWER_LIMIT, |frame| match frame {
        // The codec refuses a tier that only ranks of the service process's host can have. The caller replaces the
        // tier.
        RelayFrame::AttachReply(bytes) => match AttachReply::decode(bytes) {
            Ok((_, AttachReply::Welcome(welcome))) => Ok(welcome),
            _ => Err(UNEXPECTED_ANSWER.to_owned()),
        },
        RelayFrame::Refused { text } => Err(text.to_owned()),
        _ => Err(UNEXPECTED_ANSWER.to_owned()),
    })?;
    Ok((decoder, answer?))
}
