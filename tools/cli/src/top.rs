//! `outboard top`: shows what service processes do now, and which ranks they wait for (SP-9).
//!
//! Reads the statistics sockets of daemons and prints; never changes a daemon. A daemon that does not answer is named
//! and left out. The command ends when no daemon answers any more.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use outboard_service::statistics::{PlacedRank, StatisticsReport};

use crate::error::CliError;
use crate::reports::{self, milliseconds};
use crate::work;

/// Clears a terminal and goes to its top left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Statistics sockets of daemons (`outboardd --stats`); by default the sockets of all running jobs of `outboard
    /// run`
    sockets: Vec<PathBuf>,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// One line of JSON per daemon instead of tables
    #[arg(long)]
    json: bool,
    /// Seconds between two updates
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

pub(crate) fn top(args: &TopArgs) -> Result<ExitCode, CliError> {
    let sockets = if args.sockets.is_empty() { running_jobs() } else { args.sockets.clone() };
    let none = || {
        CliError::Failed(
            "no service process answers; name the sockets given to `outboardd --stats`, or start a job with `outboard run`"
                .to_owned(),
        )
    };
    let mut before = HashMap::new();
    let mut looks = 0u64;
    loop {
        let reports: Vec<(PathBuf, StatisticsReport)> =
            sockets.iter().filter_map(|socket| try_report(socket)).collect();
        match (reports.is_empty(), looks) {
            (true, 0) => return Err(none()),
            (true, _) => return Ok(ExitCode::SUCCESS),
            (false, _) => looks += 1,
        }
        let text = if args.json { lines(&reports) } else { reports.iter().map(|(_, r)| table(r, &before)).collect() };
        let clear = if args.once || args.json || !io::stdout().is_terminal() { "" } else { CLEAR };
        // A closed pipe ends the command.
        if write!(io::stdout().lock(), "{clear}{text}").and_then(|()| io::stdout().flush()).is_err() || args.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = reports
            .into_iter()
            .map(|(_, report)| (report.service_process.clone(), CounterSample::of(&report)))
            .collect();
        std::thread::sleep(Duration::from_secs(args.interval));
    }
}

/// Reports ranks whose memory the kernel made unreachable while they were attached (SP-4, GP-9).
pub(crate) fn withdrawn(report: &StatisticsReport) -> String {
    format!(
        "the kernel withdrew access to ranks' memory {} times, the next tier went on; {} calls in flight were copied by \
         their ranks",
        report.present.tiers_withdrawn, report.present.calls_restaged
    )
}

/// The statistics sockets of running jobs of `outboard run` and `outboard bench` on this machine.
pub(crate) fn running_jobs() -> Vec<PathBuf> {
    let entries = |directory: &Path| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let named = |path: &Path, prefix| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    let all = work::parents().into_iter().flat_map(|parent| entries(&parent).collect::<Vec<_>>());
    let jobs = all.map(|entry| entry.path()).filter(|path| named(path, "outboard-"));
    let mut sockets: Vec<PathBuf> = jobs
        .flat_map(|job| entries(&job).map(|e| e.path()).collect::<Vec<_>>())
        .filter(|p| named(p, "stats-"))
        .collect();
    sockets.sort();
    sockets
}

/// The report of the daemon at a socket; a daemon without an answer is named.
pub(crate) fn try_report(socket: &Path) -> Option<(PathBuf, StatisticsReport)> {
    match reports::request_report(socket) {
        Ok(report) => Some((socket.to_owned(), report)),
        Err(error) => {
            tracing::warn!(socket = %socket.display(), %error, "a service process does not answer");
            None
        }
    }
}

fn lines(reports: &[(PathBuf, StatisticsReport)]) -> String {
    reports.iter().map(|(_, report)| serde_json::to_string(report).expect("counts are plain data") + "\n").collect()
}

/// The counters that rates are computed from.
#[derive(Debug, Clone, Copy, Default)]
struct CounterSample {
    uptime_s: f64,
    calls: u64,
    received: u64,
    sent: u64,
    datagrams: u64,
    again: u64,
    cpu_s: f64,
}

impl CounterSample {
    fn of(report: &StatisticsReport) -> CounterSample {
        CounterSample {
            uptime_s: report.uptime_s,
            calls: report.counters.completed + report.counters.failed,
            received: report.kinds.iter().map(|kind| kind.bytes).sum(),
            sent: report.datapath.bytes_sent,
            datagrams: report.datapath.datagrams_received,
            again: report.counters.retransmitted_bytes,
            cpu_s: report.cpu_user_s + report.cpu_system_s,
        }
    }
}

/// The sockets and cores of a daemon's ranks (SP-1), as one line.
fn seats(report: &StatisticsReport) -> String {
    let named = |seated: &PlacedRank| match seated.rank {
        Some(rank) => format!("rank {rank}: {}", seated.place),
        None => format!("pid {}: {}", seated.pid, seated.place),
    };
    let seats: Vec<String> = report.present.seated.iter().map(named).collect();
    if seats.is_empty() { String::new() } else { format!("  {}\n", seats.join("; ")) }
}

fn table(report: &StatisticsReport, before: &HashMap<String, CounterSample>) -> String {
    let mut text = String::new();
    let now = CounterSample::of(report);
    let then = before.get(&report.service_process).copied().unwrap_or_default();
    let seconds = (now.uptime_s - then.uptime_s).max(1e-3);
    let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
    let _ = writeln!(
        text,
        "service process {} (pid {}): {} ranks ({}), {:.1} % of a core",
        report.service_process,
        report.pid,
        report.present.ranks,
        reports::tiers(report.present.memory_tiers),
        (now.cpu_s - then.cpu_s) / seconds * 100.0,
    );
    let _ = writeln!(
        text,
        "  {:.1} calls/s, {:.2} MB/s received by ranks; multicast {:.2} MB/s out, {:.0} datagrams/s in, {:.3} MB/s again",
        rate(now.calls, then.calls),
        rate(now.received, then.received) / 1e6,
        rate(now.sent, then.sent) / 1e6,
        rate(now.datagrams, then.datagrams),
        rate(now.again, then.again) / 1e6,
    );
    let _ = writeln!(
        text,
        "  since the start: {} calls completed, {} failed, {} late by {:.1} ms together; {} bytes sent again, {} frames",
        report.counters.completed,
        report.counters.failed,
        report.counters.late_arrivals,
        milliseconds(report.counters.late_ns),
        report.counters.retransmitted_bytes,
        report.counters.link_retransmissions,
    );
    let _ = writeln!(text, "  {}", reports::moved(std::iter::once(report.present.moved)));
    reports::copies(std::iter::once(report.datapath.copies)).iter().for_each(|line| text += &format!("  {line}\n"));
    let _ = writeln!(text, "  {}", reports::turns(&report.turns));
    if report.log_lines_lost > 0 {
        let _ = writeln!(text, "  {} lines of the log are lost, which nobody took in time", report.log_lines_lost);
    }
    text += &seats(report);
    if report.present.tiers_withdrawn > 0 {
        let _ = writeln!(text, "  {}", withdrawn(report));
    }
    for waiting in &report.in_flight {
        let _ = write!(
            text,
            "  group {:08x} call {}: {}, {:.1} ms old",
            waiting.group, waiting.instance, waiting.call, waiting.age_ms
        );
        for (what, ranks) in [("not called here", &waiting.not_called), ("waits for", &waiting.awaits)] {
            if !ranks.is_empty() {
                let named = |rank: &u32| match waiting.seats.get(rank) {
                    Some(seat) => format!("{rank} ({seat})"),
                    None => rank.to_string(),
                };
                let ranks: Vec<String> = ranks.iter().map(named).collect();
                let _ = write!(text, "; {what}: rank {}", ranks.join(", "));
            }
        }
        text.push('\n');
    }
    for late in &report.late {
        let _ = writeln!(text, "  {}", reports::lateness(late));
    }
    text
}
