//! The fabric of a service process that serves all ranks of its groups itself: there is no peer to reach.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::{Armed, ConnectError, Fabric, FabricEvent, PeerId, PeerLoss, SendBuffer, SendError, SendPayload};

/// First bytes of every loopback address; the endpoint's id follows.
const ADDRESS_TAG: [u8; 8] = *b"loopback";

#[derive(Debug)]
pub struct Loopback {
    id: PeerId,
    address: [u8; 16],
    /// Never readable.
    event: OwnedFd,
}

impl Loopback {
    /// The only endpoint.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new(id: PeerId) -> std::io::Result<Self> {
        let mut address = [0; 16];
        address[..8].copy_from_slice(&ADDRESS_TAG);
        address[8..].copy_from_slice(&id.0.to_le_bytes());
        Ok(Self { id, address, event: eventfd(0, EventfdFlags::CLOEXEC)? })
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
        match address.strip_prefix(&ADDRESS_TAG) {
            Some(id) if id == peer.0.to_le_bytes() => Err(ConnectError::Transport { peer, why: PeerLoss::Unreachable }),
            _ => Err(ConnectError::Address { peer, length: address.len() }),
        }
    }

    fn disconnect(&mut self, _: PeerId) {}

    fn payload_buffer(&mut self, _: usize) -> Option<SendBuffer> {
        None
    }

    fn ready(&mut self, peer: PeerId, _: usize) -> Result<(), SendError> {
        Err(SendError::Unknown(peer))
    }

    fn send(&mut self, peer: PeerId, _: &[u8], _: SendPayload<'_>) -> Result<(), SendError> {
        Err(SendError::Unknown(peer))
    }

    fn progress(&mut self, _: &mut dyn FnMut(FabricEvent<'_>)) -> usize {
        0
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn arm(&mut self) -> Armed {
        Armed::Armed
    }
}
