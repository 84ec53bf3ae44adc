//! Reduce-Scatter: every rank ends with its block of the combination of all ranks' vectors.
//!
//! Every rank contributes `Input`, the blocks of all ranks one after another as [`Extents`] says: all of one size, or each
//! of its own; `Output` is as large as the rank's own block. Blocks hold whole elements.

use super::draft::{Draft, Part};
use super::pairing::{BACK, FORTH, Pairing, Role};
use super::{CombineError, ReduceScatterAlgorithm, Vector, check};
use crate::allgather::Extents;
use crate::program::{Buffer, Program, Rank, Span};
use crate::verify::{Combination, Contributors, ReductionContract};

/// What `rank` does in a Reduce-Scatter of these blocks.
///
/// # Errors
/// When an argument is out of range; see [`CombineError`].
pub fn reduce_scatter(
    algorithm: ReduceScatterAlgorithm,
    rank: Rank,
    extents: &Extents,
) -> Result<Program, CombineError> {
    check(extents.ranks(), rank, Vector { count: extents.total(), element_bytes: 1 })?;
    let blocks = Blocks::Extents(extents);
    let mut draft = Draft::new(rank, extents.ranks(), extents.total(), blocks.of(rank.0).len);
    match algorithm {
        ReduceScatterAlgorithm::Ring => {
            let part = ring_scatter(&mut draft, blocks, rank, false);
            draft.deliver_block(&part, blocks.of(rank.0).offset);
        }
        ReduceScatterAlgorithm::RecursiveHalving => recursive_halving(&mut draft, blocks, rank),
        ReduceScatterAlgorithm::Pairwise => pairwise(&mut draft, blocks, rank),
    }
    draft.finish()
}

/// What a Reduce-Scatter promises to `rank`, for [`crate::verify_reduction()`].
///
/// # Panics
/// When there is no such rank.
pub fn contract(
    algorithm: ReduceScatterAlgorithm,
    rank: Rank,
    extents: &Extents,
    element_bytes: u64,
) -> ReductionContract {
    let ranks = extents.ranks();
    let block = extents.block(rank);
    let of = match algorithm {
        ReduceScatterAlgorithm::Ring | ReduceScatterAlgorithm::Pairwise => {
            Contributors::Round { first: Rank((rank.0 + 1) % ranks), count: ranks }
        }
        ReduceScatterAlgorithm::RecursiveHalving => Contributors::Listed(reversed_bits(ranks).into()),
    };
    ReductionContract {
        element_bytes,
        input_bytes: extents.total(),
        output_bytes: block.len,
        after: vec![Combination { span: Span::output(0, block.len), from: block.offset, of }],
    }
}

/// The ranks of the places in the order of their numbers read backwards in binary, in which distances that halve
/// combine.
fn reversed_bits(ranks: u32) -> Vec<Rank> {
    let pairing = Pairing::new(ranks, None);
    let place = |i: u32| i.reverse_bits().checked_shr(u32::BITS - pairing.rounds()).unwrap_or(0);
    let at = |place: u32| pairing.first(place)..pairing.first(place + 1);
    (0..pairing.places()).flat_map(|i| at(place(i))).map(Rank).collect()
}

/// Where the block of each rank lies in the vector.
#[derive(Clone, Copy)]
pub(super) enum Blocks<'a> {
    /// The caller says so.
    Extents(&'a Extents),
    /// As many parts of a vector as there are ranks, as equal as can be.
    Parts { ranks: u32, vector: Vector },
}

impl Blocks<'_> {
    pub(super) fn ranks(self) -> u32 {
        match self {
            Blocks::Extents(extents) => extents.ranks(),
            Blocks::Parts { ranks, .. } => ranks,
        }
    }

    /// The block of rank `q`, as a span of `Input`.
    pub(super) fn of(self, q: u32) -> Span {
        match self {
            Blocks::Extents(extents) => {
                let Span { offset, len, .. } = extents.block(Rank(q));
                Span::input(offset, len)
            }
            Blocks::Parts { ranks, vector } => {
                let (offset, len) = vector.part(ranks.into(), q.into());
                Span::input(offset, len)
            }
        }
    }

    /// The blocks of the ranks of places `start .. end`, as a span of `Input`.
    fn of_places(self, pairing: Pairing, start: u32, end: u32) -> Span {
        let (first, last) = (self.of(pairing.first(start)), self.of(pairing.first(end) - 1));
        Span::input(first.offset, last.offset + last.len - first.offset)
    }
}

/// The block of `rank`, finished, from partial results that go round a ring.
///
/// The partial result of block `q` begins at rank `q + 1`; each rank puts its own contribution to the right of what
/// comes from its left neighbour, and rank `q` is the last. With `aside`, nothing is sent from `Input`, because a result
/// may arrive there.
pub(super) fn ring_scatter(draft: &mut Draft, blocks: Blocks<'_>, rank: Rank, aside: bool) -> Part {
    let ranks = blocks.ranks();
    let input = draft.input();
    let own = |steps: u32| {
        let Span { offset, len, .. } = blocks.of((rank.0 + 2 * ranks - steps) % ranks);
        input.cut(offset, len)
    };
    let (left, right) = (Rank((rank.0 + ranks - 1) % ranks), Rank((rank.0 + 1) % ranks));
    let mut part = own(1 % ranks);
    if aside && ranks > 1 && part.span.buffer == Buffer::Input {
        part = draft.copy_aside(&part);
    }
    for round in 0..ranks - 1 {
        let contribution = own(round + 2);
        let received = draft.recv(left, round, contribution.span.len);
        draft.send(right, round, &part);
        part = draft.combine(&contribution, &received, false);
    }
    part
}

/// Every rank sends each other rank its block; contributions are combined from the right neighbour's round to the own.
fn pairwise(draft: &mut Draft, blocks: Blocks<'_>, rank: Rank) {
    let ranks = blocks.ranks();
    let own = Part::given(blocks.of(rank.0));
    let offset = own.span.offset;
    let left = |steps: u32| Rank((rank.0 + ranks - steps) % ranks);
    let received: Vec<Part> = (1..ranks).map(|steps| draft.recv(left(steps), 0, own.span.len)).collect();
    for steps in 1..ranks {
        let right = (rank.0 + steps) % ranks;
        draft.send(Rank(right), 0, &Part::given(blocks.of(right)));
    }
    let part = received.into_iter().fold(own, |part, received| draft.combine(&part, &received, false));
    draft.deliver_block(&part, offset);
}

/// In each round the places that a place still shares blocks with are halved: it gives the blocks of the other half to
/// the place at half the distance and keeps those of its own half. (Thakur, Rabenseifner, Gropp, 2005.)
fn recursive_halving(draft: &mut Draft, blocks: Blocks<'_>, rank: Rank) {
    let pairing = Pairing::new(blocks.ranks(), None);
    let own = blocks.of(rank.0);
    let Some((place, mut part)) = pairing.enter(draft, rank) else {
        let Role::Aside { other } = pairing.role(rank) else { unreachable!("{rank} takes part and entered nothing") };
        let received = draft.recv(other, BACK, own.len);
        draft.deliver_block(&received, own.offset);
        return;
    };
    // What the part holds, by where it lies in the vector.
    let mut held = draft.input().span;
    let cut = |part: &Part, held: Span, wanted: Span| part.cut(wanted.offset - held.offset, wanted.len);
    let (mut start, mut end) = (0, pairing.places());
    while end - start > 1 {
        let half = (end - start) / 2;
        let lower = place < start + half;
        let (kept, given) = if lower {
            ((start, start + half), (start + half, end))
        } else {
            ((start + half, end), (start, start + half))
        };
        let partner = pairing.rank(if lower { place + half } else { place - half });
        let [kept_span, given_span] = [kept, given].map(|(start, end)| blocks.of_places(pairing, start, end));
        let received = draft.recv(partner, FORTH, kept_span.len);
        draft.send(partner, FORTH, &cut(&part, held, given_span));
        part = draft.combine(&cut(&part, held, kept_span), &received, lower);
        ((start, end), held) = (kept, kept_span);
    }
    if let Role::Both { other, .. } = pairing.role(rank) {
        draft.send(other, BACK, &cut(&part, held, blocks.of(other.0)));
    }
    draft.deliver_block(&cut(&part, held, own), own.offset);
}
