//! Counters of the daemon, sent as one line of JSON per connection to the statistics socket.
//!
//! The counters contain counts only, never payload. Sending never blocks: a reader that cannot accept its line at once
//! does not get it.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outboard_fabric::limited;
use outboard_plan::Rank;
use outboard_proto::{CallKind, EndpointCounters, GroupHandle, InFlightInstance, SpId};
use outboard_shm::memory::Tier;
use serde::{Deserialize, Serialize};

use crate::telemetry::turns::TurnLengths;
use crate::topology::CpuBinding;

/// Lines of this process's log that were dropped because they could not be written in time. The log writer counts the
/// lines.
pub static LOST_LINES: AtomicU64 = AtomicU64::new(0);

/// Most pairs of rank and kind whose lateness is kept; further pairs appear in the overall counters only.
const MOST_LATE: usize = 4096;
/// Most ranks whose lateness is reported, latest ranks first. The limit makes a line always fit the socket's buffer.
const REPORTED_LATE: usize = 256;

/// Most collectives in flight that are reported, oldest first, and most ranks named for each collective.
const REPORTED_IN_FLIGHT: usize = 64;
const REPORTED_RANKS: usize = 64;
/// Most ranks per collective whose seats are reported.
const REPORTED_PLACES: usize = 8;
/// Most attached ranks whose places are reported.
const REPORTED_SEATS: usize = 128;

/// A collective in flight, and the ranks that it waits for (SP-9).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectiveInFlight {
    pub group: u32,
    /// Number of the call in the group.
    pub instance: u64,
    /// The call's signature as a sentence.
    pub call: String,
    /// Time since this host first knew of the call.
    pub age_ms: f64,
    /// Ranks of this host that have not called.
    pub not_called: Vec<u32>,
    /// Ranks of other hosts whose readiness or bytes this host waits for.
    pub awaits: Vec<u32>,
    /// Seats of the first of the ranks that have not called or are awaited (SP-1): host, socket, core.
    pub seats: BTreeMap<u32, String>,
}

impl CollectiveInFlight {
    fn new(flight: &InFlightInstance, seat: &dyn Fn(GroupHandle, Rank) -> Option<String>) -> Self {
        let named = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0).take(REPORTED_RANKS).collect::<Vec<_>>();
        let (not_called, awaits) = (named(&flight.absent), named(&flight.awaits));
        let seat = |rank: &u32| Some((*rank, seat(flight.group, Rank(*rank))?));
        CollectiveInFlight {
            group: flight.group.0,
            instance: flight.instance.0,
            call: flight.signature.to_string(),
            age_ms: flight.age_ns as f64 / 1e6,
            seats: not_called.iter().chain(&awaits).take(REPORTED_PLACES).filter_map(seat).collect(),
            not_called,
            awaits,
        }
    }
}

/// Place of an attached rank now (SP-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedRank {
    pub pid: u32,
    /// The rank's first group, usually the group of all ranks.
    pub group: Option<u32>,
    pub rank: Option<u32>,
    /// The binding of the rank's process.
    pub place: CpuBinding,
}

/// Lateness of one rank of a group for one kind of collective (SP-9).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Lateness {
    pub group: u32,
    pub rank: u32,
    pub kind: String,
    pub calls: u64,
    /// Sum of the rank's lateness, nanoseconds.
    pub total_ns: u64,
    /// Greatest lateness of the rank, nanoseconds.
    pub most_ns: u64,
}

/// Calls of one kind that have ended on local ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KindCounters {
    pub kind: String,
    /// Calls that ended, with or without an error.
    pub calls: u64,
    pub failed: u64,
    /// Sum of the calls' receive buffers, bytes.
    pub bytes: u64,
    /// Sum of the times from the start of a call to its end, nanoseconds.
    pub total_ns: u64,
    /// Longest time from the start of a call to its end, nanoseconds.
    pub most_ns: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct EndedRankCall {
    pub(crate) place: (GroupHandle, Rank),
    pub(crate) kind: CallKind,
    /// Bytes of the receive buffer.
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
}

/// Attached ranks by tier of memory access (SP-4, GP-9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierCounts {
    /// All access goes through memory that is shared with the service process.
    pub memfd: u32,
    pub cross_memory_attach: u32,
    /// Access by a descriptor of the rank's memory, which the rank has passed.
    pub memory_descriptor: u32,
    /// Access by copies through memory of the service process, with the rank's help.
    pub staging: u32,
}

impl TierCounts {
    pub(crate) fn add(&mut self, tier: Tier) {
        match tier {
            Tier::Memfd => self.memfd += 1,
            Tier::CrossMemory => self.cross_memory_attach += 1,
            Tier::MemoryDescriptor => self.memory_descriptor += 1,
            Tier::Staging => self.staging += 1,
        }
    }
}

/// Bytes moved to and from ranks' memory, by tier (SP-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierBytes {
    /// Bytes in memory that is shared with the service process: allocations through it, the shared heap, and staging.
    pub memfd: u64,
    pub cross_memory_attach: u64,
    /// Bytes moved by a descriptor of the rank's memory, which the rank has passed.
    pub memory_descriptor: u64,
}

impl TierBytes {
    pub(crate) fn add(&mut self, moved: [(Tier, u64); 3]) {
        for (tier, bytes) in moved {
            match tier {
                Tier::Memfd => self.memfd += bytes,
                Tier::CrossMemory => self.cross_memory_attach += bytes,
                Tier::MemoryDescriptor => self.memory_descriptor += bytes,
                Tier::Staging => {}
            }
        }
    }
}

/// Adaptive polling of the conductor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PollCounters {
    /// Turns that found an event and did not follow a sleep.
    pub found: u64,
    /// Periods of polling that ended without an event.
    pub in_vain: u64,
    /// Periods of polling that ended because other threads had kept the processor for too long.
    pub given_up: u64,
}

/// Copies between ranks of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CopyCounters {
    /// Copies that the receiving ranks did themselves while they waited (SP-6).
    pub by_ranks: u64,
    pub bytes_by_ranks: u64,
    pub by_service: u64,
    pub bytes_by_service: u64,
    /// Copies whose offer was withdrawn, because the rank did not begin the copy in time.
    pub taken_back: u64,
    /// Copies that a rank could not do.
    pub failed: u64,
}

/// Calls of local ranks that were handed to the engine beside the service process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OffloadCounters {
    pub calls: u64,
    /// Number of wake-ups of the conductor to hand lists over, or while a list was in flight.
    pub wakeups: u64,
}

/// Counters of the datapath threads and the conductor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DatapathStatistics {
    pub datagrams_sent: u64,
    /// Bytes of the sent datagrams, with our header, without UDP and IP.
    pub bytes_sent: u64,
    pub datagrams_received: u64,
    /// Bursts that socket buffers had no room for.
    pub overflowed: u64,
    /// Multicast sends that the kernel refused.
    pub send_failures: u64,
    /// Number of times that the kernel refused to receive.
    pub receive_failures: u64,
    /// Receiving threads that have ended by a panic.
    pub receivers_gone: u64,
    pub frames_sent: u64,
    pub frames_received: u64,
    /// Unicast bytes that were received in place, without a copy in this process.
    pub bytes_landed: u64,
    pub sleeps: u64,
    pub looks: PollCounters,
    /// Submissions or messages of ranks that were refused.
    pub refused: u64,
    /// Refused connections: from unauthenticated peers, and from service processes that broke the protocol.
    pub connections_refused: u64,
    pub copies: CopyCounters,
    /// Calls that the engine beside the service process carried out.
    pub offloaded: OffloadCounters,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StatisticsReport {
    /// Name of the host on which the service process runs.
    pub host: String,
    pub pid: u32,
    pub service_process: String,
    pub uptime_s: f64,
    /// Processor seconds in user mode, all threads.
    pub cpu_user_s: f64,
    /// Processor seconds in the kernel, all threads.
    pub cpu_system_s: f64,
    /// Lines of the log that were dropped because they could not be written in time.
    pub log_lines_lost: u64,
    #[serde(flatten)]
    pub counters: EndpointCounters,
    /// Number of other service processes that are known: the peers of the groups, and the most recent peers without a
    /// group.
    pub peers: u64,
    #[serde(flatten)]
    pub present: RankCounts,
    pub kinds: Vec<KindCounters>,
    pub datapath: DatapathStatistics,
    pub turns: TurnLengths,
    pub late: Vec<Lateness>,
    pub in_flight: Vec<CollectiveInFlight>,
}

/// The attached ranks, their calls and their memory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankCounts {
    pub ranks: u32,
    /// Memberships of these ranks in groups.
    pub memberships: u32,
    pub calls: u32,
    /// Entries that ranks have put into their rings since the start of the service process: one for each call (GP-5).
    pub submissions: u64,
    /// Attached ranks by their current tier.
    pub memory_tiers: TierCounts,
    /// Number of times that the kernel has withdrawn a tier of a rank's memory, so that the next tier took over.
    pub tiers_withdrawn: u64,
    /// Number of calls in flight whose buffers their ranks have copied.
    pub calls_restaged: u64,
    /// Memory ranges that ranks have registered (GP-4).
    pub registered_ranges: u64,
    /// Number of registered ranges that are mapped.
    pub mapped_ranges: u64,
    /// Ranks that have attached since the start, by their last tier.
    pub memory_tiers_ever: TierCounts,
    /// Bytes that were moved to and from the memory of these ranks, by tier.
    pub moved: TierBytes,
    /// Places of the first attached ranks.
    pub seated: Vec<PlacedRank>,
}

/// The daemon's own counters.
#[derive(Debug)]
pub(crate) struct Statistics {
    started: Instant,
    pub(crate) datapath: DatapathStatistics,
    pub(crate) turns: TurnLengths,
    late: HashMap<(GroupHandle, Rank, &'static str), Lateness>,
    kinds: BTreeMap<&'static str, KindCounters>,
}

impl Statistics {
    pub(crate) fn new() -> Self {
        Statistics {
            started: Instant::now(),
            datapath: DatapathStatistics::default(),
            turns: TurnLengths::default(),
            late: HashMap::new(),
            kinds: BTreeMap::new(),
        }
    }

    pub(crate) fn ended(&mut self, ended: &EndedRankCall, failed: bool) {
        let took = u64::try_from(ended.took.as_nanos()).unwrap_or(u64::MAX);
        let name = ended.kind.name();
        let entry =
            self.kinds.entry(name).or_insert_with(|| KindCounters { kind: name.to_owned(), ..KindCounters::default() });
        entry.calls += 1;
        entry.failed += u64::from(failed);
        entry.bytes = entry.bytes.saturating_add(ended.bytes);
        entry.total_ns = entry.total_ns.saturating_add(took);
        entry.most_ns = entry.most_ns.max(took);
    }

    /// Counts a late call of a rank (SP-9).
    pub(crate) fn late(&mut self, group: GroupHandle, rank: Rank, kind: CallKind, by_ns: u64) {
        let key = (group, rank, kind.name());
        if self.late.len() >= MOST_LATE && !self.late.contains_key(&key) {
            return;
        }
        let new = || Lateness { group: group.0, rank: rank.0, kind: kind.name().to_owned(), ..Lateness::default() };
        let entry = self.late.entry(key).or_insert_with(new);
        entry.calls += 1;
        entry.total_ns = entry.total_ns.saturating_add(by_ns);
        entry.most_ns = entry.most_ns.max(by_ns);
    }

    pub(crate) fn report(
        &self,
        sp: SpId,
        peers: usize,
        counters: &EndpointCounters,
        mut present: RankCounts,
        in_flight: impl Iterator<Item = InFlightInstance>,
        seat: &dyn Fn(GroupHandle, Rank) -> Option<String>,
    ) -> StatisticsReport {
        let mut in_flight: Vec<InFlightInstance> = in_flight.collect();
        in_flight.sort_unstable_by_key(|flight| (std::cmp::Reverse(flight.age_ns), flight.group, flight.instance));
        in_flight.truncate(REPORTED_IN_FLIGHT);
        present.seated.truncate(REPORTED_SEATS);
        let (user, system) = cpu_time();
        let mut late: Vec<&Lateness> = self.late.values().collect();
        late.sort_unstable_by_key(|entry| (std::cmp::Reverse(entry.total_ns), entry.group, entry.rank));
        late.truncate(REPORTED_LATE);
        StatisticsReport {
            host: crate::topology::node().to_string(),
            pid: std::process::id(),
            service_process: format!("{:016x}", sp.0),
            uptime_s: self.started.elapsed().as_secs_f64(),
            cpu_user_s: user.as_secs_f64(),
            cpu_system_s: system.as_secs_f64(),
            log_lines_lost: LOST_LINES.load(Ordering::Relaxed),
            counters: *counters,
            peers: peers as u64,
            present,
            kinds: self.kinds.values().cloned().collect(),
            datapath: self.datapath,
            turns: self.turns,
            late: late.into_iter().cloned().collect(),
            in_flight: in_flight.iter().map(|flight| CollectiveInFlight::new(flight, seat)).collect(),
        }
    }
}

pub(crate) fn send_report(connection: &OwnedFd, report: &StatisticsReport) {
    let mut line = match serde_json::to_vec(report) {
        Ok(line) => line,
        Err(error) => {
            limited!(warn, %error, "cannot write the statistics as JSON");
            return;
        }
    };
    line.push(b'\n');
    match rustix::io::write(connection, &line) {
        Ok(written) if written == line.len() => {}
        other => limited!(warn, ?other, bytes = line.len(), "the reader of the statistics did not take them"),
    }
}

/// Processor time of all threads of this process: first in user mode, then in the kernel.
fn cpu_time() -> (Duration, Duration) {
    // SAFETY: `getrusage` fills the structure that is passed; any bits are valid in this structure.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let duration = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    (duration(usage.ru_utime), duration(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(statistics: &Statistics) -> StatisticsReport {
        let present = RankCounts { ranks: 2, ..RankCounts::default() };
        statistics.report(SpId(1), 0, &EndpointCounters::default(), present, std::iter::empty(), &|_, _| None)
    }

    #[test]
    fn sp_9_lateness_is_kept_by_rank_and_kind_within_bounds() {
        let (mut statistics, broadcast) = (Statistics::new(), CallKind::Broadcast { root: Rank(0) });
        statistics.late(GroupHandle(1), Rank(7), broadcast, 50);
        for rank in 0..=MOST_LATE as u32 {
            statistics.late(GroupHandle(1), Rank(rank), CallKind::Allgather, 5);
        }
        statistics.late(GroupHandle(1), Rank(7), CallKind::Allgather, 100);
        assert_eq!(statistics.late.len(), MOST_LATE);
        let report = report(&statistics);
        assert_eq!(report.late.len(), REPORTED_LATE);
        let late = |kind: &str, calls, total_ns, most_ns| Lateness {
            group: 1,
            rank: 7,
            kind: kind.to_owned(),
            calls,
            total_ns,
            most_ns,
        };
        assert_eq!(report.late[..2], [late("allgather", 2, 105, 100), late("broadcast", 1, 50, 50)]);
    }

    #[test]
    fn calls_are_summed_by_kind() {
        let mut statistics = Statistics::new();
        let ended = |milliseconds| EndedRankCall {
            place: (GroupHandle(1), Rank(0)),
            kind: CallKind::Allgather,
            bytes: 1000,
            took: Duration::from_millis(milliseconds),
        };
        statistics.ended(&ended(3), false);
        statistics.ended(&ended(1), true);
        let report = report(&statistics);
        let kind = "allgather".to_owned();
        let sum = KindCounters { kind, calls: 2, failed: 1, bytes: 2000, total_ns: 4_000_000, most_ns: 3_000_000 };
        assert_eq!(report.kinds, [sum]);
    }

    #[test]
    fn a_report_crosses_the_socket_as_one_line_of_json() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        send_report(&OwnedFd::from(ours), &report(&Statistics::new()));
        let text = std::io::read_to_string(theirs).expect("text");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["ranks"], 2);
        assert!(text.ends_with('\n'));
    }
}
