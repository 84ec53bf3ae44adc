//! All tests of simulated groups, in one program.

mod allgather;
mod allgatherv;
mod alltoall;
mod barrier;
mod broadcast;
mod choices;
mod datapath;
mod exhaustive;
mod fairness;
mod figures;
mod hostile;
mod mixed;
mod nics;
mod oracles;
mod overdue;
mod partitions;
mod recorded;
mod reduction;
mod sequences;
mod small;
mod triggered;

use std::time::Duration;

use outboard_plan::{Element, Operator, Reduction};
use outboard_sim::{CallPlan, Pattern, RunOutcome, Scenario, run};

/// Plays a scenario from a seed. No oracle may find anything.
fn play(scenario: &Scenario, seed: u64) -> RunOutcome {
    run(scenario, seed).unwrap_or_else(|failure| panic!("{failure}"))
}

/// One call of `ranks`, one on each host, with real bytes.
fn one_call(ranks: usize, pattern: Pattern, bytes: u64) -> Scenario {
    let mut scenario = Scenario::allgather(ranks, 0);
    scenario.groups[0].calls = vec![CallPlan::of(pattern, bytes)];
    scenario
}

/// When the last rank ended its last call.
fn last_end(outcome: &RunOutcome) -> Duration {
    *outcome.ends.values().max().expect("somebody calls")
}

fn sum(element: Element) -> Reduction {
    Reduction::new(Operator::Sum, element).expect("defined by MPI")
}

/// Wire bytes in percent of the payload: headers of datagrams, and control messages of barrier and ring.
const MOST_WIRE_PERCENT: u64 = 110;
/// Time relative to the link time of the payload: headers take 5 %, the barrier and the last acknowledgements the rest.
const MOST_TIME: f64 = 1.10;

/// Plays a call with `payload` bytes on all links together, and `received` bytes on each receive link. The payload must
/// cross each link once, at the pace of the links.
fn crosses_each_link_once(scenario: &Scenario, payload: u64, received: u64) {
    let outcome = play(scenario, 1);
    assert!(outcome.wire_bytes() < payload * MOST_WIRE_PERCENT / 100, "{} bytes on the wire", outcome.wire_bytes());
    let limit = (received * 8) as f64 / scenario.network.rate as f64;
    let ratio = outcome.in_collectives.as_secs_f64() / limit;
    assert!(ratio < MOST_TIME, "{ratio} of the raw limit");
    assert_eq!(outcome.retransmitted_bytes(), 0, "nothing is lost by its own pace");
}
