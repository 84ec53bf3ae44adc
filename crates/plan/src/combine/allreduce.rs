//! Allreduce: every rank ends with the combination of all ranks' vectors, equal to the bit on all ranks.
//!
//! Every rank contributes `Input` and has `Output` of equal size.

use super::Vector;
use super::draft::{PendingSpan, ReductionDraft};
use super::halving::halve;
use super::hosts::HostRanks;
use super::pairing::{BACK, FORTH, Pairing, PairingRole};
use super::reduce::binomial;
use super::reduce_scatter::{BlockCut, VectorBlocks, ring_scatter};
use crate::algorithm::Algorithm;
use crate::arguments::PlanError;
use crate::program::{Program, Rank, Span};
use crate::selection::Choice;
use crate::topology::Topology;

pub(crate) fn program(choice: Choice, topology: &Topology, rank: Rank, vector: Vector) -> Result<Program, PlanError> {
    let (ranks, bytes) = (topology.ranks(), vector.bytes());
    let mut draft = ReductionDraft::new(rank, ranks, bytes, bytes);
    match (choice.leaders(), choice.algorithm()) {
        (Some(_), between) => hierarchical(&mut draft, between, topology, rank, vector),
        (None, Algorithm::ReduceMulticast { subgroups }) => {
            draft.multicast_layout(1, subgroups);
            reduce_multicast(&mut draft, ranks, rank, bytes);
        }
        (None, Algorithm::ReduceScatterMulticast { subgroups, segment }) => {
            draft.multicast_layout(ranks, subgroups);
            let parts = vector.parts(ranks);
            let blocks = VectorBlocks { extents: &parts, unit: vector.element_bytes.max(1) };
            reduce_scatter_multicast(&mut draft, blocks, BlockCut::new(blocks, segment), rank);
        }
        (None, algorithm) => {
            by_messages(&mut draft, algorithm, ranks, rank, vector);
        }
    }
    draft.finish()
}

/// Appends the steps of all ranks, or of all leaders, without multicast. Returns the result, for the caller to pass on.
fn by_messages(
    draft: &mut ReductionDraft,
    algorithm: Algorithm,
    ranks: u32,
    rank: Rank,
    vector: Vector,
) -> PendingSpan {
    match algorithm {
        Algorithm::RecursiveDoubling => recursive_doubling(draft, ranks, rank),
        Algorithm::Ring { segment } => {
            let parts = vector.parts(ranks);
            let blocks = VectorBlocks { extents: &parts, unit: vector.element_bytes.max(1) };
            ring(draft, blocks, BlockCut::new(blocks, segment), rank)
        }
        Algorithm::Rabenseifner => rabenseifner(draft, ranks, rank, vector),
        other => unreachable!("{other:?} is no algorithm of an allreduce"),
    }
}

/// The ranks of a host send their vectors to the first rank, which combines them in rank order. The first ranks of all
/// hosts combine their vectors and pass the result on.
fn hierarchical(draft: &mut ReductionDraft, between: Algorithm, topology: &Topology, rank: Rank, vector: Vector) {
    let (hosts, number) = (topology.hosts(), topology.host_of(rank));
    let host = HostRanks::new(topology, number, None);
    let own = draft.input().span;
    let Some(parts) = host.combined(draft, rank, &[own], [0]) else {
        let received = draft.recv(host.leader, BACK, own.len);
        draft.deliver(&received, 0);
        return;
    };
    let leaders = HostRanks::all(topology, None).map(|host| host.leader).collect();
    // With one host there is no other leader to combine with.
    let between = if hosts == 1 { Algorithm::RecursiveDoubling } else { between };
    let result = draft.among(leaders, parts, |draft| by_messages(draft, between, hosts, Rank(number), vector));
    for local in &host.others {
        draft.send(*local, BACK, &result);
    }
}

/// In round `k` places at distance `2^k` exchange partial results. Both combine with the result of the lower place on
/// the left.
///
/// Like [`ring`] and [`rabenseifner`], this function returns the result for the caller to pass on. Here the result is
/// read where it was combined, so no step waits for the copy to `Output`.
fn recursive_doubling(draft: &mut ReductionDraft, ranks: u32, rank: Rank) -> PendingSpan {
    let pairing = Pairing::new(ranks, None);
    let entered = pairing.enter(draft, rank);
    let result = entered.map(|(place, mut part)| {
        for round in 0..pairing.rounds() {
            let partner = pairing.rank(place ^ 1 << round);
            let received = draft.recv(partner, FORTH, part.span.len);
            draft.send(partner, FORTH, &part);
            part = draft.combine(&part, &received, place >> round & 1 == 0);
        }
        part
    });
    if let Some(result) = &result {
        draft.deliver(result, 0);
    }
    leave(draft, pairing.role(rank), result)
}

/// The rank of a pair that took part sends the result to the rank that stood aside. Returns the result on this rank.
fn leave(draft: &mut ReductionDraft, role: PairingRole, result: Option<PendingSpan>) -> PendingSpan {
    match (role, result) {
        (PairingRole::Both { other, .. }, Some(result)) => {
            draft.send(other, BACK, &result);
            result
        }
        (PairingRole::Aside { other }, None) => {
            let received = draft.recv(other, BACK, draft.input().span.len);
            draft.deliver(&received, 0);
            received
        }
        (PairingRole::Alone { .. }, Some(result)) => result,
        (role, result) => unreachable!("{role:?} ends its rounds with {result:?}"),
    }
}

/// [`ring_scatter`], then the finished blocks go on round the same ring, each piece by itself.
fn ring(draft: &mut ReductionDraft, blocks: VectorBlocks<'_>, cut: BlockCut, rank: Rank) -> PendingSpan {
    let ranks = blocks.ranks();
    let whole = Span::output(0, draft.input().span.len);
    let (left, right) = (Rank((rank.0 + ranks - 1) % ranks), Rank((rank.0 + 1) % ranks));
    let mut after = Vec::new();
    for k in 0..cut.pieces {
        let piece = |q| cut.piece(blocks.of(q), k);
        let first = 2 * ranks * k as u32;
        let mut part = ring_scatter(draft, ranks, rank, first, true, piece);
        after.extend(draft.deliver(&part, piece(rank.0).offset).after);
        for round in 1..ranks {
            let Span { offset, len, .. } = piece((rank.0 + ranks - round) % ranks);
            // These indices follow the indices of the scatter's rounds.
            let index = first + ranks + round;
            let received = draft.recv_into(left, index, Span::output(offset, len));
            draft.send(right, index, &part);
            after.extend(received.after.iter().copied());
            part = received;
        }
    }
    PendingSpan { span: whole, after }
}

/// [`halve`], then the way back: from the last round to the first, partners exchange their finished halves.
fn rabenseifner(draft: &mut ReductionDraft, ranks: u32, rank: Rank, vector: Vector) -> PendingSpan {
    let pairing = Pairing::new(ranks, None);
    let entered = pairing.enter(draft, rank);
    let result = entered.map(|(place, part)| {
        let halves = halve(draft, vector, pairing, place, part, true);
        let bytes = |elements: u64| elements * vector.element_bytes;
        let of = |range: &std::ops::Range<u64>| Span::output(bytes(range.start), bytes(range.end - range.start));
        let kept = of(&halves.ranges[pairing.rounds() as usize]);
        let mut after = draft.deliver(&halves.part, kept.offset).after;
        // The first send need not wait until the result is delivered.
        let mut finished = halves.part.clone();
        for round in (0..pairing.rounds()).rev() {
            let partner = pairing.rank(halves.place ^ 1 << round);
            let received = draft.recv_into(partner, BACK, of(&halves.partners(round)));
            draft.send(partner, BACK, &finished);
            after.extend(received.after);
            finished = PendingSpan { span: of(&halves.ranges[round as usize]), after: after.clone() };
        }
        finished
    });
    leave(draft, pairing.role(rank), result)
}

/// [`binomial`] to rank 0, which multicasts the result.
fn reduce_multicast(draft: &mut ReductionDraft, ranks: u32, rank: Rank, bytes: u64) {
    let result = binomial(draft, ranks, Rank(0), rank, true);
    match result {
        Some(result) if ranks > 1 => draft.multicast(&result),
        Some(_) => {}
        None => draft.multicast_recv(Rank(0), Span::output(0, bytes)),
    }
}

/// [`ring_scatter`], then every rank multicasts its finished block, all at once (MC-8).
fn reduce_scatter_multicast(draft: &mut ReductionDraft, blocks: VectorBlocks<'_>, cut: BlockCut, rank: Rank) {
    let ranks = blocks.ranks();
    for root in (0..ranks).filter(|root| *root != rank.0) {
        let block = blocks.of(root);
        draft.multicast_recv(Rank(root), Span::output(block.offset, block.len));
    }
    let own = blocks.of(rank.0);
    let mut whole = PendingSpan::given(Span::output(own.offset, own.len));
    for k in 0..cut.pieces {
        let part = ring_scatter(draft, ranks, rank, k as u32 * ranks, true, |q| cut.piece(blocks.of(q), k));
        let delivered = draft.deliver(&part, cut.piece(own, k).offset);
        if cut.pieces == 1 {
            // A single piece need not wait for delivery. Several pieces must be delivered first, so that they lie one
            // behind the other.
            whole = part;
        } else {
            whole.after.extend(delivered.after);
        }
    }
    if ranks > 1 {
        draft.multicast(&whole);
    }
}
