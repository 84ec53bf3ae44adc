//! The fabric within one process: endpoints that share a [`LoopbackHub`], for tests and for a single host.
//!
//! Invariant: what a sender has on its way to a peer lies in that peer's inbox, so the sender's bound bounds the inbox.
//! A dropped endpoint is lost to all who had connected it. Never does system calls unless the receiver sleeps.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::buffer::BufferPool;
use crate::outstanding::{self, Load};
use crate::{
    Armed, ConnectError, Fabric, FabricEvent, Limits, MAX_PAYLOAD, Payload, PeerId, PeerLoss, SendBuffer, SendError,
};

/// First bytes of every loopback address; the endpoint's id follows.
const ADDRESS_TAG: [u8; 8] = *b"loopback";
/// Events reported by one call of `progress`.
const BATCH: usize = 256;

/// Where the endpoints of one process meet.
#[derive(Clone, Debug, Default)]
pub struct LoopbackHub(Arc<Mutex<HashMap<PeerId, Arc<Inbox>>>>);

/// What waits for one endpoint.
#[derive(Debug)]
struct Inbox {
    state: Mutex<InboxState>,
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct InboxState {
    queue: VecDeque<Arrival>,
    /// The owner sleeps or is about to: write to its eventfd.
    armed: bool,
    /// The owner is gone.
    closed: bool,
    /// The eventfd holds a wake-up that nobody consumed.
    rung: bool,
    /// The owner was refused as full and waits for room.
    starved: bool,
}

#[derive(Debug)]
enum Arrival {
    Message { from: PeerId, header: Vec<u8>, payload: Option<SendBuffer>, path: Arc<Path> },
    Lost(PeerId),
    Room,
}

/// Messages in flight from one endpoint to another.
#[derive(Debug)]
struct Path {
    load: Mutex<Load>,
    sender: Arc<Inbox>,
}

impl Path {
    fn accept(&self, bytes: usize) {
        let mut load = lock(&self.load);
        *load = load.with(bytes);
    }

    /// Gives the sender of a delivered message its room back.
    fn release(&self, bytes: usize) {
        let mut load = lock(&self.load);
        *load = load.without(bytes);
        drop(load);
        self.sender.make_room();
    }
}

#[derive(Debug)]
struct Peer {
    inbox: Arc<Inbox>,
    path: Arc<Path>,
}

/// One endpoint of the in-process fabric.
#[derive(Debug)]
pub struct Loopback {
    id: PeerId,
    address: [u8; 16],
    hub: LoopbackHub,
    inbox: Arc<Inbox>,
    peers: HashMap<PeerId, Peer>,
    limits: Limits,
    pool: BufferPool,
}

/// No code here panics half way through a change, so a poisoned lock guards a whole state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LoopbackHub {
    /// A hub without endpoints.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an endpoint.
    ///
    /// # Errors
    /// When the process has no file descriptor left, or `id` is taken (`EEXIST`).
    pub fn endpoint(&self, id: PeerId, limits: Limits) -> std::io::Result<Loopback> {
        let inbox = Arc::new(Inbox {
            state: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        match lock(&self.0).entry(id) {
            Entry::Occupied(_) => return Err(std::io::ErrorKind::AlreadyExists.into()),
            Entry::Vacant(place) => place.insert(Arc::clone(&inbox)),
        };
        let mut address = [0; 16];
        address[..8].copy_from_slice(&ADDRESS_TAG);
        address[8..].copy_from_slice(&id.0.to_le_bytes());
        Ok(Loopback {
            id,
            address,
            hub: self.clone(),
            inbox,
            peers: HashMap::new(),
            pool: BufferPool::new(limits.pool_bytes),
            limits,
        })
    }
}

impl Inbox {
    /// Adds an arrival and wakes the owner if it sleeps; false if the owner is gone.
    fn deliver(&self, arrival: Arrival) -> bool {
        let mut state = lock(&self.state);
        if state.closed {
            return false;
        }
        self.enqueue(&mut state, arrival);
        true
    }

    /// Tells the owner that there is room, if it waits for some.
    fn make_room(&self) {
        let mut state = lock(&self.state);
        if std::mem::take(&mut state.starved) && !state.closed {
            self.enqueue(&mut state, Arrival::Room);
        }
    }

    fn enqueue(&self, state: &mut InboxState, arrival: Arrival) {
        state.queue.push_back(arrival);
        if state.armed && !state.rung {
            state.rung = true;
            // A full counter would mean an unread wake-up, which `rung` rules out.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Loopback {
    fn pass_on(&mut self, arrival: Arrival, sink: &mut dyn FnMut(FabricEvent<'_>)) {
        match arrival {
            Arrival::Message { from, header, payload, path } => {
                let bytes = payload.as_deref().unwrap_or_default();
                sink(FabricEvent::Message { from, header: &header, payload: bytes });
                let length = bytes.len();
                drop(payload);
                path.release(length);
            }
            Arrival::Lost(peer) => {
                if self.peers.remove(&peer).is_some() {
                    sink(FabricEvent::PeerLost { peer, why: PeerLoss::Reset });
                }
            }
            Arrival::Room => sink(FabricEvent::Room),
        }
    }
}

impl Fabric for Loopback {
    fn id(&self) -> PeerId {
        self.id
    }

    fn local_address(&self) -> &[u8] {
        &self.address
    }

    fn connect(&mut self, peer: PeerId, address: &[u8]) -> Result<(), ConnectError> {
        let named = address
            .strip_prefix(&ADDRESS_TAG)
            .and_then(|id| id.try_into().ok())
            .map(|id| PeerId(u64::from_le_bytes(id)));
        let right = named == Some(peer);
        if self.peers.contains_key(&peer) {
            return if right { Ok(()) } else { Err(ConnectError::AddressChanged(peer)) };
        }
        if self.peers.len() >= self.limits.peers {
            return Err(ConnectError::TooManyPeers { peer, limit: self.limits.peers });
        }
        if !right {
            return Err(ConnectError::Address { peer, length: address.len() });
        }
        let Some(inbox) = lock(&self.hub.0).get(&peer).cloned() else {
            return Err(ConnectError::Transport { peer, why: PeerLoss::Unreachable });
        };
        let path = Arc::new(Path { load: Mutex::default(), sender: Arc::clone(&self.inbox) });
        self.peers.insert(peer, Peer { inbox, path });
        Ok(())
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }

    fn payload_buffer(&mut self, length: usize) -> Option<SendBuffer> {
        let buffer = self.pool.buffer(length);
        if buffer.is_none() && length <= MAX_PAYLOAD {
            lock(&self.inbox.state).starved = true;
        }
        buffer
    }

    fn ready(&mut self, peer: PeerId, length: usize) -> Result<(), SendError> {
        let target = self.peers.get(&peer).ok_or(SendError::Unknown(peer))?;
        if lock(&target.inbox.state).closed {
            return Err(SendError::Lost(peer));
        }
        let load = *lock(&target.path.load);
        if load.is_full(length, &self.limits) {
            lock(&self.inbox.state).starved = true;
            return Err(SendError::Full(peer));
        }
        Ok(())
    }

    fn send(&mut self, peer: PeerId, header: &[u8], payload: Payload<'_>) -> Result<(), SendError> {
        let payload = outstanding::admit(self, peer, header, payload)?;
        let target = self.peers.get(&peer).ok_or(SendError::Unknown(peer))?;
        target.path.accept(payload.as_deref().map_or(0, <[u8]>::len));
        let path = Arc::clone(&target.path);
        let message = Arrival::Message { from: self.id, header: header.to_vec(), payload, path };
        match target.inbox.deliver(message) {
            true => Ok(()),
            false => Err(SendError::Lost(peer)),
        }
    }

    fn progress(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> usize {
        let mut done = 0;
        while done < BATCH {
            let arrival = {
                let mut state = lock(&self.inbox.state);
                state.armed = false;
                if std::mem::take(&mut state.rung) {
                    // Reading resets the eventfd; that it was written is known, so it cannot fail.
                    let _ = rustix::io::read(&self.inbox.wake, &mut [0; 8]);
                }
                state.queue.pop_front()
            };
            let Some(arrival) = arrival else { break };
            self.pass_on(arrival, sink);
            done += 1;
        }
        done
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.inbox.wake.as_fd()
    }

    fn arm(&mut self) -> Armed {
        let mut state = lock(&self.inbox.state);
        if !state.queue.is_empty() {
            return Armed::Busy;
        }
        state.armed = true;
        Armed::Armed
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        let others: Vec<_> = {
            let mut inboxes = lock(&self.hub.0);
            inboxes.remove(&self.id);
            inboxes.values().cloned().collect()
        };
        let undelivered = {
            let mut state = lock(&self.inbox.state);
            state.closed = true;
            std::mem::take(&mut state.queue)
        };
        for arrival in undelivered {
            if let Arrival::Message { payload, path, .. } = arrival {
                path.release(payload.map_or(0, |buffer| buffer.len()));
            }
        }
        for other in others {
            // One that is closing needs no notice.
            let _ = other.deliver(Arrival::Lost(self.id));
        }
    }
}
