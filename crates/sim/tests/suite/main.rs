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

use outboard_sim::{CallPlan, Outcome, Pattern, Scenario, run};

/// Plays a scenario from a seed; no oracle finds anything.
fn play(scenario: &Scenario, seed: u64) -> Outcome {
    run(scenario, seed).unwrap_or_else(|failure| panic!("{failure}"))
}

/// One call of `ranks`, one on each host, with real bytes.
fn one_call(ranks: usize, pattern: Pattern, bytes: u64) -> Scenario {
    let mut scenario = Scenario::allgather(ranks, 0);
    scenario.groups[0].calls = vec![CallPlan::of(pattern, bytes)];
    scenario
}

/// When the last rank has ended its last call.
fn last_end(outcome: &Outcome) -> Duration {
    *outcome.ends.values().max().expect("somebody calls")
}
