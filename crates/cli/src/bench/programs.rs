//! `outboard bench programs`: whole programs natively and below the shim in turn. Losses are told, never an error.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outboard_bench::{
    Choosing, Collective, Peer, Place, Program, Setup, render_programs, render_programs_markdown, run_program,
};

use super::below_mpi;
use super::clusters::Clusters;
use crate::algorithm::Algorithms;
use crate::error::CliError;
use crate::launch::DaemonArgs;

#[derive(Debug, Args)]
pub(crate) struct ProgramsArgs {
    /// cg, panel, pagerank, lammps, separated by commas; all by default
    #[arg(long, value_delimiter = ',')]
    only: Vec<Program>,
    /// Clusters: HOSTSxRATE with one rank on a host, or HOSTSxRATE:RANKS, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "2x1gbit,4x1gbit")]
    labs: Vec<Place>,
    /// Runs of each program, natively and below the shim in turn
    #[arg(long, default_value_t = 10)]
    pairs: u32,
    /// Longer runs below the shim that are not measured come first, to leave what they learn. It is kept in
    /// OUTBOARD_CHOICE_FILE, with the name of the cluster behind it, or until the bench ends
    #[arg(long, default_value_t = 1)]
    learn: u32,
    /// How much a run has to do, in about half a second each
    #[arg(long, default_value_t = 4)]
    repetitions: u32,
    /// Where the rows go
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where the table goes, in Markdown
    #[arg(long)]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    daemons: DaemonArgs,
}

pub(super) fn programs(args: &ProgramsArgs) -> Result<ExitCode, CliError> {
    let clusters = Clusters {
        labs: &args.labs,
        // As a program that somebody preloads.
        choosing: Choosing::or("adaptive"),
        learn: args.learn,
        json: args.json.as_deref(),
        markdown: args.markdown.as_deref(),
    };
    let programs = if args.only.is_empty() { Program::ALL } else { &args.only };
    let measure = |place: &Place, choosing: &Choosing, program: &Program| {
        let algorithms = Algorithms::of(Collective::Allreduce, &args.daemons, &place.lab)?;
        let below = below_mpi(Peer::Debian, algorithms, args.daemons.clone(), choosing)?;
        Ok(vec![run_program(*program, place, &setup(args, place), choosing, &below)?])
    };
    let report = clusters.go_through(|_| Ok(programs.to_vec()), measure, render_programs_markdown)?;
    print!("{}", render_programs(&report));
    Ok(if report.verified() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Debian's Open MPI: that is what Debian's programs are linked to.
fn setup(args: &ProgramsArgs, place: &Place) -> Setup {
    let mut setup = Setup::new(place.lab.clone(), args.repetitions);
    setup.ranks_per_host = place.ranks_per_host;
    setup.peers = vec![Peer::Debian];
    setup.rounds = args.pairs;
    setup.learn = args.learn;
    setup
}
