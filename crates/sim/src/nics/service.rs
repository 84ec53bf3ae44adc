//! The same call on service processes: what NICs have to agree with.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use outboard_plan::selection::{Collective, Rule, Tuning};
use outboard_plan::{Rank, Topology};

use super::{Call, reference};
use crate::combined::Combined;
use crate::pattern::Pattern;
use crate::report::Failure;
use crate::scenario::{CallPlan, Scenario};
use crate::store::StoreKind;

/// Plays `call`, the first of a group with ranks on these hosts, on service processes; whether all ranks that receive
/// something combined end with the bits of the plan. What only moves is judged by the oracle of the run.
///
/// # Errors
/// What the oracles of the run found wrong.
///
/// # Panics
/// When a reduction has none, or there are more hosts than a group has ranks.
pub fn service_process(hosts: &[u32], call: &Call) -> Result<bool, Box<Failure>> {
    let (root, ranks) = (call.root.0 as usize, hosts.len());
    let combined = |result| Pattern::Reduction { result, reduction: call.reduction.expect("a call that combines") };
    let (pattern, bytes) = match call.choice.collective() {
        Collective::Broadcast => (Pattern::Broadcast { root }, call.bytes),
        Collective::Barrier => (Pattern::Barrier, 0),
        Collective::Allgather => (Pattern::Allgather, call.bytes),
        Collective::Alltoall => (Pattern::Alltoall, call.bytes),
        Collective::Gather => (Pattern::Gather { root }, call.bytes),
        Collective::Scatter => (Pattern::Scatter { root }, call.bytes),
        Collective::Scan => (combined(Combined::Scan), call.bytes),
        Collective::Reduce => (combined(Combined::Reduce { root }), call.bytes),
        Collective::Allreduce => (combined(Combined::Allreduce), call.bytes),
        Collective::ReduceScatter => (combined(Combined::ReduceScatterBlock), call.bytes / ranks as u64),
    };
    let mut scenario = Scenario::allgather(ranks, 0);
    scenario.host_of = hosts.iter().map(|host| *host as usize).collect();
    scenario.store = StoreKind::Bytes;
    scenario.groups[0].calls = vec![CallPlan::of(pattern, bytes)];
    let rule = Rule { up_to: None, ranks: None, choice: call.choice };
    let rules = [(call.choice.collective(), vec![rule])].into();
    scenario.config.tuning = Some(Arc::new(Tuning { rules, ..Tuning::default() }));
    let bits = crate::run(&scenario, 1).map_err(Box::new)?.bits;
    if bits.is_empty() {
        return Ok(true);
    }
    let topology = Topology::of_hosts(hosts.iter().copied()).expect("at most as many ranks as a group has");
    let contributed = |rank: Rank, bytes| call.contribution(rank, 0, bytes);
    let expected = call.with_arguments(&topology, |arguments| reference::outputs(call, arguments, contributed));
    let agrees = |((_, member, _), bits): (&(usize, usize, u64), &u64)| {
        let mut hasher = DefaultHasher::new();
        expected[*member].hash(&mut hasher);
        *bits == hasher.finish()
    };
    Ok(bits.iter().all(agrees))
}
