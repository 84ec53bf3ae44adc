//! The parts of machines, each of which does one thing at a time, in the order in which it is asked.
//!
//! Nodes may share a machine: in a flat communicator the plan knows of no hosts, but ranks of a host share its NIC,
//! bus, link and memory. Processors are each process's own. Times are in nanoseconds.

use std::collections::BTreeMap;

use outboard_nic::{Node, Place, Port, Region};

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
    pub(super) bus: [Part; 2],
    /// By port of the NIC, out and in.
    pub(super) links: BTreeMap<u32, [Part; 2]>,
    /// The parts of the NIC that send, by number, and the one that receives.
    pub(super) senders: BTreeMap<u16, Part>,
    pub(super) receiver: Part,
    pub(super) processors: Processors,
}

/// What processors of a node have written, with the time from which on it is there.
#[derive(Debug, Default)]
pub(super) struct Written(Vec<(Place, f64)>);

impl Written {
    pub(super) fn note(&mut self, place: Place, at: f64) {
        self.0.push((place, at));
    }

    /// From when on all of these places are there.
    pub(super) fn since(&self, places: &[Place]) -> f64 {
        let meet = |a: &Place, b: &Place| {
            a.region == b.region && a.address < b.address + b.len && b.address < a.address + a.len
        };
        let of = |place: &Place| {
            let later = self.0.iter().filter(|(written, _)| meet(written, place));
            later.map(|(_, at)| *at).fold(0.0, f64::max)
        };
        places.iter().map(of).fold(0.0, f64::max)
    }

    /// Forgets what is there by now.
    pub(super) fn forget(&mut self, now: f64) {
        self.0.retain(|(_, at)| *at > now);
    }
}

/// The processors of a machine, by process: each is a part, and is in its memory until some time.
#[derive(Debug, Default)]
pub(super) struct Processors(BTreeMap<(Node, Port), (Part, f64)>);

impl Processors {
    /// Takes a processor for so long; until when.
    pub(super) fn take(&mut self, process: (Node, Port), at: f64, long: f64) -> f64 {
        self.0.entry(process).or_default().0.take(at, long).1
    }

    /// It goes through so many bytes of memory, at its own rate or, where that is less, an equal part of the rate of
    /// all who do so when it begins; until when.
    pub(super) fn reach(&mut self, process: (Node, Port), at: f64, bytes: u64, [own, all]: [f64; 2]) -> f64 {
        let others = self.0.iter().filter(|(other, (_, until))| **other != process && *until > at).count();
        let rate = own.min(all / (1 + others) as f64);
        let done = self.take(process, at, bytes as f64 / rate);
        self.0.entry(process).or_default().1 = done;
        done
    }
}

/// Whether a NIC reaches it over the bus.
pub(super) fn behind_bus(place: &Place) -> bool {
    match place.region {
        Region::Host(_) | Region::Shared => true,
        Region::Nic => false,
    }
}
