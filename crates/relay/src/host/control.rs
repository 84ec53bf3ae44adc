//! The relay's control connection to the dock, on which the dock reports the address and key for the connections of
//! ranks.
//!
//! The first rank opens the connection. After the connection has ended, the next rank opens a new one. The relay never
//! closes the connection while ranks are attached, since its end would end these ranks' connections.

use std::error::Error;
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;

use outboard_fabric::SharedKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::frame::{Decoder, RelayFrame};
use crate::host::UNEXPECTED_ANSWER;
use crate::wire::{ANSWER_LIMIT, Wire, lock};

/// The dock's address, and the current connection to the dock.
#[derive(Debug)]
pub(super) struct ControlConnection {
    service: SocketAddr,
    key: SharedKey,
    opened: Mutex<Option<OpenControl>>,
}

#[derive(Debug)]
struct OpenControl {
    wire: Wire,
    /// Address and key for the ranks' connections.
    ranks: (SocketAddr, SharedKey),
}

impl ControlConnection {
    pub(super) fn new(service: SocketAddr, key: SharedKey) -> ControlConnection {
        ControlConnection { service, key, opened: Mutex::default() }
    }

    /// Opens a connection for one more rank.
    pub(super) fn dial(&self) -> Result<Wire, Box<dyn Error>> {
        let (at, key) = self.ranks()?;
        Ok(Wire::dial(TcpStream::connect_timeout(&at, ANSWER_LIMIT)?, &key)?)
    }

    fn ranks(&self) -> Result<(SocketAddr, SharedKey), Box<dyn Error>> {
        // The lock is held while the connection is opened, since other ranks wait for the answer as well.
        let mut opened = lock(&self.opened);
        if let Some(OpenControl { ranks, .. }) = opened.as_ref().filter(|opened| !opened.has_ended()) {
            return Ok(*ranks);
        }
        // The old connection is dropped first, because the dock serves only one control connection at a time.
        *opened = None;
        let now = self.open()?;
        Ok(opened.insert(now).ranks)
    }

    fn open(&self) -> Result<OpenControl, Box<dyn Error>> {
        let wire = Wire::dial(TcpStream::connect_timeout(&self.service, ANSWER_LIMIT)?, &self.key)?;
        wire.send(&RelayFrame::Open)?;
        let answer = wire.first(&mut Decoder::default(), ANSWER_LIMIT, |frame| match frame {
            RelayFrame::Opened { port, secret } => Ok((port, SharedKey::of(&secret))),
            RelayFrame::Refused { text } => Err(text.to_owned()),
            _ => Err(UNEXPECTED_ANSWER.to_owned()),
        })?;
        let (port, key) = answer?;
        let mut at = self.service;
        at.set_port(port);
        Ok(OpenControl { wire, ranks: (at, key) })
    }
}

impl OpenControl {
    /// Whether the connection has ended. The dock sends nothing more on it, so it becomes readable only at its end.
    fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(self.wire.stream(), PollFlags::IN | PollFlags::RDHUP)], Some(&now)) != Ok(0)
    }
}
