//! `outboard top`: shows what service processes do now, and which ranks they wait for (SP-9).
//!
//! Reads the statistics sockets of daemons and prints; never changes a daemon. A daemon that does not answer is named
//! and left out. The command ends when no daemon answers any more.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::DirEntry;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
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
    /// Statistics sockets of daemons (`outboardd --stats`); by default the sockets of all running jobs and the sockets
    /// in XDG_RUNTIME_DIR/outboard
    sockets: Vec<PathBuf>,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// One line of JSON per daemon instead of tables
    #[arg(long)]
    json: bool,
    /// Also show what each daemon has done since its start, and the seats of its ranks
    #[arg(long, conflicts_with = "json")]
    details: bool,
    /// Seconds, or a duration such as 500ms, between two updates; 100ms to 1h
    #[arg(long, default_value = "1", value_parser = interval)]
    interval: Duration,
}

/// Reads the time between two updates.
fn interval(text: &str) -> Result<Duration, String> {
    let every = outboard_units::Duration::seconds(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    if allowed.contains(&every) { Ok(every) } else { Err("updates come every 100ms to 1h".to_owned()) }
}

pub(crate) fn top(args: &TopArgs) -> Result<ExitCode, CliError> {
    let sockets = if args.sockets.is_empty() { running_jobs() } else { args.sockets.clone() };
    let none = || {
        CliError::Failed(
            "no service process of a running job answers; start a job, or name the sockets given to `outboardd --stats`"
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
        let text = if args.json { lines(&reports) } else { table(&reports, &before, args.details) };
        let clear = if args.once || args.json || !io::stdout().is_terminal() { "" } else { CLEAR };
        // A closed pipe ends the command.
        if write!(io::stdout().lock(), "{clear}{text}").and_then(|()| io::stdout().flush()).is_err() || args.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = reports
            .into_iter()
            .map(|(_, report)| (report.service_process.clone(), CounterSample::of(&report)))
            .collect();
        std::thread::sleep(args.interval);
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

/// The statistics sockets of running jobs on this machine, their own daemons included, and of this user's daemons.
pub(crate) fn running_jobs() -> Vec<PathBuf> {
    let entries = |directory: &Path| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let starts = |entry: &DirEntry, with: &str| entry.file_name().to_string_lossy().starts_with(with);
    let jobs = work::parent().into_iter().flat_map(|parent| entries(&parent).collect::<Vec<_>>());
    let jobs = jobs.filter(|entry| starts(entry, "outboard-")).map(|entry| entry.path());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(|directory| Path::new(&directory).join("outboard"));
    let socket = |entry: &DirEntry| {
        starts(entry, "stats") && entry.file_type().is_ok_and(|kind| kind.is_socket()) && is_served(&entry.path())
    };
    let directories = jobs.chain(runtime);
    let mut sockets: Vec<PathBuf> = directories
        .flat_map(|directory| entries(&directory).filter(socket).map(|entry| entry.path()).collect::<Vec<_>>())
        .collect();
    sockets.sort();
    sockets
}

/// Whether a process listens at the socket. A killed daemon leaves its socket, which is no reason for a warning.
fn is_served(socket: &Path) -> bool {
    !matches!(UnixStream::connect(socket), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
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

/// One line for each daemon, the host first, and below it the calls that wait for ranks.
fn table(reports: &[(PathBuf, StatisticsReport)], before: &HashMap<String, CounterSample>, details: bool) -> String {
    let width = reports.iter().map(|(_, report)| report.host.len()).max().unwrap_or(0).max("host".len());
    let mut text = format!(
        "{:<width$} {:>8} {:>5} {:>7} {:>9} {:>9} {:>9} {:>9}  memory of ranks\n",
        "host", "pid", "ranks", "core %", "calls/s", "MB/s in", "MB/s out", "in flight"
    );
    for (_, report) in reports {
        let now = CounterSample::of(report);
        let then = before.get(&report.service_process).copied().unwrap_or_default();
        let seconds = (now.uptime_s - then.uptime_s).max(1e-3);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let _ = writeln!(
            text,
            "{:<width$} {:>8} {:>5} {:>7.1} {:>9.1} {:>9.2} {:>9.2} {:>9}  {}",
            report.host,
            report.pid,
            report.present.ranks,
            (now.cpu_s - then.cpu_s) / seconds * 100.0,
            rate(now.calls, then.calls),
            rate(now.received, then.received) / 1e6,
            rate(now.sent, then.sent) / 1e6,
            report.in_flight.len(),
            reports::tiers(report.present.memory_tiers),
        );
        if details {
            let (datagrams, again) = (rate(now.datagrams, then.datagrams), rate(now.again, then.again) / 1e6);
            let _ = writeln!(text, "  {datagrams:.0} datagrams of multicast/s in, {again:.3} MB/s sent again");
            text += &since_start(report);
        }
        text += &waits(report);
    }
    text
}

/// The work of a daemon since its start, its late ranks and the seats of its ranks.
fn since_start(report: &StatisticsReport) -> String {
    let mut text = format!(
        "  since the start: {} calls completed, {} failed, {} late by {:.1} ms together; {} bytes sent again, {} frames\n",
        report.counters.completed,
        report.counters.failed,
        report.counters.late_arrivals,
        milliseconds(report.counters.late_ns),
        report.counters.retransmitted_bytes,
        report.counters.link_retransmissions,
    );
    let moved = reports::moved(std::iter::once(report.present.moved));
    let copies = reports::copies(std::iter::once(report.datapath.copies));
    moved.iter().chain(&copies).for_each(|line| text += &format!("  {line}\n"));
    let _ = writeln!(text, "  {}", reports::turns(&report.turns));
    report.late.iter().for_each(|late| text += &format!("  {}\n", reports::lateness(late)));
    text + &seats(report)
}

/// Failures of a daemon, and its calls in flight with the ranks that they wait for.
fn waits(report: &StatisticsReport) -> String {
    let mut text = String::new();
    if report.log_lines_lost > 0 {
        let _ = writeln!(text, "  {} lines of the log are lost, because the log was not read", report.log_lines_lost);
    }
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
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(host: &str, ranks: u32) -> (PathBuf, StatisticsReport) {
        let mut report = StatisticsReport { host: host.to_owned(), pid: 7, ..StatisticsReport::default() };
        report.present.ranks = ranks;
        (PathBuf::from(host), report)
    }

    #[test]
    fn each_daemon_has_one_line_that_begins_with_its_host() {
        let text = table(&[report("h1", 3), report("a-long-name", 4)], &HashMap::new(), false);
        let firsts: Vec<_> = text.lines().map(|line| line.split_whitespace().take(3).collect::<Vec<_>>()).collect();
        assert_eq!(firsts, [["host", "pid", "ranks"], ["h1", "7", "3"], ["a-long-name", "7", "4"]], "{text}");
        let detailed = table(&[report("h1", 3)], &HashMap::new(), true);
        assert!(detailed.contains("  since the start: 0 calls completed"), "{detailed}");
    }
}
