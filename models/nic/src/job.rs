//! A port as a member of a job: a group of ranks, one behind each port, that make their calls together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outboard_plan::{Buffer, Program, Rank, Reduction, Span};
use thiserror::Error;

use crate::engine::{AddressSpace, JobFailure, MemorySegment, NodeId, Port};

/// The reason why an engine rejects a call of a job.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JobError {
    #[error("job {job} has failed: {failure}; close it")]
    Failed { job: u8, failure: JobFailure },
    #[error("{calls} calls of job {job} at once: {most} may be in flight; wait for some")]
    Calls { job: u8, calls: usize, most: usize },
}

/// A call of a process that posts its program unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramPost {
    pub job: u8,
    pub program: Arc<Program>,
    /// Addresses in the memory of the process at which input, output and scratch begin.
    pub memory: [u64; 3],
    pub reduction: Option<Reduction>,
}

/// State of each port in its jobs, by job and port.
pub(crate) type JobMembers<M> = BTreeMap<(u8, u16), M>;

pub(crate) fn insert_member<M>(members: &mut JobMembers<M>, job: u8, port: Port, member: M) {
    assert!(members.insert((job, port.0), member).is_none(), "job {job} is open on {port} already");
}

#[derive(Debug)]
pub(crate) struct JobMembership {
    pub(crate) rank: Rank,
    /// Ports of all ranks, by rank.
    ports: Vec<(NodeId, Port)>,
    /// The reason why all further calls fail.
    pub(crate) failed: Option<JobFailure>,
}

impl JobMembership {
    pub(crate) fn new(own: (NodeId, Port), ports: Vec<(NodeId, Port)>) -> Self {
        let rank = ports.iter().position(|member| *member == own).expect("a job names all of its members");
        JobMembership { rank: Rank(rank as u32), ports, failed: None }
    }

    pub(crate) fn port_of(&self, rank: Rank) -> (NodeId, Port) {
        self.ports[rank.0 as usize]
    }

    /// The nodes of all other ranks, each node once.
    pub(crate) fn other_nodes(&self) -> Vec<NodeId> {
        let others = self.ports.iter().zip(0..).filter(|(_, rank)| Rank(*rank) != self.rank);
        others.map(|((node, _), _)| *node).collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.ports.len() as u32
    }

    /// Whether to accept a packet about the rank `peer`: a job that has failed here rejects all packets.
    pub(crate) fn accepts_from(&self, peer: Rank, from: NodeId) -> bool {
        assert_eq!(self.port_of(peer).0, from, "a packet about {peer}");
        self.failed.is_none()
    }

    pub(crate) fn involves(&self, node: NodeId) -> bool {
        self.failed.is_none() && self.ports.iter().any(|(other, _)| *other == node)
    }

    /// Whether a call of the rank `named` may be posted beside `calls` unfinished ones.
    pub(crate) fn admit(&self, job: u8, named: Rank, calls: usize, most: usize) -> Result<(), JobError> {
        if let Some(failure) = self.failed {
            return Err(JobError::Failed { job, failure });
        }
        assert_eq!(named, self.rank, "a rank posts what is its own");
        if calls == most { Err(JobError::Calls { job, calls: calls + 1, most }) } else { Ok(()) }
    }

    /// The place of a span of a call whose buffers begin at `memory`, with `unit` bytes for each byte of the plan.
    pub(crate) fn place(&self, memory: [u64; 3], span: Span, unit: u64) -> MemorySegment {
        let base = match span.buffer {
            Buffer::Input => memory[0],
            Buffer::Output => memory[1],
            Buffer::Scratch => memory[2],
        };
        let (_, port) = self.port_of(self.rank);
        MemorySegment { region: AddressSpace::Host(port), address: base + span.offset * unit, len: span.len * unit }
    }
}
