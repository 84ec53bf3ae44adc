//! A port as a member of a job: ranks that call together, one behind each port.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outboard_plan::{Buffer, Program, Rank, Reduction, Span};
use thiserror::Error;

use crate::engine::{Failure, Node, Place, Port, Region};

/// Why an engine does not take a job, or a call of one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum JobError {
    #[error("job {job} is open on {port} already")]
    Open { job: u8, port: Port },
    #[error("{port} of {node} is no member of job {job}: name all members when it is opened")]
    Stranger { job: u8, port: Port, node: Node },
    #[error("job {job} is not open on {port}: open it first")]
    Unknown { job: u8, port: Port },
    #[error("job {job} has calls in flight on {port}: wait for them first")]
    Busy { job: u8, port: Port },
    #[error("job {job} has failed: {failure}; close it")]
    Failed { job: u8, failure: Failure },
    #[error("{calls} calls of job {job} at once: {most} may be in flight; wait for some")]
    Calls { job: u8, calls: usize, most: usize },
    #[error("what is posted is that of {named}, the port that of {rank}")]
    Rank { named: Rank, rank: Rank },
}

/// A call, as a process makes it that posts its program as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// Of which job.
    pub job: u8,
    /// What the rank does.
    pub program: Arc<Program>,
    /// Where input, output and scratch begin in the memory of the process.
    pub memory: [u64; 3],
    /// What is combined.
    pub reduction: Option<Reduction>,
}

/// What ports are in their jobs, by job and port.
pub(crate) type Members<M> = BTreeMap<(u8, u16), M>;

/// Makes a port a member of a job.
pub(crate) fn enter<M>(members: &mut Members<M>, job: u8, port: Port, member: M) -> Result<(), JobError> {
    match members.entry((job, port.0)) {
        Entry::Occupied(_) => Err(JobError::Open { job, port }),
        Entry::Vacant(vacant) => {
            vacant.insert(member);
            Ok(())
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) rank: Rank,
    /// By rank.
    ports: Vec<(Node, Port)>,
    /// Why its calls fail from now on.
    pub(crate) failed: Option<Failure>,
}

impl Membership {
    pub(crate) fn new(job: u8, (node, port): (Node, Port), ports: Vec<(Node, Port)>) -> Result<Self, JobError> {
        let rank = ports.iter().position(|member| *member == (node, port));
        let rank = Rank(rank.ok_or(JobError::Stranger { job, port, node })? as u32);
        Ok(Membership { rank, ports, failed: None })
    }

    /// Where a rank of the job is.
    pub(crate) fn port_of(&self, rank: Rank) -> (Node, Port) {
        self.ports[rank.0 as usize]
    }

    /// The nodes of all other ranks, each once.
    pub(crate) fn other_nodes(&self) -> Vec<Node> {
        let others = self.ports.iter().zip(0..).filter(|(_, rank)| Rank(*rank) != self.rank);
        others.map(|((node, _), _)| *node).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Ranks of the job.
    pub(crate) fn ranks(&self) -> u32 {
        self.ports.len() as u32
    }

    /// Whether a packet about the rank `peer` may come from that node.
    pub(crate) fn hears(&self, peer: Rank, from: Node) -> bool {
        self.failed.is_none() && self.ports.get(peer.0 as usize).is_some_and(|(node, _)| *node == from)
    }

    /// Whether its calls need that node.
    pub(crate) fn needs(&self, node: Node) -> bool {
        self.failed.is_none() && self.ports.iter().any(|(other, _)| *other == node)
    }

    /// Whether a call of the rank `named` may be posted beside `calls` that have not ended.
    pub(crate) fn admit(&self, job: u8, named: Rank, calls: usize, most: usize) -> Result<(), JobError> {
        if let Some(failure) = self.failed {
            return Err(JobError::Failed { job, failure });
        }
        if named != self.rank {
            return Err(JobError::Rank { named, rank: self.rank });
        }
        if calls == most { Err(JobError::Calls { job, calls: calls + 1, most }) } else { Ok(()) }
    }

    /// Where a span of a call lies, whose input, output and scratch begin there, with `unit` bytes for each byte.
    pub(crate) fn place(&self, memory: [u64; 3], span: Span, unit: u64) -> Place {
        let base = match span.buffer {
            Buffer::Input => memory[0],
            Buffer::Output => memory[1],
            Buffer::Scratch => memory[2],
        };
        let (_, port) = self.port_of(self.rank);
        Place { region: Region::Host(port), address: base + span.offset * unit, len: span.len * unit }
    }
}
