//! Many seeds at once: one scenario for each seed, spread over threads, and a summary of the outcomes.
//!
//! Invariant: the summary does not depend on how many threads there are. Runs share nothing.

use std::ops::Range;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::coverage::Coverage;
use crate::faults::Faults;
use crate::hostile;
use crate::mixed::mixed_hardships;
use crate::report::{RunFailure, RunOutcome};
use crate::run;
use crate::scenario::Scenario;

/// Number of failures whose whole account is kept.
const KEPT: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepProgress {
    pub done: u64,
    pub total: u64,
    pub failed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SeedSpread<T> {
    pub min: T,
    pub median: T,
    pub max: T,
}

impl<T: Copy + Ord + Default> SeedSpread<T> {
    fn of(mut values: Vec<T>) -> Self {
        values.sort_unstable();
        match values.as_slice() {
            [] => Self::default(),
            [min, .., max] => SeedSpread { min: *min, median: values[values.len() / 2], max: *max },
            [one] => SeedSpread { min: *one, median: *one, max: *one },
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct SweepSummary {
    pub runs: u64,
    /// Seeds that failed, ascending.
    pub failed_seeds: Vec<u64>,
    /// The accounts of the first failures.
    pub failures: Vec<RunFailure>,
    /// Virtual time from the first call to the last completion.
    pub in_collectives: SeedSpread<Duration>,
    /// Bytes on all links of a run, both ways.
    pub wire_bytes: SeedSpread<u64>,
    /// Payload bytes that a run sent again.
    pub retransmitted_bytes: SeedSpread<u64>,
    /// Deliveries tried in all runs.
    pub deliveries: u64,
    /// Deliveries lost to chance or script.
    pub dropped: u64,
    pub calls: u64,
    /// Calls that ended with an error, rightly.
    pub errors: u64,
    /// Calls reported as late (SP-9).
    pub late: u64,
    pub coverage: Coverage,
}

impl SweepSummary {
    fn of(mut results: Vec<(u64, Result<RunOutcome, RunFailure>)>) -> Self {
        results.sort_by_key(|(seed, _)| *seed);
        let runs = results.len() as u64;
        let failed_seeds = results.iter().filter(|(_, r)| r.is_err()).map(|(seed, _)| *seed).collect();
        let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
        for (_, result) in results {
            match result {
                Ok(outcome) => outcomes.push(outcome),
                Err(failure) if failures.len() < KEPT => failures.push(failure),
                Err(_) => {}
            }
        }
        SweepSummary {
            runs,
            failed_seeds,
            failures,
            in_collectives: SeedSpread::of(outcomes.iter().map(|o| o.in_collectives).collect()),
            wire_bytes: SeedSpread::of(outcomes.iter().map(RunOutcome::wire_bytes).collect()),
            retransmitted_bytes: SeedSpread::of(outcomes.iter().map(RunOutcome::retransmitted_bytes).collect()),
            deliveries: outcomes.iter().map(|o| o.deliveries).sum(),
            dropped: outcomes.iter().map(|o| o.dropped).sum(),
            calls: outcomes.iter().map(|o| o.calls).sum(),
            errors: outcomes.iter().map(|o| o.errors).sum(),
            late: outcomes.iter().map(|o| o.late).sum(),
            coverage: outcomes.iter().fold(Coverage::default(), |mut sum, outcome| {
                sum.add(&outcome.coverage);
                sum
            }),
        }
    }
}

/// Plays the scenario of every seed on `threads` threads (at least one). Calls `progress` on this thread after every
/// run.
pub fn sweep(
    seeds: Range<u64>,
    threads: usize,
    scenario: impl Fn(u64) -> Scenario + Sync,
    progress: impl FnMut(SweepProgress),
) -> SweepSummary {
    sweep_by(seeds, threads, |seed| run(&scenario(seed), seed), progress)
}

fn sweep_by(
    seeds: Range<u64>,
    threads: usize,
    play: impl Fn(u64) -> Result<RunOutcome, RunFailure> + Sync,
    mut progress: impl FnMut(SweepProgress),
) -> SweepSummary {
    let total = seeds.end.saturating_sub(seeds.start);
    let left = Mutex::new(seeds);
    let next = || left.lock().expect("nobody panics while holding it").next();
    let (report, reports) = mpsc::channel();
    let mut results = Vec::new();
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (report, next, play) = (report.clone(), &next, &play);
            scope.spawn(move || {
                while let Some(seed) = next() {
                    report.send((seed, play(seed))).expect("the receiver outlives the scope");
                }
            });
        }
        drop(report);
        let mut failed = 0;
        for (seed, result) in reports {
            failed += u64::from(result.is_err());
            results.push((seed, result));
            progress(SweepProgress { done: results.len() as u64, total, failed });
        }
    });
    SweepSummary::of(results)
}

/// One allgather, played from many seeds: `outboard sim allgather`.
#[derive(Debug, Clone, PartialEq)]
pub struct AllgatherSweep {
    pub ranks: usize,
    pub ranks_per_host: usize,
    pub bytes: u64,
    /// Chance that a datagram is lost on the way to one receiver.
    pub loss: f64,
    pub multicast: bool,
    pub seeds: Range<u64>,
    pub threads: usize,
}

pub fn allgather(plan: &AllgatherSweep, progress: impl FnMut(SweepProgress)) -> SweepSummary {
    let faults = Faults { datagram_loss: plan.loss, ..Faults::none() };
    let mut scenario = Scenario::allgather(plan.ranks, plan.bytes)
        .multicast(plan.multicast)
        .ranks_per_host(plan.ranks_per_host)
        .with_faults(faults);
    // Longer gathering gives fewer, larger events.
    scenario.network.gather = Duration::from_micros(500);
    scenario.network.gather_frames = Duration::from_micros(20);
    scenario.network.room = scenario.network.outstanding_frames / 2;
    sweep(plan.seeds.clone(), plan.threads, |_| scenario.clone(), progress)
}

/// One in this many seeds also plays a hostile script.
const SEEDS_PER_SCRIPT: u64 = 8;

/// Plays [`mixed_hardships`] of every seed, and a [hostile script](hostile::script) of some: `outboard sim mixed`.
pub fn mixed(seeds: Range<u64>, threads: usize, progress: impl FnMut(SweepProgress)) -> SweepSummary {
    let play = |seed: u64| {
        let scenario = mixed_hardships(seed);
        let mut outcome = run(&scenario, seed)?;
        if seed.is_multiple_of(SEEDS_PER_SCRIPT) {
            let script = hostile::script(seed);
            let played = hostile::play(&script).map_err(|violation| {
                let account = format!("hostile script {script:?}");
                RunFailure { seed, violation, scenario: Box::new(scenario), account }
            })?;
            outcome.coverage.add(&played.coverage);
        }
        Ok(outcome)
    };
    sweep_by(seeds, threads, play, progress)
}
