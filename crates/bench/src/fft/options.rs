//! Which transforms to measure, and where.

use crate::options::check_count;
use crate::{Call, Collective, OptionError, Setup};

/// The measuring program has room for as many.
const MAX_GRIDS: u64 = 16;
const MAX_VARIABLES: u64 = 64;
const GRID_SIZES: std::ops::RangeInclusive<u32> = 8..=4096;

/// One run of the FFT program.
#[derive(Clone, Debug)]
pub struct FftOptions {
    /// Where and how often; ranks that are neighbours are so in a row of the process grid, and a repetition is a pair
    /// of transforms, forward and backward.
    pub setup: Setup,
    /// Points along each axis of the grids, in the order of the report: even numbers.
    pub grids: Vec<u32>,
    /// Real fields that are transformed in a pipeline.
    pub variables: u32,
}

impl FftOptions {
    /// Ranks along y and along z of the process grid: as near to a square as their number allows, the shorter side
    /// being the rows, which are neighbours in rank.
    pub fn process_grid(&self) -> (u32, u32) {
        let ranks = self.setup.ranks();
        let rows = (1..=ranks.isqrt()).rev().find(|rows| ranks.is_multiple_of(*rows)).expect("1 divides all numbers");
        (rows, ranks / rows)
    }

    /// The call that transposes are made by; how many bytes differs from one to the next.
    pub(crate) fn exchange(&self) -> Call {
        Call {
            collective: Collective::Alltoallv,
            hosts: u32::from(self.setup.lab.hosts()),
            ranks_per_host: self.setup.ranks_per_host,
            bytes: 0,
            silent_rank: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), OptionError> {
        self.setup.check()?;
        check_count("grids", MAX_GRIDS, self.grids.len() as u64)?;
        let (rows, columns) = self.process_grid();
        // Every rank has lines of every axis; the x axis has half its points after the first transform.
        let fits = |grid: u32| grid.is_multiple_of(2) && columns <= grid && rows <= grid / 2 + 1;
        if let Some(grid) = self.grids.iter().find(|grid| !GRID_SIZES.contains(*grid) || !fits(**grid)) {
            return Err(OptionError::Grid { grid: *grid, ranks: self.setup.ranks() });
        }
        check_count("fields", MAX_VARIABLES, self.variables.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(lab: &str, ranks_per_host: u32) -> FftOptions {
        let mut options = FftOptions { setup: Setup::new(lab.parse().unwrap(), 5), grids: vec![128], variables: 4 };
        options.setup.ranks_per_host = ranks_per_host;
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
        assert_eq!(bad(|o| o.grids.clear()), OptionError::Count { what: "grids", most: 16, given: 0 });
        for grid in [6, 127, 8192] {
            let mut options = good.clone();
            options.grids.push(grid);
            assert_eq!(options.check(), Err(OptionError::Grid { grid, ranks: 8 }));
        }
        assert_eq!(bad(|o| o.variables = 0), OptionError::Count { what: "fields", most: 64, given: 0 });
        assert_eq!(bad(|o| o.setup.rounds = 0), OptionError::Count { what: "rounds", most: 100_000, given: 0 });
        let mut crowded = options("8x1gbit", 64);
        crowded.grids = vec![8];
        assert_eq!(crowded.check(), Err(OptionError::Grid { grid: 8, ranks: 512 }));
    }
}
