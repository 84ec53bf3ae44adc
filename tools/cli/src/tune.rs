//! `outboard tune`: measures calls of real processes on a cluster, and writes the parameters of the cost model.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use outboard_bench::{Layout, LoggedProcess, parse_sizes};
use outboard_lab::{Lab, LabSpec};
use outboard_plan::selection::{Case, Cost, Tuning};
use outboard_plan_tools::{CostSample, factor, fit};
use outboard_service::settings::read_tuning;

use crate::error::CliError;
use crate::lab::LinkArgs;
use crate::launch::{self, DaemonArgs, Daemons, ProgramRanks};
use crate::output;
use crate::tune_rank::{self, Probing};
use crate::work;

/// Each row: the algorithms of allgather, broadcast and allreduce that the daemons of an emulated cluster use at one
/// time. Together the rows show every parameter of the cost model.
const FORCED: [[&str; 3]; 3] = [
    ["multicast", "multicast", "recursive-doubling"],
    ["ring", "binomial", "ring"],
    ["bruck:ports=1", "scatter-allgather", "rabenseifner"],
];

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// HOSTSxRATE of an emulated cluster to measure; without it this program is a rank (--rank)
    #[arg(long, conflicts_with = "rank", required_unless_present = "rank")]
    lab: Option<LabSpec>,
    #[command(flatten)]
    links: LinkArgs,
    /// Be a rank of the cluster: start one or more on each host, neighbours together, by srun, mpirun or `outboard
    /// run`; rank 0 writes the file
    #[arg(long)]
    rank: bool,
    /// The daemons do not use multicast (with --rank)
    #[arg(long, requires = "rank")]
    no_multicast: bool,
    /// Ranks on every host of the emulated cluster, separated by commas; each number is measured separately
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks_per_host: Vec<u32>,
    /// Bytes of the calls, separated by commas
    #[arg(long, default_value = "64,4K,64K,1M")]
    sizes: String,
    /// Calls of each kind and size
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// The tuning file to write; choices of algorithms in an existing file are kept
    #[arg(long, short, default_value = "tuning.toml")]
    output: PathBuf,
    /// Write the times to this file and fit nothing
    #[arg(long, requires = "rank", hide = true)]
    samples: Option<PathBuf>,
    #[command(flatten)]
    daemons: DaemonArgs,
}

pub(crate) fn tune(args: &TuneArgs) -> Result<ExitCode, CliError> {
    let sizes = parse_sizes(&args.sizes).map_err(CliError::failed)?;
    let (place, samples) = match &args.lab {
        Some(spec) => {
            let spec = args.links.apply(spec.clone())?;
            output::check(&args.output)
                .map_err(|reason| CliError::Failed(format!("--output {}: {reason}", args.output.display())))?;
            // A damaged file is refused here, before measurements of several minutes.
            previous(&args.output)?;
            (format!("an emulated cluster {spec}"), measure_lab(args, &spec)?)
        }
        None => {
            let tuning = args.daemons.tuning.as_deref().map(read_tuning).transpose();
            let tuning = tuning.map_err(CliError::failed)?;
            let probing = Probing {
                sizes: &sizes,
                repetitions: args.repetitions,
                tuning: tuning.as_ref(),
                multicast: !args.no_multicast,
            };
            match (tune_rank::probe(&probing)?, &args.samples) {
                ((false, _), _) => return Ok(ExitCode::SUCCESS),
                ((true, samples), Some(path)) => {
                    tune_rank::write_samples(path, &samples)?;
                    return Ok(ExitCode::SUCCESS);
                }
                ((true, samples), None) => ("this cluster".to_owned(), samples),
            }
        }
    };
    let before = previous(&args.output)?;
    let start = before.clone().unwrap_or_default();
    let tuned = Tuning { cost: fit(&start.cost, &samples), ..start.clone() };
    write(&args.output, &tuned, &place, &samples)?;
    print!("{}", report(&args.output, &start, before.is_some(), &tuned, &place, &samples));
    Ok(ExitCode::SUCCESS)
}

/// The tuning in an existing file.
fn previous(path: &Path) -> Result<Option<Tuning>, CliError> {
    if !path.exists() {
        return Ok(None);
    }
    let refused = |error| CliError::Failed(format!("{error}; mend it, or name another --output"));
    read_tuning(path).map(Some).map_err(refused)
}

fn measure_lab(args: &TuneArgs, spec: &LabSpec) -> Result<Vec<CostSample>, CliError> {
    let directory = work::directory()?;
    let lab = Lab::start(spec)?;
    let mut samples = Vec::new();
    for (number, [allgather, broadcast, allreduce]) in FORCED.iter().enumerate() {
        let tuning = directory.path().join(format!("forced-{number}.toml"));
        let text = format!(
            "[[choice.allgather]]\nalgorithm = \"{allgather}\"\n[[choice.broadcast]]\nalgorithm = \"{broadcast}\"\n\
             [[choice.allreduce]]\nalgorithm = \"{allreduce}\"\n"
        );
        fs::write(&tuning, text).map_err(CliError::system(format!("write {}", tuning.display())))?;
        for per_host in &args.ranks_per_host {
            eprintln!(
                "outboard: allgather by {allgather}, broadcast by {broadcast}, allreduce by {allreduce}, {per_host} ranks on \
                 each host"
            );
            let place = directory.path().join(format!("launch-{number}-{per_host}"));
            fs::create_dir(&place).map_err(CliError::system(format!("make {}", place.display())))?;
            samples.extend(launch_ranks(args, &lab, *per_host, &tuning, &place)?);
        }
    }
    Ok(samples)
}

/// Starts daemons and ranks, waits for the ranks, and reads their samples.
fn launch_ranks(
    args: &TuneArgs,
    lab: &Lab,
    per_host: u32,
    tuning: &Path,
    directory: &Path,
) -> Result<Vec<CostSample>, CliError> {
    let count = per_host * u32::from(lab.spec().hosts());
    let daemons = DaemonArgs { tuning: Some(tuning.to_owned()), ..args.daemons.clone() };
    let daemons = Daemons::on_lab(lab, count, directory, &daemons)?;
    let mut environment = daemons.environment();
    environment.push(("OUTBOARD_TUNING".to_owned(), tuning.display().to_string()));
    let samples = directory.join("samples.json");
    let own = std::env::current_exe().map_err(CliError::system("this program"))?;
    let mut arguments: Vec<String> = vec!["tune".into(), "--rank".into(), "--sizes".into(), args.sizes.clone()];
    arguments.extend(["--repetitions".into(), args.repetitions.to_string()]);
    arguments.extend(["--samples".into(), samples.display().to_string()]);
    let ranks = ProgramRanks { count, layout: Layout::Contiguous, lab: Some(lab) };
    let (_rendezvous, commands) = launch::rank_commands(&ranks, &own, &arguments, directory, &environment)?;
    let mut processes = Vec::new();
    for (name, command) in commands {
        processes.push(LoggedProcess::start(name, command, directory)?);
    }
    work::set_foreground(processes.iter().map(LoggedProcess::id));
    let mut failure = None;
    for process in &mut processes {
        let status = process.wait().map_err(CliError::system(process.name().to_owned()))?;
        if !status.success() && failure.is_none() {
            failure = Some(format!("{} failed ({status}): {}", process.name(), process.output_end()));
        }
    }
    work::set_foreground([]);
    match failure {
        Some(failure) => Err(CliError::Failed(failure)),
        None => tune_rank::read_samples(&samples),
    }
}

fn write(path: &Path, tuning: &Tuning, place: &str, samples: &[CostSample]) -> Result<(), CliError> {
    let text = format!(
        "# Measured by `outboard tune` on {place}: {} kinds of calls among {}.\n# Daemons read this by --tuning or \
         OUTBOARD_TUNING, all daemons of a group the same. Edit what you like:\n# `outboard explain choice` shows what comes \
         of it.\n\n{tuning}",
        samples.len(),
        groups(samples)
    );
    fs::write(path, text).map_err(CliError::system(format!("write {}", path.display())))
}

/// The groups of the samples, as text.
fn groups(samples: &[CostSample]) -> String {
    let mut all: Vec<(u32, u32)> = samples.iter().map(|sample| (sample.case.ranks, sample.case.hosts)).collect();
    all.sort_unstable();
    all.dedup();
    let words: Vec<String> = all.iter().map(|(ranks, hosts)| format!("{ranks} ranks on {hosts} hosts")).collect();
    words.join(", ")
}

fn report(path: &Path, start: &Tuning, existed: bool, tuned: &Tuning, place: &str, samples: &[CostSample]) -> String {
    let mut text = format!("measured {place}: {}\n\n", groups(samples));
    text += &format!(
        "  {:<10} {:<28} {:>6} {:>6} {:>10} {:>12} {:>12} {:>12}\n",
        "collective", "algorithm", "ranks", "hosts", "bytes", "measured", "model before", "model now"
    );
    for CostSample { case, choice, took } in samples {
        let Case { collective, ranks, hosts, bytes, .. } = case;
        let model = |tuning: &Tuning| {
            tuning.candidate(case, *choice).map_or_else(|| "-".to_owned(), |candidate| candidate.time.to_string())
        };
        text += &format!(
            "  {collective:<10} {:<28} {ranks:>6} {hosts:>6} {bytes:>10} {:>12} {:>12} {:>12}\n",
            choice.to_string(),
            took.to_string(),
            model(start),
            model(tuned),
        );
    }
    let known = if existed { "the file before" } else { "built in" };
    text += &format!("\n  {:<10} {known:>16} {:>16}\n", "parameter", "now");
    for ((name, before), (_, now)) in parameters(&start.cost).into_iter().zip(parameters(&tuned.cost)) {
        let same = if before == now { "  (not measured, or as before)" } else { "" };
        text += &format!("  {name:<10} {before:>16} {now:>16}{same}\n");
    }
    let off = |cost: &Cost| {
        let mut factors: Vec<f64> = samples.iter().map(|sample| factor(cost, sample)).collect();
        factors.sort_by(f64::total_cmp);
        factors.get(factors.len() / 2).copied().unwrap_or(1.0)
    };
    text += &format!("\nhalf of the calls are within a factor of {:.2} of the model", off(&tuned.cost));
    text += &format!(", before {:.2}\n", off(&start.cost));
    let kept: usize = tuned.rules.values().map(Vec::len).sum();
    let kept = if kept > 0 { format!(", with {kept} choices by hand kept") } else { String::new() };
    text + &format!("written to {}, digest {:08x}{kept}\n", path.display(), tuned.digest())
}

fn parameters(cost: &Cost) -> [(&'static str, String); 7] {
    [
        ("latency", cost.latency.to_string()),
        ("message", cost.message.to_string()),
        ("control", cost.control.to_string()),
        ("bandwidth", cost.bandwidth.to_string()),
        ("multicast", cost.multicast.map_or_else(|| "none".to_owned(), |rate| rate.to_string())),
        ("copy", cost.copy.to_string()),
        ("reduce", cost.reduce.to_string()),
    ]
}
