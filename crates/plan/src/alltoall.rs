//! Alltoall and Alltoallv: every rank has a block for every rank. A linear gather or scatter is an alltoall with most
//! blocks empty.
//!
//! Only the two ranks of a pair know the bytes that they exchange. So all plans but Bruck's, whose blocks have one
//! size, are pairwise: one message for each pair with bytes, `ranks - 1` at most. The engine announces messages and
//! lets the receiving side request them (SP-5), or simply sends.
//!
//! Invariants: receives follow nothing (MC-4); two ranks exchange only message 0. In step `i` rank `r` sends to rank
//! `r + i` and receives from `r - i`, or both with `r ^ i`. So all ranks send to different ranks at the same time (the
//! scatter-destination order of GP-8).

mod bruck;

use std::collections::VecDeque;

pub use outboard_call::{Blocks, BlocksError};

use crate::algorithm::Algorithm;
use crate::arguments::PlanError;
use crate::builder::ProgramBuilder;
use crate::program::{Op, OpId, Program, Rank};

/// The program of `rank` in an exchange of `blocks` among `ranks` ranks; an empty block needs no message.
pub fn alltoall(algorithm: Algorithm, ranks: u32, rank: Rank, blocks: &Blocks) -> Result<Program, PlanError> {
    blocks.check(ranks, rank)?;
    let mut builder = ProgramBuilder::new(rank, ranks);
    let (input, output) = blocks.bytes();
    builder.buffers(input, output, 0);
    Ok(match algorithm {
        Algorithm::Pull => pull(builder, rank, blocks),
        Algorithm::Pairwise { .. } => pairwise(builder, rank, blocks),
        Algorithm::ScatterDestination { batch } => in_batches(pull(builder, rank, blocks), batch),
        Algorithm::Bruck { .. } => bruck::bruck(builder, rank, blocks)?,
        other => unreachable!("{other:?} is no algorithm of an alltoall"),
    })
}

fn copy_own(builder: &mut ProgramBuilder, rank: Rank, blocks: &Blocks) {
    let own = rank.0 as usize;
    if !blocks.send[own].is_empty() {
        builder.copy(blocks.send[own], blocks.receive[own], &[]);
    }
}

fn pull(mut builder: ProgramBuilder, rank: Rank, blocks: &Blocks) -> Program {
    let ranks = blocks.send.len() as u32;
    for from in (1..ranks).map(|i| (rank.0 + ranks - i) % ranks) {
        let span = blocks.receive[from as usize];
        if !span.is_empty() {
            builder.recv(Rank(from), 0, span, &[]);
        }
    }
    for to in (1..ranks).map(|i| (rank.0 + i) % ranks) {
        let span = blocks.send[to as usize];
        if !span.is_empty() {
            builder.send(Rank(to), 0, span, &[]);
        }
    }
    copy_own(&mut builder, rank, blocks);
    builder.build()
}

/// Limits `program` to `batch` sends of data under way at a time: a send follows the send that is `batch` sends before
/// it in the program (GP-8).
///
/// Sends then leave in the order of the program. So all programs must keep one common order of the group's messages;
/// scatter-destination order is one.
fn in_batches(mut program: Program, batch: u32) -> Program {
    let batch = batch.max(1) as usize;
    let mut on_their_way: VecDeque<OpId> = VecDeque::new();
    for (id, step) in (0..).map(OpId).zip(&mut program.steps) {
        if !matches!(step.op, Op::Send { .. }) {
            continue;
        }
        if on_their_way.len() == batch {
            let earlier = on_their_way.pop_front().expect("a batch is not empty");
            if !step.after.contains(&earlier) {
                step.after.push(earlier);
            }
        }
        on_their_way.push_back(id);
    }
    program
}

fn pairwise(mut builder: ProgramBuilder, rank: Rank, blocks: &Blocks) -> Program {
    let ranks = blocks.send.len() as u32;
    let partners = |round: u32| match ranks.is_power_of_two() {
        true => (rank.0 ^ round, rank.0 ^ round),
        false => ((rank.0 + round) % ranks, (rank.0 + ranks - round) % ranks),
    };
    let mut receive = |round| {
        let (_, from) = partners(round);
        let span = blocks.receive[from as usize];
        (!span.is_empty()).then(|| builder.recv(Rank(from), 0, span, &[]))
    };
    let received: Vec<Option<OpId>> = (1..ranks).map(&mut receive).collect();
    copy_own(&mut builder, rank, blocks);
    // The steps so far. Steps of the next round wait for them, except receives, which wait for nothing.
    let mut before: Vec<OpId> = Vec::new();
    for (round, received) in (1..ranks).zip(received) {
        let (to, _) = partners(round);
        let span = blocks.send[to as usize];
        if !span.is_empty() {
            before = vec![builder.send(Rank(to), 0, span, &before)];
        }
        before.extend(received);
    }
    builder.build()
}
