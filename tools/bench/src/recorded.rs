//! A pattern of messages, the scatter-destination all-to-all (programs/messages.c). Every system moves it in two ways:
//! message by message, and by one call of a recording (GP-1, GP-2, GP-5).
//!
//! Invariants: both ways run in one launch, with the same buffers and the same checks. The counters of a way are read
//! around its calls alone, and the cost of reading them is subtracted.
//!
//! Never does: calling MPI's persistent requests recorded groups; they are merely the nearest equivalent in MPI.

use crate::job::System;
use crate::launch::{self, ProgramLaunch};
use crate::limit::raw_limit_ms;
use crate::report::{BenchReport, RepetitionCost, Subject, ThreadCpu};
use crate::samples::{self, ItemSamples, LaunchSamples};
use crate::table::{Column, LEFT_ALIGNED, lay_out, ranks_cell, system_cell};
use crate::{BenchCall, BenchError, Collective, OptionError, Setup, format_size, options, run};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One run of the program.
#[derive(Clone, Debug)]
pub struct RecordedOptions {
    /// Cluster, ranks, systems and repetitions.
    pub setup: Setup,
    /// Bytes of the block that each rank has for each other rank, in the order of the report.
    pub sizes: Vec<u64>,
}

impl RecordedOptions {
    /// Every size in every way, in the order of measuring.
    fn sizes_and_ways(&self) -> impl Iterator<Item = (u64, MessageMode)> {
        self.sizes.iter().flat_map(|bytes| MessageMode::ALL.map(|way| (*bytes, way)))
    }

    /// The collective that moves the same blocks.
    fn call(&self, bytes: u64) -> BenchCall {
        self.setup.call(Collective::Alltoall, bytes)
    }

    fn check(&self) -> Result<(), OptionError> {
        self.setup.check()?;
        options::check_sizes(&self.sizes)
    }
}

/// How a program hands over the messages of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageMode {
    /// Each message by a nonblocking call of its own (GP-1).
    Basic,
    /// All messages by one call of a recording (GP-2); with an MPI library by starting persistent requests.
    Recorded,
}

impl MessageMode {
    /// All ways, in the order of measuring.
    pub const ALL: [Self; 2] = [Self::Basic, Self::Recorded];

    /// Name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Recorded => "recorded",
        }
    }
}

/// The algorithm of the pattern.
const ALGORITHM: &str = "scatter-destination";

/// Everything that one run found.
pub type RecordedReport = BenchReport<RecordedRow>;

/// One system at one size in one way.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedRow {
    /// The system, and its cluster and ranks.
    #[serde(flatten)]
    pub subject: Subject,
    /// How messages are handed over.
    pub way: MessageMode,
    /// Bytes of the block that each rank has for each other rank.
    pub block_bytes: u64,
    /// Cost of a call of all messages. Times are of calls that all ranks began together, other figures of calls in a
    /// row.
    #[serde(flatten)]
    pub cost: RepetitionCost,
    /// Processor time of a rank's own thread per call. The thread waits for the end without computing.
    pub thread_cpu: ThreadCpu,
    /// Entries and frames of a call; `None` where there are no service processes.
    pub handed_over: Option<HandOverCounts>,
}

/// Entries and frames of one call of all messages, on all ranks.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HandOverCounts {
    /// Entries of each rank for its service process (GP-5).
    pub entries_per_rank: f64,
    /// Frames between service processes.
    pub frames: f64,
    /// Frames without payload, also counted in `frames`.
    pub control_frames: f64,
    /// Entries of all ranks and frames without payload.
    pub control_messages: f64,
}

/// Measures both ways of `ours` and of the peers of `options`, beside one another.
///
/// The calling program's `main` must begin with [`outboard_lab::holder_main_if_requested`].
///
/// # Errors
/// If anything fails, because a comparison needs every system. Wrong bytes are no error here: the row reports them.
pub fn run_recorded(options: &RecordedOptions, ours: &[&dyn System]) -> Result<RecordedReport, BenchError> {
    options.check()?;
    run::side_by_side(
        &options.setup,
        ours,
        |workshop, system| workshop.messages(system),
        run::nothing_before,
        |launching| measure(options, launching),
        |system, launches| {
            let measured = options.sizes_and_ways().map(|(bytes, way)| ((bytes, way), options.call(bytes)));
            samples::rows((&options.setup, system), launches, measured, |subject, measured, found| {
                row(options, Subject { algorithm: ALGORITHM.to_owned(), ..subject }, measured, found)
            })
        },
    )
}

/// Fields that this program adds to its line for one size and way. The line's `cpu_s` is of the counted phase.
#[derive(Clone, Debug, Deserialize)]
struct WayLine {
    way: MessageMode,
    bytes: u64,
    /// Processor time of each rank's own thread to post, in every repetition.
    post_us: Vec<f64>,
    /// Processor time of each rank's own thread to wait, in the order of `post_us`.
    ending_us: Vec<f64>,
}

/// Launches the program and measures both ways of all sizes.
fn measure(options: &RecordedOptions, launching: &ProgramLaunch<'_>) -> Result<LaunchSamples<WayLine>, BenchError> {
    let key = |line: &WayLine| (line.bytes, line.way);
    let sizes = options.sizes.iter().map(u64::to_string);
    launching.measure(sizes, Vec::new(), time_limit(options), options.sizes_and_ways(), key)
}

fn time_limit(options: &RecordedOptions) -> Duration {
    const EVERY_CALL_S: f64 = 0.2;
    let links_s = |bytes: &u64| raw_limit_ms(&options.call(*bytes), &options.setup.lab.link()) / 1e3;
    let own_s = |bytes: &u64| EVERY_CALL_S + launch::checking_s(options.setup.ranks(), *bytes);
    let (links_s, own_s): (f64, f64) = (options.sizes.iter().map(links_s).sum(), options.sizes.iter().map(own_s).sum());
    let calls = 2.0 * f64::from(options.setup.repetitions + 2) * MessageMode::ALL.len() as f64;
    launch::time_limit(calls * links_s, calls * own_s)
}

fn row(
    options: &RecordedOptions,
    subject: Subject,
    (block_bytes, way): (u64, MessageMode),
    found: &ItemSamples<'_, WayLine>,
) -> RecordedRow {
    let (calls, ranks) = (f64::from(options.setup.all_repetitions()), f64::from(options.setup.ranks()));
    let each = |count: u64| count as f64 / calls;
    let handed_over = found.services().map(|counters| HandOverCounts {
        entries_per_rank: each(counters.entries) / ranks,
        frames: each(counters.frames),
        control_frames: each(counters.control_frames),
        control_messages: each(counters.entries + counters.control_frames),
    });
    RecordedRow {
        subject,
        way,
        block_bytes,
        cost: found.cost(options.setup.all_repetitions()),
        thread_cpu: ThreadCpu::of(&found.all(|line| &line.post_us), &found.all(|line| &line.ending_us)),
        handed_over,
    }
}

/// A figure of a row: its heading, its text, and its value for ratios.
type FigureColumn = (&'static str, fn(&RecordedRow) -> String, fn(&RecordedRow) -> Option<f64>);

const NAMES: [Column<RecordedRow>; 4] = [
    ("system", |row| system_cell(&row.subject, &row.cost)),
    ("way", |row| row.way.name().to_owned()),
    ("ranks", |row| ranks_cell(&row.subject)),
    ("block", |row| format_size(row.block_bytes)),
];
const FIGURES: [FigureColumn; 7] = [
    ("time ms [min..max]", |row| format!("{:.3}", row.cost.time_ms), |row| Some(row.cost.time_ms.median)),
    (
        "entries/rank",
        |row| handed(row, |of| format!("{:.1}", of.entries_per_rank)),
        |row| Some(row.handed_over?.entries_per_rank),
    ),
    (
        "control msgs",
        |row| handed(row, |of| format!("{:.1}", of.control_messages)),
        |row| Some(row.handed_over?.control_messages),
    ),
    (
        "between services",
        |row| handed(row, |of| format!("{:.1} of {:.1} frames", of.control_frames, of.frames)),
        |row| Some(row.handed_over?.control_frames),
    ),
    (
        "services cpu us",
        |row| row.cost.service_cpu_s.map_or_else(|| "-".to_owned(), |seconds| format!("{:.0}", seconds * 1e6)),
        |row| row.cost.service_cpu_s,
    ),
    ("ranks cpu us", |row| format!("{:.0}", row.cost.host_cpu_s * 1e6), |row| Some(row.cost.host_cpu_s)),
    ("wire MB", |row| format!("{:.3}", row.cost.wire_bytes / 1e6), |row| Some(row.cost.wire_bytes)),
];

fn handed(row: &RecordedRow, shown: impl Fn(&HandOverCounts) -> String) -> String {
    row.handed_over.as_ref().map_or_else(|| "-".to_owned(), shown)
}

/// Renders rows as lines of text, grouped by size. Below the two ways of a system stands the ratio of recorded to
/// basic. All figures but the entries are of a call on all ranks together. Control messages are the ranks' entries and
/// the frames without payload between service processes.
///
/// A `!` behind the system's name says that it delivered wrong bytes.
pub fn render_recorded_table(report: &RecordedReport) -> String {
    let mut sorted: Vec<&RecordedRow> = report.rows.iter().collect();
    // A stable sort: systems keep the order in which they were measured.
    sorted.sort_by_key(|row| row.block_bytes);
    let headings = NAMES.iter().map(|(heading, _)| *heading).chain(FIGURES.iter().map(|(heading, ..)| *heading));
    let mut lines = vec![headings.map(str::to_owned).collect::<Vec<_>>()];
    for row in &sorted {
        let names = NAMES.iter().map(|(_, cell)| cell(row));
        lines.push(names.chain(FIGURES.iter().map(|(_, shown, _)| shown(row))).collect());
        let same = |basic: &&&RecordedRow| {
            (basic.way, basic.block_bytes) == (MessageMode::Basic, row.block_bytes)
                && basic.subject.system == row.subject.system
        };
        if row.way == MessageMode::Recorded
            && let Some(basic) = sorted.iter().find(same)
        {
            lines.push(ratios(row, basic));
        }
    }
    lay_out(&lines, LEFT_ALIGNED)
}

/// The ratios of recorded calls to single messages.
fn ratios(recorded: &RecordedRow, basic: &RecordedRow) -> Vec<String> {
    let ratio = |(.., figure): &FigureColumn| match (figure(recorded), figure(basic)) {
        (Some(recorded), Some(basic)) if basic > 0.0 => format!("x {:.2}", recorded / basic),
        _ => "-".to_owned(),
    };
    let names = ["", "recorded/basic", "", ""].map(str::to_owned);
    names.into_iter().chain(FIGURES.iter().map(ratio)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{cost, subject};

    fn row(system: &str, block_bytes: u64, way: MessageMode, ms: f64) -> RecordedRow {
        let ours = system == "outboard";
        let handed_over = HandOverCounts {
            entries_per_rank: ms,
            frames: 40.0 * ms,
            control_frames: 30.0 * ms,
            control_messages: 60.0,
        };
        RecordedRow {
            subject: subject(system),
            way,
            block_bytes,
            cost: cost(ms),
            thread_cpu: ThreadCpu::of(&[ms], &[ms]),
            handed_over: ours.then_some(handed_over),
        }
    }

    #[test]
    fn ways_stand_beside_each_other_with_their_ratio() {
        let mut wrong = row("mpich", 4096, MessageMode::Recorded, 3.0);
        wrong.cost.verified = false;
        let rows = vec![
            row("outboard", 65_536, MessageMode::Basic, 9.0),
            row("outboard", 4096, MessageMode::Basic, 4.0),
            row("outboard", 4096, MessageMode::Recorded, 1.0),
            row("mpich", 4096, MessageMode::Basic, 2.0),
            wrong,
        ];
        let text = render_recorded_table(&RecordedReport { rows });
        let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..2], ["outboard", "basic"]);
        assert_eq!(lines[1][..2], ["outboard", "recorded"]);
        assert_eq!(lines[2][..7], ["recorded/basic", "x", "0.25", "x", "0.25", "x", "1.00"]);
        assert_eq!(lines[4][..2], ["mpich!", "recorded"]);
        assert_eq!(lines[5][..4], ["recorded/basic", "x", "1.50", "-"], "{text}");
        assert_eq!(lines[6][..2], ["outboard", "basic"]);
        assert_eq!(lines.len(), 7, "no ratio without both ways");
    }
}
