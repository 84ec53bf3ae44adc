//! Seeded simulator: drives the protocol machines of `outboard-proto`, unchanged, over a faulty virtual network.
//!
//! A [`Scenario`] describes hosts, ranks, groups, calls and faults. [`run`] plays it from one seed in virtual time and
//! judges everything the machines do. Every rank ends with exactly the right bytes, or with an error that names a true
//! culprit. Every call ends once. Memory is used by the rules and given back. When faults stop, everything ends.
//!
//! [`nics`] does the same for NICs that carry out collectives themselves.
//!
//! Invariants: a run is a function of scenario and seed, on every machine. Nothing waits for real time. Never does IO.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the workspace alone uses it")]

mod clock;
mod cluster;
mod coverage;
mod deferred_engine;
mod faults;
mod fuzz_input;
mod graph;
mod host;
pub mod hostile;
mod mixed;
mod network;
pub mod nics;
mod oracle;
mod pattern;
mod reductions;
mod report;
mod sabotage;
mod scenario;
mod scenario_run;
pub mod sequences;
mod store;
mod sweep;
mod violation;

pub use coverage::{Coverage, FaultKind, RankTransition};
pub use faults::{AbandonedConnection, Faults, HostDeath, HostPause, LinkCut, RankFault};
pub use fuzz_input::FuzzInput;
pub use mixed::{
    mixed_allgathers, mixed_calls, mixed_choices, mixed_exchanges, mixed_hardships, mixed_messages, mixed_recorded,
    mixed_sizes,
};
pub use network::{LinkBytes, NetworkPlan};
pub use pattern::Pattern;
pub use reductions::ReductionKind;
pub use report::{RunFailure, RunOutcome};
pub use sabotage::Sabotage;
pub use scenario::{CallPlan, GroupPlan, Scenario};
pub use store::StoreKind;
pub use sweep::{AllgatherSweep, SeedSpread, SweepProgress, SweepSummary, allgather, mixed, sweep};
pub use violation::Violation;

use std::panic::{AssertUnwindSafe, catch_unwind};

use scenario_run::ScenarioRun;

/// Plays a scenario from a seed.
///
/// # Errors
/// Returns what the first failing oracle found, with an account of the run.
pub fn run(scenario: &Scenario, seed: u64) -> Result<RunOutcome, RunFailure> {
    run_sabotaged(scenario, seed, None)
}

/// Plays a scenario with a driver that does one thing wrong on purpose, to show that an oracle notices.
pub fn run_sabotaged(scenario: &Scenario, seed: u64, sabotage: Option<Sabotage>) -> Result<RunOutcome, RunFailure> {
    let (result, _) = play(scenario, seed, sabotage, false);
    result.map_err(|violation| {
        // The second run of the same seed is traced.
        let (again, account) = play(scenario, seed, sabotage, true);
        let violation = again.err().unwrap_or(violation);
        RunFailure { seed, violation, scenario: Box::new(scenario.clone()), account }
    })
}

fn play(
    scenario: &Scenario,
    seed: u64,
    sabotage: Option<Sabotage>,
    trace: bool,
) -> (Result<RunOutcome, Violation>, String) {
    let mut world = ScenarioRun::new(scenario, seed, sabotage, trace);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let result = match result {
        Ok(result) => result.map(|()| world.outcome()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(Violation::Panic(text.unwrap_or_else(|| "without a message".into())))
        }
    };
    let account = if trace { world.account() } else { String::new() };
    (result, account)
}
