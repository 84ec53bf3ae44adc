//! The `outboard` command: one file per subcommand; [`launch`] starts what several of them need.

#![forbid(unsafe_code)]

mod algorithm;
mod bench;
mod chaos;
mod choice;
mod demo;
mod doctor;
mod error;
mod explain;
mod explain_choice;
mod lab;
mod launch;
mod notices;
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

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

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
}

fn main() -> ExitCode {
    // The hosts and the switch of a lab execute this program again.
    outboard_lab::holder_main_if_requested();
    let filter = std::env::var("OUTBOARD_LOG").ok().and_then(|filter| filter.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(tracing::Level::WARN));
    tracing_subscriber::registry().with(fmt::layer().with_writer(std::io::stderr)).with(filter).init();
    let result = match Cli::parse().command {
        CliCommand::Run(args) => run::run(args),
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
    };
    let code = result.unwrap_or_else(|error| {
        eprintln!("outboard: {error}");
        ExitCode::FAILURE
    });
    work::status_of_end().map_or(code, ExitCode::from)
}
