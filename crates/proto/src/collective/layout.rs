//! Which plan carries out a call here: a pure function of the call and of the agreed configuration, but for ranks that
//! share one service process, which need no network.

use outboard_plan::{BroadcastAlgorithm, Extents, Program, Rank, Topology, allgatherv, broadcast};

use super::Context;
use crate::config::AllgatherAlgorithm;
use crate::interface::{CallKind, Signature};

/// How the blocks of a call travel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    multicast: bool,
    /// Blocks are multicast between hosts.
    pub(super) over_the_wire: bool,
    /// Ranks that multicast at the same time (MC-8).
    pub(super) chains: u32,
    subgroups: u16,
}

impl Layout {
    pub(super) fn new(cx: &Context<'_>, kind: CallKind) -> Self {
        let one_host = cx.members.sps.len() == 1;
        let ranks = cx.members.ranks();
        let network = match cx.config.allgather {
            AllgatherAlgorithm::Ring => false,
            AllgatherAlgorithm::Multicast => !one_host,
        };
        let chains = match kind {
            CallKind::Broadcast { .. } => 1,
            CallKind::Allgather | CallKind::Allgatherv { .. } if cx.config.chains == 0 || one_host => ranks,
            CallKind::Allgather | CallKind::Allgatherv { .. } => cx.config.chains.min(ranks),
            CallKind::Alltoall
            | CallKind::Alltoallv
            | CallKind::Gather { .. }
            | CallKind::Gatherv { .. }
            | CallKind::Scatter { .. }
            | CallKind::Scatterv { .. } => unreachable!("exchanges are not multicast"),
        };
        Layout { multicast: one_host || network, over_the_wire: network, chains, subgroups: cx.config.subgroups }
    }

    /// What `rank` of `ranks` does, or what cannot be.
    pub(super) fn program(
        self,
        signature: Signature,
        extents: &Extents,
        (ranks, rank): (u32, Rank),
    ) -> Result<Program, &'static str> {
        let Layout { multicast, chains, subgroups, .. } = self;
        match signature.kind {
            CallKind::Allgather | CallKind::Allgatherv { .. } => {
                let algorithm = match multicast {
                    true => outboard_plan::AllgatherAlgorithm::Multicast { chains, subgroups },
                    false => outboard_plan::AllgatherAlgorithm::Ring,
                };
                allgatherv(algorithm, &Topology::flat(ranks), rank, extents, false)
                    .map_err(|_| "an allgather of these sizes")
            }
            CallKind::Broadcast { root } => {
                let algorithm = match multicast {
                    true => BroadcastAlgorithm::Multicast { subgroups },
                    false => BroadcastAlgorithm::Binomial,
                };
                broadcast(algorithm, ranks, root, rank, signature.bytes).map_err(|_| "a broadcast from this root")
            }
            CallKind::Alltoall
            | CallKind::Alltoallv
            | CallKind::Gather { .. }
            | CallKind::Gatherv { .. }
            | CallKind::Scatter { .. }
            | CallKind::Scatterv { .. } => unreachable!("exchanges are not multicast"),
        }
    }
}
