//! `outboard sim`: plays the protocol on a virtual network, by seed; the network loses, duplicates and delays messages,
//! and processes die. The command also plays collectives on NICs that carry out collectives themselves.

mod figures;
mod nics;
mod timeline;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use outboard_plan::selection::Collective;
use outboard_sim::{AllgatherSweep, SweepProgress, SweepSummary};
use outboard_units::{Fraction, Size};

use crate::error::CliError;
use nics::{NicArgs, SettingArgs, SimEngine};

/// The simulations.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// One allgather with random loss, or on NICs
    Allgather(AllgatherArgs),
    /// Calls drawn by the seed: sizes, hosts, plans, loss, deaths, disagreement
    Mixed(MixedArgs),
    /// A broadcast on NICs
    Broadcast(NicArgs),
    /// A reduce on NICs
    Reduce(NicArgs),
    /// An allreduce on NICs
    Allreduce(NicArgs),
    /// A reduce-scatter on NICs; the size is of the whole vector
    ReduceScatter(NicArgs),
    /// A barrier on NICs
    Barrier(NicArgs),
    /// An alltoall on NICs
    Alltoall(NicArgs),
    /// A gather on NICs
    Gather(NicArgs),
    /// A scatter on NICs
    Scatter(NicArgs),
    /// A scan on NICs
    Scan(NicArgs),
    /// The experiments of a paper by profile, beside its measurements
    Figures {
        /// The paper
        #[arg(value_enum)]
        paper: figures::Paper,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AllgatherArgs {
    /// Ranks; by default 64 on service processes and 8 on an engine
    #[arg(long)]
    ranks: Option<usize>,
    /// Ranks on each host
    #[arg(long, default_value_t = 1)]
    ranks_per_host: usize,
    /// Bytes per rank
    #[arg(long, default_value = "64K")]
    size: Size,
    /// The plan: multicast or ring on service processes; any, with settings behind a colon, on an engine
    #[arg(long)]
    algorithm: Option<String>,
    /// The engine that carries out the allgather instead of service processes
    #[arg(long, value_enum, conflicts_with = "threads")]
    engine: Option<SimEngine>,
    #[command(flatten)]
    settings: SettingArgs,
    /// Print the time on a machine without loss: a built-in profile (explain profile), or a file
    #[arg(long, requires = "engine")]
    profile: Option<String>,
    /// Write a timeline for ui.perfetto.dev, by the clock of the profile
    #[arg(long, value_name = "FILE", requires = "profile", value_parser = crate::output::file())]
    trace: Option<PathBuf>,
    #[command(flatten)]
    seeds: MixedArgs,
}

impl AllgatherArgs {
    /// Ranks of service processes.
    fn ranks(&self) -> usize {
        self.ranks.unwrap_or(64)
    }

    /// Chance of a loss between service processes.
    fn loss(&self) -> f64 {
        self.settings.loss.map_or(0.05, Fraction::as_f64)
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MixedArgs {
    /// Number of seeds; by default 1000, on an engine 20
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Threads that play the seeds; by default one per processor
    #[arg(long)]
    threads: Option<usize>,
}

impl MixedArgs {
    fn seeds(&self) -> u64 {
        self.seeds.unwrap_or(1000)
    }

    fn range(&self) -> std::ops::Range<u64> {
        self.first..self.first.saturating_add(self.seeds())
    }

    fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

pub(crate) fn sim(command: SimCommand) -> Result<ExitCode, CliError> {
    match command {
        SimCommand::Allgather(args) => match on_engine(&args)? {
            Some(args) => nics::play(Collective::Allgather, &args),
            None => protocol(ProtocolRun::Allgather(&args)),
        },
        SimCommand::Mixed(args) => protocol(ProtocolRun::Mixed(&args)),
        SimCommand::Broadcast(args) => nics::play(Collective::Broadcast, &args),
        SimCommand::Reduce(args) => nics::play(Collective::Reduce, &args),
        SimCommand::Allreduce(args) => nics::play(Collective::Allreduce, &args),
        SimCommand::ReduceScatter(args) => nics::play(Collective::ReduceScatter, &args),
        SimCommand::Barrier(args) => nics::play(Collective::Barrier, &args),
        SimCommand::Alltoall(args) => nics::play(Collective::Alltoall, &args),
        SimCommand::Gather(args) => nics::play(Collective::Gather, &args),
        SimCommand::Scatter(args) => nics::play(Collective::Scatter, &args),
        SimCommand::Scan(args) => nics::play(Collective::Scan, &args),
        SimCommand::Figures { paper } => figures::show(paper),
    }
}

/// The arguments of an allgather on an engine; `None` if none was requested.
fn on_engine(args: &AllgatherArgs) -> Result<Option<NicArgs>, CliError> {
    let Some(engine) = args.engine else {
        return match args.settings.given().iter().find(|(flag, _)| *flag != "--loss") {
            Some((flag, _)) => Err(CliError::Failed(format!("{flag}: add --engine, whose setting it is"))),
            None => Ok(None),
        };
    };
    let count = |flag, value: usize| {
        u32::try_from(value).map_err(|_| CliError::Failed(format!("{flag} {value}: up to {}", u32::MAX)))
    };
    Ok(Some(NicArgs {
        engine,
        ranks: count("--ranks", args.ranks.unwrap_or(8))?,
        ranks_per_host: count("--ranks-per-host", args.ranks_per_host)?,
        size: args.size,
        root: 0,
        algorithm: args.algorithm.clone(),
        groups: 1,
        settings: args.settings,
        dead: None,
        behind: 0,
        seeds: args.seeds.seeds.unwrap_or(nics::SEEDS),
        profile: args.profile.clone(),
        trace: args.trace.clone(),
        first: args.seeds.first,
    }))
}

/// A simulation of service processes.
enum ProtocolRun<'a> {
    Allgather(&'a AllgatherArgs),
    Mixed(&'a MixedArgs),
}

fn protocol(command: ProtocolRun<'_>) -> Result<ExitCode, CliError> {
    let (name, seeds) = match command {
        ProtocolRun::Allgather(args) => {
            (format!("allgather --ranks {} --loss {}", args.ranks(), args.loss()), &args.seeds)
        }
        ProtocolRun::Mixed(args) => ("mixed".to_owned(), args),
    };
    let bar = indicatif::ProgressBar::new(seeds.seeds());
    let progress = |p: SweepProgress| {
        bar.set_position(p.done);
        bar.set_message(format!("{} failed", p.failed));
    };
    let summary = match command {
        ProtocolRun::Allgather(args) => {
            let bytes = args.size.0;
            if !(0.0..1.0).contains(&args.loss()) {
                return Err(CliError::Failed("--loss 100%: nothing would arrive; give less".to_owned()));
            }
            let multicast = match args.algorithm.as_deref() {
                Some("ring") => false,
                Some("multicast") | None => true,
                Some(other) => {
                    return Err(CliError::Failed(format!(
                        "--algorithm {other}: service processes play ring and multicast here; add --engine for others"
                    )));
                }
            };
            let (ranks, ranks_per_host, loss) = (args.ranks(), args.ranks_per_host, args.loss());
            if ranks == 0 || ranks_per_host == 0 {
                return Err(CliError::Failed("--ranks and --ranks-per-host start at 1".to_owned()));
            }
            let (seeds, threads) = (args.seeds.range(), args.seeds.threads());
            let plan = AllgatherSweep { ranks, ranks_per_host, bytes, loss, multicast, seeds, threads };
            outboard_sim::allgather(&plan, progress)
        }
        ProtocolRun::Mixed(args) => outboard_sim::mixed(args.range(), args.threads(), progress),
    };
    bar.finish_and_clear();
    print(&summary, &name, matches!(command, ProtocolRun::Mixed(_)));
    Ok(if summary.failed_seeds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(s: &SweepSummary, name: &str, coverage: bool) {
    println!("{} runs, {} calls, {} ended with a rightful error, {} late", s.runs, s.calls, s.errors, s.late);
    println!("{} deliveries, {} of them lost", s.deliveries, s.dropped);
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    let (time, wire, again) = (s.in_collectives, s.wire_bytes, s.retransmitted_bytes);
    println!("virtual time  {:.3} ms [{:.3} .. {:.3}]", ms(time.median), ms(time.min), ms(time.max));
    println!("wire bytes    {} [{} .. {}]", wire.median, wire.min, wire.max);
    println!("sent again    {} [{} .. {}]", again.median, again.min, again.max);
    if coverage {
        println!("{}", s.coverage);
    }
    for failure in &s.failures {
        println!("{failure}");
    }
    for seed in &s.failed_seeds {
        println!("failed: outboard sim {name} --first {seed} --seeds 1");
    }
}
