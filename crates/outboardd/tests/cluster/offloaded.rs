//! Daemons with `--engine ofi-triggered` on the hosts of an emulated cluster, over libfabric's sockets provider.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::cluster::{Cluster, Test};
use crate::support::offloaded::{LISTS, ROUNDS};
use crate::support::{DAEMON, Daemon, Rank, expect_line_from_all, kill_the_last, let_go};

/// Options of a daemon that sleeps whenever possible, so that the test counts every wake-up.
const ENGINE: [&str; 4] = ["--engine", "ofi-triggered", "--poll", "off"];

pub(crate) const TESTS: &[Test] = &[
    ("bytes_are_right_and_the_conductor_sleeps", bytes_are_right_and_the_conductor_sleeps),
    ("several_calls_are_in_flight_at_once", several_calls_are_in_flight_at_once),
    ("who_disagrees_or_is_killed_is_named_on_all_hosts", who_disagrees_or_is_killed_is_named_on_all_hosts),
    ("a_dead_host_is_named", a_dead_host_is_named),
    ("daemons_of_two_engines_make_no_group", daemons_of_two_engines_make_no_group),
    ("what_is_missing_is_named_at_the_start", what_is_missing_is_named_at_the_start),
];

fn offloaded(daemon: &Daemon, name: &str) -> u64 {
    daemon.statistics()["datapath"]["offloaded"][name].as_u64().expect("a number")
}

/// Most heartbeats between a service process and its neighbours per second, including acknowledgements.
const SIGNS: u64 = 12;

/// Counters of a daemon: lists, wake-ups for lists, and frames sent and received.
fn counted(daemon: &Daemon) -> [u64; 3] {
    let statistics = daemon.statistics();
    let datapath = &statistics["datapath"];
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let frames = number(&datapath["frames_sent"]) + number(&datapath["frames_received"]);
    [number(&datapath["offloaded"]["calls"]), number(&datapath["offloaded"]["wakeups"]), frames]
}

/// Bytes of all sizes on four hosts. A conductor wakes to accept a call, when the call ends, and for heartbeats.
/// Service processes send no messages about the calls to one another.
fn bytes_are_right_and_the_conductor_sleeps() {
    let cluster = Cluster::start(4, None, &ENGINE);
    let mut ranks = cluster.ranks("offloaded", 1);
    expect_line_from_all(&mut ranks, "done");
    let (before, began) = (cluster.daemons.iter().map(counted).collect::<Vec<_>>(), Instant::now());
    ranks.iter_mut().for_each(Rank::go_on);
    expect_line_from_all(&mut ranks, "done");
    for (daemon, before) in cluster.daemons.iter().zip(before) {
        let after = counted(daemon);
        let [calls, wakeups, signs] = std::array::from_fn(|at| after[at] - before[at]);
        let seconds = began.elapsed().as_secs() + 1;
        println!("{calls} calls, {wakeups} wake-ups, {signs} frames in {seconds} s");
        assert_eq!(calls, (LISTS * ROUNDS) as u64, "every call with anything to do is the engine's");
        assert!(signs <= SIGNS * seconds, "{signs} frames in {seconds} s");
        // The sum includes the check of the ranks' memory once a second.
        assert!(wakeups <= 2 * calls + signs + seconds, "{wakeups} wake-ups for {calls} calls");
    }
    let_go(ranks);
    assert_eq!(cluster.count("failed"), 0);
}

/// Two ranks per host, some of them late, with calls that overlap. The service processes carry out reductions and
/// uneven blocks, between calls of the engine.
fn several_calls_are_in_flight_at_once() {
    let cluster = Cluster::start(3, None, &ENGINE);
    for scenario in ["allgather", "alltoall", "broadcast", "rooted"] {
        cluster.run(scenario, 2);
    }
    assert!(cluster.daemons.iter().all(|daemon| offloaded(daemon, "calls") > 0));
    for scenario in ["reductions", "allgatherv"] {
        cluster.run(scenario, 1);
    }
    let all = |daemon: &Daemon| daemon.statistics()["completed"].as_u64().expect("a number");
    assert!(cluster.daemons.iter().all(|daemon| offloaded(daemon, "calls") < all(daemon)));
}

/// Messages of differing calls never match, and both ranks get the error. The end of a rank or daemon is also reported.
fn who_disagrees_or_is_killed_is_named_on_all_hosts() {
    let mut cluster = Cluster::start(2, None, &ENGINE);
    cluster.ranks("mismatch", 1).into_iter().for_each(Rank::finish);
    kill_the_last(cluster.ranks("one-dies", 2));
    cluster.lose_a_daemon();
}

/// The service processes detect a host with a silent link while the provider still tries to reach the host.
fn a_dead_host_is_named() {
    for said in Cluster::start(3, None, &ENGINE).lose_a_host() {
        assert!(said.contains("rank 4"), "{said}");
    }
}

/// The error names both engines and the setting.
fn daemons_of_two_engines_make_no_group() {
    let cluster = Cluster::start_unlike(2, &[], &ENGINE);
    cluster.meet_in_vain("mismatched-world", &["service-process", "ofi-triggered"]);
}

/// A daemon that cannot load its engine names what is missing and exits.
fn what_is_missing_is_named_at_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let refused = |flags: &[&str], variable: (&str, &Path)| {
        let mut daemon = Command::new(DAEMON);
        daemon.args(["--engine", "ofi-triggered", "--socket"]).arg(directory.path().join("socket")).args(flags);
        let ended = daemon.env(variable.0, variable.1).stdin(Stdio::null()).output().expect("the daemon starts");
        assert!(!ended.status.success());
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let provider = refused(&["--ofi-provider", "tcp"], ("OUTBOARD_NOTHING", Path::new("")));
    assert!(provider.contains("provider tcp cannot do this"), "{provider}");
    // An empty library of this name comes first in the search path.
    std::fs::write(directory.path().join("libfabric.so.1"), b"").expect("written");
    let library = refused(&[], ("LD_LIBRARY_PATH", directory.path()));
    assert!(library.contains("libfabric") && library.contains("apt install libfabric1"), "{library}");
}
