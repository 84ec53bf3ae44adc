//! The `outboard` command: one file per subcommand; [`launch`] starts what several of them need.

#![forbid(unsafe_code)]

mod algorithm;
mod bench;
mod chaos;
mod choice;
mod compare;
mod demo;
mod doctor;
mod error;
mod explain;
mod explain_choice;
mod lab;
mod launch;
mod notices;
mod output;
mod places;
mod profiles;
mod reports;
mod run;
mod sim;
mod top;
mod trace;
mod trial;
mod tune;
mod tune_rank;
mod work;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use outboard_shm::variables::unknown as unknown_variables;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::error::CliError;

/// Offloaded collective communication: run, measure and inspect programs with it.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run a program that uses outboard.h, or an MPI program below the shim, which offloads what it finds faster (with
    /// `OUTBOARD_CHOICE=offload`: everything)
    Run(run::RunArgs),
    /// Run an MPI program natively, by default and after learning, in turn, and print which setting to keep
    Compare(compare::CompareArgs),
    /// Run a real MPI program twice, natively and offloaded, and compare
    Demo(demo::DemoArgs),
    /// Measure a collective beside other libraries on an emulated cluster
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Measure the costs of a cluster, for the choice of algorithms
    Tune(tune::TuneArgs),
    /// Show what service processes do now, and which ranks they wait for
    Top(top::TopArgs),
    /// Join the trace files of service processes and ranks to one for Perfetto
    Trace(trace::TraceArgs),
    /// Show or forget what the MPI shim has found faster on each cluster, natively or offloaded
    #[command(subcommand)]
    Choice(choice::ChoiceCommand),
    /// Start, use and end emulated clusters
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Run jobs of several users on an emulated cluster whose processes, links and disks fail, and judge every verdict
    /// and all that is left behind
    Chaos(chaos::ChaosArgs),
    /// Play the protocol on a faulty virtual network
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Check what works on this machine, with a remedy for each failure
    Doctor(doctor::DoctorArgs),
    /// Explain what Outboard would do, and why: the plan of a collective, or the daemon's settings
    Explain(explain::ExplainArgs),
    #[command(name = "__rank", hide = true)]
    Rank(trial::rank::RankArgs),
    #[command(name = "__rendezvous", hide = true)]
    Rendezvous(launch::RendezvousArgs),
    #[command(name = "__bench-programs", hide = true)]
    BenchPrograms { folder: PathBuf },
}

fn main() -> ExitCode {
    // The hosts and the switch of a lab execute this program again.
    outboard_lab::holder_main_if_requested();
    let filter = std::env::var("OUTBOARD_LOG").ok().and_then(|filter| filter.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(tracing::Level::WARN));
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(lines).with(filter).init();
    let Cli { command } = Cli::parse();
    let ended = prepare(&command).and_then(|()| carry_out(command)).unwrap_or_else(|error| {
        eprintln!("outboard: {error}");
        ExitCode::FAILURE
    });
    work::status_of_end().map_or(ended, ExitCode::from)
}

/// Warns about unknown variables and takes signals, for every command of a user.
fn prepare(command: &CliCommand) -> Result<(), CliError> {
    if matches!(command, CliCommand::Rank(_) | CliCommand::Rendezvous(_)) {
        return Ok(());
    }
    unknown_variables().iter().for_each(|warning| eprintln!("outboard: {warning}"));
    if let (CliCommand::Run(_), Some(report)) = (command, std::env::var_os("OUTBOARD_MPI_REPORT")) {
        output::check_report(Path::new(&report))?;
    }
    if let CliCommand::Run(_) = command {
        return work::forward_signals();
    }
    let starts_processes =
        matches!(command, CliCommand::Compare(_) | CliCommand::Demo(_) | CliCommand::Chaos(_) | CliCommand::Tune(_));
    if starts_processes || !work::ignores_hangup() { work::end_on_signals() } else { Ok(()) }
}

fn carry_out(command: CliCommand) -> Result<ExitCode, CliError> {
    match command {
        CliCommand::Run(args) => run::run(args),
        CliCommand::Compare(args) => compare::compare(&args),
        CliCommand::Demo(args) => demo::demo(&args),
        CliCommand::Bench(command) => bench::bench(command),
        CliCommand::Tune(args) => tune::tune(&args),
        CliCommand::Top(args) => top::top(&args),
        CliCommand::Trace(args) => trace::trace(&args),
        CliCommand::Choice(command) => choice::choice(&command),
        CliCommand::Lab(command) => lab::lab(command),
        CliCommand::Chaos(args) => chaos::chaos(&args),
        CliCommand::Sim(command) => sim::sim(command),
        CliCommand::Doctor(args) => doctor::doctor(&args),
        CliCommand::Explain(args) => explain::explain(args),
        CliCommand::Rank(args) => trial::rank::rank(&args),
        CliCommand::Rendezvous(args) => launch::rendezvous(&args),
        CliCommand::BenchPrograms { folder } => bench::build_programs(&folder),
    }
}
