//! Alltoall by Bruck: blocks for the rank `j` away travel in steps of the powers of two that make up `j`.
//!
//! Slot `j` of a rank at first holds its own block for `rank + j`, and at last the block of `rank - j` for this rank.
//! In round `k` all slots with bit `k` move `2^k` ranks to the right.
//!
//! Invariants: each round has its own scratch for the slots that it packs and receives, since receives follow nothing
//! (MC-4). A slot moves at most once a round.

use super::{Blocks, copy_own};
use crate::arguments::PlanError;
use crate::builder::ProgramBuilder;
use crate::program::{OpId, Program, Rank, Span};

/// The slots with bit `round`, and their places in scratch.
#[derive(Clone, Copy)]
struct Round {
    round: u32,
    slots: u32,
    packed: u64,
    received: u64,
}

impl Round {
    /// The number of slots before `slot` that have the bit.
    fn position(self, slot: u32) -> u64 {
        let in_last = if slot >> self.round & 1 == 1 { slot & ((1 << self.round) - 1) } else { 0 };
        u64::from((slot >> (self.round + 1) << self.round) + in_last)
    }

    fn members(self, ranks: u32) -> impl Iterator<Item = u32> {
        (1..ranks).filter(move |slot| slot >> self.round & 1 == 1)
    }
}

pub(super) fn bruck(mut builder: ProgramBuilder, rank: Rank, blocks: &Blocks) -> Result<Program, PlanError> {
    let ranks = blocks.send.len() as u32;
    let bytes = blocks.send[0].len;
    if let Some(other) = blocks.send.iter().chain(&blocks.receive).find(|block| block.len != bytes) {
        return Err(PlanError::Uneven { bytes, other: other.len });
    }
    if bytes == 0 {
        return Ok(builder.build());
    }
    let rounds = rounds(ranks, bytes)?;
    let (input, output) = blocks.bytes();
    builder.buffers(input, output, rounds.last().map_or(0, |last| last.received + u64::from(last.slots) * bytes));
    let away = |steps: u32| Rank((rank.0 + steps) % ranks);
    let mut receive = |round: &Round| {
        let from = away(ranks - (1 << round.round));
        builder.recv(from, 0, Span::scratch(round.received, u64::from(round.slots) * bytes), &[])
    };
    let received: Vec<OpId> = rounds.iter().map(&mut receive).collect();
    copy_own(&mut builder, rank, blocks);
    // The span of a slot after the rounds of its bits in `bits`, and the step that received it.
    let place = |slot: u32, bits: u32| match bits.checked_ilog2() {
        None => (blocks.send[away(slot).0 as usize], None),
        Some(last) => {
            let round = rounds[last as usize];
            (Span::scratch(round.received + round.position(slot) * bytes, bytes), Some(received[last as usize]))
        }
    };
    for round in &rounds {
        let pack = |slot: u32| {
            let (from, after) = place(slot, slot & ((1 << round.round) - 1));
            (from, Span::scratch(round.packed + round.position(slot) * bytes, bytes), after)
        };
        let packed = copy(&mut builder, round.members(ranks).map(pack));
        let message = Span::scratch(round.packed, u64::from(round.slots) * bytes);
        builder.send(away(1 << round.round), 0, message, &packed);
    }
    let unpack = |slot: u32| {
        let (from, after) = place(slot, slot);
        (from, blocks.receive[away(ranks - slot).0 as usize], after)
    };
    copy(&mut builder, (1..ranks).map(unpack));
    Ok(builder.build())
}

/// Copies blocks, each after the step that received it. Blocks that follow each other and adjoin at both ends share one
/// copy.
fn copy(builder: &mut ProgramBuilder, blocks: impl Iterator<Item = (Span, Span, Option<OpId>)>) -> Vec<OpId> {
    let adjoin = |before: Span, behind: Span| before.buffer == behind.buffer && before.end() == Some(behind.offset);
    let mut joined: Vec<(Span, Span, Option<OpId>)> = Vec::new();
    for (from, to, after) in blocks {
        match joined.last_mut() {
            Some((first, last, same)) if *same == after && adjoin(*first, from) && adjoin(*last, to) => {
                first.len += from.len;
                last.len += to.len;
            }
            _ => joined.push((from, to, after)),
        }
    }
    joined.into_iter().map(|(from, to, after)| builder.copy(from, to, after.as_slice())).collect()
}

fn rounds(ranks: u32, bytes: u64) -> Result<Vec<Round>, PlanError> {
    let mut rounds = Vec::new();
    let mut end = 0u64;
    for round in 0..ranks.next_power_of_two().trailing_zeros() {
        let mut next = Round { round, slots: 0, packed: end, received: 0 };
        next.slots = next.position(ranks) as u32;
        let length = bytes.checked_mul(next.slots.into());
        let room = length.and_then(|length| Some((end.checked_add(length)?, length)));
        let placed = room.and_then(|(received, length)| Some((received, received.checked_add(length)?)));
        (next.received, end) = placed.ok_or(PlanError::Scratch)?;
        rounds.push(next);
    }
    Ok(rounds)
}
