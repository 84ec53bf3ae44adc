//! The attach socket, shared by all threads of a rank.
//!
//! Requests carry tokens and replies arrive in any order, since making a group waits for other hosts. One of the
//! waiting threads reads the socket and passes other threads their replies; the library starts no thread.
//!
//! A reply without a request carries the reason for which the service process closes the connection.
//!
//! Invariant: once the connection has ended, every call returns the reason, also calls under way.

use crate::error::Error;
use crate::own_daemon;
use outboard_shm::attach::{
    AttachChannel, AttachDecodeError, AttachReply, AttachRequest, ChannelError, ReceivedMessage,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the reading thread sleeps before it checks its deadline again.
const SLICE: Duration = Duration::from_millis(500);

/// Reads that may precede the farewell of the service process: earlier messages, and the report that it is gone.
const FAREWELL_LOOKS: u32 = 8;

#[derive(Debug)]
pub(crate) struct Connection {
    path: PathBuf,
    channel: AttachChannel,
    exchange: Mutex<Exchange>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Exchange {
    last_token: u64,
    /// For each request under way its reply, once it has arrived.
    replies: HashMap<u64, Option<ReceivedMessage<AttachReply>>>,
    reading: bool,
    ended: Option<Error>,
}

impl Connection {
    /// Connects; [`Error::NoService`] if none listens, or one of another user, which would get this process's memory.
    pub(crate) fn open(path: &Path) -> Result<Connection, Error> {
        let failed = |errno| match errno {
            Errno::MFILE | Errno::NFILE => {
                let path = path.display();
                Error::Resource(format!(
                    "cannot attach at {path}: {errno}; raise the limit on descriptors (`ulimit -n`)"
                ))
            }
            errno => Error::NoService { path: path.to_owned(), reason: errno.to_string() },
        };
        let channel = AttachChannel::connect(path).map_err(failed)?;
        let (own, theirs) = (rustix::process::geteuid().as_raw(), channel.peer().map_err(failed)?.uid);
        if theirs != own {
            let reason = format!("user {theirs} listens there, and a service process serves its own user alone");
            return Err(Error::NoService { path: path.to_owned(), reason });
        }
        Ok(Connection { path: path.to_owned(), channel, exchange: Mutex::default(), changed: Condvar::new() })
    }

    /// The process at the other end, if the kernel reports it.
    pub(crate) fn service_pid(&self) -> Option<rustix::process::Pid> {
        self.channel.peer().ok()?.pid
    }

    pub(crate) fn lost(&self) -> Error {
        let log = own_daemon::log_beside(&self.path);
        Error::ServiceLost { path: self.path.clone(), log }
    }

    pub(crate) fn hung_up(&self) -> bool {
        self.channel.hung_up()
    }

    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its reply, until `limit` at most. A reply that reports a failure is an error.
    pub(crate) fn call(
        &self,
        request: &AttachRequest,
        descriptors: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> Result<ReceivedMessage<AttachReply>, Error> {
        let token = {
            let mut exchange = self.exchange();
            exchange.last_token += 1;
            let token = exchange.last_token;
            exchange.replies.insert(token, None);
            token
        };
        let reply = match self.channel.send(token, request, descriptors) {
            Ok(()) => self.reply_to(token, limit.map(|limit| Instant::now() + limit)),
            Err(error) => Err(self.failure(error)),
        };
        self.exchange().replies.remove(&token);
        let reply = reply?;
        match reply.message {
            AttachReply::Error { status, text } => Err(Error::Service { status, text }),
            _ => Ok(reply),
        }
    }

    fn reply_to(&self, token: u64, deadline: Option<Instant>) -> Result<ReceivedMessage<AttachReply>, Error> {
        let mut exchange = self.exchange();
        loop {
            if let Some(reply) = exchange.replies.get_mut(&token).and_then(Option::take) {
                return Ok(reply);
            }
            if let Some(reason) = &exchange.ended {
                return Err(reason.clone());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let reason = "it does not answer in time".to_owned();
                return Err(Error::NoService { path: self.path.clone(), reason });
            }
            if exchange.reading {
                exchange = self.changed.wait(exchange).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            exchange.reading = true;
            drop(exchange);
            let received = self.channel.wait(SLICE).and_then(|_| self.channel.receive());
            exchange = self.exchange();
            exchange.reading = false;
            self.hand_out(&mut exchange, received);
            self.changed.notify_all();
        }
    }

    fn hand_out(&self, exchange: &mut Exchange, received: Result<Option<ReceivedMessage<AttachReply>>, ChannelError>) {
        match received {
            Ok(None) => {}
            Ok(Some(ReceivedMessage { token: 0, message: AttachReply::Error { status, text }, .. })) => {
                exchange.ended = Some(Error::Service { status, text });
            }
            Ok(Some(reply)) => match exchange.replies.get_mut(&reply.token) {
                Some(place) if place.is_none() => *place = Some(reply),
                Some(_) => exchange.ended = Some(Error::Protocol("two replies to one request".to_owned())),
                // The caller has given up on this reply.
                None => {}
            },
            Err(error) => exchange.ended = Some(self.failure(error)),
        }
    }

    fn failure(&self, error: ChannelError) -> Error {
        match error {
            ChannelError::Closed => self.farewell().unwrap_or_else(|| self.lost()),
            ChannelError::Decode(AttachDecodeError::Version { .. }) => Error::Version(error.to_string()),
            ChannelError::Decode(_) => Error::Protocol(error.to_string()),
            ChannelError::Backlogged | ChannelError::Descriptors | ChannelError::Kernel(_) => {
                Error::Resource(error.to_string())
            }
        }
    }

    /// The reason that the service process sent before it closed the connection, if any.
    fn farewell(&self) -> Option<Error> {
        // The kernel reports the end of the connection once before it delivers the remaining messages.
        for _ in 0..FAREWELL_LOOKS {
            if let Ok(Some(ReceivedMessage { token: 0, message: AttachReply::Error { status, text }, .. })) =
                self.channel.receive()
            {
                return Some(Error::Service { status, text });
            }
        }
        None
    }

    pub(crate) fn unexpected(reply: &AttachReply) -> Error {
        Error::Protocol(format!("unexpected reply {reply:?}"))
    }

    /// A call whose reply only confirms that the request was carried out.
    pub(crate) fn order(&self, request: &AttachRequest, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match self.call(request, descriptors, None)?.message {
            AttachReply::Done => Ok(()),
            other => Err(Connection::unexpected(&other)),
        }
    }
}
