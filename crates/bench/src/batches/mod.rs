//! Calls of a collective in a row (programs/batches.c), in which small calls and calls among ranks of one host show
//! what they cost: the blocking form, `MPI_Bcast`, `MPI_Allreduce` and so on of an MPI library, natively and below the
//! preloaded shim, and post and wait of Outboard's C interface; or the nonblocking form with a computation in it.
//!
//! A batch is so many calls, with roots at rank 0. All ranks begin it behind a barrier on links whose token buckets are
//! full; a rank's time of a call is its time of the batch divided by the calls, and the slowest rank's is what counts.
//! Before anything is measured each system finds out how many calls of each size it makes in about 2 ms, 1,000 at most;
//! what the fastest makes is a batch for all. So a large call is timed alone.
//!
//! Between post and wait of a nonblocking call each rank computes as long as the fastest system's blocking call takes.
//! What counts is what the call adds to the time of the computation alone: the time inside the
//! library, and the processor time that its progress takes from the computation.
//!
//! Other benchmarks: the root stays as in OSU's, and the spread of batches stands in the place of means over all calls;
//! of the slowest rank are IMB's `t_max` and OSU's `Max Latency`. IMB has two barriers before the calls as well, and
//! one between them with `-sync`; OSU's programs have one behind each call and leave it out of the time. Where every
//! rank waits for every other one (barrier, allreduce, allgather, alltoall, reduce-scatter) that changes little. Of
//! broadcasts and of reductions to a root some ranks run ahead within a batch, so that its time is how fast small calls
//! follow one another, which is less than what a single one takes.
//!
//! Invariants: the same calls in the same batches for every system; the last result of every batch is checked byte by
//! byte, and each batch has bytes of its own; counters are those of the calls, without what starting a batch takes.
//!
//! Never does: giving an MPI library a progress thread for blocking calls, where it would only be in the way.

mod launch;
mod report;
mod table;

pub use report::{BatchReport, BatchRow};
pub use table::render as render_batches;

#[cfg(test)]
pub(crate) use report::tests;

use crate::batches::launch::Batch;
use crate::job::System;
use crate::{BenchError, BenchOptions, plot, run};
use std::cell::RefCell;

/// Measures calls of `ours` and of the peers of `options`, beside one another: the blocking form where the setup says
/// so ([`Setup::blocking`](crate::Setup::blocking)). Nobody is late and nothing idle, whatever `options` say.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails: a comparison with a system missing is none. Wrong bytes are no error here; their row says so.
pub fn run_batches(options: &BenchOptions, ours: &[&dyn System]) -> Result<BatchReport, BenchError> {
    let options = &BenchOptions::new(options.setup.clone(), options.collective, options.sizes.clone());
    options.check()?;
    let batches = RefCell::new(vec![Batch::default(); options.sizes.len()]);
    let rows = run::side_by_side(
        &options.setup,
        ours,
        |workshop, system| workshop.batches_program(&system.name(), &system.toolchain()),
        |launching| {
            let found = launch::batches(options, launching)?;
            batches.borrow_mut().iter_mut().zip(found).for_each(|(batch, found)| *batch = batch.of_fastest(found));
            Ok(())
        },
        |launching| launch::measure(options, launching, &batches.borrow()),
        |system, launches| report::rows(options, system, launches),
    )?;
    let report = BatchReport { rows };
    plot::draw(&report.figures(), options.setup.plot.as_deref())?;
    Ok(report)
}
