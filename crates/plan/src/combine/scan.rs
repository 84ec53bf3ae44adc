//! Scan and Exscan: rank `r` ends with the combination of the vectors of ranks `0 ..= r`, or `0 .. r`, in their order.
//!
//! Every rank contributes `Input` and has `Output` of equal size; but for rank 0 of an Exscan, which ends with nothing and
//! has none.

use super::draft::{Draft, Part};
use super::{CombineError, ScanAlgorithm, Vector, check};
use crate::program::{Program, Rank, Span};

/// What `rank` does in a Scan among `ranks` ranks.
///
/// # Errors
/// When an argument is out of range; see [`CombineError`].
pub fn scan(algorithm: ScanAlgorithm, ranks: u32, rank: Rank, vector: Vector) -> Result<Program, CombineError> {
    prefix(Prefix::WithOwn, algorithm, ranks, rank, vector)
}

/// What `rank` does in an Exscan among `ranks` ranks.
///
/// # Errors
/// When an argument is out of range; see [`CombineError`].
pub fn exscan(algorithm: ScanAlgorithm, ranks: u32, rank: Rank, vector: Vector) -> Result<Program, CombineError> {
    prefix(Prefix::BeforeOwn, algorithm, ranks, rank, vector)
}

/// Which ranks a rank's result comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefix {
    /// Scan.
    WithOwn,
    /// Exscan.
    BeforeOwn,
}

fn prefix(
    prefix: Prefix,
    algorithm: ScanAlgorithm,
    ranks: u32,
    rank: Rank,
    vector: Vector,
) -> Result<Program, CombineError> {
    check(ranks, rank, vector)?;
    let bytes = vector.bytes();
    let nothing = prefix == Prefix::BeforeOwn && rank.0 == 0;
    let mut draft = Draft::new(rank, ranks, bytes, if nothing { 0 } else { bytes });
    match (algorithm, prefix) {
        (ScanAlgorithm::RecursiveDoubling, Prefix::WithOwn) => doubling(&mut draft, ranks, rank),
        (ScanAlgorithm::RecursiveDoubling, Prefix::BeforeOwn) => exclusive_doubling(&mut draft, ranks, rank),
        (ScanAlgorithm::Chain { pieces: 0 }, _) => return Err(CombineError::Pieces),
        (ScanAlgorithm::Chain { pieces }, _) => {
            let pieces = u64::from(pieces).min(vector.count);
            for piece in 0..pieces {
                let (offset, len) = vector.part(pieces, piece);
                chain(&mut draft, prefix, ranks, rank, piece as u32, Span::input(offset, len));
            }
        }
    }
    draft.finish()
}

/// In round `k` each rank sends what it has, that of up to `2^k` ranks up to itself, to the rank `2^k` further.
/// (Hillis, Steele: "Data parallel algorithms", 1986.)
fn doubling(draft: &mut Draft, ranks: u32, rank: Rank) {
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

/// As [`doubling`], and beside it the combination of all that was received.
fn exclusive_doubling(draft: &mut Draft, ranks: u32, rank: Rank) {
    let mut part = draft.input();
    let mut before: Option<Part> = None;
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
        // What was received is read before it becomes what is sent on.
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

/// One piece: what comes from the rank before, with the own contribution to its right, goes to the rank behind.
fn chain(draft: &mut Draft, prefix: Prefix, ranks: u32, rank: Rank, index: u32, piece: Span) {
    let own = Part::given(piece);
    let behind = further(ranks, rank, 1);
    let Some(before) = rank.0.checked_sub(1) else {
        if let Some(to) = behind {
            draft.send(to, index, &own);
        }
        if prefix == Prefix::WithOwn {
            draft.deliver(&own, piece.offset);
        }
        return;
    };
    let received = draft.recv(Rank(before), index, piece.len);
    let (result, sum) = match (prefix, behind) {
        (Prefix::WithOwn, _) => {
            let sum = draft.combine(&own, &received, false);
            (sum.clone(), sum)
        }
        (Prefix::BeforeOwn, Some(_)) => {
            let aside = draft.copy_aside(&received);
            (received, draft.combine(&own, &aside, false))
        }
        (Prefix::BeforeOwn, None) => (received.clone(), received),
    };
    if let Some(to) = behind {
        draft.send(to, index, &sum);
    }
    draft.deliver(&result, piece.offset);
}
