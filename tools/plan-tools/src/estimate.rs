//! Estimates the time of programs on a cluster by simulating them event by event.
//!
//! Every host has one processor (for its service process) and one link with a way out and a way in. Each of these three
//! resources does one thing at a time, first come first served:
//!
//! | step | takes |
//! |---|---|
//! | send to another host | processor `message`, way out `bytes / bandwidth`; then the send is complete |
//! | receive from another host | `latency` after the first byte left: way in `bytes / bandwidth`, processor `message` |
//! | send to a rank of the host | processor `message` and `bytes / copy`; then both ends are complete |
//! | multicast | processor `message`, way out at the multicast rate |
//! | multicast receives | all at once, `latency` later: way in, processor `message`, a copy per rank but one (MC-2) |
//! | copy, reduce | processor, `bytes / copy` or `bytes / reduce` |
//!
//! The ready barrier (MC-4) comes first unless the call pulls, and the handshake (MC-7) follows multicasts. This module
//! is the reference for the closed forms of [`outboard_plan::selection::formula`]; the closed forms cover the longest
//! path alone. The time and memory of a simulation grow with all steps of all ranks. So this module is for people and
//! tests, not for the choice at a call.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use outboard_plan::selection::{Case, Choice, Cost, Estimate, at_rate, each, rounds_of};
use outboard_plan::{Op, Program, Rank};
use thiserror::Error;

use crate::programs::{host_of, programs};
use crate::verify::{StepGraph, StepLocation, StepNode, VerifyError, well_formed};

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EstimateError {
    #[error(transparent)]
    Plan(#[from] VerifyError),
    #[error("{at}: the cluster has no multicast; set `multicast` of [cost]")]
    NoMulticast { at: Box<StepLocation> },
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
    let graph = StepGraph::new(programs)?;
    let hosts: Vec<usize> = (0..programs.len() as u32).map(|rank| host_of(Rank(rank)) as usize).collect();
    let mut play = PlanPlayer::new(&graph, hosts, cost);
    let multicast = |node: &StepNode| matches!(graph.op(*node), Op::Multicast { .. }) && play.leaves(*node);
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
type Picoseconds = u128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PlayEvent {
    /// All earlier steps that this step follows are complete.
    Ready(StepNode),
    /// The processor has handed over a message to another host; the node is the send.
    Leaving(StepNode),
    /// The first byte of the message has reached the host of the receive.
    Arriving(StepNode),
    /// The last byte of the message has reached the host of the receive.
    Arrived(StepNode),
    Complete(StepNode),
}

/// Times at which the resources of one host are free again.
#[derive(Debug, Clone, Copy, Default)]
struct HostResources {
    processor: Picoseconds,
    way_out: Picoseconds,
    way_in: Picoseconds,
}

struct PlanPlayer<'a> {
    graph: &'a StepGraph<'a>,
    cost: &'a Cost,
    host_of: Vec<usize>,
    hosts: Vec<HostResources>,
    /// By step: the number of steps that it waits for, plus one for a receive whose message is missing.
    awaits: Vec<usize>,
    events: BinaryHeap<Reverse<(Picoseconds, u64, PlayEvent)>>,
    pushed: u64,
    last: Picoseconds,
    handshake: bool,
}

impl<'a> PlanPlayer<'a> {
    fn new(graph: &'a StepGraph<'a>, host_of: Vec<usize>, cost: &'a Cost) -> Self {
        let awaited = |node| graph.after(node).len() + usize::from(graph.source(node).is_some());
        PlanPlayer {
            graph,
            cost,
            hosts: vec![HostResources::default(); host_of.iter().max().map_or(0, |most| most + 1)],
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
                self.push(start, PlayEvent::Ready(node));
            }
        }
    }

    fn push(&mut self, at: Picoseconds, event: PlayEvent) {
        self.events.push(Reverse((at, self.pushed, event)));
        self.pushed += 1;
    }

    fn host(&self, node: StepNode) -> usize {
        self.host_of[self.graph.at(node).rank.0 as usize]
    }

    /// Whether a rank of another host receives the message of a step.
    fn leaves(&self, send: StepNode) -> bool {
        self.graph.receivers(send).iter().any(|receive| self.host(*receive) != self.host(send))
    }

    fn step(&mut self, at: Picoseconds, event: PlayEvent) {
        match event {
            PlayEvent::Ready(node) => self.ready(at, node),
            PlayEvent::Leaving(node) => self.leaving(at, node),
            PlayEvent::Arriving(receive) => {
                let takes = self.transfer(receive);
                let host = self.host(receive);
                let way_in = &mut self.hosts[host].way_in;
                *way_in = (*way_in).max(at) + takes;
                let arrived = *way_in;
                self.push(arrived, PlayEvent::Arrived(receive));
            }
            PlayEvent::Arrived(receive) => {
                self.work(receive, at, each(1, self.cost.message));
                for other in self.locals_beside(receive) {
                    self.work(other, at, at_rate(self.bytes(receive), self.cost.copy));
                }
            }
            PlayEvent::Complete(node) => self.complete(at, node),
        }
    }

    fn ready(&mut self, at: Picoseconds, node: StepNode) {
        let message = each(1, self.cost.message);
        match self.graph.op(node) {
            Op::Send { span, .. } if !self.leaves(node) => {
                let end = self.work(node, at, message + at_rate(span.len, self.cost.copy));
                self.push(end, PlayEvent::Complete(self.graph.receivers(node)[0]));
            }
            Op::Send { .. } | Op::Multicast { .. } => {
                let end = self.occupy(node, at, message);
                self.push(end, PlayEvent::Leaving(node));
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

    fn leaving(&mut self, at: Picoseconds, send: StepNode) {
        let mine = self.host(send);
        let leaves = self.leaves(send);
        let takes = if leaves { self.transfer(send) } else { 0 };
        let begins = self.hosts[mine].way_out.max(at);
        self.hosts[mine].way_out = begins + takes;
        self.push(begins + takes, PlayEvent::Complete(send));
        self.handshake |= leaves && matches!(self.graph.op(send), Op::Multicast { .. });
        // The first receive of each host stands for all of its ranks.
        let mut first = BTreeMap::new();
        for receive in self.graph.receivers(send) {
            first.entry(self.host(*receive)).or_insert(*receive);
        }
        for (host, receive) in first {
            if host != mine {
                self.push(begins + each(1, self.cost.latency), PlayEvent::Arriving(receive));
                continue;
            }
            for local in std::iter::once(receive).chain(self.locals_beside(receive)) {
                self.work(local, at, at_rate(self.bytes(send), self.cost.copy));
            }
        }
    }

    /// The other receives of the same message on the same host.
    fn locals_beside(&self, receive: StepNode) -> Vec<StepNode> {
        let all = self.graph.source(receive).map_or(&[][..], |send| self.graph.receivers(send));
        let beside = |other: &StepNode| *other != receive && self.host(*other) == self.host(receive);
        all.iter().copied().filter(beside).collect()
    }

    fn bytes(&self, node: StepNode) -> u64 {
        let op = self.graph.op(node);
        op.reads().or(op.writes()).map_or(0, |span| span.len)
    }

    /// Time on a link for the message of a step.
    fn transfer(&self, node: StepNode) -> Picoseconds {
        let multicast = matches!(self.graph.op(node), Op::Multicast { .. } | Op::MulticastRecv { .. });
        let rate = if multicast { self.cost.multicast } else { None };
        at_rate(self.bytes(node), rate.unwrap_or(self.cost.bandwidth))
    }

    /// Occupies the processor of the step's host; returns the time when it is done.
    fn occupy(&mut self, node: StepNode, at: Picoseconds, takes: Picoseconds) -> Picoseconds {
        let host = self.host(node);
        let processor = &mut self.hosts[host].processor;
        *processor = (*processor).max(at) + takes;
        *processor
    }

    /// Occupies the processor. Then the work on the step is complete; for a receive, the message has arrived.
    fn work(&mut self, node: StepNode, at: Picoseconds, takes: Picoseconds) -> Picoseconds {
        let end = self.occupy(node, at, takes);
        self.push(end, PlayEvent::Complete(node));
        end
    }

    /// Marks the work on a step as complete. A receive whose message has arrived may still wait for earlier steps.
    fn complete(&mut self, at: Picoseconds, node: StepNode) {
        if self.graph.source(node).is_some() {
            self.awaits[node] -= 1;
            if self.awaits[node] > 0 {
                return;
            }
        }
        self.finish(at, node);
    }

    fn finish(&mut self, at: Picoseconds, node: StepNode) {
        self.last = self.last.max(at);
        for follower in self.graph.followers(node).to_vec() {
            self.awaits[follower] -= 1;
            if self.awaits[follower] > 0 {
                continue;
            }
            if self.graph.source(follower).is_some() {
                self.finish(at, follower);
            } else {
                self.push(at, PlayEvent::Ready(follower));
            }
        }
    }
}
