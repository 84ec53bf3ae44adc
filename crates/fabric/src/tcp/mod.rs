//! Unicast of our own between hosts of an Ethernet: frames over TCP between service processes that have proven who they
//! are.
//!
//! - One connection per pair, whoever dials first. When both dial at once, that of the smaller id stays; the other
//!   gives way, and takes its place when it comes to nothing.
//! - A connection begins with a handshake ([`secured`](crate::secured)); frames are taken from the id alone that it has
//!   proven, and in records where connections are encrypted. Who fails it, says nothing for [`GREETING`], or sends what
//!   no peer does is closed, counted, and named in the log once a second at most.
//! - Service processes of one host connect by a Unix socket ([`door`]), with the same handshake and the same frames.
//! - Messages to a peer go to the kernel together, with each flush, gathered from where they lie; what finds no room
//!   waits within [`Limits`].
//! - A connection that breaks is dialled once more before the peer counts as lost. Messages that the kernel had taken
//!   are gone then: the links of the service processes send them again.
//! - A stranger's hello that has come is heard before its connection makes way for another. A dialer whose hello was
//!   not heard is told so by a reset, which is no refusal: it dials again until [`DIALING`] is over.
//! - A turn takes so much from all connections together, and the next one goes on with the connection behind.
//! - Disconnecting a peer keeps the connection, for what it may still say; the oldest such connection makes way for
//!   another. What waits for the connection is dropped when the peer is connected again.
//!
//! Invariants: the connection of a peer's path exists; of connections that are unproven there are at most
//!   [`STRANGERS`], or two for each connected peer, and one that has just come; one more of each peer may give way to
//!   ours; what a peer that reads nothing has waiting is bounded. Never blocks except, for a bounded time, on drop.

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
/// How long whoever connects may take to prove who it is.
const GREETING: Duration = Duration::from_secs(2);
/// How long a dialled peer may take to answer: a few losses of TCP's first packet.
const DIALING: Duration = Duration::from_secs(10);
/// TCP gives a connection up after sent bytes were unacknowledged for this long. The protocol's own silence limit is
/// shorter, also at the end of a one-way cut that still hears its peer and waits a second longer.
const SILENCE: Duration = Duration::from_secs(5);
/// How often unfinished connections are looked at, and how long a pause between two dials is at most.
const LOOK: Duration = Duration::from_millis(250);
/// Connections that have not proven who they are, where few peers are connected.
const STRANGERS: usize = 128;
/// Connections taken in, and sockets looked at, per turn.
const TURN: usize = 64;
/// How long what was accepted may take to leave on drop.
const FLUSH: Duration = Duration::from_millis(500);
/// How long a connection must have lived, or a frame have come, for its end to be worth another dial.
const SETTLED: Duration = Duration::from_secs(1);
/// Bytes read at once: a few frames of full size leave the kernel in one call.
const READ: usize = 256 << 10;

/// What the poller tells besides connections, which count from [`FIRST`]: doors by their place, and the timer.
const TIMER: u64 = 2;
const FIRST: u64 = 3;

/// Where the fabric listens, and who it is.
#[derive(Clone, Debug)]
pub struct TcpSettings {
    /// The IPv4 address that peers reach us at.
    pub at: Ipv4Addr,
    pub identity: Identity,
    pub cluster: SharedKey,
    /// Whether all that is said is encrypted; peers must say the same.
    pub encrypt: bool,
    /// Whether service processes of the same host are reached, and reach this one, by a Unix socket.
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
    /// The peer had no place for us; it is dialled again with the next look.
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

    /// Whether ours, of the smaller id, goes before a connection of the peer's own, which it may have dialled before it
    /// heard of ours. Whoever dials when ours is older than a dial may be has lost ours, and we have not heard of that.
    fn goes_before(self, now: Instant) -> bool {
        match self {
            Path::Dialing(_) => true,
            Path::Open { since, dialled, .. } => dialled && now.duration_since(since) < DIALING,
            Path::Pausing { .. } => false,
        }
    }
}

struct Peer {
    /// Where to dial it, as far as known.
    address: Option<Address>,
    /// Somebody here has connected it; others only speak.
    claimed: bool,
    path: Path,
    /// Its own connection, which has given way to ours; it may have gone since.
    aside: Option<u64>,
    queue: VecDeque<Outgoing>,
    /// Something in the queue has not been offered to the kernel.
    unflushed: bool,
    load: Load,
    /// Why the last connection broke, while it is dialled once more.
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
    /// Unfinished connections are looked at.
    ticking: bool,
    /// The doors wait for a descriptor.
    deaf: bool,
    connections: HashMap<u64, Connection>,
    next: u64,
    strangers: Strangers,
    /// Peers that are dialled again with the next look; some have gone since.
    pausing: Vec<PeerId>,
    peers: HashMap<PeerId, Peer>,
    /// Peers to whom messages go with the next flush; some have gone since.
    unflushed: Vec<PeerId>,
    lost: Vec<(PeerId, PeerLoss)>,
    /// Found broken while writing.
    broken: Vec<(u64, Broken)>,
    starved: bool,
    room: bool,
    pool: BufferPool,
    buffers: Buffers,
    spare: Spare,
    /// What the poller has told, and what of that is still to be seen to.
    woken: Vec<epoll::Event>,
    share: Share,
    refusals: Refusals,
}

impl Tcp {
    /// Listens at a port that the kernel chooses.
    ///
    /// # Errors
    /// What the kernel says: the address is not one of this host, or no descriptor is left.
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

    /// Looks at unfinished connections every so often, or with zero no more.
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
                // What it has said already is heard first; it stays where it goes on by that.
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

    /// Reads what has come; the connection ends where that is its end.
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

    /// Whoever has connected to us is the one of `address`. Its connection stays, unless we are the smaller id and ours
    /// goes before: then it gives way. It is kept, and takes the place of ours should that come to nothing.
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
            // What it said on the connection that it has given up comes first, as far as this turn takes it.
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
        // First, since a peer keeps its path when this fails.
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

    /// Offers to the kernel what has been sent to `peer`, unless that waits for room already, and keeps copies of what
    /// it does not take.
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

    /// Writes what waits for `peer`; returns how many messages left.
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

/// Watches the doors that are not watched.
fn listen(epoll: &OwnedFd, doors: &[Door]) -> Result<(), Errno> {
    for (door, token) in doors.iter().zip(0..) {
        match epoll::add(epoll, door, epoll::EventData::new_u64(token), epoll::EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// What the poller is asked for.
fn interest(room: bool) -> epoll::EventFlags {
    if room { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}

impl Drop for Tcp {
    /// Lets what was accepted leave, for a bounded time.
    fn drop(&mut self) {
        let until = Instant::now() + FLUSH;
        while self.waits() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if self.progress(&mut |_| ()) == 0 {
                let left = Timespec::try_from(left).expect("a short time");
                // Whatever ends it, the loop looks again.
                let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&left));
            }
        }
        // A socket with unread bytes would be reset, and take along what the peer has not read.
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
