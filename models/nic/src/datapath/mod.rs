//! The receive engine of the multicast paper on a datapath accelerator (MC-15; MC Sec. V-B).
//!
//! A host posts the programs of a plan that multicasts. A sender cuts its block into chunks (MC-1) and posts them in
//! batches, each in the subgroup of its part of the block (MC-10). At a receiver, each subgroup of a call has a bitmap
//! of its own (MC-3) and a hardware thread, which several calls may share (MC-13). The first completion activates the
//! thread. The thread sets the bit of each chunk, copies the chunk from staging unless the chunk was written in place
//! (MC-2, MC-12), and posts the receive again. The last worker whose streams are complete notifies the host, once the
//! ring agrees.
//!
//! | a call of a rank | event | next |
//! |---|---|---|
//! | queued | all calls before it have ended | entering the ready barrier (MC-4) |
//! | entering | all ranks have entered | running |
//! | running | all steps are done, and neither neighbour in the ring needs this rank (MC-7) | ended |
//! | any | a node of the job is dead | failed |
//!
//! Bitmaps, cutoff, repair, barrier and steps are shared with the service process
//! ([`Block`](outboard_proto::models::Block));
//! here the ring consists of ranks. Messages that a plan does not multicast use the reliable transport: the sender
//! offers a message, and the receiver reads it when its step has started. The lossless link paces senders.
//!
//! Invariants: threads, receives and calls are bounded by [`DatapathSettings`]; chunks to be sent wait as bits until
//! the driver polls. Never holds payload.

mod accelerator;
mod call;
mod costs;
mod packet;
mod progress;
mod ring;
mod saturated;
mod settings;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outboard_plan::{Op, OpId, Program, Rank};
use thiserror::Error;

use crate::engine::{JobFailure, NicEngine, NodeId, Output, Port};
pub use crate::job::ProgramPost;
use crate::job::{self, JobError, JobMembers, JobMembership};
use accelerator::Accelerator;
use call::DatapathCall;
pub use costs::{CompletionCycles, DatapathCosts};
pub use packet::{ChunkRanges, ChunkStream, DatapathContent, DatapathPacket, ReliableMessage};
pub use saturated::{ReceiveLoad, saturated_rate};
pub use settings::{DatapathSettings, Transport};

/// The reason why an accelerator rejects a job, or a call of a job.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DatapathError {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(
        "{rank} {step} ({op}): datapath accelerators move data and combine none; choose an algorithm that only moves"
    )]
    Combines { rank: Rank, step: OpId, op: Op },
    #[error("{rank} {step} ({op}): datapath accelerators receive multicast, of which this has none; choose multicast")]
    Unicast { rank: Rank, step: OpId, op: Op },
    #[error(
        "{rank} needs bitmaps of {needed} bytes, of which {most} fit the accelerator's cache: move less at once, or in \
         larger chunks"
    )]
    Bitmaps { rank: Rank, needed: u64, most: u64 },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DatapathCounters {
    pub not_ready: u64,
    /// Bytes that were sent to the right neighbour because it lacked them.
    pub repaired: u64,
}

/// A member, by job and port.
type MemberKey = (u8, u16);

#[derive(Debug)]
struct DatapathMember {
    membership: JobMembership,
    /// Nodes that receive the multicasts of this member.
    nodes: Vec<NodeId>,
    queue: VecDeque<ProgramPost>,
    running: Option<DatapathCall>,
    /// Number of calls that have begun.
    begun: u64,
    /// Ranks that have entered the ready barrier of the next call already, with their rounds.
    early: BTreeSet<(Rank, u8)>,
}

impl DatapathMember {
    /// Number of calls that are posted and have not ended.
    fn calls(&self) -> usize {
        self.queue.len() + usize::from(self.running.is_some())
    }
}

/// An arrived chunk, the content of a completion.
#[derive(Debug, Clone, Copy)]
struct ArrivedChunk {
    key: MemberKey,
    call: u64,
    stream: ChunkStream,
    psn: u32,
}

#[derive(Debug)]
pub struct DatapathEngine {
    node: NodeId,
    settings: DatapathSettings,
    members: JobMembers<DatapathMember>,
    accelerator: Accelerator<ArrivedChunk>,
    outputs: VecDeque<Output<DatapathPacket>>,
    /// Members that may have chunks or repairs to send.
    sending: VecDeque<MemberKey>,
    now: u64,
    counters: DatapathCounters,
}

impl DatapathSettings {
    /// Checks that an accelerator can carry out the program of a rank.
    ///
    /// # Errors
    /// The step that the accelerator cannot carry out, or the size that does not fit.
    pub fn admit(&self, program: &Program) -> Result<(), DatapathError> {
        let rank = program.rank;
        let first = |is: fn(&Op) -> bool| {
            let at = program.steps.iter().position(|step| is(&step.op))?;
            Some((OpId(at as u32), program.steps[at].op))
        };
        if let Some((step, op)) = first(|op| matches!(op, Op::Reduce { .. })) {
            return Err(DatapathError::Combines { rank, step, op });
        }
        let multicasts = first(|op| matches!(op, Op::Multicast { .. } | Op::MulticastRecv { .. })).is_some();
        let sends = first(|op| matches!(op, Op::Send { .. } | Op::Recv { .. }));
        if let Some((step, op)) = sends.filter(|_| !multicasts) {
            return Err(DatapathError::Unicast { rank, step, op });
        }
        let chunks = program.steps.iter().map(|step| match step.op {
            Op::Multicast { span } | Op::MulticastRecv { span, .. } => span.len.div_ceil(self.chunk_bytes().into()),
            Op::Send { .. } | Op::Recv { .. } | Op::Copy { .. } | Op::Reduce { .. } => 0,
        });
        let (needed, most) = (chunks.fold(0, u64::saturating_add).div_ceil(8), self.bitmap_bytes);
        if needed > most { Err(DatapathError::Bitmaps { rank, needed, most }) } else { Ok(()) }
    }
}

impl DatapathEngine {
    /// An accelerator without jobs.
    ///
    /// # Panics
    /// When it would have no thread, receive or chunk, or more threads than the hardware.
    pub fn new(node: NodeId, settings: DatapathSettings) -> Self {
        assert!(settings.chunk_bytes() > 0 && settings.batch > 0, "chunks have bytes, and batches chunks");
        DatapathEngine {
            node,
            accelerator: Accelerator::new(&settings),
            settings,
            members: BTreeMap::new(),
            outputs: VecDeque::new(),
            sending: VecDeque::new(),
            now: 0,
            counters: DatapathCounters::default(),
        }
    }

    /// Makes `port` a member of a job with these members, by rank.
    pub fn open(&mut self, job: u8, port: Port, members: Vec<(NodeId, Port)>) {
        let membership = JobMembership::new((self.node, port), members);
        let (nodes, queue, early) = (membership.other_nodes(), VecDeque::new(), BTreeSet::new());
        job::insert_member(
            &mut self.members,
            job,
            port,
            DatapathMember { membership, nodes, queue, running: None, begun: 0, early },
        );
    }

    pub fn counters(&self) -> DatapathCounters {
        self.counters
    }

    /// Whether nothing is in flight, and no thread has work.
    pub fn is_idle(&self) -> bool {
        self.outputs.is_empty()
            && self.sending.is_empty()
            && self.accelerator.is_idle()
            && self.members.values().all(|member| member.calls() == 0 && member.early.is_empty())
    }

    /// Fails a job on a port: its calls end, and their resources become free.
    fn fail(&mut self, key: MemberKey, failure: JobFailure) {
        let member = self.members.get_mut(&key).expect("it is open");
        member.membership.failed = Some(failure);
        let calls = member.calls();
        (member.queue, member.early) = Default::default();
        if let Some(running) = member.running.take() {
            running.workers.values().for_each(|worker| self.accelerator.release_queue(worker.thread));
        }
        self.outputs.extend((0..calls).map(|_| Output::completed(key, Err(failure))));
    }
}

impl NicEngine for DatapathEngine {
    type Post = ProgramPost;
    type Error = DatapathError;
    type Packet = DatapathPacket;

    fn post(&mut self, now: u64, port: Port, post: &ProgramPost) -> Result<(), DatapathError> {
        self.now = now;
        let (job, key) = (post.job, (post.job, port.0));
        let member = self.members.get_mut(&key).expect("the job is open");
        member.membership.admit(job, post.program.rank, member.calls(), self.settings.calls)?;
        assert_eq!(post.program.ranks, member.membership.ranks(), "a program is of the job's group");
        self.settings.admit(&post.program)?;
        member.queue.push_back(post.clone());
        self.advance(key);
        Ok(())
    }

    /// Reliable messages from one rank to another stay in order.
    fn flow(packet: &DatapathPacket) -> Option<u64> {
        let DatapathContent::Reliable { to, .. } = packet.content else { return None };
        Some(u64::from(packet.job) << 32 | u64::from(packet.from.0 & 0xffff) << 16 | u64::from(to.0 & 0xffff))
    }

    fn handle_packet(&mut self, now: u64, from: NodeId, packet: DatapathPacket) {
        self.now = now;
        match packet.content {
            DatapathContent::Chunk { subgroup, psn, bytes } => self.handle_chunk(from, &packet, subgroup, (psn, bytes)),
            DatapathContent::Reliable { to, message } => {
                self.handle_message(from, (packet.job, packet.call, packet.from), to, message)
            }
        }
    }

    fn handle_dead(&mut self, now: u64, node: NodeId) {
        self.now = now;
        let involves = self.members.iter().filter(|(_, member)| member.membership.involves(node));
        let failed: Vec<MemberKey> = involves.map(|(key, _)| *key).collect();
        failed.into_iter().for_each(|key| self.fail(key, JobFailure::Dead { node }));
    }

    fn handle_timeout(&mut self, now: u64) {
        self.now = now;
        while let Some((_, done)) = self.accelerator.pop_finished(now) {
            self.handle_finished(&done);
        }
        let running: Vec<MemberKey> = self.members.keys().copied().collect();
        running.into_iter().for_each(|key| self.handle_due(key));
    }

    fn poll_timeout(&self) -> Option<u64> {
        let of_member = |member: &DatapathMember| {
            let running = member.running.as_ref()?;
            running.checks.first().map(|at| at.0).into_iter().chain(running.report_at).min()
        };
        self.members.values().filter_map(of_member).chain(self.accelerator.next()).min()
    }

    fn poll(&mut self) -> Option<Output<DatapathPacket>> {
        while self.outputs.is_empty() && self.send_next() {}
        self.outputs.pop_front()
    }
}
