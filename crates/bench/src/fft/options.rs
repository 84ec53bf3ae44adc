//! Which transforms to measure, and where.

use crate::options::{MAX_RANKS_PER_HOST, MAX_REPETITIONS, default_peers_dir};
use crate::{Layout, OptionError, Peer};
use outboard_lab::LabSpec;
use std::path::PathBuf;
use std::time::Duration;

/// The measuring program has room for as many.
const MAX_GRIDS: usize = 16;
const MAX_VARIABLES: u32 = 64;
const GRID_SIZES: std::ops::RangeInclusive<u32> = 8..=4096;

/// One run of the FFT program.
#[derive(Clone, Debug)]
pub struct FftOptions {
    /// The cluster. Its loss is part of the specification.
    pub lab: LabSpec,
    /// Ranks on every host.
    pub ranks_per_host: u32,
    /// Which of them are neighbours in rank, and so in a row of the process grid.
    pub layout: Layout,
    /// Points along each axis of the grids, in the order of the report: even numbers.
    pub grids: Vec<u32>,
    /// Real fields that are transformed in a pipeline.
    pub variables: u32,
    /// MPI libraries measured beside ours.
    pub peers: Vec<Peer>,
    /// Pairs of transforms, forward and backward, per round.
    pub repetitions: u32,
    /// How often the whole set of systems is gone through.
    pub rounds: u32,
    /// Ranks share core 0, service processes and progress threads have core 1.
    pub comm_core: bool,
    /// Where the peers are installed.
    pub peers_dir: PathBuf,
    /// Where to write the charts; `None` for no charts.
    pub plot: Option<PathBuf>,
    /// Longest time one launch may take; `None` for a bound computed from grids and repetitions.
    pub launch_timeout: Option<Duration>,
    /// Show a progress bar on standard error, where that is a terminal.
    pub progress: bool,
}

impl FftOptions {
    /// A run on `lab`, one rank per host, of four fields on `grids`, without peers: 5 repetitions, one round.
    pub fn new(lab: LabSpec, grids: Vec<u32>) -> Self {
        Self {
            lab,
            ranks_per_host: 1,
            layout: Layout::default(),
            grids,
            variables: 4,
            peers: Vec::new(),
            repetitions: 5,
            rounds: 1,
            comm_core: false,
            peers_dir: default_peers_dir(),
            plot: None,
            launch_timeout: None,
            progress: true,
        }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        u32::from(self.lab.hosts()) * self.ranks_per_host
    }

    /// Ranks along y and along z of the process grid: as near to a square as their number allows, the shorter side being
    /// the rows, which are neighbours in rank.
    pub fn process_grid(&self) -> (u32, u32) {
        let ranks = self.ranks();
        let rows = (1..=ranks.isqrt()).rev().find(|rows| ranks.is_multiple_of(*rows)).expect("1 divides all numbers");
        (rows, ranks / rows)
    }

    pub(crate) fn check(&self) -> Result<(), OptionError> {
        if self.grids.is_empty() || self.grids.len() > MAX_GRIDS {
            return Err(OptionError::Grids { count: self.grids.len() });
        }
        if !(1..=MAX_RANKS_PER_HOST).contains(&self.ranks_per_host) {
            return Err(OptionError::RanksPerHost { value: self.ranks_per_host });
        }
        let (rows, columns) = self.process_grid();
        // Every rank has lines of every axis; the x axis has half its points after the first transform.
        let fits = |grid: u32| grid.is_multiple_of(2) && columns <= grid && rows <= grid / 2 + 1;
        if let Some(grid) = self.grids.iter().find(|grid| !GRID_SIZES.contains(*grid) || !fits(**grid)) {
            return Err(OptionError::Grid { grid: *grid, ranks: self.ranks() });
        }
        if !(1..=MAX_VARIABLES).contains(&self.variables) {
            return Err(OptionError::Variables { value: self.variables });
        }
        for (what, value) in [("repetitions", self.repetitions), ("rounds", self.rounds)] {
            if !(1..=MAX_REPETITIONS).contains(&value) {
                return Err(OptionError::Count { what, value });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(lab: &str, ranks_per_host: u32) -> FftOptions {
        let mut options = FftOptions::new(lab.parse().unwrap(), vec![128]);
        options.ranks_per_host = ranks_per_host;
        options
    }

    #[test]
    fn process_grids_are_nearly_square() {
        let grid = |lab, ranks_per_host| options(lab, ranks_per_host).process_grid();
        assert_eq!(grid("4x1gbit", 1), (2, 2));
        assert_eq!(grid("4x1gbit", 2), (2, 4));
        assert_eq!(grid("4x1gbit", 4), (4, 4));
        assert_eq!(grid("3x1gbit", 1), (1, 3));
        assert_eq!(grid("6x1gbit", 1), (2, 3));
    }

    #[test]
    fn impossible_transforms_are_refused() {
        let good = options("4x1gbit", 2);
        assert_eq!(good.check(), Ok(()));
        let bad = |change: fn(&mut FftOptions)| {
            let mut options = good.clone();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert_eq!(bad(|o| o.grids.clear()), OptionError::Grids { count: 0 });
        for grid in [6, 127, 8192] {
            let mut options = good.clone();
            options.grids.push(grid);
            assert_eq!(options.check(), Err(OptionError::Grid { grid, ranks: 8 }));
        }
        assert_eq!(bad(|o| o.variables = 0), OptionError::Variables { value: 0 });
        assert_eq!(bad(|o| o.rounds = 0), OptionError::Count { what: "rounds", value: 0 });
        let mut crowded = options("8x1gbit", 64);
        crowded.grids = vec![8];
        assert_eq!(crowded.check(), Err(OptionError::Grid { grid: 8, ranks: 512 }));
    }
}
