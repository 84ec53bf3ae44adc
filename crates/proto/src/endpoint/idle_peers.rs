//! Peers without a group.
//!
//! The last such peers are remembered, since jobs follow one another on the same hosts. A member of a group that we
//! have left may still watch us; its frames keep this member from being forgotten. Invariant: a peer is noted here
//! while nothing needs the peer and nothing is on its way to the peer. Never forgets by itself.

use std::collections::BTreeMap;

use crate::ids::SpId;

#[derive(Debug, Default)]
pub(super) struct IdlePeers {
    /// Peers in the order in which they lost their last group.
    all: BTreeMap<u64, SpId>,
    since: BTreeMap<SpId, u64>,
    count: u64,
}

impl IdlePeers {
    /// Notes whether a peer is without a group.
    pub(super) fn note(&mut self, peer: SpId, is_idle: bool) {
        if let Some(since) = self.since.remove(&peer) {
            self.all.remove(&since);
        }
        if is_idle {
            self.count += 1;
            self.all.insert(self.count, peer);
            self.since.insert(peer, self.count);
        }
    }

    /// The oldest peer, if there are more than `most`.
    pub(super) fn excess(&self, most: usize) -> Option<SpId> {
        self.all.first_key_value().filter(|_| self.all.len() > most).map(|(_, oldest)| *oldest)
    }
}
