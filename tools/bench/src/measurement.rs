//! One launch of one system with the collectives' program: its samples, size by size.

use crate::job::ServiceCounters;
use crate::launch::{self, ControlSession, PhaseCounters, ProgramLaunch, RankMessage};
use crate::{BenchCall, BenchError, BenchOptions, LateBy, limit};
use serde::Deserialize;
use std::time::Duration;

/// The samples of one launch.
#[derive(Clone, Debug)]
pub(crate) struct CollectiveLaunch {
    pub(crate) library: String,
    pub(crate) barrier: PhaseSamples,
    /// Counters of the services over all repetitions of the barrier phase. They stand for the start of a repetition.
    pub(crate) barrier_services: Option<ServiceCounters>,
    /// The samples of each size, in the order of the options.
    pub(crate) sizes: Vec<SizeSamples>,
}

/// The samples of one launch for one size.
#[derive(Clone, Debug)]
pub(crate) struct SizeSamples {
    /// `None` where no rank is late.
    pub(crate) lateness: Option<LatenessSamples>,
    pub(crate) pure: PhaseSamples,
    pub(crate) overall: PhaseSamples,
    /// Times of the slowest rank in the compute loop alone, in repetitions that alternate with the overall phase.
    pub(crate) paired_alone_ms: Vec<f64>,
    /// Wire bytes of all pure repetitions.
    pub(crate) wire_bytes: u64,
    /// Counters of the services over all pure repetitions.
    pub(crate) services: Option<ServiceCounters>,
    /// Time of the compute loop alone just before and after the launch, measured by the calibration. Empty with a
    /// communication core: [`PhaseSamples::loops_ms`] then holds the time of the loop.
    pub(crate) alone_ms: Vec<f64>,
}

/// The samples of a late rank, as the program sends them.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LatenessSamples {
    /// How late the rank was.
    pub(crate) by_ms: f64,
    /// The late rank's times to copy as many bytes as other ranks contribute to its result.
    pub(crate) copy_ms: Vec<f64>,
    /// A pure phase with the rank on time.
    pub(crate) punctual: PhaseSamples,
}

/// The samples of one phase as the program sends them.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PhaseSamples {
    /// Time of the slowest rank in each repetition.
    pub(crate) slowest_ms: Vec<f64>,
    /// Time of the late rank's call, from the start of each repetition; empty where no rank is late.
    pub(crate) late_call_ms: Vec<f64>,
    /// The late rank's time from its own post, of each repetition; empty where no rank is late.
    pub(crate) late_own_ms: Vec<f64>,
    /// Time of the slowest other rank in each repetition; empty where no rank is late.
    pub(crate) late_others_ms: Vec<f64>,
    /// Processor time of each rank's own thread to post, in every repetition.
    pub(crate) post_us: Vec<f64>,
    /// Processor time of each rank's own thread to test and wait, in the order of `post_us`.
    pub(crate) ending_us: Vec<f64>,
    /// Processor time that the compute loops of all ranks took together, in each repetition.
    pub(crate) loops_ms: Vec<f64>,
    /// Processor time of all ranks in all repetitions.
    pub(crate) cpu_s: f64,
    /// Results with wrong bytes.
    pub(crate) wrong: u64,
}

#[derive(Deserialize)]
struct BarrierLine {
    barrier: PhaseSamples,
}

#[derive(Deserialize)]
struct CollectiveLine {
    bytes_per_rank: u64,
    lateness: Option<LatenessSamples>,
    pure: PhaseSamples,
    overall: PhaseSamples,
    paired_alone_ms: Vec<f64>,
}

/// Launches the program and measures all sizes; `tick` is called after each phase.
pub(crate) fn measure(
    options: &BenchOptions,
    launching: &ProgramLaunch<'_>,
    units: &[u64],
    tick: &dyn Fn(),
) -> Result<CollectiveLaunch, BenchError> {
    let arguments = arguments(options, units);
    launching.run(arguments, time_limit(options, launching.setup.repetitions), |session| listen(options, session, tick))
}

fn listen(
    options: &BenchOptions,
    session: &mut ControlSession<'_, '_>,
    tick: &dyn Fn(),
) -> Result<CollectiveLaunch, BenchError> {
    let mut library = String::new();
    let (mut barrier, mut barrier_services) = (None, None);
    let mut sizes = Vec::new();
    let mut phases: Vec<PhaseCounters> = Vec::new();
    while let Some(bytes) = options.sizes.get(sizes.len()) {
        match session.next(&format!("measuring, {} of {} sizes done", sizes.len(), options.sizes.len()))? {
            RankMessage::Library(text) => library = text,
            RankMessage::PhaseEnd(counted) => {
                phases.push(counted);
                tick();
            }
            RankMessage::Row(text) if barrier.is_none() => {
                barrier = Some(session.parse::<BarrierLine>(&text)?.barrier);
                barrier_services = phases.pop().and_then(|phase| phase.services);
                phases.clear();
            }
            RankMessage::Row(text) => {
                sizes.push(size_samples(*bytes, &text, &phases, session)?);
                phases.clear();
            }
        }
    }
    let barrier = barrier.ok_or_else(|| session.protocol_error("no barriers"))?;
    Ok(CollectiveLaunch { library, barrier, barrier_services, sizes })
}

fn size_samples(
    bytes: u64,
    text: &str,
    phases: &[PhaseCounters],
    session: &ControlSession<'_, '_>,
) -> Result<SizeSamples, BenchError> {
    let line: CollectiveLine = session.parse(text)?;
    match (phases, &line.lateness) {
        ([pure, _overall], None) | ([_, pure, _overall], Some(_)) if line.bytes_per_rank == bytes => Ok(SizeSamples {
            lateness: line.lateness,
            pure: line.pure,
            overall: line.overall,
            paired_alone_ms: line.paired_alone_ms,
            wire_bytes: pure.wire_bytes,
            services: pure.services,
            alone_ms: Vec::new(),
        }),
        _ => Err(session.protocol_error(text)),
    }
}

fn arguments(options: &BenchOptions, units: &[u64]) -> Vec<String> {
    let missed = |bytes| options.late.map_or(0, |late| options.call(bytes).result_of_others_bytes(late.rank));
    let sizes: Vec<String> =
        options.sizes.iter().zip(units).map(|(bytes, units)| format!("{bytes}:{units}:{}", missed(*bytes))).collect();
    let mut arguments = vec![format!("collective={}", options.collective.name()), format!("sizes={}", sizes.join(","))];
    if let Some(late) = options.late {
        arguments.push(format!("late-rank={}", late.rank));
        arguments.push(match late.by {
            LateBy::Time(time) => format!("late-ns={}", time.as_nanos()),
            LateBy::PureTimes(times) => format!("late-times={times}"),
        });
        arguments.push(format!("late-silent={}", u8::from(late.silent)));
    }
    arguments
}

fn time_limit(options: &BenchOptions, repetitions: u32) -> Duration {
    const EVERY_REPETITION_S: f64 = 0.2;
    let (late_s, times) = match options.late.map(|late| late.by) {
        Some(LateBy::Time(late)) => (late.as_secs_f64(), 1.0),
        Some(LateBy::PureTimes(times)) => (0.0, 1.0 + f64::from(times)),
        None => (0.0, 1.0),
    };
    let links_s = |call: BenchCall| times * limit::raw_limit_ms(&call, &options.setup.lab.link()) / 1e3;
    let own_s = |call: BenchCall| times * EVERY_REPETITION_S + launch::checking_s(call.ranks(), call.bytes) + late_s;
    let (links_s, own_s): (f64, f64) = (options.calls().map(links_s).sum(), options.calls().map(own_s).sum());
    let phases = 4.0 * f64::from(repetitions + 2);
    launch::time_limit(phases * links_s, phases * (own_s + EVERY_REPETITION_S))
}
