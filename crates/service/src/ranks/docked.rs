//! Ranks of another machine that a dock attaches, with properties that the attach socket cannot report: the socket only
//! shows the dock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_shm::memory::WriteObserver;

use crate::topology::Seat;

#[derive(Debug, Clone)]
pub struct DockedRank {
    pub pid: u32,
    /// Seat of the rank on its machine (SP-1).
    pub seat: Seat,
    /// Notified of writes to the rank's memory.
    pub watch: Arc<dyn WriteObserver>,
}

/// Ranks that the dock is about to attach, by a nonce. The nonce in the greeting identifies the rank to the conductor.
#[derive(Debug, Default)]
pub struct DockedRanks(Mutex<HashMap<[u8; 16], DockedRank>>);

impl DockedRanks {
    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], DockedRank>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces that a rank will attach with this nonce in its greeting.
    pub fn expect(&self, nonce: [u8; 16], docked_rank: DockedRank) {
        self.lock().insert(nonce, docked_rank);
    }

    /// Removes and returns the rank with this nonce.
    pub fn take(&self, nonce: &[u8; 16]) -> Option<DockedRank> {
        self.lock().remove(nonce)
    }
}
