//! A listening socket of a dock. Each connection has a thread, and is unauthenticated until it has proven its key.
//!
//! Invariant: at most [`STRANGERS`] connections are unauthenticated; the oldest of them is closed for a new one.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use outboard_fabric::{SharedKey, limited};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Terms;
use crate::wire::{Wire, WireError};

/// Most unauthenticated connections.
const STRANGERS: usize = 128;
/// Pause without accepting when no descriptor is left.
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

    /// Accepts a connection, for `serve` once its key is proven. Without descriptors pauses, at most until `stop`.
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
                // The connection may still wait for a descriptor: the listener stays readable.
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
            // Fails only on a connection that has ended already.
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
