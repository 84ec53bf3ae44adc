//! The service process's side: ranks that attach through relays (SP-1, GP-9).
//!
//! A connection goes through these states, on a thread of its own:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | greeting | the right greeting, and the service process takes the rank | attached |
//! | greeting | anything else | refused |
//! | attached | the end of the connection, the service process's end, `Detach` | gone: the rank has left |
//! | attached | a frame that cannot be, or more memory than the quota | refused |
//!
//! A call is *filling* while its input comes, then *waiting* until those before it are posted and its arena is
//! registered, then *posted* until its completion word says how it ended; a second thread sends output and completion.
//!
//! Invariants: calls are posted in the order in which they came; the service process reaches shadows and nothing else,
//! since the dock never proves access to its own memory.

mod call;
mod delivery;
mod session;

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outboard_shm::attach::message::Message;
use outboard_shm::attach::{Channel, Hello, Reply, Request};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use self::delivery::{Books, Shared};
use crate::frame::{Decoder, Frame};
use crate::output::Output;
use crate::shadow::Shadows;
use crate::wire::{Wire, WireError};
use outboard_service::topology::Seat;
use outboard_service::{DockedRank, DockedRanks, Job, Settings, StartError, random};

/// How long a relay may take to greet, whatever it sends meanwhile.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// How long the service process may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Connections that have not greeted.
const MOST_GREETING: usize = 256;
/// Tokens from here on are the dock's own; ranks count from 1.
const OWN_TOKENS: u64 = 1 << 63;
/// An address where no shadow lies: what is read there fails the call.
const NOWHERE: u64 = 64;

/// What all connections are served by.
#[derive(Debug)]
struct Terms {
    settings: Settings,
    docked: Arc<DockedRanks>,
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
        let (dock, local) = Dock::listen(address, settings, docked)
            .map_err(|source| StartError::Kernel { what: "listen for relays", source })?;
        if settings.relay_key.is_empty() && !address.ip().is_loopback() {
            tracing::warn!(address = %local, "whoever reaches this address may attach; set OUTBOARD_RELAY_KEY on both sides");
        }
        tracing::info!(address = %local, "relays may attach ranks");
        Ok(dock)
    }

    fn listen(address: SocketAddr, settings: &Settings, docked: &Arc<DockedRanks>) -> io::Result<(Dock, SocketAddr)> {
        let listener = TcpListener::bind(address)?;
        let local = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let terms = Terms { settings: settings.clone(), docked: Arc::clone(docked) };
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
    let (present, greeting) = (Arc::new(()), Arc::new(()));
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if let Err(errno) = rustix::io::retry_on_intr(|| poll(&mut fds, None)) {
            return tracing::error!(%errno, "relays are not listened for any more");
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, from)) => take_in(stream, from, terms, [&present, &greeting]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!(%error, "a relay cannot connect"),
        }
    }
}

/// Serves a relay on a thread of its own, which holds `present`, and `greeting` until it has greeted.
fn take_in(stream: TcpStream, from: SocketAddr, terms: &Arc<Terms>, [present, greeting]: [&Arc<()>; 2]) {
    let wire = match stream.set_nonblocking(false).and_then(|()| Wire::new(stream)) {
        Ok(wire) => wire,
        Err(error) => return tracing::warn!(%error, %from, "a relay cannot connect"),
    };
    // Whoever has not greeted holds both, and takes no rank's place.
    if Arc::strong_count(present).saturating_sub(Arc::strong_count(greeting)) >= terms.settings.max_ranks as usize {
        let most = terms.settings.max_ranks;
        return refuse(&wire, from, &format!("{most} ranks are attached through relays already; raise --max-ranks"));
    }
    if Arc::strong_count(greeting) > MOST_GREETING {
        return refuse(&wire, from, &format!("{MOST_GREETING} connections have not greeted yet; connect again"));
    }
    let (terms, present, greeting) = (Arc::clone(terms), Arc::clone(present), Arc::clone(greeting));
    let serve = move || {
        serve(wire, from, &terms, greeting);
        drop(present);
    };
    if let Err(error) = std::thread::Builder::new().name("dock-rank".into()).spawn(serve) {
        tracing::warn!(%error, %from, "no thread for a relay");
    }
}

fn refuse(wire: &Wire, from: SocketAddr, text: &str) {
    tracing::warn!(%from, text, "a relay is refused");
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
            WireError::Frame(error) => End::Refused(error.to_string()),
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
fn serve(wire: Wire, from: SocketAddr, terms: &Terms, greeting: Arc<()>) {
    let mut decoder = Decoder::default();
    let greeted = hear(&wire, &mut decoder);
    drop(greeting);
    let (channel, side, output) = match greeted.and_then(|greeted| greet(&wire, greeted, terms)) {
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

/// What a relay greets with.
struct Greeted {
    pid: u32,
    seat: Seat,
    job: Job,
    key: Vec<u8>,
}

/// Hears the greeting, which has so much time however it comes.
fn hear(wire: &Wire, decoder: &mut Decoder) -> Result<Greeted, End> {
    let until = Instant::now() + GREETING_LIMIT;
    let greeted = loop {
        match decoder.next().map_err(WireError::from)? {
            Some(Frame::Greeting { pid, user, job, seat, key }) => {
                break Greeted { pid, seat, job: Job { user, number: job }, key: key.to_vec() };
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
    Ok(greeted)
}

/// Attaches to the service process on behalf of the rank.
fn greet(wire: &Wire, greeted: Greeted, terms: &Terms) -> Result<(Channel, Arc<RankSide>, Arc<Output>), End> {
    let Greeted { pid, seat, job, key } = greeted;
    let output = Arc::<Output>::default();
    let docked_rank = DockedRank { pid, seat, watch: Arc::<Output>::clone(&output) };
    if !same(&key, terms.settings.relay_key.as_bytes()) {
        return refused("the key is not ours; give relay and daemon the same OUTBOARD_RELAY_KEY");
    }
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
fn attach(terms: &Terms, nonce: [u8; 16], job: Job) -> Result<(Channel, RankSide, Reply), End> {
    let failed = |error: &dyn std::fmt::Display| End::Refused(format!("the service process does not attach: {error}"));
    let channel = Channel::connect(&terms.settings.socket).map_err(|errno| failed(&errno))?;
    let hello = Hello {
        abi_version: 1,
        layout_version: LAYOUT_VERSION,
        pid: std::process::id(),
        // Nothing of ours is to be reached but what is registered.
        probe_address: NOWHERE,
        nonce,
        descriptor: false,
        // Of our user here are the ranks of all users there: their jobs are told apart by both.
        job: job.owner(),
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

/// Compares without telling by its time how much is the same.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
