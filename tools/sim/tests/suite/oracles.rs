//! The oracles can fail: they detect a driver that does one thing wrong, for every kind of mistake and of store.

use std::time::Duration;

use outboard_plan::{Element, Rank};
use outboard_sim::{CallPlan, Pattern, ReductionKind, Sabotage, Scenario, StoreKind, Violation, run, run_sabotaged};

use crate::sum;

/// Two hosts with two ranks each. One rank comes late, so that staging is used.
fn scenario(multicast: bool, store: StoreKind) -> Scenario {
    let mut scenario = Scenario::allgather(4, 5000).multicast(multicast).ranks_per_host(2);
    scenario.groups[0].calls[0].late = vec![(3, Duration::from_millis(50))];
    scenario.store = store;
    scenario
}

fn violation(scenario: &Scenario, sabotage: Sabotage) -> Violation {
    run_sabotaged(scenario, 1, Some(sabotage)).expect_err("the sabotage is found out").violation
}

#[test]
fn oracle_finds_each_sabotage() {
    type Finds = fn(&Violation) -> bool;
    let lost: Finds = |found| matches!(found, Violation::WrongBytes { .. } | Violation::ReadsUndefined { .. });
    let misplaced: Finds = |found| {
        matches!(found, Violation::WrongBytes { .. } | Violation::ReadsUndefined { .. } | Violation::OutOfBounds { .. })
    };
    let cases: [(Sabotage, Finds); 6] = [
        (Sabotage::SkipDeliver { nth: 1 }, lost),
        (Sabotage::ShiftDeliver { nth: 0 }, misplaced),
        (Sabotage::SkipCopy { nth: 0 }, lost),
        (Sabotage::KeepStaging { nth: 0 }, |found| matches!(found, Violation::LeftOver { .. })),
        (Sabotage::LoseCompletion { nth: 0 }, |found| matches!(found, Violation::NotLive { .. })),
        (Sabotage::InventError { nth: 0, rank: Rank(2) }, |found| matches!(found, Violation::FalseError { .. })),
    ];
    for (multicast, store) in
        [false, true].into_iter().flat_map(|m| [StoreKind::Bytes, StoreKind::Provenance].map(|s| (m, s)))
    {
        let scenario = scenario(multicast, store);
        run(&scenario, 1).unwrap_or_else(|failure| panic!("without sabotage all is well: {failure}"));
        for (sabotage, is_it) in cases {
            let found = violation(&scenario, sabotage);
            assert!(is_it(&found), "{sabotage:?}, multicast {multicast}, {store:?}: {found}");
        }
    }
}

#[test]
fn a_skipped_reduction_is_found() {
    for result in [ReductionKind::Allreduce, ReductionKind::ReduceScatterBlock, ReductionKind::Scan] {
        let mut scenario = scenario(false, StoreKind::Bytes);
        scenario.groups[0].calls =
            vec![CallPlan::of(Pattern::Reduction { result, reduction: sum(Element::F32) }, 4000)];
        let found = violation(&scenario, Sabotage::SkipReduce { nth: 0 });
        assert!(matches!(found, Violation::WrongBytes { .. }), "{found}");
    }
}
