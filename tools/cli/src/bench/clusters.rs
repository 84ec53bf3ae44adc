//! Benches that compare a library natively and below the shim on one cluster after another: collectives and whole
//! programs. After every run the report files hold all results so far. A case that is slower below the shim is
//! reported, and is no error.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outboard_bench::{
    BenchOptions, BenchProgram, BenchReport, ClusterShape, Collective, GridCell, Peer, Setup, ShimChoice, grid_runs,
    parse_sizes, render_grid, render_grid_markdown, render_programs, render_programs_markdown, run_batches,
    run_program, slower_again,
};
use serde::Serialize;

use super::{BLOCKING_SIZES, below_mpi};
use crate::algorithm::Algorithms;
use crate::error::CliError;
use crate::lab::LinkArgs;
use crate::launch::DaemonArgs;
use crate::places::Heap;

/// The files of reports.
#[derive(Debug, Args)]
struct Files {
    /// Write the rows to this JSON file
    #[arg(long, value_parser = crate::output::file())]
    json: Option<PathBuf>,
    /// Write the tables to this Markdown file
    #[arg(long, value_parser = crate::output::file())]
    markdown: Option<PathBuf>,
}

/// The clusters, what the shim learns on them, and the files of reports.
struct Clusters<'a> {
    labs: &'a [ClusterShape],
    choosing: ShimChoice,
    /// Runs for learning before each measured run.
    learn: u32,
    files: &'a Files,
}

impl Clusters<'_> {
    /// Measures each of `runs` on every cluster. Returns all rows.
    fn go_through<W, R: Serialize>(
        &self,
        runs: impl Fn(&ClusterShape) -> Result<Vec<W>, CliError>,
        measure: impl Fn(&ClusterShape, &ShimChoice, &W) -> Result<Vec<R>, CliError>,
        markdown: impl Fn(&BenchReport<R>) -> String,
    ) -> Result<BenchReport<R>, CliError> {
        if self.learn > 0 && !self.choosing.learns() {
            let why = "--learn is of use with OUTBOARD_CHOICE=adaptive or learn alone";
            return Err(CliError::Failed(why.to_owned()));
        }
        // The shim reads no file from a directory to which other users may write.
        let learnt = tempfile::tempdir().map_err(CliError::system("make a directory"))?;
        let mut report = BenchReport { rows: Vec::new() };
        for place in self.labs {
            let choosing = self.choosing.clone().on(place, learnt.path());
            for run in runs(place)? {
                report.rows.extend(measure(place, &choosing, &run)?);
                self.write(&report, &markdown)?;
            }
        }
        Ok(report)
    }

    fn write<R: Serialize>(
        &self,
        report: &BenchReport<R>,
        markdown: impl Fn(&BenchReport<R>) -> String,
    ) -> Result<(), CliError> {
        if let Some(path) = &self.files.json {
            report.write_json(path)?;
        }
        let Some(path) = &self.files.markdown else { return Ok(()) };
        std::fs::write(path, markdown(report)).map_err(CliError::system(format!("write {}", path.display())))
    }
}

#[derive(Debug, Args)]
pub(crate) struct GridArgs {
    /// Collectives, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "barrier,broadcast,reduce,allreduce,allgather,alltoall,reduce-scatter"
    )]
    collectives: Vec<Collective>,
    /// Bytes, as in the collectives' own benches, separated by commas; a collective skips sizes that it cannot have
    #[arg(long, default_value = BLOCKING_SIZES)]
    sizes: String,
    /// Clusters, separated by commas: HOSTSxRATE with one rank per host, or HOSTSxRATE:RANKS
    #[arg(long, value_delimiter = ',', default_value = "1x1gbit:4,2x1gbit,4x1gbit")]
    labs: Vec<ClusterShape>,
    /// Measure blocking calls. By default the calls are nonblocking, beside a computation as long as a call; the time
    /// of the computation is not counted
    #[arg(long)]
    blocking: bool,
    /// Runs below the shim before the measurement, in which it learns; with OUTBOARD_CHOICE=adaptive or learn. The
    /// results are kept in OUTBOARD_CHOICE_FILE with the cluster's name appended, or until the grid ends
    #[arg(long, default_value_t = 0)]
    learn: u32,
    #[command(flatten)]
    links: LinkArgs,
    /// The Open MPI: debian or open-mpi
    #[arg(long, default_value = "debian")]
    mpi: Peer,
    /// How often both sides are measured in turn
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Rounds that repeat cells that came out slower below the shim, and replace their results; 0 for none. Launches of
    /// an MPI library differ by more than a few rounds show
    #[arg(long, default_value_t = 15)]
    again: u32,
    /// Repetitions in each round
    #[arg(long, default_value_t = 10)]
    repetitions: u32,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    daemons: DaemonArgs,
}

pub(super) fn grid(args: &GridArgs) -> Result<ExitCode, CliError> {
    let sizes = parse_sizes(&args.sizes).map_err(CliError::failed)?;
    let clusters =
        Clusters { labs: &args.labs, choosing: ShimChoice::default(), learn: args.learn, files: &args.files };
    let runs = |place: &ClusterShape| Ok(grid_runs(&setup_of_grid(args, place)?, &args.collectives, &sizes));
    let measure = |place: &ClusterShape, choosing: &ShimChoice, options: &BenchOptions| {
        let algorithms = Algorithms::of(options.collective, &args.daemons, &place.lab)?;
        options.calls().try_for_each(|call| algorithms.check(&call))?;
        let below = below_mpi(Heap::from_environment()?, args.mpi, algorithms, args.daemons.clone(), choosing)?;
        let cells = |options: &BenchOptions| {
            let rows = run_batches(options, &[&below])?.rows;
            Ok::<_, CliError>(GridCell::of_run(place, &options.setup, choosing, &rows))
        };
        let mut found = cells(options)?;
        if let Some(slower) = slower_again(options, &found, args.again) {
            for cell in cells(&slower)? {
                let stood = found.iter_mut().find(|stood| stood.bytes_per_rank == cell.bytes_per_rank);
                *stood.expect("its size was measured before") = cell;
            }
        }
        Ok(found)
    };
    let report = clusters.go_through(runs, measure, render_grid_markdown)?;
    print!("{}", render_grid(&report));
    Ok(if report.all(|cell| cell.verified) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn setup_of_grid(args: &GridArgs, place: &ClusterShape) -> Result<Setup, CliError> {
    let mut setup = Setup::new(args.links.apply(place.lab.clone())?, args.repetitions);
    setup.ranks_per_host = place.ranks_per_host;
    setup.peers = vec![args.mpi];
    setup.rounds = args.rounds;
    setup.learn = args.learn;
    setup.blocking = args.blocking;
    Ok(setup)
}

#[derive(Debug, Args)]
pub(crate) struct ProgramsArgs {
    /// cg, panel, pagerank, lammps, separated by commas; all by default
    #[arg(long, value_delimiter = ',')]
    only: Vec<BenchProgram>,
    /// Clusters, separated by commas: HOSTSxRATE with one rank per host, or HOSTSxRATE:RANKS
    #[arg(long, value_delimiter = ',', default_value = "2x1gbit,4x1gbit")]
    labs: Vec<ClusterShape>,
    /// Runs of each program, natively and below the shim in turn
    #[arg(long, default_value_t = 10)]
    pairs: u32,
    /// Longer runs below the shim before the measurement, in which it learns. The results are kept in
    /// OUTBOARD_CHOICE_FILE with the cluster's name appended, or until the bench ends
    #[arg(long, default_value_t = 1)]
    learn: u32,
    /// Units of work in a run, about half a second each
    #[arg(long, default_value_t = 4)]
    repetitions: u32,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    daemons: DaemonArgs,
}

pub(super) fn programs(args: &ProgramsArgs) -> Result<ExitCode, CliError> {
    let clusters = Clusters {
        labs: &args.labs,
        // `adaptive` is the default of a preloaded program.
        choosing: ShimChoice::or("adaptive"),
        learn: args.learn,
        files: &args.files,
    };
    let programs = if args.only.is_empty() { BenchProgram::ALL } else { &args.only };
    let measure = |place: &ClusterShape, choosing: &ShimChoice, program: &BenchProgram| {
        let algorithms = Algorithms::of(Collective::Allreduce, &args.daemons, &place.lab)?;
        let below = below_mpi(Heap::from_environment()?, Peer::Debian, algorithms, args.daemons.clone(), choosing)?;
        Ok(vec![run_program(*program, place, &setup_of_program(args, place), choosing, &below)?])
    };
    let report = clusters.go_through(|_| Ok(programs.to_vec()), measure, render_programs_markdown)?;
    print!("{}", render_programs(&report));
    Ok(if report.all(|row| row.verified) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The setup of a program, with Debian's Open MPI, to which Debian's programs are linked.
fn setup_of_program(args: &ProgramsArgs, place: &ClusterShape) -> Setup {
    let mut setup = Setup::new(place.lab.clone(), args.repetitions);
    setup.ranks_per_host = place.ranks_per_host;
    setup.peers = vec![Peer::Debian];
    setup.rounds = args.pairs;
    setup.learn = args.learn;
    setup
}
