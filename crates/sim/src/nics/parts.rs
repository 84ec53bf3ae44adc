//! The parts of machines, each of which does one thing at a time, in the order in which it is asked.
//!
//! Nodes may share a machine: in a flat communicator the plan knows of no hosts, but ranks of a host share its NIC,
//! bus, link and memory. Processors are each process's own. Times are in nanoseconds.

use std::collections::BTreeMap;

use outboard_nic::{Node, Place, Port, Region};

use super::trace::Component;

/// A part that is in use until then.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part(f64);

impl Part {
    /// Takes it for so long, from `at` on or later; from when to when.
    pub(super) fn take(&mut self, at: f64, long: f64) -> (f64, f64) {
        let from = self.0.max(at);
        self.0 = from + long;
        (from, self.0)
    }
}

/// What the nodes of one machine share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// From memory to NIC, and back.
    bus: [Part; 2],
    /// By port of the NIC, out and in.
    links: BTreeMap<u32, [Part; 2]>,
    /// The parts of the NIC that send, by number, and the one that receives.
    senders: BTreeMap<u16, Part>,
    receiver: Part,
    pub(super) processors: Processors,
}

impl Shared {
    pub(super) fn part(&mut self, component: Component) -> &mut Part {
        match component {
            Component::Sender(number) => self.senders.entry(number).or_default(),
            Component::Receiver => &mut self.receiver,
            Component::Bus(direction) => &mut self.bus[direction as usize],
            Component::Link(port, direction) => &mut self.links.entry(port).or_default()[direction as usize],
        }
    }
}

/// What processors of a node have written, with the time from which on it is there, and whose processor.
#[derive(Debug, Default)]
pub(super) struct Written(Vec<(Place, f64, Port)>);

impl Written {
    pub(super) fn note(&mut self, place: Place, at: f64, by: Port) {
        self.0.push((place, at, by));
    }

    /// From when on all of these places are there, and who wrote the last of them if that is later than `at`.
    pub(super) fn since(&self, places: &[Place], at: f64) -> (f64, Option<Port>) {
        let meet = |a: &Place, b: &Place| {
            a.region == b.region && a.address < b.address + b.len && b.address < a.address + a.len
        };
        let read = self.0.iter().filter(|(written, ..)| places.iter().any(|place| meet(written, place)));
        read.fold((at, None), |last, (_, at, by)| if *at > last.0 { (*at, Some(*by)) } else { last })
    }

    /// Forgets what is there by now.
    pub(super) fn forget(&mut self, now: f64) {
        self.0.retain(|(_, at, _)| *at > now);
    }
}

/// The processors of a machine, by process: each is a part, and is in its memory until some time.
#[derive(Debug, Default)]
pub(super) struct Processors(BTreeMap<(Node, Port), (Part, f64)>);

impl Processors {
    /// Takes a processor for so long; from when to when.
    pub(super) fn take(&mut self, process: (Node, Port), at: f64, long: f64) -> (f64, f64) {
        self.0.entry(process).or_default().0.take(at, long)
    }

    /// It goes through so many bytes of memory, at its own rate or, where that is less, an equal part of the rate of
    /// all who do so when it begins; from when to when.
    pub(super) fn reach(&mut self, process: (Node, Port), at: f64, bytes: u64, [own, all]: [f64; 2]) -> (f64, f64) {
        let others = self.0.iter().filter(|(other, (_, until))| **other != process && *until > at).count();
        let rate = own.min(all / (1 + others) as f64);
        let span = self.take(process, at, bytes as f64 / rate);
        self.0.entry(process).or_default().1 = span.1;
        span
    }
}

/// Whether a NIC reaches it over the bus.
pub(super) fn behind_bus(place: &Place) -> bool {
    match place.region {
        Region::Host(_) | Region::Shared => true,
        Region::Nic => false,
    }
}
