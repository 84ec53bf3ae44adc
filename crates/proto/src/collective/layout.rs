//! Which plan carries out a call, and what that plan is for one rank.

use std::sync::LazyLock;

use outboard_plan::alltoall::Blocks;
use outboard_plan::selection::{Case, Choice, Collective, Tuning};
use outboard_plan::{
    AllgatherAlgorithm, AllreduceAlgorithm, BroadcastAlgorithm, Extents, Program, ProgramBuilder, Rank,
    ReduceAlgorithm, ReduceScatterAlgorithm, Topology, Vector, allgatherv, allreduce, alltoall, broadcast, exscan,
    gather, reduce, reduce_scatter, scan, scatter,
};

use crate::config::{self, Config};
use crate::group::Members;
use crate::interface::{CallKind, Signature};

/// Where a group runs, as all its members see it.
#[derive(Debug, Clone, Copy)]
struct Terrain<'a> {
    ranks: u32,
    service_processes: u32,
    hosts: u32,
    /// By rank, and by service process the host.
    of_rank: &'a [u32],
    host_of: &'a [u32],
}

impl<'a> Terrain<'a> {
    fn of(members: &'a Members) -> Self {
        Terrain {
            ranks: members.ranks(),
            service_processes: members.sps.len() as u32,
            hosts: members.host_of.last().map_or(1, |last| last + 1),
            of_rank: &members.of_rank,
            host_of: &members.host_of,
        }
    }

    fn topology(self) -> Topology {
        let hosts = self.of_rank.iter().map(|sp| self.host_of[*sp as usize]);
        Topology::of_hosts(hosts).expect("a group has as many ranks as a plan may have")
    }
}

/// What members choose by that have no tuning, with multicast and without.
static UNTUNED: LazyLock<[Tuning; 2]> = LazyLock::new(|| [Tuning::untuned(false), Tuning::untuned(true)]);

/// How a call is carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    choice: Choice,
    topology: Topology,
}

impl Layout {
    /// How a call is carried out of which all know the sizes: a pure function of what all members agree on.
    pub(crate) fn choose(signature: Signature, members: &Members, config: &Config) -> Layout {
        let terrain = Terrain::of(members);
        // Ranks of one service process need no network: what they multicast is copied.
        let multicast = match config.allgather {
            config::AllgatherAlgorithm::Ring => terrain.service_processes == 1,
            config::AllgatherAlgorithm::Multicast => true,
        };
        let case = case(signature, terrain, multicast);
        let tuning = config.tuning.as_deref().unwrap_or(&UNTUNED[usize::from(multicast)]);
        let chosen = tuning.choose(&case).choice;
        let anywhere = matches!(signature.kind, CallKind::Allgatherv { .. });
        let choice = settled(if anywhere { chosen.block_by_block() } else { chosen }, terrain, config);
        // Others ask for the number of ranks alone.
        let by_host = matches!(
            choice,
            Choice::Allgather(AllgatherAlgorithm::Hierarchical { .. })
                | Choice::Reduce(ReduceAlgorithm::Chain { .. } | ReduceAlgorithm::Hierarchical { .. })
                | Choice::Allreduce(AllreduceAlgorithm::Hierarchical { .. })
                | Choice::ReduceScatter(ReduceScatterAlgorithm::Hierarchical { .. })
        );
        Layout { choice, topology: if by_host { terrain.topology() } else { Topology::flat(terrain.ranks) } }
    }

    /// Whether an [`Exchange`](crate::exchange::Exchange) carries it out, without a barrier (SP-5).
    pub(crate) fn pulls(&self) -> bool {
        self.choice.pulls()
    }
}

fn case(signature: Signature, terrain: Terrain<'_>, multicast: bool) -> Case {
    let (collective, bytes) = match signature.kind {
        CallKind::Allgather => (Collective::Allgather, signature.bytes),
        CallKind::Allgatherv { .. } => (Collective::Allgather, signature.bytes / u64::from(terrain.ranks)),
        CallKind::Broadcast { .. } => (Collective::Broadcast, signature.bytes),
        CallKind::Alltoall => (Collective::Alltoall, signature.bytes),
        CallKind::Gather { .. } => (Collective::Gather, signature.bytes),
        CallKind::Scatter { .. } => (Collective::Scatter, signature.bytes),
        CallKind::Barrier => (Collective::Barrier, 0),
        CallKind::Reduce { .. } => (Collective::Reduce, signature.bytes),
        CallKind::Allreduce { .. } => (Collective::Allreduce, signature.bytes),
        CallKind::ReduceScatter { .. } => (Collective::ReduceScatter, signature.bytes),
        CallKind::ReduceScatterBlock { .. } => {
            (Collective::ReduceScatter, signature.bytes.saturating_mul(terrain.ranks.into()))
        }
        CallKind::Scan { .. } => (Collective::Scan, signature.bytes),
        CallKind::Alltoallv | CallKind::Gatherv { .. } | CallKind::Scatterv { .. } | CallKind::Tagged(_) => {
            unreachable!("no algorithm is chosen where sizes are not agreed")
        }
    };
    Case { collective, ranks: terrain.ranks, hosts: terrain.hosts, bytes, multicast }
}

/// The choice with what the settings say about multicast: addresses, and chains where the choice leaves them open (MC-8,
/// MC-10).
fn settled(choice: Choice, terrain: Terrain<'_>, config: &Config) -> Choice {
    let subgroups = config.subgroups;
    match choice {
        Choice::Allgather(AllgatherAlgorithm::Multicast { chains, .. }) => {
            let asked = if chains == 0 { config.chains } else { chains };
            let all = asked == 0 || terrain.service_processes == 1;
            let chains = if all { terrain.ranks } else { asked.min(terrain.ranks) };
            Choice::Allgather(AllgatherAlgorithm::Multicast { chains, subgroups })
        }
        Choice::Broadcast(BroadcastAlgorithm::Multicast { .. }) => {
            Choice::Broadcast(BroadcastAlgorithm::Multicast { subgroups })
        }
        Choice::Allreduce(AllreduceAlgorithm::ReduceMulticast { .. }) => {
            Choice::Allreduce(AllreduceAlgorithm::ReduceMulticast { subgroups })
        }
        Choice::Allreduce(AllreduceAlgorithm::ReduceScatterMulticast { segment, .. }) => {
            Choice::Allreduce(AllreduceAlgorithm::ReduceScatterMulticast { subgroups, segment })
        }
        other => other,
    }
}

impl Layout {
    /// What `rank` does, or what cannot be.
    pub(super) fn program(&self, signature: Signature, extents: &Extents, rank: Rank) -> Result<Program, &'static str> {
        let ranks = self.topology.ranks();
        match (self.choice, signature.kind) {
            (Choice::Allgather(algorithm), _) => {
                allgatherv(algorithm, &self.topology, rank, extents, false).map_err(|_| "an allgather of these sizes")
            }
            (Choice::Broadcast(algorithm), CallKind::Broadcast { root }) => {
                broadcast(algorithm, ranks, root, rank, signature.bytes).map_err(|_| "a broadcast from this root")
            }
            (Choice::Alltoall(algorithm), _) => {
                let blocks = Blocks::even(ranks, signature.bytes).ok_or("an all-to-all beyond the address space")?;
                alltoall(algorithm, ranks, rank, &blocks).map_err(|_| "an all-to-all of these sizes")
            }
            (Choice::Gather(algorithm), CallKind::Gather { root }) => {
                gather(algorithm, ranks, root, rank, signature.bytes).map_err(|_| "a gather to this root")
            }
            (Choice::Scatter(algorithm), CallKind::Scatter { root }) => {
                scatter(algorithm, ranks, root, rank, signature.bytes).map_err(|_| "a scatter from this root")
            }
            // Behind the ready barrier all have called: what a plan would tell them is known.
            (Choice::Barrier(_), _) => Ok(ProgramBuilder::new(rank, ranks).build()),
            (Choice::Reduce(algorithm), CallKind::Reduce { root, .. }) => {
                let vector = vector(signature)?;
                reduce(algorithm, &self.topology, root, rank, vector).map_err(|_| "a reduce to this root")
            }
            (Choice::Allreduce(algorithm), _) => {
                allreduce(algorithm, &self.topology, rank, vector(signature)?).map_err(|_| "an allreduce of this size")
            }
            (Choice::ReduceScatter(algorithm), _) => {
                let element = signature.kind.reduction().map_or(1, |reduction| reduction.element().bytes());
                if !extents.sizes().all(|bytes| bytes.is_multiple_of(element)) {
                    return Err("a block that ends within an element");
                }
                reduce_scatter(algorithm, &self.topology, rank, extents).map_err(|_| "a reduce-scatter of these sizes")
            }
            (Choice::Scan(algorithm), CallKind::Scan { inclusive: false, .. }) => {
                exscan(algorithm, ranks, rank, vector(signature)?).map_err(|_| "a scan of this size")
            }
            (Choice::Scan(algorithm), _) => {
                scan(algorithm, ranks, rank, vector(signature)?).map_err(|_| "a scan of this size")
            }
            (Choice::Broadcast(_) | Choice::Reduce(_) | Choice::Gather(_) | Choice::Scatter(_), _) => {
                unreachable!("chosen for calls with a root")
            }
        }
    }
}

/// What each rank contributes to a reduction.
fn vector(signature: Signature) -> Result<Vector, &'static str> {
    let element_bytes = signature.kind.reduction().map_or(1, |reduction| reduction.element().bytes());
    if !signature.bytes.is_multiple_of(element_bytes) {
        return Err("a vector that ends within an element");
    }
    Ok(Vector { count: signature.bytes / element_bytes, element_bytes })
}
