//! The path from point to point (C = 0): messages from the memory of a process to that of another, past units and
//! buffers (TH-1).
//!
//! Messages from one port to another of a job are numbered as they are posted, and so are the places that the other
//! one names for them; equal numbers belong together. A message leaves when its place is named, which is what
//! SwapRemoteAddr says: the place stays with its NIC, and packets name it by number, so nobody writes anywhere else.
//!
//! Invariants: nothing waits here for a sequence, and no sequence for this; a place is written by as many chunks as its
//! message has, each once. Never holds payload.

use std::collections::{BTreeMap, VecDeque};

use super::descriptor::{Descriptor, Flags, Source};
use super::progress::{cut, pairs};
use super::task::End;
use super::{Content, Ordered, TaskKey};
use crate::engine::{Order, Output, Place, Port, Worker};

/// A place that was named.
#[derive(Debug)]
struct Landing {
    call: u64,
    descriptor: Descriptor,
    /// By chunk, and how many are missing.
    arrived: Vec<bool>,
    missing: usize,
}

/// Messages between this port and another one of its job.
#[derive(Debug, Default)]
struct Pair {
    /// Messages to there that have left, and those that wait for their places, with their calls.
    sent: u64,
    waiting: VecDeque<(u64, Descriptor)>,
    /// There are places for all messages to there before this one.
    places: u64,
    /// Places that were named for messages from there, and those of them that are awaited.
    named: u64,
    landings: BTreeMap<u64, Landing>,
}

/// What a port has from point to point.
#[derive(Debug, Default)]
pub(super) struct Direct {
    pairs: BTreeMap<Source, Pair>,
    /// The call that is being posted.
    call: u64,
    /// By call, descriptors that are not carried out.
    left: BTreeMap<u64, usize>,
}

impl Direct {
    /// Whether everything that was posted up to the end of a call has been carried out.
    pub(super) fn is_over(&self, call: u64) -> bool {
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

impl Ordered {
    /// Who carries out what is from point to point, beside the units.
    pub(super) fn direct_path(&self) -> Worker {
        Worker::Nic(self.settings.units as u16)
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
                let landing = Landing { call, descriptor, arrived: vec![false; packets], missing: packets };
                pair.landings.insert(pair.named, landing);
                pair.named += 1;
                let before = pair.named;
                self.transmit(key, peer, Content::Places { before }, Vec::new());
            }
            None => direct.done(call),
        }
        if flags.has(Flags::ENDS) {
            let task = self.task(key);
            task.ends.push_back(End::Direct(call));
            task.direct.call += 1;
        }
        match peer {
            Some(peer) => self.send_on(key, peer),
            None => self.tell_ended(key),
        }
    }

    fn copy(&mut self, port: Port, descriptor: &Descriptor) {
        let whole = (0, descriptor.length.into());
        let [from, to] = [&descriptor.operand, &descriptor.result].map(|pieces| cut(pieces, whole, port, 0));
        let by = self.direct_path();
        let copy = |(from, to)| Output::Order { by, order: Order::Copy { from, to } };
        self.outputs.extend(pairs(&from, &to).map(copy));
    }

    /// Sends the messages for a port that have places there.
    fn send_on(&mut self, key: TaskKey, to: Source) {
        while let Some(pair) = self.task(key).direct.pairs.get_mut(&to)
            && pair.sent < pair.places
            && let Some((call, descriptor)) = pair.waiting.pop_front()
        {
            let number = pair.sent;
            pair.sent += 1;
            self.send_message(key, to, number, &descriptor);
            self.task(key).direct.done(call);
        }
        self.tell_ended(key);
    }

    fn send_message(&mut self, key: TaskKey, to: Source, number: u64, descriptor: &Descriptor) {
        let (length, by) = (u64::from(descriptor.length), self.direct_path());
        for chunk in 0..self.settings.packets(length) {
            let part = self.settings.packet(length, chunk);
            let payload = if descriptor.inline.is_empty() {
                cut(&descriptor.message, part, Port(key.1), 0)
            } else {
                self.carried(by, &descriptor.inline, part)
            };
            self.transmit(key, to, Content::Direct { number, chunk: chunk as u16, bytes: part.1 as u32 }, payload);
        }
    }

    /// A peer has named places.
    pub(super) fn placed(&mut self, key: TaskKey, from: Source, before: u64) {
        let pair = self.task(key).direct.pairs.entry(from).or_default();
        pair.places = pair.places.max(before);
        self.send_on(key, from);
    }

    /// A chunk of a message has come, for the place of its number.
    pub(super) fn land(&mut self, key: TaskKey, source: Source, (number, chunk, bytes): (u64, u16, u32)) {
        let by = self.direct_path();
        let task = self.tasks.get_mut(&key).expect("looked up");
        let pair = task.direct.pairs.get_mut(&source).expect("it has places");
        let landing = pair.landings.get_mut(&number).expect("a message leaves when its place is named");
        let part = self.settings.packet(landing.descriptor.length.into(), chunk.into());
        assert_eq!(part.1, u64::from(bytes), "a message is as long as its place");
        assert!(!std::mem::replace(&mut landing.arrived[usize::from(chunk)], true), "a chunk comes once");
        landing.missing -= 1;
        let places: Vec<Place> = cut(&landing.descriptor.result, part, Port(key.1), 0);
        self.outputs.extend(places.into_iter().map(|to| Output::Order { by, order: Order::Deliver { to } }));
        if landing.missing == 0 {
            let call = landing.call;
            pair.landings.remove(&number);
            task.direct.done(call);
            self.tell_ended(key);
        }
    }
}
