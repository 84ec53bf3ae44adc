//! A listening socket of a dock. Each connection has its own thread, and is unauthenticated until the peer has proven
//! its key.
//!
//! Invariant: at most [`MAX_PENDING`] connections are unauthenticated; the oldest of them is closed for a new one.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use outboard_fabric::{SharedKey, limited};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::DockContext;
use crate::wire::{Wire, WireError};

/// Most unauthenticated connections.
const MAX_PENDING: usize = 128;
/// Pause in accepting connections when no descriptor is left.
const PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

pub(super) struct Entrance {
    listener: TcpListener,
    key: SharedKey,
    thread: &'static str,
    pending: VecDeque<Weak<TcpStream>>,
}

impl Entrance {
    pub(super) fn listen(at: SocketAddr, key: SharedKey, thread: &'static str) -> io::Result<Entrance> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(Entrance { listener, key, thread, pending: VecDeque::new() })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub(super) fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Accepts a connection, and calls `serve` once the peer has proven its key. Pauses if no descriptor is left, but
    /// not after `stop` is readable.
    pub(super) fn accept(
        &mut self,
        context: &Arc<DockContext>,
        stop: &OwnedFd,
        serve: impl FnOnce(Wire, SocketAddr) + Send + 'static,
    ) {
        match self.listener.accept() {
            Ok((stream, from)) => self.start_thread(stream, from, context, serve),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                limited!(warn, %error, "a relay cannot connect");
                // The connection still waits in the socket, so the listener stays readable and would wake the thread
                // again at once.
                let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&PAUSE));
            }
        }
    }

    fn start_thread(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        context: &Arc<DockContext>,
        serve: impl FnOnce(Wire, SocketAddr) + Send + 'static,
    ) {
        let pending_stream = match stream.try_clone() {
            Ok(same) => Arc::new(same),
            Err(error) => return limited!(warn, %error, %from, "a relay cannot connect"),
        };
        self.pending.retain(|pending_stream| pending_stream.strong_count() > 0);
        if self.pending.len() >= MAX_PENDING
            && let Some(oldest) = self.pending.pop_front().and_then(|oldest| oldest.upgrade())
        {
            // The call fails only if the connection has already ended.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        self.pending.push_back(Arc::downgrade(&pending_stream));
        let (key, context) = (self.key, Arc::clone(context));
        let serve = move || {
            let accepted = stream.set_nonblocking(false).map_err(WireError::from);
            let wire = match accepted.and_then(|()| Wire::accept(stream, &key)) {
                Ok(wire) => wire,
                Err(error) => return context.count_closed(from, &error),
            };
            drop(pending_stream);
            serve(wire, from);
        };
        if let Err(error) = std::thread::Builder::new().name(self.thread.into()).spawn(serve) {
            limited!(warn, %error, %from, "no thread for a relay");
        }
    }
}
