//! The host's side: serves ranks in the place of a service process on another machine (SP-1, GP-9).
//!
//! A relay has a control connection to the dock (`control`), which reports where its ranks connect. Each rank has two
//! threads and a connection. The first thread takes the rank's requests and submissions, reads its input and sends
//! everything. The second thread receives, and writes output and completions. A rank goes through these states:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | greeting, without threads | `Hello`, and a free slot | attaching |
//! | greeting | anything else | gone |
//! | attaching | the service process accepts the rank | attached |
//! | attaching | anything else | gone, with the reason as reply |
//! | attached | the end of the connection | lost: every call in flight, and every one to come, ends with the reason |
//! | attached, lost | the rank's end, `Detach` answered | gone: the connection ends, as the service process notices |
//!
//! Invariants: a connection without a greeting takes no rank's slot, nor does a connection of a user who may not
//! attach. The second thread waits for the connection alone, so the service process can always send. The second thread
//! writes memory of the rank, the first only after the rank's copy, and both before the completion. The relay needs the
//! rank's processor for these copies alone.

mod control;
mod relayed;
mod requests;

use std::collections::HashMap;
use std::io::{PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use outboard_fabric::limited;
use outboard_service::daemon::raise_descriptor_limit;
use outboard_service::topology::{self, Place, Seat, Topology};
use outboard_service::{
    NamedSocket, Poller, Process, Refused, Settings, StartError, Token, Trigger, admit, dismiss, pin, tell,
};
use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, ChannelError, Hello, ReceivedMessage, Welcome};
use outboard_shm::closer::REFUSAL_CLOSER;
use outboard_shm::control::ServiceSide;
use outboard_shm::memory::MOST_RANGES;
use outboard_shm::status::Status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use self::control::Control;
use self::relayed::Relayed;
use crate::frame::{Decoder, Frame};
use crate::session::Session;
use crate::wire::{ANSWER_LIMIT, Wire};

/// The error for a service process that breaks the protocol.
const NONSENSE: &str = "it answers what was not asked";

/// The service process, and the settings of this relay.
#[derive(Debug)]
struct Terms {
    settings: Settings,
    service: SocketAddr,
    control: Control,
    /// This host's name.
    node: Arc<str>,
    topology: Topology,
}

/// Held by each call in flight: when the last one is dropped, the pipe ends.
pub(super) type Counted = Arc<PipeWriter>;

/// The calls of all ranks that have not ended.
#[derive(Debug)]
pub(super) struct Flights {
    held: Weak<PipeWriter>,
    /// Their ranks, and some that are gone.
    ranks: Mutex<Vec<Weak<Session>>>,
}

impl Flights {
    /// Adds a rank.
    fn of(&self, rank: &Arc<Session>) {
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        ranks.retain(|rank| rank.strong_count() > 0);
        ranks.push(Arc::downgrade(rank));
    }

    /// Counts each rank as a call until its earlier submissions have been taken.
    fn look_for_more(&self) {
        for rank in self.ranks.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade) {
            rank.books().looked_for = self.one_more();
            rank.ring();
        }
    }

    /// Counts one more call; none if the count has ended.
    fn one_more(&self) -> Option<Counted> {
        self.held.upgrade()
    }
}

/// Serves this host's ranks, which attach at `socket`, in the place of the service process at `service`. It ends as
/// [`outboard_service::run`] does: once `stopped` reports a stop no rank can attach any more, and calls in flight may
/// end for as long as the settings allow.
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
    let terms = Terms { settings, service, control: Control::new(service, key), node, topology: Topology::detect() };
    accept(&mut socket, terms, stop, stopped)
        .map_err(|errno| StartError::Kernel { what: "wait for ranks", source: errno.into() })
}

fn accept(
    socket: &mut NamedSocket,
    terms: Terms,
    stop: BorrowedFd<'_>,
    mut stopped: impl FnMut() -> bool,
) -> Result<(), Errno> {
    let (present, terms) = (Arc::new(()), Arc::new(terms));
    let (none, held) = std::io::pipe().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let held = Arc::new(held);
    let flights = Arc::new(Flights { held: Arc::downgrade(&held), ranks: Mutex::default() });
    let mut strangers = Strangers::new()?;
    strangers.poller.watch(&*socket, Token::Attach, Trigger::Level)?;
    strangers.poller.watch(stop, Token::Stop, Trigger::Level)?;
    loop {
        for token in strangers.poller.sleep(None)? {
            match token {
                Token::Stop if stopped() => {
                    flights.look_for_more();
                    drop(held);
                    strangers.channels.values().for_each(farewell);
                    drop(strangers);
                    return drain(socket, (&flights, &none), &terms, stop, stopped);
                }
                Token::Attach => match socket.accept() {
                    Ok(None) => {}
                    Ok(Some(connection)) => strangers.take_in(connection.into()),
                    Err(errno) => {
                        limited!(error, %errno, "a rank is turned away; raise the limit on descriptors");
                        socket.turn_away(|connection| REFUSAL_CLOSER.submit(move || drop(connection)));
                    }
                },
                Token::Channel(id) => {
                    let Some(channel) = strangers.remove(id) else { continue };
                    match greeted(&channel) {
                        Ok(greeting) => take_in(channel, greeting, &terms, &present, &flights),
                        Err(error) => tracing::debug!(%error, "a connection did not greet"),
                    }
                }
                _ => {}
            }
        }
    }
}

/// Connections that have not sent a greeting.
struct Strangers {
    poller: Poller,
    channels: HashMap<u64, AttachChannel>,
    last: u64,
}

impl Strangers {
    fn new() -> Result<Strangers, Errno> {
        Ok(Strangers { poller: Poller::new()?, channels: HashMap::new(), last: 0 })
    }

    /// Adds a connection of a user who may attach.
    fn take_in(&mut self, channel: AttachChannel) {
        self.last += 1;
        let user = match channel.peer() {
            Ok(peer) => peer.uid,
            Err(errno) => return limited!(warn, %errno, "a connection of nobody"),
        };
        if let Err(text) = admit(rustix::process::geteuid().as_raw(), user) {
            limited!(warn, text, "a process may not attach");
            return dismiss(channel, text);
        }
        if let Err(errno) = self.poller.watch(&channel, Token::Channel(self.last), Trigger::Level) {
            return limited!(error, %errno, "a rank is turned away");
        }
        self.channels.insert(self.last, channel);
    }

    /// The connection is readable or has ended.
    fn remove(&mut self, id: u64) -> Option<AttachChannel> {
        let channel = self.channels.remove(&id)?;
        self.poller.unwatch(&channel);
        Some(channel)
    }
}

/// Reports to a rank that it attaches too late.
fn farewell(rank: &AttachChannel) {
    let why = "the relay of this host was told to end and takes no more ranks; attach when it is back";
    tell(rank, Status::NoService, why.to_owned());
}

/// Waits until no call is in flight, at most as long as the settings allow, or until another stop. Turns ranks away.
fn drain(
    socket: &mut NamedSocket,
    (flights, none): (&Flights, &PipeReader),
    terms: &Terms,
    stop: BorrowedFd<'_>,
    mut stopped: impl FnMut() -> bool,
) -> Result<(), Errno> {
    let until = Instant::now() + Duration::from_secs(terms.settings.drain.into());
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let in_flight = flights.held.strong_count();
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

/// The first message of a process: token, greeting, descriptors.
type Greeting = (u64, Hello, Vec<OwnedFd>);

/// Serves a rank on its own thread, which holds `present`.
fn take_in(channel: AttachChannel, greeting: Greeting, terms: &Arc<Terms>, present: &Arc<()>, flights: &Arc<Flights>) {
    let most = terms.settings.max_ranks;
    if Arc::strong_count(present) > most as usize {
        let text = format!("{most} ranks are attached through this relay already; raise its --max-ranks");
        limited!(warn, text, "a rank is turned away");
        return tell(&channel, Status::Resource, text);
    }
    let (terms, present, flights) = (Arc::clone(terms), Arc::clone(present), Arc::clone(flights));
    let serve = move || {
        serve_rank(channel, greeting, &terms, flights);
        drop(present);
    };
    if let Err(error) = std::thread::Builder::new().name("relay-rank".into()).spawn(serve) {
        limited!(error, %error, "no thread for a rank");
    }
}

/// Serves one rank to its end.
fn serve_rank(channel: AttachChannel, (token, hello, descriptors): Greeting, terms: &Terms, flights: Arc<Flights>) {
    match attach(&channel, &hello, descriptors, terms) {
        Ok((session, side, welcome, decoder, pidfd)) => {
            let sent = channel.send(token, &AttachReply::Welcome(welcome), &side.descriptors());
            if sent.is_ok() {
                Relayed::start(channel, session, (side, flights), decoder, pidfd);
            }
        }
        Err(Refused { status, text }) => {
            limited!(warn, pid = hello.pid, text, "a process may not attach");
            // The rank may be gone meanwhile.
            let _ = channel.send(token, &AttachReply::Error { status, text }, &[]);
        }
    }
}

/// The first message of a connection.
fn greeted(channel: &AttachChannel) -> Result<Greeting, ChannelError> {
    match channel.receive::<AttachRequest>()? {
        Some(ReceivedMessage { token, message: AttachRequest::Hello(hello), descriptors }) => {
            Ok((token, hello, descriptors))
        }
        Some(ReceivedMessage { token, .. }) => {
            let text = "the first message of a connection is a greeting".to_owned();
            channel.send(token, &AttachReply::Error { status: Status::Protocol, text }, &[])?;
            Err(ChannelError::Closed)
        }
        None => Err(ChannelError::Backlogged),
    }
}

type Attached = (Session, ServiceSide, Welcome, Decoder, Option<OwnedFd>);

/// Finds out how the rank's memory is accessed, and attaches the rank to the service process.
fn attach(
    channel: &AttachChannel,
    hello: &Hello,
    descriptors: Vec<OwnedFd>,
    terms: &Terms,
) -> Result<Attached, Refused> {
    let Process { pid, seen, pidfd, memory, .. } = pin(channel, hello, descriptors)?;
    let unreachable = |why: &dyn std::fmt::Display| Refused {
        status: Status::NoService,
        text: format!("the service process at {} does not take ranks of this host: {why}", terms.service),
    };
    let wire = terms.control.dial().map_err(|error| unreachable(&error))?;
    let place = seen.map_or_else(Place::default, |pid| terms.topology.place_of(Some(pid)));
    let seat = Seat { node: Arc::clone(&terms.node), place };
    let greeting = Frame::Greeting { pid, seat };
    let (decoder, mut welcome) = greet(&wire, &greeting).map_err(|error| unreachable(&error))?;
    (welcome.tier, welcome.most_ranges) = (memory.tier(), MOST_RANGES);
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

/// The error is the reason why the service process refuses the rank.
fn greet(wire: &Wire, greeting: &Frame<'_>) -> Result<(Decoder, Welcome), Box<dyn std::error::Error>> {
    wire.send(greeting)?;
    let mut decoder = Decoder::default();
    let answer = wire.first(&mut decoder, ANSWER_LIMIT, |frame| match frame {
        // The codec refuses a tier that only a rank of the same host can have; the caller replaces the tier.
        Frame::AttachReply(bytes) => match AttachReply::decode(bytes) {
            Ok((_, AttachReply::Welcome(welcome))) => Ok(welcome),
            _ => Err(NONSENSE.to_owned()),
        },
        Frame::Refused { text } => Err(text.to_owned()),
        _ => Err(NONSENSE.to_owned()),
    })?;
    Ok((decoder, answer?))
}
