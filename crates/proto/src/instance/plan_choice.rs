//! Selects the plan of a call, and builds the program of one rank.

use outboard_plan::selection::{Case, Choice, Collective, Links, chosen};
use outboard_plan::{
    Algorithm, Arguments, Extents, PlanError, Program, ProgramBuilder, Rank, Topology, deferred, program,
};

use super::Policy;
use crate::config::Config;
use crate::group::members::Members;
use crate::interface::{CallKind, Signature};

/// The layout of a group, equal on all members.
#[derive(Debug, Clone, Copy)]
struct Terrain<'a> {
    ranks: u32,
    service_processes: u32,
    hosts: u32,
    /// Service process by rank, and host by service process.
    of_rank: &'a [u32],
    host_of: &'a [u32],
    links: Links,
}

impl<'a> Terrain<'a> {
    fn of(members: &'a Members) -> Self {
        Terrain {
            ranks: members.ranks(),
            service_processes: members.sps.len() as u32,
            hosts: members.host_of.last().map_or(1, |last| last + 1),
            of_rank: &members.of_rank,
            host_of: &members.host_of,
            links: members.links,
        }
    }

    fn topology(self) -> Topology {
        let hosts = self.of_rank.iter().map(|sp| self.host_of[*sp as usize]);
        Topology::of_hosts(hosts).expect("a group has as many ranks as a plan may have")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlanChoice {
    choice: Choice,
    topology: Topology,
    /// All messages are too small to be worth a barrier.
    small: bool,
    offloaded: bool,
}

impl PlanChoice {
    /// The layout of a call with known sizes: a pure function of values that all members agree on.
    pub(crate) fn choose(signature: Signature, members: &Members, config: &Config) -> PlanChoice {
        if let Some(layout) = PlanChoice::deferred(signature, members, config) {
            return layout;
        }
        let terrain = Terrain::of(members);
        // Ranks of one service process need no network: multicast is a copy, and their barrier is empty.
        let alone = terrain.service_processes == 1;
        let multicast = alone || config.multicast;
        let eager_bytes = if alone { 0 } else { config.eager_bytes };
        let uneven = signature.kind.sizes().is_some();
        let case = case(signature, terrain, multicast);
        let (chosen, small) = chosen(config.tuning.as_deref(), &case, eager_bytes, uneven);
        let choice = with_settings(chosen, terrain, config);
        let by_host = choice.depends_on_hosts();
        PlanChoice {
            choice,
            topology: if by_host { terrain.topology() } else { Topology::flat(terrain.ranks) },
            small,
            offloaded: false,
        }
    }

    /// The layout for engines beside service processes, if they support the call. A single service process needs no
    /// engine.
    fn deferred(signature: Signature, members: &Members, config: &Config) -> Option<PlanChoice> {
        config.deferred.as_ref().filter(|_| members.sps.len() > 1)?;
        let terrain = Terrain::of(members);
        let Case { collective, ranks, bytes, .. } = case(signature, terrain, false);
        let even = signature.kind.sizes().is_none();
        let choice = deferred::choice(collective, ranks, bytes).ok().filter(|_| even)?;
        Some(PlanChoice { choice, topology: Topology::flat(ranks), small: false, offloaded: true })
    }

    /// Whether pairs of ranks execute the call, without a barrier (SP-5).
    pub(crate) fn pulls(&self) -> bool {
        !self.offloaded && self.choice.pulls()
    }

    /// The guarantees for the programs of the call, unless pairs of ranks execute the call.
    pub(super) fn policy(&self) -> Policy {
        match (self.offloaded, self.small) {
            (true, _) => Policy::Offloaded,
            (false, true) => Policy::Eager,
            (false, false) => Policy::Barrier,
        }
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
    Case { collective, ranks: terrain.ranks, hosts: terrain.hosts, bytes, multicast, links: terrain.links }
}

/// The choice with the subgroups of the settings, and with the chains of the settings if the choice leaves the chains
/// open (MC-8, MC-10).
fn with_settings(choice: Choice, terrain: Terrain<'_>, config: &Config) -> Choice {
    let asked = match choice.algorithm() {
        Algorithm::Multicast { chains, .. } if chains > 0 => chains,
        _ => config.chains,
    };
    let all = asked == 0 || terrain.service_processes == 1;
    choice.spread(if all { terrain.ranks } else { asked.min(terrain.ranks) }, config.subgroups)
}

impl PlanChoice {
    /// The program of `rank`, or the reason why it is invalid.
    pub(super) fn program(&self, signature: Signature, extents: &Extents, rank: Rank) -> Result<Program, &'static str> {
        // Behind the ready barrier all have called, so the program of a barrier is empty.
        if self.choice.collective() == Collective::Barrier && !self.offloaded {
            return Ok(ProgramBuilder::new(rank, self.topology.ranks()).build());
        }
        let arguments = Arguments {
            root: signature.kind.root().unwrap_or(Rank(0)),
            extents: Some(extents),
            element_bytes: signature.kind.reduction().map_or(1, |reduction| reduction.element().bytes()),
            exclusive: matches!(signature.kind, CallKind::Scan { inclusive: false, .. }),
            ..Arguments::of(&self.topology, signature.bytes)
        };
        program(self.choice, &arguments, rank).map_err(|error| match error {
            PlanError::Elements { .. } => "a vector or block that ends within an element",
            PlanError::Rank { .. } => "a rank or root that is not in the group",
            _ => "a plan for these sizes",
        })
    }
}
