//! Whoever was not let in, or was and said what cannot be: counted, and named in the log once a second at most.

use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::PeerId;

/// How often refusals are told.
const TOLD: Duration = Duration::from_secs(1);

/// Connections that were refused at one door.
#[derive(Debug, Default)]
pub struct Refusals {
    count: u64,
    told: Option<Instant>,
}

impl Refusals {
    /// One more: where from, of whom where that is known, and why.
    pub fn note(&mut self, from: &dyn Display, peer: Option<PeerId>, why: &dyn Display) {
        self.count += 1;
        if self.told.is_none_or(|told| told.elapsed() >= TOLD) {
            self.told = Some(Instant::now());
            let peer = peer.map(tracing::field::display);
            tracing::warn!(%from, peer, %why, refused = self.count, "a connection is refused");
        }
    }

    /// How many so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}
