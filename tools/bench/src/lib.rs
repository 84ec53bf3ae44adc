//! Measures several systems beside one another on an emulated cluster: collectives, nonblocking or blocking; a pattern
//! of messages; whole programs. Also measures a grid of collectives, sizes and clusters below the shim.
//!
//! ```text
//!  options --> installation of the peers --> one measuring program per system (one C source, one compute loop)
//!                                                   |
//!     emulated cluster (outboard-lab) <-- launch of each system in turn, `rounds` times
//!            | wire counters                        | samples, by the control line
//!            +----------------> report <------------+-- rows (JSON), table
//! ```
//!
//! Invariants:
//! - Every system is measured by the same code, on the same links, with the same compute loop, in the same run, and
//!   with every byte of every result checked.
//! - Wire bytes are counted by the queueing disciplines, both ways, and never corrected. Counters are read while the
//!   program waits for an answer, never at a guessed time.
//! - Every process that is started has a time limit, and ends with the cluster at the latest.
//!
//! Never does:
//! - Judging a system by its defaults; see [`Peer`] for the settings.
//! - Changing the machine outside the cluster and the peers' directory, except for Debian's LAMMPS (see
//!   [`BenchProgram`]).
//! - Knowing how Outboard's own daemons are started; see [`System`].

#![forbid(unsafe_code)]

mod batches;
mod calibration;
mod chart;
mod collective;
mod compile;
mod control;
mod error;
mod fft;
mod grid;
mod install;
mod job;
mod launch;
mod launcher;
mod layout;
mod limit;
mod measurement;
mod named;
mod options;
mod ours;
mod peers;
mod processor_time;
mod programs;
mod radix;
mod readme;
mod recorded;
mod report;
mod run;
mod samples;
mod setup;
mod sockets;
mod table;
mod verdicts;

pub use batches::{BatchReport, BatchRow, render_batches, run_batches};
pub use chart::chart;
pub use collective::Collective;
pub use compile::{Toolchain, build_installed_programs};
pub use error::BenchError;
pub use fft::{FftOptions, FftReport, FftRow, render_fft_table, run_fft};
pub use grid::{
    ClusterShape, GridCell, GridReport, ShimVerdict, grid_runs, render_grid, render_grid_markdown, slower_again,
};
pub use install::{ensure as ensure_peer, ensure_compiler};
pub use job::{BenchJob, LaunchError, LoggedProcess, RunningJob, ServiceCounters, ServiceStats, System};
pub use launcher::MpiFamily;
pub use layout::Layout;
pub use limit::{BenchCall, limit_ms, multicast_minimum_bytes, raw_limit_ms};
pub(crate) use options::format_size;
pub use options::{BenchOptions, LateBy, LateRankSpec, OptionError, parse_sizes};
pub use ours::{Outboard, Services, ShimChoice};
pub use peers::{InstalledPeer, Peer, open_mpi_compiler, open_mpi_launcher};
pub use processor_time::render as render_processor_time;
pub use programs::{BenchProgram, ProgramRow, ProgramsReport, render_programs, render_programs_markdown, run_program};
pub use radix::{Histogram, RadixOptions, RadixReport, RadixRow, render_radix_table, run_radix};
pub use readme::{FigureTable, TableRow, excerpt, fill_tables, read_tables, write_tables};
pub use recorded::{
    HandOverCounts, MessageMode, RecordedOptions, RecordedReport, RecordedRow, render_recorded_table, run_recorded,
};
pub use report::{
    BenchReport, CollectiveRow, LateRow, LossRow, Overlap, RepetitionCost, SampleSpread, Subject, ThreadCpu,
    Throughput, TimeLimits,
};
pub use run::run;
pub use setup::{Setup, cache_dir, default_peers_dir};
pub use sockets::Sockets;
pub use table::{render as render_table, render_by_size};
pub use verdicts::{VerdictRow, render_verdicts};
