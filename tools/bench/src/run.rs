//! A whole run: install, build, calibrate, measure every system in turn, report.

use crate::calibration::Calibrator;
use crate::compile::Workshop;
use crate::job::{ServiceCounters, System};
use crate::launch::ProgramLaunch;
use crate::measurement::{self, CollectiveLaunch, LatenessSamples, PhaseSamples, SizeSamples};
use crate::peers::InstalledPeer;
use crate::report::{
    BenchReport, CollectiveRow, LateRow, Overlap, RepetitionCost, SampleSpread, Subject, Sums, ThreadCpu, Throughput,
    TimeLimits,
};
use crate::samples::sum_services;
use crate::{BenchCall, BenchError, BenchOptions, Setup, install, limit};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use outboard_lab::Lab;
use std::path::{Path, PathBuf};

/// A launch for learning has this multiple of a measured launch's repetitions. The shim tries nothing in the first half
/// second of a program, and its trials may cost one percent of the program.
const LEARNING_TIMES: u32 = 10;

/// Phases of a launch: barriers, and two for each size, three where a rank is late.
fn phases_per_launch(options: &BenchOptions) -> u64 {
    1 + (2 + u64::from(options.late.is_some())) * options.sizes.len() as u64
}

/// Measures `ours` and the peers of `options` beside one another.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`]. The calling process starts
/// the cluster, which is gone when this returns.
///
/// # Errors
/// If anything fails, because a comparison needs every system. Wrong bytes are no error here: the row reports them.
pub fn run(options: &BenchOptions, ours: &[&dyn System]) -> Result<BenchReport, BenchError> {
    options.check()?;
    let steps = phases_per_launch(options);
    let bar = bar(&options.setup, ours.len(), steps);
    let peers = installed(&options.setup, &bar)?;
    let workshop = Workshop::open(options.setup.programs_dir.as_deref())?;
    let entrants = entrants(ours, &peers, &bar, |system| workshop.collective(system))?;
    bar.set_message("calibrating the compute loop");
    let mut calibrator = Calibrator::start(options, &workshop)?;
    let units = calibrator.units(options)?;
    let mut alone = || {
        // With a communication core every repetition measures its own compute loop.
        let timed = |units: &u64| if options.setup.comm_core { Ok(Vec::new()) } else { calibrator.alone_ms(*units) };
        units.iter().map(timed).collect::<Result<Vec<_>, _>>()
    };
    let launches = go_through(&options.setup, &entrants, workshop.path(), &bar, nothing_before, |launching| {
        let before = alone()?;
        let mut launch = measurement::measure(options, launching, &units, &|| bar.inc(1))?;
        for (size, (before, after)) in launch.sizes.iter_mut().zip(before.into_iter().zip(alone()?)) {
            size.alone_ms = [before, after].concat();
        }
        Ok(launch)
    })?;
    bar.finish_and_clear();
    let rows = entrants.iter().zip(&launches).flat_map(|(entrant, launches)| rows(options, entrant.system, launches));
    Ok(BenchReport { rows: rows.collect() })
}

/// A system of this run, and the program built for it.
struct Entrant<'a> {
    system: &'a dyn System,
    program: PathBuf,
}

/// The `before` of runs that need no launch before the measurement.
pub(crate) fn nothing_before(_: &ProgramLaunch<'_>) -> Result<(), BenchError> {
    Ok(())
}

/// Runs one program below `ours` and the peers of `setup`, beside one another; `build` builds the program for each
/// system. Each system has one turn of `before` ahead of all rounds. `rows` makes the rows of each system, ours first,
/// from the results of `measure` in the system's launches.
pub(crate) fn side_by_side<L, R>(
    setup: &Setup,
    ours: &[&dyn System],
    build: impl Fn(&Workshop, &dyn System) -> Result<PathBuf, BenchError>,
    before: impl FnMut(&ProgramLaunch<'_>) -> Result<(), BenchError>,
    measure: impl Fn(&ProgramLaunch<'_>) -> Result<L, BenchError>,
    rows: impl Fn(&dyn System, &[L]) -> Vec<R>,
) -> Result<BenchReport<R>, BenchError> {
    let bar = bar(setup, ours.len(), 1);
    let peers = installed(setup, &bar)?;
    let workshop = Workshop::open(setup.programs_dir.as_deref())?;
    let entrants = entrants(ours, &peers, &bar, |system| build(&workshop, system))?;
    let launches = go_through(setup, &entrants, workshop.path(), &bar, before, |launching| {
        let launch = measure(launching)?;
        bar.inc(1);
        Ok(launch)
    })?;
    bar.finish_and_clear();
    let rows = entrants.iter().zip(&launches).flat_map(|(entrant, launches)| rows(entrant.system, launches));
    Ok(BenchReport { rows: rows.collect() })
}

/// The peers, installed if need be.
fn installed(setup: &Setup, bar: &ProgressBar) -> Result<Vec<InstalledPeer>, BenchError> {
    for peer in &setup.peers {
        bar.set_message(format!("installing {}", peer.name()));
        install::ensure_compiler(*peer, &setup.peers_dir)?;
    }
    Ok(setup.peers.iter().map(|peer| InstalledPeer::new(*peer, &setup.peers_dir)).collect())
}

/// All entrants: ours first, then the peers.
fn entrants<'a>(
    ours: &[&'a dyn System],
    peers: &'a [InstalledPeer],
    bar: &ProgressBar,
    build: impl Fn(&dyn System) -> Result<PathBuf, BenchError>,
) -> Result<Vec<Entrant<'a>>, BenchError> {
    bar.set_message("building the programs");
    let systems = ours.iter().copied().chain(peers.iter().map(|peer| peer as &dyn System));
    systems.map(|system| Ok(Entrant { system, program: build(system)? })).collect()
}

/// Starts the cluster and gives each entrant one turn of `before`. Then it launches each entrant that learns
/// `setup.learn` times. Then every entrant has one turn in each round, in alternating order. Returns the results of
/// `measure` for each entrant, one per round.
fn go_through<T>(
    setup: &Setup,
    entrants: &[Entrant<'_>],
    workshop: &Path,
    bar: &ProgressBar,
    mut before: impl FnMut(&ProgramLaunch<'_>) -> Result<(), BenchError>,
    mut measure: impl FnMut(&ProgramLaunch<'_>) -> Result<T, BenchError>,
) -> Result<Vec<Vec<T>>, BenchError> {
    let course = Course { lab: Lab::start(&setup.lab)?, workshop, bar };
    for entrant in entrants {
        course.turn("getting ready", setup, entrant, &mut before)?;
    }
    let learning = Setup { repetitions: setup.repetitions * LEARNING_TIMES, ..setup.clone() };
    for _ in 0..setup.learn {
        for entrant in entrants.iter().filter(|entrant| entrant.system.learns()) {
            course.turn("learning", &learning, entrant, &mut measure)?;
        }
    }
    let mut found: Vec<Vec<T>> = entrants.iter().map(|_| Vec::new()).collect();
    for round in 1..=setup.rounds {
        let mut turns: Vec<_> = found.iter_mut().zip(entrants).collect();
        // The order alternates, so that a steady change of the machine affects all entrants alike.
        if round.is_multiple_of(2) {
            turns.reverse();
        }
        for (found, entrant) in turns {
            found.push(course.turn(&format!("round {round} of {}", setup.rounds), setup, entrant, &mut measure)?);
        }
    }
    Ok(found)
}

/// The cluster and directories of a run.
struct Course<'a> {
    lab: Lab,
    workshop: &'a Path,
    bar: &'a ProgressBar,
}

impl Course<'_> {
    /// Calls `go` for an entrant, in a directory of its own.
    fn turn<T>(
        &self,
        what: &str,
        setup: &Setup,
        Entrant { system, program }: &Entrant<'_>,
        go: impl FnOnce(&ProgramLaunch<'_>) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        self.bar.set_message(format!("{} ({what})", system.name()));
        let directory = tempfile::tempdir_in(self.workshop).map_err(BenchError::system("make a directory"))?;
        go(&ProgramLaunch { setup, lab: &self.lab, system: *system, program, directory: directory.path() })
    }
}

/// A progress bar with `steps` for each launch, or a hidden one.
fn bar(setup: &Setup, ours: usize, steps: u64) -> ProgressBar {
    let rounds = |systems: usize, rounds: u32| systems as u64 * u64::from(rounds);
    let launches = rounds(ours, setup.learn) + rounds(ours + setup.peers.len(), setup.rounds);
    // Draws nothing where standard error is no terminal.
    let target = if setup.progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed_precise} {msg}").expect("a valid template");
    ProgressBar::with_draw_target(Some(launches * steps), target).with_style(style)
}

fn rows(options: &BenchOptions, system: &dyn System, launches: &[CollectiveLaunch]) -> Vec<CollectiveRow> {
    let rows = options.sizes.iter().enumerate().map(|(at, bytes)| {
        let samples: Vec<&SizeSamples> = launches.iter().map(|launch| &launch.sizes[at]).collect();
        row(options, system, launches, *bytes, &samples)
    });
    rows.collect()
}

fn row(
    options: &BenchOptions,
    system: &dyn System,
    launches: &[CollectiveLaunch],
    bytes_per_rank: u64,
    samples: &[&SizeSamples],
) -> CollectiveRow {
    let call = options.call(bytes_per_rank);
    let all = |pick: fn(&SizeSamples) -> &Vec<f64>| SampleSpread::of(&figures(samples, pick));
    let barriers: Vec<f64> = launches.iter().flat_map(|launch| launch.barrier.slowest_ms.iter().copied()).collect();
    let time_ms = all(|sample| &sample.pure.slowest_ms);
    let overall_ms = all(|sample| &sample.overall.slowest_ms).median;
    let compute_ms = match options.setup.comm_core {
        true => all(|sample| &sample.overall.loops_ms).median,
        false => all(|sample| &sample.alone_ms).median,
    };
    let barrier_ms = SampleSpread::of(&barriers);
    let services = sum_services(samples.iter().map(|sample| sample.services));
    let phases = samples.iter().flat_map(|sample| {
        [Some(&sample.pure), Some(&sample.overall), sample.lateness.as_ref().map(|late| &late.punctual)]
    });
    let library = launches.last().map(|launch| launch.library.as_str());
    let link = &options.setup.lab.link();
    let cost = RepetitionCost::of(&Sums {
        repetitions: options.setup.all_repetitions(),
        time_ms,
        wire_bytes: samples.iter().map(|sample| sample.wire_bytes).sum(),
        host_cpu_s: samples.iter().map(|sample| sample.pure.cpu_s).sum(),
        services,
        wrong_results: phases.flatten().map(|phase| phase.wrong).sum(),
    });
    CollectiveRow {
        collective: options.collective.name().to_owned(),
        subject: Subject::of(&options.setup, system, library.unwrap_or_default(), &call),
        bytes_per_rank,
        limits: TimeLimits::new(&call, link, time_ms.median, barrier_ms.median),
        throughput: Throughput::of(&call, link, &cost),
        cost,
        barrier_ms,
        multicast_minimum_bytes: limit::multicast_minimum_bytes(&call),
        overlap: Overlap::new(compute_ms, overall_ms, time_ms.median, all(|sample| &sample.paired_alone_ms).median),
        thread_cpu_waiting: thread_cpu(samples, |sample| &sample.pure),
        thread_cpu_computing: thread_cpu(samples, |sample| &sample.overall),
        offloaded_calls: offloaded_calls(options, launches, services),
        late: late_row(options, &call, samples),
    }
}

/// The figures of all repetitions of all rounds.
fn figures<S>(samples: &[&S], pick: impl Fn(&S) -> &Vec<f64>) -> Vec<f64> {
    samples.iter().flat_map(|sample| pick(sample).iter().copied()).collect()
}

fn thread_cpu(samples: &[&SizeSamples], phase: impl Fn(&SizeSamples) -> &PhaseSamples) -> ThreadCpu {
    let all = |pick: fn(&PhaseSamples) -> &Vec<f64>| figures(samples, |sample| pick(phase(sample)));
    ThreadCpu::of(&all(|phase| &phase.post_us), &all(|phase| &phase.ending_us))
}

fn late_row(options: &BenchOptions, call: &BenchCall, samples: &[&SizeSamples]) -> Option<LateRow> {
    let late = options.late?;
    let median = |values: &[f64]| SampleSpread::of(values).median;
    let lateness: Vec<&LatenessSamples> = samples.iter().filter_map(|sample| sample.lateness.as_ref()).collect();
    let all = |pick: fn(&LatenessSamples) -> &Vec<f64>| median(&figures(&lateness, pick));
    let others_ms = figures(samples, |sample| &sample.pure.late_others_ms);
    let called_ms = figures(samples, |sample| &sample.pure.late_call_ms);
    let others_after: Vec<f64> = others_ms.iter().zip(called_ms).map(|(others, called)| others - called).collect();
    Some(LateRow {
        rank: late.rank,
        ms: median(&lateness.iter().map(|late| late.by_ms).collect::<Vec<f64>>()),
        silent: late.silent,
        own_ms: median(&figures(samples, |sample| &sample.pure.late_own_ms)),
        copy_ms: all(|late| &late.copy_ms),
        others_ms: median(&others_ms),
        others_after_call_ms: median(&others_after),
        contribution_ms: limit::contribution_ms(call, late.rank, &options.setup.lab.link()),
        punctual_ms: all(|late| &late.punctual.late_others_ms),
    })
}

/// Calls per repetition that the services completed, minus the calls of a repetition that only has a barrier.
fn offloaded_calls(
    options: &BenchOptions,
    launches: &[CollectiveLaunch],
    services: Option<ServiceCounters>,
) -> Option<f64> {
    let barriers = sum_services(launches.iter().map(|launch| launch.barrier_services))?.completed;
    let beyond = services?.completed as f64 - barriers as f64;
    Some(beyond / f64::from(options.setup.ranks() * options.setup.all_repetitions()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, LateBy, LateRankSpec, Peer};
    use serde_json::json;

    fn phase(slowest_ms: [f64; 2]) -> serde_json::Value {
        json!({
            "slowest_ms": slowest_ms, "late_call_ms": [20.0, 21.0], "late_own_ms": [3.0, 5.0],
            "late_others_ms": [24.0, 19.0], "post_us": [1.0, 2.0], "ending_us": [3.0, 5.0], "loops_ms": [11.0, 13.0],
            "cpu_s": 0.5, "wrong": 0,
        })
    }

    /// The row of one launch with two repetitions.
    fn made_up(comm_core: bool) -> CollectiveRow {
        let mut setup = Setup::new("2x1gbit".parse().unwrap(), 2);
        setup.comm_core = comm_core;
        let mut options = BenchOptions::new(setup, Collective::Allgather, vec![1 << 20]);
        options.late = Some(LateRankSpec { rank: 1, by: LateBy::PureTimes(2), silent: false });
        let lateness = json!({ "by_ms": 20.0, "copy_ms": [0.25, 0.75], "punctual": phase([8.0, 8.0]) });
        let read = |value| serde_json::from_value(value).unwrap();
        let sample = SizeSamples {
            lateness: Some(serde_json::from_value(lateness).unwrap()),
            pure: read(phase([22.0, 26.0])),
            overall: read(phase([28.0, 32.0])),
            paired_alone_ms: vec![24.0, 24.0],
            wire_bytes: 200,
            services: None,
            alone_ms: vec![17.0, 19.0],
        };
        let launch = CollectiveLaunch {
            library: "a library".into(),
            barrier: read(phase([0.25, 0.25])),
            barrier_services: None,
            sizes: Vec::new(),
        };
        let system = InstalledPeer::new(Peer::Debian, Path::new("/nowhere"));
        row(&options, &system, &[launch], 1 << 20, &[&sample])
    }

    #[test]
    fn ranks_that_share_a_core_compute_one_after_another() {
        let (shared, apart) = (made_up(true).overlap, made_up(false).overlap);
        assert_eq!((shared.compute_ms, shared.overall_ms, shared.percent), (12.0, 30.0, 25.0));
        assert_eq!((apart.compute_ms, apart.overall_ms, apart.percent), (18.0, 30.0, 50.0));
        assert_eq!((apart.paired_alone_ms, apart.paired_ratio), (24.0, 1.25));
    }

    #[test]
    fn others_times_count_from_the_start_and_from_the_late_call() {
        let row = made_up(false);
        assert_eq!((row.cost.time_ms.median, row.cost.host_cpu_s, row.cost.wire_bytes), (24.0, 0.25, 100.0));
        let late = row.late.expect("a late rank");
        assert_eq!((late.rank, late.ms, late.own_ms, late.copy_ms), (1, 20.0, 4.0, 0.5));
        // The others ended 4 ms after the late call in one repetition and 2 ms before the late call in the other.
        assert_eq!((late.others_ms, late.others_after_call_ms, late.punctual_ms), (21.5, 1.0, 21.5));
    }
}
