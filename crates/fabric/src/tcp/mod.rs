//! Unicast between hosts of an Ethernet: frames over TCP between service processes that have proven their identity.
//!
//! - One connection per pair of peers. When both dial at once, the smaller id's connection stays. The other gives way,
//!   and replaces the first if that fails.
//! - A connection begins with a handshake ([`secured`](crate::secured)). Frames are accepted only under the proven id,
//!   and in records if connections are encrypted. A peer that fails the handshake, is silent for [`GREETING`], or
//!   breaks the protocol is disconnected and counted. The log names it once a second at most.
//! - Service processes of one host connect by a Unix socket ([`door`]), with the same handshake and the same frames.
//! - Each flush passes all messages for a peer to the kernel together, gathered from their memory. Messages without
//!   room wait within [`Limits`].
//! - A broken connection is dialled once more before the peer counts as lost. Messages that the kernel had accepted are
//!   gone then: the links of the service processes send them again.
//! - A stranger's hello that has arrived is read before its connection makes way for another. A reset notifies a dialer
//!   whose hello was not read. The reset is no refusal: the dialer tries again until [`DIALING`] is over.
//! - A turn reads a bounded amount from all connections together. The next turn continues with the next connection.
//! - Disconnecting a peer keeps the connection for late messages of the peer. The oldest such connection makes way for
//!   another. Messages queued for the connection are dropped when the peer is connected again.
//!
//! Invariants: the connection of a peer's path exists. Unproven connections number at most [`STRANGERS`] or two for
//! each connected peer, whichever is more, and one new one. One further connection of each peer may be giving way. The
//! queue of a peer that reads nothing is bounded. Never blocks except, for a bounded time, on drop.

mod address;
mod connection;
mod door;
mod endings;
pub(crate) mod frames;
pub(crate) mod incoming;
mod outgoing;
mod strangers;
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
use crate::outstanding::Load;
use crate::secured::{Greeting, HandshakeError, Identity, Keys, SharedKey, Terms};
use crate::tcp::address::Address;
use crate::tcp::connection::{Broken, Connection, Heard, Share, Stage};
use crate::tcp::door::{Door, Socket};
use crate::tcp::incoming::Buffers;
use crate::tcp::outgoing::{Outgoing, Spare};
use crate::tcp::strangers::Strangers;
use crate::{Fabric, FabricEvent, Limits, PeerId, PeerLoss, Receiver, Refusals};

const PURPOSE: &[u8] = b"outboard tcp 3";
/// Time that a connecting peer has to prove its identity.
const GREETING: Duration = Duration::from_secs(2);
/// Time that a dialled peer has to answer: a few losses of TCP's first packet.
const DIALING: Duration = Duration::from_secs(10);
/// TCP ends a connection after sent bytes were unacknowledged for this long. The protocol's own silence limit is
/// shorter, even for a host at the receiving end of a one-way cut, which waits a second longer.
const SILENCE: Duration = Duration::from_secs(5);
/// Interval of checks on unfinished connections, and longest pause between two dials.
const LOOK: Duration = Duration::from_millis(250);
/// Most connections that have not proven their identity, when few peers are connected.
const STRANGERS: usize = 128;
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
    pub limits: Limits,
}

impl TcpSettings {
    fn terms(&self) -> Terms<'_> {
        Terms { own: &self.identity, shared: &self.cluster, purpose: PURPOSE, encrypts: self.encrypt }
    }
}

#[derive(Clone, Copy)]
enum Path {
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

impl Path {
    fn token(self) -> Option<u64> {
        match self {
            Path::Dialing(token) | Path::Open { token, .. } => Some(token),
            Path::Pausing { .. } => None,
        }
    }

    /// Whether this connection, dialled by the smaller id, has priority over one that the peer dialled, perhaps before
    /// it received this one. A peer that dials when this connection is older than `DIALING` has lost it unnoticed.
    fn goes_before(self, now: Instant) -> bool {
        match self {
            Path::Dialing(_) => true,
            Path::Open { since, dialled, .. } => dialled && now.duration_since(since) < DIALING,
            Path::Pausing { .. } => false,
        }
    }
}

struct Peer {
    /// The address to dial, if known.
    address: Option<Address>,
    /// This process has connected the peer. Other peers only send.
    claimed: bool,
    path: Path,
    /// The peer's own connection, which gave way to this end's. It may have ended since.
    aside: Option<u64>,
    queue: VecDeque<Outgoing>,
    /// The queue holds a message that was not offered to the kernel.
    unflushed: bool,
    load: Load,
    /// Why the last connection broke, while the peer is dialled once more.
    broke: Option<PeerLoss>,
}

impl Peer {
    fn new(address: Option<Address>, path: Path) -> Self {
        let (queue, load) = (VecDeque::new(), Load::default());
        Peer { claimed: address.is_some(), address, path, aside: None, queue, unflushed: false, load, broke: None }
    }
}

pub struct Tcp {
    settings: TcpSettings,
    address: Vec<u8>,
    doors: Vec<Door>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Unfinished connections are checked.
    ticking: bool,
    /// The listeners wait for a descriptor.
    deaf: bool,
    connections: HashMap<u64, Connection>,
    next: u64,
    strangers: Strangers,
    /// Peers to dial again at the next check; some may have gone since.
    pausing: Vec<PeerId>,
    peers: HashMap<PeerId, Peer>,
    /// Peers with messages for the next flush; some may have gone since.
    unflushed: Vec<PeerId>,
    lost: Vec<(PeerId, PeerLoss)>,
    /// Connections found broken while writing.
    broken: Vec<(u64, Broken)>,
    starved: bool,
    room: bool,
    pool: BufferPool,
    buffers: Buffers,
    spare: Spare,
    /// Events of the poller that are not handled yet.
    woken: Vec<epoll::Event>,
    share: Share,
    refusals: Refusals,
}

impl Tcp {
    /// Listens on a port that the kernel chooses.
    ///
    /// # Errors
    /// The kernel's error: the address is not one of this host, or no descriptor is left.
    pub fn new(mut settings: TcpSettings) -> std::io::Result<Self> {
        let (door, socket) = Door::tcp(settings.at)?;
        settings.identity = settings.identity.at(socket);
        let address = Address { socket, key: settings.identity.public };
        let sibling = settings.siblings.then(|| Door::sibling(&address)).transpose()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        let doors: Vec<Door> = std::iter::once(door).chain(sibling).collect();
        listen(&epoll, &doors)?;
        Ok(Tcp {
            address: address.encode().to_vec(),
            doors,
            epoll,
            timer,
            ticking: false,
            deaf: false,
            connections: HashMap::new(),
            next: FIRST,
            strangers: Strangers::default(),
            pausing: Vec::new(),
            peers: HashMap::new(),
            unflushed: Vec::new(),
            lost: Vec::new(),
            broken: Vec::new(),
            starved: false,
            room: false,
            pool: BufferPool::new(settings.limits.pool_bytes),
            buffers: Buffers::new(READ, settings.encrypt),
            spare: Spare::default(),
            woken: Vec::with_capacity(TURN),
            share: Share::WHOLE,
            refusals: Refusals::default(),
            settings,
        })
    }

    fn watch(&mut self, connection: Connection) -> Result<u64, Broken> {
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
            self.tick(LOOK);
        }
    }

    /// Checks unfinished connections at this interval; zero stops the checks.
    fn tick(&mut self, every: Duration) {
        let every = Timespec::try_from(every).expect("a short time");
        let spec = Itimerspec { it_interval: every, it_value: every };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).expect("a timer of ours and a valid time");
    }

    fn dial(&mut self, peer: PeerId, to: &Address, until: Instant) -> Result<u64, Broken> {
        let socket = Socket::dial(to, self.settings.siblings)?;
        self.watch(Connection::dialled(peer, socket, until))
    }

    fn accept(&mut self, door: usize, sink: &mut dyn Receiver) -> usize {
        let most = STRANGERS.max(2 * self.peers.values().filter(|known| known.claimed).count());
        for taken in 0..TURN {
            if let Some(oldest) = self.strangers.beyond(most) {
                // Bytes that wait are read first. A connection that progresses by them stays.
                self.read_on(oldest, sink);
                if self.strangers.beyond(most) == Some(oldest) {
                    self.end(oldest, Broken::Slow);
                }
                continue;
            }
            match self.doors[door].accept() {
                Ok(socket) => {
                    if let Err(error) = self.admit(socket) {
                        limited!(warn, %error, "a connection cannot be taken in");
                    }
                }
                Err(Errno::AGAIN) => return taken,
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                    limited!(error, %errno, "service processes cannot connect; raise the limit on descriptors");
                    // The timer listens again.
                    for door in &self.doors {
                        let _ = epoll::delete(&self.epoll, door);
                    }
                    self.deaf = true;
                    self.start_ticking();
                    return taken + 1;
                }
                Err(errno) => tracing::debug!(%errno, "a connection ended before it was taken in"),
            }
        }
        TURN
    }

    fn admit(&mut self, socket: Socket) -> Result<(), Broken> {
        let greeting = Greeting::listen(&self.settings.terms())?;
        let token = self.watch(Connection::accepted(socket, greeting, Instant::now() + GREETING))?;
        self.strangers.came(token);
        Ok(())
    }

    fn serve(&mut self, token: u64, flags: epoll::EventFlags, sink: &mut dyn Receiver) -> usize {
        let Some(connection) = self.connections.get(&token) else { return 0 };
        let served = match connection.stage {
            Stage::Dialing { until } => self.greet(token, until).map(|()| 1),
            Stage::Greeting { .. } => self.read(token, sink),
            Stage::Open { .. } => {
                let writable = connection.peer.filter(|_| flags.contains(epoll::EventFlags::OUT));
                let flushed = writable.map_or(0, |peer| self.write_queue(peer));
                let only_room = flags == epoll::EventFlags::OUT;
                if only_room { Ok(flushed) } else { self.read(token, sink).map(|read| read + flushed) }
            }
            Stage::GivingWay { .. } => connection.stays().map(|()| 0),
            Stage::Ended => Ok(0),
        };
        served.unwrap_or_else(|broken| {
            self.end(token, broken);
            1
        })
    }

    fn greet(&mut self, token: u64, until: Instant) -> Result<(), Broken> {
        let connection = self.connections.get_mut(&token).expect("it is being served");
        let known = connection.peer.and_then(|peer| self.peers.get(&peer));
        let address = known.and_then(|known| known.address).ok_or(Broken::Closed)?;
        let (greeting, hello) = Greeting::dial(&self.settings.terms(), &address.key)?;
        connection.greet(greeting, &hello, until)?;
        self.await_room(token, false);
        Ok(())
    }

    /// Reads the bytes that wait, and ends the connection if they end it.
    fn read_on(&mut self, token: u64, sink: &mut dyn Receiver) {
        if let Err(broken) = self.read(token, sink) {
            self.end(token, broken);
        }
    }

    fn read(&mut self, token: u64, sink: &mut dyn Receiver) -> Result<usize, Broken> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(0) };
        let peer = connection.peer;
        match connection.read(&mut self.buffers, &mut self.share, sink)? {
            Heard::Frames(frames) => return Ok(frames),
            Heard::Nothing if connection.was_greeted() => self.strangers.greeted(token),
            Heard::Nothing => {}
            Heard::Proven { address, welcome, keys } => self.proven(token, address, (welcome, keys), sink)?,
            Heard::Welcome(keys) => self.opened(token, peer.expect("dialers know whom they dial"), true, keys),
        }
        Ok(1)
    }

    /// The peer that dialled this end has proven `address`. Its connection stays, unless this end has the smaller id
    /// and its own dial has priority. Then the connection gives way, and replaces this end's own if that fails.
    fn proven(
        &mut self,
        token: u64,
        address: Address,
        (welcome, keys): (Vec<u8>, Keys),
        sink: &mut dyn Receiver,
    ) -> Result<(), Broken> {
        self.strangers.gone(token);
        let (peer, own) = (address.id(), self.settings.identity.id());
        let before = self.peers.get(&peer).map(|known| (known.path, known.address));
        match before {
            Some((_, Some(known))) if known != address => return Err(HandshakeError::Refused.into()),
            Some((path, _)) if own < peer && path.goes_before(Instant::now()) => {
                let connection = self.connections.get_mut(&token).ok_or(Broken::Closed)?;
                connection.give_way(Instant::now() + DIALING, welcome, keys);
                let before = self.peers.get_mut(&peer).and_then(|known| known.aside.replace(token));
                before.and_then(|before| self.connections.remove(&before));
                return Ok(());
            }
            // Bytes on the connection that the peer has given up come first, as far as this turn reads them.
            Some((Path::Open { token, .. }, _)) => {
                for _ in 0..TURN {
                    if !matches!(self.read(token, sink), Ok(1..)) {
                        break;
                    }
                }
            }
            Some((Path::Dialing(_) | Path::Pausing { .. }, _)) => {}
            None => self.make_way(),
        }
        // The welcome goes first, because a peer keeps its path when this fails.
        self.connections.get_mut(&token).ok_or(Broken::Closed)?.say(&welcome)?;
        self.hang_up(peer);
        self.opened(token, peer, false, keys);
        Ok(())
    }

    /// The connection carries messages of `peer` from now on.
    fn opened(&mut self, token: u64, peer: PeerId, dialled: bool, keys: Keys) {
        tracing::debug!(%peer, token, dialled, "a connection is open");
        let path = Path::Open { token, since: Instant::now(), dialled };
        match self.peers.entry(peer) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                (known.path, known.broke) = (path, None);
                known.queue.iter_mut().for_each(Outgoing::rewind);
            }
            Entry::Vacant(place) => {
                place.insert(Peer::new(None, path));
            }
        }
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.open(peer, self.settings.encrypt.then_some(keys));
        }
        self.write_queue(peer);
    }

    /// Offers the messages for `peer` to the kernel, unless they already wait for room. Copies those that it refuses.
    fn flush_peer(&mut self, peer: PeerId) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.unflushed = false;
        let connection = known.path.token().and_then(|token| self.connections.get(&token));
        if connection.is_some_and(|connection| !connection.awaits_room) {
            self.write_queue(peer);
        }
        if let Some(known) = self.peers.get_mut(&peer) {
            known.queue.iter_mut().for_each(Outgoing::keep);
        }
    }

    /// Writes the messages that wait for `peer`; returns how many left.
    fn write_queue(&mut self, peer: PeerId) -> usize {
        let Tcp { peers, connections, starved, room, broken, spare, .. } = self;
        let Some(known) = peers.get_mut(&peer) else { return 0 };
        let Path::Open { token, .. } = known.path else { return 0 };
        let Some(connection) = connections.get_mut(&token) else { return 0 };
        let load = &mut known.load;
        let left = connection.flush(&mut known.queue, spare, |message| {
            *load = load.without(message.length());
            *room |= std::mem::take(starved);
        });
        let waits = !known.queue.is_empty() || connection.waits();
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

    fn waits(&self) -> bool {
        let sealed = self.connections.values().any(Connection::waits);
        sealed || self.peers.values().any(|known| !known.queue.is_empty())
    }
}

/// Adds those listeners to the poller that are not in it.
fn listen(epoll: &OwnedFd, doors: &[Door]) -> Result<(), Errno> {
    for (door, token) in doors.iter().zip(0..) {
        match epoll::add(epoll, door, epoll::EventData::new_u64(token), epoll::EventFlags::IN) {
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
        while self.waits() {
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
            self.share = Share::WHOLE;
            let _ = self.read(token, &mut |_: FabricEvent<'_>| ());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_goes_before_while_the_peer_may_not_have_heard_of_it() {
        let since = Instant::now();
        let open = |dialled| Path::Open { token: FIRST, since, dialled };
        let just = DIALING - Duration::from_nanos(1);
        for (path, age, goes_before) in [
            (Path::Dialing(FIRST), DIALING, true),
            (Path::Pausing { until: since + DIALING }, Duration::ZERO, false),
            (open(true), Duration::ZERO, true),
            (open(true), just, true),
            (open(true), DIALING, false),
            (open(false), Duration::ZERO, false),
        ] {
            assert_eq!(path.goes_before(since + age), goes_before, "{age:?}");
        }
    }
}
