//! Pairing of ranks for algorithms that need a power of two of ranks, in groups of any size.
//!
//! Let `2^rounds` be the largest power of two that does not exceed the ranks, and `excess` the ranks beyond it. Among
//! the first `2 * excess` ranks, rank `2i` and rank `2i + 1` share place `i`. One of the two takes part in the rounds.
//! The other sends its contribution before the rounds and gets its share of the result afterwards. Every other rank has
//! a place of its own. Places keep the order of the ranks. (Thakur, Rabenseifner, Gropp: "Optimization of collective
//! communication operations in MPICH", 2005.)

use super::draft::{PendingSpan, ReductionDraft};
use crate::program::Rank;

/// The index of messages that carry contributions; two ranks exchange at most one each way.
pub(super) const FORTH: u32 = 0;
/// The index of messages that carry results; two ranks exchange at most one each way.
pub(super) const BACK: u32 = 1;

/// The role of a rank in its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairingRole {
    /// Takes part in the rounds, alone at its place.
    Alone { place: u32 },
    /// Takes part in the rounds, and starts with the contribution of `other` included.
    Both { place: u32, other: Rank },
    /// Stands aside: only exchanges with `other`.
    Aside { other: Rank },
}

/// The places of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pairing {
    ranks: u32,
    /// In its pair, this rank takes part in the rounds. In all other pairs the odd rank takes part.
    always: Option<Rank>,
}

impl Pairing {
    pub(super) fn new(ranks: u32, always: Option<Rank>) -> Self {
        Self { ranks, always }
    }

    /// Rounds in which each place meets each other place at most once.
    pub(super) fn rounds(self) -> u32 {
        self.ranks.ilog2()
    }

    pub(super) fn places(self) -> u32 {
        1 << self.rounds()
    }

    fn excess(self) -> u32 {
        self.ranks - self.places()
    }

    /// The first rank of a place, or the number of ranks behind the last place.
    pub(super) fn first(self, place: u32) -> u32 {
        place + place.min(self.excess())
    }

    /// The rank of a place that takes part.
    pub(super) fn rank(self, place: u32) -> Rank {
        let first = self.first(place);
        if place < self.excess() && self.always != Some(Rank(first)) { Rank(first + 1) } else { Rank(first) }
    }

    pub(super) fn place_of(self, rank: Rank) -> u32 {
        if rank.0 < 2 * self.excess() { rank.0 / 2 } else { rank.0 - self.excess() }
    }

    pub(super) fn role(self, rank: Rank) -> PairingRole {
        let place = self.place_of(rank);
        if place >= self.excess() {
            return PairingRole::Alone { place };
        }
        let takes_part = self.rank(place);
        if rank == takes_part {
            PairingRole::Both { place, other: Rank(rank.0 ^ 1) }
        } else {
            PairingRole::Aside { other: takes_part }
        }
    }

    /// The place of `rank`, and the part with which `rank` begins the rounds. If `rank` stands aside, sends its
    /// contribution and returns `None`.
    pub(super) fn enter(self, draft: &mut ReductionDraft, rank: Rank) -> Option<(u32, PendingSpan)> {
        let own = draft.input();
        match self.role(rank) {
            PairingRole::Alone { place } => Some((place, own)),
            PairingRole::Both { place, other } => {
                let received = draft.recv(other, FORTH, own.span.len);
                Some((place, draft.combine(&own, &received, rank < other)))
            }
            PairingRole::Aside { other } => {
                draft.send(other, FORTH, &own);
                None
            }
        }
    }
}
