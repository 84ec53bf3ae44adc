//! A call of one rank while it runs: its steps, its part in the ready barrier, and the streams that it multicasts or
//! receives.
//!
//! | a receive | its step starts | offer | data |
//! |---|---|---|---|
//! | idle | posted | offered | - |
//! | posted | - | reading: the message is asked for | - |
//! | offered | reading | - | - |
//! | reading | - | - | done |
//!
//! A message without bytes is done where it would be asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use outboard_plan::{Op, OpId, Rank, Span, subgroup_chunks};
use outboard_proto::{Barrier, Block, Deadlines, Run};

use super::packet::Stream;
use crate::job::Post;

/// A message by the other end and its index.
pub(super) type Name = (Rank, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Posted,
    Offered,
    Reading,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Receive {
    pub(super) op: OpId,
    pub(super) span: Span,
    pub(super) state: State,
}

/// What a hardware thread does for a call: it receives one subgroup.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    pub(super) thread: u32,
    /// Streams that are not whole.
    missing: u32,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) post: Post,
    /// Calls of the job before.
    pub(super) call: u64,
    pub(super) run: Run,
    pub(super) barrier: Barrier,
    chunk_bytes: u32,
    /// Their bitmaps, and who lacks what of them.
    pub(super) blocks: BTreeMap<Stream, Block>,
    /// By subgroup.
    pub(super) workers: BTreeMap<u16, Worker>,
    /// Streams of a source that are not whole, or have not left.
    pending: BTreeMap<Rank, u32>,
    /// When which stream is to be checked for what was lost.
    pub(super) checks: Deadlines<Stream>,
    /// Streams that may have chunks for the right neighbour.
    pub(super) serving: BTreeSet<Stream>,
    /// Streams that are whole, as the right neighbour has yet to be told, and when.
    pub(super) whole: Vec<Stream>,
    pub(super) whole_at: Option<u64>,
    /// The left neighbour has yet to be told that nothing is missing here, and the right one to tell that.
    pub(super) owes_complete: bool,
    pub(super) right_lacks: bool,
    pub(super) receives: BTreeMap<Name, Receive>,
    /// Sends whose receiver has not read.
    pub(super) sends: BTreeMap<Name, OpId>,
}

impl Running {
    /// `take` gives a thread for each subgroup that something is received in.
    pub(super) fn new(post: Post, call: u64, chunk_bytes: u32, mut take: impl FnMut() -> u32) -> Self {
        let run = Run::new(post.program.clone());
        let (rank, ranks) = (post.program.rank, post.program.ranks);
        let (mut blocks, mut pending, mut workers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let roots: Vec<(Rank, u64)> = run.multicast_roots().filter(|_| ranks > 1).collect();
        for (source, bytes) in roots {
            for subgroup in 0..post.program.subgroups {
                let part = part(bytes, chunk_bytes, post.program.subgroups, subgroup);
                if part.is_empty() {
                    continue;
                }
                let own = source == rank;
                blocks.insert(Stream { source, subgroup }, Block::new(part.end - part.start, chunk_bytes, own));
                *pending.entry(source).or_insert(0) += 1;
                if !own {
                    workers.entry(subgroup).or_insert_with(|| Worker { thread: take(), missing: 0 }).missing += 1;
                }
            }
        }
        let receive = |(op, (from, index, span))| ((from, index), Receive { op, span, state: State::Idle });
        let receives = run.receives().map(receive).collect();
        Running {
            barrier: Barrier::new(rank.0, ranks),
            call,
            run,
            chunk_bytes,
            owes_complete: !blocks.is_empty(),
            right_lacks: !blocks.is_empty(),
            blocks,
            workers,
            pending,
            checks: Deadlines::default(),
            serving: BTreeSet::new(),
            whole: Vec::new(),
            whole_at: None,
            receives,
            sends: BTreeMap::new(),
            post,
        }
    }

    /// Where a run of chunks of a stream lies.
    pub(super) fn span_of(&self, stream: Stream, chunks: Range<u64>) -> Span {
        let span = if stream.source == self.post.program.rank {
            self.run.own_multicast()
        } else {
            self.run.multicast_receive(stream.source).map(|(_, span)| span)
        };
        let span = span.expect("it has streams of what is multicast alone");
        let part = part(span.len, self.chunk_bytes, self.post.program.subgroups, stream.subgroup);
        let bytes = self.blocks[&stream].byte_range(chunks);
        Span { offset: span.offset + part.start + bytes.start, len: bytes.end - bytes.start, ..span }
    }

    /// The block of a stream that is known to be one.
    pub(super) fn block(&mut self, stream: Stream) -> &mut Block {
        self.blocks.get_mut(&stream).expect("it is a stream of the call")
    }

    /// A stream is whole, or has left. When all of its source are, the step that waits for them is done.
    pub(super) fn stream_done(&mut self, stream: Stream) {
        let pending = self.pending.get_mut(&stream.source).expect("it was counted");
        *pending -= 1;
        if *pending > 0 {
            return;
        }
        let op = if stream.source == self.post.program.rank {
            let multicasts = |op: Op| matches!(op, Op::Multicast { .. });
            let at = self.post.program.steps.iter().position(|step| multicasts(step.op));
            at.map(|at| OpId(at as u32))
        } else {
            self.run.multicast_receive(stream.source).map(|(op, _)| op)
        };
        self.run.complete(op.expect("it has streams of what is multicast alone"));
    }

    /// The worker of a subgroup has all of a stream.
    pub(super) fn worker_has(&mut self, subgroup: u16) {
        self.workers.get_mut(&subgroup).expect("it receives the stream").missing -= 1;
    }

    /// Whether all workers, the last one among them, have all of their streams.
    pub(super) fn lacks_nothing(&self) -> bool {
        self.workers.values().all(|worker| worker.missing == 0)
    }

    /// Whether it has ended: all steps are done, and no neighbour needs anything of it (MC-7).
    pub(super) fn is_over(&self) -> bool {
        self.run.finished() && !self.owes_complete && !self.right_lacks
    }
}

/// The bytes of a block of `bytes` bytes that travel in a subgroup.
fn part(bytes: u64, chunk_bytes: u32, subgroups: u16, subgroup: u16) -> Range<u64> {
    let chunk_bytes = u64::from(chunk_bytes);
    let chunks = subgroup_chunks(bytes.div_ceil(chunk_bytes), subgroups, subgroup);
    (chunks.start * chunk_bytes).min(bytes)..(chunks.end * chunk_bytes).min(bytes)
}
