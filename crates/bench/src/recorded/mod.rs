//! A pattern of messages, the scatter-destination all-to-all, moved in two ways by every system
//! (programs/messages.c): message by message, and by one call of all that was recorded before (GP-1, GP-2, GP-5).
//!
//! Invariants: both ways in one launch, with the same buffers and the same checks; counters of a way are read around
//! its calls alone, and the cost of reading them is subtracted.
//!
//! Never does: calling MPI's persistent requests recorded groups; they are the nearest thing that MPI has.

mod launch;
mod report;
mod table;

pub use report::{HandedOver, RecordedReport, RecordedRow};
pub use table::render as render_recorded_table;

use crate::job::System;
use crate::{BenchError, Call, Collective, OptionError, Setup, options, plot, run};
use serde::{Deserialize, Serialize};

/// One run of the program.
#[derive(Clone, Debug)]
pub struct RecordedOptions {
    /// Where and how often.
    pub setup: Setup,
    /// Bytes of the block that each rank has for each other, in the order of the report.
    pub sizes: Vec<u64>,
}

impl RecordedOptions {
    /// What is measured, in its order.
    fn sizes_and_ways(&self) -> impl Iterator<Item = (u64, Way)> {
        self.sizes.iter().flat_map(|bytes| Way::ALL.map(|way| (*bytes, way)))
    }

    /// The collective that has the same blocks.
    pub(crate) fn call(&self, bytes: u64) -> Call {
        Call {
            collective: Collective::Alltoall,
            hosts: u32::from(self.setup.lab.hosts()),
            ranks_per_host: self.setup.ranks_per_host,
            bytes,
            silent_rank: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), OptionError> {
        self.setup.check()?;
        options::check_sizes(&self.sizes)
    }
}

/// How the messages of a pattern are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Each by a nonblocking call of its own (GP-1).
    Basic,
    /// All by one call of what was recorded (GP-2); of an MPI library by starting persistent requests.
    Recorded,
}

impl Way {
    /// In the order of measuring.
    pub const ALL: [Self; 2] = [Self::Basic, Self::Recorded];

    /// As in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Recorded => "recorded",
        }
    }
}

/// Measures both ways of `ours` and of the peers of `options`, beside one another.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails: a comparison with a system missing is none. Wrong bytes are no error here; their row says so.
pub fn run_recorded(options: &RecordedOptions, ours: &[&dyn System]) -> Result<RecordedReport, BenchError> {
    options.check()?;
    let rows = run::side_by_side(
        &options.setup,
        ours,
        |workshop, system| workshop.messages_program(&system.name(), &system.toolchain()),
        run::nothing_before,
        |launching| launch::measure(options, launching),
        |system, launches| report::rows(options, system, launches),
    )?;
    let report = RecordedReport { rows };
    plot::draw(&report.figures(), options.setup.plot.as_deref())?;
    Ok(report)
}
