//! Allgather by hosts: ranks of a host share their blocks; leaders exchange these blocks between hosts and pass on the
//! blocks that arrive (SP-6, CD-2).
//!
//! Invariants: every block crosses the network once per host, whatever the rank layout (SP-7), and goes straight to its
//! place in `Output`. A message holds adjoining blocks and is named after the first of these blocks. No rank receives a
//! block twice. Leaders pass on each message unchanged.

use std::collections::BTreeMap;

use super::{Extents, GatheredBlocks, program};
use crate::algorithm::Algorithm;
use crate::builder::ProgramBuilder;
use crate::partition::part_range;
use crate::program::{Op, OpId, Program, Rank, Span};
use crate::topology::Topology;

/// Adjoining blocks, from the block of `first` on.
#[derive(Clone, Copy)]
struct BlockRun {
    first: u32,
    span: Span,
}

impl BlockRun {
    /// Whether the run contains byte `offset` of `Output`.
    fn holds(self, offset: u64) -> bool {
        (self.span.offset..self.span.offset + self.span.len).contains(&offset)
    }
}

/// Leaders of the same number, one on each host, and the blocks that they exchange.
struct LeaderLane {
    /// Leaders, by host.
    leaders: Vec<Rank>,
    /// The non-empty blocks, by host, each with its offset in the bytes that the leaders exchange.
    blocks: Vec<(u64, Rank)>,
    /// The bytes that each host contributes.
    shares: Extents,
}

impl LeaderLane {
    fn new(lane: u32, lanes: u32, blocks: GatheredBlocks<'_>, topology: &Topology) -> LeaderLane {
        let mut leaders = Vec::new();
        let mut starts = Vec::new();
        let mut shares = Vec::new();
        let mut at = 0;
        for host in 0..topology.hosts() {
            let ranks = topology.ranks_of(host);
            let part = part_range(ranks.len() as u64, lanes.into(), lane.into());
            let share = &ranks[part.start as usize..part.end as usize];
            leaders.push(share[0]);
            let before = at;
            for rank in share.iter().filter(|rank| !blocks.of(rank.0).is_empty()) {
                starts.push((at, *rank));
                at += blocks.of(rank.0).len;
            }
            shares.push(at - before);
        }
        let shares = Extents::uneven(shares).expect("parts of the blocks are no more than the blocks");
        LeaderLane { leaders, blocks: starts, shares }
    }

    /// The runs of blocks in `Output` that make up `span` of the exchanged bytes.
    fn runs(&self, span: Span, blocks: GatheredBlocks<'_>) -> Vec<BlockRun> {
        let inside = |at: u64| self.blocks.partition_point(|(start, _)| *start < at);
        let mut runs: Vec<BlockRun> = Vec::new();
        for (_, rank) in &self.blocks[inside(span.offset)..inside(span.offset + span.len)] {
            let block = blocks.of(rank.0);
            match runs.last_mut() {
                Some(run) if run.span.offset + run.span.len == block.offset => run.span.len += block.len,
                _ => runs.push(BlockRun { first: rank.0, span: block }),
            }
        }
        runs
    }

    /// The program by which the leader on `host` exchanges shares.
    fn exchange(&self, between: Algorithm, host: u32) -> Program {
        program(None, between, &Topology::flat(self.leaders.len() as u32), Rank(host), &self.shares, true)
    }
}

/// The program under construction.
struct Hierarchy<'a> {
    builder: &'a mut ProgramBuilder,
    blocks: GatheredBlocks<'a>,
    siblings: Vec<Rank>,
    /// Received runs by their first byte in `Output`, with the step that received them.
    arrived: BTreeMap<u64, (BlockRun, OpId)>,
}

/// Appends the program of `blocks.rank`.
pub(super) fn hierarchical(
    builder: &mut ProgramBuilder,
    blocks: GatheredBlocks<'_>,
    topology: &Topology,
    leaders: u32,
    between: Algorithm,
) {
    let rank = Rank(blocks.rank);
    let host = topology.host_of(rank);
    let mut siblings = topology.ranks_of(host);
    siblings.retain(|other| *other != rank);
    let lanes = leaders.min(topology.fewest_per_host());
    let lanes: Vec<LeaderLane> = (0..lanes).map(|lane| LeaderLane::new(lane, lanes, blocks, topology)).collect();
    let mut led = None;
    let mut hierarchy = Hierarchy { builder, blocks, siblings, arrived: BTreeMap::new() };
    hierarchy.receive_on_host();
    for lane in &lanes {
        let exchange = lane.exchange(between, host);
        let leader = lane.leaders[host as usize];
        hierarchy.receive_from_hosts(lane, &exchange, leader);
        if leader == rank {
            led = Some((lane, exchange));
        }
    }
    hierarchy.send_on_host();
    if let Some((lane, exchange)) = led {
        hierarchy.lead(lane, &exchange);
    }
}

impl Hierarchy<'_> {
    fn receive_on_host(&mut self) {
        for from in self.siblings.clone() {
            let span = self.blocks.of(from.0);
            if !span.is_empty() {
                self.receive(from, BlockRun { first: from.0, span });
            }
        }
        if let Some(copy) = self.blocks.copy_own(self.builder) {
            let own = self.blocks.of(self.blocks.rank);
            self.arrived.insert(own.offset, (BlockRun { first: self.blocks.rank, span: own }, copy));
        }
    }

    fn receive(&mut self, from: Rank, run: BlockRun) {
        let id = self.builder.recv(from, run.first, run.span, &[]);
        self.arrived.insert(run.span.offset, (run, id));
    }

    /// Receives the blocks that arrive on this host by `lane`: `leader` receives them from leaders of other hosts, and
    /// the other ranks receive them from `leader`.
    fn receive_from_hosts(&mut self, lane: &LeaderLane, exchange: &Program, leader: Rank) {
        for step in &exchange.steps {
            if let Op::Recv { from, span, .. } = step.op {
                let leads = leader.0 == self.blocks.rank;
                let sender = if leads { lane.leaders[from.0 as usize] } else { leader };
                for run in lane.runs(span, self.blocks) {
                    self.receive(sender, run);
                }
            }
        }
    }

    fn send_on_host(&mut self) {
        if !self.blocks.contribution().is_empty() {
            for to in &self.siblings {
                self.builder.send(*to, self.blocks.rank, self.blocks.contribution(), &[]);
            }
        }
    }

    /// Sends the messages of `exchange` to other hosts, and passes received blocks on to this host.
    fn lead(&mut self, lane: &LeaderLane, exchange: &Program) {
        let received = exchange.steps.iter().filter_map(|step| match step.op {
            Op::Recv { span, .. } => Some(span),
            _ => None,
        });
        let mut to_pass_on: Vec<BlockRun> = received.flat_map(|span| lane.runs(span, self.blocks)).collect();
        for step in &exchange.steps {
            let Op::Send { to, span, .. } = step.op else { continue };
            let runs = lane.runs(span, self.blocks);
            for run in &runs {
                let after = self.writers(run.span);
                self.builder.send(lane.leaders[to.0 as usize], run.first, run.span, &after);
            }
            // Other hosts come first: the network is slower. Blocks that are here now need not wait for the next round.
            let sent = |passed: &BlockRun| runs.iter().any(|run| run.holds(passed.span.offset));
            let (here, later) = to_pass_on.into_iter().partition(sent);
            to_pass_on = later;
            self.pass_on(here);
        }
        self.pass_on(to_pass_on);
    }

    fn pass_on(&mut self, runs: Vec<BlockRun>) {
        for run in runs {
            let after = self.writers(run.span);
            for to in &self.siblings {
                self.builder.send(*to, run.first, run.span, &after);
            }
        }
    }

    /// The steps that wrote `span` of `Output`.
    fn writers(&self, span: Span) -> Vec<OpId> {
        let end = span.offset + span.len;
        let before = self.arrived.range(..=span.offset).next_back();
        let first = before.filter(|(_, (run, _))| run.holds(span.offset)).map(|(at, _)| *at);
        self.arrived.range(first.unwrap_or(span.offset)..end).map(|(_, (_, id))| *id).collect()
    }
}
