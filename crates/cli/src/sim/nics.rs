//! `outboard sim COLLECTIVE --engine ordered`: one call on NICs that carry out collectives themselves.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use outboard_nic::ordered::{Settings, Sharing};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Element, MAX_RANKS, Operator, Rank, Reduction};
use outboard_sim::nics::{Call, JobPlan, NicPlan, Played, Prepared, Values};

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct NicArgs {
    /// What carries it out
    #[arg(long, value_enum, default_value = "ordered")]
    engine: Engine,
    /// Ranks
    #[arg(long, default_value_t = 8)]
    ranks: u32,
    /// Ranks on each host
    #[arg(long, default_value_t = 1)]
    ranks_per_host: u32,
    /// Bytes of the whole vector; reductions are sums of doubles that cancel
    #[arg(long, default_value = "64K")]
    size: outboard_units::Size,
    /// Root of a collective that has one
    #[arg(long, default_value_t = 0)]
    root: u32,
    /// The algorithm, with settings behind a colon; by default that of the Tianhe paper
    #[arg(long)]
    algorithm: Option<String>,
    /// Groups that call at the same time
    #[arg(long, default_value_t = 1)]
    groups: u16,
    /// Gives every task of a NIC an equal part of the buffer, and never more
    #[arg(long)]
    fixed_partitions: bool,
    /// The node that dies
    #[arg(long)]
    dead: Option<u32>,
    /// Behind how many calls and packets it dies
    #[arg(long, default_value_t = 100, requires = "dead")]
    behind: u64,
    /// How many seeds, each an order of calls and packets
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    first: u64,
}

/// Engines that `outboard sim` knows.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Engine {
    /// The order-triggered NIC of the Tianhe network
    Ordered,
}

/// What TH-6 carries a collective out by.
fn of_the_paper(collective: Collective) -> &'static str {
    match collective {
        Collective::Broadcast => "double-tree:segment=18446744073709551615",
        Collective::Reduce => "halving",
        Collective::Allreduce => "rabenseifner",
        Collective::ReduceScatter => "recursive-halving",
        Collective::Barrier => "dissemination",
        other => unreachable!("{other} is no subcommand"),
    }
}

fn plan(collective: Collective, args: &NicArgs) -> Result<NicPlan, CliError> {
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
    let text = args.algorithm.as_deref().unwrap_or(of_the_paper(collective));
    let choice = Choice::read(collective, text).map_err(CliError::said)?;
    let combines = matches!(collective, Collective::Reduce | Collective::Allreduce | Collective::ReduceScatter);
    let reduction = Reduction::new(Operator::Sum, Element::F64).ok().filter(|_| combines);
    let bytes = if collective == Collective::Barrier { 0 } else { args.size.0 };
    let call = Call { root: Rank(root), values: Values::Cancelling, ..Call::new(choice, bytes, reduction) };
    let nodes: Vec<u32> = (0..ranks).map(|rank| rank / ranks_per_host).collect();
    if let Some(dead) = args.dead.filter(|dead| !nodes.contains(dead)) {
        return Err(CliError::Failed(format!("--dead {dead}: nodes are 0 to {}", (ranks - 1) / ranks_per_host)));
    }
    let sharing = if args.fixed_partitions { Sharing::Fixed } else { Sharing::Dynamic };
    let jobs = (0..groups).map(|_| JobPlan { nodes: nodes.clone(), calls: vec![call] }).collect();
    let death = args.dead.map(|node| (node, args.behind));
    Ok(NicPlan { jobs, settings: Settings { sharing, ..Settings::default() }, death })
}

pub(super) fn play(collective: Collective, args: &NicArgs) -> Result<ExitCode, CliError> {
    let Engine::Ordered = args.engine;
    let plan = plan(collective, args)?;
    let prepared = Prepared::new(&plan).map_err(CliError::said)?;
    let bar = indicatif::ProgressBar::new(args.seeds);
    let (mut all, mut failures) = (Played::default(), Vec::new());
    for seed in args.first..args.first.saturating_add(args.seeds) {
        match prepared.play(seed) {
            Ok(played) => {
                all.packets += played.packets;
                all.right += played.right;
                all.failed += played.failed;
                all.occupancy = all.occupancy.max(played.occupancy);
            }
            Err(breach) => failures.push((seed, breach)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let Played { packets, right, failed, occupancy } = all;
    println!("{} runs, {right} calls with the bits of their plan, {failed} with a rightful error", args.seeds);
    println!("{packets} packets, at most {}.{} % of a unit's slots in use", occupancy / 10, occupancy % 10);
    for (seed, breach) in &failures {
        println!("seed {seed}: {breach}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
