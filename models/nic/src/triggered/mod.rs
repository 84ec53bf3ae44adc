//! The triggered NIC: InfiniBand with the wait and enable requests of CORE-Direct (Inozemtsev and Afsahi, "Designing an
//! offloaded nonblocking MPI_Allgather collective using CORE-Direct", 2012; CD-1 to CD-6).
//!
//! A rank posts the [task list](list) of a call and computes. Its NIC sends, waits for completions and enables the
//! requests that waited for them; the completion of the last request ends the call. The first call of a kind makes the
//! queue pairs and posts buffers before any peer sends (CD-4). A large message waits until its receiver is ready
//! (CD-5). Ranks of one host have no queue pairs for each other. They exchange data through a region of their host,
//! before and after the list, and the host copies it (CD Sec. IV-B).
//!
//! The machine is the NIC of a host with the library above it. `member.rs` lists the states of a call, and `queue.rs`
//! the states of a queue pair.
//!
//! Invariants: [`TriggeredSettings`] bound queues, completions, calls, queue pairs and registered memory. Calls beyond
//! a bound are rejected with both numbers. The resources of a call that has ended or failed are free. Never holds
//! payload.

mod costs;
pub mod list;
mod member;
mod packet;
mod print;
mod progress;
mod queue;
mod region;
mod settings;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use thiserror::Error;

pub use costs::TriggeredCosts;
pub use member::ListPost;
pub use packet::{TriggeredContent, TriggeredPacket};
pub use settings::{Readiness, TriggeredSettings};

use crate::engine::{JobFailure, NicEngine, NodeId, Output, Port};
use crate::job::{self, JobError, JobMembers, JobMembership};
use crate::registered::RegisteredMemory;
use list::{ListTemplate, PeerConnection, Prepost, Purpose, TransferProtocol, WorkAction};
use member::{BufferRing, PeerChannel, TriggeredMember};
use queue::QueuePair;
use region::SharedRegion;

/// The reason why a NIC rejects a job or a call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TriggeredError {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("{queue} holds {requests} requests: a queue has room for {most}; choose an algorithm with fewer messages")]
    Depth { queue: &'static str, requests: usize, most: usize },
    #[error("{pairs} queue pairs: a NIC has {most}; close jobs that are not used")]
    QueuePairs { pairs: usize, most: usize },
    #[error("{bytes} B of registered memory, of which {left} B are left; close jobs that are not used")]
    Memory { bytes: u64, left: u64 },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TriggeredCounters {
    /// Messages that found no receive and were sent again.
    pub refused: u64,
    pub queue_pairs: u64,
}

/// A member, by job and port.
type MemberKey = (u8, u16);

/// A queue pair, by member, operation, connection and purpose.
type QueuePairKey = (MemberKey, u16, PeerConnection, Purpose);

#[derive(Debug)]
pub struct TriggeredEngine {
    node: NodeId,
    settings: TriggeredSettings,
    members: JobMembers<TriggeredMember>,
    /// Regions that the ranks of this host share, by job.
    regions: BTreeMap<u8, SharedRegion>,
    memory: RegisteredMemory,
    /// Free places in the NIC for the bytes of requests.
    inline: Vec<u32>,
    /// Number of queue pairs.
    pairs: usize,
    /// Resting queue pairs, by the time when they resume.
    resting: BTreeSet<(u64, QueuePairKey)>,
    /// Members that may be able to progress.
    ready: BTreeSet<MemberKey>,
    outputs: VecDeque<Output<TriggeredPacket>>,
    counters: TriggeredCounters,
}

impl TriggeredEngine {
    /// A NIC without jobs.
    ///
    /// # Panics
    /// When it would have no ports.
    pub fn new(node: NodeId, settings: TriggeredSettings) -> Self {
        assert!(settings.virtual_ports > 0 && settings.physical_ports > 0, "{settings:?} has no ports");
        TriggeredEngine {
            node,
            settings,
            members: BTreeMap::new(),
            regions: BTreeMap::new(),
            memory: RegisteredMemory::new(settings.registered_bytes),
            inline: (0..settings.inline_places).rev().collect(),
            pairs: 0,
            resting: BTreeSet::new(),
            ready: BTreeSet::new(),
            outputs: VecDeque::new(),
            counters: TriggeredCounters::default(),
        }
    }

    /// Makes `port` a member of a job with these members, by rank. All else is made at the port's first call.
    pub fn open(&mut self, job: u8, port: Port, members: Vec<(NodeId, Port)>) {
        let membership = JobMembership::new((self.node, port), members);
        job::insert_member(&mut self.members, job, port, TriggeredMember::new(membership));
    }

    pub fn counters(&self) -> TriggeredCounters {
        self.counters
    }

    /// Number of queue pairs of `port`, of all its jobs (CD-6).
    pub fn queue_pairs(&self, port: Port) -> usize {
        let of_port = self.members.iter().filter(|((_, other), _)| *other == port.0);
        of_port.map(|(_, member)| member.channels.len() * Purpose::ALL.len()).sum()
    }

    /// Whether nothing is in flight, and nothing is allocated except what jobs keep until they are closed.
    pub fn is_idle(&self) -> bool {
        self.outputs.is_empty()
            && self.resting.is_empty()
            && self.inline.len() == self.settings.inline_places as usize
            && self.members.values().all(TriggeredMember::is_idle)
            && self.regions.values().all(SharedRegion::is_idle)
    }

    /// Size of the NIC's own memory in bytes, from address 0.
    pub fn memory_bytes(settings: &TriggeredSettings) -> u64 {
        u64::from(settings.inline_places) * settings.inline_bytes
    }

    /// Checks that a list fits the queues.
    fn admit(&self, template: &ListTemplate, unit: u64) -> Result<(), TriggeredError> {
        let most = self.settings.queue_depth;
        if let TransferProtocol::Eager { buffer } = template.protocol {
            assert!(buffer * unit <= self.settings.buffer_bytes, "{buffer} times {unit} B fit an eager buffer");
        }
        let mut managed = 0;
        let mut posted: BTreeMap<(PeerConnection, Purpose, bool), usize> = BTreeMap::new();
        for Prepost { connection, buffers, clears } in &template.connections {
            posted.insert((*connection, Purpose::Eager, true), *buffers as usize);
            posted.insert((*connection, Purpose::ClearToSend, true), *clears as usize);
        }
        for request in &template.tasks {
            let receives = match request.action {
                WorkAction::Receive(_) => true,
                WorkAction::Send { .. } => false,
                _ => {
                    managed += 1;
                    continue;
                }
            };
            *posted.entry((request.on.connection, request.on.purpose, receives)).or_default() += 1;
        }
        let depth = |queue, requests| TriggeredError::Depth { queue, requests, most };
        if managed > most {
            return Err(depth("the management queue", managed));
        }
        match posted.into_iter().find(|(_, requests)| *requests > most) {
            Some(((_, _, receives), requests)) => {
                Err(depth(if receives { "a receive queue" } else { "a send queue" }, requests))
            }
            None => Ok(()),
        }
    }

    /// Makes the queue pairs that a call is the first to use.
    fn create_queue_pairs(
        &mut self,
        key: MemberKey,
        operation: u16,
        template: &ListTemplate,
    ) -> Result<(), TriggeredError> {
        let member = &self.members[&key];
        let missing: Vec<Prepost> = template
            .connections
            .iter()
            .filter(|prepost| !member.channels.contains_key(&(operation, prepost.connection)))
            .copied()
            .collect();
        let (pairs, most) = (self.pairs + missing.len() * Purpose::ALL.len(), self.settings.queue_pairs);
        if pairs > most {
            return Err(TriggeredError::QueuePairs { pairs, most });
        }
        let ring_bytes = |prepost: &Prepost| 2 * u64::from(prepost.buffers) * self.settings.buffer_bytes;
        let mut parts = Vec::new();
        for prepost in &missing {
            match self.memory.allocate(ring_bytes(prepost)) {
                Some(part) => parts.push(part),
                None => {
                    parts.into_iter().for_each(|part| self.memory.free(part));
                    return Err(TriggeredError::Memory { bytes: ring_bytes(prepost), left: self.memory.left() });
                }
            }
        }
        for (prepost, part) in missing.into_iter().zip(parts) {
            let ring = BufferRing::new(part, prepost.buffers, self.settings.buffer_bytes);
            self.create_channel(key, operation, prepost, ring);
        }
        Ok(())
    }

    fn create_channel(&mut self, key: MemberKey, operation: u16, prepost: Prepost, ring: BufferRing) {
        let member = self.members.get_mut(&key).expect("it posts");
        let link = member.channels.len() as u32 % self.settings.virtual_ports % self.settings.physical_ports;
        let mut pairs: [QueuePair; 3] = std::array::from_fn(|_| QueuePair::new());
        let [eager, clears, _] = &mut pairs;
        ring.preposted().for_each(|buffer| eager.post_receive(Some(buffer)));
        eager.enable_receives(prepost.buffers);
        (0..prepost.clears).for_each(|_| clears.post_receive(None));
        clears.enable_receives(prepost.clears);
        member
            .channels
            .insert((operation, prepost.connection), PeerChannel { connected: false, link, pairs, prepost, ring });
        self.pairs += Purpose::ALL.len();
        self.counters.queue_pairs += Purpose::ALL.len() as u64;
        self.send_control(key, operation, prepost.connection, TriggeredContent::Connect);
    }
}

impl NicEngine for TriggeredEngine {
    type Post = ListPost;
    type Error = TriggeredError;
    type Packet = TriggeredPacket;

    fn post(&mut self, _now: u64, port: Port, post: &ListPost) -> Result<(), TriggeredError> {
        let (job, key, template) = (post.job, (post.job, port.0), &post.template);
        let member = &self.members[&key];
        member.membership.admit(job, template.rank, member.calls(), self.settings.calls)?;
        self.admit(template, post.unit)?;
        self.create_queue_pairs(key, post.operation, template)?;
        let member = self.members.get_mut(&key).expect("found above");
        if template.sharing.ranks > 0 {
            let bytes = template.sharing.bytes.saturating_mul(post.unit);
            let region = self.regions.entry(job).or_default();
            if !region.reserve(member.sharing_posted, bytes, &mut self.memory) {
                return Err(TriggeredError::Memory { bytes, left: self.memory.left() });
            }
            member.sharing_posted += 1;
        }
        member.queue.push_back(post.clone());
        self.ready.insert(key);
        self.run();
        Ok(())
    }

    /// Packets of one queue pair stay in order.
    fn flow(packet: &TriggeredPacket) -> Option<u64> {
        let TriggeredPacket { job, port, operation, connection, content, .. } = packet;
        let purpose = match content {
            TriggeredContent::Connect | TriggeredContent::Accept => return None,
            TriggeredContent::Message { purpose, .. }
            | TriggeredContent::Taken { purpose, .. }
            | TriggeredContent::NotReady { purpose, .. } => purpose,
        };
        let mut hasher = DefaultHasher::new();
        (job, port, operation, connection, purpose).hash(&mut hasher);
        Some(hasher.finish())
    }

    fn handle_packet(&mut self, now: u64, from: NodeId, packet: TriggeredPacket) {
        let key = (packet.job, packet.port.0);
        if self.members[&key].membership.accepts_from(packet.connection.peer, from) {
            self.handle_content(now, key, &packet);
        }
        self.run();
    }

    fn handle_dead(&mut self, _now: u64, node: NodeId) {
        let involves = self.members.iter().filter(|(_, member)| member.membership.involves(node));
        let failed: Vec<MemberKey> = involves.map(|(key, _)| *key).collect();
        for key in failed {
            self.fail(key, JobFailure::Dead { node });
        }
    }

    fn handle_timeout(&mut self, now: u64) {
        while self.resting.first().is_some_and(|(at, _)| *at <= now) {
            let (_, (key, operation, connection, purpose)) = self.resting.pop_first().expect("looked at");
            let channel =
                self.members.get_mut(&key).and_then(|member| member.channels.get_mut(&(operation, connection)));
            if channel.is_some_and(|channel| channel.pairs[purpose as usize].wake(now)) {
                self.send(key, operation, connection, purpose);
            }
        }
        self.run();
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.resting.first().map(|(at, _)| *at)
    }

    fn poll(&mut self) -> Option<Output<TriggeredPacket>> {
        self.outputs.pop_front()
    }
}
