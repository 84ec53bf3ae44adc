//! Flat algorithms whose messages carry several blocks: neighbour exchange, Standard Exchange, Bruck with and without
//! rotation.
//!
//! Invariants: blocks go straight to their place in `Output`; only the rotated Bruck goes through scratch. A message
//! holds adjoining blocks and is left out if they are all empty. Two ranks exchange one message a round at most, or two
//! if the blocks wrap round the last rank.

use super::GatheredBlocks;
use crate::builder::ProgramBuilder;
use crate::partition::{multiples, powers};
use crate::program::{OpId, Rank, Span};

/// In round 0 a pair of ranks shares its blocks. From then on a rank exchanges pairs of blocks with its left and its
/// right neighbour in turns. `blocks.ranks` is even.
pub(super) fn neighbour(builder: &mut ProgramBuilder, blocks: GatheredBlocks<'_>) {
    let (ranks, rank) = (blocks.ranks, blocks.rank);
    let (pairs, even) = (ranks / 2, rank.is_multiple_of(2));
    let pair = |pair: u32| blocks.run(2 * pair, 2);
    // Even ranks exchange with the right neighbour in even rounds, odd ranks in odd rounds.
    let partner = |round: u32| {
        let right = even == round.is_multiple_of(2);
        Rank(if right { (rank + 1) % ranks } else { blocks.left(1) })
    };
    // The pair that arrives from a side lies `ceil(round / 2)` pairs away on that side.
    let arriving = |round: u32| {
        let away = round.div_ceil(2);
        let right = even == round.is_multiple_of(2);
        if right { (rank / 2 + away) % pairs } else { (rank / 2 + pairs - away) % pairs }
    };
    let mut receive = |round: u32| {
        let span = if round == 0 { blocks.of(rank ^ 1) } else { pair(arriving(round)) };
        (!span.is_empty()).then(|| builder.recv(partner(round), round, span, &[]))
    };
    let received: Vec<Option<OpId>> = (0..pairs).map(&mut receive).collect();
    let own = blocks.copy_own(builder);
    for round in 0..pairs {
        let arrived = |round: u32| received[round as usize];
        let (span, after) = match round {
            0 => (blocks.contribution(), [None, None]),
            1 => (pair(rank / 2), [own, arrived(0)]),
            _ => (pair(arriving(round - 1)), [arrived(round - 1), None]),
        };
        if !span.is_empty() {
            let after: Vec<OpId> = after.into_iter().flatten().collect();
            builder.send(partner(round), round, span, &after);
        }
    }
}

/// In round `j` a rank sends all its blocks to the ranks that differ from it only in digit `j` to the base `ports + 1`.
/// `blocks.ranks` is a power of that base.
pub(super) fn standard(builder: &mut ProgramBuilder, blocks: GatheredBlocks<'_>, ports: u32) {
    let (ranks, rank) = (blocks.ranks, blocks.rank);
    // In groups of more than one rank the base is at most the ranks.
    let base = ports.saturating_add(1);
    let rounds: Vec<u32> = powers(base.into(), ranks.into()).map(|held| held as u32).collect();
    // The rank that differs from this rank only in the digit of weight `held`, by `steps` modulo the base.
    let partner = |held: u32, steps: u32| {
        let digit = rank / held % base;
        rank - digit * held + (digit + steps) % base * held
    };
    let holding = |rank: u32, held: u32| blocks.run(rank / held * held, held);
    let mut received: Vec<Vec<OpId>> = Vec::new();
    for (round, &held) in (0..).zip(&rounds) {
        let senders = (1..=ports).map(|steps| partner(held, base - steps));
        let messages = senders.map(|from| (Rank(from), holding(from, held))).filter(|(_, span)| !span.is_empty());
        received.push(messages.map(|(from, span)| builder.recv(from, round, span, &[])).collect());
    }
    let mut after: Vec<OpId> = blocks.copy_own(builder).into_iter().collect();
    for (round, &held) in (0..).zip(&rounds) {
        let first = round == 0;
        let span = if first { blocks.contribution() } else { holding(rank, held) };
        for to in (1..=ports).map(|steps| Rank(partner(held, steps))).filter(|_| !span.is_empty()) {
            builder.send(to, round, span, if first { &[] } else { &after });
        }
        after.append(&mut received[round as usize]);
    }
}

/// A message of Bruck's algorithm to the rank `distance` to the left. The message holds `count` blocks round the group,
/// from the sender's own block on.
struct Shift {
    distance: u32,
    count: u32,
}

/// In round `j` a rank sends to each rank `i * (ports + 1)^j` to its left the blocks that the receiver misses. The
/// message begins with the sender's own block.
pub(super) fn bruck(builder: &mut ProgramBuilder, blocks: GatheredBlocks<'_>, ports: u32) {
    let shifts = shifts(blocks.ranks, ports);
    let mut received: Vec<(u32, OpId)> = Vec::new();
    for &Shift { distance, count } in &shifts {
        let from = blocks.right(distance);
        for (index, span) in blocks.round(from, count) {
            received.push((distance, builder.recv(Rank(from), index, span, &[])));
        }
    }
    let own = blocks.copy_own(builder);
    for &Shift { distance, count } in &shifts {
        let to = Rank(blocks.left(distance));
        if count == 1 {
            // The message holds only this rank's own block, which may not be in its place yet.
            if !blocks.contribution().is_empty() {
                builder.send(to, 0, blocks.contribution(), &[]);
            }
            continue;
        }
        let arrived = received.iter().filter(|(distance, _)| *distance < count).map(|(_, id)| *id);
        let after: Vec<OpId> = own.into_iter().chain(arrived).collect();
        for (index, span) in blocks.round(blocks.rank, count) {
            builder.send(to, index, span, &after);
        }
    }
}

/// Bruck's algorithm with all blocks in scratch until the last has arrived, one behind the other from the rank's own
/// on.
pub(super) fn rotated_bruck(builder: &mut ProgramBuilder, blocks: GatheredBlocks<'_>, ports: u32) {
    let (ranks, rank) = (blocks.ranks, blocks.rank);
    // The offset in scratch of the block `steps` to the right; the last entry is the end of all blocks.
    let ends = (0..ranks).scan(0, |end, steps| {
        *end += blocks.of(blocks.right(steps)).len;
        Some(*end)
    });
    let starts: Vec<u64> = std::iter::once(0).chain(ends).collect();
    let run = |from: u32, count: u32| {
        let (start, end) = (starts[from as usize], starts[(from + count) as usize]);
        Span::scratch(start, end - start)
    };
    builder.buffers(blocks.input_bytes(), blocks.extents.total(), if ranks > 1 { starts[ranks as usize] } else { 0 });
    let shifts = shifts(ranks, ports);
    let mut received: Vec<(&Shift, OpId)> = Vec::new();
    for shift in &shifts {
        let span = run(shift.distance, shift.count);
        if !span.is_empty() {
            received.push((shift, builder.recv(Rank(blocks.right(shift.distance)), 0, span, &[])));
        }
    }
    // The receives that write into the `count` blocks from block `from` on.
    let into = |from: u32, count: u32| {
        let meets = move |shift: &Shift| shift.distance < from + count && from < shift.distance + shift.count;
        received.iter().filter(move |(shift, _)| meets(shift)).map(|(_, id)| *id)
    };
    blocks.copy_own(builder);
    let passes_on = shifts.iter().any(|shift| shift.count > 1) && !blocks.contribution().is_empty();
    let own = passes_on.then(|| builder.copy(blocks.contribution(), run(0, 1), &[]));
    for &Shift { distance, count } in &shifts {
        let (span, after): (Span, Vec<OpId>) = match count {
            1 => (blocks.contribution(), Vec::new()),
            _ => (run(0, count), own.into_iter().chain(into(0, count)).collect()),
        };
        if !span.is_empty() {
            builder.send(Rank(blocks.left(distance)), 0, span, &after);
        }
    }
    // The blocks up to the last rank, then the blocks from rank 0 on; this rank's own block is in its place.
    let before_end = ranks - rank;
    for (from, count, first) in [(1, before_end - 1, rank + 1), (before_end, rank, 0)] {
        if count > 0 && !run(from, count).is_empty() {
            builder.copy(run(from, count), blocks.run(first, count), &into(from, count).collect::<Vec<_>>());
        }
    }
}

/// The messages that each rank sends, round by round.
fn shifts(ranks: u32, ports: u32) -> Vec<Shift> {
    let of_round = |held| {
        let shift = move |distance| Shift { distance, count: (held as u32).min(ranks - distance) };
        multiples(held, ports, ranks).map(shift)
    };
    powers(u64::from(ports) + 1, ranks.into()).flat_map(of_round).collect()
}

impl GatheredBlocks<'_> {
    /// The span of `count` adjoining blocks from block `first` on. The blocks must not extend beyond the last block.
    pub(super) fn run(self, first: u32, count: u32) -> Span {
        let (first, last) = (self.of(first), self.of(first + count - 1));
        Span::output(first.offset, last.offset + last.len - first.offset)
    }

    /// `count` blocks from block `first` on, round the group: the non-empty runs, each with its number.
    fn round(self, first: u32, count: u32) -> impl Iterator<Item = (u32, Span)> {
        let before_end = count.min(self.ranks - first);
        let wrapped = (count > before_end).then(|| self.run(0, count - before_end));
        let runs = [Some(self.run(first, before_end)), wrapped];
        (0..).zip(runs).filter_map(|(index, run)| Some((index, run?))).filter(|(_, run)| !run.is_empty())
    }
}
