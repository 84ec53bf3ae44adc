//! `outboard explain`: what Outboard would do, and why.

mod collective;
mod core_direct;
pub(crate) mod datapath;
mod engines;
mod ordered;
mod plans;
mod profile;
mod rounds;
mod svg;
mod views;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use outboard_plan_tools::goal::{self, Costs};
use outboard_plan_tools::text;
use outboard_units::Size;

use crate::error::CliError;
use crate::explain_choice::{self, ChoiceArgs};
use crate::places;
use collective::Collective;
use plans::Planned;

/// What is explained: the plan of a collective, unless a subcommand says otherwise.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    command: Option<ExplainCommand>,
    #[command(flatten)]
    plan: PlanArgs,
}

#[derive(Debug, Subcommand)]
enum ExplainCommand {
    /// The daemon's settings as flags, environment and defaults make them
    Config {
        /// Flags as the daemon would get them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// Which algorithm a call gets, why, and what the others would take
    Choice(ChoiceArgs),
    /// Which engine carries out which algorithm, and why not
    Engines(engines::EnginesArgs),
    /// What a datapath accelerator keeps up with, beside what was measured
    Datapath,
    /// What a machine and its NIC cost in the simulator, each number with its source
    Profile {
        /// One that is built in (bluefield3, cluster-a, cluster-b, tianhe), or a file
        name: String,
    },
}

/// Which plan, and what of it.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The collective whose plan is shown
    #[arg(value_enum, required_unless_present = "file")]
    collective: Option<Collective>,
    /// Shows a plan (docs/plan-format.md) or GOAL schedule from a file, in place of a collective's
    #[arg(long, conflicts_with_all = ["collective", "ranks", "size", "element_bytes", "algorithm", "ports", "topology", "root"])]
    file: Option<PathBuf>,
    /// Ranks of the group; 4, or as many as --topology has
    #[arg(long)]
    ranks: Option<u32>,
    /// Bytes of a rank's block, or of the whole where there are no blocks; 1K by default
    #[arg(long)]
    size: Option<Size>,
    /// Bytes of an element of a reduction; 8 by default
    #[arg(long)]
    element_bytes: Option<u64>,
    /// The algorithm, with settings behind a colon, such as bruck:ports=3
    #[arg(long)]
    algorithm: Option<String>,
    /// Messages that a rank sends at the same time, where the algorithm has that setting
    #[arg(long)]
    ports: Option<u32>,
    /// Ranks by hosts: 4x2 (4 hosts of 2 ranks), 4x2:strided, or a number of ranks for each host: 2,2,3
    #[arg(long)]
    topology: Option<String>,
    /// Root of a collective that has one; 0 by default
    #[arg(long)]
    root: Option<u32>,
    /// What is shown
    #[arg(long, value_enum, default_value = "plan")]
    stage: Stage,
    /// How messages find memory in task lists; eager below 16K by default
    #[arg(long, value_enum)]
    protocol: Option<Protocol>,
    /// Task lists as they run, in place of the short view of the CORE-Direct paper's tables
    #[arg(long)]
    executed: bool,
    /// How it is written; svg draws rounds
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// Every step of every rank (docs/plan-format.md)
    Plan,
    /// Which messages travel when, and bytes per rank
    Rounds,
    /// A GOAL schedule for LogGOPSim
    Goal,
    /// Task lists of a triggered NIC
    CoreDirect,
    /// Descriptors of an order-triggered NIC
    Ordered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    /// Into preposted buffers
    Eager,
    /// Straight to its place, once the receiver is ready
    Rendezvous,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs
    Json,
    /// A drawing of rounds and messages
    Svg,
}

pub(crate) fn explain(ExplainArgs { command, plan }: ExplainArgs) -> Result<ExitCode, CliError> {
    match command {
        Some(ExplainCommand::Config { flags }) => config(&flags),
        Some(ExplainCommand::Choice(args)) => explain_choice::choice(&args),
        Some(ExplainCommand::Engines(args)) => print(&engines::show(&args)?),
        Some(ExplainCommand::Datapath) => print(&datapath::show()),
        Some(ExplainCommand::Profile { name }) => print(&profile::show(&name)?),
        None => print(&show(&plan)?),
    }
}

/// Printed at once: a reader that has seen enough closes the pipe, which is no panic.
pub(crate) fn print(shown: &str) -> Result<ExitCode, CliError> {
    std::io::Write::write_all(&mut std::io::stdout(), shown.as_bytes())
        .or_else(|error| if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
        .map_err(CliError::system("write to standard output"))?;
    Ok(ExitCode::SUCCESS)
}

fn config(flags: &[String]) -> Result<ExitCode, CliError> {
    let status = std::process::Command::new(places::daemon()?)
        .args(flags)
        .arg("--print-settings")
        .status()
        .map_err(CliError::system("start outboardd"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(args: &PlanArgs) -> Result<String, CliError> {
    if args.format == Format::Svg && args.stage != Stage::Rounds {
        return Err(CliError::Failed(
            "an SVG draws rounds: add --stage rounds, or choose --format text or json".into(),
        ));
    }
    if args.stage != Stage::CoreDirect && (args.protocol.is_some() || args.executed) {
        return Err(CliError::Failed("--protocol and --executed belong to --stage core-direct".into()));
    }
    let planned = plans::plan(args)?;
    match args.stage {
        Stage::Plan => show_plan(args, &planned),
        Stage::Rounds => rounds::show(args.format, &planned),
        Stage::Goal => show_goal(args, &planned),
        Stage::CoreDirect => core_direct::show(args, &planned),
        Stage::Ordered => ordered::show(args.format, &planned),
    }
}

fn show_plan(args: &PlanArgs, planned: &Planned) -> Result<String, CliError> {
    if args.format == Format::Json {
        return views::view(planned, views::plan(planned));
    }
    Ok(format!("# {}\n{}", planned.title, text::print(&planned.programs)))
}

fn show_goal(args: &PlanArgs, planned: &Planned) -> Result<String, CliError> {
    let schedule = goal::export(&planned.programs, Costs::default()).map_err(CliError::said)?;
    if args.format == Format::Json {
        return views::view(planned, serde_json::json!({ "schedule": schedule }));
    }
    Ok(format!("// {}\n{schedule}", planned.title))
}
