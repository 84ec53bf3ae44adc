//! Which plan carries out a call, and what that plan is for one rank.

use outboard_plan::{
    AllgatherAlgorithm, AllreduceAlgorithm, BarrierAlgorithm, BroadcastAlgorithm, Extents, Program, Rank,
    ReduceAlgorithm, ReduceScatterAlgorithm, ScanAlgorithm, Topology, Vector, allgatherv, allreduce, barrier,
    broadcast, exscan, reduce, reduce_scatter, scan,
};

use crate::config::{self, Config};
use crate::group::Members;
use crate::interface::{CallKind, Signature};

/// Vectors from here on go in parts rather than whole, bytes: from here a byte more on the wire costs more than a round.
const LONG: u64 = 32 << 10;

/// Where a group runs, as all its members see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terrain {
    pub(crate) ranks: u32,
    pub(crate) service_processes: u32,
}

impl Terrain {
    pub(crate) fn of(members: &Members) -> Self {
        Terrain { ranks: members.ranks(), service_processes: members.sps.len() as u32 }
    }
}

/// A plan by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Allgather(AllgatherAlgorithm),
    Broadcast(BroadcastAlgorithm),
    Barrier(BarrierAlgorithm),
    Reduce(ReduceAlgorithm),
    Allreduce(AllreduceAlgorithm),
    ReduceScatter(ReduceScatterAlgorithm),
    /// Of a scan or an exscan.
    Scan(ScanAlgorithm),
}

/// The plan for a call of a collective with a barrier: a pure function of what all members agree on.
pub(crate) fn choose(signature: Signature, terrain: Terrain, config: &Config) -> Layout {
    let Terrain { ranks, service_processes } = terrain;
    // Ranks of one service process need no network: what they multicast is copied.
    let alone = service_processes == 1;
    let multicast = match config.allgather {
        config::AllgatherAlgorithm::Ring => alone,
        config::AllgatherAlgorithm::Multicast => true,
    };
    let subgroups = config.subgroups;
    let long = signature.bytes >= LONG;
    match signature.kind {
        CallKind::Allgather | CallKind::Allgatherv { .. } if multicast => {
            let chains = if config.chains == 0 || alone { ranks } else { config.chains.min(ranks) };
            Layout::Allgather(AllgatherAlgorithm::Multicast { chains, subgroups })
        }
        CallKind::Allgather | CallKind::Allgatherv { .. } => Layout::Allgather(AllgatherAlgorithm::Ring),
        CallKind::Broadcast { .. } if multicast => Layout::Broadcast(BroadcastAlgorithm::Multicast { subgroups }),
        CallKind::Broadcast { .. } => Layout::Broadcast(BroadcastAlgorithm::Binomial),
        CallKind::Barrier => Layout::Barrier(BarrierAlgorithm::Dissemination { ports: 1 }),
        CallKind::Reduce { .. } if long => Layout::Reduce(ReduceAlgorithm::Halving),
        CallKind::Reduce { .. } => Layout::Reduce(ReduceAlgorithm::Binomial),
        CallKind::Allreduce { .. } if long && multicast => {
            Layout::Allreduce(AllreduceAlgorithm::ReduceScatterMulticast { subgroups })
        }
        CallKind::Allreduce { .. } if long => Layout::Allreduce(AllreduceAlgorithm::Ring),
        CallKind::Allreduce { .. } => Layout::Allreduce(AllreduceAlgorithm::RecursiveDoubling),
        CallKind::ReduceScatter { .. } | CallKind::ReduceScatterBlock { .. } if long => {
            Layout::ReduceScatter(ReduceScatterAlgorithm::Ring)
        }
        CallKind::ReduceScatter { .. } | CallKind::ReduceScatterBlock { .. } => {
            Layout::ReduceScatter(ReduceScatterAlgorithm::Pairwise)
        }
        CallKind::Scan { .. } | CallKind::Exscan { .. } => Layout::Scan(ScanAlgorithm::RecursiveDoubling),
        CallKind::Alltoall
        | CallKind::Alltoallv
        | CallKind::Gather { .. }
        | CallKind::Gatherv { .. }
        | CallKind::Scatter { .. }
        | CallKind::Scatterv { .. } => unreachable!("exchanges have no plan of this kind"),
    }
}

impl Layout {
    /// What `rank` of `ranks` does, or what cannot be.
    pub(super) fn program(
        self,
        signature: Signature,
        extents: &Extents,
        (ranks, rank): (u32, Rank),
    ) -> Result<Program, &'static str> {
        match (self, signature.kind) {
            (Layout::Allgather(algorithm), _) => allgatherv(algorithm, &Topology::flat(ranks), rank, extents, false)
                .map_err(|_| "an allgather of these sizes"),
            (Layout::Broadcast(algorithm), CallKind::Broadcast { root }) => {
                broadcast(algorithm, ranks, root, rank, signature.bytes).map_err(|_| "a broadcast from this root")
            }
            (Layout::Barrier(algorithm), _) => {
                barrier(algorithm, ranks, rank).map_err(|_| "a barrier among these ranks")
            }
            (Layout::Reduce(algorithm), CallKind::Reduce { root, .. }) => {
                let vector = vector(signature)?;
                reduce(algorithm, ranks, root, rank, vector).map_err(|_| "a reduce to this root")
            }
            (Layout::Allreduce(algorithm), _) => {
                allreduce(algorithm, ranks, rank, vector(signature)?).map_err(|_| "an allreduce of this size")
            }
            (Layout::ReduceScatter(algorithm), _) => {
                let element = signature.kind.reduction().map_or(1, |reduction| reduction.element().bytes());
                if !extents.sizes().all(|bytes| bytes.is_multiple_of(element)) {
                    return Err("a block that ends within an element");
                }
                reduce_scatter(algorithm, rank, extents).map_err(|_| "a reduce-scatter of these sizes")
            }
            (Layout::Scan(algorithm), CallKind::Exscan { .. }) => {
                exscan(algorithm, ranks, rank, vector(signature)?).map_err(|_| "an exscan of this size")
            }
            (Layout::Scan(algorithm), _) => {
                scan(algorithm, ranks, rank, vector(signature)?).map_err(|_| "a scan of this size")
            }
            (Layout::Broadcast(_) | Layout::Reduce(_), _) => unreachable!("chosen for calls with a root"),
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
