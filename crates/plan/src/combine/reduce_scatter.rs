//! Reduce-Scatter: every rank receives its block of the combination of all ranks' vectors.
//!
//! Every rank contributes `Input`, the blocks of all ranks one after another as in [`Extents`]. `Output` is as large as
//! the rank's own block. Blocks hold whole elements.

use super::MAX_SEGMENTS;
use super::draft::{PendingSpan, ReductionDraft};
use super::hosts::HostRanks;
use super::pairing::{BACK, FORTH, Pairing, PairingRole};
use crate::algorithm::Algorithm;
use crate::allgather::Extents;
use crate::arguments::PlanError;
use crate::program::{Buffer, Program, Rank, Span};
use crate::selection::Choice;
use crate::topology::Topology;

/// Bytes of the largest element; the bytes of every other element divide it.
const LARGEST_ELEMENT: u64 = 16;

/// The program of `rank` in a Reduce-Scatter of these blocks, one for each rank of `topology`.
pub(crate) fn program(
    choice: Choice,
    topology: &Topology,
    rank: Rank,
    extents: &Extents,
) -> Result<Program, PlanError> {
    let blocks = VectorBlocks { extents, unit: LARGEST_ELEMENT };
    let mut draft = ReductionDraft::new(rank, extents.ranks(), extents.total(), blocks.of(rank.0).len);
    if choice.leaders().is_some() {
        hierarchical(&mut draft, choice.algorithm(), topology, rank, extents);
        return draft.finish();
    }
    let pieces = scattered(&mut draft, choice.algorithm(), blocks, rank);
    let (from, mut to) = (blocks.of(rank.0).offset, 0);
    for piece in pieces {
        draft.deliver_piece(&piece, from + to, to);
        to += piece.span.len;
    }
    draft.finish()
}

/// The ranks of a host send their vectors to the first rank, which combines them. The first ranks of all hosts run a
/// reduce-scatter in which a host's block is the blocks of its ranks in a row. Then the first ranks pass the blocks on
/// to their hosts.
fn hierarchical(draft: &mut ReductionDraft, between: Algorithm, topology: &Topology, rank: Rank, extents: &Extents) {
    let number = topology.host_of(rank);
    let host = HostRanks::new(topology, number, None);
    let of_hosts: Vec<Vec<Span>> = HostRanks::all(topology, None).map(|host| host.blocks(extents)).collect();
    let sizes = of_hosts.iter().map(|blocks| blocks.iter().map(|block| block.len).sum());
    let arranged = Extents::uneven(sizes).expect("as many bytes as before, and no more hosts than ranks");
    let blocks = VectorBlocks { extents: &arranged, unit: LARGEST_ELEMENT };
    let (given, first) = given(between, of_hosts, number as usize);
    let cut = BlockCut::of(between, blocks);
    let own = extents.block(rank);
    // The pieces of the host's block that hold bytes of a rank's block: number, range in the piece, offset in the
    // block.
    let passed_on = |to: Rank| {
        let before = host.ranks().take_while(|local| *local != to).map(|local| extents.block(local).len).sum::<u64>();
        let wanted = before..before + extents.block(to).len;
        let pieces = (0..cut.pieces).map(move |k| (k, cut.piece(blocks.of(number), k)));
        let start = blocks.of(number).offset;
        pieces.filter_map(move |(k, piece)| {
            let piece = piece.offset - start..piece.offset - start + piece.len;
            let shared = wanted.start.max(piece.start)..wanted.end.min(piece.end);
            let lies = |at: u64| shared.start - at;
            (shared.start < shared.end)
                .then(|| (k, lies(piece.start), Span::output(lies(wanted.start), shared.end - shared.start)))
        })
    };
    let Some(parts) = host.combined(draft, rank, &given, first) else {
        let received: Vec<(PendingSpan, u64)> =
            passed_on(rank).map(|(k, _, at)| (draft.recv(host.leader, k as u32, at.len), at.offset)).collect();
        received.iter().for_each(|(part, to)| draft.deliver_piece(part, own.offset + to, *to));
        return;
    };
    let leaders = HostRanks::all(topology, None).map(|host| host.leader).collect();
    let pieces = draft.among(leaders, parts, |draft| scattered(draft, between, blocks, Rank(number)));
    for other in &host.others {
        for (k, from, at) in passed_on(*other) {
            draft.send(*other, k as u32, &pieces[k as usize].cut(from, at.len));
        }
    }
    for (k, from, at) in passed_on(rank) {
        draft.deliver_piece(&pieces[k as usize].cut(from, at.len), own.offset + at.offset, at.offset);
    }
}

/// The spans that ranks of host `number` send to their leader, and the order of the spans. A span covers several hosts
/// if partners exchange several blocks at once. Otherwise a span covers one host, and need not wait for the other
/// spans. The leader sends the spans on in the returned order, so not all hosts begin with the same block.
fn given(between: Algorithm, of_hosts: Vec<Vec<Span>>, number: usize) -> (Vec<Span>, Vec<usize>) {
    let hosts = of_hosts.len();
    let in_turn: Vec<usize> = match between {
        Algorithm::RecursiveHalving => {
            let given = merged(of_hosts.concat());
            let first = (0..given.len()).collect();
            return (given, first);
        }
        Algorithm::Ring { .. } => (1..=hosts).map(|steps| (number + hosts - steps) % hosts).collect(),
        _ => (1..=hosts).map(|steps| (number + steps) % hosts).collect(),
    };
    let mut given: Vec<Span> = Vec::new();
    let mut numbers: Vec<std::ops::Range<usize>> = Vec::new();
    for blocks in of_hosts {
        let before = given.len();
        given.extend(merged(blocks));
        numbers.push(before..given.len());
    }
    (given, in_turn.into_iter().flat_map(|host| numbers[host].clone()).collect())
}

/// Merges adjoining spans and drops empty ones.
fn merged(spans: Vec<Span>) -> Vec<Span> {
    let mut merged: Vec<Span> = Vec::new();
    for span in spans.into_iter().filter(|span| !span.is_empty()) {
        match merged.last_mut() {
            Some(last) if last.offset + last.len == span.offset => last.len += span.len,
            _ => merged.push(span),
        }
    }
    merged
}

/// The finished pieces of the block of `rank`, one behind the other.
fn scattered(
    draft: &mut ReductionDraft,
    algorithm: Algorithm,
    blocks: VectorBlocks<'_>,
    rank: Rank,
) -> Vec<PendingSpan> {
    let ranks = blocks.ranks();
    let cut = BlockCut::of(algorithm, blocks);
    let piece = |draft: &mut ReductionDraft, k| match algorithm {
        Algorithm::Ring { .. } => {
            let of = |q| cut.piece(blocks.of(q), k);
            ring_scatter(draft, ranks, rank, k as u32 * ranks, false, of)
        }
        Algorithm::RecursiveHalving => recursive_halving(draft, blocks, rank),
        Algorithm::Pairwise { .. } => pairwise(draft, ranks, rank, k as u32, |q| cut.piece(blocks.of(q), k)),
        other => unreachable!("{other:?} is no algorithm of a reduce-scatter"),
    };
    (0..cut.pieces).map(|k| piece(draft, k)).collect()
}

/// The cut of blocks into pieces, so that one piece is combined while others are under way.
#[derive(Clone, Copy)]
pub(super) struct BlockCut {
    pub(super) pieces: u64,
    /// Bytes of each piece, except the last ones of a block.
    bytes: u64,
}

impl BlockCut {
    /// Pieces of `segment` bytes, longer if a vector would have more than [`MAX_SEGMENTS`].
    pub(super) fn new(blocks: VectorBlocks<'_>, segment: u64) -> Self {
        let longest = blocks.longest();
        let least = longest.div_ceil((MAX_SEGMENTS / u64::from(blocks.ranks())).max(1));
        let bytes = segment.max(least).checked_next_multiple_of(blocks.unit);
        let cut = |bytes| BlockCut { pieces: longest.div_ceil(bytes).max(1), bytes };
        bytes.map_or(Self::whole(blocks), cut)
    }

    /// The cut that the algorithm uses.
    fn of(algorithm: Algorithm, blocks: VectorBlocks<'_>) -> Self {
        match algorithm {
            Algorithm::Ring { segment } | Algorithm::Pairwise { segment } => BlockCut::new(blocks, segment),
            _ => BlockCut::whole(blocks),
        }
    }

    fn whole(blocks: VectorBlocks<'_>) -> Self {
        BlockCut { pieces: 1, bytes: blocks.longest() }
    }

    /// Piece `k` of a block; empty if the block has fewer pieces.
    pub(super) fn piece(self, block: Span, k: u64) -> Span {
        let start = (k * self.bytes).min(block.len);
        Span { offset: block.offset + start, len: self.bytes.min(block.len - start), ..block }
    }
}

/// The place of each rank's block in the vector.
#[derive(Clone, Copy)]
pub(super) struct VectorBlocks<'a> {
    pub(super) extents: &'a Extents,
    /// Bytes of a whole number of elements, at least 1.
    pub(super) unit: u64,
}

impl VectorBlocks<'_> {
    pub(super) fn ranks(self) -> u32 {
        self.extents.ranks()
    }

    fn longest(self) -> u64 {
        self.extents.sizes().max().unwrap_or(0)
    }

    /// The block of rank `q`, as a span of `Input`.
    pub(super) fn of(self, q: u32) -> Span {
        Span { buffer: Buffer::Input, ..self.extents.block(Rank(q)) }
    }

    /// The blocks of the ranks of places `start .. end`, as a span of `Input`.
    fn of_places(self, pairing: Pairing, start: u32, end: u32) -> Span {
        let (first, last) = (self.of(pairing.first(start)), self.of(pairing.first(end) - 1));
        Span::input(first.offset, last.offset + last.len - first.offset)
    }
}

/// Combines a piece of each block in partial results that go round a ring, and returns the finished piece of `rank`.
/// `of` returns the span of a block's piece.
///
/// The partial result of block `q` begins at rank `q + 1` and ends at rank `q`. Each rank combines its own contribution
/// to the right of the result from its left neighbour. Messages are numbered from `first` on. With `aside`, nothing is
/// sent from `Input`, because a result may arrive there.
pub(super) fn ring_scatter(
    draft: &mut ReductionDraft,
    ranks: u32,
    rank: Rank,
    first: u32,
    aside: bool,
    of: impl Fn(u32) -> Span,
) -> PendingSpan {
    let own = |draft: &ReductionDraft, steps: u32| {
        let Span { offset, len, .. } = of((rank.0 + 2 * ranks - steps) % ranks);
        draft.own(offset, len)
    };
    let (left, right) = (Rank((rank.0 + ranks - 1) % ranks), Rank((rank.0 + 1) % ranks));
    let mut part = own(draft, 1 % ranks);
    if aside && ranks > 1 && part.span.buffer == Buffer::Input {
        part = draft.copy_aside(&part);
    }
    for round in 0..ranks - 1 {
        let contribution = own(draft, round + 2);
        let received = draft.recv(left, first + round, contribution.span.len);
        draft.send(right, first + round, &part);
        part = draft.combine(&contribution, &received, false);
    }
    part
}

/// Every rank sends each other rank its piece. Contributions are combined in ring order, the rank's own contribution
/// last.
fn pairwise(draft: &mut ReductionDraft, ranks: u32, rank: Rank, index: u32, of: impl Fn(u32) -> Span) -> PendingSpan {
    let own = |draft: &ReductionDraft, q: u32| draft.own(of(q).offset, of(q).len);
    let mine = own(draft, rank.0);
    let left = |steps: u32| Rank((rank.0 + ranks - steps) % ranks);
    let received: Vec<PendingSpan> = (1..ranks).map(|steps| draft.recv(left(steps), index, mine.span.len)).collect();
    for steps in 1..ranks {
        let right = (rank.0 + steps) % ranks;
        let part = own(draft, right);
        draft.send(Rank(right), index, &part);
    }
    received.into_iter().fold(mine, |part, received| draft.combine(&part, &received, false))
}

/// Each round halves the places with which a place still shares blocks. The place sends the blocks of the other half to
/// the place at half the distance and keeps the rest. (Thakur, Rabenseifner, Gropp, 2005.)
fn recursive_halving(draft: &mut ReductionDraft, blocks: VectorBlocks<'_>, rank: Rank) -> PendingSpan {
    let pairing = Pairing::new(blocks.ranks(), None);
    let own = blocks.of(rank.0);
    let Some((place, mut part)) = pairing.enter(draft, rank) else {
        let PairingRole::Aside { other } = pairing.role(rank) else {
            unreachable!("{rank} takes part and entered nothing")
        };
        return draft.recv(other, BACK, own.len);
    };
    // The span of the vector that the part holds.
    let mut held = blocks.of_places(pairing, 0, pairing.places());
    let cut = |part: &PendingSpan, held: Span, wanted: Span| part.cut(wanted.offset - held.offset, wanted.len);
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
    if let PairingRole::Both { other, .. } = pairing.role(rank) {
        draft.send(other, BACK, &cut(&part, held, blocks.of(other.0)));
    }
    cut(&part, held, own)
}
