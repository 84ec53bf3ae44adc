//! The attach socket, shared by all threads of a rank.
//!
//! Requests carry tokens and replies arrive in any order, since making a group waits for other hosts. One of the
//! waiting threads reads the socket and passes other threads their replies; the library starts no thread.
//!
//! A reply without a request carries the reason for which the service process closes the connection.
//!
//! Invariant: once the connection has ended, every call returns the reason, also calls under way.

use crate::error::Error;
use crate::job_daemon;
use outboard_shm::attach::{
    AttachChannel, AttachDecodeError, AttachReply, AttachRequest, ChannelError, ReceivedMessage,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the reading thread sleeps before it checks its deadline again.
const SLICE: Duration = Duration::from_millis(500);

/// The most reads until the closing message: earlier messages, and the report that the connection has ended, come
/// first.
const CLOSING_READS: u32 = 8;

/// The owner of the file or directory that closes `path` to this user, as far as this user can see it.
fn closed_by(path: &Path, errno: Errno) -> String {
    match path.ancestors().find_map(|part| Some((part, part.metadata().ok()?.uid()))) {
        Some((part, owner)) => format!("{} belongs to user {owner} ({errno})", part.display()),
        None => errno.to_string(),
    }
}

#[derive(Debug)]
pub(crate) struct ServiceConnection {
    path: PathBuf,
    channel: AttachChannel,
    pending: Mutex<PendingReplies>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PendingReplies {
    last_token: u64,
    /// The reply to each request under way, once the reply has arrived.
    replies: HashMap<u64, Option<ReceivedMessage<AttachReply>>>,
    reading: bool,
    ended: Option<Error>,
}

impl ServiceConnection {
    /// Connects. [`Error::NoService`] if no process listens; [`Error::NotPermitted`] if a process of another user
    /// listens, who would get access to this process's memory.
    pub(crate) fn open(path: &Path) -> Result<ServiceConnection, Error> {
        let failed = |errno| match errno {
            Errno::MFILE | Errno::NFILE => {
                let path = path.display();
                Error::Resource(format!(
                    "cannot attach at {path}: {errno}; raise the limit on descriptors (`ulimit -n`)"
                ))
            }
            Errno::ACCESS | Errno::PERM => Error::not_permitted(path, closed_by(path, errno)),
            errno => Error::no_service(path, errno.to_string()),
        };
        let channel = AttachChannel::connect(path).map_err(failed)?;
        let (own_uid, peer_uid) = (rustix::process::geteuid().as_raw(), channel.peer().map_err(failed)?.uid);
        if peer_uid != own_uid {
            let reason = format!("user {peer_uid} listens there, and a service process serves its own user alone");
            return Err(Error::not_permitted(path, reason));
        }
        Ok(ServiceConnection { path: path.to_owned(), channel, pending: Mutex::default(), changed: Condvar::new() })
    }

    /// The process at the other end, if the kernel reports it.
    pub(crate) fn service_pid(&self) -> Option<rustix::process::Pid> {
        self.channel.peer().ok()?.pid
    }

    pub(crate) fn lost(&self) -> Error {
        let log = job_daemon::log_beside(&self.path);
        Error::ServiceLost { path: self.path.clone(), log }
    }

    pub(crate) fn hung_up(&self) -> bool {
        self.channel.hung_up()
    }

    fn pending(&self) -> MutexGuard<'_, PendingReplies> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its reply, until `limit` at most. A reply that reports a failure is an error.
    pub(crate) fn call(
        &self,
        request: &AttachRequest,
        descriptors: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> Result<ReceivedMessage<AttachReply>, Error> {
        let token = {
            let mut pending = self.pending();
            pending.last_token += 1;
            let token = pending.last_token;
            pending.replies.insert(token, None);
            token
        };
        let reply = match self.channel.send(token, request, descriptors) {
            Ok(()) => self.reply_to(token, limit.map(|limit| Instant::now() + limit)),
            Err(error) => Err(self.failure(error)),
        };
        self.pending().replies.remove(&token);
        let reply = reply?;
        match reply.message {
            AttachReply::Error { status, text } => Err(Error::Service { status, text }),
            _ => Ok(reply),
        }
    }

    fn reply_to(&self, token: u64, deadline: Option<Instant>) -> Result<ReceivedMessage<AttachReply>, Error> {
        let mut pending = self.pending();
        loop {
            if let Some(reply) = pending.replies.get_mut(&token).and_then(Option::take) {
                return Ok(reply);
            }
            if let Some(reason) = &pending.ended {
                return Err(reason.clone());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let reason = "it does not answer in time".to_owned();
                return Err(Error::no_service(&self.path, reason));
            }
            if pending.reading {
                pending = self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            pending.reading = true;
            drop(pending);
            let received = self.channel.wait(SLICE).and_then(|_| self.channel.receive());
            pending = self.pending();
            pending.reading = false;
            self.dispatch(&mut pending, received);
            self.changed.notify_all();
        }
    }

    fn dispatch(
        &self,
        pending: &mut PendingReplies,
        received: Result<Option<ReceivedMessage<AttachReply>>, ChannelError>,
    ) {
        match received {
            Ok(None) => {}
            Ok(Some(ReceivedMessage { token: 0, message: AttachReply::Error { status, text }, .. })) => {
                pending.ended = Some(Error::Service { status, text });
            }
            Ok(Some(reply)) => match pending.replies.get_mut(&reply.token) {
                Some(place) if place.is_none() => *place = Some(reply),
                Some(_) => pending.ended = Some(Error::Protocol("two replies to one request".to_owned())),
                // The caller has given up on this reply.
                None => {}
            },
            Err(error) => pending.ended = Some(self.failure(error)),
        }
    }

    fn failure(&self, error: ChannelError) -> Error {
        match error {
            ChannelError::Closed => self.closing_error().unwrap_or_else(|| self.lost()),
            ChannelError::Decode(AttachDecodeError::Version { .. }) => Error::Version(error.to_string()),
            ChannelError::Decode(_) => Error::Protocol(error.to_string()),
            ChannelError::Backlogged | ChannelError::Descriptors | ChannelError::Kernel(_) => {
                Error::Resource(error.to_string())
            }
        }
    }

    /// The reason that the service process sent before it closed the connection, if any.
    fn closing_error(&self) -> Option<Error> {
        // The kernel reports the end of the connection once before it delivers the remaining messages.
        for _ in 0..CLOSING_READS {
            if let Ok(Some(ReceivedMessage { token: 0, message: AttachReply::Error { status, text }, .. })) =
                self.channel.receive()
            {
                return Some(Error::Service { status, text });
            }
        }
        None
    }

    pub(crate) fn unexpected_reply(reply: &AttachReply) -> Error {
        Error::Protocol(format!("unexpected reply {reply:?}"))
    }

    /// A call whose reply only confirms that the request was carried out.
    pub(crate) fn execute(&self, request: &AttachRequest, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match self.call(request, descriptors, None)?.message {
            AttachReply::Done => Ok(()),
            other => Err(ServiceConnection::unexpected_reply(&other)),
        }
    }
}
