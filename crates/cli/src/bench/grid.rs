//! `outboard bench grid`: an MPI library natively beside the same library below the shim, for many collectives, sizes
//! and clusters. Losses are told, never an error.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outboard_bench::{
    BenchOptions, Cell, Choosing, Collective, Layout, Peer, Place, Setup, grid_runs, parse_sizes, render_grid,
    render_grid_markdown, run_batches, slower_again,
};

use super::clusters::Clusters;
use super::{BLOCKING_SIZES, below_mpi};
use crate::algorithm::Algorithms;
use crate::error::CliError;
use crate::lab::LinkArgs;
use crate::launch::DaemonArgs;

#[derive(Debug, Args)]
pub(crate) struct GridArgs {
    /// Collectives, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "barrier,broadcast,reduce,allreduce,allgather,alltoall,reduce-scatter"
    )]
    collectives: Vec<Collective>,
    /// Bytes as of the collectives' own benches, separated by commas; a collective leaves out those that it cannot have
    #[arg(long, default_value = BLOCKING_SIZES)]
    sizes: String,
    /// Clusters: HOSTSxRATE with one rank on a host, or HOSTSxRATE:RANKS, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1x1gbit:4,2x1gbit,4x1gbit")]
    labs: Vec<Place>,
    /// The blocking forms; otherwise the nonblocking ones, which compute as long as a call takes; the time of the
    /// computation alone does not count
    #[arg(long)]
    blocking: bool,
    /// Runs below the shim that are not measured come first, to leave what they learn; with OUTBOARD_CHOICE=adaptive or
    /// learn. It is kept in OUTBOARD_CHOICE_FILE, with the name of the cluster behind it, or until the grid ends
    #[arg(long, default_value_t = 0)]
    learn: u32,
    /// How ranks lie on the hosts: contiguous keeps neighbours together, strided deals them in turn
    #[arg(long, default_value = "contiguous")]
    layout: Layout,
    #[command(flatten)]
    links: LinkArgs,
    /// The Open MPI: debian or open-mpi
    #[arg(long, default_value = "debian")]
    mpi: Peer,
    /// How often both are gone through
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Rounds that measure the cells again that came out slower below the shim, and replace them: launches of an MPI
    /// library differ by more than a few rounds show; 0 for none
    #[arg(long, default_value_t = 15)]
    again: u32,
    /// Repetitions in each round
    #[arg(long, default_value_t = 10)]
    repetitions: u32,
    /// Where the cells go
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where the tables go, in Markdown
    #[arg(long)]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    daemons: DaemonArgs,
}

pub(super) fn grid(args: &GridArgs) -> Result<ExitCode, CliError> {
    let sizes = parse_sizes(&args.sizes).map_err(CliError::said)?;
    let clusters = Clusters {
        labs: &args.labs,
        choosing: Choosing::default(),
        learn: args.learn,
        json: args.json.as_deref(),
        markdown: args.markdown.as_deref(),
    };
    let runs = |place: &Place| Ok(grid_runs(&setup(args, place)?, &args.collectives, &sizes));
    let measure = |place: &Place, choosing: &Choosing, options: &BenchOptions| {
        let algorithms = Algorithms::of(options.collective, &args.daemons, &place.lab)?;
        options.calls().try_for_each(|call| algorithms.check(&call))?;
        let below = below_mpi(args.mpi, algorithms, args.daemons.clone(), choosing)?;
        let cells = |options: &BenchOptions| {
            let rows = run_batches(options, &[&below])?.rows;
            Ok::<_, CliError>(Cell::of_run(place, &options.setup, choosing, &rows))
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
    Ok(if report.verified() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn setup(args: &GridArgs, place: &Place) -> Result<Setup, CliError> {
    let mut setup = Setup::new(args.links.apply(place.lab.clone())?, args.repetitions);
    setup.ranks_per_host = place.ranks_per_host;
    setup.layout = args.layout;
    setup.peers = vec![args.mpi];
    setup.rounds = args.rounds;
    setup.learn = args.learn;
    setup.blocking = args.blocking;
    Ok(setup)
}
