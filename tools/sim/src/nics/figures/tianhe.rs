//! Collectives on the 32 nodes of the Tianhe paper, by NIC and by hosts (TH Sec. 2.2 and 2.3).
//!
//! By NIC, a message is cut into pulses. By hosts, a broadcast is cut into segments and goes by RDMA at every size, as
//! in the paper's formula (1). A small message of a reduction is one packet.

use outboard_nic::costs::EngineCosts;
use outboard_nic::profile::Profile;
use outboard_nic::{host, ordered};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Element, Operator, Reduction};

use super::FigureError;
use crate::nics::{EngineSettings, JobPlan, NicCall, NicPlan, PreparedPlan, Timing, TimingModel};

const NODES: u32 = 32;
/// Bytes of the segments of a broadcast by hosts (ours).
const SEGMENT: &str = "double-tree:segment=32768";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaperOperation {
    /// Double trees.
    Broadcast,
    /// Vector halving with distance doubling and a binomial tree, sums of doubles.
    Reduce,
    /// Rabenseifner's algorithm, sums of doubles.
    Allreduce,
}

/// A collective by NIC and by hosts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeedComparison {
    /// Nanoseconds until all ranks of all tasks have ended, by NIC and by hosts.
    pub times: [f64; 2],
    /// The used part of the packet places in the root's hash buffers, without the tenth that stays free. The first
    /// column of TH Table 1 allows no other reading of the table.
    pub used: f64,
}

impl SpeedComparison {
    /// The time by hosts divided by the time by NIC.
    pub fn speed_up(&self) -> f64 {
        self.times[1] / self.times[0]
    }
}

/// `tasks` tasks carry out the same operation at once, each with a rank on every node.
///
/// # Errors
/// When the profile lacks something, or the NIC rejects the plan.
pub fn compare(
    profile: &Profile,
    operation: PaperOperation,
    tasks: usize,
    bytes: u64,
) -> Result<SpeedComparison, FigureError> {
    let (collective, by_nic, by_hosts, eager_bytes) = match operation {
        PaperOperation::Broadcast => (Collective::Broadcast, "double-tree:segment=18446744073709551615", SEGMENT, 0),
        PaperOperation::Reduce => (Collective::Reduce, "halving", "halving", 16 << 10),
        PaperOperation::Allreduce => (Collective::Allreduce, "rabenseifner", "rabenseifner", 16 << 10),
    };
    let sum = Reduction::new(Operator::Sum, Element::F64).ok().filter(|_| operation != PaperOperation::Broadcast);
    let call = |algorithm| {
        let choice = Choice::read(collective, algorithm).map_err(|error| FigureError::Refused(error.to_string()))?;
        Ok::<NicCall, FigureError>(NicCall::new(choice, bytes, sum))
    };
    let costs =
        profile.ordered.ok_or_else(|| FigureError::Lacks { profile: profile.name.clone(), table: "ordered" })?;
    let settings = ordered::OrderedSettings::default();
    let nic = time(profile, settings, costs, call(by_nic)?, tasks)?;
    let hosts = host::HostSettings {
        progress: host::ProgressMode::Thread,
        eager_bytes,
        staging_bytes: 1 << 40,
        ..host::HostSettings::default()
    };
    let host = time(profile, hosts, host::HostCosts, call(by_hosts)?, tasks)?;
    let capacity = settings.units as u64 * settings.capacity() as u64 * settings.packet_bytes;
    Ok(SpeedComparison { times: [nic.slowest(), host.slowest()], used: nic.used[0] as f64 / capacity as f64 })
}

fn time<S: EngineSettings, C: EngineCosts<S::Engine>>(
    profile: &Profile,
    settings: S,
    costs: C,
    call: NicCall,
    tasks: usize,
) -> Result<Timing, FigureError> {
    let machine =
        profile.machine.ok_or_else(|| FigureError::Lacks { profile: profile.name.clone(), table: "machine" })?;
    let job = JobPlan { nodes: (0..NODES).collect(), calls: vec![call] };
    let plan = NicPlan { jobs: vec![job; tasks], settings, death: None };
    let prepared = PreparedPlan::without_bytes(&plan).map_err(|error| FigureError::Refused(error.to_string()))?;
    Ok(prepared.time(&TimingModel { machine, costs, nodes_per_machine: 1, compute: 0.0 })?)
}
