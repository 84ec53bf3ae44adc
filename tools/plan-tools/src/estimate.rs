//! Estimates the time of programs on a cluster by simulating them event by event.
//!
//! Every host has one processor (that of its service process) and one link with a way out and a way in. Each of the
//! three does one thing at a time, first come first served:
//!
//! | step | takes |
//! |---|---|
//! | send to another host | processor `message`, way out `bytes / bandwidth`; then the send is complete |
//! | its receive | `latency` after the first byte left: way in `bytes / bandwidth`, processor `message` |
//! | send to a rank of the host | processor `message` and `bytes / copy`; then both ends are complete |
//! | multicast | processor `message`, way out at the multicast rate |
//! | its receives | all at once, `latency` later: way in, processor `message`, a copy for each rank but one (MC-2) |
//! | copy, reduce | processor, `bytes / copy` or `bytes / reduce` |
//!
//! The ready barrier (MC-4) comes first unless the call pulls, and the handshake (MC-7) follows multicasts. This module
//! is the reference for the closed forms of [`outboard_plan::selection::formula`], which name the longest path alone.
//! Its time and memory grow with all steps of all ranks: it is for people and tests, not for the choice at a call.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use outboard_plan::selection::{Case, Choice, Cost, Estimate, at_rate, each, rounds_of};
use outboard_plan::{Op, Program, Rank};
use thiserror::Error;

use crate::programs::{host_of, programs};
use crate::verify::{At, Graph, Node, VerifyError, well_formed};

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EstimateError {
    #[error(transparent)]
    Plan(#[from] VerifyError),
    #[error("{at}: the cluster has no multicast; set `multicast` of [cost]")]
    NoMulticast { at: Box<At> },
}

/// The time until `programs` are done if all ranks call at once. `programs` holds all ranks in rank order, and
/// `host_of` returns the host of each rank.
pub fn estimate(programs: &[Program], host_of: impl Fn(Rank) -> u32, cost: &Cost) -> Result<Estimate, EstimateError> {
    play(programs, host_of, cost, true)
}

/// The time until a call by `choice` is done if all ranks call at once; `None` if the algorithm rejects such a call.
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
    well_formed(programs)?;
    let graph = Graph::new(programs)?;
    let hosts: Vec<usize> = (0..programs.len() as u32).map(|rank| host_of(Rank(rank)) as usize).collect();
    let mut play = Play::new(&graph, hosts, cost);
    let multicast = |node: &Node| matches!(graph.op(*node), Op::Multicast { .. }) && play.leaves(*node);
    if let (None, Some(node)) = (cost.multicast, (0..graph.nodes()).find(multicast)) {
        return Err(EstimateError::NoMulticast { at: graph.at(node).boxed() });
    }
    play.begin(barrier);
    while let Some(Reverse((at, _, event))) = play.events.pop() {
        play.step(at, event);
    }
    let handshake = if play.handshake { each(1, cost.control) } else { 0 };
    Ok(Estimate(play.last + handshake))
}

/// Picoseconds since the call.
type Time = u128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// All earlier steps that this step follows are complete.
    Ready(Node),
    /// The processor has handed over a message to another host; the node is the send.
    Leaving(Node),
    /// The first byte of the message has reached the host of the receive.
    Arriving(Node),
    /// The last byte of the message has reached the host of the receive.
    Arrived(Node),
    Complete(Node),
}

/// Times at which the resources of one host are free again.
#[derive(Debug, Clone, Copy, Default)]
struct Host {
    processor: Time,
    way_out: Time,
    way_in: Time,
}

struct Play<'a> {
    graph: &'a Graph<'a>,
    cost: &'a Cost,
    host_of: Vec<usize>,
    hosts: Vec<Host>,
    /// By step: the number of steps that it waits for, plus one for a receive whose message is missing.
    awaits: Vec<usize>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    pushed: u64,
    last: Time,
    handshake: bool,
}

impl<'a> Play<'a> {
    fn new(graph: &'a Graph<'a>, host_of: Vec<usize>, cost: &'a Cost) -> Self {
        let awaited = |node| graph.after(node).len() + usize::from(graph.source(node).is_some());
        Play {
            graph,
            cost,
            hosts: vec![Host::default(); host_of.iter().max().map_or(0, |most| most + 1)],
            host_of,
            awaits: (0..graph.nodes()).map(awaited).collect(),
            events: BinaryHeap::new(),
            pushed: 0,
            last: 0,
            handshake: false,
        }
    }

    fn begin(&mut self, barrier: bool) {
        let used: BTreeSet<usize> = self.host_of.iter().copied().collect();
        let start = if barrier { each(rounds_of(used.len() as u64), self.cost.control) } else { 0 };
        self.last = start;
        for node in (0..self.awaits.len()).filter(|node| self.graph.after(*node).is_empty()) {
            if self.awaits[node] == 0 {
                self.push(start, Event::Ready(node));
            }
        }
    }

    fn push(&mut self, at: Time, event: Event) {
        self.events.push(Reverse((at, self.pushed, event)));
        self.pushed += 1;
    }

    fn host(&self, node: Node) -> usize {
        self.host_of[self.graph.at(node).rank.0 as usize]
    }

    /// Whether a rank of another host receives the message of a step.
    fn leaves(&self, send: Node) -> bool {
        self.graph.receivers(send).iter().any(|receive| self.host(*receive) != self.host(send))
    }

    fn step(&mut self, at: Time, event: Event) {
        match event {
            Event::Ready(node) => self.ready(at, node),
            Event::Leaving(node) => self.leaving(at, node),
            Event::Arriving(receive) => {
                let takes = self.transfer(receive);
                let host = self.host(receive);
                let way_in = &mut self.hosts[host].way_in;
                *way_in = (*way_in).max(at) + takes;
                let arrived = *way_in;
                self.push(arrived, Event::Arrived(receive));
            }
            Event::Arrived(receive) => {
                self.work(receive, at, each(1, self.cost.message));
                for other in self.locals_beside(receive) {
                    self.work(other, at, at_rate(self.bytes(receive), self.cost.copy));
                }
            }
            Event::Complete(node) => self.complete(at, node),
        }
    }

    fn ready(&mut self, at: Time, node: Node) {
        let message = each(1, self.cost.message);
        match self.graph.op(node) {
            Op::Send { span, .. } if !self.leaves(node) => {
                let end = self.work(node, at, message + at_rate(span.len, self.cost.copy));
                self.push(end, Event::Complete(self.graph.receivers(node)[0]));
            }
            Op::Send { .. } | Op::Multicast { .. } => {
                let end = self.occupy(node, at, message);
                self.push(end, Event::Leaving(node));
            }
            Op::Copy { from, .. } => {
                self.work(node, at, at_rate(from.len, self.cost.copy));
            }
            Op::Reduce { from, .. } => {
                self.work(node, at, at_rate(from.len, self.cost.reduce));
            }
            Op::Recv { .. } | Op::MulticastRecv { .. } => unreachable!("a receive also awaits its message"),
        }
    }

    fn leaving(&mut self, at: Time, send: Node) {
        let mine = self.host(send);
        let leaves = self.leaves(send);
        let takes = if leaves { self.transfer(send) } else { 0 };
        let begins = self.hosts[mine].way_out.max(at);
        self.hosts[mine].way_out = begins + takes;
        self.push(begins + takes, Event::Complete(send));
        self.handshake |= leaves && matches!(self.graph.op(send), Op::Multicast { .. });
        // The first receive of each host stands for all of its ranks.
        let mut first = BTreeMap::new();
        for receive in self.graph.receivers(send) {
            first.entry(self.host(*receive)).or_insert(*receive);
        }
        for (host, receive) in first {
            if host != mine {
                self.push(begins + each(1, self.cost.latency), Event::Arriving(receive));
                continue;
            }
            for local in std::iter::once(receive).chain(self.locals_beside(receive)) {
                self.work(local, at, at_rate(self.bytes(send), self.cost.copy));
            }
        }
    }

    /// The other receives of the same message on the same host.
    fn locals_beside(&self, receive: Node) -> Vec<Node> {
        let all = self.graph.source(receive).map_or(&[][..], |send| self.graph.receivers(send));
        let beside = |other: &Node| *other != receive && self.host(*other) == self.host(receive);
        all.iter().copied().filter(beside).collect()
    }

    fn bytes(&self, node: Node) -> u64 {
        let op = self.graph.op(node);
        op.reads().or(op.writes()).map_or(0, |span| span.len)
    }

    /// Time on a link for the message of a step.
    fn transfer(&self, node: Node) -> Time {
        let multicast = matches!(self.graph.op(node), Op::Multicast { .. } | Op::MulticastRecv { .. });
        let rate = if multicast { self.cost.multicast } else { None };
        at_rate(self.bytes(node), rate.unwrap_or(self.cost.bandwidth))
    }

    /// Occupies the processor of the step's host; returns the time when it is done.
    fn occupy(&mut self, node: Node, at: Time, takes: Time) -> Time {
        let host = self.host(node);
        let processor = &mut self.hosts[host].processor;
        *processor = (*processor).max(at) + takes;
        *processor
    }

    /// Occupies the processor; afterwards the step is complete, or its message has arrived.
    fn work(&mut self, node: Node, at: Time, takes: Time) -> Time {
        let end = self.occupy(node, at, takes);
        self.push(end, Event::Complete(node));
        end
    }

    /// Completes a step. For a receive, only its message has arrived, so it may still wait for earlier steps.
    fn complete(&mut self, at: Time, node: Node) {
        if self.graph.source(node).is_some() {
            self.awaits[node] -= 1;
            if self.awaits[node] > 0 {
                return;
            }
        }
        self.finish(at, node);
    }

    fn finish(&mut self, at: Time, node: Node) {
        self.last = self.last.max(at);
        for follower in self.graph.followers(node).to_vec() {
            self.awaits[follower] -= 1;
            if self.awaits[follower] > 0 {
                continue;
            }
            if self.graph.source(follower).is_some() {
                self.finish(at, follower);
            } else {
                self.push(at, Event::Ready(follower));
            }
        }
    }
}
