//! Reports of daemons, read from their statistics sockets and summed up for the user of the job (SP-9).
//!
//! Never changes anything in a daemon.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use outboard_service::statistics::{CopyCounters, KindCounters, Lateness, StatisticsReport, TierBytes, TierCounts};
use outboard_service::turns::TurnLengths;

/// Longest wait for an answer. A daemon answers at once, or is stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// Late ranks that the summary names, longest total lateness first.
const NAMED_LATE: usize = 8;

/// Reads the report of the daemon at a statistics socket.
pub(crate) fn request_report(socket: &Path) -> io::Result<StatisticsReport> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(io::Error::other)
}

pub(crate) fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// `sum` over `count`, 0 where `count` is 0.
pub(crate) fn mean(sum: u64, count: u64) -> u64 {
    sum.checked_div(count).unwrap_or(0)
}

/// How and how often a rank was late.
pub(crate) fn lateness(late: &Lateness) -> String {
    format!(
        "rank {} of group {:08x}: late for {} {}, by {:.1} ms in the mean, {:.1} ms at most",
        late.rank,
        late.group,
        late.calls,
        plural(late.calls, &late.kind),
        milliseconds(mean(late.total_ns, late.calls)),
        milliseconds(late.most_ns)
    )
}

fn plural(count: u64, name: &str) -> String {
    if count == 1 { name.to_owned() } else { format!("{name}s") }
}

/// Counts of ranks by the tier through which their memory is reached. Tiers without ranks are left out.
pub(crate) fn tiers(tiers: TierCounts) -> String {
    let TierCounts { memfd, cross_memory_attach, memory_descriptor, staging } = tiers;
    let counts = [
        ("memfd", memfd),
        ("cross-memory attach", cross_memory_attach),
        ("memory descriptor", memory_descriptor),
        ("staging", staging),
    ];
    let some: Vec<String> =
        counts.iter().filter(|(_, ranks)| *ranks > 0).map(|(tier, ranks)| format!("{tier} {ranks}")).collect();
    if some.is_empty() { "none".to_owned() } else { some.join(", ") }
}

/// Bytes in a unit that does not hide small counts.
fn amount(bytes: u64) -> String {
    if bytes < 1000 { format!("{bytes} bytes") } else { format!("{:.3} MB", bytes as f64 / 1e6) }
}

/// Bytes of ranks' memory that were moved, by tier (SP-4); `None` if there are none.
pub(crate) fn moved(moved: impl Iterator<Item = TierBytes>) -> Option<String> {
    let sum = moved.fold(TierBytes::default(), |sum, one| TierBytes {
        memfd: sum.memfd + one.memfd,
        cross_memory_attach: sum.cross_memory_attach + one.cross_memory_attach,
        memory_descriptor: sum.memory_descriptor + one.memory_descriptor,
    });
    let ways = [
        ("in shared memory", sum.memfd),
        ("by cross-memory attach", sum.cross_memory_attach),
        ("by memory descriptor", sum.memory_descriptor),
    ];
    let some: Vec<String> =
        ways.iter().filter(|(_, bytes)| *bytes > 0).map(|(way, bytes)| format!("{} {way}", amount(*bytes))).collect();
    (!some.is_empty()).then(|| format!("moved to and from ranks: {}", some.join(", ")))
}

/// Copies between ranks of one host, by ranks and by service processes (SP-6); `None` if there are none.
pub(crate) fn copies(copies: impl Iterator<Item = CopyCounters>) -> Option<String> {
    let sum = copies.fold(CopyCounters::default(), |sum, one| CopyCounters {
        by_ranks: sum.by_ranks + one.by_ranks,
        bytes_by_ranks: sum.bytes_by_ranks + one.bytes_by_ranks,
        by_service: sum.by_service + one.by_service,
        bytes_by_service: sum.bytes_by_service + one.bytes_by_service,
        taken_back: sum.taken_back + one.taken_back,
        failed: sum.failed + one.failed,
    });
    let mut parts = Vec::new();
    for (who, count, bytes) in [
        ("by ranks that waited", sum.by_ranks, sum.bytes_by_ranks),
        ("by service processes", sum.by_service, sum.bytes_by_service),
    ] {
        parts.extend((count > 0).then(|| format!("{count} {} of {} {who}", plural_copies(count), amount(bytes))));
    }
    if parts.is_empty() {
        return None;
    }
    parts.extend((sum.taken_back > 0).then(|| format!("{} taken back from ranks", sum.taken_back)));
    parts.extend((sum.failed > 0).then(|| format!("{} that ranks could not do", sum.failed)));
    Some(format!("between ranks of a host: {}", parts.join(", ")))
}

fn plural_copies(count: u64) -> &'static str {
    if count == 1 { "copy" } else { "copies" }
}

/// How long the turns of a service process last.
pub(crate) fn turns(turns: &TurnLengths) -> String {
    let [median, most] = [500, 999].map(|share| turns.bound_us(share));
    format!(
        "turns: half below {median} us, 99.9 % below {most} us; the longest {}; the busiest {}",
        turns.longest, turns.busiest
    )
}

/// The summary of a job: the work of all its daemons, in a few lines.
pub(crate) fn summary(reports: &[StatisticsReport]) -> String {
    let sum = |count: fn(&StatisticsReport) -> u64| reports.iter().map(count).sum::<u64>();
    let cpu: f64 = reports.iter().map(|r| r.cpu_user_s + r.cpu_system_s).sum();
    let longest = reports.iter().map(|r| r.uptime_s).fold(0.0, f64::max);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "outboard: {} collectives completed, {} failed, {} late calls, {} bytes sent again, {cpu:.3} s of daemons' CPU",
        sum(|r| r.counters.completed),
        sum(|r| r.counters.failed),
        sum(|r| r.counters.late_arrivals),
        sum(|r| r.counters.retransmitted_bytes),
    );
    let kinds = kinds(reports);
    if !kinds.is_empty() {
        let _ = writeln!(
            text,
            "  {:<12} {:>9} {:>7} {:>12} {:>10} {:>10}",
            "collective", "calls", "failed", "MB received", "mean ms", "longest ms"
        );
    }
    for kind in kinds {
        let _ = writeln!(
            text,
            "  {:<12} {:>9} {:>7} {:>12.3} {:>10.3} {:>10.3}",
            kind.kind,
            kind.calls,
            kind.failed,
            kind.bytes as f64 / 1e6,
            milliseconds(mean(kind.total_ns, kind.calls)),
            milliseconds(kind.most_ns)
        );
    }
    let mut late: Vec<&Lateness> = reports.iter().flat_map(|r| &r.late).collect();
    late.sort_by_key(|late| std::cmp::Reverse(late.total_ns));
    late.iter().take(NAMED_LATE).for_each(|late| text += &format!("  {}\n", lateness(late)));
    if late.len() > NAMED_LATE {
        let _ = writeln!(text, "  and {} more", late.len() - NAMED_LATE);
    }
    let moved = moved(reports.iter().map(|r| r.present.moved));
    let copies = copies(reports.iter().map(|r| r.datapath.copies));
    moved.iter().chain(&copies).for_each(|line| text += &format!("  {line}\n"));
    let mut reached = TierCounts::default();
    for ranks in reports.iter().map(|r| r.present.memory_tiers_ever) {
        reached.memfd += ranks.memfd;
        reached.cross_memory_attach += ranks.cross_memory_attach;
        reached.memory_descriptor += ranks.memory_descriptor;
        reached.staging += ranks.staging;
    }
    let _ = writeln!(
        text,
        "  memory of ranks: {}; service processes: {}, up for {longest:.1} s",
        tiers(reached),
        reports.len()
    );
    text
}

/// Calls by kind, over all daemons.
fn kinds(reports: &[StatisticsReport]) -> Vec<KindCounters> {
    let mut sums: Vec<KindCounters> = Vec::new();
    for one in reports.iter().flat_map(|report| &report.kinds) {
        match sums.iter_mut().find(|sum| sum.kind == one.kind) {
            None => sums.push(one.clone()),
            Some(sum) => {
                sum.calls += one.calls;
                sum.failed += one.failed;
                sum.bytes += one.bytes;
                sum.total_ns = sum.total_ns.saturating_add(one.total_ns);
                sum.most_ns = sum.most_ns.max(one.most_ns);
            }
        }
    }
    sums.sort_by(|a, b| a.kind.cmp(&b.kind));
    sums
}

#[cfg(test)]
mod tests {
    use outboard_proto::EndpointCounters;
    use outboard_service::statistics::RankCounts;

    use super::*;

    fn report(rank: u32, most_ns: u64) -> StatisticsReport {
        let kind = KindCounters {
            kind: "allgather".to_owned(),
            calls: 2,
            failed: 0,
            bytes: 3_000_000,
            total_ns: 8_000_000,
            most_ns,
        };
        let kind_name = "allgather".to_owned();
        let tiers = TierCounts { cross_memory_attach: 1, ..TierCounts::default() };
        let moved = TierBytes { memfd: 2_500_000, ..TierBytes::default() };
        let late = Lateness { group: 7, rank, kind: kind_name, calls: 2, total_ns: 3_000_000 + most_ns, most_ns };
        StatisticsReport {
            counters: EndpointCounters { completed: 2, late_arrivals: 2, ..EndpointCounters::default() },
            cpu_user_s: 0.5,
            kinds: vec![kind],
            late: vec![late],
            present: RankCounts { memory_tiers_ever: tiers, moved, ..RankCounts::default() },
            ..StatisticsReport::default()
        }
    }

    #[test]
    fn counts_of_zero_are_left_out() {
        assert_eq!(moved(std::iter::once(TierBytes::default())), None);
        assert_eq!(copies(std::iter::once(CopyCounters::default())), None);
        let some = CopyCounters { by_ranks: 1, bytes_by_ranks: 2_000, failed: 3, ..CopyCounters::default() };
        let text = "between ranks of a host: 1 copy of 0.002 MB by ranks that waited, 3 that ranks could not do";
        assert_eq!(copies(std::iter::once(some)).as_deref(), Some(text));
        let some = TierBytes { memory_descriptor: 12, ..TierBytes::default() };
        assert_eq!(
            moved(std::iter::once(some)).as_deref(),
            Some("moved to and from ranks: 12 bytes by memory descriptor")
        );
        assert_eq!(summary(&[StatisticsReport::default()]).lines().count(), 2, "no calls, no table");
    }

    #[test]
    fn sp_9_the_summary_adds_daemons_up_and_names_late_ranks() {
        let text = summary(&[report(3, 5_000_000), report(4, 6_000_000)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("4 collectives completed, 0 failed, 4 late calls"), "{text}");
        assert!(lines[0].ends_with("1.000 s of daemons' CPU"), "{text}");
        let row: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(row, ["allgather", "4", "0", "6.000", "4.000", "6.000"]);
        let latest = "  rank 4 of group 00000007: late for 2 allgathers, by 4.5 ms in the mean, 6.0 ms at most";
        assert_eq!(lines[3], latest, "{text}");
        assert_eq!(lines[5], "  moved to and from ranks: 5.000 MB in shared memory", "{text}");
        assert_eq!(lines[6], "  memory of ranks: cross-memory attach 2; service processes: 2, up for 0.0 s", "{text}");
        assert_eq!(lines.len(), 7, "{text}");
    }
}
