//! End-to-end test on a small emulated cluster with Debian's Open MPI, for which the tree's MPI shim is built, too.
//!
//! It has its own main because the cluster's processes execute this program again.

use libtest_mimic::{Arguments, Failed, Trial};
use outboard_bench::{
    BenchError, BenchJob, BenchOptions, BenchReport, Collective, FftOptions, LateBy, LateRankSpec, Layout, MessageMode,
    Peer, RadixOptions, RecordedOptions, Setup, default_peers_dir, open_mpi_launcher, render_fft_table, run,
    run_batches, run_fft, run_radix, run_recorded,
};
use outboard_lab::{Lab, LossScope, PacketLoss, SpecError};
use std::fs;
use std::io;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

fn main() -> ExitCode {
    outboard_lab::holder_main_if_requested();
    let mut arguments = Arguments::from_args();
    // One test at a time, because tests measure links and cores.
    arguments.test_threads = Some(1);
    macro_rules! trials {
        ($($test:ident)+) => { vec![$(Trial::test(stringify!($test), $test)),+] };
    }
    let trials = trials! {
        debian_on_two_hosts links_without_limit_have_a_rate_and_a_cost late_rank_and_loss late_by_times_of_its_own
        every_collective_of_two_ranks_per_host blocking_calls_come_in_batches a_ping_pong_tells_half_a_round_trip
        nonblocking_calls_compute_in_between fft_has_the_same_bits_below_any_layout
        cd_8_a_radix_sort_sorts_to_any_base messages_go_in_both_ways daemons_of_a_launcher_keep_to_their_hosts
        a_launch_out_of_time_leaves_nothing_running
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn setup(repetitions: u32) -> Result<Setup, SpecError> {
    let mut setup = Setup::new("2x1gbit".parse()?, repetitions);
    setup.peers = vec![Peer::Debian];
    setup.progress = false;
    Ok(setup)
}

fn options(sizes: &[u64]) -> BenchOptions {
    BenchOptions::new(setup(3).expect("a lab"), Collective::Allgather, sizes.to_vec())
}

fn failed(error: BenchError) -> Failed {
    Failed::from(error.to_string())
}

fn measured(options: &BenchOptions) -> Result<BenchReport, Failed> {
    run(options, &[]).map_err(failed)
}

fn debian_on_two_hosts() -> Result<(), Failed> {
    let sizes = [0, 1, 65_536];
    let mut options = options(&sizes);
    options.setup.comm_core = true;
    options.setup.rounds = 2;
    let report = measured(&options)?;
    assert_eq!(report.rows.iter().map(|row| row.bytes_per_rank).collect::<Vec<_>>(), sizes);
    for row in &report.rows {
        assert!(row.cost.verified && row.cost.wrong_results == 0, "{row:?}");
        assert_eq!((row.subject.system.as_str(), row.subject.ranks, row.cost.repetitions), ("debian", 2, 6));
        assert!(row.subject.library.contains("Open MPI"), "{}", row.subject.library);
        assert!(
            row.cost.time_ms.min > 0.0
                && row.cost.time_ms.median >= row.cost.time_ms.min
                && row.cost.time_ms.max >= row.cost.time_ms.median
        );
        assert!(row.overlap.paired_alone_ms > 0.0 && row.overlap.paired_ratio > 0.0, "{row:?}");
        assert!(row.overlap.compute_ms > 0.0 && row.cost.host_cpu_s > 0.0);
        let (waiting, computing) = (row.thread_cpu_waiting, row.thread_cpu_computing);
        assert!(waiting.post_us > 0.0 && computing.post_us > 0.0 && computing.ending_us > 0.0, "{row:?}");
        assert_eq!((row.cost.service_cpu_s, row.cost.retransmitted_bytes), (None, None));
    }
    let large = &report.rows[2];
    // Each rank's contribution leaves one host and enters the other, so the ranks did use the links.
    assert!(large.cost.wire_bytes >= 4.0 * 65_536.0, "{}", large.cost.wire_bytes);
    assert!(large.cost.wire_bytes <= 8.0 * 65_536.0, "{}", large.cost.wire_bytes);
    assert!(large.limits.limit_and_barriers_ms.is_some());
    Ok(())
}

/// Links without a limit count their bytes, too.
fn links_without_limit_have_a_rate_and_a_cost() -> Result<(), Failed> {
    let mut options = options(&[100_000]);
    options.setup.lab = "2x0".parse()?;
    let report = measured(&options)?;
    let [row] = report.rows.as_slice() else { panic!("{report:?}") };
    assert!(row.cost.verified && row.cost.wire_bytes >= 4.0 * 100_000.0, "{row:?}");
    assert_eq!((row.limits.limit_ms, row.limits.ratio_to_limit), (0.0, None));
    let throughput = row.throughput.expect("bytes cross the links");
    assert!((throughput.gbit_per_s * row.cost.time_ms.median - 0.8).abs() < 1e-6, "{row:?}");
    assert!((throughput.cpu_s_per_gb * 200_000.0 / 1e9 - row.cost.host_cpu_s).abs() < 1e-9, "{row:?}");
    Ok(())
}

/// SP-9: a rank that posts late delays the others, and packets are really lost; the bytes stay right.
fn late_rank_and_loss() -> Result<(), Failed> {
    let mut options = options(&[100_000]);
    let late = LateRankSpec { rank: 1, by: LateBy::Time(Duration::from_millis(20)), silent: false };
    options.late = Some(late);
    options.setup.lab = options.setup.lab.with_loss(Some(PacketLoss::percent(1, LossScope::All)));
    let report = measured(&options)?;
    let [row] = report.rows.as_slice() else { panic!("{report:?}") };
    assert!(row.cost.verified, "an allgather waits for all: {row:?}");
    assert!(row.cost.time_ms.min >= 20.0, "the late rank counts from the start: {:?}", row.cost.time_ms);
    let late = row.late.as_ref().expect("a late rank");
    assert_eq!((late.rank, late.ms), (1, 20.0));
    assert!(late.punctual_ms > 0.0 && late.own_ms > 0.0 && late.own_ms < row.cost.time_ms.max);
    assert!(late.copy_ms > 0.0 && late.contribution_ms > 0.0 && late.others_ms <= row.cost.time_ms.max, "{late:?}");
    assert_eq!(row.subject.loss.as_ref().map(|loss| (loss.percent, loss.of.as_str())), Some((1.0, "all")));
    Ok(())
}

/// SP-9: a rank is late by a multiple of the system's own time with no rank late.
fn late_by_times_of_its_own() -> Result<(), Failed> {
    let mut options = options(&[1, 300_000]);
    (options.collective, options.setup.ranks_per_host) = (Collective::Broadcast, 2);
    options.late = Some(LateRankSpec { rank: 3, by: LateBy::PureTimes(2), silent: false });
    for row in &measured(&options)?.rows {
        let late = row.late.as_ref().expect("a late rank");
        // The rank is late by twice the time of the slowest rank, to the microsecond.
        assert!(
            row.cost.verified && late.ms + 1e-3 >= 2.0 * late.punctual_ms && row.cost.time_ms.min >= late.ms,
            "{row:?}"
        );
        assert_eq!(late.contribution_ms, 0.0, "a leaf owes nothing");
    }
    Ok(())
}

/// SP-7: every collective of the measuring program is right, in either layout, and its bytes cross the links. The
/// program refuses to run on a host that does not fit its layout.
fn every_collective_of_two_ranks_per_host() -> Result<(), Failed> {
    for (at, collective) in Collective::ALL.iter().enumerate() {
        let mut options = options(if collective.has_bytes() { &[0, 64, 40_000] } else { &[0] });
        options.collective = *collective;
        (options.setup.ranks_per_host, options.setup.repetitions) = (2, 2);
        options.setup.layout = if at.is_multiple_of(2) { Layout::Contiguous } else { Layout::Strided };
        for row in &measured(&options)?.rows {
            assert!(row.cost.verified && row.collective == collective.name(), "{row:?}");
            let placed = (row.subject.ranks, row.subject.ranks_per_host, row.subject.layout.as_str());
            assert_eq!(placed, (4, 2, options.setup.layout.name()));
            assert!(row.cost.wire_bytes >= row.multicast_minimum_bytes as f64, "{row:?}");
            assert!(row.limits.raw_limit_ms > 0.0 || row.bytes_per_rank == 0, "{row:?}");
            assert_eq!(row.offloaded_calls, None, "no service process took part");
        }
    }
    Ok(())
}

/// A call that takes the link longer than a batch lasts is timed alone. Ranks of one host need no link.
fn blocking_calls_come_in_batches() -> Result<(), Failed> {
    let mut options = options(&[8, 1 << 20]);
    (options.collective, options.setup.rounds, options.setup.blocking) = (Collective::Allreduce, 2, true);
    for (lab, ranks_per_host) in [("2x1gbit", 1), ("1x1gbit", 2)] {
        (options.setup.lab, options.setup.ranks_per_host) = (lab.parse()?, ranks_per_host);
        let report = run_batches(&options, &[]).map_err(failed)?;
        let [small, large] = report.rows.as_slice() else { panic!("{report:?}") };
        for row in [small, large] {
            assert!(row.cost.verified && row.cost.time_ms.min > 0.0 && row.offloaded_calls.is_none(), "{row:?}");
            assert_eq!((row.subject.ranks, row.cost.repetitions), (2, 6 * row.batch_calls), "repetitions are calls");
            assert!((1..=1000).contains(&row.batch_calls) && row.compute_ms == 0.0, "{row:?}");
        }
        let between_hosts = ranks_per_host == 1;
        // Each rank's half of the vector and of the sum leaves one host and enters the other.
        assert_eq!(large.cost.wire_bytes >= 4.0 * f64::from(1 << 20), between_hosts, "{}", large.cost.wire_bytes);
        // The link takes 8 ms for this, and a batch lasts 2 ms.
        assert!(large.batch_calls == 1 || !between_hosts, "{report:?}");
    }
    Ok(())
}

/// A message crosses a link and comes back. Figures are for one way, and no other rank takes part.
fn a_ping_pong_tells_half_a_round_trip() -> Result<(), Failed> {
    let mut options = options(&[8, 1 << 20]);
    (options.collective, options.setup.ranks_per_host, options.setup.blocking) = (Collective::PingPong, 2, true);
    let report = run_batches(&options, &[]).map_err(failed)?;
    let [small, large] = report.rows.as_slice() else { panic!("{report:?}") };
    for row in [small, large] {
        assert!(row.cost.verified && row.cost.time_ms.min > 0.0, "{row:?}");
        assert_eq!(row.cost.repetitions, 3 * 2 * row.batch_calls, "a call is two of them");
    }
    // The payload leaves one port and enters the other.
    let payload = 2.0 * f64::from(1 << 20);
    assert!((payload..1.2 * payload).contains(&large.cost.wire_bytes), "{large:?}");
    Ok(())
}

/// Every rank computes between post and wait; unit tests of batches show that this time does not count.
fn nonblocking_calls_compute_in_between() -> Result<(), Failed> {
    let mut options = options(&[8, 1 << 20]);
    options.collective = Collective::Allgather;
    let report = run_batches(&options, &[]).map_err(failed)?;
    assert_eq!(report.rows.iter().map(|row| row.bytes_per_rank).collect::<Vec<_>>(), [8, 1 << 20]);
    for row in &report.rows {
        assert!(row.cost.verified && row.compute_ms > 0.0, "{row:?}");
        assert_eq!((row.subject.ranks, row.cost.repetitions), (2, 3 * row.batch_calls), "repetitions are calls");
    }
    Ok(())
}

fn fft_has_the_same_bits_below_any_layout() -> Result<(), Failed> {
    let mut checksums = Vec::new();
    for layout in [Layout::Contiguous, Layout::Strided] {
        let mut setup = setup(2)?;
        (setup.ranks_per_host, setup.layout, setup.rounds) = (2, layout, 2);
        let options = FftOptions { setup, grids: vec![8, 18], variables: 3 };
        let report = run_fft(&options, &[]).map_err(failed)?;
        assert!(report.agrees(), "{}", render_fft_table(&report));
        assert_eq!(report.rows.iter().map(|row| row.grid).collect::<Vec<_>>(), [8, 18]);
        for row in &report.rows {
            assert_eq!((row.process_grid.as_str(), row.exchanges, row.cost.repetitions), ("2x2", 12, 4));
            assert!(row.mpi_ms.median > 0.0 && row.mpi_ms.median <= row.cost.time_ms.max, "{row:?}");
            assert!(row.cost.wire_bytes >= row.payload_bytes as f64 && row.payload_bytes > 0, "{row:?}");
            assert_eq!(row.offloaded_exchanges, None, "no service process took part");
        }
        checksums.push(report.rows.into_iter().map(|row| row.checksum).collect::<Vec<_>>());
    }
    assert_eq!(checksums[0], checksums[1]);
    Ok(())
}

/// CD-8: keys that fill no bucket evenly, and more buckets than keys.
fn cd_8_a_radix_sort_sorts_to_any_base() -> Result<(), Failed> {
    let mut setup = setup(2)?;
    (setup.ranks_per_host, setup.layout, setup.rounds) = (2, Layout::Strided, 2);
    let options = RadixOptions { setup, buckets: vec![3, 4096], keys: vec![1, 999] };
    let report = run_radix(&options, &[]).map_err(failed)?;
    let sorts = report.rows.iter().map(|row| (row.keys, row.buckets, row.passes)).collect::<Vec<_>>();
    assert_eq!(sorts, [(1, 3, 21), (1, 4096, 3), (999, 3, 21), (999, 4096, 3)]);
    for row in &report.rows {
        assert!(row.cost.verified && row.cost.repetitions == 8 && row.offloaded_histograms.is_none(), "{row:?}");
        // Two ranks on each host send a histogram to each of two ranks on the other host. Every histogram leaves one
        // port and enters another.
        let histograms = f64::from(row.passes) * (2 * 2 * 2 * row.histogram.bytes_per_rank) as f64;
        assert!(row.cost.wire_bytes >= histograms, "{row:?}");
        let times = [row.histogram.exchange_ms, row.histogram.moving_ms, row.histogram.both_ms];
        assert!(times.iter().all(|ms| *ms > 0.0 && *ms < row.in_turn_ms.max + row.cost.time_ms.max), "{row:?}");
    }
    Ok(())
}

/// GP-1, GP-2: message by message and by persistent requests, in which no service process takes part.
fn messages_go_in_both_ways() -> Result<(), Failed> {
    let mut setup = setup(2)?;
    (setup.ranks_per_host, setup.rounds) = (2, 2);
    let options = RecordedOptions { setup, sizes: vec![0, 100, 40_000] };
    let report = run_recorded(&options, &[]).map_err(failed)?;
    let places: Vec<(u64, MessageMode)> = report.rows.iter().map(|row| (row.block_bytes, row.way)).collect();
    let expected = [0, 100, 40_000].into_iter().flat_map(|bytes| MessageMode::ALL.map(|way| (bytes, way)));
    assert_eq!(places, expected.collect::<Vec<_>>());
    for row in &report.rows {
        assert!(row.cost.verified && row.handed_over.is_none() && row.cost.repetitions == 4, "{row:?}");
        // Two ranks on each host send a block to each of two ranks on the other host. Every block leaves one port and
        // enters another.
        assert!(row.cost.wire_bytes >= (2 * 2 * 2 * 2 * row.block_bytes) as f64, "{row:?}");
        assert!(row.cost.time_ms.min > 0.0 && row.thread_cpu.call_us.max > 0.0, "{row:?}");
    }
    let mut none = options;
    none.sizes.clear();
    assert!(run_recorded(&none, &[]).is_err());
    Ok(())
}

/// Daemons of several hosts overwrite each other's files if they share a session directory.
fn daemons_of_a_launcher_keep_to_their_hosts() -> Result<(), Failed> {
    let lab = Lab::start(&"3x1gbit".parse()?)?;
    let directory = tempfile::tempdir()?;
    // The daemon passes the directory of its session to a rank.
    let line = "case $PMIX_SERVER_TMPDIR in $TMPDIR/*) echo $(hostname): $(ls -A $TMPDIR | wc -l) ;; esac";
    let job = BenchJob {
        lab: &lab,
        ranks: 3,
        layout: Layout::Contiguous,
        program: Path::new("/bin/sh"),
        arguments: &["-c", line].map(String::from),
        comm_core: false,
        blocking: false,
        one_sided: false,
        directory: directory.path(),
    };
    let mut launcher = open_mpi_launcher(Peer::Debian, &default_peers_dir(), &job, &[])?;
    let said = launcher.stdin(Stdio::null()).env("TMPDIR", directory.path()).output()?;
    let text = String::from_utf8(said.stdout)?;
    assert!(said.status.success(), "{text}{}", String::from_utf8_lossy(&said.stderr));
    let mut sessions: Vec<&str> = text.lines().collect();
    sessions.sort_unstable();
    assert_eq!(sessions, ["h1: 1", "h2: 1", "h3: 1"], "each in its host's directory, with nothing beside it");
    let beside: Vec<_> =
        fs::read_dir(directory.path())?.map(|entry| Ok(entry?.file_name())).collect::<Result<_, io::Error>>()?;
    assert_eq!(beside, ["remote-shell"], "what every host sees");
    Ok(())
}

fn a_launch_out_of_time_leaves_nothing_running() -> Result<(), Failed> {
    let mut options = options(&[1 << 20]);
    options.setup.launch_timeout = Some(Duration::from_millis(1));
    match run(&options, &[]) {
        Err(BenchError::TimedOut { system, .. }) => assert_eq!(system, "debian"),
        other => return Err(Failed::from(format!("{other:?}"))),
    }
    let own = std::process::id();
    let left: Vec<String> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse().ok())
        .filter(|pid| is_child(*pid, own))
        .map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default())
        .collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

fn is_child(pid: u32, parent: u32) -> bool {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(Path::new(&path)).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields).unwrap_or_default();
    fields.split(' ').nth(1).and_then(|field| field.parse().ok()) == Some(parent)
}
