//! Reduce: the root receives the combination of all ranks' vectors.
//!
//! Every rank contributes `Input`; only the root has `Output`.

use super::Vector;
use super::draft::{PendingSpan, ReductionDraft};
use super::halving::{Halves, halve};
use super::hosts::HostRanks;
use super::pairing::{BACK, Pairing};
use crate::algorithm::Algorithm;
use crate::arguments::PlanError;
use crate::binomial::{self, TreePosition};
use crate::program::{OpId, Program, Rank, Span};
use crate::selection::Choice;
use crate::topology::Topology;

pub(crate) fn program(
    choice: Choice,
    topology: &Topology,
    root: Rank,
    rank: Rank,
    vector: Vector,
) -> Result<Program, PlanError> {
    let (ranks, bytes) = (topology.ranks(), vector.bytes());
    let mut draft = ReductionDraft::new(rank, ranks, bytes, if rank == root { bytes } else { 0 });
    let segments = match choice.algorithm() {
        Algorithm::Chain { segment } => vector.segments(segment),
        _ => vec![draft.input().span],
    };
    let steps = |draft: &mut ReductionDraft, ranks, root, rank| match choice.algorithm() {
        Algorithm::Binomial => {
            binomial(draft, ranks, root, rank, false);
        }
        Algorithm::Halving => halving(draft, ranks, root, rank, vector),
        Algorithm::Chain { .. } => chain(draft, ranks, root, rank, &segments),
        other => unreachable!("{other:?} is no algorithm of a reduce"),
    };
    if choice.leaders().is_some() {
        hierarchical(&mut draft, topology, root, rank, &segments, steps);
    } else if choice.depends_on_hosts() {
        let (order, own) = (by_host(topology), draft.input());
        let place = |rank| Rank(order.iter().zip(0..).find(|(at, _)| **at == rank).map_or(0, |(_, place)| place));
        let (root, rank) = (place(root), place(rank));
        draft.among(order, vec![own], |draft| steps(draft, ranks, root, rank));
    } else {
        steps(&mut draft, ranks, root, rank);
    }
    draft.finish()
}

/// All ranks, grouped by host.
fn by_host(topology: &Topology) -> Vec<Rank> {
    (0..topology.hosts()).flat_map(|host| topology.ranks_of(host)).collect()
}

/// The leaders of the hosts combine the vectors of their hosts, in segments if the algorithm passes on segments. The
/// root is the leader of its host.
fn hierarchical(
    draft: &mut ReductionDraft,
    topology: &Topology,
    root: Rank,
    rank: Rank,
    segments: &[Span],
    steps: impl FnOnce(&mut ReductionDraft, u32, Rank, Rank),
) {
    let (hosts, host) = (topology.hosts(), topology.host_of(rank));
    let locals = HostRanks::new(topology, host, Some(root));
    let Some(parts) = locals.combined(draft, rank, segments, 0..segments.len()) else { return };
    let leaders = HostRanks::all(topology, Some(root)).map(|host| host.leader).collect();
    draft.among(leaders, parts, |draft| steps(draft, hosts, Rank(topology.host_of(root)), Rank(host)));
}

/// Counted from the root, rank `v` combines its own segment, on the left, with the segment from `v + 1` and sends the
/// result to `v - 1`. Contributions are combined in the order of the ranks, host by host, from the root round to the
/// rank before it.
///
/// For root 0 and ranks placed host after host, this order is MPI's canonical order. For another root, the canonical
/// order would need two arms that both end in the root's link, or one more transfer over that link: twice the time. The
/// order may differ because the operators of plans commute ([`crate::Operator`]). Operators of the program, which need
/// not commute, never run in plans.
fn chain(draft: &mut ReductionDraft, ranks: u32, root: Rank, rank: Rank, segments: &[Span]) {
    let place = TreePosition::new(ranks, root, rank);
    for (index, segment) in (0..).zip(segments) {
        let received = (place.rank + 1 < ranks).then(|| draft.recv(place.at(place.rank + 1), index, segment.len));
        let own = draft.own(segment.offset, segment.len);
        let Some(before) = place.rank.checked_sub(1) else {
            // The result is in place before anything arrives, so that the last segment is combined in place.
            let result = draft.deliver(&own, segment.offset);
            if let Some(received) = received {
                draft.combine(&received, &result, false);
            }
            continue;
        };
        let part = received.map_or(own.clone(), |received| draft.combine(&own, &received, true));
        draft.send(place.at(before), index, &part);
    }
}

/// A binomial tree. Counted from the root, rank `v` combines its own vector with the results of its children `v + 1`,
/// `v + 2`, `v + 4`, ..., in this order. Rank `v` sends the result to `v` without its lowest set bit. So contributions
/// are combined in the order of the ranks from the root round to the rank before it.
///
/// Returns the result on the root. With `aside`, nothing is sent from `Input`, because the result may arrive there.
pub(super) fn binomial(
    draft: &mut ReductionDraft,
    ranks: u32,
    root: Rank,
    rank: Rank,
    aside: bool,
) -> Option<PendingSpan> {
    let place = TreePosition::new(ranks, root, rank);
    let mut part = draft.input();
    let bytes = part.span.len;
    let received: Vec<PendingSpan> =
        binomial::children(place.rank, ranks).rev().map(|child| draft.recv(place.at(child), 0, bytes)).collect();
    let Some(parent) = binomial::parent(place.rank) else {
        let mut result = draft.deliver(&part, 0);
        for part in received {
            result = draft.combine(&part, &result, false);
        }
        return Some(result);
    };
    if aside && received.is_empty() {
        part = draft.copy_aside(&part);
    }
    for received in received {
        part = draft.combine(&part, &received, true);
    }
    draft.send(place.at(parent), 0, &part);
    None
}

/// [`halve`], then a binomial gather on the way back: of each pair the place farther from the root sends all its
/// elements.
fn halving(draft: &mut ReductionDraft, ranks: u32, root: Rank, rank: Rank, vector: Vector) {
    let pairing = Pairing::new(ranks, Some(root));
    let Some((place, part)) = pairing.enter(draft, rank) else { return };
    let halves = halve(draft, vector, pairing, place, part, rank == root);
    gather(draft, vector, pairing, halves, root);
}

fn gather(draft: &mut ReductionDraft, vector: Vector, pairing: Pairing, halves: Halves, root: Rank) {
    let differing = halves.place ^ pairing.place_of(root);
    // In the last round in which this place and the root's place differ, the partner gets all that later rounds
    // gathered.
    let gives = differing.checked_ilog2();
    let first = gives.map_or(0, |round| round + 1);
    let all = halves.ranges[first as usize].clone();
    let bytes = |elements: u64| elements * vector.element_bytes;
    let whole = if gives.is_some() && first == pairing.rounds() {
        halves.part
    } else {
        let kept = &halves.ranges[pairing.rounds() as usize];
        let len = bytes(all.end - all.start);
        let place = if gives.is_some() { draft.scratch(len) } else { Span::output(0, len) };
        let span = |range: &std::ops::Range<u64>| Span {
            offset: place.offset + bytes(range.start - all.start),
            len: bytes(range.end - range.start),
            ..place
        };
        let own = match gives {
            Some(_) => draft.copy(&halves.part, span(kept)),
            None => draft.deliver(&halves.part, bytes(kept.start)),
        };
        let mut after: Vec<OpId> = own.after;
        for round in (first..pairing.rounds()).rev() {
            let partner = pairing.rank(halves.place ^ 1 << round);
            after.extend(draft.recv_into(partner, BACK, span(&halves.partners(round))).after);
        }
        PendingSpan { span: place, after }
    };
    if let Some(round) = gives {
        draft.send(pairing.rank(halves.place ^ 1 << round), BACK, &whole);
    }
}
