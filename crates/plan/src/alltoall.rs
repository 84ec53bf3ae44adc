//! Alltoall and Alltoallv: every rank has a block for every rank. Gathers and scatters are the same with most blocks
//! empty.
//!
//! Counts are local to a pair here: what a rank sends to another is known on these two alone. So all plans but Bruck's,
//! whose blocks have one size, are pairwise, one message for each pair with bytes, `ranks - 1` at most; whoever
//! executes them announces messages and lets the receiving side ask for them (SP-5), or simply sends.
//!
//! Invariants: receives follow nothing (MC-4); between two ranks only message 0 goes. In step `i` rank `r` sends to
//! rank `r + i` and receives from `r - i`, or both with `r ^ i`, so that everybody sends to somebody else at the same
//! time (the scatter-destination order of GP-8).

mod bruck;

use std::collections::VecDeque;

use thiserror::Error;

use crate::algorithm::Algorithm;
use crate::arguments::PlanError;
use crate::builder::ProgramBuilder;
use crate::program::{MAX_RANKS, Op, OpId, Program, Rank, Span};

/// What one rank exchanges with each rank of the group, itself included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// By destination: bytes of `Input`.
    pub send: Vec<Span>,
    /// By source: bytes of `Output`. No two share a byte.
    pub receive: Vec<Span>,
}

/// Why there is no such exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AlltoallError {
    /// A group of 0, or of more than [`MAX_RANKS`], or without the rank.
    #[error("an alltoall of {rank} among {ranks} ranks: a group has 1 to {MAX_RANKS} ranks, which count from 0")]
    Ranks {
        /// The rank asked for.
        rank: Rank,
        /// The ranks asked for.
        ranks: u32,
    },
    /// One block for each rank is needed both ways.
    #[error("{send} blocks to send and {receive} to receive among {ranks} ranks: give one of each for every rank")]
    Count {
        /// Blocks to send.
        send: usize,
        /// Blocks to receive.
        receive: usize,
        /// Ranks of the group.
        ranks: u32,
    },
    /// What a rank sends itself is not what it receives from itself.
    #[error("{rank} sends itself {send} bytes and receives {receive} from itself: make both equal")]
    Own {
        /// The rank.
        rank: Rank,
        /// Bytes it sends itself.
        send: u64,
        /// Bytes it expects.
        receive: u64,
    },
    /// A block reaches beyond 64 bits.
    #[error("a block of {len} bytes at {offset} exceeds the address space")]
    Range {
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        len: u64,
    },
}

impl Blocks {
    /// Blocks of `bytes` each for each of `ranks`, in the order of ranks; `None` where they exceed 64 bits.
    #[must_use]
    pub fn even(ranks: u32, bytes: u64) -> Option<Blocks> {
        bytes.checked_mul(ranks.into())?;
        let spans = |span: fn(u64, u64) -> Span| (0..u64::from(ranks)).map(|at| span(at * bytes, bytes)).collect();
        Some(Blocks { send: spans(Span::input), receive: spans(Span::output) })
    }

    /// What `rank` has of a gather at `root` of blocks of `bytes` each, which lie there in the order of ranks; the
    /// root's own moves only with `own`. `None` where they exceed 64 bits.
    #[must_use]
    pub fn gather((ranks, root): (u32, Rank), rank: Rank, bytes: u64, own: bool) -> Option<Blocks> {
        let (many, one) = rooted((ranks, root), rank, bytes, own)?;
        Some(Blocks { send: spans(one, Span::input), receive: spans(many, Span::output) })
    }

    /// What `rank` has of a scatter from `root`, otherwise as [`Blocks::gather`].
    #[must_use]
    pub fn scatter((ranks, root): (u32, Rank), rank: Rank, bytes: u64, own: bool) -> Option<Blocks> {
        let (many, one) = rooted((ranks, root), rank, bytes, own)?;
        Some(Blocks { send: spans(many, Span::input), receive: spans(one, Span::output) })
    }

    /// Whether these can be what `rank` has of a gather at `root`: nobody but the root receives, and all send to it
    /// alone.
    #[must_use]
    pub fn are_gathered(&self, root: Rank, rank: Rank) -> bool {
        only_with(&self.send, root) && (rank == root || self.receive.iter().all(|span| span.is_empty()))
    }

    /// Whether these can be what `rank` has of a scatter from `root`.
    #[must_use]
    pub fn are_scattered(&self, root: Rank, rank: Rank) -> bool {
        only_with(&self.receive, root) && (rank == root || self.send.iter().all(|span| span.is_empty()))
    }

    /// Bytes of `Input` and of `Output` up to the end of the last block.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let end = |spans: &[Span]| spans.iter().filter(|s| !s.is_empty()).filter_map(Span::end).max().unwrap_or(0);
        (end(&self.send), end(&self.receive))
    }

    /// Whether `rank` of `ranks` can exchange these.
    ///
    /// # Errors
    /// What is wrong first; see [`AlltoallError`].
    pub fn check(&self, ranks: u32, rank: Rank) -> Result<(), AlltoallError> {
        let Blocks { send, receive } = self;
        if ranks == 0 || ranks > MAX_RANKS || rank.0 >= ranks {
            return Err(AlltoallError::Ranks { rank, ranks });
        }
        if send.len() != ranks as usize || receive.len() != ranks as usize {
            return Err(AlltoallError::Count { send: send.len(), receive: receive.len(), ranks });
        }
        if let Some(&Span { offset, len, .. }) = send.iter().chain(receive).find(|span| span.end().is_none()) {
            return Err(AlltoallError::Range { offset, len });
        }
        let (send, receive) = (send[rank.0 as usize].len, receive[rank.0 as usize].len);
        if send != receive {
            return Err(AlltoallError::Own { rank, send, receive });
        }
        Ok(())
    }
}

/// Offset and bytes of each block.
type Places = Vec<(u64, u64)>;

/// The blocks of all ranks, which only the root has, and the one that every rank has with the root.
fn rooted((ranks, root): (u32, Rank), rank: Rank, bytes: u64, own: bool) -> Option<(Places, Places)> {
    bytes.checked_mul(ranks.into())?;
    let moves = |other: u32| own || rank != root || other != root.0;
    let place = |at: u64, has: bool| if has { (at, bytes) } else { (0, 0) };
    let many = (0..ranks).map(|other| place(u64::from(other) * bytes, rank == root && moves(other))).collect();
    let one = (0..ranks).map(|other| place(0, other == root.0 && moves(other))).collect();
    Some((many, one))
}

fn spans(places: Places, span: fn(u64, u64) -> Span) -> Vec<Span> {
    places.into_iter().map(|(offset, len)| span(offset, len)).collect()
}

/// Whether only the block of `root` has bytes.
fn only_with(spans: &[Span], root: Rank) -> bool {
    spans.iter().zip(0..).all(|(span, other)| span.is_empty() || Rank(other) == root)
}

/// What `rank` does in an exchange of `blocks` among `ranks` ranks; there is no message where a block is empty.
///
/// # Errors
/// When the blocks cannot be, or not for this algorithm; see [`PlanError`].
///
/// # Panics
/// When the algorithm is none of an alltoall.
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

/// The same with at most `batch` messages of data on their way at a time: a send follows the one that is `batch` before it in
/// the program (GP-8).
///
/// Sends then leave in the order of the program. So there must be an order of all messages of the group that every program
/// keeps, which scatter-destination order is.
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
    // What is complete before the next round: its steps wait for earlier ones, except receives, which wait for nothing.
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
