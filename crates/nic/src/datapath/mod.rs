//! The receive engine of the multicast paper on a datapath accelerator (MC-15; MC Sec. V-B).
//!
//! A host posts the programs of a plan that multicasts. Who multicasts cuts its block into chunks (MC-1) and posts them
//! batch by batch, each in the subgroup of its part of the block (MC-10). At a receiver each subgroup of a call has a
//! hardware thread, which one of several calls may share (MC-13), and a bitmap of its own (MC-3). The first completion
//! activates the thread; it sets the bit of each chunk, copies the chunk from staging to its place or finds it written
//! there (MC-2, MC-12), and posts the receive again. The last worker that has all of its streams tells the host, once
//! the ring agrees.
//!
//! | a call of a rank | event | next |
//! |---|---|---|
//! | queued | those before have ended | entering the ready barrier (MC-4) |
//! | entering | all ranks have entered | running |
//! | running | all steps are done, and neither neighbour in the ring needs it (MC-7) | ended |
//! | any | a node that it needs is dead | failed |
//!
//! Bitmaps, cutoff and repair are those of the service process ([`Block`](outboard_proto::Block)), as are barrier and
//! steps; the ring is one of ranks here. What a plan does not multicast goes by the reliable transport: offered by the
//! sender, read by the receiver when its step has started. The lossless link paces senders.
//!
//! Invariants: threads, receives and calls are bounded by [`Settings`]; what is to be sent waits as bits until the
//! driver polls. Never holds payload.

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

use crate::engine::{Engine, Failure, Node, Output, Port};
pub use crate::job::Post;
use crate::job::{self, JobError, Members, Membership};
use accelerator::Accelerator;
use call::Running;
pub use costs::{Costs, Work};
pub use packet::{Content, Message, Packet, Ranges, Stream};
pub use saturated::{Load, saturated};
pub use settings::{Settings, Transport};

/// Why an accelerator does not take a job, or a call of one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
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
pub struct Counters {
    pub not_ready: u64,
    /// Bytes that the right neighbour was given because it lacked them.
    pub repaired: u64,
}

/// A member, by job and port.
type Key = (u8, u16);

#[derive(Debug)]
struct Member {
    membership: Membership,
    /// Nodes that what it multicasts goes to.
    nodes: Vec<Node>,
    queue: VecDeque<Post>,
    running: Option<Running>,
    /// Calls that have begun.
    begun: u64,
    /// Who has entered which round of the ready barrier of the next call.
    early: BTreeSet<(Rank, u8)>,
}

impl Member {
    /// Calls that are posted and have not ended.
    fn calls(&self) -> usize {
        self.queue.len() + usize::from(self.running.is_some())
    }
}

/// A chunk that has arrived, as a thread works on it.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    key: Key,
    call: u64,
    stream: Stream,
    psn: u32,
}

#[derive(Debug)]
pub struct Datapath {
    node: Node,
    settings: Settings,
    members: Members<Member>,
    accelerator: Accelerator<Arrival>,
    outputs: VecDeque<Output<Packet>>,
    /// Members that may have chunks or repairs to send.
    sending: VecDeque<Key>,
    now: u64,
    counters: Counters,
}

impl Settings {
    /// Whether an accelerator takes the program of a rank.
    ///
    /// # Errors
    /// The step that it does not carry out, or what does not fit.
    pub fn admit(&self, program: &Program) -> Result<(), Refusal> {
        let rank = program.rank;
        let first = |is: fn(&Op) -> bool| {
            let at = program.steps.iter().position(|step| is(&step.op))?;
            Some((OpId(at as u32), program.steps[at].op))
        };
        if let Some((step, op)) = first(|op| matches!(op, Op::Reduce { .. })) {
            return Err(Refusal::Combines { rank, step, op });
        }
        let multicasts = first(|op| matches!(op, Op::Multicast { .. } | Op::MulticastRecv { .. })).is_some();
        let sends = first(|op| matches!(op, Op::Send { .. } | Op::Recv { .. }));
        if let Some((step, op)) = sends.filter(|_| !multicasts) {
            return Err(Refusal::Unicast { rank, step, op });
        }
        let chunks = program.steps.iter().map(|step| match step.op {
            Op::Multicast { span } | Op::MulticastRecv { span, .. } => span.len.div_ceil(self.chunk_bytes().into()),
            Op::Send { .. } | Op::Recv { .. } | Op::Copy { .. } | Op::Reduce { .. } => 0,
        });
        let (needed, most) = (chunks.fold(0, u64::saturating_add).div_ceil(8), self.bitmap_bytes);
        if needed > most { Err(Refusal::Bitmaps { rank, needed, most }) } else { Ok(()) }
    }
}

impl Datapath {
    /// An accelerator without jobs.
    ///
    /// # Panics
    /// When it has no thread, receive or chunk, or more threads than there are.
    pub fn new(node: Node, settings: Settings) -> Self {
        assert!(settings.chunk_bytes() > 0 && settings.batch > 0, "chunks have bytes, and batches chunks");
        Datapath {
            node,
            accelerator: Accelerator::new(&settings),
            settings,
            members: BTreeMap::new(),
            outputs: VecDeque::new(),
            sending: VecDeque::new(),
            now: 0,
            counters: Counters::default(),
        }
    }

    /// Makes `port` a member of a job, whose members are these, by rank.
    pub fn open(&mut self, job: u8, port: Port, members: Vec<(Node, Port)>) {
        let membership = Membership::new((self.node, port), members);
        let (nodes, queue, early) = (membership.other_nodes(), VecDeque::new(), BTreeSet::new());
        job::enter(&mut self.members, job, port, Member { membership, nodes, queue, running: None, begun: 0, early });
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether nothing is in flight, and no thread has anything to do.
    pub fn is_idle(&self) -> bool {
        self.outputs.is_empty()
            && self.sending.is_empty()
            && self.accelerator.is_idle()
            && self.members.values().all(|member| member.calls() == 0 && member.early.is_empty())
    }

    /// A job is over on a port: its calls end, and what they had is free.
    fn fail(&mut self, key: Key, failure: Failure) {
        let member = self.members.get_mut(&key).expect("it is open");
        member.membership.failed = Some(failure);
        let calls = member.calls();
        (member.queue, member.early) = Default::default();
        if let Some(running) = member.running.take() {
            running.workers.values().for_each(|worker| self.accelerator.give_back(worker.thread));
        }
        self.outputs.extend((0..calls).map(|_| Output::completed(key, Err(failure))));
    }
}

impl Engine for Datapath {
    type Post = Post;
    type Refusal = Refusal;
    type Packet = Packet;

    fn post(&mut self, now: u64, port: Port, post: &Post) -> Result<(), Refusal> {
        self.now = now;
        let (job, key) = (post.job, (post.job, port.0));
        let member = self.members.get_mut(&key).expect("the job is open");
        member.membership.admit(job, post.program.rank, member.calls(), self.settings.calls)?;
        assert_eq!(post.program.ranks, member.membership.ranks(), "a program is of the job's group");
        self.settings.admit(&post.program)?;
        member.queue.push_back(post.clone());
        self.go_on(key);
        Ok(())
    }

    /// What one rank says to another keeps its order.
    fn flow(packet: &Packet) -> Option<u64> {
        let Content::Reliable { to, .. } = packet.content else { return None };
        Some(u64::from(packet.job) << 32 | u64::from(packet.from.0 & 0xffff) << 16 | u64::from(to.0 & 0xffff))
    }

    fn handle_packet(&mut self, now: u64, from: Node, packet: Packet) {
        self.now = now;
        match packet.content {
            Content::Chunk { subgroup, psn, bytes } => self.take_chunk(from, &packet, subgroup, (psn, bytes)),
            Content::Reliable { to, message } => self.hear(from, (packet.job, packet.call, packet.from), to, message),
        }
    }

    fn handle_dead(&mut self, now: u64, node: Node) {
        self.now = now;
        let needs = self.members.iter().filter(|(_, member)| member.membership.needs(node));
        let failed: Vec<Key> = needs.map(|(key, _)| *key).collect();
        failed.into_iter().for_each(|key| self.fail(key, Failure::Dead { node }));
    }

    fn handle_timeout(&mut self, now: u64) {
        self.now = now;
        while let Some((_, done)) = self.accelerator.pop_done(now) {
            self.take_done(&done);
        }
        let running: Vec<Key> = self.members.keys().copied().collect();
        running.into_iter().for_each(|key| self.mind_time(key));
    }

    fn poll_timeout(&self) -> Option<u64> {
        let of_member = |member: &Member| {
            let running = member.running.as_ref()?;
            running.checks.first().map(|at| at.0).into_iter().chain(running.whole_at).min()
        };
        self.members.values().filter_map(of_member).chain(self.accelerator.next()).min()
    }

    fn poll(&mut self) -> Option<Output<Packet>> {
        while self.outputs.is_empty() && self.send_more() {}
        self.outputs.pop_front()
    }
}
