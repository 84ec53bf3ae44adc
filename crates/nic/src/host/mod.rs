//! Processes that progress plans themselves, without a NIC that knows of them: what triggered NICs are compared with
//! (CD Sec. II and VI-B).
//!
//! A process goes on with its call when it tests it, every so often, or whenever something has arrived, as a thread of
//! its own does. In between nothing goes on but what any NIC does: it puts a small message into a staging buffer, and a
//! large one where the process has said.
//!
//! | a message | sender | receiver |
//! |---|---|---|
//! | small | sends it, and is done when it hears that it was taken | copies it from staging, says so |
//! | small without room in staging, large | offers it, sends it when it may | clears it when the receive is posted |
//! | within a host | points to it, and is done when it hears that it was taken | copies it, says so |
//!
//! A step is waiting for earlier ones, then started, then complete; a call ends with its last step, and the next one
//! begins.
//!
//! Invariants: staging and calls are bounded by [`Settings`]; a message that finds no staging waits at its source. What
//! a call had is back when it has ended or failed. Never holds payload.

mod member;
mod progress;

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::Rank;

use crate::engine::{Engine, Failure, Node, Output, Port};
pub use crate::job::Post;
use crate::job::{self, JobError, Members, Membership};
use crate::registered::Registered;
use member::Member;

/// When processes go on with their calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Progress {
    /// When they test them, every so many nanoseconds.
    Tests {
        /// Nanoseconds from one test to the next.
        every: u64,
    },
    /// Whenever something has arrived, by a thread.
    Thread,
}

/// What a host has; all hosts of a network have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// When processes go on (tests every 1,000 ns, ours).
    pub progress: Progress,
    /// Messages of so many bytes are offered, smaller ones sent at once (16 KB, as of CD-5).
    pub eager_bytes: u64,
    /// Bytes of the staging buffers of a host (16 MiB, ours).
    pub staging_bytes: u64,
    /// Calls of one port and job that are posted and have not ended (64, ours).
    pub calls: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            progress: Progress::Tests { every: 1_000 },
            eager_bytes: 16 << 10,
            staging_bytes: 16 << 20,
            calls: 64,
        }
    }
}

/// Which message of a job, as its receiver names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Calls of the job before.
    pub call: u64,
    pub from: Rank,
    pub to: Rank,
    pub index: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet {
    pub job: u8,
    pub port: Port,
    pub name: Name,
    pub content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    /// The message itself, of so many bytes, which its receiver may not have asked for.
    Message(u64),
    /// There is a message.
    Offer,
    /// It has been taken.
    Taken,
    /// It may be sent.
    Clear,
    /// The message itself, of so many bytes, straight to its place.
    Data(u64),
}

/// A member, by job and port.
type Key = (u8, u16);

#[derive(Debug)]
pub struct Host {
    node: Node,
    settings: Settings,
    members: Members<Member>,
    staging: Registered,
    /// When processes test next, while they have calls to test.
    next_test: Option<u64>,
    outputs: VecDeque<Output<Packet>>,
}

impl Host {
    /// A host without jobs.
    pub fn new(node: Node, settings: Settings) -> Self {
        let staging = Registered::new(settings.staging_bytes);
        Host { node, settings, members: BTreeMap::new(), staging, next_test: None, outputs: VecDeque::new() }
    }

    /// Makes `port` a member of a job, whose members are these, by rank.
    pub fn open(&mut self, job: u8, port: Port, members: Vec<(Node, Port)>) {
        let membership = Membership::new((self.node, port), members);
        job::enter(&mut self.members, job, port, Member::new(membership));
    }

    /// Whether nothing is in flight, and all staging is free.
    pub fn is_idle(&self) -> bool {
        self.outputs.is_empty()
            && self.staging.left() == self.settings.staging_bytes
            && self.members.values().all(Member::is_idle)
    }

    /// Processes with calls test them from now on.
    fn mind_tests(&mut self, now: u64) {
        let Progress::Tests { every } = self.settings.progress else { return };
        let calls = self.members.values().any(|member| member.running.is_some());
        self.next_test = calls.then(|| self.next_test.unwrap_or(now + every));
    }
}

impl Engine for Host {
    type Post = Post;
    type Refusal = JobError;
    type Packet = Packet;

    fn post(&mut self, now: u64, port: Port, post: &Post) -> Result<(), JobError> {
        let (job, key) = (post.job, (post.job, port.0));
        let member = self.members.get_mut(&key).expect("the job is open");
        member.membership.admit(job, post.program.rank, member.calls(), self.settings.calls)?;
        member.queue.push_back(post.clone());
        self.test(key);
        self.settle();
        self.mind_tests(now);
        Ok(())
    }

    fn handle_packet(&mut self, now: u64, from: Node, packet: Packet) {
        let key = (packet.job, packet.port.0);
        let peer = match packet.content {
            Content::Message(_) | Content::Offer | Content::Data(_) => packet.name.from,
            Content::Taken | Content::Clear => packet.name.to,
        };
        if self.members[&key].membership.hears(peer, from) {
            self.take_in(key, packet);
        }
        self.settle();
        self.mind_tests(now);
    }

    fn handle_dead(&mut self, now: u64, node: Node) {
        let needs = self.members.iter().filter(|(_, member)| member.membership.needs(node));
        let failed: Vec<Key> = needs.map(|(key, _)| *key).collect();
        for key in failed {
            self.fail(key, Failure::Dead { node });
        }
        self.mind_tests(now);
    }

    fn handle_timeout(&mut self, now: u64) {
        if self.next_test.is_none_or(|at| at > now) {
            return;
        }
        self.next_test = None;
        let all: Vec<Key> = self.members.keys().copied().collect();
        all.into_iter().for_each(|key| self.test(key));
        self.mind_tests(now);
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.next_test
    }

    fn poll(&mut self) -> Option<Output<Packet>> {
        self.outputs.pop_front()
    }
}

/// Processes that progress plans themselves cost what their machine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs;

impl crate::costs::Costs<Host> for Costs {
    fn post(&self, _machine: &crate::costs::Machine, _post: &Post) -> f64 {
        0.0
    }
}
