//! Scan and Exscan: rank `r` receives the combination of the vectors of ranks `0 ..= r`, or `0 .. r`, in rank order.
//!
//! Every rank contributes `Input` and has `Output` of equal size, except rank 0 of an Exscan: it has no result and no
//! `Output`.

use super::Vector;
use super::draft::{PendingSpan, ReductionDraft};
use crate::algorithm::Algorithm;
use crate::arguments::PlanError;
use crate::program::{Program, Rank, Span};

/// The program of `rank` in a Scan among `ranks` ranks, or in an Exscan if `exclusive`.
pub(crate) fn program(
    algorithm: Algorithm,
    exclusive: bool,
    ranks: u32,
    rank: Rank,
    vector: Vector,
) -> Result<Program, PlanError> {
    let bytes = vector.bytes();
    let mut draft = ReductionDraft::new(rank, ranks, bytes, if exclusive && rank.0 == 0 { 0 } else { bytes });
    match algorithm {
        Algorithm::RecursiveDoubling if exclusive => exclusive_doubling(&mut draft, ranks, rank),
        Algorithm::RecursiveDoubling => doubling(&mut draft, ranks, rank),
        Algorithm::Pieces { pieces } => {
            let pieces = u64::from(pieces).min(vector.count);
            for piece in 0..pieces {
                let (offset, len) = vector.part(pieces, piece);
                chain(&mut draft, exclusive, ranks, rank, piece as u32, Span::input(offset, len));
            }
        }
        other => unreachable!("{other:?} is no algorithm of a scan"),
    }
    draft.finish()
}

/// In round `k` each rank sends its partial result to the rank `2^k` further. That result combines the vectors of up to
/// `2^k` ranks, the sender's own as the last. (Hillis, Steele: "Data parallel algorithms", 1986.)
fn doubling(draft: &mut ReductionDraft, ranks: u32, rank: Rank) {
    let mut part = draft.input();
    for distance in distances(ranks) {
        if let Some(to) = further(ranks, rank, distance) {
            draft.send(to, 0, &part);
        }
        if let Some(from) = rank.0.checked_sub(distance) {
            let received = draft.recv(Rank(from), 0, part.span.len);
            part = draft.combine(&part, &received, false);
        }
    }
    draft.deliver(&part, 0);
}

/// Works like [`doubling`] and also combines the received vectors alone.
fn exclusive_doubling(draft: &mut ReductionDraft, ranks: u32, rank: Rank) {
    let mut part = draft.input();
    let mut before: Option<PendingSpan> = None;
    for distance in distances(ranks) {
        if let Some(to) = further(ranks, rank, distance) {
            draft.send(to, 0, &part);
        }
        let Some(from) = rank.0.checked_sub(distance) else { continue };
        let mut received = draft.recv(Rank(from), 0, part.span.len);
        let now = match &before {
            None => draft.copy_aside(&received),
            Some(before) => draft.combine(&received, before, true),
        };
        // The received vector is read before it becomes the next partial result.
        received.after.clone_from(&now.after);
        before = Some(now);
        if further(ranks, rank, 2 * distance).is_some() {
            part = draft.combine(&part, &received, false);
        }
    }
    if let Some(before) = before {
        draft.deliver(&before, 0);
    }
}

fn distances(ranks: u32) -> impl Iterator<Item = u32> {
    (0..ranks.next_power_of_two().ilog2()).map(|round| 1 << round)
}

fn further(ranks: u32, rank: Rank, distance: u32) -> Option<Rank> {
    Some(rank.0 + distance).filter(|to| *to < ranks).map(Rank)
}

/// Handles one piece: the piece comes from the rank before, is combined with the own piece on its right, and goes to
/// the next rank.
fn chain(draft: &mut ReductionDraft, exclusive: bool, ranks: u32, rank: Rank, index: u32, piece: Span) {
    let own = PendingSpan::given(piece);
    let behind = further(ranks, rank, 1);
    let Some(before) = rank.0.checked_sub(1) else {
        if let Some(to) = behind {
            draft.send(to, index, &own);
        }
        if !exclusive {
            draft.deliver(&own, piece.offset);
        }
        return;
    };
    let received = draft.recv(Rank(before), index, piece.len);
    let (result, sum) = match (exclusive, behind) {
        (false, _) => {
            let sum = draft.combine(&own, &received, false);
            (sum.clone(), sum)
        }
        (true, Some(_)) => {
            let aside = draft.copy_aside(&received);
            (received, draft.combine(&own, &aside, false))
        }
        (true, None) => (received.clone(), received),
    };
    if let Some(to) = behind {
        draft.send(to, index, &sum);
    }
    draft.deliver(&result, piece.offset);
}
