//! The point-to-point path (C = 0): messages from the memory of one process to that of another, without units and
//! buffers (TH-1).
//!
//! Messages from one port to another of a job are numbered in the order of posting. The destination numbers the places
//! for these messages in the order of naming; a message belongs to the place with its number. A message leaves when its
//! place is named, by SwapRemoteAddr. The destination's NIC keeps the place; packets refer to the place by number, so
//! no packet can write elsewhere.
//!
//! Invariants: no message waits for a sequence, and no sequence for a message. Every chunk of a message writes its
//! place exactly once. Never holds payload.

use std::collections::{BTreeMap, VecDeque};

use super::descriptor::{Descriptor, Flags, PortAddress};
use super::progress::{cut, pairs};
use super::task::CallEnd;
use super::{OrderedContent, OrderedEngine, TaskKey};
use crate::engine::{Executor, MemorySegment, NicOrder, Output, Port};

/// A place that was named for a message.
#[derive(Debug)]
struct MessageTarget {
    call: u64,
    descriptor: Descriptor,
    /// Arrived chunks, and the number of missing ones.
    arrived: Vec<bool>,
    missing: usize,
}

/// Messages between this port and another one of its job.
#[derive(Debug, Default)]
struct PortPair {
    /// Number of messages that have left for the other port; the messages that wait for their places, with their calls.
    sent: u64,
    waiting: VecDeque<(u64, Descriptor)>,
    /// The other port has named places for all messages before this number.
    places: u64,
    /// Number of places that were named for messages of the other port; the places that still await chunks.
    named: u64,
    targets: BTreeMap<u64, MessageTarget>,
}

/// Point-to-point state of a port.
#[derive(Debug, Default)]
pub(super) struct DirectState {
    pairs: BTreeMap<PortAddress, PortPair>,
    /// The call that is being posted.
    call: u64,
    /// Number of unfinished descriptors, by call.
    left: BTreeMap<u64, usize>,
}

impl DirectState {
    /// Whether all descriptors posted up to the end of a call have been carried out.
    pub(super) fn has_finished(&self, call: u64) -> bool {
        self.left.first_key_value().is_none_or(|(oldest, _)| *oldest > call)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.left.is_empty()
    }

    fn done(&mut self, call: u64) {
        let left = self.left.get_mut(&call).expect("counted when it was posted");
        *left -= 1;
        if *left == 0 {
            self.left.remove(&call);
        }
    }
}

impl OrderedEngine {
    /// The part of the NIC that carries out point-to-point descriptors, beside the units.
    pub(super) fn direct_path(&self) -> Executor {
        Executor::Nic(self.settings.units as u16)
    }

    pub(super) fn post_direct(&mut self, port: Port, descriptor: Descriptor) {
        let key = (descriptor.job, port.0);
        let (flags, peer) = (descriptor.flags, descriptor.peer());
        self.copy(port, &descriptor);
        let packets = self.settings.packets(descriptor.length.into()) as usize;
        let direct = &mut self.task(key).direct;
        let call = direct.call;
        *direct.left.entry(call).or_default() += 1;
        match peer {
            Some(peer) if flags.has(Flags::SWAP_REMOTE_DATA) => {
                direct.pairs.entry(peer).or_default().waiting.push_back((call, descriptor));
            }
            Some(peer) => {
                let pair = direct.pairs.entry(peer).or_default();
                let target = MessageTarget { call, descriptor, arrived: vec![false; packets], missing: packets };
                pair.targets.insert(pair.named, target);
                pair.named += 1;
                let before = pair.named;
                self.transmit(key, peer, OrderedContent::Places { before }, Vec::new());
            }
            None => direct.done(call),
        }
        if flags.has(Flags::ENDS) {
            let task = self.task(key);
            task.ends.push_back(CallEnd::Direct(call));
            task.direct.call += 1;
        }
        match peer {
            Some(peer) => self.send_placed(key, peer),
            None => self.report_ended(key),
        }
    }

    fn copy(&mut self, port: Port, descriptor: &Descriptor) {
        let whole = (0, descriptor.length.into());
        let [from, to] = [&descriptor.operand, &descriptor.result].map(|pieces| cut(pieces, whole, port, 0));
        let by = self.direct_path();
        let copy = |(from, to)| Output::Order { by, order: NicOrder::Copy { from, to } };
        self.outputs.extend(pairs(&from, &to).map(copy));
    }

    /// Sends the waiting messages whose places the destination has named.
    fn send_placed(&mut self, key: TaskKey, to: PortAddress) {
        while let Some(pair) = self.task(key).direct.pairs.get_mut(&to)
            && pair.sent < pair.places
            && let Some((call, descriptor)) = pair.waiting.pop_front()
        {
            let number = pair.sent;
            pair.sent += 1;
            self.send_message(key, to, number, &descriptor);
            self.task(key).direct.done(call);
        }
        self.report_ended(key);
    }

    fn send_message(&mut self, key: TaskKey, to: PortAddress, number: u64, descriptor: &Descriptor) {
        let (length, by) = (u64::from(descriptor.length), self.direct_path());
        for chunk in 0..self.settings.packets(length) {
            let part = self.settings.packet(length, chunk);
            let payload = if descriptor.inline.is_empty() {
                cut(&descriptor.message, part, Port(key.1), 0)
            } else {
                self.write_inline(by, &descriptor.inline, part)
            };
            self.transmit(
                key,
                to,
                OrderedContent::Direct { number, chunk: chunk as u16, bytes: part.1 as u32 },
                payload,
            );
        }
    }

    /// Handles a peer's report that it has named places.
    pub(super) fn handle_places(&mut self, key: TaskKey, from: PortAddress, before: u64) {
        let pair = self.task(key).direct.pairs.entry(from).or_default();
        pair.places = pair.places.max(before);
        self.send_placed(key, from);
    }

    /// Writes a chunk of a message to the place with the message's number.
    pub(super) fn write_chunk(&mut self, key: TaskKey, source: PortAddress, (number, chunk, bytes): (u64, u16, u32)) {
        let by = self.direct_path();
        let task = self.tasks.get_mut(&key).expect("looked up");
        let pair = task.direct.pairs.get_mut(&source).expect("it has places");
        let target = pair.targets.get_mut(&number).expect("a message leaves when its place is named");
        let part = self.settings.packet(target.descriptor.length.into(), chunk.into());
        assert_eq!(part.1, u64::from(bytes), "a message is as long as its place");
        assert!(!std::mem::replace(&mut target.arrived[usize::from(chunk)], true), "a chunk comes once");
        target.missing -= 1;
        let places: Vec<MemorySegment> = cut(&target.descriptor.result, part, Port(key.1), 0);
        self.outputs.extend(places.into_iter().map(|to| Output::Order { by, order: NicOrder::Deliver { to } }));
        if target.missing == 0 {
            let call = target.call;
            pair.targets.remove(&number);
            task.direct.done(call);
            self.report_ended(key);
        }
    }
}
