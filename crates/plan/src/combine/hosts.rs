//! Steps among the ranks of a host before and after a reduction among hosts (CD-2, SP-7).
//!
//! The leader of each host combines the vectors of the host's ranks: its own vector first, the others in rank order. So
//! one vector per host crosses the network.

use super::draft::{PendingSpan, ReductionDraft};
use crate::allgather::Extents;
use crate::program::{Buffer, Rank, Span};
use crate::topology::Topology;

pub(super) struct HostRanks {
    pub(super) leader: Rank,
    /// Ranks of the host without the leader, ascending.
    pub(super) others: Vec<Rank>,
}

impl HostRanks {
    /// Host number `host`. The lowest rank of the host leads. Rank `always` leads instead if it lies on the host.
    pub(super) fn new(topology: &Topology, host: u32, always: Option<Rank>) -> HostRanks {
        let mut others = topology.ranks_of(host);
        let led = always.and_then(|rank| others.iter().position(|local| *local == rank)).unwrap_or(0);
        HostRanks { leader: others.remove(led), others }
    }

    /// All hosts, in the order of their numbers.
    pub(super) fn all(topology: &Topology, always: Option<Rank>) -> impl Iterator<Item = HostRanks> {
        (0..topology.hosts()).map(move |host| HostRanks::new(topology, host, always))
    }

    /// The ranks, in the order in which the leader combines.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        std::iter::once(self.leader).chain(self.others.iter().copied())
    }

    /// The blocks of the host's ranks, in the order of `ranks`.
    pub(super) fn blocks(&self, extents: &Extents) -> Vec<Span> {
        self.ranks().map(|rank| Span { buffer: Buffer::Input, ..extents.block(rank) }).collect()
    }

    /// Combines `pieces` of `Input` of all ranks of the host on the leader, one behind the other. The other ranks send
    /// their pieces in the order of the numbers `first` and get `None`.
    pub(super) fn combined(
        &self,
        draft: &mut ReductionDraft,
        rank: Rank,
        pieces: &[Span],
        first: impl IntoIterator<Item = usize>,
    ) -> Option<Vec<PendingSpan>> {
        if rank != self.leader {
            first.into_iter().for_each(|i| draft.send(self.leader, i as u32, &PendingSpan::given(pieces[i])));
            return None;
        }
        let bytes = pieces.iter().map(|piece| piece.len).sum();
        let mut parts: Vec<PendingSpan> = pieces.iter().copied().map(PendingSpan::given).collect();
        let adjoin = |pair: &[Span]| pair[0].offset + pair[0].len == pair[1].offset;
        if self.others.is_empty() && !pieces.windows(2).all(adjoin) {
            let mut place = draft.scratch(bytes);
            for part in &mut parts {
                *part = draft.copy(part, Span { len: part.span.len, ..place });
                place.offset += part.span.len;
            }
        }
        for other in &self.others {
            let mut place = draft.scratch(bytes);
            for ((index, piece), part) in (0..).zip(pieces).zip(&mut parts) {
                let received = draft.recv_into(*other, index, Span { len: piece.len, ..place });
                place.offset += piece.len;
                // The last combined vector stays in its place, so that no step combines into `Input`.
                *part = draft.combine(part, &received, true);
            }
        }
        Some(parts)
    }
}
