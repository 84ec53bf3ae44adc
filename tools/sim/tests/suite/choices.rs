//! Every algorithm that the cost model may choose, and some that people may set, carried out by the protocol machine:
//! right bytes on all ranks, with any losses and any late rank.

use std::sync::Arc;
use std::time::Duration;

use outboard_plan::Element;
use outboard_plan::selection::{Choice, Collective, Rule, Tuning};
use outboard_sim::{CallPlan, Faults, Pattern, ReductionKind, Scenario, StoreKind, run};

use crate::{one_call, sum};

/// A tuning that sets `choice` for `collective`.
fn forced(collective: Collective, choice: Choice) -> Tuning {
    let rule = Rule { up_to: None, ranks: None, choice };
    Tuning { rules: [(collective, vec![rule])].into(), ..Tuning::default() }
}

fn calls(collective: Collective, ranks: usize, bytes: u64) -> Vec<CallPlan> {
    let combined = |result| CallPlan::of(Pattern::Reduction { result, reduction: sum(Element::I32) }, bytes);
    match collective {
        Collective::Allgather => {
            vec![CallPlan::of(Pattern::Allgather, bytes), CallPlan::of(Pattern::Allgatherv { seed: 1 }, bytes)]
        }
        Collective::Broadcast => vec![CallPlan::of(Pattern::Broadcast { root: ranks - 1 }, bytes)],
        Collective::Alltoall => vec![CallPlan::of(Pattern::Alltoall, bytes)],
        Collective::Gather => with_root(ranks, |root| Pattern::Gather { root }, bytes),
        Collective::Scatter => with_root(ranks, |root| Pattern::Scatter { root }, bytes),
        Collective::Barrier => vec![CallPlan::of(Pattern::Barrier, 0)],
        Collective::Reduce => vec![combined(ReductionKind::Reduce { root: ranks - 1 })],
        Collective::Allreduce => vec![combined(ReductionKind::Allreduce)],
        Collective::ReduceScatter => {
            vec![combined(ReductionKind::ReduceScatterBlock), combined(ReductionKind::ReduceScatter { seed: 3 })]
        }
        Collective::Scan => vec![combined(ReductionKind::Scan), combined(ReductionKind::Exscan)],
    }
}

/// Calls from or to two roots, one of which has its block in place.
fn with_root(ranks: usize, pattern: impl Fn(usize) -> Pattern, bytes: u64) -> Vec<CallPlan> {
    let in_place = CallPlan { in_place: vec![ranks / 2], ..CallPlan::of(pattern(ranks / 2), bytes) };
    vec![CallPlan::of(pattern(ranks - 1), bytes), in_place]
}

fn play(collective: Collective, choice: Choice, ranks: usize, bytes: u64, faults: Faults) {
    for (ranks_per_host, siblings) in [(1, 1), (3, 1), (4, 2)] {
        let mut scenario = Scenario::allgather(ranks, 0).ranks_per_host(ranks_per_host).siblings(siblings);
        scenario.config.tuning = Some(Arc::new(forced(collective, choice)));
        scenario.store = StoreKind::Bytes;
        scenario.groups[0].calls = calls(collective, ranks, bytes);
        for call in &mut scenario.groups[0].calls {
            call.late.push((ranks / 2, Duration::from_millis(30)));
        }
        let outcome = run(&scenario.with_faults(faults.clone()), bytes ^ ranks as u64);
        let outcome =
            outcome.unwrap_or_else(|failure| panic!("{collective} by {choice} among {ranks} ranks: {failure}"));
        assert_eq!(outcome.errors, 0, "{collective} by {choice} among {ranks} ranks");
    }
}

#[test]
fn every_choice_is_carried_out() {
    for (collective, choice) in Collective::ALL.into_iter().flat_map(|c| c.choices().iter().map(move |one| (c, *one))) {
        for ranks in [1, 2, 5, 8, 11] {
            for bytes in [40, 50_000] {
                play(collective, choice, ranks, bytes, Faults::none());
            }
        }
    }
}

#[test]
fn every_choice_survives_loss() {
    let faults = Faults { datagram_loss: 0.1, frame_loss: 0.1, jitter: Duration::from_millis(1), ..Faults::none() };
    for (collective, choice) in Collective::ALL.into_iter().flat_map(|c| c.choices().iter().map(move |one| (c, *one))) {
        play(collective, choice, 7, 20_000, faults.clone());
    }
}

#[test]
fn algorithms_that_people_set_are_carried_out() {
    let exchanges = ["pairwise", "scatter-destination:batch=2"].map(|name| (Collective::Alltoall, name, 3_000));
    let allgathers = [
        "hierarchical:leaders=2,between=neighbour-exchange",
        "hierarchical:leaders=2,between=standard-exchange,ports=2",
        "bruck:ports=4",
        "multicast:chains=2",
    ];
    for (collective, name, bytes) in
        exchanges.into_iter().chain(allgathers.map(|name| (Collective::Allgather, name, 30_000)))
    {
        for ranks in [2, 8, 9] {
            play(collective, collective.read(name).expect("an algorithm"), ranks, bytes, Faults::none());
        }
    }
}

/// A rank that calls an all-to-all with other blocks than the rest is detected, for any algorithms on both sides.
#[test]
fn ranks_that_disagree_about_pulled_bytes_get_an_error() {
    let text =
        "[[choice.alltoall]]\nup-to = \"1 KiB\"\nalgorithm = \"bruck\"\n[[choice.alltoall]]\nalgorithm = \"pull\"\n";
    for (bytes, disagrees) in [(64, (3, 4096)), (4096, (3, 64)), (64, (0, 65))] {
        let mut scenario = one_call(5, Pattern::Alltoall, bytes);
        scenario.config.tuning = Some(Arc::new(text.parse().expect("valid")));
        scenario.groups[0].calls[0].disagrees = Some(disagrees);
        assert_eq!(crate::play(&scenario, 1).errors, 5);
    }
}
