//! A call on service processes, whose results NICs must reproduce, and on the engines beside them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use outboard_plan::deferred::DeferredList;
use outboard_plan::selection::{Collective, Rule, Tuning};
use outboard_plan::{Rank, Topology, program};

use super::{NicCall, reference};
use crate::pattern::Pattern;
use crate::reductions::ReductionKind;
use crate::report::RunFailure;
use crate::scenario::{CallPlan, Scenario};
use crate::store::StoreKind;

/// Delay of a late rank, after which other ranks have done all that they can.
const LATE: Duration = Duration::from_millis(2);

/// Plays `call`, the first of a group with ranks on these hosts, on service processes. Returns whether all ranks that
/// receive something combined end with the bits of the plan. The oracle of the run judges calls that only move bytes.
pub(super) fn service_process(hosts: &[u32], call: &NicCall) -> Result<bool, Box<RunFailure>> {
    let bits = crate::run(&scenario(hosts, call), 1).map_err(Box::new)?.bits;
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

/// Plays `call` on service processes that leave it to engines of deferred work, with punctual ranks and with a late
/// one. The oracle of the run judges the call. Every rank whose list does anything must have handed the list over.
pub(super) fn on_lists(hosts: &[u32], call: &NicCall) -> Result<(), String> {
    let topology = Topology::flat(hosts.len() as u32);
    let works = |rank| {
        let program = call.with_arguments(&topology, |arguments| program(call.choice, arguments, Rank(rank)));
        DeferredList::lower(&program.expect("a plan")).is_ok_and(|list| !list.tasks.is_empty())
    };
    let several = hosts.iter().any(|host| *host != hosts[0]);
    let expected = (0..hosts.len() as u32).filter(|rank| several && works(*rank)).count() as u64;
    let mut scenario = scenario(hosts, call);
    scenario.config.deferred = Some("sockets".into());
    for (seed, late) in [(1, None), (2, None), (3, Some((hosts.len() / 3, LATE)))] {
        scenario.groups[0].calls[0].late = late.into_iter().collect();
        let lists = crate::run(&scenario, seed).map_err(|failure| failure.to_string())?.lists;
        if lists != expected {
            return Err(format!("seed {seed}: {lists} lists of {expected} ranks"));
        }
    }
    Ok(())
}

/// One call of a group with ranks on these hosts.
fn scenario(hosts: &[u32], call: &NicCall) -> Scenario {
    let (root, ranks) = (call.root.0 as usize, hosts.len());
    let combined = |result| Pattern::Reduction { result, reduction: call.reduction.expect("a call that combines") };
    let (pattern, bytes) = match call.choice.collective() {
        Collective::Broadcast => (Pattern::Broadcast { root }, call.bytes),
        Collective::Barrier => (Pattern::Barrier, 0),
        Collective::Allgather => (Pattern::Allgather, call.bytes),
        Collective::Alltoall => (Pattern::Alltoall, call.bytes),
        Collective::Gather => (Pattern::Gather { root }, call.bytes),
        Collective::Scatter => (Pattern::Scatter { root }, call.bytes),
        Collective::Scan => (combined(ReductionKind::Scan), call.bytes),
        Collective::Reduce => (combined(ReductionKind::Reduce { root }), call.bytes),
        Collective::Allreduce => (combined(ReductionKind::Allreduce), call.bytes),
        Collective::ReduceScatter => (combined(ReductionKind::ReduceScatterBlock), call.bytes / ranks as u64),
    };
    let mut scenario = Scenario::allgather(ranks, 0);
    scenario.host_of = hosts.iter().map(|host| *host as usize).collect();
    scenario.store = StoreKind::Bytes;
    scenario.groups[0].calls = vec![CallPlan::of(pattern, bytes)];
    let rule = Rule { up_to: None, ranks: None, choice: call.choice };
    let rules = [(call.choice.collective(), vec![rule])].into();
    scenario.config.tuning = Some(Arc::new(Tuning { rules, ..Tuning::default() }));
    scenario
}
