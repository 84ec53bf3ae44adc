//! The order-triggered NIC of the Tianhe network (Xu et al., "Order-preserving triggering mechanism and data buffering
//! method for collective communication hardware offloading", 2025; TH-1 to TH-7).
//!
//! A host posts sequences of [`descriptor::Descriptor`]s to its port. A descriptor names the packets that it waits for
//! and the order in which it reads them. Once these packets are there, the NIC copies or combines them and sends the
//! result. The order of arrival decides nothing, so reductions have the same bits in every run (TH-2). Packets wait in
//! the [`buffer::HashBuffer`] of a unit; a descriptor whose packet is missing suspends its sequence alone (TH-4).
//!
//! A packet always has room at its destination. A long message travels in pulses, each a sequence of its own (TH-5).
//! Every port has room for one pulse of each job. The port grants more room to peers that request it, as far as its
//! unit has room left over. The oldest pulse of a job therefore progresses everywhere, whatever else fills the buffers.
//! Descriptors with C = 0 take a path of their own, from memory to memory.
//!
//! | state | ends with |
//! |---|---|
//! | a task is idle | its first post or packet, which binds it to the unit with the least load |
//! | a sequence is queued | a free DMA counter; the oldest of a task retries, and in the end fails the job |
//! | a sequence is suspended | the packet, or the grant, that its descriptor waits for |
//! | a message from point to point waits | the place that its destination names for it |
//! | a named place is awaited | the last chunk of its message |
//!
//! Invariants: packets of a task and pulse never exceed [`OrderedSettings::pulse_packets`]. Slots, counters and grants
//! are returned when the pulse ends or its job fails. Never holds payload except the bytes that descriptors carry.

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

pub use costs::OrderedCosts;
pub use packet::{OrderedContent, OrderedPacket};
pub use settings::{BufferSharing, MAX_PORTS, MAX_SOURCES, MAX_STEPS, OrderedSettings};

use crate::engine::{AddressSpace, Executor, JobFailure, MemorySegment, NicEngine, NicOrder, NodeId, Output, Port};
use crate::job::JobError;
use buffer::{PacketKey, PacketName};
use descriptor::{Descriptor, Flags, MAX_INLINE, PULSES, PortAddress, Sequence};
use task::{CallEnd, Task};
use unit::Unit;

/// The reason why a NIC rejects a job or a post.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OrderedError {
    #[error("{tasks} tasks at once, one of each port and job: a NIC has {most}; close groups that are not used")]
    Tasks { tasks: usize, most: usize },
    #[error("port {port} of a node: there are {MAX_PORTS}; start fewer processes on a host")]
    Ports { port: u16 },
    #[error(transparent)]
    Job(#[from] JobError),
}

/// A task, by job and port.
type TaskKey = (u8, u16);

#[derive(Debug)]
pub struct OrderedEngine {
    node: NodeId,
    settings: OrderedSettings,
    tasks: BTreeMap<TaskKey, Task>,
    units: Vec<Unit>,
    /// Tasks that may be able to progress.
    ready: BTreeSet<TaskKey>,
    outputs: VecDeque<Output<OrderedPacket>>,
}

impl OrderedEngine {
    /// A NIC without tasks.
    ///
    /// # Panics
    /// When a task would have no room for a packet, or packets would cut elements.
    pub fn new(node: NodeId, settings: OrderedSettings) -> Self {
        assert!(settings.pulse_packets() > 0 && settings.counters > 0, "{settings:?} has room for no task");
        assert!(settings.packet_bytes.is_multiple_of(16), "packets of {} B cut elements", settings.packet_bytes);
        let units = (0..settings.units).map(|_| Unit::new(&settings)).collect();
        OrderedEngine {
            node,
            settings,
            tasks: BTreeMap::new(),
            units,
            ready: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Makes `port` a member of a job; `members` are all of its members, this port included.
    pub fn open(
        &mut self,
        job: u8,
        port: Port,
        members: impl IntoIterator<Item = PortAddress>,
    ) -> Result<(), OrderedError> {
        let (tasks, most) = (self.tasks.len() + 1, self.settings.tasks);
        if tasks > most {
            return Err(OrderedError::Tasks { tasks, most });
        }
        let members: Vec<PortAddress> = members.into_iter().collect();
        if let Some(member) = members.iter().find(|member| u32::from(member.port) >= MAX_PORTS) {
            return Err(OrderedError::Ports { port: member.port });
        }
        let before = self.tasks.insert((job, port.0), Task::new(members, &self.settings));
        assert!(before.is_none(), "job {job} is open on {port} already");
        Ok(())
    }

    /// Whether nothing is in flight: no packet waits, no counter is taken, and no task holds an extra grant.
    pub fn is_idle(&self) -> bool {
        self.outputs.is_empty()
            && self.units.iter().all(|unit| unit.is_idle(&self.settings))
            && self.tasks.values().all(|task| {
                task.failed.is_some() || task.is_idle(&self.settings) && task.direct.is_idle() && task.ends.is_empty()
            })
    }

    /// The largest fraction of slots in use in any unit, in thousandths.
    pub fn occupancy(&self) -> usize {
        self.units.iter().map(|unit| unit.buffer.len() * 1_000 / self.settings.slots()).max().unwrap_or(0)
    }

    /// Size of the NIC's own memory in bytes, from address 0.
    pub fn memory_bytes(settings: &OrderedSettings) -> u64 {
        settings.units as u64 * Self::unit_bytes(settings) + MAX_INLINE
    }

    fn unit_bytes(settings: &OrderedSettings) -> u64 {
        settings.slots() as u64 * settings.packet_bytes + settings.counters as u64 * settings.intermediate_bytes()
    }

    /// The first `len` bytes of a slot.
    fn slot(&self, unit: usize, slot: usize, len: u64) -> MemorySegment {
        let address = unit as u64 * Self::unit_bytes(&self.settings) + slot as u64 * self.settings.packet_bytes;
        MemorySegment { region: AddressSpace::Nic, address, len }
    }

    /// The address of the intermediate results of the sequence that holds this counter.
    fn intermediate(&self, unit: usize, counter: usize) -> u64 {
        let behind_slots = self.settings.slots() as u64 * self.settings.packet_bytes;
        let before = counter as u64 * self.settings.intermediate_bytes();
        unit as u64 * Self::unit_bytes(&self.settings) + behind_slots + before
    }

    fn transmit(&mut self, from: TaskKey, to: PortAddress, content: OrderedContent, payload: Vec<MemorySegment>) {
        let packet = OrderedPacket { job: from.0, source_port: from.1, port: to.port, content };
        let unit = self.tasks.get(&from).and_then(|task| task.unit).unwrap_or(0);
        let by = match content {
            OrderedContent::Direct { .. } | OrderedContent::Places { .. } => self.direct_path(),
            OrderedContent::Data { .. }
            | OrderedContent::RequestRoom { .. }
            | OrderedContent::Grant { .. }
            | OrderedContent::Abort(_) => Executor::Nic(unit as u16),
        };
        self.outputs.push_back(Output::Transmit { by, to: NodeId(to.node), packet, payload });
    }

    /// Writes the bytes that a descriptor carries to NIC memory, from which the driver gathers them for their packet.
    fn write_inline(&mut self, by: Executor, inline: &[u64], (start, len): (u64, u64)) -> Vec<MemorySegment> {
        let address = Self::memory_bytes(&self.settings) - MAX_INLINE;
        let words = &inline[start as usize / 8..(start + len).div_ceil(8) as usize];
        for (at, word) in (0..).step_by(8).zip(words) {
            let to = MemorySegment { region: AddressSpace::Nic, address: address + at, len: (len - at).min(8) };
            self.outputs.push_back(Output::Order { by, order: NicOrder::Write { word: *word, to } });
        }
        vec![MemorySegment { region: AddressSpace::Nic, address, len }]
    }

    /// Stores a chunk of a message in the hash buffer.
    fn store_chunk(&mut self, task: TaskKey, source: PortAddress, (seq, number, chunk, bytes): (u8, u16, u16, u32)) {
        let pulse = self.tasks[&task].pulse(number).expect("what is sent has room");
        let unit = self.bind(task);
        let name = PacketName {
            job: task.0,
            source: source.node,
            source_port: source.port,
            seq,
            port: task.1,
            pulse: number,
            chunk,
        };
        let slot = self.units[unit].buffer.insert(PacketKey::from(name));
        *self.task(task).held.entry(pulse).or_default() += 1;
        let order = NicOrder::Deliver { to: self.slot(unit, slot, bytes.into()) };
        self.outputs.push_back(Output::Order { by: Executor::Nic(unit as u16), order });
        self.ready.insert(task);
        self.unbind_idle(task);
    }
}

impl NicEngine for OrderedEngine {
    type Post = [Descriptor];
    type Error = OrderedError;
    type Packet = OrderedPacket;

    fn post(&mut self, now: u64, port: Port, post: &[Descriptor]) -> Result<(), OrderedError> {
        let mut rest = post;
        while let Some(first) = rest.first() {
            let (job, key) = (first.job, (first.job, port.0));
            assert_eq!(first.source_port, port.0, "a process posts to its own port");
            if let Some(failure) = self.task(key).failed {
                return Err(JobError::Failed { job, failure }.into());
            }
            if !first.flags.has(Flags::COLLECTIVE) {
                self.post_direct(port, first.clone());
                rest = &rest[1..];
                continue;
            }
            let sequence;
            (sequence, rest) = Sequence::first_of(rest);
            self.bind(key);
            let task = self.task(key);
            assert_eq!(u64::from(first.pulse), task.next % PULSES, "pulses are posted in their order");
            if sequence.ends() {
                task.ends.push_back(CallEnd::Pulse(task.next));
            }
            task.queue.push_back(sequence);
            task.next += 1;
            self.ready.insert(key);
        }
        self.run(now);
        Ok(())
    }

    fn handle_packet(&mut self, now: u64, from: NodeId, packet: OrderedPacket) {
        let key = (packet.job, packet.port);
        let source = PortAddress { node: from.0, port: packet.source_port };
        let task = self.task(key);
        assert!(task.peers.contains_key(&source), "{packet:?} comes from {from}, which is not in its job");
        if task.failed.is_some() {
            return;
        }
        match packet.content {
            OrderedContent::Data { seq, pulse, chunk, bytes } => {
                self.store_chunk(key, source, (seq, pulse, chunk, bytes))
            }
            OrderedContent::Direct { number, chunk, bytes } => self.write_chunk(key, source, (number, chunk, bytes)),
            OrderedContent::Places { before } => self.handle_places(key, source, before),
            OrderedContent::RequestRoom { pulse } => self.handle_room_request(key, source, pulse),
            OrderedContent::Grant { before } => self.handle_grant(key, source, before),
            OrderedContent::Abort(failure) => self.fail(key, failure),
        }
        self.run(now);
    }

    fn handle_dead(&mut self, now: u64, node: NodeId) {
        let of = |task: &Task| task.peers.keys().any(|peer| peer.node == node.0);
        let failed: Vec<TaskKey> = self.tasks.iter().filter(|(_, task)| of(task)).map(|(key, _)| *key).collect();
        for task in failed {
            self.fail(task, JobFailure::Dead { node });
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

    fn poll(&mut self) -> Option<Output<OrderedPacket>> {
        self.outputs.pop_front()
    }
}
