//! A plan among hosts made a plan among all their ranks (SP-6).
//!
//! One leader of each host does what its host does in the given plan; what it ends with, it passes on to the other
//! ranks of its host, each part as soon as it is there. So every byte crosses the network once per host, whatever the
//! rank layout (SP-7).
//!
//! Invariants: leaders exchange the same messages as before, under the same numbers; the others only receive, straight
//! into `Output`.

use thiserror::Error;

use crate::builder::ProgramBuilder;
use crate::program::{Buffer, Op, OpId, Program, Rank, Span};
use crate::topology::Topology;

/// Why a plan among hosts cannot be carried out by leaders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HierarchyError {
    /// The plan is not that of the rank's host among the hosts, or not every host has a leader.
    #[error(
        "the plan of {host} of {hosts} hosts, {leaders} leaders, for {rank}: pass that of its host and a leader of each"
    )]
    Hosts {
        /// The host whose program it is.
        host: Rank,
        /// Hosts of the plan.
        hosts: u32,
        /// How many leaders there are.
        leaders: usize,
        /// The rank that asks.
        rank: Rank,
    },
    /// A leader that is not on its host.
    #[error("{leader} is to lead host {host}, where it is not")]
    Leader {
        /// The leader.
        leader: Rank,
        /// The host.
        host: u32,
    },
    /// A rank that the topology does not have.
    #[error("{rank} is not in a topology of {ranks} ranks")]
    Rank {
        /// The rank that asks.
        rank: Rank,
        /// Ranks of the topology.
        ranks: u32,
    },
    /// A multicast reaches all ranks of the group, not the leaders alone.
    #[error("{op}: a plan with multicasts reaches all ranks without leaders")]
    Multicast {
        /// The operation.
        op: Op,
    },
}

/// What `rank` does when `leaders`, one on each host of `topology`, carry out a plan among the hosts, of which
/// `between` is the program of this rank's host; afterwards all ranks of a host have what their leader has: its
/// `Output` or, of a leader without (the root of a broadcast), its `Input`.
///
/// # Errors
/// When plan, topology and leaders do not fit each other, or the plan multicasts; see [`HierarchyError`].
pub fn hierarchy(
    between: &Program,
    topology: &Topology,
    leaders: &[Rank],
    rank: Rank,
) -> Result<Program, HierarchyError> {
    check(between, topology, leaders, rank)?;
    let leader = leaders[between.rank.0 as usize];
    let mut builder = ProgramBuilder::new(rank, topology.ranks());
    if rank == leader {
        let mut siblings = topology.ranks_of(between.rank.0);
        siblings.retain(|sibling| *sibling != rank);
        builder.buffers(between.input_bytes, between.output_bytes, between.scratch_bytes);
        lead(&mut builder, between, leaders, &siblings);
    } else {
        let bytes = if between.output_bytes > 0 { between.output_bytes } else { between.input_bytes };
        builder.buffers(0, bytes, 0);
        for (index, part) in (0..).zip(parts(between)) {
            builder.recv(leader, index, Span { buffer: Buffer::Output, ..part.span }, &[]);
        }
    }
    Ok(builder.build())
}

fn check(between: &Program, topology: &Topology, leaders: &[Rank], rank: Rank) -> Result<(), HierarchyError> {
    let (host, hosts, ranks) = (between.rank, between.ranks, topology.ranks());
    if rank.0 >= ranks {
        return Err(HierarchyError::Rank { rank, ranks });
    }
    if topology.hosts() != hosts || topology.host_of(rank) != host.0 || leaders.len() != hosts as usize {
        return Err(HierarchyError::Hosts { host, hosts, leaders: leaders.len(), rank });
    }
    for (host, leader) in (0..).zip(leaders) {
        if leader.0 >= ranks || topology.host_of(*leader) != host {
            return Err(HierarchyError::Leader { leader: *leader, host });
        }
    }
    match between.steps.iter().find(|step| matches!(step.op, Op::Multicast { .. } | Op::MulticastRecv { .. })) {
        Some(step) => Err(HierarchyError::Multicast { op: step.op }),
        None => Ok(()),
    }
}

/// What a leader passes on as one message.
struct Part {
    span: Span,
    /// The steps that bring it, by number in the plan among hosts.
    after: Vec<OpId>,
}

/// What a leader ends with, in the parts in which it comes: whole where a later step changes what an earlier one wrote.
fn parts(between: &Program) -> Vec<Part> {
    if between.output_bytes == 0 {
        let whole = Part { span: Span::input(0, between.input_bytes), after: Vec::new() };
        return Some(whole).into_iter().filter(|part| !part.span.is_empty()).collect();
    }
    let into_output = |op: Op| op.writes().filter(|span| span.buffer == Buffer::Output && !span.is_empty());
    let writes = (0..).map(OpId).zip(&between.steps).filter_map(|(id, step)| Some((into_output(step.op)?, id)));
    let parts: Vec<Part> = writes.map(|(span, id)| Part { span, after: vec![id] }).collect();
    let mut spans: Vec<Span> = parts.iter().map(|part| part.span).collect();
    spans.sort_by_key(|span| span.offset);
    if spans.windows(2).all(|pair| pair[0].offset + pair[0].len <= pair[1].offset) {
        return parts;
    }
    let after = parts.iter().flat_map(|part| part.after.iter().copied()).collect();
    vec![Part { span: Span::output(0, between.output_bytes), after }]
}

fn lead(builder: &mut ProgramBuilder, between: &Program, leaders: &[Rank], siblings: &[Rank]) {
    let mut waiting: Vec<(u32, Part)> = (0..).zip(parts(between)).collect();
    // By number in the plan among hosts.
    let mut steps: Vec<OpId> = Vec::with_capacity(between.steps.len());
    let leader = |host: Rank| leaders[host.0 as usize];
    for step in &between.steps {
        let after: Vec<OpId> = step.after.iter().map(|id| steps[id.0 as usize]).collect();
        let op = match step.op {
            Op::Send { to, index, span } => Op::Send { to: leader(to), index, span },
            Op::Recv { from, index, span } => Op::Recv { from: leader(from), index, span },
            other => other,
        };
        steps.push(builder.push(op, &after));
        // Other hosts first: the network is slower. What they were sent need not wait for what comes later.
        if let Op::Send { .. } = op {
            let here = |part: &Part| part.after.iter().all(|id| step.after.contains(id));
            let (now, later) = waiting.into_iter().partition(|(_, part)| here(part));
            waiting = later;
            pass_on(builder, now, &steps, siblings);
        }
    }
    pass_on(builder, waiting, &steps, siblings);
}

fn pass_on(builder: &mut ProgramBuilder, parts: Vec<(u32, Part)>, steps: &[OpId], siblings: &[Rank]) {
    for (index, part) in parts {
        let after: Vec<OpId> = part.after.iter().map(|id| steps[id.0 as usize]).collect();
        for to in siblings {
            builder.send(*to, index, part.span, &after);
        }
    }
}
