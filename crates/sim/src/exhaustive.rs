//! Every single and every double loss in a short run.
//!
//! The deliveries of a run (a datagram to one receiver, or a frame) are numbered as they happen. Each run with one loss
//! is followed by one run for each delivery after the lost one, so that what is sent in answer to the first loss is
//! lost as well, once each.

use crate::report::Failure;
use crate::run;
use crate::scenario::Scenario;

/// What was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Deliveries without any loss.
    pub deliveries: u64,
    /// Runs with one loss.
    pub singles: u64,
    /// Runs with two.
    pub doubles: u64,
}

/// Plays the scenario with every single loss and, if `doubles`, every double loss of a delivery. All runs have the same
/// seed: what differs between them is the loss alone.
///
/// # Errors
/// The first run in which an oracle finds something.
pub fn exhaust_losses(scenario: &Scenario, seed: u64, doubles: bool) -> Result<Losses, Failure> {
    let deliveries = run(scenario, seed)?.deliveries;
    let mut tried = Losses { deliveries, ..Losses::default() };
    let mut scenario = scenario.clone();
    for first in 0..deliveries {
        scenario.faults.drop = vec![first];
        let then = run(&scenario, seed)?.deliveries;
        tried.singles += 1;
        if !doubles {
            continue;
        }
        for second in first + 1..then {
            scenario.faults.drop = vec![first, second];
            run(&scenario, seed)?;
            tried.doubles += 1;
        }
    }
    Ok(tried)
}
