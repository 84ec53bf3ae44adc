//! Ranks of another machine, as a dock attaches them: who they are beyond what the socket tells of the dock itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_shm::memory::Watch;

use crate::topology::Seat;

#[derive(Debug, Clone)]
pub struct DockedRank {
    pub pid: u32,
    /// Where it runs (SP-1).
    pub seat: Seat,
    /// Who hears of writes to its memory.
    pub watch: Arc<dyn Watch>,
}

/// Ranks that the dock is about to attach, by the nonce in their greeting: how the conductor tells them from others.
#[derive(Debug, Default)]
pub struct DockedRanks(Mutex<HashMap<[u8; 16], DockedRank>>);

impl DockedRanks {
    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], DockedRank>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank will come with this nonce.
    pub fn expect(&self, nonce: [u8; 16], docked_rank: DockedRank) {
        self.lock().insert(nonce, docked_rank);
    }

    /// The rank that has come with this nonce, once.
    pub fn take(&self, nonce: &[u8; 16]) -> Option<DockedRank> {
        self.lock().remove(nonce)
    }
}
