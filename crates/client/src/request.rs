//! Requests: collectives in flight, as the rank that posted them sees them.
//!
//! | state | holds | next |
//! |---|---|---|
//! | pending | a completion word | ended, by the test or wait that sees the result or the loss of the service process |
//! | ended | the result | - |
//!
//! A pending request that is dropped leaves its word behind as an orphan. The word records the place of the request's
//! buffers ([`crate::slots`]).

use crate::attachment::{Attachment, AttachmentParts};
use crate::error::Error;
use crate::lock::lock;
use crate::operator::Fold;
use outboard_shm::status::Status;
use std::sync::Arc;
use std::time::Duration;

/// After this many tests without a result, a test checks whether the service process lives, which costs a system call.
const TESTS_PER_LIVENESS_CHECK: u32 = 256;

/// A collective that was posted. Used by one thread at a time.
#[derive(Debug)]
pub struct Request {
    attachment: Arc<Attachment>,
    state: RequestState,
    tests: u32,
}

#[derive(Debug)]
enum RequestState {
    Pending { slot: u32 },
    Ended(Result<(), Error>),
}

impl Request {
    pub(crate) fn new(attachment: Arc<Attachment>, slot: u32) -> Request {
        Request { attachment, state: RequestState::Pending { slot }, tests: 0 }
    }

    /// The result if the collective has ended, and `None` if not. Repeated tests return the same result. In a forked
    /// child the result is [`Error::Forked`].
    pub fn test(&mut self) -> Option<Result<(), Error>> {
        let attachment = self.attachment.clone();
        let parts = match attachment.parts() {
            Ok(parts) => parts,
            Err(forked) => return Some(Err(forked)),
        };
        parts.progress();
        self.tests = self.tests.wrapping_add(1);
        let check_liveness = self.tests.is_multiple_of(TESTS_PER_LIVENESS_CHECK);
        if !self.completed_in(parts)
            && (parts.known_lost() || (check_liveness && parts.lost()))
            && !self.completed_in(parts)
        {
            self.end_as_lost(parts);
        }
        self.end_if_completed(parts)
    }

    /// Sleeps until the collective has ended or `limit` has passed. Returns `None` if `limit` has passed, else the
    /// result of [`test`](Self::test).
    pub fn wait(&mut self, limit: Option<Duration>) -> Option<Result<(), Error>> {
        let attachment = self.attachment.clone();
        let parts = match attachment.parts() {
            Ok(parts) => parts,
            Err(forked) => return Some(Err(forked)),
        };
        parts.progress();
        let slot = match self.state {
            RequestState::Pending { slot } => Some(slot),
            RequestState::Ended(_) => None,
        };
        if parts.wait_until(slot, limit, || self.completed_in(parts)).is_err() {
            self.end_as_lost(parts);
        }
        self.end_if_completed(parts)
    }

    /// Makes this rank combine the gathered contributions. The request was just posted and is untested.
    pub(crate) fn fold(&self, fold: Fold) -> Result<(), Error> {
        let RequestState::Pending { slot } = self.state else { unreachable!("nobody has tested it") };
        lock(&self.attachment.parts()?.slots).fold_at_end(slot, fold);
        Ok(())
    }

    /// Whether this process is the one that posted.
    pub(crate) fn check_not_forked(&self) -> Result<(), Error> {
        self.attachment.parts().map(drop)
    }

    fn completed_in(&self, parts: &AttachmentParts) -> bool {
        match &self.state {
            RequestState::Pending { slot } => parts.control.result(*slot).is_some(),
            RequestState::Ended(_) => true,
        }
    }

    /// Ends the request with the loss of the service process. The request's word and segment are never reused.
    fn end_as_lost(&mut self, parts: &AttachmentParts) {
        if let RequestState::Pending { slot } = self.state {
            // Dropped outside the lock, because dropping the operator runs code of the program.
            let fold = lock(&parts.slots).remove_fold(slot);
            drop(fold);
        }
        parts.copy_agent.shut_down(&parts.control);
        self.state = RequestState::Ended(Err(parts.connection.lost()));
    }

    fn end_if_completed(&mut self, parts: &AttachmentParts) -> Option<Result<(), Error>> {
        if let RequestState::Pending { slot } = self.state {
            let status = parts.control.result(slot)?;
            let failure = (status != Status::Ok).then(|| parts.fetch_error(slot, status));
            let finished = parts.finish(slot, failure.is_none());
            self.state = RequestState::Ended(failure.map_or(finished, Err));
        }
        match &self.state {
            RequestState::Ended(result) => Some(result.clone()),
            RequestState::Pending { .. } => None,
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Ok(parts) = self.attachment.parts() else {
            return;
        };
        if let RequestState::Pending { slot } = self.state {
            lock(&parts.slots).orphan(slot);
            parts.progress();
        }
    }
}

/// Sleeps until at least one of the requests has ended, or `limit` has passed, or the service process is gone. Later
/// tests return the results.
///
/// # Errors
/// [`Error::Forked`], [`Error::Argument`] when the requests come from different attachments.
pub fn wait_some(requests: &[&Request], limit: Option<Duration>) -> Result<(), Error> {
    let Some(first) = requests.first() else { return Ok(()) };
    if requests.iter().any(|request| !Arc::ptr_eq(&request.attachment, &first.attachment)) {
        return Err(Error::argument("requests", "belong to different contexts"));
    }
    let parts = first.attachment.parts()?;
    parts.progress();
    match parts.wait_until(None, limit, || requests.iter().any(|request| request.completed_in(parts))) {
        Ok(_) | Err(Error::ServiceLost { .. }) => Ok(()),
        Err(other) => Err(other),
    }
}
