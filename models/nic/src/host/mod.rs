//! Processes that progress plans themselves, without offload to the NIC: the baseline for triggered NICs (CD Sec. II
//! and VI-B).
//!
//! A process progresses its call when it tests the call, at a fixed interval. With a progress thread it does so
//! whenever something has arrived. In between only the NIC works, as any NIC does. The NIC puts a small message into a
//! staging buffer and a large message where the process has specified.
//!
//! | a message | sender | receiver |
//! |---|---|---|
//! | small | sends it; done when the receiver acknowledges it | copies it from staging, acknowledges it |
//! | small without room in staging, large | offers it; sends it when cleared | clears it when the receive is posted |
//! | within a host | points to it; done when the receiver acknowledges it | copies it, acknowledges it |
//!
//! A step waits for earlier steps, is started, and then completes. A call ends with its last step, and then the next
//! call begins.
//!
//! Invariants: staging and calls are bounded by [`HostSettings`]; a message that finds no staging waits at its source.
//! A call's resources are free again when it has ended or failed. Never holds payload.

mod member;
mod progress;

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::Rank;

use crate::engine::{JobFailure, NicEngine, NodeId, Output, Port};
pub use crate::job::ProgramPost;
use crate::job::{self, JobError, JobMembers, JobMembership};
use crate::registered::RegisteredMemory;
use member::HostMember;

/// The times at which processes progress their calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProgressMode {
    /// Processes test their calls at a fixed interval.
    Tests {
        /// Nanoseconds from one test to the next.
        every: u64,
    },
    /// A thread progresses calls whenever something has arrived.
    Thread,
}

/// Resources of a host; all hosts of a network have equal settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSettings {
    /// When processes progress their calls (tests every 1,000 ns, ours).
    pub progress: ProgressMode,
    /// Messages of at least this many bytes are offered, smaller ones are sent at once (16 KB, from CD-5).
    pub eager_bytes: u64,
    /// Bytes of the staging buffers of a host (16 MiB, ours).
    pub staging_bytes: u64,
    /// Most unfinished calls of one port and job (64, ours).
    pub calls: usize,
}

impl Default for HostSettings {
    fn default() -> Self {
        HostSettings {
            progress: ProgressMode::Tests { every: 1_000 },
            eager_bytes: 16 << 10,
            staging_bytes: 16 << 20,
            calls: 64,
        }
    }
}

/// The name of a message within its job; the receiver uses the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostMessageName {
    /// Number of calls of the job before this one.
    pub call: u64,
    pub from: Rank,
    pub to: Rank,
    pub index: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostPacket {
    pub job: u8,
    pub port: Port,
    pub name: HostMessageName,
    pub content: HostContent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostContent {
    /// The message itself, with its number of bytes; its receive may not be posted yet.
    Message(u64),
    /// The sender has the message.
    Offer,
    /// The receiver has taken the message.
    Acknowledged,
    /// The receiver is ready for the message.
    Clear,
    /// The message itself, with its number of bytes, for its final place.
    Data(u64),
}

/// A member, by job and port.
type MemberKey = (u8, u16);

#[derive(Debug)]
pub struct HostEngine {
    node: NodeId,
    settings: HostSettings,
    members: JobMembers<HostMember>,
    staging: RegisteredMemory,
    /// Time of the next test, while there are calls to test.
    next_test: Option<u64>,
    outputs: VecDeque<Output<HostPacket>>,
}

impl HostEngine {
    /// A host without jobs.
    pub fn new(node: NodeId, settings: HostSettings) -> Self {
        let staging = RegisteredMemory::new(settings.staging_bytes);
        HostEngine { node, settings, members: BTreeMap::new(), staging, next_test: None, outputs: VecDeque::new() }
    }

    /// Makes `port` a member of a job with these members, by rank.
    pub fn open(&mut self, job: u8, port: Port, members: Vec<(NodeId, Port)>) {
        let membership = JobMembership::new((self.node, port), members);
        job::insert_member(&mut self.members, job, port, HostMember::new(membership));
    }

    /// Whether nothing is in flight, and all staging is free.
    pub fn is_idle(&self) -> bool {
        self.outputs.is_empty()
            && self.staging.left() == self.settings.staging_bytes
            && self.members.values().all(HostMember::is_idle)
    }

    /// Schedules the next test while any process has a call.
    fn schedule_test(&mut self, now: u64) {
        let ProgressMode::Tests { every } = self.settings.progress else { return };
        let calls = self.members.values().any(|member| member.running.is_some());
        self.next_test = calls.then(|| self.next_test.unwrap_or(now + every));
    }
}

impl NicEngine for HostEngine {
    type Post = ProgramPost;
    type Error = JobError;
    type Packet = HostPacket;

    fn post(&mut self, now: u64, port: Port, post: &ProgramPost) -> Result<(), JobError> {
        let (job, key) = (post.job, (post.job, port.0));
        let member = self.members.get_mut(&key).expect("the job is open");
        member.membership.admit(job, post.program.rank, member.calls(), self.settings.calls)?;
        member.queue.push_back(post.clone());
        self.test(key);
        self.drain_inboxes();
        self.schedule_test(now);
        Ok(())
    }

    fn handle_packet(&mut self, now: u64, from: NodeId, packet: HostPacket) {
        let key = (packet.job, packet.port.0);
        let peer = match packet.content {
            HostContent::Message(_) | HostContent::Offer | HostContent::Data(_) => packet.name.from,
            HostContent::Acknowledged | HostContent::Clear => packet.name.to,
        };
        if self.members[&key].membership.accepts_from(peer, from) {
            self.handle_arrival(key, packet);
        }
        self.drain_inboxes();
        self.schedule_test(now);
    }

    fn handle_dead(&mut self, now: u64, node: NodeId) {
        let involves = self.members.iter().filter(|(_, member)| member.membership.involves(node));
        let failed: Vec<MemberKey> = involves.map(|(key, _)| *key).collect();
        for key in failed {
            self.fail(key, JobFailure::Dead { node });
        }
        self.schedule_test(now);
    }

    fn handle_timeout(&mut self, now: u64) {
        if self.next_test.is_none_or(|at| at > now) {
            return;
        }
        self.next_test = None;
        let all: Vec<MemberKey> = self.members.keys().copied().collect();
        all.into_iter().for_each(|key| self.test(key));
        self.schedule_test(now);
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.next_test
    }

    fn poll(&mut self) -> Option<Output<HostPacket>> {
        self.outputs.pop_front()
    }
}

/// Processes that progress plans themselves add no costs to their machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostCosts;

impl crate::costs::EngineCosts<HostEngine> for HostCosts {
    fn post(&self, _machine: &crate::costs::Machine, _post: &ProgramPost) -> f64 {
        0.0
    }
}
