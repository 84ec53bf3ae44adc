//! `outboard bench`: measures Outboard's interfaces beside the peers, on one emulated cluster, in one run.

mod clusters;
mod one_cluster;
mod readme;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use outboard::service_processes::ServiceProcesses;
use outboard_bench::{
    BenchCall, BenchOptions, BenchReport, Collective, LateRankSpec, Layout, Outboard, Peer, Services, Setup,
    ShimChoice, System, default_peers_dir, ensure_peer, parse_sizes, render_batches, render_by_size, render_table,
    run_batches,
};
use outboard_lab::LabSpec;
use serde::Serialize;

use crate::algorithm::Algorithms;
use crate::error::CliError;
use crate::lab::LinkArgs;
use crate::launch::{self, DaemonArgs, Daemons};
use crate::places::{self, Heap};

/// Default sizes of nonblocking calls.
const SIZES: &str = "256K,1M,4M";
/// Default sizes of blocking calls.
const BLOCKING_SIZES: &str = "8,64,1K,4K,16K,64K,256K,1M,4M";
const PING_PONG_SIZES: &str = "8,1K,64K,1M";

/// The benches.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Nonblocking allgather
    Allgather(BenchArgs),
    /// Nonblocking allgatherv, all blocks of one size
    Allgatherv(BenchArgs),
    /// Nonblocking alltoall
    Alltoall(BenchArgs),
    /// Nonblocking alltoallv, all blocks of one size
    Alltoallv(BenchArgs),
    /// Nonblocking broadcast from rank 0
    Broadcast(BenchArgs),
    /// Nonblocking gather to rank 0
    Gather(BenchArgs),
    /// Nonblocking gatherv to rank 0, all blocks of one size
    Gatherv(BenchArgs),
    /// Nonblocking scatter from rank 0
    Scatter(BenchArgs),
    /// Nonblocking scatterv from rank 0, all blocks of one size
    Scatterv(BenchArgs),
    /// Nonblocking reduce to rank 0, a sum of 64-bit integers
    Reduce(BenchArgs),
    /// Nonblocking allreduce, a sum of 64-bit integers
    Allreduce(BenchArgs),
    /// Nonblocking reduce-scatter of equal blocks, a sum of 64-bit integers; sizes are of the whole vector
    ReduceScatter(BenchArgs),
    /// Nonblocking inclusive scan, a sum of 64-bit integers
    Scan(BenchArgs),
    /// Nonblocking barrier
    Barrier(BenchArgs),
    /// Three-dimensional FFT in pencils, several fields in a pipeline, transposes by MPI_Ialltoallv
    Fft(one_cluster::FftArgs),
    /// Parallel radix sort: histograms by MPI_Iallgather while keys are moved, then one-sided calls
    Radix(one_cluster::RadixArgs),
    /// Half a round trip of a tagged message between the first rank and the last, by blocking calls
    PingPong(BenchArgs),
    /// Scatter-destination all-to-all by messages: one by one, and as a recorded group called again and again
    Recorded(one_cluster::RecordedArgs),
    /// An MPI library natively beside the same library below the preloaded shim: collectives, sizes, clusters
    Grid(clusters::GridArgs),
    /// Processor time of alltoallv and allgather below the preloaded shim, with and without the shared heap
    ProcessorTime(one_cluster::ProcessorTimeArgs),
    /// Whole programs natively and below the preloaded shim in turn: conjugate gradients, LU factorisation, PageRank,
    /// LAMMPS
    Programs(clusters::ProgramsArgs),
    /// Time from a fault until every surviving rank has its verdict, and whether all verdicts agree
    Verdicts(verdicts::VerdictsArgs),
    /// Write the figures of reports into the tables of docs/performance
    Readme(readme::ReadmeArgs),
}

/// Outboard's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Via {
    /// The C interface
    C,
    /// An unmodified MPI program below the preloaded shim
    Mpi,
    /// Both interfaces
    Both,
    /// No interface, only the peers
    None,
}

/// The cluster, the ranks, the peers and the rounds.
#[derive(Debug, Args)]
struct SetupArgs {
    /// HOSTSxRATE
    #[arg(long, default_value = "4x1gbit")]
    lab: LabSpec,
    /// Ranks on every host
    #[arg(long, default_value_t = 1)]
    ranks_per_host: u32,
    /// How ranks are assigned to the hosts: contiguous keeps neighbours together, strided assigns them in turn
    #[arg(long, default_value = "contiguous")]
    layout: Layout,
    #[command(flatten)]
    links: LinkArgs,
    /// open-mpi, mpich, intel-mpi, debian, separated by commas
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// The Open MPI below which Outboard is preloaded: debian or open-mpi
    #[arg(long, default_value = "debian")]
    mpi: Peer,
    /// Ranks share core 0; service processes and progress threads have core 1
    #[arg(long)]
    comm_core: bool,
    /// How often all systems are measured in turn
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Write the rows to this JSON file
    #[arg(long, value_parser = crate::output::file())]
    json: Option<PathBuf>,
    #[command(flatten)]
    daemons: DaemonArgs,
}

impl SetupArgs {
    fn setup(&self, repetitions: u32) -> Result<Setup, CliError> {
        let mut setup = Setup::new(self.links.apply(self.lab.clone())?, repetitions);
        setup.ranks_per_host = self.ranks_per_host;
        setup.layout = self.layout;
        setup.peers.clone_from(&self.peers);
        setup.comm_core = self.comm_core;
        setup.programs_dir = places::bench_programs()?;
        setup.rounds = self.rounds;
        Ok(setup)
    }

    /// The daemons' arguments, with this number of daemons on each host, on the communication core if there is one.
    fn daemons(&self, service_processes: ServiceProcesses) -> DaemonArgs {
        let mut daemons = DaemonArgs { service_processes, ..self.daemons.clone() };
        if self.comm_core && daemons.service_core.is_none() {
            daemons.service_core = Some(1);
        }
        daemons
    }
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Bytes of a rank's block, of the whole for a broadcast or a reduction, for each rank for an alltoall or a
    /// scatter; separated by commas [default: 256K,1M,4M; with --blocking 8 to 4M; barrier 0; ping-pong 8 to 1M]
    #[arg(long)]
    sizes: Option<String>,
    /// Blocking calls (for the C interface post and wait), small ones many in a row; nothing overlaps with them
    #[arg(long)]
    blocking: bool,
    /// Outboard's interface [default: c; both for a ping-pong]
    #[arg(long, value_enum)]
    via: Option<Via>,
    /// A rank that posts late: RANK:MILLISECONDS, or RANK:2x for twice the system's own time with no rank late
    #[arg(long)]
    late: Option<LateRankSpec>,
    /// The late rank has no blocks (alltoallv only), so that the others need not wait for it
    #[arg(long, requires = "late")]
    late_silent: bool,
    /// Repetitions of each phase
    #[arg(long, default_value_t = 20)]
    repetitions: u32,
    /// Daemons on each host, which share its ranks: numbers or auto, separated by commas, each measured as a system
    #[arg(long, value_delimiter = ',', default_value = "1")]
    service_processes: Vec<ServiceProcesses>,
}

pub(crate) fn bench(command: BenchCommand) -> Result<ExitCode, CliError> {
    let (collective, args) = match command {
        BenchCommand::Allgather(args) => (Collective::Allgather, args),
        BenchCommand::Allgatherv(args) => (Collective::Allgatherv, args),
        BenchCommand::Alltoall(args) => (Collective::Alltoall, args),
        BenchCommand::Alltoallv(args) => (Collective::Alltoallv, args),
        BenchCommand::Broadcast(args) => (Collective::Broadcast, args),
        BenchCommand::Gather(args) => (Collective::Gather, args),
        BenchCommand::Gatherv(args) => (Collective::Gatherv, args),
        BenchCommand::Scatter(args) => (Collective::Scatter, args),
        BenchCommand::Scatterv(args) => (Collective::Scatterv, args),
        BenchCommand::Reduce(args) => (Collective::Reduce, args),
        BenchCommand::Allreduce(args) => (Collective::Allreduce, args),
        BenchCommand::ReduceScatter(args) => (Collective::ReduceScatter, args),
        BenchCommand::Scan(args) => (Collective::Scan, args),
        BenchCommand::Barrier(args) => (Collective::Barrier, args),
        BenchCommand::PingPong(args) => (Collective::PingPong, args),
        BenchCommand::Fft(args) => return one_cluster::fft(&args),
        BenchCommand::Radix(args) => return one_cluster::radix(&args),
        BenchCommand::Recorded(args) => return one_cluster::recorded(&args),
        BenchCommand::Grid(args) => return clusters::grid(&args),
        BenchCommand::ProcessorTime(args) => return one_cluster::processor_time(&args),
        BenchCommand::Programs(args) => return clusters::programs(&args),
        BenchCommand::Verdicts(args) => return verdicts::verdicts(&args),
        BenchCommand::Readme(args) => return readme::readme(&args),
    };
    collectives(collective, args)
}

fn collectives(collective: Collective, args: BenchArgs) -> Result<ExitCode, CliError> {
    let ping_pong = collective == Collective::PingPong;
    let blocking = args.blocking || ping_pong;
    if blocking && args.late.is_some() {
        return Err(CliError::Failed("--late: a rank is late for nonblocking calls alone".to_owned()));
    }
    let default_sizes = match (collective, blocking) {
        (Collective::Barrier, _) => "0",
        (Collective::PingPong, _) => PING_PONG_SIZES,
        (_, false) => SIZES,
        (_, true) => BLOCKING_SIZES,
    };
    let via = args.via.unwrap_or(if ping_pong { Via::Both } else { Via::C });
    let sizes = parse_sizes(args.sizes.as_deref().unwrap_or(default_sizes)).map_err(CliError::failed)?;
    let setup = Setup { blocking, ..args.setup.setup(args.repetitions)? };
    let mut options = BenchOptions::new(setup, collective, sizes);
    options.late = args.late.map(|late| LateRankSpec { silent: args.late_silent, ..late });
    let mut ours = Vec::new();
    for each in &args.service_processes {
        let daemons = args.setup.daemons(*each);
        // One daemon on each host is the default, so its row needs no variant name.
        let has_variant = args.service_processes.len() > 1 || *each != ServiceProcesses::default();
        let variant = has_variant.then(|| format!("{each} to a host"));
        let algorithms = Algorithms::of(collective, &daemons, &args.setup.lab)?;
        options.calls().try_for_each(|call| algorithms.check(&call))?;
        let mut start = |system: Outboard| ours.push(system.with_variant(variant.as_deref()));
        if matches!(via, Via::C | Via::Both) {
            start(by_c_interface(algorithms.clone(), daemons.clone())?);
        }
        if matches!(via, Via::Mpi | Via::Both) {
            start(below_mpi(Heap::from_environment()?, args.setup.mpi, algorithms, daemons, &ShimChoice::default())?);
        }
    }
    let ours: Vec<&dyn System> = ours.iter().map(|system| system as &dyn System).collect();
    if blocking {
        let report = run_batches(&options, &ours)?;
        return finish(&args.setup, &report, &render_batches(&report), report.all(|row| row.cost.verified));
    }
    let report = outboard_bench::run(&options, &ours)?;
    let mut text = render_table(&report.rows);
    if args.service_processes.len() > 1 {
        text += &format!("\n{}", render_by_size(&report.rows));
    }
    finish(&args.setup, &report, &text, report.all(|row| row.cost.verified))
}

/// Prints the table and writes the rows to a file if one is given. Fails unless all results are right.
fn finish<R: Serialize>(
    setup: &SetupArgs,
    report: &BenchReport<R>,
    text: &str,
    right: bool,
) -> Result<ExitCode, CliError> {
    print!("{text}");
    if let Some(path) = &setup.json {
        report.write_json(path)?;
    }
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Outboard through the C interface.
fn by_c_interface(algorithms: Algorithms, daemons: DaemonArgs) -> Result<Outboard, CliError> {
    let (include, library) = (places::include()?, places::library()?);
    let library = library.parent().expect("a file lies in a directory").to_owned();
    let named = algorithms.clone();
    let algorithm = move |call: &BenchCall| named.name(call);
    let launch = move |job: &outboard_bench::BenchJob<'_>| {
        launch::launch_ranks(job, &algorithms.with_tuning_file(&daemons, job.directory)?)
    };
    Ok(Outboard::by_c_interface(algorithm, &include, &library, launch))
}

/// Outboard below an unmodified MPI program, with its large allocations in `heap`.
fn below_mpi(
    heap: Heap,
    mpi: Peer,
    algorithms: Algorithms,
    daemons: DaemonArgs,
    choosing: &ShimChoice,
) -> Result<Outboard, CliError> {
    let named = algorithms.clone();
    let algorithm = move |call: &BenchCall| named.name(call);
    ensure_peer(mpi, &default_peers_dir())?;
    let variables = places::below_mpi(heap)?;
    let variant = (heap == Heap::Shared).then_some("shared heap");
    let start = move |job: &outboard_bench::BenchJob<'_>| {
        let d =
            Daemons::on_lab(job.lab, job.ranks, job.directory, &algorithms.with_tuning_file(&daemons, job.directory)?)?;
        let mut environment = d.environment();
        environment.extend(variables.clone());
        Ok(Services { environment, stats: Some(Box::new(d.stats())), processes: d.processes })
    };
    let outboard = Outboard::below_mpi(algorithm, mpi, &default_peers_dir(), choosing, start)?;
    Ok(outboard.with_variant(variant))
}

/// Builds the measuring programs that `make install` puts into `libexec/outboard`.
pub(crate) fn build_programs(folder: &Path) -> Result<ExitCode, CliError> {
    let (include, library) = (places::include()?, places::library()?);
    let library = library.parent().expect("a file lies in a directory");
    outboard_bench::build_installed_programs(&include, library, folder)?;
    Ok(ExitCode::SUCCESS)
}
