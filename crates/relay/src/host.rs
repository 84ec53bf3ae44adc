//! The host's side: serves ranks in the place of a service process on another machine (SP-1, GP-9).
//!
//! Each rank has two threads and a connection. The first takes what the rank says and submits, reads its input and
//! sends it all; the second takes what comes and writes output and completions. A rank goes through these states:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | greeting | `Hello`, and the service process takes the rank | attached |
//! | greeting | anything else | gone, with the reason as reply |
//! | attached | the end of the connection | lost: every call in flight, and every one to come, ends with the reason |
//! | attached, lost | the rank's end, `Detach` answered | gone: the connection ends, the service process sees that |
//!
//! Invariants: the second thread waits for the connection alone, so what the service process sends always flows; memory
//! of the rank is written by it alone, before the completion that tells the rank so. Never does: ask the rank's
//! processor.

mod relayed;
mod requests;

use std::io::{PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use outboard_fabric::SharedKey;
use outboard_service::daemon::raise_descriptor_limit;
use outboard_service::topology::{self, Place, Seat, Topology};
use outboard_service::{NamedSocket, Process, Refused, Settings, StartError, pin, tell};
use outboard_shm::attach::message::Message;
use outboard_shm::attach::{Channel, ChannelError, Hello, Received, Reply, Request, Welcome};
use outboard_shm::control::ServiceSide;
use outboard_shm::status::Status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::SocketType;

use self::relayed::Relayed;
use crate::frame::{Decoder, Frame};
use crate::session::Session;
use crate::wire::{Wire, WireError};

/// How long a rank may take to say who it is.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// How long the service process may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The answer of a service process that does not keep to the protocol.
const NONSENSE: &str = "it answers what was not asked";

/// Where the service process is and who may attach here.
#[derive(Debug)]
struct Terms {
    settings: Settings,
    key: SharedKey,
    service: SocketAddr,
    /// This host's name.
    node: Arc<str>,
    topology: Topology,
}

/// What each call in flight holds: with the last of them the pipe ends.
pub(super) type Counted = Arc<PipeWriter>;

/// The calls of all ranks that have not ended.
#[derive(Debug)]
pub(super) struct Flights {
    held: Weak<PipeWriter>,
    /// Whose they are, and some who have gone.
    ranks: Mutex<Vec<Weak<Session>>>,
}

impl Flights {
    /// One rank more.
    fn of(&self, rank: &Arc<Session>) {
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        ranks.retain(|rank| rank.strong_count() > 0);
        ranks.push(Arc::downgrade(rank));
    }

    /// Every rank counts as a call until what it has posted before has been taken.
    fn look_for_more(&self) {
        for rank in self.ranks.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade) {
            rank.books().looked_for = self.one_more();
            rank.ring();
        }
    }

    /// None where nobody counts any more.
    fn one_more(&self) -> Option<Counted> {
        self.held.upgrade()
    }
}

/// Serves this host's ranks in the place of the service process at `service` until `stopped` says so, as
/// [`outboard_service::run`] does: then no other attaches, and calls in flight may end, for as long as the settings
/// say.
pub fn serve(
    settings: &Settings,
    service: SocketAddr,
    stop: BorrowedFd<'_>,
    stopped: impl FnMut() -> bool,
    ready: impl FnOnce(),
) -> Result<(), StartError> {
    let key = settings.read_relay_key()?;
    raise_descriptor_limit();
    let mode = Mode::from_raw_mode(settings.socket_mode);
    let mut socket = NamedSocket::listen(&settings.socket, SocketType::SEQPACKET, mode)?;
    tracing::info!(%service, socket = %settings.socket.display(), "relaying");
    ready();
    let (settings, node) = (settings.clone(), topology::node());
    let terms = Terms { settings, key, service, node, topology: Topology::detect() };
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
    loop {
        let mut fds = [PollFd::new(&*socket, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        if !fds[1].revents().is_empty() && stopped() {
            flights.look_for_more();
            drop(held);
            return drain(socket, (&flights, &none), &terms, stop, stopped);
        }
        match socket.accept() {
            Ok(None) => {}
            Ok(Some(connection)) => take_in(connection.into(), &terms, &present, &flights),
            Err(errno) => {
                tracing::error!(%errno, "a rank is turned away; raise the limit on descriptors");
                socket.turn_away(drop);
            }
        }
    }
}

/// Waits until no call is in flight, as long as the terms say, or until another stop; turns ranks away.
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
            Some(Ok(Some(connection))) => {
                let why = "the relay of this host was told to end and takes no more ranks; attach when it is back";
                tell(&connection.into(), Status::NoService, why.to_owned());
            }
            Some(Err(_)) => socket.turn_away(drop),
            Some(Ok(None)) | None => {}
        }
    }
}

/// Serves a rank on a thread of its own, which holds `present`.
fn take_in(channel: Channel, terms: &Arc<Terms>, present: &Arc<()>, flights: &Arc<Flights>) {
    let most = terms.settings.max_ranks;
    if Arc::strong_count(present) > most as usize {
        return tracing::warn!(most, "a rank is turned away; raise --max-ranks");
    }
    let (terms, present, flights) = (Arc::clone(terms), Arc::clone(present), Arc::clone(flights));
    let serve = move || {
        serve_rank(channel, &terms, flights);
        drop(present);
    };
    if let Err(error) = std::thread::Builder::new().name("relay-rank".into()).spawn(serve) {
        tracing::error!(%error, "no thread for a rank");
    }
}

/// Serves one rank to its end.
fn serve_rank(channel: Channel, terms: &Terms, flights: Arc<Flights>) {
    let (token, hello, descriptors) = match greeted(&channel) {
        Ok(greeted) => greeted,
        Err(error) => return tracing::debug!(%error, "a connection did not greet"),
    };
    match attach(&channel, &hello, descriptors, terms) {
        Ok((session, side, welcome, decoder, pidfd)) => {
            let sent = channel.send(token, &Reply::Welcome(welcome), &side.descriptors());
            if sent.is_ok() {
                Relayed::start(channel, session, (side, flights), decoder, pidfd);
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
    let Process { pid, seen, pidfd, memory, user, .. } = pin(channel, hello, descriptors, &terms.settings)?;
    let unreachable = |why: &dyn std::fmt::Display| Refused {
        status: Status::NoService,
        text: format!("the service process at {} does not take ranks of this host: {why}", terms.service),
    };
    let stream = TcpStream::connect_timeout(&terms.service, ANSWER_LIMIT).map_err(|error| unreachable(&error))?;
    let wire = Wire::dial(stream, &terms.key).map_err(|error| unreachable(&error))?;
    let place = seen.map_or_else(Place::default, |pid| terms.topology.place_of(Some(pid)));
    let seat = Seat { node: Arc::clone(&terms.node), place };
    let greeting = Frame::Greeting { pid, user, job: hello.job, seat };
    let (decoder, mut welcome) = greet(&wire, &greeting).map_err(|error| unreachable(&error))?;
    (welcome.tier, welcome.most_ranges) = (memory.tier(), terms.settings.memory_ranges);
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

/// The error says why the service process does not take a rank.
fn greet(wire: &Wire, greeting: &Frame<'_>) -> Result<(Decoder, Welcome), Box<dyn std::error::Error>> {
    wire.send(greeting)?;
    wire.stream().set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut decoder = Decoder::default();
    let welcome = loop {
        match decoder.next().map_err(WireError::from)? {
            // The codec refuses a tier that only a rank of the same host can have, and this one is replaced.
            Some(Frame::Reply(bytes)) => match Reply::decode(bytes) {
                Ok((_, Reply::Welcome(welcome))) => break welcome,
                _ => return Err(NONSENSE.into()),
            },
            Some(Frame::Refused { text }) => return Err(text.to_owned().into()),
            Some(_) => return Err(NONSENSE.into()),
            None => wire.fill(&mut decoder)?,
        }
    };
    wire.stream().set_read_timeout(None)?;
    Ok((decoder, welcome))
}
