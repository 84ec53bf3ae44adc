//! `outboard explain`: shows what Outboard would do, and why.

mod collective;
mod core_direct;
pub(crate) mod datapath;
mod engines;
mod ordered;
mod plans;
mod profile;
mod rounds;
mod settings;
mod svg;
mod views;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use outboard_plan_tools::goal::{self, GoalCosts};
use outboard_plan_tools::text;
use outboard_units::Size;

use crate::error::CliError;
use crate::explain_choice::{self, ChoiceArgs};
use crate::places;
use collective::PlanCollective;
use plans::ShownPlan;

/// The subject to explain: the plan of a collective, unless a subcommand names another.
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
    /// Show the daemon's settings that result from flags, environment and defaults
    Config {
        /// Flags for the daemon
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// Show which algorithm a call gets, why, and the times of the others
    Choice(ChoiceArgs),
    /// Show which engine carries out which algorithm, and why not
    Engines(engines::EnginesArgs),
    /// Show the rates that a datapath accelerator sustains, beside measured ones
    Datapath,
    /// Show the costs of a machine and its NIC in the simulator, each with its source
    Profile {
        /// A built-in profile (bluefield3, cluster-a, cluster-b, tianhe), or a file
        name: String,
    },
    /// Show every setting and every variable, with the program that reads it, its default and its meaning
    Settings {
        /// Write them between the markers of this page instead
        #[arg(long, value_parser = crate::output::file())]
        page: Option<PathBuf>,
    },
}

/// The plan, and the parts of it to show.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The collective whose plan is shown
    #[arg(value_enum, required_unless_present = "file")]
    collective: Option<PlanCollective>,
    /// Show a plan (docs/plan-format.md) or GOAL schedule from a file instead of a collective's
    #[arg(long, conflicts_with_all = ["collective", "ranks", "size", "element_bytes", "algorithm", "ports", "topology", "root"])]
    file: Option<PathBuf>,
    /// Ranks of the group; by default 4, or the number in --topology
    #[arg(long)]
    ranks: Option<u32>,
    /// Bytes of a rank's block, or of the whole vector if there are no blocks; 1K by default
    #[arg(long)]
    size: Option<Size>,
    /// Bytes of an element of a reduction; 8 by default
    #[arg(long)]
    element_bytes: Option<Size>,
    /// The algorithm, with settings behind a colon, such as bruck:ports=3
    #[arg(long)]
    algorithm: Option<String>,
    /// Messages that a rank sends at the same time, if the algorithm has that setting
    #[arg(long)]
    ports: Option<u32>,
    /// Ranks by hosts: 4x2 (4 hosts of 2 ranks), 4x2:strided, or the number of ranks on each host: 2,2,3
    #[arg(long)]
    topology: Option<String>,
    /// Root of a collective with a root; 0 by default
    #[arg(long)]
    root: Option<u32>,
    /// The stage of the plan to show
    #[arg(long, value_enum, default_value = "plan")]
    stage: PlanStage,
    /// How messages find memory in task lists; by default eager below 16K
    #[arg(long, value_enum)]
    protocol: Option<TaskListProtocol>,
    /// Show task lists as they run, not in the short form of the CORE-Direct paper's tables
    #[arg(long)]
    executed: bool,
    /// The format of the output; svg draws rounds
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PlanStage {
    /// Every step of every rank (docs/plan-format.md)
    Plan,
    /// The messages of each round, and bytes per rank
    Rounds,
    /// A GOAL schedule for LogGOPSim
    Goal,
    /// Task lists of a triggered NIC
    CoreDirect,
    /// Descriptors of an order-triggered NIC
    Ordered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TaskListProtocol {
    /// Messages go into preposted buffers
    Eager,
    /// Messages go straight to their place, after the receiver is ready
    Rendezvous,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text for people
    Text,
    /// JSON for programs
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
        Some(ExplainCommand::Settings { page }) => settings::settings(page.as_deref()),
        None => print(&show(&plan)?),
    }
}

/// Prints the whole text at once. A closed pipe is no error, because the reader of the pipe may have seen enough.
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
    if args.format == Format::Svg && args.stage != PlanStage::Rounds {
        return Err(CliError::Failed(
            "an SVG draws rounds: add --stage rounds, or choose --format text or json".into(),
        ));
    }
    if args.stage != PlanStage::CoreDirect && (args.protocol.is_some() || args.executed) {
        return Err(CliError::Failed("--protocol and --executed belong to --stage core-direct".into()));
    }
    let planned = plans::plan(args)?;
    match args.stage {
        PlanStage::Plan => show_plan(args, &planned),
        PlanStage::Rounds => rounds::show(args.format, &planned),
        PlanStage::Goal => show_goal(args, &planned),
        PlanStage::CoreDirect => core_direct::show(args, &planned),
        PlanStage::Ordered => ordered::show(args.format, &planned),
    }
}

fn show_plan(args: &PlanArgs, planned: &ShownPlan) -> Result<String, CliError> {
    if args.format == Format::Json {
        return views::view(planned, views::plan(planned));
    }
    Ok(format!("# {}\n{}", planned.title, text::print(&planned.programs)))
}

fn show_goal(args: &PlanArgs, planned: &ShownPlan) -> Result<String, CliError> {
    let schedule = goal::export(&planned.programs, GoalCosts::default()).map_err(CliError::failed)?;
    if args.format == Format::Json {
        return views::view(planned, serde_json::json!({ "schedule": schedule }));
    }
    Ok(format!("// {}\n{schedule}", planned.title))
}
