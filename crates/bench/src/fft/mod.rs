//! A whole program beside the collectives: a three-dimensional FFT in pencils, its transposes by `MPI_Ialltoallv`
//! (programs/fft3d.c), below every MPI library and below the preloaded shim.
//!
//! Invariants: one C source and one FFT library for every system, so that rows of one grid must have the same bits; a row
//! says how many of its exchanges service processes carried out.
//!
//! Never does: calibrating anything. The program computes what it computes, and its time is the time of the whole.

mod launch;
mod options;
mod report;
mod table;
mod traffic;

pub use options::FftOptions;
pub use report::{FftReport, FftRow};
pub use table::render as render_fft_table;

use crate::compile::Workshop;
use crate::job::System;
use crate::peers::InstalledPeer;
use crate::{BenchError, install, plot};
use outboard_lab::Lab;
use std::fs;
use std::path::PathBuf;

/// Measures the program below `ours` and the peers of `options`, beside one another.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails: a comparison with a system missing is none. Wrong results are no error here; their row says so.
pub fn run_fft(options: &FftOptions, ours: &[&dyn System]) -> Result<FftReport, BenchError> {
    options.check()?;
    let bar = crate::run::bar((ours.len() + options.peers.len()) as u64 * u64::from(options.rounds), options.progress);
    for peer in &options.peers {
        bar.set_message(format!("installing {}", peer.name()));
        install::ensure(*peer, &options.peers_dir)?;
    }
    let peers: Vec<InstalledPeer> =
        options.peers.iter().map(|peer| InstalledPeer::new(*peer, &options.peers_dir)).collect();
    let systems: Vec<&dyn System> = ours.iter().copied().chain(peers.iter().map(|peer| peer as &dyn System)).collect();
    let workshop = Workshop::open()?;
    bar.set_message("building the programs");
    let programs = systems
        .iter()
        .map(|system| workshop.fft_program(&system.name(), &system.toolchain()))
        .collect::<Result<Vec<PathBuf>, BenchError>>()?;
    let lab = Lab::start(&options.lab)?;
    let mut launches: Vec<Vec<launch::Launch>> = systems.iter().map(|_| Vec::new()).collect();
    for round in 1..=options.rounds {
        for (at, system) in systems.iter().enumerate() {
            bar.set_message(format!("{} (round {round} of {})", system.name(), options.rounds));
            let directory = workshop.path().join(format!("launch-{round}-{at}"));
            fs::create_dir(&directory).map_err(BenchError::system(format!("make {}", directory.display())))?;
            launches[at].push(launch::measure(options, &lab, *system, &programs[at], &directory)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let rows = systems.iter().zip(&launches).flat_map(|(system, launches)| report::rows(options, *system, launches));
    let report = FftReport { rows: rows.collect() };
    if let Some(directory) = &options.plot {
        plot::draw(&report.figures(), directory)?;
    }
    Ok(report)
}
