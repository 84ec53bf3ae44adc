//! A parallel radix sort below every MPI library and below the preloaded shim (CD-8, programs/radix.c): each pass moves
//! keys locally while the histogram of all ranks comes by `MPI_Iallgather`, then puts them in their places by one-sided
//! calls.
//!
//! Invariants: one C source and the same keys for every system; every result is compared with what qsort makes of all
//! keys; in what is counted, nothing but histograms can be offloaded, so a row says how many of them were.
//!
//! Never does: choosing who exchanges a histogram; shim and daemons do.

mod launch;
mod report;
mod table;

pub use report::{Histogram, RadixReport, RadixRow};
pub use table::render as render_radix_table;

use crate::job::System;
use crate::options::check_count;
use crate::{BenchError, Call, Collective, OptionError, Setup, plot, run};
use std::ops::RangeInclusive;

const SOURCES: [&str; 6] = ["radix.c", "control.o", "options.o", "repetitions.o", "transport_mpi.c", "-lm"];
/// The program has room for as many.
const MAX_SIZES: u64 = 64;
/// So many of each rank can be asked for.
const MAX_KEYS: u64 = 1 << 20;
const BUCKETS: RangeInclusive<u32> = 2..=1 << 16;
const KEY_BITS: u32 = 32;
/// A key, and its count in a histogram.
const WORD_BYTES: u64 = 4;

/// One run of the radix sort.
#[derive(Clone, Debug)]
pub struct RadixOptions {
    /// Where and how often; a repetition is a sort with overlap and one without.
    pub setup: Setup,
    /// Buckets of a pass, the base of its digits, in the order of the report: 2 to 65,536.
    pub buckets: Vec<u32>,
    /// Keys of each rank, in the order of the report.
    pub keys: Vec<u32>,
}

/// What is measured as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sort {
    pub(crate) buckets: u32,
    pub(crate) keys: u32,
}

impl Sort {
    /// Digits of a key.
    fn passes(self) -> u32 {
        let powers = std::iter::successors(Some(1u64), |power| Some(power * u64::from(self.buckets)));
        powers.take_while(|power| power >> KEY_BITS == 0).count() as u32
    }

    /// The histogram's share of one rank.
    fn histogram_bytes(self) -> u64 {
        WORD_BYTES * u64::from(self.buckets)
    }
}

impl RadixOptions {
    /// Each number of keys with each number of buckets.
    fn sorts(&self) -> impl Iterator<Item = Sort> {
        self.keys.iter().flat_map(|keys| self.buckets.iter().map(|buckets| Sort { buckets: *buckets, keys: *keys }))
    }

    /// The exchange of a histogram.
    fn exchange(&self, sort: Sort) -> Call {
        Call {
            collective: Collective::Allgather,
            hosts: u32::from(self.setup.lab.hosts()),
            ranks_per_host: self.setup.ranks_per_host,
            bytes: sort.histogram_bytes(),
            silent_rank: false,
        }
    }

    fn check(&self) -> Result<(), OptionError> {
        self.setup.check()?;
        check_count("sorts", MAX_SIZES, self.sorts().count() as u64)?;
        if let Some(buckets) = self.buckets.iter().find(|buckets| !BUCKETS.contains(*buckets)) {
            return Err(OptionError::Buckets { buckets: *buckets });
        }
        self.keys.iter().try_for_each(|keys| check_count("keys of a rank", MAX_KEYS, (*keys).into()))
    }
}

/// Measures the sort below `ours` and the peers of `options`, beside one another.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails: a comparison with a system missing is none. Wrong results are no error here; their row says so.
pub fn run_radix(options: &RadixOptions, ours: &[&dyn System]) -> Result<RadixReport, BenchError> {
    options.check()?;
    let setup = Setup { one_sided: true, ..options.setup.clone() };
    let rows = run::side_by_side(
        &setup,
        ours,
        |workshop, system| workshop.mpi_program("radix", &SOURCES, &system.name(), &system.toolchain()),
        run::nothing_before,
        |launching| launch::measure(options, launching),
        |system, launches| report::rows(options, system, launches),
    )?;
    let report = RadixReport { rows };
    plot::draw(&report.figures(), options.setup.plot.as_deref())?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CD-8: a digit of radix r has one of r values.
    #[test]
    fn cd_8_a_pass_sorts_by_one_digit() {
        let passes = |buckets| Sort { buckets, keys: 1 }.passes();
        assert_eq!([2, 4, 8, 10, 16, 256, 65_535, 65_536].map(passes), [32, 16, 11, 10, 8, 4, 3, 2]);
    }

    #[test]
    fn impossible_sorts_are_refused() {
        let setup = Setup::new("4x1gbit".parse().unwrap(), 5);
        let good = RadixOptions { setup, buckets: vec![2, 65_536], keys: vec![1, 65_536] };
        assert_eq!(good.check(), Ok(()));
        let bad = |change: fn(&mut RadixOptions)| {
            let mut options = good.clone();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert_eq!(bad(|o| o.keys.clear()), OptionError::Count { what: "sorts", most: 64, given: 0 });
        assert_eq!(bad(|o| o.buckets[1] = 1), OptionError::Buckets { buckets: 1 });
        assert_eq!(bad(|o| o.keys[0] = 0), OptionError::Count { what: "keys of a rank", most: MAX_KEYS, given: 0 });
    }
}
