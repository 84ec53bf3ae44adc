//! A listening socket of a dock: connections on threads of their own, strangers until they have proven their key.
//!
//! Invariant: at most [`STRANGERS`] connections have not proven that they hold the key; the oldest of them makes way.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use outboard_fabric::{SharedKey, limited};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Terms;
use crate::wire::{Wire, WireError};

/// Connections that have not proven that they hold the key.
const STRANGERS: usize = 128;
/// How long nobody is taken in when no descriptor is left.
const PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

pub(super) struct Entrance {
    listener: TcpListener,
    key: SharedKey,
    thread: &'static str,
    strangers: VecDeque<Weak<TcpStream>>,
}

impl Entrance {
    pub(super) fn listen(at: SocketAddr, key: SharedKey, thread: &'static str) -> io::Result<Entrance> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(Entrance { listener, key, thread, strangers: VecDeque::new() })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub(super) fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Takes the next connection in, which is served by `serve` once it has proven its key. Without descriptors it
    /// waits for a while, or for `stop`.
    pub(super) fn accept(
        &mut self,
        terms: &Arc<Terms>,
        stop: &OwnedFd,
        serve: impl FnOnce(Wire, SocketAddr) + Send + 'static,
    ) {
        match self.listener.accept() {
            Ok((stream, from)) => self.take_in(stream, from, terms, serve),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                limited!(warn, %error, "a relay cannot connect");
                // The connection may wait for a descriptor still: the listener stays readable.
                let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&PAUSE));
            }
        }
    }

    fn take_in(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        terms: &Arc<Terms>,
        serve: impl FnOnce(Wire, SocketAddr) + Send + 'static,
    ) {
        let stranger = match stream.try_clone() {
            Ok(same) => Arc::new(same),
            Err(error) => return limited!(warn, %error, %from, "a relay cannot connect"),
        };
        self.strangers.retain(|stranger| stranger.strong_count() > 0);
        if self.strangers.len() >= STRANGERS
            && let Some(oldest) = self.strangers.pop_front().and_then(|oldest| oldest.upgrade())
        {
            // One that has ended needs no end.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        self.strangers.push_back(Arc::downgrade(&stranger));
        let (key, terms) = (self.key, Arc::clone(terms));
        let serve = move || {
            let accepted = stream.set_nonblocking(false).map_err(WireError::from);
            let wire = match accepted.and_then(|()| Wire::accept(stream, &key)) {
                Ok(wire) => wire,
                Err(error) => return terms.closed(from, &error),
            };
            drop(stranger);
            serve(wire, from);
        };
        if let Err(error) = std::thread::Builder::new().name(self.thread.into()).spawn(serve) {
            limited!(warn, %error, %from, "no thread for a relay");
        }
    }
}
