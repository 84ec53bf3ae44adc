//! How long programs take on a cluster, by playing them event by event.
//!
//! Every host has one processor (that of its service process), one way out and one way in of its link, each of which does
//! one thing at a time, first come first served:
//!
//! | step | takes |
//! |---|---|
//! | send to another host | processor `message`, way out `bytes / bandwidth`; the send is complete then |
//! | its receive | `latency` after the first byte left: way in `bytes / bandwidth`, processor `message` |
//! | send to a rank of the host | processor `message` and `bytes / copy`, both ends complete then |
//! | multicast | processor `message`, way out at the multicast rate; ways in of all other hosts at once after `latency`, the processor there `message` and a copy for each local rank but the first, whose bytes are copied as they come (MC-2) |
//! | copy, reduce | processor, `bytes / copy` or `bytes / reduce` |
//!
//! Before all of it goes the ready barrier (MC-4) where nothing is pulled, behind multicasts the handshake (MC-7). This is the reference for the
//! closed forms of [`outboard_plan::selection::formula`], which name the longest path alone. It takes time and memory in the order of all
//! steps of all ranks: for people and tests, not for the choice at a call.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use thiserror::Error;

use outboard_plan::selection::{Case, Choice, Cost, Estimate, at_rate, each, rounds_of};
use outboard_plan::{Op, OpId, Program, Rank};

use crate::programs::{host_of, programs};

/// Why programs have no estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EstimateError {
    /// A step that nothing brings about.
    #[error("step {} of {rank} never runs: what it waits for is sent by nobody; verify the plan", step.0)]
    Stuck {
        /// Whose.
        rank: Rank,
        /// Which.
        step: OpId,
    },
    /// A message to a rank without a program.
    #[error("step {} of {rank} goes to {to}, of {ranks} ranks; give the programs of all ranks in order", step.0)]
    Nobody {
        /// Whose.
        rank: Rank,
        /// Which step.
        step: OpId,
        /// The rank that is not there.
        to: Rank,
        /// Programs given.
        ranks: u32,
    },
    /// Multicast where there is none.
    #[error("step {} of {rank} is a multicast, and the cluster has none; set `multicast` of [cost]", step.0)]
    NoMulticast {
        /// Whose.
        rank: Rank,
        /// Which.
        step: OpId,
    },
}

/// When `programs`, those of all ranks in rank order, are done if all ranks call at once. `host_of` tells the host of each
/// rank.
///
/// # Errors
/// When the programs do not fit together or the cluster; see [`EstimateError`].
pub fn estimate(programs: &[Program], host_of: impl Fn(Rank) -> u32, cost: &Cost) -> Result<Estimate, EstimateError> {
    play(programs, host_of, cost, true)
}

/// When a call by `choice` is done if all ranks call at once; `None` where the algorithm refuses such a call.
///
/// # Errors
/// As [`estimate`].
#[must_use]
pub fn played(case: &Case, choice: Choice, cost: &Cost) -> Option<Result<Estimate, EstimateError>> {
    let programs = programs(case, choice)?;
    Some(play(&programs, |rank| host_of(case, rank), cost, !choice.pulls()))
}

fn play(
    programs: &[Program],
    host_of: impl Fn(Rank) -> u32,
    cost: &Cost,
    barrier: bool,
) -> Result<Estimate, EstimateError> {
    let hosts: Vec<usize> = (0..programs.len() as u32).map(|rank| host_of(Rank(rank)) as usize).collect();
    let mut play = Play::new(programs, hosts, cost);
    play.begin(barrier);
    while let Some(Reverse((at, _, event))) = play.events.pop() {
        play.step(at, event)?;
    }
    play.end()
}

/// Picoseconds since the call.
type Time = u128;
/// A rank and the index of a step of its.
type Place = (usize, usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// All that the step follows is complete.
    Ready(Place),
    /// The processor has handed over a message to another host; the place is that of the send.
    Leaving(Place),
    /// Its first byte has reached the host of the receive.
    Arriving(Place),
    /// Its last byte has.
    Arrived(Place),
    Complete(Place),
}

/// What one host does one thing after another with: when each is free again.
#[derive(Debug, Clone, Copy, Default)]
struct Host {
    processor: Time,
    way_out: Time,
    way_in: Time,
}

struct Play<'a> {
    programs: &'a [Program],
    cost: &'a Cost,
    host_of: Vec<usize>,
    hosts: Vec<Host>,
    /// By rank and step: how many steps are awaited, and for a receive its message.
    awaits: Vec<Vec<u32>>,
    followers: Vec<Vec<Vec<usize>>>,
    /// By destination, source and index; multicasts have no index.
    receives: BTreeMap<(Rank, Rank, Option<u32>), Place>,
    done: Vec<Vec<bool>>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    pushed: u64,
    last: Time,
    handshake: bool,
}

/// What a place's message costs, told from its send.
#[derive(Debug, Clone, Copy)]
struct Message {
    bytes: u64,
    multicast: bool,
}

impl<'a> Play<'a> {
    fn new(programs: &'a [Program], host_of: Vec<usize>, cost: &'a Cost) -> Self {
        let mut followers: Vec<Vec<Vec<usize>>> = programs.iter().map(|p| vec![Vec::new(); p.steps.len()]).collect();
        let mut receives = BTreeMap::new();
        let mut awaits: Vec<Vec<u32>> = Vec::new();
        for (rank, program) in programs.iter().enumerate() {
            let mut counts = Vec::new();
            for (id, step) in program.steps.iter().enumerate() {
                step.after.iter().for_each(|earlier| followers[rank][earlier.0 as usize].push(id));
                let message = match step.op {
                    Op::Recv { from, index, .. } => Some((from, Some(index))),
                    Op::MulticastRecv { root, .. } => Some((root, None)),
                    Op::Send { .. } | Op::Multicast { .. } | Op::Copy { .. } | Op::Reduce { .. } => None,
                };
                if let Some((from, index)) = message {
                    receives.insert((Rank(rank as u32), from, index), (rank, id));
                }
                counts.push(step.after.len() as u32 + u32::from(message.is_some()));
            }
            awaits.push(counts);
        }
        Play {
            programs,
            cost,
            hosts: vec![Host::default(); host_of.iter().max().map_or(0, |most| most + 1)],
            host_of,
            done: awaits.iter().map(|counts| vec![false; counts.len()]).collect(),
            awaits,
            followers,
            receives,
            events: BinaryHeap::new(),
            pushed: 0,
            last: 0,
            handshake: false,
        }
    }

    fn begin(&mut self, barrier: bool) {
        let used: std::collections::BTreeSet<usize> = self.host_of.iter().copied().collect();
        let start = if barrier { each(rounds_of(used.len() as u64), self.cost.control) } else { 0 };
        self.last = start;
        for rank in 0..self.programs.len() {
            for id in 0..self.awaits[rank].len() {
                if self.awaits[rank][id] == 0 {
                    self.push(start, Event::Ready((rank, id)));
                }
            }
        }
    }

    fn end(self) -> Result<Estimate, EstimateError> {
        for (rank, done) in self.done.iter().enumerate() {
            if let Some(id) = done.iter().position(|done| !done) {
                return Err(EstimateError::Stuck { rank: Rank(rank as u32), step: OpId(id as u32) });
            }
        }
        let handshake = if self.handshake { each(1, self.cost.control) } else { 0 };
        Ok(Estimate(self.last + handshake))
    }

    fn push(&mut self, at: Time, event: Event) {
        self.events.push(Reverse((at, self.pushed, event)));
        self.pushed += 1;
    }

    fn op(&self, (rank, id): Place) -> Op {
        self.programs[rank].steps[id].op
    }

    fn step(&mut self, at: Time, event: Event) -> Result<(), EstimateError> {
        match event {
            Event::Ready(place) => self.ready(at, place)?,
            Event::Leaving(place) => self.leaving(at, place)?,
            Event::Arriving(place) => {
                let message = self.message_to(place);
                let takes = self.transfer(message, place)?;
                let host = &mut self.hosts[self.host_of[place.0]];
                host.way_in = host.way_in.max(at) + takes;
                let arrived = host.way_in;
                self.push(arrived, Event::Arrived(place));
            }
            Event::Arrived(place) => {
                let message = self.message_to(place);
                let copies = if message.multicast { self.locals_beside(place) } else { Vec::new() };
                let end = self.work(place, at, each(1, self.cost.message));
                self.push(end, Event::Complete(place));
                for other in copies {
                    let end = self.work(other, at, at_rate(message.bytes, self.cost.copy));
                    self.push(end, Event::Complete(other));
                }
            }
            Event::Complete(place) => self.complete(at, place),
        }
        Ok(())
    }

    fn ready(&mut self, at: Time, place: Place) -> Result<(), EstimateError> {
        match self.op(place) {
            Op::Send { to, span, .. } => {
                let takes = each(1, self.cost.message);
                if self.host(place, to)? == self.host_of[place.0] {
                    let end = self.work(place, at, takes + at_rate(span.len, self.cost.copy));
                    self.push(end, Event::Complete(place));
                    let receive = self.receive_of(place)?;
                    self.push(end, Event::Complete(receive));
                } else {
                    let end = self.work(place, at, takes);
                    self.push(end, Event::Leaving(place));
                }
            }
            Op::Multicast { .. } => {
                let end = self.work(place, at, each(1, self.cost.message));
                self.push(end, Event::Leaving(place));
            }
            Op::Copy { from, .. } => {
                let end = self.work(place, at, at_rate(from.len, self.cost.copy));
                self.push(end, Event::Complete(place));
            }
            Op::Reduce { from, .. } => {
                let end = self.work(place, at, at_rate(from.len, self.cost.reduce));
                self.push(end, Event::Complete(place));
            }
            Op::Recv { .. } | Op::MulticastRecv { .. } => unreachable!("a receive also awaits its message"),
        }
        Ok(())
    }

    fn leaving(&mut self, at: Time, place: Place) -> Result<(), EstimateError> {
        let latency = each(1, self.cost.latency);
        let mine = self.host_of[place.0];
        let span = self.op(place).reads().expect("what leaves is read");
        let message = Message { bytes: span.len, multicast: matches!(self.op(place), Op::Multicast { .. }) };
        let leaders = if message.multicast { self.leaders(Rank(place.0 as u32)) } else { Vec::new() };
        let beyond = leaders.iter().any(|leader| self.host_of[leader.0] != mine);
        let takes = if message.multicast && !beyond { 0 } else { self.transfer(message, place)? };
        let begins = self.hosts[mine].way_out.max(at);
        self.hosts[mine].way_out = begins + takes;
        self.push(begins + takes, Event::Complete(place));
        if !message.multicast {
            let receive = self.receive_of(place)?;
            self.push(begins + latency, Event::Arriving(receive));
            return Ok(());
        }
        self.handshake |= beyond;
        for leader in leaders {
            if self.host_of[leader.0] != mine {
                self.push(begins + latency, Event::Arriving(leader));
                continue;
            }
            for local in std::iter::once(leader).chain(self.locals_beside(leader)) {
                let end = self.work(local, at, at_rate(message.bytes, self.cost.copy));
                self.push(end, Event::Complete(local));
            }
        }
        Ok(())
    }

    /// The receives of the first rank of each host that receives what `root` multicasts.
    fn leaders(&self, root: Rank) -> Vec<Place> {
        let mut of_host = BTreeMap::new();
        for rank in 0..self.programs.len() {
            if let Some(place) = self.receives.get(&(Rank(rank as u32), root, None)) {
                of_host.entry(self.host_of[rank]).or_insert(*place);
            }
        }
        of_host.into_values().collect()
    }

    /// The receives of the other ranks of the host of `leader`, of the same multicast.
    fn locals_beside(&self, leader: Place) -> Vec<Place> {
        let Op::MulticastRecv { root, .. } = self.op(leader) else { return Vec::new() };
        let host = self.host_of[leader.0];
        let local = |rank: &usize| *rank != leader.0 && self.host_of[*rank] == host;
        let receive = |rank| self.receives.get(&(Rank(rank as u32), root, None)).copied();
        (0..self.programs.len()).filter(local).filter_map(receive).collect()
    }

    fn message_to(&self, receive: Place) -> Message {
        let op = self.op(receive);
        let bytes = op.writes().map_or(0, |span| span.len);
        Message { bytes, multicast: matches!(op, Op::MulticastRecv { .. }) }
    }

    /// What a message takes of a link.
    fn transfer(&self, message: Message, place: Place) -> Result<Time, EstimateError> {
        let no_multicast = EstimateError::NoMulticast { rank: Rank(place.0 as u32), step: OpId(place.1 as u32) };
        let rate = if message.multicast { self.cost.multicast.ok_or(no_multicast)? } else { self.cost.bandwidth };
        Ok(at_rate(message.bytes, rate))
    }

    /// Has the processor of the place's host work for it, and tells when it has.
    fn work(&mut self, place: Place, at: Time, takes: Time) -> Time {
        let host = &mut self.hosts[self.host_of[place.0]];
        host.processor = host.processor.max(at) + takes;
        host.processor
    }

    fn host(&self, (rank, id): Place, to: Rank) -> Result<usize, EstimateError> {
        self.host_of.get(to.0 as usize).copied().ok_or(EstimateError::Nobody {
            rank: Rank(rank as u32),
            step: OpId(id as u32),
            to,
            ranks: self.programs.len() as u32,
        })
    }

    /// Where the message of a send is received. A message that nobody receives is as good as stuck.
    fn receive_of(&self, place: Place) -> Result<Place, EstimateError> {
        let (rank, id) = (Rank(place.0 as u32), OpId(place.1 as u32));
        let Op::Send { to, index, .. } = self.op(place) else { unreachable!("only sends have one receive") };
        self.receives.get(&(to, rank, Some(index))).copied().ok_or(EstimateError::Stuck { rank, step: id })
    }

    /// Of a receive: its message is there. Of others: they are done.
    fn complete(&mut self, at: Time, place: Place) {
        let (rank, id) = place;
        match self.op(place) {
            Op::Recv { .. } | Op::MulticastRecv { .. } => {
                self.awaits[rank][id] -= 1;
                if self.awaits[rank][id] == 0 {
                    self.finish(at, place);
                }
            }
            Op::Send { .. } | Op::Multicast { .. } | Op::Copy { .. } | Op::Reduce { .. } => self.finish(at, place),
        }
    }

    fn finish(&mut self, at: Time, (rank, id): Place) {
        self.done[rank][id] = true;
        self.last = self.last.max(at);
        for follower in std::mem::take(&mut self.followers[rank][id]) {
            self.awaits[rank][follower] -= 1;
            if self.awaits[rank][follower] > 0 {
                continue;
            }
            match self.op((rank, follower)) {
                Op::Recv { .. } | Op::MulticastRecv { .. } => self.finish(at, (rank, follower)),
                Op::Send { .. } | Op::Multicast { .. } | Op::Copy { .. } | Op::Reduce { .. } => {
                    self.push(at, Event::Ready((rank, follower)));
                }
            }
        }
    }
}
