//! The rows of a run, as the JSON file holds them.

use crate::job::{ServiceCounters, System};
use crate::{BenchCall, BenchError, Setup, limit};
use outboard_lab::{LinkLimits, PacketLoss};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::Path;

/// If a smaller share of the calls was offloaded, the row shows another library. The value is not 1, because the first
/// and the last call of a phase may be counted a moment after the counters were read.
const OFFLOADED_FROM: f64 = 0.5;

/// Whether so few calls were offloaded that the row shows another library.
pub(crate) fn passed_through(offloaded: f64, calls: u32) -> bool {
    offloaded < OFFLOADED_FROM * f64::from(calls)
}

/// Everything that one run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport<R = CollectiveRow> {
    /// One row for each system and size, grid or way; systems in the order in which they were measured.
    pub rows: Vec<R>,
}

impl<R: Serialize> BenchReport<R> {
    /// Whether `holds` is true for every row.
    pub fn all(&self, holds: impl Fn(&R) -> bool) -> bool {
        self.rows.iter().all(holds)
    }

    /// Writes the report as JSON: an object with `rows`.
    pub fn write_json(&self, path: &Path) -> Result<(), BenchError> {
        let text = serde_json::to_string_pretty(self).expect("rows are plain data");
        fs::write(path, text + "\n").map_err(BenchError::system(format!("write {}", path.display())))
    }
}

/// The system, and the cluster and ranks with which it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Name of the system: `outboard`, `mpich`, ...
    pub system: String,
    /// The library's own name and version.
    pub library: String,
    /// Algorithm of the calls, as the system reports it; `auto` if the system does not.
    pub algorithm: String,
    /// Shape of the cluster: HOSTSxRATE.
    pub lab: String,
    /// Largest IP packet of the links in bytes.
    pub mtu: u32,
    /// Random loss in the switch.
    pub loss: Option<LossRow>,
    /// Whether ranks shared core 0, with core 1 for service processes and progress threads.
    pub comm_core: bool,
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks on every host.
    pub ranks_per_host: u32,
    /// How ranks are assigned to the hosts: `contiguous` or `strided`.
    pub layout: String,
}

impl Subject {
    pub(crate) fn of(setup: &Setup, system: &dyn System, library: &str, call: &BenchCall) -> Self {
        Self {
            system: system.name(),
            library: library.to_owned(),
            algorithm: system.algorithm(call),
            lab: setup.lab.to_string(),
            mtu: setup.lab.link().mtu(),
            loss: setup.lab.loss().map(LossRow::from),
            comm_core: setup.comm_core,
            ranks: setup.ranks(),
            ranks_per_host: setup.ranks_per_host,
            layout: setup.layout.name().to_owned(),
        }
    }
}

/// Time, bytes and processor time of a repetition, and whether its results were right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepetitionCost {
    /// Measured repetitions of all rounds together, per phase.
    pub repetitions: u32,
    /// Time of a repetition on the slowest rank; for a collective post and wait, without computing.
    pub time_ms: SampleSpread,
    /// Bytes per repetition over all switch ports, in and out, as the queueing disciplines counted them. They include
    /// the small exchange that starts a repetition.
    pub wire_bytes: f64,
    /// Processor time per repetition of all ranks, progress threads included.
    pub host_cpu_s: f64,
    /// Processor time per repetition of the service processes; `None` where there are none.
    pub service_cpu_s: Option<f64>,
    /// Bytes retransmitted in all repetitions together; `None` where the system does not report them.
    pub retransmitted_bytes: Option<u64>,
    /// Messages for ranks that had not called yet, in these repetitions (SP-9); `None` if the system reports none.
    pub late_arrivals: Option<u64>,
    /// Whether every byte of every repetition was right.
    pub verified: bool,
    /// Wrong results, summed over ranks and repetitions.
    pub wrong_results: u64,
}

/// Sums over all repetitions, from which a [`RepetitionCost`] is made.
pub(crate) struct Sums {
    pub(crate) repetitions: u32,
    pub(crate) time_ms: SampleSpread,
    pub(crate) wire_bytes: u64,
    pub(crate) host_cpu_s: f64,
    pub(crate) services: Option<ServiceCounters>,
    pub(crate) wrong_results: u64,
}

impl RepetitionCost {
    /// Processor time per repetition of ranks and service processes together.
    pub(crate) fn cpu_ms(&self) -> f64 {
        (self.host_cpu_s + self.service_cpu_s.unwrap_or(0.0)) * 1e3
    }

    pub(crate) fn of(sums: &Sums) -> Self {
        let each = |sum: f64| sum / f64::from(sums.repetitions);
        Self {
            repetitions: sums.repetitions,
            time_ms: sums.time_ms,
            wire_bytes: each(sums.wire_bytes as f64),
            host_cpu_s: each(sums.host_cpu_s),
            service_cpu_s: sums.services.map(|counters| each(counters.cpu_s)),
            retransmitted_bytes: sums.services.map(|counters| counters.retransmitted_bytes),
            late_arrivals: sums.services.map(|counters| counters.late_arrivals),
            verified: sums.wrong_results == 0,
            wrong_results: sums.wrong_results,
        }
    }
}

/// Throughput over links that have no limit to judge by, and the processor time that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Payload rate of the busiest link, one way, in the median time.
    pub gbit_per_s: f64,
    /// Processor time of ranks and service processes, at both ends, for 10^9 bytes of payload that hosts received.
    pub cpu_s_per_gb: f64,
}

impl Throughput {
    /// `None` where the links have a limit, or nothing crosses them.
    pub(crate) fn of(call: &BenchCall, link: &LinkLimits, cost: &RepetitionCost) -> Option<Self> {
        let (bits, received) = (limit::busiest_link_bits(call), limit::received_bytes(call) as f64);
        (link.rate_bits_per_s().is_none() && bits > 0.0).then(|| Self {
            gbit_per_s: bits / cost.time_ms.median / 1e6,
            cpu_s_per_gb: cost.cpu_ms() / 1e3 / (received / 1e9),
        })
    }
}

/// One system at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveRow {
    /// Name of the [`Collective`](crate::Collective).
    pub collective: String,
    /// The system, and its cluster and ranks.
    #[serde(flatten)]
    pub subject: Subject,
    /// Bytes of a call ([`BenchCall::bytes`]).
    pub bytes_per_rank: u64,
    /// Cost of pure communication, post and wait.
    #[serde(flatten)]
    pub cost: RepetitionCost,
    /// Limits by which the time is judged.
    #[serde(flatten)]
    pub limits: TimeLimits,
    /// Throughput, which replaces limits where links have none.
    pub throughput: Option<Throughput>,
    /// Time of the system's own barrier on the slowest rank.
    pub barrier_ms: SampleSpread,
    /// Least payload over all switch ports.
    pub multicast_minimum_bytes: u64,
    /// The share of the call that computing hides.
    pub overlap: Overlap,
    /// Processor time of a rank's own thread per call in pure communication. The thread waits for the end without
    /// computing.
    pub thread_cpu_waiting: ThreadCpu,
    /// Processor time of a rank's own thread per call while computing hides the call: the call's cost to the program
    /// (post and end).
    pub thread_cpu_computing: ThreadCpu,
    /// Calls that service processes carried out, per repetition: 1 if the call was offloaded, 0 if it passed through.
    /// Offloaded calls of the start of a repetition are subtracted. `None` if there are no service processes.
    pub offloaded_calls: Option<f64>,
    /// The rank that posted late in every repetition.
    pub late: Option<LateRow>,
}

impl CollectiveRow {
    /// Whether service processes of ours did not carry out the calls. The figures are then the MPI library's own.
    pub fn passed_through(&self) -> bool {
        self.offloaded_calls.is_some_and(|calls| passed_through(calls, 1))
    }

    /// The system's name in tables, which never shows another library's figures as ours.
    pub fn label(&self) -> String {
        if self.passed_through() {
            format!("{} (NOT OFFLOADED)", self.subject.system)
        } else {
            self.subject.system.clone()
        }
    }
}

/// Median, smallest and largest of the repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleSpread {
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl SampleSpread {
    /// # Panics
    /// If there are no values or one is not a number.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(|a, b| a.partial_cmp(b).expect("times are numbers"));
        let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else { panic!("a spread of no values") };
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Self { median, min: *min, max: *max }
    }

    /// Multiplies all values by `factor`, as for another unit.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor }
    }
}

/// `median [min..max]`, with two decimals, or with the precision of the format.
impl fmt::Display for SampleSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$} [{:.digits$}..{:.digits$}]", self.median, self.min, self.max)
    }
}

/// Processor time that calls take of their own thread, over all ranks and repetitions, without progress threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadCpu {
    /// Median time to post.
    pub post_us: f64,
    /// Median time to test and wait until the end.
    pub ending_us: f64,
    /// Time of the whole call.
    pub call_us: SampleSpread,
}

impl ThreadCpu {
    /// From the times of each call; both slices have the calls in the same order.
    ///
    /// # Panics
    /// If there are no calls.
    pub fn of(post_us: &[f64], ending_us: &[f64]) -> Self {
        let call_us: Vec<f64> = post_us.iter().zip(ending_us).map(|(post, ending)| post + ending).collect();
        Self {
            post_us: SampleSpread::of(post_us).median,
            ending_us: SampleSpread::of(ending_us).median,
            call_us: SampleSpread::of(&call_us),
        }
    }
}

/// Computing during the collective.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// Time of the compute loop without any communication. If all ranks share a core, this is the processor time of
    /// their loops in the repetitions with communication; communication does no other work on that core. A time from
    /// before would not do: a shared machine may be slower by half in one second than in the next. If ranks do not
    /// share a core, this is the slowest rank's time, taken before and after the launch.
    pub compute_ms: f64,
    /// Post, compute loop and wait of the slowest rank: median.
    pub overall_ms: f64,
    /// Share of the collective's time without computing that disappears beside the computing (CD-7).
    pub percent: f64,
    /// Median time of the compute loop alone on the slowest rank, in repetitions that alternate with the overall
    /// repetitions. Both see the same speed of a shared machine, unlike a time from before the launch.
    pub paired_alone_ms: f64,
    /// [`Self::overall_ms`] divided by [`Self::paired_alone_ms`]: 1 if the communication costs the program nothing.
    pub paired_ratio: f64,
}

impl Overlap {
    /// Overlap = 1 - (t_(comp+comm) - t_comp) / t_comm (CD-7). The value is not clamped: noise may carry it over 100 or
    /// below 0.
    pub fn new(compute_ms: f64, overall_ms: f64, pure_ms: f64, paired_alone_ms: f64) -> Self {
        Self {
            compute_ms,
            overall_ms,
            percent: overlap_percent(compute_ms, overall_ms, pure_ms),
            paired_alone_ms,
            paired_ratio: overall_ms / paired_alone_ms,
        }
    }
}

/// The value of [`Overlap::percent`].
pub(crate) fn overlap_percent(compute_ms: f64, overall_ms: f64, pure_ms: f64) -> f64 {
    (1.0 - (overall_ms - compute_ms) / pure_ms) * 100.0
}

/// Random loss in the switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossRow {
    /// Percentage of the packets.
    pub percent: f64,
    /// Affected packets: `multicast` or `all`.
    pub of: String,
}

impl From<PacketLoss> for LossRow {
    fn from(loss: PacketLoss) -> Self {
        Self { percent: f64::from(loss.parts_per_million()) / 1e4, of: loss.of().to_string() }
    }
}

/// A rank that posted late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LateRow {
    /// The rank.
    pub rank: u32,
    /// How late the rank was; if this depends on the system's own time, the median of the rounds.
    pub ms: f64,
    /// Whether the late rank exchanged no blocks. Then the others' time is of a call among themselves.
    pub silent: bool,
    /// Median time for which the late rank waited for its result after its call.
    pub own_ms: f64,
    /// Median of the late rank's processor time to copy as many bytes as other ranks contribute to its result.
    pub copy_ms: f64,
    /// Median time of the slowest other rank, from the start.
    pub others_ms: f64,
    /// Time of the slowest other rank from the late rank's call on; negative if all others ended before the call.
    pub others_after_call_ms: f64,
    /// Time of the links, without bursts, for the late rank's contribution. After the late call, the other ranks need
    /// at least this time.
    pub contribution_ms: f64,
    /// [`LateRow::others_ms`] in a phase of the same run with the late rank on time.
    pub punctual_ms: f64,
}

/// The limits of one size, and the time compared with them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeLimits {
    /// Least time at the rate of the links, with the burst of the token buckets.
    pub limit_ms: f64,
    /// Least time at the rate of the links without bursts ([`limit::raw_limit_ms`]).
    pub raw_limit_ms: f64,
    /// Median time divided by [`TimeLimits::limit_ms`]; `None` if the limit is 0. From 1 MiB on, the time is judged by
    /// this ratio.
    pub ratio_to_limit: Option<f64>,
    /// The limit plus three times the system's median barrier, only for sizes below 1 MiB. There the time is judged by
    /// this sum.
    pub limit_and_barriers_ms: Option<f64>,
}

impl TimeLimits {
    pub(crate) fn new(call: &BenchCall, link: &LinkLimits, time_ms: f64, barrier_ms: f64) -> Self {
        let limit_ms = limit::limit_ms(call, link);
        Self {
            limit_ms,
            raw_limit_ms: limit::raw_limit_ms(call, link),
            ratio_to_limit: (limit_ms > 0.0).then(|| time_ms / limit_ms),
            limit_and_barriers_ms: (call.bytes < limit::JUDGED_FROM_BYTES).then_some(limit_ms + 3.0 * barrier_ms),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn subject(system: &str) -> Subject {
        Subject {
            system: system.into(),
            library: "a library".into(),
            algorithm: "auto".into(),
            lab: "4x1gbit".into(),
            mtu: 1500,
            loss: None,
            comm_core: false,
            ranks: 4,
            ranks_per_host: 1,
            layout: "contiguous".into(),
        }
    }

    /// Cost of 20 repetitions without service processes.
    pub(crate) fn cost(ms: f64) -> RepetitionCost {
        RepetitionCost::of(&Sums {
            repetitions: 20,
            time_ms: SampleSpread { median: ms, min: ms - 1.0, max: ms + 2.0 },
            wire_bytes: 350_000_000,
            host_cpu_s: 0.02,
            services: None,
            wrong_results: 0,
        })
    }

    /// The row as JSON; asserts that it parses to the same row.
    pub(crate) fn through_json<R>(row: R) -> serde_json::Value
    where
        R: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        let report = BenchReport { rows: vec![row] };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        report.write_json(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<BenchReport<R>>(&text).unwrap(), report);
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["rows"][0].take()
    }

    pub(crate) fn row(system: &str, bytes_per_rank: u64, ms: f64) -> CollectiveRow {
        CollectiveRow {
            collective: "allgather".into(),
            subject: subject(system),
            bytes_per_rank,
            cost: cost(ms),
            limits: TimeLimits {
                limit_ms: 24.64,
                raw_limit_ms: 25.17,
                ratio_to_limit: Some(ms / 24.64),
                limit_and_barriers_ms: None,
            },
            throughput: None,
            barrier_ms: SampleSpread::of(&[0.2]),
            multicast_minimum_bytes: 16_777_216,
            overlap: Overlap::new(28.9, 30.0, ms, 25.0),
            thread_cpu_waiting: ThreadCpu::of(&[4.0], &[250.0]),
            thread_cpu_computing: ThreadCpu::of(&[4.0], &[3.0]),
            offloaded_calls: None,
            late: None,
        }
    }

    #[test]
    fn costs_are_those_of_a_repetition() {
        let services = ServiceCounters { cpu_s: 4.0, retransmitted_bytes: 1448, ..ServiceCounters::default() };
        let time_ms = SampleSpread::of(&[5.0]);
        let sums = Sums {
            repetitions: 2,
            time_ms,
            wire_bytes: 1000,
            host_cpu_s: 3.0,
            services: Some(services),
            wrong_results: 1,
        };
        let cost = RepetitionCost::of(&sums);
        assert_eq!((cost.wire_bytes, cost.host_cpu_s, cost.service_cpu_s), (500.0, 1.5, Some(2.0)));
        assert_eq!((cost.retransmitted_bytes, cost.late_arrivals), (Some(1448), Some(0)));
        assert!(!cost.verified);
    }

    #[test]
    fn rows_have_the_documented_fields_and_survive_json() {
        let row = through_json(row("mpich", 1 << 20, 27.0));
        let fields = "collective system algorithm ranks ranks_per_host layout bytes_per_rank repetitions limit_ms \
            ratio_to_limit wire_bytes host_cpu_s thread_cpu_waiting thread_cpu_computing service_cpu_s offloaded_calls \
            retransmitted_bytes late_arrivals verified comm_core lab mtu loss";
        for field in fields.split_whitespace() {
            assert!(row.get(field).is_some(), "{field}");
        }
        for field in ["median", "min", "max"] {
            assert!(row["time_ms"][field].is_number(), "{field}");
        }
        for field in ["compute_ms", "overall_ms", "percent", "paired_alone_ms", "paired_ratio"] {
            assert!(row["overlap"][field].is_number(), "{field}");
        }
        for field in ["post_us", "ending_us"] {
            assert!(row["thread_cpu_computing"][field].is_number(), "{field}");
        }
        assert!(row["service_cpu_s"].is_null());
    }

    #[test]
    fn spread_of_even_and_odd_numbers_of_values() {
        assert_eq!(SampleSpread::of(&[3.0, 1.0, 2.0]), SampleSpread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(SampleSpread::of(&[4.0, 1.0, 2.0, 3.0]), SampleSpread { median: 2.5, min: 1.0, max: 4.0 });
    }

    #[test]
    fn calls_are_added_up_one_by_one() {
        let cpu = ThreadCpu::of(&[1.0, 2.0, 9.0], &[30.0, 10.0, 20.0]);
        assert_eq!((cpu.post_us, cpu.ending_us), (2.0, 20.0));
        assert_eq!(cpu.call_us, SampleSpread { median: 29.0, min: 12.0, max: 31.0 });
    }

    #[test]
    fn cd_7_overlap() {
        assert_eq!(Overlap::new(30.0, 30.0, 25.0, 30.0).percent, 100.0);
        assert_eq!(Overlap::new(30.0, 55.0, 25.0, 30.0).percent, 0.0);
        let half = Overlap::new(30.0, 42.5, 25.0, 34.0);
        assert_eq!((half.percent, half.paired_alone_ms, half.paired_ratio), (50.0, 34.0, 1.25));
    }

    fn call(bytes: u64) -> BenchCall {
        BenchCall { collective: crate::Collective::Allgather, hosts: 4, ranks_per_host: 1, bytes, silent_rank: false }
    }

    fn link(lab: &str) -> LinkLimits {
        lab.parse::<outboard_lab::LabSpec>().unwrap().link()
    }

    #[test]
    fn bytes_over_links_without_limit_have_a_rate_and_a_cost() {
        // Each link carries three blocks of 10^6 bytes and hosts receive twelve blocks, in 24 ms and with 60 ms of
        // processor time.
        let mut cost = cost(24.0);
        (cost.host_cpu_s, cost.service_cpu_s) = (0.02, Some(0.04));
        let throughput = Throughput::of(&call(1_000_000), &link("4x0"), &cost).expect("bytes cross the links");
        assert!((throughput.gbit_per_s - 1.0).abs() < 1e-9, "{throughput:?}");
        assert!((throughput.cpu_s_per_gb - 5.0).abs() < 1e-9, "{throughput:?}");
        assert_eq!(Throughput::of(&call(0), &link("4x0"), &cost), None);
        assert_eq!(Throughput::of(&call(1_000_000), &link("4x1gbit"), &cost), None);
    }

    #[test]
    fn small_sizes_are_judged_with_three_barriers() {
        let link = link("4x1gbit");
        let small = TimeLimits::new(&call(256 * 1024), &link, 7.0, 0.5);
        assert_eq!(small.limit_and_barriers_ms, Some(small.limit_ms + 1.5));
        assert_eq!(small.ratio_to_limit, Some(7.0 / small.limit_ms));
        assert_eq!(TimeLimits::new(&call(1 << 20), &link, 27.0, 0.5).limit_and_barriers_ms, None);
        assert_eq!(TimeLimits::new(&call(1024), &link, 0.3, 0.1).ratio_to_limit, None);
    }
}
