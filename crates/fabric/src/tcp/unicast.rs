//! The fabric as the conductor uses it: peers connected and disconnected, messages sent, turns. Reads no socket.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{Timespec, epoll};

use crate::outstanding::{self, SendLoad};
use crate::tcp::address::Address;
use crate::tcp::connection::{ReadBudget, TOGETHER};
use crate::tcp::outgoing::{AT_ONCE, QueuedMessage};
use crate::tcp::{DIALING, PeerPath, TIMER, Tcp, TcpPeer};
use crate::{
    Armed, ConnectError, Fabric, FabricEvent, MAX_PAYLOAD, MessageReceiver, PeerId, SendBuffer, SendError, SendPayload,
};

impl Fabric for Tcp {
    fn id(&self) -> PeerId {
        self.settings.identity.id()
    }

    fn local_address(&self) -> &[u8] {
        &self.address
    }

    fn connect(&mut self, peer: PeerId, address: &[u8]) -> Result<(), ConnectError> {
        let named = Address::decode(peer, address);
        if let Some(known) = self.peers.get(&peer).filter(|known| known.claimed) {
            return if known.address == named { Ok(()) } else { Err(ConnectError::AddressChanged(peer)) };
        }
        let limit = self.settings.limits.peers;
        if self.peers.values().filter(|known| known.claimed).count() >= limit {
            return Err(ConnectError::TooManyPeers { peer, limit });
        }
        let address = named.ok_or(ConnectError::Address { peer, length: address.len() })?;
        if let Some(known) = self.peers.get_mut(&peer) {
            (known.address, known.claimed) = (Some(address), true);
            if !matches!(known.path, PeerPath::Open { .. }) {
                // A new stream: messages from before the disconnect have expired.
                (known.queue, known.load) = (VecDeque::new(), SendLoad::default());
                self.room |= std::mem::take(&mut self.starved);
            }
            return Ok(());
        }
        let dialled = self.dial(peer, &address, Instant::now() + DIALING);
        let path =
            dialled.map_err(|broken| ConnectError::Transport { peer, why: broken.into() }).map(PeerPath::Dialing)?;
        self.peers.insert(peer, TcpPeer::new(Some(address), path));
        Ok(())
    }

    fn disconnect(&mut self, peer: PeerId) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.claimed = false;
        match known.path {
            PeerPath::Dialing(_) | PeerPath::Pausing { .. } if known.queue.is_empty() => drop(self.forget(peer)),
            PeerPath::Dialing(_) | PeerPath::Pausing { .. } | PeerPath::Open { .. } => {}
        }
    }

    fn payload_buffer(&mut self, length: usize) -> Option<SendBuffer> {
        let buffer = self.pool.buffer(length);
        self.starved |= buffer.is_none() && length <= MAX_PAYLOAD;
        buffer
    }

    fn reads_in_place(&self) -> bool {
        !self.settings.encrypt
    }

    fn ready(&mut self, peer: PeerId, length: usize) -> Result<(), SendError> {
        let known = self.peers.get(&peer).filter(|known| known.claimed).ok_or(SendError::Unknown(peer))?;
        if known.load.is_full(length, &self.settings.limits) {
            self.starved = true;
            return Err(SendError::Full(peer));
        }
        Ok(())
    }

    fn send(&mut self, peer: PeerId, header: &[u8], payload: SendPayload<'_>) -> Result<(), SendError> {
        outstanding::check(self, peer, header, &payload)?;
        let known = self.peers.get_mut(&peer).ok_or(SendError::Unknown(peer))?;
        let message = QueuedMessage::new(header, payload);
        known.load = known.load.with(message.length());
        known.queue.push_back(message);
        if !std::mem::replace(&mut known.unflushed, true) {
            self.unflushed.push(peer);
        } else if known.queue.len() >= TOGETHER || known.load.bytes() >= AT_ONCE {
            // The remaining messages would find the peer full.
            self.flush_peer(peer);
        }
        Ok(())
    }

    fn flush(&mut self) {
        while let Some(peer) = self.unflushed.pop() {
            self.flush_peer(peer);
        }
    }

    fn refused(&self) -> u64 {
        self.refusals.count()
    }

    fn progress(&mut self, mut sink: &mut dyn FnMut(FabricEvent<'_>)) -> usize {
        self.progress_into(&mut sink)
    }

    fn recheck_placements(&mut self, receiver: &mut dyn MessageReceiver) {
        let Tcp { connections, buffers, .. } = self;
        connections.values_mut().for_each(|connection| connection.recheck_placements(buffers, receiver));
    }

    fn progress_into(&mut self, receiver: &mut dyn MessageReceiver) -> usize {
        self.flush();
        self.budget = ReadBudget::FULL;
        let mut woken = std::mem::take(&mut self.woken);
        // Events left by the last turn go first, so that early connections do not take every turn.
        if woken.is_empty() {
            // The wait fails only when interrupted: the next turn polls again.
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut woken), Some(&Timespec::default()));
        }
        let (mut done, mut seen) = (0, 0);
        for event in &woken {
            if self.budget.is_used_up() {
                break;
            }
            seen += 1;
            done += match event.data.u64() {
                TIMER => self.expire(),
                listener @ 0..TIMER => self.accept(listener as usize, receiver),
                token => self.serve(token, event.flags, receiver),
            };
        }
        woken.drain(..seen);
        self.woken = woken;
        for (token, why) in std::mem::take(&mut self.broken) {
            self.end(token, why);
            done += 1;
        }
        for (peer, why) in std::mem::take(&mut self.lost) {
            receiver.event(FabricEvent::PeerLost { peer, why });
            done += 1;
        }
        if std::mem::take(&mut self.room) {
            receiver.event(FabricEvent::Room);
            done += 1;
        }
        done
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn arm(&mut self) -> Armed {
        // The poller itself stays readable as long as a socket is.
        let pending = self.room || !(self.lost.is_empty() && self.broken.is_empty() && self.unflushed.is_empty());
        if pending { Armed::Busy } else { Armed::Armed }
    }
}
