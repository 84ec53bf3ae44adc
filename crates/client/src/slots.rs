//! The completion words of requests. For each word: its request, the place of the request's buffers, and this rank's
//! part at the end. Also the requests that were freed early.
//!
//! | a word is | because | next |
//! |---|---|---|
//! | free | no request uses it | owned, by a post |
//! | owned | a request holds it | free when the request has seen its result; orphaned if the request is freed before |
//! | orphaned | the collective goes on without a handle | free when a later call sees its result |
//!
//! This rank does its part at the end of a request once ([`DeliveryState`]). The thread that sees the result does this
//! part, or the thread that takes the group's buffers back.
//!
//! Invariant: a word is armed only while free, so a late result never meets a new request.

use crate::error::Error;
use crate::operator::Fold;
use crate::staging::{RequestBuffers, StagedBuffers};
use std::sync::Arc;

/// The place at which the service process finds the buffers of a request.
#[derive(Debug)]
pub(crate) enum BufferPlacement {
    /// In the program's own buffers.
    Direct(RequestBuffers),
    /// In a segment.
    Staged(Arc<StagedBuffers>),
    /// In memory that is always shared; also the state after the request has ended.
    Shared,
}

/// The progress of this rank's part at the end of a request: copying received bytes, or combining them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeliveryState {
    Due,
    UnderWay,
    /// The buffers belong to the program again.
    Done(Result<(), Error>),
}

/// A call of a group, by its number in the group's count, and the word that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PostedCall {
    pub(crate) slot: u32,
    pub(crate) group: u64,
    pub(crate) instance: u64,
}

#[derive(Debug)]
struct SlotOwner {
    call: PostedCall,
    placement: BufferPlacement,
    /// Combination to run when the collective has ended.
    fold: Option<Box<Fold>>,
    delivery: DeliveryState,
}

/// A request in flight whose buffers are the program's own.
#[derive(Debug)]
pub(crate) struct DirectRequest {
    pub(crate) call: PostedCall,
    pub(crate) buffers: RequestBuffers,
}

#[derive(Debug)]
pub(crate) struct Slots {
    free: Vec<u32>,
    owners: Vec<Option<SlotOwner>>,
    /// Requests in flight whose handles are gone.
    orphans: Vec<u32>,
    direct: usize,
    /// Threads that wait for another thread's [`DeliveryState`].
    pub(crate) waiting_threads: usize,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Slots {
        let owners = (0..count).map(|_| None).collect();
        Slots { free: (0..count).rev().collect(), owners, orphans: Vec::new(), direct: 0, waiting_threads: 0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn acquire(&mut self, group: u64, instance: u64) -> Option<PostedCall> {
        let slot = self.free.pop()?;
        let call = PostedCall { slot, group, instance };
        self.owners[slot as usize] =
            Some(SlotOwner { call, placement: BufferPlacement::Shared, fold: None, delivery: DeliveryState::Due });
        Some(call)
    }

    /// Records the place of a request's buffers when it is posted.
    pub(crate) fn set_placement(&mut self, slot: u32, placement: BufferPlacement) {
        self.remove_placement(slot);
        self.direct += usize::from(matches!(placement, BufferPlacement::Direct(_)));
        self.owners[slot as usize].as_mut().expect("a word in use").placement = placement;
    }

    /// Records that the request reaches the service process.
    pub(crate) fn record_post(&self, slot: u32) {
        if let Some(SlotOwner { call, placement: BufferPlacement::Staged(staged), .. }) = &self.owners[slot as usize] {
            staged.record_call(call.instance);
        }
    }

    /// The call that uses a word.
    pub(crate) fn call(&self, slot: u32) -> PostedCall {
        self.owners[slot as usize].as_ref().expect("a word in use").call
    }

    /// The delivery of this call, if it still uses the word.
    pub(crate) fn delivery(&mut self, call: PostedCall) -> Option<&mut DeliveryState> {
        let owner = self.owners[call.slot as usize].as_mut().filter(|owner| owner.call == call)?;
        Some(&mut owner.delivery)
    }

    /// Takes the buffers out of the word; from here on this rank does not access them.
    pub(crate) fn remove_placement(&mut self, slot: u32) -> BufferPlacement {
        let owner = self.owners[slot as usize].as_mut();
        let placement = std::mem::replace(&mut owner.expect("a word in use").placement, BufferPlacement::Shared);
        self.direct -= usize::from(matches!(placement, BufferPlacement::Direct(_)));
        placement
    }

    /// Sets the combination to run when the request has ended well.
    pub(crate) fn fold_at_end(&mut self, slot: u32, fold: Fold) {
        self.owners[slot as usize].as_mut().expect("a word in use").fold = Some(Box::new(fold));
    }

    /// Takes the combination and its memory out of the word.
    pub(crate) fn remove_fold(&mut self, slot: u32) -> Option<Box<Fold>> {
        self.owners[slot as usize].as_mut().expect("a word in use").fold.take()
    }

    pub(crate) fn release(&mut self, slot: u32) {
        self.remove_placement(slot);
        self.owners[slot as usize] = None;
        self.free.push(slot);
    }

    /// Whether the call still uses its word.
    pub(crate) fn holds(&self, call: PostedCall) -> bool {
        let owner = self.owners.get(call.slot as usize).and_then(Option::as_ref);
        owner.is_some_and(|owner| owner.call == call)
    }

    /// Whether requests in flight use the program's own buffers.
    pub(crate) fn any_direct(&self) -> bool {
        self.direct > 0
    }

    /// A request in flight on the program's own buffers whose word is `wanted`; within a group the earliest call comes
    /// first. So a request that waits for its copy continues as soon as possible, and a call of a recording continues
    /// from the earlier calls.
    pub(crate) fn first_direct(&self, wanted: impl Fn(u32) -> bool) -> Option<DirectRequest> {
        if !self.any_direct() {
            return None;
        }
        let owners = self.owners.iter().flatten().filter(|owner| wanted(owner.call.slot));
        let direct = owners.filter_map(|owner| match &owner.placement {
            BufferPlacement::Direct(buffers) => Some((owner.call, buffers)),
            BufferPlacement::Staged(_) | BufferPlacement::Shared => None,
        });
        let (call, buffers) = direct.min_by_key(|(call, _)| call.instance)?;
        Some(DirectRequest { call, buffers: buffers.clone() })
    }

    /// Records the new place of the request's buffers; returns the place if the request has ended meanwhile.
    pub(crate) fn replace_placement(
        &mut self,
        request: &DirectRequest,
        placement: BufferPlacement,
    ) -> Result<(), BufferPlacement> {
        match &mut self.owners[request.call.slot as usize] {
            Some(SlotOwner { call, placement: place @ BufferPlacement::Direct(_), .. }) if *call == request.call => {
                self.direct -= 1;
                *place = placement;
                self.record_post(request.call.slot);
                Ok(())
            }
            Some(_) | None => Err(placement),
        }
    }

    pub(crate) fn orphan(&mut self, slot: u32) {
        self.orphans.push(slot);
    }

    /// Takes out the orphans that have ended; their words are still in use.
    pub(crate) fn ended_orphans(&mut self, ended: impl Fn(u32) -> bool) -> Vec<u32> {
        if self.orphans.is_empty() {
            return Vec::new();
        }
        self.orphans.extract_if(.., |slot| ended(*slot)).collect()
    }

    /// The calls of a group that use words.
    pub(crate) fn calls_of_group(&self, group: u64) -> Vec<PostedCall> {
        self.owners.iter().flatten().map(|owner| owner.call).filter(|call| call.group == group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_slots_are_reused_and_ended_orphans_removed() {
        let mut slots = Slots::new(2);
        let first = PostedCall { slot: 0, group: 7, instance: 1 };
        assert_eq!(slots.acquire(7, 1), Some(first));
        assert_eq!((slots.acquire(8, 1).map(|call| call.slot), slots.acquire(7, 2)), (Some(1), None));
        assert_eq!(slots.calls_of_group(7), [first]);
        slots.orphan(0);
        assert!(slots.ended_orphans(|_| false).is_empty());
        assert_eq!(slots.ended_orphans(|slot| slot == 0), [0]);
        assert_eq!(slots.acquire(9, 1), None, "the word is in use until it is given back");
        slots.release(0);
        assert_eq!(slots.acquire(9, 1).map(|call| call.slot), Some(0));
    }

    #[test]
    fn buffers_move_only_while_their_request_is_in_flight() {
        let mut slots = Slots::new(1);
        let buffers = RequestBuffers::NONE;
        let slot = slots.acquire(7, 1).unwrap().slot;
        slots.set_placement(slot, BufferPlacement::Direct(buffers.clone()));
        let request = slots.first_direct(|_| true).unwrap();
        slots.replace_placement(&request, BufferPlacement::Shared).unwrap();
        assert!(!slots.any_direct() && slots.first_direct(|_| true).is_none());
        slots.release(slot);
        let slot = slots.acquire(7, 2).unwrap().slot;
        slots.set_placement(slot, BufferPlacement::Direct(buffers));
        assert!(
            slots.replace_placement(&request, BufferPlacement::Shared).is_err(),
            "the next request of the word is another"
        );
        assert!(slots.any_direct());
    }
}
