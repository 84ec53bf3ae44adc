//! Errands: copies into buffers of this rank that a waiting thread of the rank does itself (SP-6).
//!
//! Invariants: only waiting threads begin errands. While an errand is under way, no buffer of a failed request goes
//! back to the program, since the errand may use it.

use outboard_shm::control::RankSide;
use outboard_shm::memory::CrossMemory;
use std::sync::{PoisonError, RwLock};

/// Held shared by errands under way.
#[derive(Debug, Default)]
pub(crate) struct Errands(RwLock<()>);

impl Errands {
    /// Does offered errands until `done` holds; returns the last result of `done`.
    pub(crate) fn run(&self, control: &RankSide, done: &mut impl FnMut() -> bool) -> bool {
        while !done() {
            if !control.has_copy_offers() {
                return false;
            }
            let _under_way = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let Some((place, errand)) = control.claim_copy() else { continue };
            // SAFETY: the service process offers copies into buffers of requests in flight, which the program lends
            // until the requests end. A request that succeeds ends after this report; one that fails waits for it.
            control.report(place, unsafe { CrossMemory::perform(&errand) });
        }
        true
    }

    /// Waits for errands under way, after a request has failed.
    pub(crate) fn end(&self) {
        drop(self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Stops errands for good, since the service process is gone; waits for errands under way.
    pub(crate) fn give_up(&self, control: &RankSide) {
        let _alone = self.0.write().unwrap_or_else(PoisonError::into_inner);
        control.clear_copy_offers();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_shm::control::ServiceSide;
    use outboard_shm::memory::ProbePage;
    use outboard_shm::rank_copy::{CopyOutcome, RankCopy};

    #[test]
    fn what_is_offered_is_done_until_the_request_has_ended_or_the_service_process_is_gone() {
        let service = ServiceSide::create().unwrap();
        let [region, doorbell] = service.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        let (control, errands, offers) =
            (RankSide::attach(region, doorbell).unwrap(), Errands::default(), service.rank_copies());
        let (probe, source, target) = (ProbePage::new().unwrap(), vec![7u8; 5000], vec![0u8; 5000]);
        let errand = RankCopy {
            pid: std::process::id(),
            source: source.as_ptr() as u64,
            target: target.as_ptr() as u64,
            bytes: 5000,
            mark: &raw const *probe as u64,
            nonce: probe.nonce(),
        };
        offers.table().write(0, &errand);
        offers.table().write(1, &RankCopy { nonce: [0; 16], ..errand });
        offers.table().write(2, &errand);
        offers.offer(1);
        assert!(errands.run(&control, &mut || true), "the request has ended");
        assert_eq!(offers.table().outcome(0), None);
        assert!(!errands.run(&control, &mut || false));
        assert_eq!(offers.table().outcome(0), Some(CopyOutcome::Done));
        assert!(std::hint::black_box(&target) == &source);
        offers.offer(2);
        assert!(!errands.run(&control, &mut || false));
        assert_eq!(offers.table().outcome(1), Some(CopyOutcome::Failed), "it is not the process that was meant");
        errands.end();
        offers.offer(4);
        errands.give_up(&control);
        assert!(!errands.run(&control, &mut || false));
        assert_eq!(offers.table().outcome(2), None);
    }
}
