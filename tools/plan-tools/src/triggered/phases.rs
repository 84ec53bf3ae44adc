//! Work of the host of each rank before and after the list: copies, reductions, and data for ranks of its own host (CD
//! Sec. IV-B).
//!
//! | step of the plan | waits for the network | the network waits for the step | is done |
//! |---|---|---|---|
//! | copy, reduction, message within a host | no | yes or no | before the list |
//! | copy, reduction, message within a host | yes | no | after the list |
//! | copy, reduction, message within a host | yes | yes | never: the plan is rejected |
//!
//! A message within a host becomes a part of the shared region and a flag. Its sender copies into the region and raises
//! the flag; its receiver awaits the flag and copies from the region. A message to several ranks of the host lies in
//! the region once. Data that a rank only passes on to the network leaves from the region. Data from the network that a
//! rank passes on arrives in the region, so that no sibling waits for a copy. (The region is registered with the NIC.)
//!
//! Invariant: all ranks go through their steps in one order of all events of the plan, so no circle of ranks waits for
//! each other's flags.

use std::collections::BTreeMap;

use outboard_nic::triggered::list::{HostSharing, HostStep, TemplatePlace};
use outboard_plan::{Op, OpId, Program, Rank, Span, Topology};

use super::TriggeredLowerError;
use super::arrivals::{ArrivalPlace, ArrivedSpans};
use crate::verify::{StepEvent, StepGraph, StepNode};

/// The host's work for one rank, and its consequences for the list.
#[derive(Debug, Default, Clone)]
pub(super) struct Phases {
    pub(super) before: Vec<HostStep>,
    pub(super) after: Vec<HostStep>,
    /// Data in the region when the list begins, and their final places.
    pub(super) arrivals: ArrivedSpans,
    pub(super) deferred: Vec<(TemplatePlace, Span)>,
    /// By receive from the network: the part of the region for its message, and the flag of its arrival.
    pub(super) landings: BTreeMap<OpId, SharedPart>,
    pub(super) sharing: HostSharing,
    /// By step, whether the step waits for nothing from the network.
    pub(super) present: Vec<bool>,
}

/// Whether steps wait for messages between hosts, and whether such messages wait for steps.
struct NetworkOrder {
    /// By node: whether its start, and its completion, wait for the network.
    start_behind: Vec<bool>,
    done_behind: Vec<bool>,
    /// By node: whether the network waits for its start, and for its completion.
    start_ahead: Vec<bool>,
    done_ahead: Vec<bool>,
}

impl NetworkOrder {
    fn new(graph: &StepGraph<'_>, is_network: impl Fn(StepNode) -> bool) -> NetworkOrder {
        let none = vec![false; graph.nodes()];
        let mut order = NetworkOrder {
            start_behind: none.clone(),
            done_behind: none.clone(),
            start_ahead: none.clone(),
            done_ahead: none,
        };
        for event in graph.order() {
            match *event {
                StepEvent::Start(node) => {
                    order.start_behind[node] = graph.after(node).iter().any(|earlier| order.done_behind[*earlier]);
                }
                StepEvent::Complete(node) => {
                    let source = graph.source(node).is_some_and(|send| order.start_behind[send]);
                    order.done_behind[node] = order.start_behind[node] || source || is_network(node);
                }
            }
        }
        for event in graph.order().iter().rev() {
            match *event {
                StepEvent::Complete(node) => {
                    let later = |later: &StepNode| is_network(*later) || order.start_ahead[*later];
                    order.done_ahead[node] = graph.followers(node).iter().any(later);
                }
                StepEvent::Start(node) => {
                    let receives = graph.receivers(node).iter().any(|receive| order.done_ahead[*receive]);
                    order.start_ahead[node] = order.done_ahead[node] || receives;
                }
            }
        }
        order
    }

    /// Whether a step of the host is done after the list; `None` if it can be done on neither side.
    fn is_after(&self, node: StepNode, op: Op) -> Option<bool> {
        let (behind, ahead) = match op {
            Op::Recv { .. } => (self.done_behind[node], self.done_ahead[node]),
            _ => (self.start_behind[node], self.start_ahead[node]),
        };
        (!behind || !ahead).then_some(behind)
    }
}

/// The flag of a message within a host, and the message's place in the region.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedPart {
    pub(super) flag: u32,
    pub(super) offset: u64,
}

/// The content of a send within a host; sends with equal content share one part of the region.
type SharedContent = (Rank, Span, Vec<OpId>);

/// The region of a host under construction.
#[derive(Debug, Default)]
struct HostRegion {
    bytes: u64,
    flags: u32,
    sent: BTreeMap<(Rank, u8, u64, u64, Vec<OpId>), SharedPart>,
}

/// The phases of all ranks under construction.
struct PhaseWriter<'a> {
    programs: &'a [Program],
    topology: &'a Topology,
    phases: Vec<Phases>,
    regions: Vec<HostRegion>,
    /// By send within a host, the part of the region for the message.
    part: BTreeMap<StepNode, SharedPart>,
}

/// Computes the phases of the hosts of all ranks.
pub(super) fn phases(
    programs: &[Program],
    graph: &StepGraph<'_>,
    topology: &Topology,
) -> Result<Vec<Phases>, TriggeredLowerError> {
    let local = |a: Rank, b: Rank| topology.host_of(a) == topology.host_of(b);
    let is_network = |node: StepNode| {
        let at = graph.at(node);
        match at.op {
            Op::Send { to: peer, .. } | Op::Recv { from: peer, .. } => !local(at.rank, peer),
            Op::Multicast { .. } | Op::MulticastRecv { .. } => true,
            Op::Copy { .. } | Op::Reduce { .. } => false,
        }
    };
    let order = NetworkOrder::new(graph, is_network);
    let regions = (0..topology.hosts()).map(|_| HostRegion::default()).collect();
    let phases = vec![Phases::default(); programs.len()];
    let mut writer = PhaseWriter { programs, topology, phases, regions, part: BTreeMap::new() };
    for event in graph.order() {
        let (StepEvent::Start(node) | StepEvent::Complete(node)) = *event;
        let at = graph.at(node);
        // A receive is done when it is complete, any other step when it may start.
        let now = matches!(at.op, Op::Recv { .. }) == matches!(event, StepEvent::Complete(_));
        if !now || is_network(node) {
            continue;
        }
        let after = order.is_after(node, at.op).ok_or(TriggeredLowerError::Between { at: at.boxed() })?;
        writer.step((node, graph.source(node)), (at.rank, at.step, at.op), after);
    }
    let mut nodes = 0..graph.nodes();
    for (program, phases) in programs.iter().zip(&mut writer.phases) {
        let of_rank = nodes.by_ref().take(program.steps.len());
        phases.present = of_rank.map(|node| !order.start_behind[node]).collect();
    }
    Ok(writer.finish())
}

impl PhaseWriter<'_> {
    /// Adds the work of the host of `rank` for a step, before or after the list.
    fn step(&mut self, (node, source): (StepNode, Option<StepNode>), (rank, id, op): (Rank, OpId, Op), after: bool) {
        let memory = TemplatePlace::Memory;
        match op {
            Op::Copy { from, to } => self.push(rank, after, HostStep::Copy { from: memory(from), to: memory(to) }),
            Op::Reduce { from, into, from_left } => {
                self.push(rank, after, HostStep::Reduce { from: memory(from), into: memory(into), from_left });
            }
            Op::Send { span, .. } => {
                let follows = self.programs[rank.0 as usize].steps[id.0 as usize].after.clone();
                let part = self.share((rank, span, follows), after);
                self.part.insert(node, part);
            }
            Op::Recv { span, .. } => {
                let part = self.part[&source.expect("a graph has the sources of all receives")];
                self.take(rank, span, part, after);
            }
            Op::Multicast { .. } | Op::MulticastRecv { .. } => unreachable!("multicasts were refused"),
        }
    }

    fn push(&mut self, rank: Rank, after: bool, step: HostStep) {
        let phases = &mut self.phases[rank.0 as usize];
        if after { &mut phases.after } else { &mut phases.before }.push(step);
    }

    /// Copies a span into the region, unless the region holds it already or its message lands there.
    fn share(&mut self, (rank, span, follows): SharedContent, after: bool) -> SharedPart {
        let region = &mut self.regions[self.topology.host_of(rank) as usize];
        let key = (rank, span.buffer as u8, span.offset, span.len, follows.clone());
        if let Some(part) = region.sent.get(&key) {
            return *part;
        }
        let part = SharedPart { flag: region.flags, offset: region.bytes };
        region.sent.insert(key, part);
        (region.flags, region.bytes) = (region.flags + 1, region.bytes + span.len);
        if let Some(receive) = self.landing(rank, span, &follows) {
            self.phases[rank.0 as usize].landings.insert(receive, part);
            return part;
        }
        // After the list, all data are in their final places.
        let pieces = match after {
            true => vec![TemplatePlace::Memory(span)],
            false => self.phases[rank.0 as usize].arrivals.pieces(span),
        };
        let mut offset = part.offset;
        for from in pieces.into_iter().filter(|_| !span.is_empty()) {
            let len = from.bytes().expect("a piece of a span has a length");
            self.push(rank, after, HostStep::Copy { from, to: TemplatePlace::Shared { offset, len } });
            offset += len;
        }
        self.push(rank, after, HostStep::Raise { flag: part.flag });
        part
    }

    /// The receive from the network that alone produces the span sent within the host.
    fn landing(&self, rank: Rank, span: Span, follows: &[OpId]) -> Option<OpId> {
        let &[receive] = follows else { return None };
        match self.programs[rank.0 as usize].steps[receive.0 as usize].op {
            Op::Recv { from, span: received, .. } if received == span && !span.is_empty() => {
                (self.topology.host_of(from) != self.topology.host_of(rank)).then_some(receive)
            }
            _ => None,
        }
    }

    /// Copies a message from the region to its span. Before the list, the copy is deferred if only messages use the
    /// span.
    fn take(&mut self, rank: Rank, span: Span, SharedPart { flag, offset }: SharedPart, after: bool) {
        self.push(rank, after, HostStep::Await { flag });
        if span.is_empty() {
            return;
        }
        let from = TemplatePlace::Shared { offset, len: span.len };
        if after || self.is_touched(rank, span) {
            self.push(rank, after, HostStep::Copy { from, to: TemplatePlace::Memory(span) });
        } else {
            let phases = &mut self.phases[rank.0 as usize];
            phases.arrivals.insert(span, ArrivalPlace::Shared { offset });
            phases.deferred.push((from, span));
        }
    }

    /// Whether a copy or a reduction of the rank reads or writes bytes of the span.
    fn is_touched(&self, rank: Rank, span: Span) -> bool {
        let overlaps = |other: Span| {
            let ends = (span.offset + span.len, other.offset + other.len);
            other.buffer == span.buffer && other.offset < ends.0 && span.offset < ends.1
        };
        self.programs[rank.0 as usize].steps.iter().any(|step| {
            let by_host = matches!(step.op, Op::Copy { .. } | Op::Reduce { .. });
            by_host && step.op.reads().into_iter().chain(step.op.writes()).any(overlaps)
        })
    }

    fn finish(mut self) -> Vec<Phases> {
        let shares = |phases: &Phases| {
            let mut steps = phases.before.iter().chain(&phases.after);
            steps.any(|step| matches!(step, HostStep::Raise { .. } | HostStep::Await { .. }))
        };
        let sharers: Vec<bool> =
            self.phases.iter().map(|phases| !phases.landings.is_empty() || shares(phases)).collect();
        for (host, region) in (0..).zip(&self.regions) {
            let mut ranks = self.topology.ranks_of(host);
            ranks.retain(|rank| sharers[rank.0 as usize]);
            let sharing = HostSharing { ranks: ranks.len() as u32, bytes: region.bytes };
            ranks.iter().for_each(|rank| self.phases[rank.0 as usize].sharing = sharing);
        }
        self.phases
    }
}
