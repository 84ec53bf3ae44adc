//! The service process's side: ranks that attach through relays (SP-1, GP-9).
//!
//! A connection goes through these states, on a thread of its own:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | stranger | a handshake by the relay key | greeting |
//! | stranger | anything else | closed, counted |
//! | greeting | the right greeting, and the service process takes the rank | attached |
//! | greeting | anything else | refused |
//! | attached | the end of the connection, the service process's end, `Detach` | gone: the rank has left |
//! | attached | a frame that cannot be, or more memory than the quota | refused |
//!
//! A call is *filling* while its input comes, then *waiting* until those before it are posted and its arena is
//! registered, then *posted* until its completion word says how it ended; a second thread sends output and completion.
//!
//! Invariants: at most [`STRANGERS`] connections have not proven that they hold the key; calls are posted in the order
//! in which they came; the service process reaches shadows and nothing else, since the dock never proves access to its
//! own memory.

mod call;
mod delivery;
mod session;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use outboard_fabric::limited;
use outboard_fabric::{Refusals, SharedKey};
use outboard_shm::attach::message::Message;
use outboard_shm::attach::{Channel, Hello, Reply, Request};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use self::delivery::{Books, Shared};
use crate::frame::{Decoder, Frame};
use crate::output::Output;
use crate::shadow::Shadows;
use crate::wire::{ANSWER_LIMIT, GREETING_LIMIT, Wire, WireError};
use outboard_service::{DockedRank, DockedRanks, Settings, StartError, random};

/// Connections that have not proven that they hold the key.
const STRANGERS: usize = 128;
/// How long nobody is taken in when no descriptor is left.
const PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Tokens from here on are the dock's own; ranks count from 1.
const OWN_TOKENS: u64 = 1 << 63;
/// An address where no shadow lies: what is read there fails the call.
const NOWHERE: u64 = 64;

/// What all connections are served by.
#[derive(Debug)]
struct Terms {
    settings: Settings,
    key: SharedKey,
    docked: Arc<DockedRanks>,
    refusals: Mutex<Refusals>,
}

impl Terms {
    fn closed(&self, from: SocketAddr, why: &dyn std::fmt::Display) {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).note(&from, None, why);
    }
}

/// The listening socket's thread; connections end with the service process.
#[derive(Debug)]
pub struct Dock {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Dock {
    /// Listens for relays at `address` on behalf of the service process with these settings.
    pub fn start(address: SocketAddr, settings: &Settings, docked: &Arc<DockedRanks>) -> Result<Dock, StartError> {
        let key = settings.read_relay_key()?;
        let (dock, local) = Dock::listen(address, settings, key, docked)
            .map_err(|source| StartError::Kernel { what: "listen for relays", source })?;
        if settings.relay_key.is_none() && !address.ip().is_loopback() {
            tracing::warn!(address = %local, "whoever reaches this address may attach; give both sides a --relay-key");
        }
        tracing::info!(address = %local, "relays may attach ranks");
        Ok(dock)
    }

    fn listen(
        address: SocketAddr,
        settings: &Settings,
        key: SharedKey,
        docked: &Arc<DockedRanks>,
    ) -> io::Result<(Dock, SocketAddr)> {
        let listener = TcpListener::bind(address)?;
        let local = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (settings, docked) = (settings.clone(), Arc::clone(docked));
        let terms = Terms { settings, key, docked, refusals: Mutex::default() };
        let until = stop.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("dock".into())
            .spawn(move || listen(&listener, &until, &Arc::new(terms)))?;
        Ok((Dock { stop, thread: Some(thread) }, local))
    }
}

impl Drop for Dock {
    fn drop(&mut self) {
        // A counter that is at its end wakes as well.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that listens for relays panicked");
        }
    }
}

fn listen(listener: &TcpListener, stop: &OwnedFd, terms: &Arc<Terms>) {
    let (mut strangers, present) = (VecDeque::new(), Arc::new(()));
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if let Err(errno) = rustix::io::retry_on_intr(|| poll(&mut fds, None)) {
            return tracing::error!(%errno, "relays are not listened for any more");
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, from)) => take_in((stream, from), terms, &mut strangers, &present),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                limited!(warn, %error, "a relay cannot connect");
                // The connection may wait for a descriptor still: the listener stays readable.
                let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&PAUSE));
            }
        }
    }
}

/// Serves a relay on a thread of its own, which counts as a stranger until it has proven its key, then as present. The
/// oldest stranger makes way.
fn take_in(
    (stream, from): (TcpStream, SocketAddr),
    terms: &Arc<Terms>,
    strangers: &mut VecDeque<Weak<TcpStream>>,
    present: &Arc<()>,
) {
    let stranger = match stream.try_clone() {
        Ok(same) => Arc::new(same),
        Err(error) => return limited!(warn, %error, %from, "a relay cannot connect"),
    };
    strangers.retain(|stranger| stranger.strong_count() > 0);
    if strangers.len() >= STRANGERS
        && let Some(oldest) = strangers.pop_front().and_then(|oldest| oldest.upgrade())
    {
        // One that has ended needs no end.
        let _ = oldest.shutdown(Shutdown::Both);
    }
    strangers.push_back(Arc::downgrade(&stranger));
    let (terms, present) = (Arc::clone(terms), Arc::downgrade(present));
    let serve = move || {
        let accepted = stream.set_nonblocking(false).map_err(WireError::from);
        let wire = match accepted.and_then(|()| Wire::accept(stream, &terms.key)) {
            Ok(wire) => wire,
            Err(error) => return terms.closed(from, &error),
        };
        drop(stranger);
        // The service process ends meanwhile, otherwise.
        let Some(present) = present.upgrade() else { return };
        // The listener holds one, and this thread.
        let most = terms.settings.max_ranks;
        if Arc::strong_count(&present) > most as usize + 1 {
            let text = format!("{most} ranks are attached through relays already; raise --max-ranks");
            return refuse(&wire, from, &text);
        }
        serve(wire, from, &terms);
        drop(present);
    };
    if let Err(error) = std::thread::Builder::new().name("dock-rank".into()).spawn(serve) {
        limited!(warn, %error, %from, "no thread for a relay");
    }
}

fn refuse(wire: &Wire, from: SocketAddr, text: &str) {
    limited!(warn, %from, text, "a relay is refused");
    if let Err(error) = wire.send(&Frame::Refused { text }) {
        tracing::debug!(%from, %error, "a relay does not hear why it is refused");
    }
    wire.end();
}

/// Why a session ends.
#[derive(Debug)]
enum End {
    /// Relay or service process has ended it.
    Over,
    /// The relay is to blame, or to be told.
    Refused(String),
}

impl From<WireError> for End {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Ended | WireError::Broken(_) => End::Over,
            WireError::Frame(_) | WireError::Forged(_) | WireError::Handshake => End::Refused(error.to_string()),
        }
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        // It has broken.
        End::Over
    }
}

fn refused<T>(text: impl ToString) -> Result<T, End> {
    Err(End::Refused(text.to_string()))
}

/// Serves one relayed rank to its end.
fn serve(wire: Wire, from: SocketAddr, terms: &Terms) {
    let mut decoder = Decoder::default();
    let (channel, side, output) = match greet(&wire, &mut decoder, terms) {
        Ok(greeted) => greeted,
        Err(End::Refused(text)) => return refuse(&wire, from, &text),
        Err(End::Over) => return,
    };
    output.wake(&side);
    let shadows = Shadows::new(terms.settings.relay_memory.0);
    let books = Mutex::new(Books { posted: HashMap::new(), shadows, over: false });
    let shared = Arc::new(Shared { side, output, wire, books, changed: Condvar::new() });
    let ended = session::attached(&channel, &shared, &mut decoder);
    // The service process lets go of the shadows first.
    drop(channel);
    if let Err(End::Refused(text)) = ended {
        refuse(&shared.wire, from, &text);
    }
    shared.finish();
}

/// Hears the greeting, which has so much time however it comes, and attaches to the service process on behalf of the
/// rank.
fn greet(wire: &Wire, decoder: &mut Decoder, terms: &Terms) -> Result<(Channel, Arc<RankSide>, Arc<Output>), End> {
    let until = Instant::now() + GREETING_LIMIT;
    let output = Arc::<Output>::default();
    let (docked_rank, job) = loop {
        match decoder.next().map_err(WireError::from)? {
            Some(Frame::Greeting { pid, user, job, seat }) => {
                break (DockedRank { user, pid, seat, watch: Arc::<Output>::clone(&output) }, job);
            }
            Some(_) => return refused("the first frame of a connection is a greeting"),
            None => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::Over);
        }
        wire.stream().set_read_timeout(Some(left))?;
        wire.fill(decoder)?;
    };
    wire.stream().set_read_timeout(None)?;
    let nonce = match random::<2>() {
        Ok(words) => std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8]),
        Err(errno) => return refused(format!("the service process cannot draw random numbers: {errno}")),
    };
    terms.docked.expect(nonce, docked_rank);
    let attached = attach(terms, nonce, job);
    // Taken by the service process already, unless it has refused.
    terms.docked.take(&nonce);
    let (channel, side, welcome) = attached?;
    wire.send(&Frame::Reply(&welcome.encode(0)))?;
    Ok((channel, Arc::new(side), output))
}

/// Attaches as a rank of this machine would; the nonce tells the service process whom for.
fn attach(terms: &Terms, nonce: [u8; 16], job: u64) -> Result<(Channel, RankSide, Reply), End> {
    let failed = |error: &dyn std::fmt::Display| End::Refused(format!("the service process does not attach: {error}"));
    let channel = Channel::connect(&terms.settings.socket).map_err(|errno| failed(&errno))?;
    let hello = Hello {
        layout_version: LAYOUT_VERSION,
        pid: std::process::id(),
        // Nothing of ours is to be reached but what is registered.
        probe_address: NOWHERE,
        nonce,
        descriptor: false,
        job,
    };
    channel.send(OWN_TOKENS, &Request::Hello(hello), &[]).map_err(|error| failed(&error))?;
    channel.wait(ANSWER_LIMIT).map_err(|error| failed(&error))?;
    let Some(mut welcome) = channel.receive::<Reply>().map_err(|error| failed(&error))? else {
        return refused("the service process does not answer");
    };
    if let Reply::Error { text, .. } = welcome.message {
        return refused(text);
    }
    let (Some(doorbell), Some(region)) = (welcome.descriptors.pop(), welcome.descriptors.pop()) else {
        return refused("the service process answers what was not asked");
    };
    let side = RankSide::attach(region, doorbell).map_err(|error| failed(&error))?;
    Ok((channel, side, welcome.message))
}
