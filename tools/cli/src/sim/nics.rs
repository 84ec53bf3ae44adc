//! `outboard sim COLLECTIVE --engine NAME`: one call on engines that carry out collectives without a service process.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use outboard_nic::costs::{EngineCosts, Machine};
use outboard_nic::datapath::{self, Transport};
use outboard_nic::host::{self, ProgressMode};
use outboard_nic::ordered::{self, BufferSharing};
use outboard_nic::profile::Profile;
use outboard_nic::triggered::{self, Readiness};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Element, MAX_RANKS, Operator, Rank, Reduction};
use outboard_sim::nics::{
    EngineSettings, InputValues, JobPlan, NicCall, NicOutcome, NicPlan, PreparedPlan, TimingModel,
};
use outboard_units::{Duration, Fraction, Size};

use crate::error::CliError;
use crate::profiles;
use crate::trace::Timeline;

use super::timeline;

/// Default number of runs of a call, each with its own order of events. More runs show little more of one call.
pub(super) const SEEDS: u64 = 20;

/// Reads the time between two tests of a call, in nanoseconds.
fn test_interval(text: &str) -> Result<u64, String> {
    let every = Duration::default_nanoseconds(text).map_err(|error| error.to_string())?;
    let nanoseconds = u64::try_from(every.as_nanos()).ok().filter(|nanoseconds| *nanoseconds > 0);
    nanoseconds.ok_or_else(|| "tests need time between them; give 1 ns at least".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct NicArgs {
    /// The engine that carries out the call
    #[arg(long, value_enum, default_value = "ordered")]
    pub(super) engine: SimEngine,
    /// Ranks
    #[arg(long, default_value_t = 8)]
    pub(super) ranks: u32,
    /// Ranks on each host
    #[arg(long, default_value_t = 1)]
    pub(super) ranks_per_host: u32,
    /// Bytes of a rank's block, or of the whole vector if there are no blocks or for a reduce-scatter; reductions are
    /// sums of doubles that cancel
    #[arg(long, default_value = "64K")]
    pub(super) size: Size,
    /// Root of a collective with a root
    #[arg(long, default_value_t = 0)]
    pub(super) root: u32,
    /// The algorithm, with settings behind a colon; by default the algorithm of the engine's paper
    #[arg(long)]
    pub(super) algorithm: Option<String>,
    /// Groups that call at the same time
    #[arg(long, default_value_t = 1)]
    pub(super) groups: u16,
    #[command(flatten)]
    pub(super) settings: SettingArgs,
    /// The node that dies
    #[arg(long)]
    pub(super) dead: Option<u32>,
    /// The number of calls and packets after which the node dies
    #[arg(long, default_value_t = 100, requires = "dead")]
    pub(super) behind: u64,
    /// Print the time on a machine without loss: a built-in profile (explain profile), or a file
    #[arg(long, conflicts_with = "dead")]
    pub(super) profile: Option<String>,
    /// Write a timeline for ui.perfetto.dev, by the clock of the profile
    #[arg(long, value_name = "FILE", requires = "profile", value_parser = crate::output::file())]
    pub(super) trace: Option<PathBuf>,
    /// Number of seeds; each draws an order of calls and packets
    #[arg(long, default_value_t = SEEDS)]
    pub(super) seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    pub(super) first: u64,
}

/// Settings of engines.
#[derive(Debug, Default, Clone, Copy, Args)]
pub(crate) struct SettingArgs {
    /// ordered: give every task of a NIC an equal, fixed part of the buffer
    #[arg(long)]
    fixed_partitions: bool,
    /// triggered, host: blocks from this size on wait until their receiver is ready; 16K by default
    #[arg(long)]
    eager_bytes: Option<Size>,
    /// triggered: bytes of a preposted buffer; 16K by default
    #[arg(long)]
    buffer_bytes: Option<Size>,
    /// triggered: send before the receiver is ready, and send again if it was not, instead of using clear-to-send
    #[arg(long)]
    retry: bool,
    /// triggered: sends of up to this many bytes travel with their request if the bytes are there; 64 by default
    #[arg(long)]
    inline_bytes: Option<Size>,
    /// triggered: virtual ports; 1 by default
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    virtual_ports: Option<u32>,
    /// triggered: ports of the NIC, which virtual ports use in turn; 1 by default
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2))]
    physical_ports: Option<u32>,
    /// host: nanoseconds, or a duration such as 1us, between two tests of a call; 1000 by default
    #[arg(long, conflicts_with = "thread", value_parser = test_interval)]
    tests_every: Option<u64>,
    /// host: a thread carries calls on, instead of tests
    #[arg(long)]
    thread: bool,
    /// datapath: the sender writes chunks of this many packets to their places; by default it sends datagrams, which
    /// the receiver copies from staging
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    writes: Option<u32>,
    /// datapath: hardware threads that receive; 16 by default
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    hardware_threads: Option<u32>,
    /// Chance that a multicast datagram is lost on its way to one receiver, such as 5% or 0.05; by default 5% on
    /// service processes, else 0
    #[arg(long)]
    pub(super) loss: Option<Fraction>,
}

impl SettingArgs {
    /// The flags that were given, with the engines of each.
    pub(super) fn given(&self) -> Vec<(&'static str, &'static [SimEngine])> {
        const TRIGGERED: &[SimEngine] = &[SimEngine::Triggered];
        let all: [(bool, &str, &[SimEngine]); 12] = [
            (self.fixed_partitions, "--fixed-partitions", &[SimEngine::Ordered]),
            (self.eager_bytes.is_some(), "--eager-bytes", &[SimEngine::Triggered, SimEngine::Host]),
            (self.buffer_bytes.is_some(), "--buffer-bytes", TRIGGERED),
            (self.retry, "--retry", TRIGGERED),
            (self.inline_bytes.is_some(), "--inline-bytes", TRIGGERED),
            (self.virtual_ports.is_some(), "--virtual-ports", TRIGGERED),
            (self.physical_ports.is_some(), "--physical-ports", TRIGGERED),
            (self.tests_every.is_some(), "--tests-every", &[SimEngine::Host]),
            (self.thread, "--thread", &[SimEngine::Host]),
            (self.writes.is_some(), "--writes", &[SimEngine::Datapath]),
            (self.hardware_threads.is_some(), "--hardware-threads", &[SimEngine::Datapath]),
            (self.loss.is_some(), "--loss", &[SimEngine::Datapath]),
        ];
        all.into_iter().filter(|(given, ..)| *given).map(|(_, flag, engines)| (flag, engines)).collect()
    }

    fn ordered(&self) -> ordered::OrderedSettings {
        let sharing = if self.fixed_partitions { BufferSharing::Fixed } else { BufferSharing::Dynamic };
        ordered::OrderedSettings { sharing, ..ordered::OrderedSettings::default() }
    }

    fn triggered(&self) -> triggered::TriggeredSettings {
        let defaults = triggered::TriggeredSettings::default();
        let bytes = |given: Option<Size>, default| given.map_or(default, |size| size.0);
        triggered::TriggeredSettings {
            eager_bytes: bytes(self.eager_bytes, defaults.eager_bytes),
            buffer_bytes: bytes(self.buffer_bytes, defaults.buffer_bytes).max(1),
            readiness: if self.retry { Readiness::Retry } else { Readiness::ClearToSend },
            inline_bytes: bytes(self.inline_bytes, defaults.inline_bytes),
            virtual_ports: self.virtual_ports.unwrap_or(defaults.virtual_ports),
            physical_ports: self.physical_ports.unwrap_or(defaults.physical_ports),
            ..defaults
        }
    }

    fn datapath(&self, costs: Option<datapath::DatapathCosts>) -> datapath::DatapathSettings {
        let defaults = datapath::DatapathSettings::default();
        let costs = costs.unwrap_or(defaults.costs);
        let transport = self.writes.map_or(defaults.transport, |packets| Transport::Writes { packets });
        let threads = self.hardware_threads.unwrap_or(defaults.threads);
        datapath::DatapathSettings { transport, threads, costs, ..defaults }
    }

    fn host(&self) -> host::HostSettings {
        let defaults = host::HostSettings::default();
        let progress = match (self.thread, self.tests_every) {
            (true, _) => ProgressMode::Thread,
            (false, Some(every)) => ProgressMode::Tests { every },
            (false, None) => defaults.progress,
        };
        let eager_bytes = self.eager_bytes.map_or(defaults.eager_bytes, |size| size.0);
        host::HostSettings { progress, eager_bytes, ..defaults }
    }
}

/// Engines that `outboard sim` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimEngine {
    /// The triggered NIC of CORE-Direct
    Triggered,
    /// The order-triggered NIC of the Tianhe network
    Ordered,
    /// The datapath accelerator, which receives multicast
    Datapath,
    /// Processes themselves, by tests or by a thread
    Host,
}

/// The algorithm that the engine's paper uses for a collective, or else the first algorithm of the collective.
fn of_the_paper(engine: SimEngine, collective: Collective) -> String {
    let text = match (engine, collective) {
        (SimEngine::Ordered, Collective::Broadcast) => "double-tree:segment=18446744073709551615",
        (SimEngine::Ordered, Collective::Reduce) => "halving",
        (SimEngine::Ordered, Collective::Allreduce) => "rabenseifner",
        (SimEngine::Ordered, Collective::ReduceScatter) => "recursive-halving",
        (SimEngine::Triggered | SimEngine::Host, Collective::Allgather) => "standard-exchange",
        (SimEngine::Datapath, Collective::Allgather | Collective::Broadcast) => "multicast:subgroups=4",
        _ => return collective.algorithms()[0].to_string(),
    };
    text.to_owned()
}

fn plan<S: EngineSettings>(collective: Collective, args: &NicArgs, settings: S) -> Result<NicPlan<S>, CliError> {
    let NicArgs { ranks, ranks_per_host, root, groups, .. } = *args;
    if ranks == 0 || ranks > MAX_RANKS || ranks_per_host == 0 || root >= ranks {
        return Err(CliError::Failed(format!(
            "--ranks {ranks}, --ranks-per-host {ranks_per_host}, --root {root}: up to {MAX_RANKS} ranks, of which the \
             root is one, 1 or more on a host"
        )));
    }
    if groups == 0 || groups > 256 {
        return Err(CliError::Failed(format!("--groups {groups}: a NIC tells 1 to 256 groups apart")));
    }
    let text = args.algorithm.clone().unwrap_or_else(|| of_the_paper(args.engine, collective));
    let choice = Choice::read(collective, &text).map_err(CliError::failed)?;
    let combines =
        matches!(collective, Collective::Reduce | Collective::Allreduce | Collective::ReduceScatter | Collective::Scan);
    let reduction = Reduction::new(Operator::Sum, Element::F64).ok().filter(|_| combines);
    let bytes = if collective == Collective::Barrier { 0 } else { args.size.0 };
    let call = NicCall { root: Rank(root), values: InputValues::Cancelling, ..NicCall::new(choice, bytes, reduction) };
    let nodes: Vec<u32> = (0..ranks).map(|rank| rank / ranks_per_host).collect();
    if let Some(dead) = args.dead.filter(|dead| !nodes.contains(dead)) {
        return Err(CliError::Failed(format!("--dead {dead}: nodes are 0 to {}", (ranks - 1) / ranks_per_host)));
    }
    let jobs = (0..groups).map(|_| JobPlan { nodes: nodes.clone(), calls: vec![call] }).collect();
    let death = args.dead.map(|node| (node, args.behind));
    Ok(NicPlan { jobs, settings, death })
}

pub(super) fn play(collective: Collective, args: &NicArgs) -> Result<ExitCode, CliError> {
    let engine = args.engine;
    if let Some((flag, engines)) = args.settings.given().into_iter().find(|(_, engines)| !engines.contains(&engine)) {
        let engines: Vec<String> = engines.iter().map(|engine| format!("{engine:?}").to_lowercase()).collect();
        return Err(CliError::Failed(format!("{flag} is a setting of --engine {}", engines.join(" and "))));
    }
    let profile = args.profile.as_deref().map(profiles::named).transpose()?;
    let profile = profile.as_deref();
    match engine {
        SimEngine::Triggered => {
            let costs = of(profile, "triggered", |profile| profile.triggered)?;
            play_on(collective, args, args.settings.triggered(), costs)
        }
        SimEngine::Ordered => {
            let costs = of(profile, "ordered", |profile| profile.ordered)?;
            play_on(collective, args, args.settings.ordered(), costs)
        }
        SimEngine::Datapath => {
            let costs = of(profile, "datapath", |profile| profile.datapath)?;
            let settings = args.settings.datapath(costs.map(|(_, costs)| costs));
            if settings.threads > settings.costs.threads() {
                return Err(CliError::Failed(format!(
                    "--hardware-threads {}: the accelerator of the profile has {}",
                    settings.threads,
                    settings.costs.threads()
                )));
            }
            play_on(collective, args, settings, costs)
        }
        SimEngine::Host => {
            let costs = of(profile, "machine", |_| Some(host::HostCosts))?;
            play_on(collective, args, args.settings.host(), costs)
        }
    }
}

/// The costs of the machine and of the engine's NIC in a profile, if one was given.
fn of<C>(
    profile: Option<&Profile>,
    table: &str,
    costs: impl FnOnce(&Profile) -> Option<C>,
) -> Result<Option<(Machine, C)>, CliError> {
    let Some(profile) = profile else { return Ok(None) };
    match (profile.machine, costs(profile)) {
        (Some(machine), Some(costs)) => Ok(Some((machine, costs))),
        (machine, _) => {
            let table = if machine.is_none() { "machine" } else { table };
            Err(CliError::Failed(format!("profile {} has no [{table}]: name one that does", profile.name)))
        }
    }
}

fn play_on<S: EngineSettings, C: EngineCosts<S::Engine>>(
    collective: Collective,
    args: &NicArgs,
    settings: S,
    costs: Option<(Machine, C)>,
) -> Result<ExitCode, CliError> {
    let plan = plan(collective, args, settings)?;
    let loss = args.settings.loss.map_or(0.0, Fraction::as_f64);
    let prepared = PreparedPlan::new(&plan).map_err(CliError::failed)?.losing((loss * 1e3).round() as usize);
    let timeline = args.trace.as_deref().map(Timeline::create).transpose()?;
    let bar = indicatif::ProgressBar::new(args.seeds);
    let (mut all, mut failures) = (NicOutcome::default(), Vec::new());
    for seed in args.first..args.first.saturating_add(args.seeds) {
        match prepared.play(seed) {
            Ok(played) => {
                all.packets += played.packets;
                all.right += played.right;
                all.failed += played.failed;
                all.occupancy = all.occupancy.max(played.occupancy);
            }
            Err(violation) => failures.push((seed, violation)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let NicOutcome { packets, right, failed, occupancy } = all;
    println!("{} runs, {right} calls with the bits of their plan, {failed} with a rightful error", args.seeds);
    println!("{packets} packets");
    if args.engine == SimEngine::Ordered {
        println!("at most {}.{} % of a unit's slots in use", occupancy / 10, occupancy % 10);
    }
    if let Some((machine, costs)) = costs {
        let clock = TimingModel { machine, costs, nodes_per_machine: 1, compute: 0.0 };
        let timing = match timeline {
            Some(file) => timeline::write(file, collective, &prepared, &clock)?,
            None => prepared.time(&clock).map_err(CliError::failed)?,
        };
        let (mean, slowest) = (timing.mean() / 1e3, timing.slowest() / 1e3);
        println!("by the profile {mean:.1} us, a mean over the ranks; {slowest:.1} us on the slowest");
    }
    for (seed, violation) in &failures {
        println!("seed {seed}: {violation}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
