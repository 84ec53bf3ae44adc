//! Unicast between hosts of an Ethernet: frames over TCP between service processes that have proven their identity.
//!
//! - One connection per pair of peers. When both dial at once, the smaller id's connection stays. The other connection
//!   gives way, and replaces the first connection if that one fails.
//! - A connection begins with a handshake ([`secured`](crate::secured)). Frames are accepted only under the proven id,
//!   and in records if connections are encrypted. A peer that fails the handshake, is silent for [`GREETING`], or
//!   breaks the protocol is disconnected and counted. The log names it once a second at most.
//! - Service processes of one host connect by a Unix socket ([`listener`]), with the same handshake and frames.
//! - Each flush passes all messages for a peer to the kernel together, gathered from their memory. Messages without
//!   room wait within [`FabricLimits`].
//! - A broken connection is dialled once more before the peer counts as lost. Messages that the kernel had accepted are
//!   gone then: the links of the service processes send them again.
//! - Before a stranger's connection makes way for another, a hello that has arrived is read. A reset notifies a dialer
//!   whose hello was not read. The reset is no refusal: the dialer tries again until [`DIALING`] is over.
//! - A turn reads a bounded amount from all connections together. The next turn continues with the next connection.
//! - Disconnecting a peer keeps the connection for late messages of the peer. The oldest such connection makes way for
//!   another. Messages queued for the connection are dropped when the peer is connected again.
//!
//! Invariants: the connection that a peer's path names exists. Unproven connections number at most [`MOST_PENDING`] or
//! two for each connected peer, whichever is more, plus one new connection. One further connection of each peer may be
//! giving way. The queue of a peer that reads nothing is bounded. Never blocks except, for a bounded time, on drop.

mod address;
mod connection;
mod endings;
pub(crate) mod frame_reader;
pub(crate) mod frames;
mod listener;
mod outgoing;
mod pending;
mod unicast;

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::buffer::BufferPool;
use crate::limited;
use crate::outstanding::SendLoad;
use crate::secured::{Handshake, HandshakeError, HandshakeTerms, Identity, Keys, SharedKey};
use crate::tcp::address::Address;
use crate::tcp::connection::{ConnectionError, ConnectionStage, ReadBudget, ReadOutcome, TcpConnection};
use crate::tcp::frame_reader::ReadBuffers;
use crate::tcp::listener::{Listener, StreamSocket};
use crate::tcp::outgoing::{QueuedMessage, SpareBuffers};
use crate::tcp::pending::PendingConnections;
use crate::{Fabric, FabricEvent, FabricLimits, MessageReceiver, PeerId, PeerLoss, Refusals};

const PURPOSE: &[u8] = b"outboard tcp 3";
/// Time that a connecting peer has to prove its identity.
const GREETING: Duration = Duration::from_secs(2);
/// Time that a dialled peer has to answer: a few losses of TCP's first packet.
const DIALING: Duration = Duration::from_secs(10);
/// TCP ends a connection after sent bytes were unacknowledged for this long. The protocol's own silence limit is
/// shorter. That holds even for a host at the receiving end of a one-way cut, which waits a second longer.
const SILENCE: Duration = Duration::from_secs(5);
/// Interval of checks on unfinished connections, and longest pause between two dials.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Most connections that have not proven their identity, when few peers are connected.
const MOST_PENDING: usize = 128;
/// Connections accepted, and sockets served, per turn.
const TURN: usize = 64;
/// Time that accepted messages have to leave on drop.
const FLUSH: Duration = Duration::from_millis(500);
/// A connection that lived this long, or carried a frame, is dialled again when it ends.
const SETTLED: Duration = Duration::from_secs(1);
/// Bytes per read: a few frames of full size leave the kernel in one call.
const READ: usize = 256 << 10;

/// epoll tokens: 0 and 1 for the listeners, then the timer; connections count from [`FIRST`].
const TIMER: u64 = 2;
const FIRST: u64 = 3;

/// The fabric's address, identity and limits.
#[derive(Clone, Debug)]
pub struct TcpSettings {
    /// The IPv4 address at which peers reach this process.
    pub at: Ipv4Addr,
    pub identity: Identity,
    pub cluster: SharedKey,
    /// Whether connections are encrypted; peers must choose the same.
    pub encrypt: bool,
    /// Whether service processes of the same host connect through a Unix socket, in both directions.
    pub siblings: bool,
    pub limits: FabricLimits,
}

impl TcpSettings {
    fn terms(&self) -> HandshakeTerms<'_> {
        HandshakeTerms { own: &self.identity, shared: &self.cluster, purpose: PURPOSE, encrypts: self.encrypt }
    }
}

#[derive(Clone, Copy)]
enum PeerPath {
    Dialing(u64),
    /// The peer had no room; it is dialled again at the next check.
    Pausing {
        until: Instant,
    },
    Open {
        token: u64,
        since: Instant,
        dialled: bool,
    },
}

impl PeerPath {
    fn token(self) -> Option<u64> {
        match self {
            PeerPath::Dialing(token) | PeerPath::Open { token, .. } => Some(token),
            PeerPath::Pausing { .. } => None,
        }
    }

    /// Whether this connection, dialled by the smaller id, has priority over a connection that the peer dialled. The
    /// peer may have dialled before this connection reached the peer. A peer that dials when this connection is older
    /// than `DIALING` has lost this connection, and this end has not noticed the loss.
    fn has_priority(self, now: Instant) -> bool {
        match self {
            PeerPath::Dialing(_) => true,
            PeerPath::Open { since, dialled, .. } => dialled && now.duration_since(since) < DIALING,
            PeerPath::Pausing { .. } => false,
        }
    }
}

struct TcpPeer {
    /// The address to dial, if known.
    address: Option<Address>,
    /// This process has connected the peer. All other peers only send.
    claimed: bool,
    path: PeerPath,
    /// The peer's own connection, which gave way to this end's connection. The peer's connection may have ended since.
    standby: Option<u64>,
    queue: VecDeque<QueuedMessage>,
    /// The queue holds a message that was not offered to the kernel.
    unflushed: bool,
    load: SendLoad,
    /// Why the last connection broke, while the peer is dialled once more.
    broke: Option<PeerLoss>,
}

impl TcpPeer {
    fn new(address: Option<Address>, path: PeerPath) -> Self {
        let (queue, load) = (VecDeque::new(), SendLoad::default());
        TcpPeer { claimed: address.is_some(), address, path, standby: None, queue, unflushed: false, load, broke: None }
    }
}

pub struct Tcp {
    settings: TcpSettings,
    address: Vec<u8>,
    listeners: Vec<Listener>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Unfinished connections are checked.
    ticking: bool,
    /// The listeners wait for a descriptor.
    accept_paused: bool,
    connections: HashMap<u64, TcpConnection>,
    next: u64,
    pending: PendingConnections,
    /// Peers to dial again at the next check; some may have gone since.
    pausing: Vec<PeerId>,
    peers: HashMap<PeerId, TcpPeer>,
    /// Peers with messages for the next flush; some may have gone since.
    unflushed: Vec<PeerId>,
    lost: Vec<(PeerId, PeerLoss)>,
    /// Connections found broken while writing.
    broken: Vec<(u64, ConnectionError)>,
    starved: bool,
    room: bool,
    pool: BufferPool,
    buffers: ReadBuffers,
    spare: SpareBuffers,
    /// Events of the poller that are not handled yet.
    woken: Vec<epoll::Event>,
    budget: ReadBudget,
    refusals: Refusals,
}

impl Tcp {
    /// Listens on a port that the kernel chooses.
    ///
    /// # Errors
    /// The kernel's error: the address is not one of this host, or no descriptor is left.
    pub fn new(mut settings: TcpSettings) -> std::io::Result<Self> {
        let (listener, socket) = Listener::tcp(settings.at)?;
        settings.identity = settings.identity.at(socket);
        let address = Address { socket, key: settings.identity.public };
        let sibling = settings.siblings.then(|| Listener::sibling(&address)).transpose()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        let listeners: Vec<Listener> = std::iter::once(listener).chain(sibling).collect();
        listen(&epoll, &listeners)?;
        Ok(Tcp {
            address: address.encode().to_vec(),
            listeners,
            epoll,
            timer,
            ticking: false,
            accept_paused: false,
            connections: HashMap::new(),
            next: FIRST,
            pending: PendingConnections::default(),
            pausing: Vec::new(),
            peers: HashMap::new(),
            unflushed: Vec::new(),
            lost: Vec::new(),
            broken: Vec::new(),
            starved: false,
            room: false,
            pool: BufferPool::new(settings.limits.pool_bytes),
            buffers: ReadBuffers::new(READ, settings.encrypt),
            spare: SpareBuffers::default(),
            woken: Vec::with_capacity(TURN),
            budget: ReadBudget::FULL,
            refusals: Refusals::default(),
            settings,
        })
    }

    fn watch(&mut self, connection: TcpConnection) -> Result<u64, ConnectionError> {
        let token = self.next;
        self.next += 1;
        let flags = interest(connection.awaits_room);
        epoll::add(&self.epoll, &connection, epoll::EventData::new_u64(token), flags)?;
        self.connections.insert(token, connection);
        self.start_ticking();
        Ok(token)
    }

    fn start_ticking(&mut self) {
        if !std::mem::replace(&mut self.ticking, true) {
            self.tick(CHECK_INTERVAL);
        }
    }

    /// Checks unfinished connections at this interval; zero stops the checks.
    fn tick(&mut self, every: Duration) {
        let every = Timespec::try_from(every).expect("a short time");
        let spec = Itimerspec { it_interval: every, it_value: every };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).expect("a timer of ours and a valid time");
    }

    fn dial(&mut self, peer: PeerId, to: &Address, until: Instant) -> Result<u64, ConnectionError> {
        let socket = StreamSocket::dial(to, self.settings.siblings)?;
        self.watch(TcpConnection::dialled(peer, socket, until))
    }

    fn accept(&mut self, listener: usize, sink: &mut dyn MessageReceiver) -> usize {
        let most = MOST_PENDING.max(2 * self.peers.values().filter(|known| known.claimed).count());
        for taken in 0..TURN {
            if let Some(oldest) = self.pending.oldest_beyond(most) {
                // Waiting bytes are read first. A connection that progresses by these bytes stays.
                self.read_on(oldest, sink);
                if self.pending.oldest_beyond(most) == Some(oldest) {
                    self.end(oldest, ConnectionError::Slow);
                }
                continue;
            }
            match self.listeners[listener].accept() {
                Ok(socket) => {
                    if let Err(error) = self.admit(socket) {
                        limited!(warn, %error, "a connection cannot be taken in");
                    }
                }
                Err(Errno::AGAIN) => return taken,
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                    limited!(error, %errno, "service processes cannot connect; raise the limit on descriptors");
                    // The next check adds the listeners to the poller again.
                    for listener in &self.listeners {
                        let _ = epoll::delete(&self.epoll, listener);
                    }
                    self.accept_paused = true;
                    self.start_ticking();
                    return taken + 1;
                }
                Err(errno) => tracing::debug!(%errno, "a connection ended before it was taken in"),
            }
        }
        TURN
    }

    fn admit(&mut self, socket: StreamSocket) -> Result<(), ConnectionError> {
        let handshake = Handshake::listen(&self.settings.terms())?;
        let token = self.watch(TcpConnection::accepted(socket, handshake, Instant::now() + GREETING))?;
        self.pending.add(token);
        Ok(())
    }

    fn serve(&mut self, token: u64, flags: epoll::EventFlags, sink: &mut dyn MessageReceiver) -> usize {
        let Some(connection) = self.connections.get(&token) else { return 0 };
        let served = match connection.stage {
            ConnectionStage::Dialing { until } => self.greet(token, until).map(|()| 1),
            ConnectionStage::Handshake { .. } => self.read(token, sink),
            ConnectionStage::Open { .. } => {
                let writable = connection.peer.filter(|_| flags.contains(epoll::EventFlags::OUT));
                let flushed = writable.map_or(0, |peer| self.write_queue(peer));
                let only_room = flags == epoll::EventFlags::OUT;
                if only_room { Ok(flushed) } else { self.read(token, sink).map(|read| read + flushed) }
            }
            ConnectionStage::GivingWay { .. } => connection.check_open().map(|()| 0),
            ConnectionStage::Ended => Ok(0),
        };
        served.unwrap_or_else(|broken| {
            self.end(token, broken);
            1
        })
    }

    fn greet(&mut self, token: u64, until: Instant) -> Result<(), ConnectionError> {
        let connection = self.connections.get_mut(&token).expect("it is being served");
        let known = connection.peer.and_then(|peer| self.peers.get(&peer));
        let address = known.and_then(|known| known.address).ok_or(ConnectionError::Closed)?;
        let (handshake, hello) = Handshake::dial(&self.settings.terms(), &address.key)?;
        connection.greet(handshake, &hello, until)?;
        self.await_room(token, false);
        Ok(())
    }

    /// Reads the waiting bytes, and ends the connection if reading fails.
    fn read_on(&mut self, token: u64, sink: &mut dyn MessageReceiver) {
        if let Err(broken) = self.read(token, sink) {
            self.end(token, broken);
        }
    }

    fn read(&mut self, token: u64, sink: &mut dyn MessageReceiver) -> Result<usize, ConnectionError> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(0) };
        let peer = connection.peer;
        match connection.read(&mut self.buffers, &mut self.budget, sink)? {
            ReadOutcome::Frames(frames) => return Ok(frames),
            ReadOutcome::Nothing if connection.was_greeted() => self.pending.mark_greeted(token),
            ReadOutcome::Nothing => {}
            ReadOutcome::Proven { address, welcome, keys } => {
                self.handle_proven(token, address, welcome, keys, sink)?
            }
            ReadOutcome::Welcome(keys) => self.open_path(token, peer.expect("dialers know whom they dial"), true, keys),
        }
        Ok(1)
    }

    /// The peer that dialled this end has proven `address`. The peer's connection stays, unless this end has the
    /// smaller id and its own dial has priority. Then the peer's connection gives way, and replaces this end's
    /// connection if that one fails.
    fn handle_proven(
        &mut self,
        token: u64,
        address: Address,
        welcome: Vec<u8>,
        keys: Keys,
        sink: &mut dyn MessageReceiver,
    ) -> Result<(), ConnectionError> {
        self.pending.discard(token);
        let (peer, own) = (address.id(), self.settings.identity.id());
        let before = self.peers.get(&peer).map(|known| (known.path, known.address));
        match before {
            Some((_, Some(known))) if known != address => return Err(HandshakeError::Refused.into()),
            Some((path, _)) if own < peer && path.has_priority(Instant::now()) => {
                let connection = self.connections.get_mut(&token).ok_or(ConnectionError::Closed)?;
                connection.give_way(Instant::now() + DIALING, welcome, keys);
                let before = self.peers.get_mut(&peer).and_then(|known| known.standby.replace(token));
                before.and_then(|before| self.connections.remove(&before));
                return Ok(());
            }
            // Bytes on the connection that the peer has given up are read first, as far as this turn reads them.
            Some((PeerPath::Open { token, .. }, _)) => {
                for _ in 0..TURN {
                    if !matches!(self.read(token, sink), Ok(1..)) {
                        break;
                    }
                }
            }
            Some((PeerPath::Dialing(_) | PeerPath::Pausing { .. }, _)) => {}
            None => self.make_way(),
        }
        // The welcome goes first: if sending the welcome fails, the peer keeps its present path.
        self.connections.get_mut(&token).ok_or(ConnectionError::Closed)?.send_handshake(&welcome)?;
        self.hang_up(peer);
        self.open_path(token, peer, false, keys);
        Ok(())
    }

    /// The connection carries messages of `peer` from now on.
    fn open_path(&mut self, token: u64, peer: PeerId, dialled: bool, keys: Keys) {
        tracing::debug!(%peer, token, dialled, "a connection is open");
        let path = PeerPath::Open { token, since: Instant::now(), dialled };
        match self.peers.entry(peer) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                (known.path, known.broke) = (path, None);
                known.queue.iter_mut().for_each(QueuedMessage::rewind);
            }
            Entry::Vacant(place) => {
                place.insert(TcpPeer::new(None, path));
            }
        }
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.open(peer, self.settings.encrypt.then_some(keys));
        }
        self.write_queue(peer);
    }

    /// Offers the messages for `peer` to the kernel, unless they already wait for room. Copies the messages that the
    /// kernel refuses.
    fn flush_peer(&mut self, peer: PeerId) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.unflushed = false;
        let connection = known.path.token().and_then(|token| self.connections.get(&token));
        if connection.is_some_and(|connection| !connection.awaits_room) {
            self.write_queue(peer);
        }
        if let Some(known) = self.peers.get_mut(&peer) {
            known.queue.iter_mut().for_each(QueuedMessage::keep);
        }
    }

    /// Writes the messages that wait for `peer`; returns how many left.
    fn write_queue(&mut self, peer: PeerId) -> usize {
        let Tcp { peers, connections, starved, room, broken, spare, .. } = self;
        let Some(known) = peers.get_mut(&peer) else { return 0 };
        let PeerPath::Open { token, .. } = known.path else { return 0 };
        let Some(connection) = connections.get_mut(&token) else { return 0 };
        let load = &mut known.load;
        let left = connection.flush(&mut known.queue, spare, |message| {
            *load = load.without(message.length());
            *room |= std::mem::take(starved);
        });
        let waits = !known.queue.is_empty() || connection.has_unsent();
        match left {
            Ok(left) => {
                self.await_room(token, waits);
                left
            }
            Err(why) => {
                broken.push((token, why));
                0
            }
        }
    }

    fn await_room(&mut self, token: u64, waits: bool) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if std::mem::replace(&mut connection.awaits_room, waits) == waits {
            return;
        }
        let modified = epoll::modify(&self.epoll, &*connection, epoll::EventData::new_u64(token), interest(waits));
        if let Err(errno) = modified {
            self.broken.push((token, errno.into()));
        }
    }

    fn has_unsent(&self) -> bool {
        let sealed = self.connections.values().any(TcpConnection::has_unsent);
        sealed || self.peers.values().any(|known| !known.queue.is_empty())
    }
}

/// Adds the listeners that the poller does not watch to the poller.
fn listen(epoll: &OwnedFd, listeners: &[Listener]) -> Result<(), Errno> {
    for (listener, token) in listeners.iter().zip(0..) {
        match epoll::add(epoll, listener, epoll::EventData::new_u64(token), epoll::EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The events to request from the poller.
fn interest(room: bool) -> epoll::EventFlags {
    if room { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}

impl Drop for Tcp {
    /// Lets accepted messages leave, for a bounded time.
    fn drop(&mut self) {
        let until = Instant::now() + FLUSH;
        while self.has_unsent() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if self.progress(&mut |_| ()) == 0 {
                let left = Timespec::try_from(left).expect("a short time");
                // Whatever ends the wait, the loop checks again.
                let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&left));
            }
        }
        // The kernel would reset a socket with unread bytes, and the peer would lose bytes that it has not read.
        for token in self.connections.keys().copied().collect::<Vec<_>>() {
            self.budget = ReadBudget::FULL;
            let _ = self.read(token, &mut |_: FabricEvent<'_>| ());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_young_dialled_connection_has_priority() {
        let since = Instant::now();
        let open = |dialled| PeerPath::Open { token: FIRST, since, dialled };
        let just = DIALING - Duration::from_nanos(1);
        for (path, age, has_priority) in [
            (PeerPath::Dialing(FIRST), DIALING, true),
            (PeerPath::Pausing { until: since + DIALING }, Duration::ZERO, false),
            (open(true), Duration::ZERO, true),
            (open(true), just, true),
            (open(true), DIALING, false),
            (open(false), Duration::ZERO, false),
        ] {
            assert_eq!(path.has_priority(since + age), has_priority, "{age:?}");
        }
    }
}
