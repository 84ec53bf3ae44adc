//! The copy agent: a waiting thread of this rank copies into buffers of the rank by itself (SP-6).
//!
//! Invariants: only waiting threads begin copies. While a copy is under way, no buffer of a failed request goes
//! back to the program, since the copy may use it.

use outboard_shm::control::RankSide;
use outboard_shm::memory::CrossMemory;
use std::sync::{PoisonError, RwLock};

/// Copies under way hold this lock shared.
#[derive(Debug, Default)]
pub(crate) struct CopyAgent(RwLock<()>);

impl CopyAgent {
    /// Makes offered copies until `done` holds; returns the last result of `done`.
    pub(crate) fn run_until(&self, control: &RankSide, done: &mut impl FnMut() -> bool) -> bool {
        while !done() {
            if !control.has_copy_offers() {
                return false;
            }
            let _under_way = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let Some((place, errand)) = control.claim_copy() else { continue };
            // SAFETY: the service process offers copies into buffers of requests in flight, which the program lends
            // until the requests end. A request that succeeds ends after this report; a failed one waits for the copy.
            control.report(place, unsafe { CrossMemory::perform(&errand) });
        }
        true
    }

    /// Waits for copies under way, after a request has failed.
    pub(crate) fn wait_for_copies(&self) {
        drop(self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Refuses further copies, since the service process is gone; waits for copies under way.
    pub(crate) fn shut_down(&self, control: &RankSide) {
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
    fn offered_copies_run_until_request_ends_or_service_is_lost() {
        let service = ServiceSide::create().unwrap();
        let [region, doorbell] = service.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        let (control, errands, offers) =
            (RankSide::attach(region, doorbell).unwrap(), CopyAgent::default(), service.rank_copies());
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
        assert!(errands.run_until(&control, &mut || true), "the request has ended");
        assert_eq!(offers.table().outcome(0), None);
        assert!(!errands.run_until(&control, &mut || false));
        assert_eq!(offers.table().outcome(0), Some(CopyOutcome::Done));
        assert!(std::hint::black_box(&target) == &source);
        offers.offer(2);
        assert!(!errands.run_until(&control, &mut || false));
        assert_eq!(offers.table().outcome(1), Some(CopyOutcome::Failed), "it is not the process that was meant");
        errands.wait_for_copies();
        offers.offer(4);
        errands.shut_down(&control);
        assert!(!errands.run_until(&control, &mut || false));
        assert_eq!(offers.table().outcome(2), None);
    }
}
