//! Allgathers on the clusters of the CORE-Direct paper (CD Sec. VI).

use outboard_nic::costs::Machine;
use outboard_nic::profile::Profile;
use outboard_nic::triggered::{TriggeredCosts, TriggeredSettings};
use outboard_nic::{NodeId, Port};
use outboard_plan::selection::{Choice, Collective};

use super::FigureError;
use crate::nics::{JobPlan, NicCall, NicPlan, PreparedPlan, TimingModel};

/// A cluster, and how its ranks communicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaperCluster {
    pub hosts: u32,
    pub ranks_per_host: u32,
    /// Virtual ports, and ports of the NIC.
    pub ports: [u32; 2],
}

impl PaperCluster {
    /// Cluster A: 128 ranks on 16 hosts (CD Sec. VI-C).
    pub const A: PaperCluster = PaperCluster { hosts: 16, ranks_per_host: 8, ports: [1, 1] };
    /// Cluster B: 16 ranks on 4 hosts (CD Sec. VI-F).
    pub const B: PaperCluster = PaperCluster { hosts: 4, ranks_per_host: 4, ports: [1, 1] };
    /// Cluster B with 3 virtual ports on the 2 ports of its NICs (CD Sec. VI-F).
    pub const B_3_PORTS: PaperCluster = PaperCluster { ports: [3, 2], ..PaperCluster::B };
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllgatherFigures {
    /// The mean over the ranks, in nanoseconds.
    pub latency: f64,
    /// The part of the latency in which ranks can compute, as NBCBench measures it (CD Sec. VI-D).
    pub overlap: f64,
    /// Queue pairs of the rank that has the most.
    pub queue_pairs: usize,
}

pub fn costs_of(profile: &Profile) -> Result<(Machine, TriggeredCosts), FigureError> {
    let lacks = |table| FigureError::Lacks { profile: profile.name.clone(), table };
    Ok((profile.machine.ok_or_else(|| lacks("machine"))?, profile.triggered.ok_or_else(|| lacks("triggered"))?))
}

/// Times the second of two allgathers with blocks of `bytes` bytes, since the first one makes the queue pairs. If the
/// algorithm has no leaders, the plan knows nothing of hosts: ranks of a host reach each other by its NIC.
///
/// # Errors
/// When the profile lacks something, or the NIC rejects the plan.
pub fn allgather(
    profile: &Profile,
    PaperCluster { hosts, ranks_per_host, ports: [virtual_ports, physical_ports] }: PaperCluster,
    algorithm: &str,
    bytes: u64,
) -> Result<AllgatherFigures, FigureError> {
    let refused = |why: String| FigureError::Refused(why);
    let (machine, costs) = costs_of(profile)?;
    let choice = Choice::read(Collective::Allgather, algorithm).map_err(|error| refused(error.to_string()))?;
    let nodes_per_machine = if choice.leaders().is_some() { 1 } else { ranks_per_host };
    let node_of = |rank| rank * nodes_per_machine / ranks_per_host;
    let nodes: Vec<u32> = (0..hosts * ranks_per_host).map(node_of).collect();
    // The capacity of the paper's hosts is unknown, and larger than these experiments need.
    let settings = TriggeredSettings {
        virtual_ports,
        physical_ports,
        queue_depth: 1 << 20,
        registered_bytes: 1 << 40,
        ..TriggeredSettings::default()
    };
    let call = NicCall::new(choice, bytes, None);
    let plan = NicPlan { jobs: vec![JobPlan { nodes, calls: vec![call; 2] }], settings, death: None };
    let prepared = PreparedPlan::without_bytes(&plan).map_err(|error| refused(error.to_string()))?;
    let clock = TimingModel { machine, costs, nodes_per_machine, compute: 0.0 };
    let mut queue_pairs = 0;
    let alone = prepared.time_and_watch(&clock, |_: NodeId, engine| {
        let of_ports = (0..ranks_per_host as u16).map(|port| engine.queue_pairs(Port(port)));
        queue_pairs = of_ports.max().unwrap_or(0).max(queue_pairs);
    })?;
    let compute = alone.slowest();
    let both = prepared.time(&TimingModel { compute, ..clock })?;
    let latency = alone.mean();
    Ok(AllgatherFigures { latency, overlap: 1.0 - (both.mean() - compute) / latency, queue_pairs })
}
