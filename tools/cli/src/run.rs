//! `outboard run`: runs a program with its collectives offloaded, on an emulated cluster or on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Instant;

use clap::{Args, ValueEnum};
use outboard::service_processes::ServiceProcesses;
use outboard_bench::{BenchJob, Layout, Peer, default_peers_dir, open_mpi_launcher};
use outboard_lab::{Lab, LabSpec};

use crate::error::CliError;
use crate::lab::LinkArgs;
use crate::launch::{self, DaemonArgs, Daemons, ProgramRanks};
use crate::places::Heap;
use crate::work;
use crate::{bench, places, reports, trace};

/// The kind of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProgramKind {
    /// MPI if the program is linked to an MPI library or imports mpi4py, else plain
    Auto,
    /// An MPI program, started by mpirun below the shim
    Mpi,
    /// A program that uses outboard.h, started directly
    Plain,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// HOSTSxRATE of an emulated cluster; without it the ranks share this machine
    #[arg(long)]
    lab: Option<LabSpec>,
    #[command(flatten)]
    links: LinkArgs,
    /// Number of ranks
    #[arg(short = 'n', long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    ranks: u32,
    /// Ranks on every host of the emulated cluster, instead of -n
    #[arg(long, requires = "lab", conflicts_with = "ranks", value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks_per_host: Option<u32>,
    /// How ranks are assigned to the hosts of an emulated cluster: strided assigns them in turn, contiguous keeps
    /// neighbours together
    #[arg(long, default_value = "strided")]
    layout: Layout,
    /// The kind of the program
    #[arg(long, value_enum, default_value = "auto")]
    kind: ProgramKind,
    /// The Open MPI of an MPI program: debian or open-mpi
    #[arg(long, default_value = "debian")]
    mpi: Peer,
    /// Run without Outboard, for comparison
    #[arg(long)]
    native: bool,
    /// Print the daemons' counters even if nothing was offloaded
    #[arg(long, conflicts_with = "quiet")]
    report: bool,
    /// Daemons on each host, which share its ranks: a number, or auto by ranks and processors
    #[arg(long, default_value_t)]
    service_processes: ServiceProcesses,
    /// Print no report at the end
    #[arg(long)]
    quiet: bool,
    /// Write a timeline of calls, stand-ins, transfers and waits of all ranks and service processes, for Perfetto
    #[arg(long, conflicts_with = "native", value_parser = crate::output::file())]
    trace: Option<PathBuf>,
    /// Write the seconds from the start of the ranks to the end of the last to this file, for `outboard compare`
    #[arg(long, hide = true)]
    seconds: Option<PathBuf>,
    #[command(flatten)]
    daemons: DaemonArgs,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn run(mut args: RunArgs) -> Result<ExitCode, CliError> {
    if let (Some(per_host), Some(lab)) = (args.ranks_per_host, &args.lab) {
        args.ranks = per_host * u32::from(lab.hosts());
    }
    args.daemons.service_processes = args.service_processes;
    args.daemons.trace = args.trace.is_some();
    let program = find_program(&args.command[0])?;
    let mpi = match args.kind {
        ProgramKind::Auto => speaks_mpi(&program, &args.command[1..]),
        ProgramKind::Mpi => true,
        ProgramKind::Plain => false,
    };
    work::end_on_signals()?;
    let directory = work::directory()?;
    let lab = match args.lab.clone() {
        Some(spec) => Some(Lab::start(&args.links.apply(spec)?)?),
        None => None,
    };
    let daemons = match (&lab, args.native) {
        (_, true) => None,
        (Some(lab), false) => Some(Daemons::on_lab(lab, args.ranks, directory.path(), &args.daemons)?),
        (None, false) => Some(Daemons::here(args.ranks, directory.path(), &args.daemons)?),
    };
    let notices = daemons.as_ref().map(Daemons::notices).transpose()?;
    let started = Instant::now();
    let outcome = if mpi {
        run_mpi(&args, &program, lab.as_ref(), daemons.as_ref(), directory.path())
    } else {
        run_plain(&args, &program, lab.as_ref(), daemons.as_ref(), directory.path())
    };
    if let Some(path) = &args.seconds {
        let seconds = started.elapsed().as_secs_f64().to_string();
        fs::write(path, seconds).map_err(CliError::system(format!("write {}", path.display())))?;
    }
    drop(notices);
    if let Some(daemons) = daemons.as_ref().filter(|_| !args.quiet) {
        report(daemons, args.report);
    }
    if let Some(output) = &args.trace {
        // Daemons write the last events when they end.
        drop(daemons);
        let parts = trace::parts(directory.path()).map_err(CliError::system("the traces of the job"))?;
        trace::join(&parts, output)?;
    }
    outcome
}

/// Prints the daemons' counters on standard error, and names daemons that have died.
fn report(daemons: &Daemons, always: bool) {
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    for report in daemons.stats().reports() {
        match report {
            Ok(report) => answers.push(report),
            Err(error) => silent.push(error),
        }
    }
    if always || answers.iter().any(|report| !report.kinds.is_empty()) {
        eprint!("{}", reports::summary(&answers));
        silent.iter().for_each(|error| eprintln!("  not counted: {error}"));
    }
}

/// The path of a program, as a shell finds it.
fn find_program(name: &str) -> Result<PathBuf, CliError> {
    let found = if name.contains('/') {
        Some(PathBuf::from(name)).filter(|p| p.is_file())
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|d| d.join(name)).find(|p| p.is_file())
    };
    let found = found.ok_or_else(|| CliError::Failed(format!("the program {name} is not found; give its path")))?;
    found.canonicalize().map_err(CliError::system(name.to_owned()))
}

/// Whether the program, or its script argument, mentions an MPI library.
fn speaks_mpi(program: &Path, arguments: &[String]) -> bool {
    let mentions = |path: &Path, word: &[u8]| {
        fs::read(path).is_ok_and(|bytes| bytes.windows(word.len()).any(|window| window == word))
    };
    let script = |a: &String| a.ends_with(".py") && mentions(Path::new(a), b"mpi4py");
    mentions(program, b"libmpi") || mentions(program, b"mpi4py") || arguments.iter().any(script)
}

fn run_mpi(
    args: &RunArgs,
    program: &Path,
    lab: Option<&Lab>,
    daemons: Option<&Daemons>,
    directory: &Path,
) -> Result<ExitCode, CliError> {
    let mut environment = match daemons {
        Some(daemons) => mpi_environment(daemons)?,
        None => Vec::new(),
    };
    environment.extend(library_path()?);
    let mut command = match lab {
        Some(lab) => {
            let job = BenchJob {
                lab,
                ranks: args.ranks,
                layout: args.layout,
                program,
                arguments: &args.command[1..],
                comm_core: false,
                blocking: false,
                one_sided: false,
                directory,
            };
            let mut command = open_mpi_launcher(args.mpi, &default_peers_dir(), &job, &environment)?;
            command.current_dir(std::env::current_dir().map_err(CliError::system("the current directory"))?);
            command
        }
        None => {
            let mut command = launch::bound(&bench::launcher_of(args.mpi)?);
            command.args(["--allow-run-as-root", "--oversubscribe", "-n", &args.ranks.to_string()]);
            for (name, value) in &environment {
                command.arg("-x").arg(format!("{name}={value}"));
            }
            command.arg(program).args(&args.command[1..]);
            command
        }
    };
    let child = command.spawn().map_err(CliError::system("start mpirun"))?;
    await_all(vec![("mpirun".to_owned(), child)])
}

/// Environment of the ranks of an MPI program that is offloaded.
pub(crate) fn mpi_environment(daemons: &Daemons) -> Result<Vec<(String, String)>, CliError> {
    let mut environment = daemons.environment();
    environment.extend(places::below_mpi(Heap::from_environment()?)?);
    Ok(environment)
}

/// The search path on which programs that use outboard.h, with or without MPI, find our library.
fn library_path() -> Result<Option<(String, String)>, CliError> {
    let library = places::library()?;
    let Some(home) = library.parent() else { return Ok(None) };
    let mut path = home.display().to_string();
    if let Ok(more) = std::env::var("LD_LIBRARY_PATH") {
        path = format!("{path}:{more}");
    }
    Ok(Some(("LD_LIBRARY_PATH".to_owned(), path)))
}

fn run_plain(
    args: &RunArgs,
    program: &Path,
    lab: Option<&Lab>,
    daemons: Option<&Daemons>,
    directory: &Path,
) -> Result<ExitCode, CliError> {
    let mut environment = library_path()?.into_iter().collect::<Vec<_>>();
    if let Some(daemons) = daemons {
        environment.extend(daemons.environment());
        environment.extend(places::preloads(Heap::from_environment()?, None)?);
    }
    let ranks = ProgramRanks { count: args.ranks, layout: args.layout, lab };
    let (_rendezvous, commands) = launch::rank_commands(&ranks, program, &args.command[1..], directory, &environment)?;
    let mut children = Vec::new();
    for (name, mut command) in commands {
        match command.spawn() {
            Ok(child) => children.push((name, child)),
            Err(source) => {
                end(&mut children);
                return Err(CliError::System { what: name, source });
            }
        }
    }
    await_all(children)
}

fn end(children: &mut [(String, Child)]) {
    for (_, child) in children {
        // A process that has ended needs no signal.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Waits for all processes. The first process that fails is named and determines the exit code.
fn await_all(children: Vec<(String, Child)>) -> Result<ExitCode, CliError> {
    let mut code = ExitCode::SUCCESS;
    let mut failed = false;
    let mut left: std::collections::BTreeSet<u32> = children.iter().map(|(_, child)| child.id()).collect();
    work::set_foreground(left.iter().copied());
    for (name, mut child) in children {
        let status = child.wait().map_err(CliError::system(name.clone()))?;
        left.remove(&child.id());
        work::set_foreground(left.iter().copied());
        if !status.success() && !failed {
            failed = true;
            eprintln!("outboard: {name}: {status}");
            let byte = status.code().and_then(|c| u8::try_from(c).ok()).filter(|c| *c != 0).unwrap_or(1);
            code = ExitCode::from(byte);
        }
    }
    Ok(code)
}
