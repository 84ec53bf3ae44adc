//! A running call of one rank: its steps, its part in the ready barrier, and the streams that it multicasts or
//! receives.
//!
//! | a receive | its step starts | offer | data |
//! |---|---|---|---|
//! | idle | posted | offered | - |
//! | posted | - | reading: the message is requested | - |
//! | offered | reading | - | - |
//! | reading | - | - | done |
//!
//! A message without bytes is done when it would be requested.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use outboard_plan::{Op, OpId, Rank, Span, subgroup_chunks};
use outboard_proto::models::{Barrier, Block, Deadlines, ProgramRun};

use super::packet::ChunkStream;
use crate::job::ProgramPost;

/// The name of a message: the other end and the index.
pub(super) type MessageId = (Rank, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiveState {
    Idle,
    Posted,
    Offered,
    Reading,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Receive {
    pub(super) op: OpId,
    pub(super) span: Span,
    pub(super) state: ReceiveState,
}

/// The work of a hardware thread for a call: it receives one subgroup.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubgroupWorker {
    pub(super) thread: u32,
    /// Number of incomplete streams.
    missing: u32,
}

#[derive(Debug)]
pub(super) struct DatapathCall {
    pub(super) post: ProgramPost,
    /// Number of calls of the job before this one.
    pub(super) call: u64,
    pub(super) run: ProgramRun,
    pub(super) barrier: Barrier,
    chunk_bytes: u32,
    /// Block of each stream: its bitmap, and the chunks that peers lack.
    pub(super) blocks: BTreeMap<ChunkStream, Block>,
    /// Workers, by subgroup.
    pub(super) workers: BTreeMap<u16, SubgroupWorker>,
    /// Number of streams of each source that are incomplete or not sent yet.
    pending: BTreeMap<Rank, u32>,
    /// Times at which to check streams for lost chunks.
    pub(super) checks: Deadlines<ChunkStream>,
    /// Streams that may have chunks for the right neighbour.
    pub(super) serving: BTreeSet<ChunkStream>,
    /// Complete streams that were not reported to the right neighbour yet, and the time of the report.
    pub(super) complete_streams: Vec<ChunkStream>,
    pub(super) report_at: Option<u64>,
    /// Whether this rank has yet to report completion to the left neighbour; whether the right neighbour has yet to
    /// report completion to this rank.
    pub(super) completion_unsent: bool,
    pub(super) right_lacks: bool,
    pub(super) receives: BTreeMap<MessageId, Receive>,
    /// Sends that the receiver has not read.
    pub(super) sends: BTreeMap<MessageId, OpId>,
}

impl DatapathCall {
    /// Creates the state of a call; `assign_thread` returns the thread of each subgroup in which the rank receives.
    pub(super) fn new(post: ProgramPost, call: u64, chunk_bytes: u32, mut assign_thread: impl FnMut() -> u32) -> Self {
        let run = ProgramRun::new(post.program.clone());
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
                blocks.insert(ChunkStream { source, subgroup }, Block::new(part.end - part.start, chunk_bytes, own));
                *pending.entry(source).or_insert(0) += 1;
                if !own {
                    workers
                        .entry(subgroup)
                        .or_insert_with(|| SubgroupWorker { thread: assign_thread(), missing: 0 })
                        .missing += 1;
                }
            }
        }
        let receive = |(op, (from, index, span))| ((from, index), Receive { op, span, state: ReceiveState::Idle });
        let receives = run.receives().map(receive).collect();
        DatapathCall {
            barrier: Barrier::new(rank.0, ranks),
            call,
            run,
            chunk_bytes,
            completion_unsent: !blocks.is_empty(),
            right_lacks: !blocks.is_empty(),
            blocks,
            workers,
            pending,
            checks: Deadlines::default(),
            serving: BTreeSet::new(),
            complete_streams: Vec::new(),
            report_at: None,
            receives,
            sends: BTreeMap::new(),
            post,
        }
    }

    /// The span of a run of chunks of a stream.
    pub(super) fn span_of(&self, stream: ChunkStream, chunks: Range<u64>) -> Span {
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

    /// The block of a stream, which must exist.
    pub(super) fn block(&mut self, stream: ChunkStream) -> &mut Block {
        self.blocks.get_mut(&stream).expect("it is a stream of the call")
    }

    /// Counts a stream as complete or sent. When all streams of a source are, the step that awaits the streams is done.
    pub(super) fn finish_stream(&mut self, stream: ChunkStream) {
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

    /// Counts a stream as complete for the worker of a subgroup.
    pub(super) fn complete_for_worker(&mut self, subgroup: u16) {
        self.workers.get_mut(&subgroup).expect("it receives the stream").missing -= 1;
    }

    /// Whether all streams of all workers are complete.
    pub(super) fn has_all_streams(&self) -> bool {
        self.workers.values().all(|worker| worker.missing == 0)
    }

    /// Whether the call has ended: all steps are done, and no neighbour needs anything from this rank (MC-7).
    pub(super) fn has_ended(&self) -> bool {
        self.run.finished() && !self.completion_unsent && !self.right_lacks
    }
}

/// The byte range of a block of `bytes` bytes that travels in a subgroup.
fn part(bytes: u64, chunk_bytes: u32, subgroups: u16, subgroup: u16) -> Range<u64> {
    let chunk_bytes = u64::from(chunk_bytes);
    let chunks = subgroup_chunks(bytes.div_ceil(chunk_bytes), subgroups, subgroup);
    (chunks.start * chunk_bytes).min(bytes)..(chunks.end * chunk_bytes).min(bytes)
}
