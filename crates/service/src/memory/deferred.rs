//! Work on memory that the kernel has withdrawn, until the rank copies for itself (GP-9), or that its rank writes to
//! ([`crate::memory::errands`]).
//!
//! | a call is | on | goes to |
//! |---|---|---|
//! | reached | an access that is withdrawn | awaited |
//! | awaited | `Restage` of its rank | reached, in shared memory; the work that waited is done |
//! | awaited | its failure, the end of its rank | gone; who was to have bytes from there is cut off |
//!
//! Only local work waits here. What was to be sent from such memory counts as lost on the way, which the protocol
//! repairs once it can be read: until then the link to that peer does not get past it. Invariants: work is done in the
//! order in which it came, as far as it shares a region; a call whose regions are named here has not completed for its
//! rank; at most [`MOST_BYTES`] of payload are held.

use std::collections::{HashSet, VecDeque};

use outboard_proto::{CallId, MemRef, Region, StagingId};

use crate::memory::combine::Combination;

/// Payload held for ranks that are not in our library.
const MOST_BYTES: usize = 256 << 20;

/// One piece of work.
#[derive(Debug)]
pub(crate) enum Work {
    /// As the machine ordered it.
    Copy { from: MemRef, to: MemRef },
    /// As the machine ordered it, or what is left of it.
    Reduce(Combination),
    /// Received payload, or a result.
    Deliver { bytes: Vec<u8>, to: MemRef },
    /// The memory is not needed once what comes before is done.
    Unstage { id: StagingId },
}

impl Work {
    fn regions(&self) -> impl Iterator<Item = Region> {
        let (one, two) = match self {
            Work::Copy { from, to } => (from.region, Some(to.region)),
            Work::Reduce(Combination { from, into, .. }) => (from.region, Some(into.region)),
            Work::Deliver { to, .. } => (to.region, None),
            Work::Unstage { id } => (Region::Staging(*id), None),
        };
        std::iter::once(one).chain(two)
    }

    /// The calls of ranks that others are held up with, as long as this is not done.
    pub(crate) fn others(&self) -> [Option<CallId>; 2] {
        let call = |piece: &MemRef| match piece.region {
            Region::Input(call) | Region::Output(call) => Some(call),
            Region::Staging(_) => None,
        };
        match self {
            Work::Copy { from, to } => [call(from), call(to)],
            Work::Reduce(Combination { from, into, .. }) => [call(from), call(into)],
            Work::Deliver { .. } | Work::Unstage { .. } => [None; 2],
        }
    }

    fn payload(&self) -> usize {
        match self {
            Work::Deliver { bytes, .. } => bytes.len(),
            Work::Copy { .. } | Work::Reduce(_) | Work::Unstage { .. } => 0,
        }
    }
}

/// Work that waits for copies by ranks.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    awaited: HashSet<CallId>,
    work: VecDeque<Work>,
    /// Named by `work`, or of calls awaited.
    regions: HashSet<Region>,
    bytes: usize,
}

fn buffers(call: CallId) -> [Region; 2] {
    [Region::Input(call), Region::Output(call)]
}

impl Deferred {
    /// Whether work on this region has to wait.
    pub(crate) fn holds(&self, region: Region) -> bool {
        // Empty in all runs but the rarest.
        !self.regions.is_empty() && self.regions.contains(&region)
    }

    /// Whether the rank's copy of this call's buffers is awaited.
    pub(crate) fn awaits(&self, call: CallId) -> bool {
        self.awaited.contains(&call)
    }

    /// Whether the call cannot end yet.
    pub(crate) fn holds_call(&self, call: CallId) -> bool {
        !self.work.is_empty() && self.work.iter().flat_map(Work::regions).any(|region| buffers(call).contains(&region))
    }

    /// The buffers of a call cannot be reached until its rank copies them.
    pub(crate) fn await_copy(&mut self, call: CallId) {
        self.awaited.insert(call);
        self.regions.extend(buffers(call));
    }

    /// Keeps a piece of work for later; false when there is no room for it.
    #[must_use]
    pub(crate) fn push(&mut self, work: Work) -> bool {
        let room = self.name(&work);
        if room {
            self.work.push_back(work);
        }
        room
    }

    /// As [`Self::push`], of work that comes before all that waits for it here.
    #[must_use]
    pub(crate) fn push_first(&mut self, work: Work) -> bool {
        let room = self.name(&work);
        if room {
            self.work.push_front(work);
        }
        room
    }

    /// Names what comes to be kept; false when there is no room for it.
    fn name(&mut self, work: &Work) -> bool {
        let room = self.bytes + work.payload() <= MOST_BYTES;
        if room {
            self.bytes += work.payload();
            self.regions.extend(work.regions());
        }
        room
    }

    /// The call's buffers are within reach: hands all work out, to be tried again in order.
    pub(crate) fn reached(&mut self, call: CallId) -> VecDeque<Work> {
        if self.awaited.remove(&call) { self.again() } else { VecDeque::new() }
    }

    /// Hands all work out, to be tried again in order.
    pub(crate) fn again(&mut self) -> VecDeque<Work> {
        let work = std::mem::take(&mut self.work);
        self.name_regions();
        work
    }

    /// The call has ended: it is not worked on any more.
    pub(crate) fn forget(&mut self, call: CallId) {
        if self.awaited.remove(&call) | self.holds_call(call) {
            self.work.retain(|work| !work.regions().any(|region| buffers(call).contains(&region)));
            self.name_regions();
        }
    }

    /// This call has failed or its rank has ended, with bytes that others wait for: drops what depends on them and
    /// returns the calls that will never have theirs.
    pub(crate) fn cut_off(&mut self, call: CallId) -> Vec<CallId> {
        if !self.awaited.contains(&call) {
            return Vec::new();
        }
        let mut lost = HashSet::from(buffers(call));
        self.work.retain(|work| match work {
            Work::Copy { from, to } if lost.contains(&from.region) => {
                lost.insert(to.region);
                false
            }
            Work::Reduce(Combination { from, into, .. }) if lost.contains(&from.region) => {
                lost.insert(into.region);
                false
            }
            Work::Copy { .. } | Work::Reduce(_) | Work::Deliver { .. } | Work::Unstage { .. } => true,
        });
        self.forget(call);
        let cut = |region: &Region| match region {
            Region::Output(other) if *other != call => Some(*other),
            Region::Input(_) | Region::Output(_) | Region::Staging(_) => None,
        };
        lost.iter().filter_map(cut).collect()
    }

    fn name_regions(&mut self) {
        let (of_work, of_calls) = (self.work.iter().flat_map(Work::regions), self.awaited.iter().copied());
        self.regions = of_work.chain(of_calls.flat_map(buffers)).collect();
        self.bytes = self.work.iter().map(Work::payload).sum();
    }
}

#[cfg(test)]
mod tests {
    use outboard_plan::{Element, Operator, Reduction};

    use super::*;

    fn piece(region: Region) -> MemRef {
        MemRef { region, offset: 0, len: 8 }
    }

    fn copy(from: Region, to: Region) -> Work {
        Work::Copy { from: piece(from), to: piece(to) }
    }

    #[test]
    fn gp_9_what_depends_on_an_awaited_call_waits_with_it() {
        let (one, two, three) = (CallId(1), CallId(2), CallId(3));
        let mut deferred = Deferred::default();
        deferred.await_copy(one);
        assert!(deferred.holds(Region::Input(one)) && !deferred.holds_call(one), "it has nothing left to do");
        assert!(deferred.push(copy(Region::Input(one), Region::Output(two))));
        assert!(deferred.holds(Region::Output(two)) && deferred.holds_call(two));
        assert!(!deferred.holds(Region::Input(two)) && !deferred.holds_call(three));
        assert!(deferred.reached(two).is_empty(), "nobody waits for it");
        assert_eq!(deferred.reached(one).len(), 1);
        assert!(!deferred.holds(Region::Output(two)) && !deferred.holds(Region::Input(one)));
    }

    #[test]
    fn bytes_that_die_with_their_rank_are_missed_by_all_who_were_to_have_them() {
        let (one, two, three) = (CallId(1), CallId(2), CallId(3));
        let staging = Region::Staging(StagingId(9));
        let mut deferred = Deferred::default();
        deferred.await_copy(one);
        deferred.await_copy(three);
        assert!(deferred.push(copy(Region::Input(one), staging)));
        assert!(deferred.push(copy(staging, Region::Output(two))));
        assert!(deferred.push(Work::Unstage { id: StagingId(9) }));
        assert!(deferred.push(copy(Region::Input(two), Region::Output(three))));
        assert_eq!(deferred.cut_off(one), [two]);
        assert!(!deferred.holds_call(one) && deferred.holds_call(three));
        assert!(matches!(deferred.reached(three).make_contiguous(), [Work::Unstage { .. }, Work::Copy { .. }]));
    }

    #[test]
    fn th_2_what_is_combined_with_lost_bytes_is_lost() {
        let (one, two) = (CallId(1), CallId(2));
        let (staging, reduction) =
            (Region::Staging(StagingId(9)), Reduction::new(Operator::Sum, Element::U64).expect("defined"));
        let combine = |from, into| {
            Work::Reduce(Combination { from: piece(from), into: piece(into), reduction, from_left: false })
        };
        let mut deferred = Deferred::default();
        deferred.await_copy(one);
        assert!(deferred.push(combine(Region::Input(one), staging)));
        assert!(deferred.push(combine(staging, Region::Output(two))));
        assert!(deferred.holds(staging) && deferred.holds_call(two));
        assert_eq!(deferred.cut_off(one), [two]);
        assert!(!deferred.holds_call(two));
    }

    #[test]
    fn payload_is_bounded() {
        let mut deferred = Deferred::default();
        let deliver = |bytes: usize| Work::Deliver { bytes: vec![0; bytes], to: piece(Region::Output(CallId(1))) };
        assert!(deferred.push(deliver(MOST_BYTES)));
        assert!(!deferred.push(deliver(1)));
        deferred.forget(CallId(1));
        assert!(deferred.push(deliver(1)));
    }
}
