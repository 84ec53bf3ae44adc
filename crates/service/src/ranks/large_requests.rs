//! Requests whose work grows with the memory that they pass: groups and recordings.
//!
//! In one turn the conductor handles [`TURN_BYTES`] bytes of the large requests of all connections together, or one
//! larger request. The other requests wait for later turns, in order of arrival. While a connection has a waiting
//! request, the conductor does not read from it: its next requests wait in the socket.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use outboard_plan::Rank;
use outboard_proto::GroupRefusal;
use outboard_proto::wire::RecordedMemory;
use outboard_shm::attach::{AttachReply, AttachRequest, OFFER_BYTES, RestagedBuffers};
use outboard_shm::status::Status;

use crate::ConnectionId;
use crate::memory::MemoryPieces;
use crate::ranks::attach::{RefusedRequest, RequestHandler, no_group, read_sealed, read_sealed_recording, refuse};
use crate::ranks::offers::{Offer, OfferError, group_spec};
use crate::ranks::{Membership, MembershipStage, failure};

/// Bytes of requests that a turn handles: less than a millisecond.
const TURN_BYTES: usize = 256 << 10;

/// The connections whose requests wait, and the bytes that this turn may still handle.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    bytes_left: usize,
    connections: VecDeque<ConnectionId>,
}

impl RequestQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Takes bytes from this turn's budget if enough are left. A request that is larger than the budget needs a full
    /// budget.
    fn take(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.bytes_left || self.bytes_left == TURN_BYTES;
        if fits {
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
        }
        fits
    }

    /// Whether the request may be answered now. If not, its connection is queued.
    pub(crate) fn admits(&mut self, id: ConnectionId, request: &AttachRequest) -> bool {
        let bytes = request_bytes(request);
        let now = bytes == 0 || self.connections.is_empty() && self.take(bytes);
        if !now {
            self.connections.push_back(id);
        }
        now
    }
}

fn request_bytes(request: &AttachRequest) -> usize {
    match request {
        AttachRequest::CreateGroup { ranks, .. } => *ranks as usize * OFFER_BYTES,
        AttachRequest::Record { bytes, .. } => usize::try_from(*bytes).unwrap_or(usize::MAX),
        _ => 0,
    }
}

impl RequestHandler<'_> {
    /// Begins a turn with a new budget: answers waiting requests.
    pub(crate) fn resume_requests(&mut self) {
        self.ranks.request_queue.bytes_left = TURN_BYTES;
        while let Some(&id) = self.ranks.request_queue.connections.front() {
            let bytes =
                self.ranks.rank(id).and_then(|rank| Some(request_bytes(&rank.deferred_request.as_ref()?.message)));
            if !self.ranks.request_queue.take(bytes.unwrap_or(0)) {
                return;
            }
            self.ranks.request_queue.connections.pop_front();
            if let Some(received) = self.ranks.rank(id).and_then(|rank| rank.deferred_request.take()) {
                self.handle_request(id, received);
            }
        }
    }

    /// Requests a group from the machine. The reply is sent when the group is made.
    pub(crate) fn create_group(
        &mut self,
        id: ConnectionId,
        token: u64,
        descriptors: Vec<OwnedFd>,
        ranks: u32,
        me: u32,
    ) -> Result<(), RefusedRequest> {
        let most = u32::from(u16::MAX);
        if ranks > most {
            return refuse(Status::Argument, format!("{ranks} ranks exceed the {most} of a group"));
        }
        let offers = Offer::decode_all(&read_sealed(descriptors, ranks as usize * OFFER_BYTES)?)?;
        let own = &offers[me as usize];
        let (sp, rank) = (self.host.id, self.attached(id)?);
        if own.sp != sp || !rank.offers.contains(&own.id) {
            return Err(OfferError::NotOurs { rank: me }.into());
        }
        let (spec, seats) = group_spec(&offers)?;
        // Each offer makes one group, so this offer is used up.
        rank.offers.retain(|drawn| *drawn != own.id);
        if self.ranks.is_member(spec.handle, Rank(me)) {
            let text = format!("rank {me} of {} is served already; make new offers for a new group", spec.handle);
            return refuse(Status::Argument, text);
        }
        let most = self.host.settings.max_groups as usize;
        if self.ranks.memberships() >= most {
            self.driver.refuse_group(&spec, Rank(me), GroupRefusal::Groups);
            let text = format!(
                "the ranks of this service process hold {most} memberships in groups; destroy some groups, or raise \
                 --max-groups of outboardd"
            );
            return refuse(Status::Resource, text);
        }
        let stage = MembershipStage::Making { token };
        let membership = Membership { handle: spec.handle, rank: Rank(me), ranks, deadline: None, stage };
        self.ranks.join(id, membership, seats);
        self.driver.create_group(&spec, Rank(me));
        Ok(())
    }

    /// Stores a whole recording of a rank, so that a call only has to name the recording's number (GP-5).
    pub(crate) fn record(
        &mut self,
        id: ConnectionId,
        descriptors: Vec<OwnedFd>,
        group: u64,
        number: u32,
        bytes: u64,
    ) -> Result<AttachReply, RefusedRequest> {
        let recorded = RecordedMemory::decode(&read_sealed_recording(descriptors, bytes)?)
            .map_err(|error| RefusedRequest::argument(format!("the recording is {error}")))?;
        let (handle, rank, recordings) = self.ranks.made_membership(id, group).ok_or_else(|| no_group(group))?;
        self.driver
            .record(handle, rank, number, recorded.recording)
            .map_err(|error| RefusedRequest { status: failure::recording(&error), text: error.to_string() })?;
        recordings.insert(number, Arc::new(MemoryPieces::new(recorded.pieces)));
        Ok(AttachReply::Done)
    }

    /// Takes the calls that the rank posted before its request. These calls may still lie in the rank's ring.
    fn take_calls(&mut self, id: ConnectionId) {
        let RequestHandler { ranks, driver, trace, .. } = self;
        ranks.take_submissions_of(id, driver, trace.as_deref_mut());
    }

    pub(crate) fn free_recording(
        &mut self,
        id: ConnectionId,
        group: u64,
        number: u32,
    ) -> Result<AttachReply, RefusedRequest> {
        self.take_calls(id);
        let made = self.ranks.made_membership(id, group).filter(|(.., recordings)| recordings.contains_key(&number));
        let Some((handle, rank, recordings)) = made else {
            return refuse(Status::Argument, format!("recording {number} of group {group} is not one of this rank's"));
        };
        if !self.driver.free_recording(handle, rank, number) {
            return refuse(Status::Busy, "calls of the recording are in flight; wait for them");
        }
        recordings.remove(&number);
        Ok(AttachReply::Done)
    }

    /// Handles a rank's copy of the buffers of a call in flight, whose original memory cannot be accessed (GP-9).
    pub(crate) fn restage(
        &mut self,
        id: ConnectionId,
        restaged: &RestagedBuffers,
    ) -> Result<AttachReply, RefusedRequest> {
        self.take_calls(id);
        let &RestagedBuffers { group, instance, slot, send, receive } = restaged;
        let Some(call) = self.ranks.find_call(id, slot, group, instance) else {
            return refuse(Status::Argument, format!("call {instance} of group {group} has ended"));
        };
        if self.driver.restage(call, send, receive) {
            self.ranks.restaged += 1;
            Ok(AttachReply::Done)
        } else {
            refuse(Status::Argument, "the copied buffers exceed the address space")
        }
    }

    /// Fails a call in flight whose buffers the rank may not access either.
    pub(crate) fn refuse_restage(
        &mut self,
        id: ConnectionId,
        (group, instance): (u64, u64),
        slot: u32,
    ) -> Result<AttachReply, RefusedRequest> {
        self.take_calls(id);
        let Some(call) = self.ranks.find_call(id, slot, group, instance) else {
            return refuse(Status::Argument, format!("call {instance} of group {group} has ended"));
        };
        self.driver.refuse_restage(call);
        Ok(AttachReply::Done)
    }
}

impl From<OfferError> for RefusedRequest {
    fn from(error: OfferError) -> Self {
        RefusedRequest { status: failure::offer(&error), text: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_of_a_turn_are_bounded() {
        let mut request_queue = RequestQueue { bytes_left: TURN_BYTES, ..RequestQueue::default() };
        let large = AttachRequest::CreateGroup { ranks: 65_535, rank: 0 };
        assert!(request_queue.admits(1, &AttachRequest::CreateGroup { ranks: 3, rank: 0 }));
        assert!(!request_queue.admits(2, &large), "the turn has begun with something else");
        assert!(!request_queue.admits(3, &AttachRequest::CreateGroup { ranks: 3, rank: 0 }), "and nothing overtakes");
        assert!(request_queue.admits(4, &AttachRequest::Offer), "what hands nothing over does not wait");
        assert_eq!(request_queue.connections, [2, 3]);
        request_queue.bytes_left = TURN_BYTES;
        assert!(request_queue.take(request_bytes(&large)) && !request_queue.take(1), "it has a turn of its own");
    }
}
