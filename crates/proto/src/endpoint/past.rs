//! Peers without a group: those of the past, and strangers that were heard.
//!
//! The last of each kind are remembered, since jobs follow one another on the same hosts; of strangers apart, so that
//! whoever comes under many names displaces nobody whom we have met. A member of a group that we have left may still
//! watch us; as long as it does it is heard, and not forgotten. Invariant: a peer is noted here while nothing of it
//! is needed and nothing is on its way. Never forgets by itself.

use std::collections::BTreeMap;

use crate::ids::SpId;

/// Strangers that are remembered in any case: forgotten between two of its frames, one could not ask for a group.
const FEWEST_STRANGERS: usize = 16;

/// Why a peer may be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Past {
    /// We were in a group with it, or had something to tell it: its address is known.
    Met,
    /// It has spoken to us, and could not be answered.
    Stranger,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PastPeers {
    /// By when they became what they are.
    met: BTreeMap<u64, SpId>,
    strangers: BTreeMap<u64, SpId>,
    noted: BTreeMap<SpId, (u64, Past)>,
    count: u64,
}

impl PastPeers {
    /// A peer has become one that may be forgotten, or is one no more.
    pub(super) fn note(&mut self, peer: SpId, past: Option<Past>) {
        if let Some((since, before)) = self.noted.remove(&peer) {
            self.of(before).remove(&since);
        }
        if let Some(past) = past {
            self.count += 1;
            let since = self.count;
            self.of(past).insert(since, peer);
            self.noted.insert(peer, (since, past));
        }
    }

    /// The oldest of those that we have met and of the strangers, where there are more than `most`.
    pub(super) fn excess(&self, most: usize) -> [Option<SpId>; 2] {
        [(&self.met, most), (&self.strangers, most.max(FEWEST_STRANGERS))]
            .map(|(kind, most)| kind.first_key_value().filter(|_| kind.len() > most).map(|(_, one)| *one))
    }

    fn of(&mut self, past: Past) -> &mut BTreeMap<u64, SpId> {
        match past {
            Past::Met => &mut self.met,
            Past::Stranger => &mut self.strangers,
        }
    }
}
