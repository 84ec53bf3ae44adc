//! The order-triggered NIC of the Tianhe network (Xu et al., "Order-preserving triggering mechanism and data buffering
//! method for collective communication hardware offloading", 2025; TH-1 to TH-7).
//!
//! A host posts sequences of [`descriptor::Descriptor`]s to its port. A descriptor waits until the packets that it
//! names are there, reads them in the order that it names, copies or combines them, and sends on: what arrives first
//! decides nothing, so reductions have the same bits in every run (TH-2). Packets wait in the [`buffer::HashBuffer`] of
//! a unit; a descriptor whose packet is missing suspends its sequence alone (TH-4).
//!
//! What a NIC sends always has room at its destination. A long message travels in pulses, each a sequence of its own
//! (TH-5); every port has room for one pulse of each job, and grants more, to who asks, of what its unit has left over.
//! The oldest pulse of a job therefore goes on everywhere, whatever else fills the buffers. Descriptors with C = 0 take
//! a path of their own, from memory to memory.
//!
//! | state | ends with |
//! |---|---|
//! | a task is idle | its first post or packet, which gives it the unit with the least load |
//! | a sequence is queued | a free DMA counter; the oldest of a task retries, and in the end fails the job |
//! | a sequence is suspended | the packet, or the grant, that its descriptor waits for |
//! | a task has failed | [`Ordered::close`] |
//! | a message from point to point waits | the place that its destination names for it |
//! | a named place is awaited | the last chunk of its message |
//!
//! Invariants: packets of a task and pulse never exceed [`Settings::pulse_packets`]; slots, counters and grants return
//! with the pulse, or with the failure of its job. Never holds payload but what descriptors carry, never allocates by
//! what a packet says.

pub mod buffer;
mod costs;
pub mod descriptor;
mod direct;
mod packet;
mod print;
mod progress;
mod settings;
mod task;
mod unit;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use thiserror::Error;

pub use costs::Costs;
pub use packet::{Content, Packet};
pub use settings::{MAX_JOBS, MAX_NODES, MAX_PORTS, MAX_SOURCES, MAX_STEPS, Settings, Sharing};

use crate::engine::{Engine, Failure, Node, Order, Output, Place, Port, Region, Worker};
use crate::job::JobError;
use buffer::{Key, Name, Rejected};
use descriptor::{Address, DescriptorError, Fault, MAX_INLINE, PULSES, Posted, Sequence, Source};
use task::{End, Task};
use unit::Unit;

/// Why a NIC does not take a job or a post.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum Refusal {
    #[error("{tasks} tasks at once, one of each port and job: a NIC has {most}; close groups that are not used")]
    Tasks { tasks: usize, most: usize },
    #[error("port {port} of a node: there are {MAX_PORTS}; start fewer processes on a host")]
    Ports { port: u16 },
    #[error("node {node}: a network has {MAX_NODES}")]
    Nodes { node: u32 },
    #[error("pulse {pulse} of job {job}, where {expected} is next: post pulses in their order")]
    Pulse { job: u8, pulse: u16, expected: u16 },
    #[error("a sequence of {port} names {source_port} as its own")]
    Port { port: Port, source_port: Port },
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
}

/// Packets that were dropped, by reason, and what was retried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Of a job that is not open, or has failed, from somebody who is not in it, or with numbers that nothing has.
    pub unknown: u64,
    /// One like it waits already.
    pub duplicate: u64,
    /// Its pulse is over, or its descriptor has read one like it.
    pub late: u64,
    /// There is no room for it, because it came without a grant or was too much for its pulse.
    pub ungranted: u64,
    /// Times that a sequence found no DMA counter.
    pub retries: u64,
}

/// A task, by job and port.
type TaskKey = (u8, u16);

/// See the module.
#[derive(Debug)]
pub struct Ordered {
    node: Node,
    settings: Settings,
    tasks: BTreeMap<TaskKey, Task>,
    units: Vec<Unit>,
    /// Tasks that may go on.
    ready: BTreeSet<TaskKey>,
    outputs: VecDeque<Output<Packet>>,
    counters: Counters,
}

impl Ordered {
    /// A NIC without tasks.
    ///
    /// # Panics
    /// When a task would have no room for a packet, or packets cut elements.
    #[must_use]
    pub fn new(node: Node, settings: Settings) -> Self {
        assert!(settings.pulse_packets() > 0 && settings.counters > 0, "{settings:?} has room for no task");
        assert!(settings.packet_bytes.is_multiple_of(16), "packets of {} B cut elements", settings.packet_bytes);
        let units = (0..settings.units).map(|_| Unit::new(&settings)).collect();
        Ordered {
            node,
            settings,
            tasks: BTreeMap::new(),
            units,
            ready: BTreeSet::new(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Makes `port` a member of a job, whose members are all of `members`, itself included.
    ///
    /// # Errors
    /// When the NIC has no room for it.
    pub fn open(&mut self, job: u8, port: Port, members: impl IntoIterator<Item = Source>) -> Result<(), Refusal> {
        let (tasks, most) = (self.tasks.len() + 1, self.settings.tasks);
        if tasks > most {
            return Err(Refusal::Tasks { tasks, most });
        }
        if self.tasks.contains_key(&(job, port.0)) {
            return Err(JobError::Open { job, port }.into());
        }
        let members: Vec<Source> = members.into_iter().collect();
        let own = Source { node: self.node.0, port: port.0 };
        for member in members.iter().chain([&own]) {
            if u32::from(member.port) >= MAX_PORTS {
                return Err(Refusal::Ports { port: member.port });
            }
            if member.node >= MAX_NODES {
                return Err(Refusal::Nodes { node: member.node });
            }
        }
        self.tasks.insert((job, port.0), Task::new(members, &self.settings));
        Ok(())
    }

    /// Gives back what a job has on `port`. Packets of it that come later are of an unknown job.
    ///
    /// # Errors
    /// When calls are in flight, or there is no such job.
    pub fn close(&mut self, job: u8, port: Port) -> Result<(), Refusal> {
        let task = self.tasks.get(&(job, port.0)).ok_or(JobError::Unknown { job, port })?;
        if task.next > task.done || !task.direct.is_idle() {
            return Err(JobError::Busy { job, port }.into());
        }
        self.release((job, port.0));
        self.tasks.remove(&(job, port.0));
        Ok(())
    }

    /// What was dropped and retried.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether nothing is in flight: no packet waits, no counter is taken, nothing is granted beyond what all have.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.outputs.is_empty()
            && self.units.iter().all(|unit| unit.is_idle(&self.settings))
            && self.tasks.values().all(|task| {
                task.failed.is_some() || task.is_idle(&self.settings) && task.direct.is_idle() && task.ends.is_empty()
            })
    }

    /// The largest part of its slots that a unit has in use now, in thousandths.
    #[must_use]
    pub fn occupancy(&self) -> usize {
        self.units.iter().map(|unit| unit.buffer.len() * 1_000 / self.settings.slots()).max().unwrap_or(0)
    }

    /// Bytes of the NIC's own memory, from address 0.
    #[must_use]
    pub fn memory_bytes(settings: &Settings) -> u64 {
        settings.units as u64 * Self::unit_bytes(settings) + MAX_INLINE
    }

    fn unit_bytes(settings: &Settings) -> u64 {
        settings.slots() as u64 * settings.packet_bytes + settings.counters as u64 * settings.intermediate_bytes()
    }

    /// `len` bytes from the start of a slot.
    fn slot(&self, unit: usize, slot: usize, len: u64) -> Place {
        let address = unit as u64 * Self::unit_bytes(&self.settings) + slot as u64 * self.settings.packet_bytes;
        Place { region: Region::Nic, address, len }
    }

    /// Where the intermediate results of the sequence with that counter begin.
    fn intermediate(&self, unit: usize, counter: usize) -> u64 {
        let behind_slots = self.settings.slots() as u64 * self.settings.packet_bytes;
        let before = counter as u64 * self.settings.intermediate_bytes();
        unit as u64 * Self::unit_bytes(&self.settings) + behind_slots + before
    }

    fn transmit(&mut self, from: TaskKey, to: Source, content: Content, payload: Vec<Place>) {
        let packet = Packet { job: from.0, source_port: from.1, port: to.port, content };
        let unit = self.tasks.get(&from).and_then(|task| task.unit).unwrap_or(0);
        let by = match content {
            Content::Direct { .. } | Content::Places { .. } => self.direct_path(),
            Content::Data { .. } | Content::Ask { .. } | Content::Grant { .. } | Content::Abort(_) => {
                Worker::Nic(unit as u16)
            }
        };
        self.outputs.push_back(Output::Transmit { by, to: Node(to.node), packet, payload });
    }

    /// Where the bytes lie that a descriptor carries, until the driver has gathered them for its packet.
    fn carried(&mut self, by: Worker, inline: &[u64], (start, len): (u64, u64)) -> Vec<Place> {
        let address = Self::memory_bytes(&self.settings) - MAX_INLINE;
        let words = &inline[start as usize / 8..(start + len).div_ceil(8) as usize];
        for (at, word) in (0..).step_by(8).zip(words) {
            let to = Place { region: Region::Nic, address: address + at, len: (len - at).min(8) };
            self.outputs.push_back(Output::Order { by, order: Order::Write { word: *word, to } });
        }
        vec![Place { region: Region::Nic, address, len }]
    }

    /// Whether what was read fits the task that it is for.
    fn admit(&self, port: Port, posted: &[Posted]) -> Result<(), Refusal> {
        let (mut index, mut next) = (0, BTreeMap::new());
        for posted in posted {
            let head = &posted.descriptors()[0];
            let (job, source_port) = (head.job, Port(head.source_port));
            if source_port != port {
                return Err(Refusal::Port { port, source_port });
            }
            let task = self.tasks.get(&(job, port.0)).ok_or(JobError::Unknown { job, port })?;
            if let Some(failure) = task.failed {
                return Err(JobError::Failed { job, failure }.into());
            }
            let sequence = match posted {
                Posted::Sequence(sequence) => sequence,
                Posted::Direct(descriptor) => {
                    task.knows(descriptor.peer()).map_err(|fault| DescriptorError { index, fault })?;
                    index += 1;
                    continue;
                }
            };
            let next = next.entry(job).or_insert(task.next);
            let expected = (*next % PULSES) as u16;
            if head.pulse != expected {
                return Err(Refusal::Pulse { job, pulse: head.pulse, expected });
            }
            *next += 1;
            for at in 0..sequence.descriptors.len() {
                self.fits(task, sequence, at).map_err(|fault| DescriptorError { index, fault })?;
                index += 1;
            }
        }
        Ok(())
    }

    /// What of a descriptor only the NIC and the task can tell.
    fn fits(&self, task: &Task, sequence: &Sequence, at: usize) -> Result<(), Fault> {
        let (descriptor, most) = (&sequence.descriptors[at], self.settings.intermediate_bytes());
        let pieces = [&descriptor.operand, &descriptor.result, &descriptor.message].into_iter().flatten();
        for piece in pieces {
            if let Address::Intermediate(at) = piece.address
                && at.checked_add(piece.len).is_none_or(|end| end > most)
            {
                return Err(Fault::Intermediate { bytes: at.saturating_add(piece.len), most });
            }
        }
        task.knows(sequence.head().sources.iter().copied().chain(sequence.dest(at)))
    }

    /// Takes a chunk of a message in, if there is room for it.
    fn take_in(&mut self, task: TaskKey, source: Source, content: (u8, u16, u16, u32)) {
        let (seq, number, chunk, bytes) = content;
        let known = self.tasks.get(&task).filter(|task| task.failed.is_none() && task.peers.contains_key(&source));
        let Some(state) = known.filter(|_| usize::from(seq) < MAX_STEPS && u64::from(number) < PULSES) else {
            self.counters.unknown += 1;
            return;
        };
        let Some(pulse) = state.pulse(number) else {
            // Behind what is granted lie the numbers of pulses that are over, too.
            let behind = (state.done + PULSES - u64::from(number)) % PULSES;
            let counter =
                if (1..PULSES / 2).contains(&behind) { &mut self.counters.late } else { &mut self.counters.ungranted };
            *counter += 1;
            return;
        };
        let held = state.held.get(&pulse).copied().unwrap_or(0);
        if held == self.settings.pulse_packets() || u64::from(bytes) > self.settings.packet_bytes {
            self.counters.ungranted += 1;
            return;
        }
        let unit = self.bind(task);
        let name = Name {
            job: task.0,
            source: source.node,
            source_port: source.port,
            seq,
            port: task.1,
            pulse: number,
            chunk,
        };
        match self.units[unit].buffer.insert(Key::from(name)) {
            Ok(slot) => {
                *self.tasks.get_mut(&task).expect("found above").held.entry(pulse).or_default() += 1;
                let to = self.slot(unit, slot, bytes.into());
                let by = Worker::Nic(unit as u16);
                self.outputs.push_back(Output::Order { by, order: Order::Deliver { to } });
                self.ready.insert(task);
            }
            Err(Rejected::Duplicate) => self.counters.duplicate += 1,
            Err(Rejected::Full) => unreachable!("what is granted has room"),
        }
        self.unbind_idle(task);
    }
}

impl Engine for Ordered {
    type Post = [u64];
    type Refusal = Refusal;
    type Packet = Packet;

    fn post(&mut self, now: u64, port: Port, post: &[u64]) -> Result<(), Refusal> {
        let posted = Posted::read(post)?;
        self.admit(port, &posted)?;
        for posted in posted {
            let sequence = match posted {
                Posted::Sequence(sequence) => sequence,
                Posted::Direct(descriptor) => {
                    self.post_direct(port, descriptor);
                    continue;
                }
            };
            let key = (sequence.head().job, port.0);
            self.bind(key);
            let task = self.tasks.get_mut(&key).expect("admitted");
            if sequence.ends() {
                task.ends.push_back(End::Pulse(task.next));
            }
            task.queue.push_back(sequence);
            task.next += 1;
            self.ready.insert(key);
        }
        self.run(now);
        Ok(())
    }

    fn handle_packet(&mut self, now: u64, from: Node, packet: Packet) {
        let task = (packet.job, packet.port);
        let source = Source { node: from.0, port: packet.source_port };
        match packet.content {
            Content::Data { seq, pulse, chunk, bytes } => self.take_in(task, source, (seq, pulse, chunk, bytes)),
            Content::Direct { number, chunk, bytes } => self.land(task, source, (number, chunk, bytes)),
            Content::Places { before } => self.placed(task, source, before),
            Content::Ask { pulse } => self.asked(task, source, pulse),
            Content::Grant { before } => self.granted(task, source, before),
            Content::Abort(failure) => match self.tasks.get(&task) {
                Some(state) if state.peers.contains_key(&source) => self.fail(task, failure),
                _ => self.counters.unknown += 1,
            },
        }
        self.run(now);
    }

    fn handle_dead(&mut self, now: u64, node: Node) {
        let of = |task: &Task| task.peers.keys().any(|peer| peer.node == node.0);
        let failed: Vec<TaskKey> = self.tasks.iter().filter(|(_, task)| of(task)).map(|(key, _)| *key).collect();
        for task in failed {
            self.fail(task, Failure::Dead { node });
        }
        self.run(now);
    }

    fn handle_timeout(&mut self, now: u64) {
        let due = |task: &Task| task.retry.is_some_and(|retry| retry.at <= now);
        self.ready.extend(self.tasks.iter().filter(|(_, task)| due(task)).map(|(key, _)| *key));
        self.run(now);
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.tasks.values().filter_map(|task| task.retry).map(|retry| retry.at).min()
    }

    fn poll(&mut self) -> Option<Output<Packet>> {
        self.outputs.pop_front()
    }
}
