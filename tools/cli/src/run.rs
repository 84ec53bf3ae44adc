//! `outboard run`: runs a program with its collectives offloaded, on an emulated cluster or on this machine.
//!
//! An MPI program starts below its library's launcher. A program that uses outboard.h without MPI starts directly.
//! Scripts, interpreters and commands that run other programs may start either, so they start below a launcher, too:
//! ranks that use outboard.h alone find one another there as well.

mod await_ranks;
mod preload;
mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, ValueEnum};
use outboard::service_processes::ServiceProcesses;
use outboard_bench::{BenchJob, InstalledPeer, Layout, MpiFamily, Peer, default_peers_dir};
use outboard_lab::{Lab, LabSpec};

use crate::error::CliError;
use crate::lab::LinkArgs;
use crate::launch::{self, DaemonArgs, Daemons, ProgramRanks};
use crate::places::Heap;
use crate::work;
use crate::{places, reports, trace};
use await_ranks::{Ranks, end};
use program::{Kind, Program};

/// The kind of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProgramKind {
    /// Plain if the program uses outboard.h without MPI, else mpi; without mpirun, scripts and wrappers count as plain
    Auto,
    /// An MPI program or what starts one, started by mpirun below the shim
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
    /// The MPI library whose mpirun starts an MPI program: debian, open-mpi, mpich or intel-mpi; by default the library
    /// that the program needs
    #[arg(long)]
    mpi: Option<Peer>,
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
    let library_path = library_path()?;
    let program = Program::examine(&args.command, Some(&library_path))?;
    if args.native && args.kind != ProgramKind::Mpi && program.kind == Kind::OutboardH {
        let name = &args.command[0];
        return Err(CliError::Failed(format!("{name} uses outboard.h, which has no native way: leave --native out")));
    }
    let launcher = launcher(&args, &program)?;
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
    let job = Job {
        args: &args,
        program: &program,
        lab: lab.as_ref(),
        daemons: daemons.as_ref(),
        directory: directory.path(),
        library_path,
    };
    let outcome = match &launcher {
        Some(launcher) => job.run_below(launcher),
        None => job.run_directly(),
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

/// The launcher of the job; `None` if its ranks are started directly.
fn launcher(args: &RunArgs, program: &Program) -> Result<Option<InstalledPeer>, CliError> {
    let name = &args.command[0];
    match (args.kind, &program.kind) {
        (ProgramKind::Plain, _) | (ProgramKind::Auto, Kind::OutboardH) => return Ok(None),
        (ProgramKind::Mpi | ProgramKind::Auto, _) => {}
    }
    if let Some(peer) = args.mpi {
        return Ok(Some(InstalledPeer::ensure(peer, &default_peers_dir())?));
    }
    let library = if let Kind::Mpi(library) = &program.kind { Some(library.as_path()) } else { None };
    if let Some(found) = InstalledPeer::find(launcher_directories(library, &program.path), library.and_then(family)) {
        return Ok(Some(found));
    }
    if let Some(library) = library {
        let library = library.display();
        return Err(CliError::Failed(format!("{name} needs {library}, but no mpirun of that MPI is found in PATH")));
    }
    if args.kind == ProgramKind::Mpi {
        return Err(CliError::Failed(format!("no mpirun for {name} is found in PATH; --mpi debian names one")));
    }
    eprintln!(
        "outboard: {name} starts as a plain program, because no mpirun is found in PATH; for MPI name one by \
         --kind mpi --mpi NAME"
    );
    Ok(None)
}

/// The kind of an MPI library; `None` if the name belongs to several.
fn family(library: &Path) -> Option<MpiFamily> {
    let name = library.file_name()?.to_string_lossy().into_owned();
    match name.strip_prefix("libmpi.so.") {
        Some(version) if version == "40" || version.starts_with("40.") => Some(MpiFamily::OpenMpi),
        Some(version) if version == "12" || version.starts_with("12.") => Some(MpiFamily::Mpich),
        Some(_) => None,
        None => (name.starts_with("libmpich") || name.starts_with("libpmpich")).then_some(MpiFamily::Mpich),
    }
}

/// Directories that may hold the job's launcher: below the prefixes of the library, beside the program (as in a virtual
/// environment), and the search path.
fn launcher_directories(library: Option<&Path>, program: &Path) -> Vec<PathBuf> {
    let real = library.and_then(|library| library.canonicalize().ok());
    let prefixes = library.into_iter().chain(real.as_deref()).flat_map(Path::ancestors).skip(1);
    let mut directories: Vec<PathBuf> = prefixes.map(|prefix| prefix.join("bin")).collect();
    directories.extend(program.parent().filter(|parent| !parent.as_os_str().is_empty()).map(Path::to_owned));
    directories.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    directories
}

/// Environment of the ranks of an MPI program that is offloaded.
pub(crate) fn mpi_environment(daemons: &Daemons) -> Result<Vec<(String, String)>, CliError> {
    let mut environment = daemons.environment();
    environment.extend(places::below_mpi(Heap::from_environment()?)?);
    Ok(environment)
}

/// The search path on which programs that use outboard.h, with or without MPI, find our library.
fn library_path() -> Result<String, CliError> {
    let library = places::library()?;
    let home = library.parent().unwrap_or(Path::new("/")).display();
    Ok(match std::env::var("LD_LIBRARY_PATH") {
        Ok(more) if !more.is_empty() => format!("{home}:{more}"),
        Ok(_) | Err(_) => home.to_string(),
    })
}

/// A job that is about to start.
struct Job<'a> {
    args: &'a RunArgs,
    program: &'a Program,
    /// The cluster; without it ranks run on this machine.
    lab: Option<&'a Lab>,
    /// The daemons; without them the job runs natively.
    daemons: Option<&'a Daemons>,
    /// The directory for files of this run.
    directory: &'a Path,
    library_path: String,
}

impl Job<'_> {
    /// The program as the user named it: ranks see this word as their first argument.
    fn name(&self) -> &Path {
        Path::new(&self.args.command[0])
    }

    fn arguments(&self) -> &[String] {
        &self.args.command[1..]
    }

    /// Runs the job below the launcher of an MPI library.
    fn run_below(&self, launcher: &InstalledPeer) -> Result<ExitCode, CliError> {
        let mut environment = match self.daemons {
            Some(daemons) => mpi_environment(daemons)?,
            None => Vec::new(),
        };
        self.complete(&mut environment);
        let mut command = match self.lab {
            Some(lab) => {
                let job = BenchJob {
                    lab,
                    ranks: self.args.ranks,
                    layout: self.args.layout,
                    program: self.name(),
                    arguments: self.arguments(),
                    comm_core: false,
                    blocking: false,
                    one_sided: false,
                    directory: self.directory,
                };
                let mut command = launcher.lab_command(&job, &environment)?;
                command.current_dir(std::env::current_dir().map_err(CliError::system("the current directory"))?);
                command
            }
            None => {
                let mut command = launch::bound(launcher.launcher());
                launcher.add_local_options(&mut command, self.args.ranks, &environment);
                command.arg(self.name()).args(self.arguments());
                command
            }
        };
        let child = command.spawn().map_err(CliError::system("start mpirun"))?;
        Ranks::below_launcher(("mpirun".to_owned(), child))?.wait().map(ExitCode::from)
    }

    /// Runs the job without a launcher: every rank is a child of this process.
    fn run_directly(&self) -> Result<ExitCode, CliError> {
        let mut environment = Vec::new();
        if let Some(daemons) = self.daemons {
            environment.extend(daemons.environment());
            environment.extend(places::preloads(Heap::from_environment()?, None)?);
        }
        self.complete(&mut environment);
        let ranks = ProgramRanks { count: self.args.ranks, layout: self.args.layout, lab: self.lab };
        let (_rendezvous, commands) =
            launch::rank_commands(&ranks, self.name(), self.arguments(), self.directory, &environment)?;
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
        Ranks::of_this_process(children)?.wait().map(ExitCode::from)
    }

    /// Adds the search path for libraries, and puts the preloaded libraries in order.
    fn complete(&self, environment: &mut Vec<(String, String)>) {
        environment.push(("LD_LIBRARY_PATH".to_owned(), self.library_path.clone()));
        let users = std::env::var(preload::VARIABLE).unwrap_or_default();
        let ours = environment.iter().position(|(name, _)| name == preload::VARIABLE);
        let ours = ours.map(|at| environment.remove(at).1).unwrap_or_default();
        let all = preload::in_order(&self.program.sanitizers, &users, &ours);
        if all != users {
            environment.push((preload::VARIABLE.to_owned(), all));
        }
    }
}
