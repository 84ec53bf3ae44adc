//! The oracles can fail: a driver that does one thing wrong is found out, whichever thing and whichever store.

use std::time::Duration;

use outboard_plan::{Element, Operator, Rank, Reduction};
use outboard_sim::{Breach, CallPlan, Combined, Pattern, Sabotage, Scenario, StoreKind, run, run_sabotaged};

/// Two hosts with two ranks each, one of which comes late, so that staging is used.
fn scenario(multicast: bool, store: StoreKind) -> Scenario {
    let mut scenario = Scenario::allgather(4, 5000).multicast(multicast).ranks_per_host(2);
    scenario.groups[0].calls[0].late = vec![(3, Duration::from_millis(50))];
    scenario.store = store;
    scenario
}

fn breach(scenario: &Scenario, sabotage: Sabotage) -> Breach {
    run_sabotaged(scenario, 1, Some(sabotage)).expect_err("the sabotage is found out").breach
}

fn everywhere(check: impl Fn(&Scenario)) {
    for multicast in [false, true] {
        for store in [StoreKind::Bytes, StoreKind::Provenance] {
            let scenario = scenario(multicast, store);
            run(&scenario, 1).unwrap_or_else(|failure| panic!("without sabotage all is well: {failure}"));
            check(&scenario);
        }
    }
}

#[test]
fn a_skipped_delivery_is_found() {
    everywhere(|s| {
        let found = breach(s, Sabotage::SkipDeliver { nth: 1 });
        assert!(matches!(found, Breach::WrongBytes { .. } | Breach::ReadsUndefined { .. }), "{found}");
    });
}

#[test]
fn a_misplaced_delivery_is_found() {
    everywhere(|s| {
        let found = breach(s, Sabotage::ShiftDeliver { nth: 0 });
        assert!(
            matches!(found, Breach::WrongBytes { .. } | Breach::ReadsUndefined { .. } | Breach::OutOfBounds { .. }),
            "{found}"
        );
    });
}

#[test]
fn a_skipped_copy_is_found() {
    everywhere(|s| {
        let found = breach(s, Sabotage::SkipCopy { nth: 0 });
        assert!(matches!(found, Breach::WrongBytes { .. } | Breach::ReadsUndefined { .. }), "{found}");
    });
}

#[test]
fn a_skipped_reduction_is_found() {
    let sum = Reduction::new(Operator::Sum, Element::F32).expect("defined by MPI");
    for result in [Combined::Allreduce, Combined::ReduceScatterBlock, Combined::Scan] {
        let mut scenario = scenario(false, StoreKind::Bytes);
        scenario.groups[0].calls = vec![CallPlan::of(Pattern::Reduction { result, reduction: sum }, 4000)];
        let found = breach(&scenario, Sabotage::SkipReduce { nth: 0 });
        assert!(matches!(found, Breach::WrongBytes { .. }), "{found}");
    }
}

#[test]
fn kept_staging_is_found() {
    everywhere(|s| {
        let found = breach(s, Sabotage::KeepStaging { nth: 0 });
        assert!(matches!(found, Breach::LeftOver { .. }), "{found}");
    });
}

#[test]
fn a_lost_completion_is_found() {
    everywhere(|s| {
        let found = breach(s, Sabotage::LoseCompletion { nth: 0 });
        assert!(matches!(found, Breach::NotLive { .. }), "{found}");
    });
}

#[test]
fn a_wrong_culprit_is_found() {
    everywhere(|s| {
        let found = breach(s, Sabotage::InventError { nth: 0, rank: Rank(2) });
        assert!(matches!(found, Breach::FalseError { .. }), "{found}");
    });
}
