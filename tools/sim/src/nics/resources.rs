//! The parts of machines. Each part does one thing at a time, in the order of the requests.
//!
//! Nodes may share a machine. In a flat communicator the plan knows of no hosts, but ranks of a host share the host's
//! NIC, bus, link and memory. Each process has a processor of its own. Times are in nanoseconds.

use std::collections::BTreeMap;

use outboard_nic::{AddressSpace, MemorySegment, NodeId, Port};

use super::trace::Component;

/// A part that is busy until this time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SerialResource(f64);

impl SerialResource {
    /// Occupies the part for `long`, from `at` or later. Returns the start and the end.
    pub(super) fn take(&mut self, at: f64, long: f64) -> (f64, f64) {
        let from = self.0.max(at);
        self.0 = from + long;
        (from, self.0)
    }
}

#[derive(Debug, Default)]
pub(super) struct MachineResources {
    /// From memory to NIC, and from NIC to memory.
    bus: [SerialResource; 2],
    /// By port of the NIC, outgoing and incoming.
    links: BTreeMap<u32, [SerialResource; 2]>,
    /// The sending parts of the NIC by number.
    senders: BTreeMap<u16, SerialResource>,
    receiver: SerialResource,
    pub(super) processors: Processors,
}

impl MachineResources {
    pub(super) fn part(&mut self, component: Component) -> &mut SerialResource {
        match component {
            Component::Sender(number) => self.senders.entry(number).or_default(),
            Component::Receiver => &mut self.receiver,
            Component::Bus(direction) => &mut self.bus[direction as usize],
            Component::Link(port, direction) => &mut self.links.entry(port).or_default()[direction as usize],
        }
    }
}

/// Places written by processors of a node. Each place has the time at which it is complete, and the port of the
/// processor.
#[derive(Debug, Default)]
pub(super) struct PendingWrites(Vec<(MemorySegment, f64, Port)>);

impl PendingWrites {
    pub(super) fn note(&mut self, place: MemorySegment, at: f64, by: Port) {
        self.0.push((place, at, by));
    }

    /// When all of these places are complete. Also returns the port that wrote the last place, if the place is complete
    /// later than `at`.
    pub(super) fn since(&self, places: &[MemorySegment], at: f64) -> (f64, Option<Port>) {
        let meet = |a: &MemorySegment, b: &MemorySegment| {
            a.region == b.region && a.address < b.address + b.len && b.address < a.address + a.len
        };
        let read = self.0.iter().filter(|(written, ..)| places.iter().any(|place| meet(written, place)));
        read.fold((at, None), |last, (_, at, by)| if *at > last.0 { (*at, Some(*by)) } else { last })
    }

    /// Forgets places that are complete by now.
    pub(super) fn forget(&mut self, now: f64) {
        self.0.retain(|(_, at, _)| *at > now);
    }
}

/// The time span in which a processor goes through memory, and the rate of the processor in GB/s.
#[derive(Debug)]
struct MemoryUse {
    from: f64,
    to: f64,
    rate: f64,
}

/// The processors of a machine by process, and their use of the memory that they share. The rates of all simultaneous
/// uses add up to the memory's rate at most.
#[derive(Debug, Default)]
pub(super) struct Processors {
    parts: BTreeMap<(NodeId, Port), SerialResource>,
    uses: Vec<MemoryUse>,
}

impl Processors {
    /// Occupies a processor for `long`. Returns the start and the end.
    pub(super) fn take(&mut self, process: (NodeId, Port), at: f64, long: f64) -> (f64, f64) {
        self.parts.entry(process).or_default().take(at, long)
    }

    /// A processor goes through `bytes` of memory. The limits are the processor's own rate, and the part of the
    /// memory's rate that earlier uses leave. Returns the start and the end.
    pub(super) fn reach(&mut self, process: (NodeId, Port), at: f64, bytes: u64, [own, all]: [f64; 2]) -> (f64, f64) {
        let from = self.take(process, at, 0.0).0;
        let mut now = from;
        let mut left = bytes as f64;
        while left > 0.0 {
            let others = self.uses.iter().filter(|one| one.from <= now && now < one.to);
            let rate = own.min(all - others.map(|one| one.rate).sum::<f64>()).max(0.0);
            let bounds = self.uses.iter().flat_map(|one| [one.from, one.to]);
            let next = bounds.filter(|bound| *bound > now).fold(f64::INFINITY, f64::min);
            let until_next = rate * (next - now);
            let to = if until_next < left { next } else { now + left / rate };
            self.uses.push(MemoryUse { from: now, to, rate });
            left -= until_next;
            now = to;
        }
        (from, self.take(process, now, 0.0).1)
    }

    /// Forgets uses of the memory that have ended.
    pub(super) fn forget(&mut self, now: f64) {
        self.uses.retain(|one| one.to > now);
    }
}

/// Whether a NIC reaches the place over the bus.
pub(super) fn behind_bus(place: &MemorySegment) -> bool {
    match place.region {
        AddressSpace::Host(_) | AddressSpace::Shared => true,
        AddressSpace::Nic => false,
    }
}
