//! End-to-end tests of `outboard run`: ranks of `programs/ranks.c` on emulated clusters and on this machine. Every byte
//! is right. Every failure ends with an error on every rank that names the culprit, and nothing is left behind.
//!
//! Needs the daemon and the C library beside the command: `cargo build --workspace` first. Nothing is skipped.

use std::time::Duration;

use rustix::process::Signal;

use crate::job::{Job, Outcome, Process, left_of};
use crate::program::{compiled, home};
use crate::timeline;

/// Within this time every other rank receives the error about a killed rank or daemon (requirement of the C interface).
const LOSS_LIMIT: Duration = Duration::from_secs(5);

const SERVICE_LOST: i32 = -22;
const RANK_LOST: i32 = -40;
const DEADLINE: i32 = -42;
const MISMATCH: i32 = -41;
const PEER_LOST: i32 = -60;

/// Runs the `verify` part with these options of `outboard run`, and checks that all calls were offloaded.
fn verify(ranks: u32, options: &str) -> Outcome {
    let options: Vec<&str> = options.split_whitespace().chain(["--report"]).collect();
    let outcome = Job::start(ranks, &options, "verify").finish();
    outcome.assert_success();
    for rank in 0..ranks {
        let line = format!("@verified rank {rank} of {ranks}: 48 calls");
        assert!(outcome.says(&line), "{options:?}: rank {rank}: {outcome:?}");
    }
    assert!(outcome.counted("collectives completed") > 0, "{options:?}: the calls were offloaded: {outcome:?}");
    assert_eq!(outcome.counted("failed"), 0, "{options:?}: {outcome:?}");
    outcome
}

/// The runs have no multicast, unequal numbers of ranks on hosts, or neighbours in rank on one host.
#[test]
fn ranks_of_several_hosts_verify() {
    verify(2, "--lab 2x1gbit");
    verify(4, "--lab 4x1gbit --algorithm ring");
    verify(6, "--lab 4x1gbit");
    verify(6, "--lab 3x1gbit --layout contiguous");
}

/// MC-10: every host receives one multicast address for each subgroup.
#[test]
fn four_hosts_verify_by_chains_and_subgroups() {
    const SPREAD: &str = "--lab 4x1gbit --chains 2 --subgroups 2";
    verify(4, SPREAD);
    let mut job = Job::start(4, &SPREAD.split(' ').collect::<Vec<_>>(), "idle");
    (0..4).for_each(|_| job.await_line("@going"));
    let joined: Vec<usize> = job.processes().iter().filter(|one| one.is_daemon()).map(Process::multicasts).collect();
    assert_eq!(joined, [2; 4]);
}

/// SP-8, GP-3.
#[test]
fn ranks_of_several_service_processes_on_each_host_verify() {
    verify(6, "--lab 2x1gbit --service-processes 2");
    verify(6, "--lab 2x1gbit --service-processes 3 --layout contiguous --algorithm ring");
    verify(6, "--lab 2x1gbit+dpu --service-processes 2");
}

#[test]
fn ranks_of_one_machine_verify() {
    verify(3, "");
    verify(5, "--service-processes 2");
    verify(3, "--service-processes auto");
}

/// MC-6: lost packets are retransmitted.
#[test]
fn heavy_loss_of_multicast_is_repaired() {
    let outcome = verify(4, "--lab 4x1gbit --loss 30% --of multicast");
    assert!(outcome.counted("bytes sent again") > 0, "the network loses: {outcome:?}");
}

#[test]
fn loss_of_everything_is_repaired() {
    verify(4, "--lab 4x1gbit --loss 1% --of all");
}

/// Checks that all ranks that disagree receive an error that names both calls.
fn mismatch(ranks: u32, options: &[&str]) {
    let outcome = Job::start(ranks, options, "mismatch").finish();
    outcome.assert_success();
    for rank in 0..ranks {
        let end = outcome.end_of(rank);
        assert_eq!(end.code, MISMATCH, "rank {rank}: {outcome:?}");
        for named in ["rank 1 called allgather of 2000 bytes", "called allgather of 1000 bytes"] {
            assert!(end.sentence.contains(named), "rank {rank} is told of `{named}`: {outcome:?}");
        }
    }
}

#[test]
fn a_mismatch_names_both_calls_on_all_ranks() {
    mismatch(4, &["--lab", "4x1gbit"]);
    mismatch(4, &["--lab", "4x1gbit+dpu"]);
    mismatch(3, &[]);
}

/// The rank that dies or loses its daemon, as in `ranks.c`; it runs on host h3.
const VICTIM: u32 = 2;

/// Checks that `ranks`, all but the victim, end within the limit with `code` and a sentence that contains `named`.
fn assert_others_lose(outcome: &Outcome, ranks: u32, code: i32, named: &str) {
    for rank in (0..ranks).filter(|rank| *rank != VICTIM) {
        let end = outcome.end_of(rank);
        assert_eq!(end.code, code, "rank {rank}: {outcome:?}");
        assert!(end.sentence.contains(named), "rank {rank} is told of {named}: {outcome:?}");
        let after = end.at.saturating_sub(outcome.fatal_at());
        assert!(after < LOSS_LIMIT, "rank {rank} hears of it after {after:?}: {outcome:?}");
    }
}

/// The victim's memory vanishes, its connection breaks and its process ends at about the same time. Whichever event the
/// daemon notices first, the others receive the same error. The test repeats the run, because the order differs from
/// run to run.
fn lose_rank(ranks: u32, options: &[&str], place: &str) {
    for _ in 0..4 {
        let outcome = Job::start(ranks, options, "victim").finish();
        assert_eq!(outcome.exit_code(), Some(128 + 9), "the victim's death is the job's: {outcome:?}");
        assert!(outcome.complains(&format!("rank {VICTIM} on {place}: signal: 9")), "{outcome:?}");
        assert_others_lose(&outcome, ranks, RANK_LOST, "rank 2 of the group died");
    }
}

/// The killed rank is alone on its host, or beside another rank, or beside another rank with a service process for each
/// rank.
#[test]
fn a_killed_rank_is_named_on_all_hosts() {
    lose_rank(4, &["--lab", "4x1gbit"], "h3");
    lose_rank(8, &["--lab", "4x1gbit"], "h3");
    lose_rank(8, &["--lab", "4x1gbit", "--service-processes", "2"], "h3");
    lose_rank(4, &["--lab", "4x1gbit+dpu"], "h3");
}

#[test]
fn a_rank_killed_on_the_same_machine_is_named() {
    lose_rank(3, &[], "this machine");
}

#[test]
fn killed_daemon_is_named_and_its_rank_is_notified() {
    let outcome = Job::start(4, &["--lab", "4x1gbit"], "victim-service").finish();
    outcome.assert_success();
    assert_others_lose(&outcome, 4, PEER_LOST, "(that of rank 2)");
    let own = outcome.end_of(VICTIM);
    assert_eq!(own.code, SERVICE_LOST, "{outcome:?}");
    let after = own.at.saturating_sub(outcome.fatal_at());
    assert!(after < LOSS_LIMIT, "its own rank hears of it after {after:?}: {outcome:?}");
}

/// Ends a job whose ranks play `part` by `signal`, and checks that no process of the job is left.
fn stop(ranks: u32, options: &[&str], part: &str, signal: Signal) -> Job {
    let mut job = Job::start(ranks, options, part);
    for _ in 0..ranks {
        job.await_line("@going");
    }
    let processes = job.processes();
    let daemons = processes.iter().filter(|process| process.is_daemon()).count();
    assert!(daemons > 0 && processes.len() > daemons + ranks as usize, "the job is seen: {processes:?}");
    job.signal(signal);
    let left = left_of(processes);
    assert!(left.is_empty(), "left of the job: {left:?}");
    let status = job.reap();
    let expected = (signal == Signal::INT).then_some(130);
    assert_eq!(status.code(), expected, "a job that was stopped by a signal");
    let late = job.processes();
    assert!(late.is_empty(), "started meanwhile and left: {late:?}");
    job
}

/// Interrupts a job amid collectives, and a job between collectives. Between collectives no rank receives an error when
/// another rank ends.
#[test]
fn an_interrupt_leaves_nothing() {
    for part in ["forever", "idle"] {
        for options in [&["--lab", "2x1gbit"][..], &["--lab", "2x1gbit+dpu"], &[]] {
            let job = stop(2, options, part, Signal::INT);
            assert_eq!(job.work_directories(), Vec::<String>::new(), "{part} with {options:?}");
        }
    }
}

/// SP-9: while the others wait, the rank that has not called is named on all hosts.
#[test]
fn top_names_who_has_not_called() {
    ["2x1gbit", "2x1gbit+dpu"].into_iter().for_each(top_names_the_absent);
}

fn top_names_the_absent(lab: &str) {
    let mut job = Job::start(2, &["--lab", lab], "absent");
    job.await_line("@going");
    job.await_line("@going");
    // A posted call takes a moment to be taken up and to reach the other host, so the test polls until both are seen.
    let seen = loop {
        assert!(job.in_time(), "no collective is seen in flight");
        let seen: Vec<_> = job.top().iter().map(|report| report["in_flight"][0].clone()).collect();
        if seen.iter().all(serde_json::Value::is_object) {
            break seen;
        }
    };
    let [caller, missing] = seen.as_slice() else { panic!("{seen:?}") };
    let ranks = |list: &[u32]| serde_json::json!(list);
    assert_eq!((&caller["awaits"], &caller["not_called"]), (&ranks(&[1]), &ranks(&[])), "{caller}");
    assert_eq!(missing["not_called"], ranks(&[1]), "{missing}");
    for one in [caller, missing] {
        assert!(one["seats"]["1"].as_str().is_some_and(|seat| seat.starts_with("h2, ")), "SP-1: {one}");
        assert_eq!(one["call"], "allgather of 1048576 bytes per rank");
        assert!(one["age_ms"].as_f64().is_some_and(|age| age > 0.0), "{one}");
    }
    job.signal(Signal::INT);
    assert!(!job.reap().success());
}

/// SP-9: the watchdog names the rank for which all wait, and its last call. The report says how late it was, and
/// nothing fails.
fn late(ranks: u32, options: &[&str]) {
    let options = [options, &["--watchdog", "0.5"]].concat();
    let outcome = Job::start(ranks, &options, "late").finish();
    outcome.assert_success();
    (0..ranks).for_each(|rank| assert_eq!(outcome.end_of(rank).code, 0, "rank {rank}: {outcome:?}"));
    assert!(outcome.complains("not called by rank 1 (last call 1: allgather of 1000 bytes per rank)"), "{outcome:?}");
    assert!(outcome.complains("outboard: "), "{outcome:?}");
    assert_eq!(outcome.counted("collectives completed"), 2 * u64::from(ranks), "{outcome:?}");
    assert!(outcome.counted("late calls") > 0, "{outcome:?}");
    assert!(outcome.complains("  rank 1 of group "), "{outcome:?}");
}

#[test]
fn sp_9_a_late_rank_is_named_and_reported() {
    late(4, &["--lab", "4x1gbit"]);
    late(3, &[]);
}

/// SP-9: the optional deadline ends the call on all ranks, also on the late rank, with an error that names the late
/// rank.
fn deadline(ranks: u32, options: &[&str]) {
    let options = [options, &["--quiet"]].concat();
    let outcome = Job::start(ranks, &options, "deadline").finish();
    outcome.assert_success();
    for rank in 0..ranks {
        let end = outcome.end_of(rank);
        assert_eq!(end.code, DEADLINE, "rank {rank}: {outcome:?}");
        let named =
            "rank 1 (last call 1: allgather of 1000 bytes per rank) did not call allgather of 1048576 bytes per rank";
        assert!(end.sentence.contains(named), "rank {rank}: {outcome:?}");
    }
    assert!(!outcome.complains("collectives completed"), "the report is not wanted: {outcome:?}");
}

#[test]
fn sp_9_a_deadline_names_the_missing_rank_on_all() {
    deadline(4, &["--lab", "4x1gbit"]);
    deadline(3, &[]);
}

/// SP-9: one file shows the calls and waits of all ranks, the phases of all service processes, and the stand-ins for
/// the late rank, on one axis.
#[test]
fn sp_9_a_trace_shows_all_ranks_and_service_processes_on_one_axis() {
    let ranks = 4;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("trace.json");
    let outcome = Job::start(ranks, &["--lab", "4x1gbit", "--trace", file.to_str().expect("text")], "late").finish();
    outcome.assert_success();
    let spans = timeline::read(&file);
    let of = |category: &str, process: &str| -> Vec<&timeline::Span> {
        spans.iter().filter(|span| span.category == category && span.process.starts_with(process)).collect()
    };
    for rank in 0..ranks {
        let calls = of("call", &format!("rank {rank} of group "));
        let numbers: Vec<_> = calls.iter().map(|call| (&call.args["rank"], &call.args["instance"])).collect();
        let number = |n: u32| serde_json::json!(n);
        assert_eq!(numbers, [(&number(rank), &number(1)), (&number(rank), &number(2))]);
        assert!(!of("rank", &format!("rank {rank} of group ")).is_empty(), "rank {rank} waits");
    }
    let late = of("call", "rank 1 of group ")[1];
    // On a busy machine any rank may be late for the first call.
    let mut stood_in = of("stand-in", "rank 1 of group ");
    stood_in.retain(|span| span.args["instance"] == 2);
    let [stood_in] = stood_in.as_slice() else { panic!("one stand-in: {stood_in:?}") };
    assert!(stood_in.begin < late.begin && stood_in.end <= late.end, "{stood_in:?} until {late:?}");
    let waited =
        of("rank", "rank 0 of group ").into_iter().any(|wait| wait.begin < stood_in.end && wait.end > late.begin);
    assert!(waited, "rank 0 waits until the late one has called, on the same axis");
    let collectives = of("collective", "service process ");
    let outer: Vec<_> = collectives.iter().filter(|span| span.depth == 0).collect();
    assert_eq!(outer.len(), 2 * ranks as usize, "every service process takes part in both");
    // The second call is small, and takes no barrier.
    for (phase, of) in [("wait for local ranks", 2), ("ready barrier", 1), ("transfer", 2)] {
        let inner = collectives.iter().filter(|span| span.depth == 1 && span.name == phase);
        assert_eq!(inner.count(), of * ranks as usize, "{phase}");
    }
    assert!(!of("multicast", "service process ").is_empty(), "what was sent is shown");
    let mut conductor: Vec<_> = of("conductor", "service process ");
    conductor.sort_by(|a, b| (&a.process, a.begin).partial_cmp(&(&b.process, b.begin)).expect("times"));
    for pair in conductor.windows(2).filter(|pair| pair[0].process == pair[1].process) {
        // Times in microseconds have three decimals.
        assert!(pair[0].end <= pair[1].begin + 0.01, "a thread does one thing at a time: {pair:?}");
    }
}

/// The next run removes the work directory of a killed run.
#[test]
fn a_killed_run_leaves_nothing() {
    for options in [&["--lab", "2x1gbit"][..], &[]] {
        let job = stop(2, options, "forever", Signal::KILL);
        assert_eq!(job.work_directories().len(), 1, "the killed run's own, with {options:?}");
        let next = job.next(&["--native"], &["/bin/true"]).finish();
        next.assert_success();
        assert_eq!(job.work_directories(), Vec::<String>::new(), "with {options:?}");
    }
}

#[test]
fn the_exit_code_of_a_failed_rank_is_the_jobs() {
    let outcome = Job::start(2, &[], "no such part").finish();
    assert_eq!(outcome.exit_code(), Some(2), "{outcome:?}");
}

/// GP-9: daemons on DPUs, ranks attached through relays; the collectives of `ranks.c` on a network that loses packets.
#[test]
fn ranks_of_hosts_with_dpus_verify() {
    verify(4, "--lab 4x1gbit+dpu");
    verify(4, "--lab 2x1gbit+dpu --pcie 500mbit --algorithm ring");
}

#[test]
fn loss_between_dpus_is_repaired() {
    let outcome = verify(4, "--lab 4x1gbit+dpu --loss 20% --of multicast");
    assert!(outcome.counted("bytes sent again") > 0, "the network loses: {outcome:?}");
    verify(4, "--lab 4x1gbit+dpu --loss 1% --of all");
}

/// The small programs, in C and in Rust, started as their first lines say.
#[test]
fn the_first_examples_print_what_every_rank_sent() {
    let in_c = |name: &str| compiled("gcc", &format!("../../examples/{name}.c"), &["-loutboard"]);
    let in_rust = home().join("examples/allgather");
    assert!(in_rust.exists(), "{} is not built: cargo build --workspace --examples", in_rust.display());
    let sent = |rank: u32| format!("rank {rank} sent {}", rank * rank);
    let received = |rank: u32| {
        let from = (rank + 3) % 4;
        format!("rank {rank} received {from} and {}", from * from)
    };
    // Rank r contributes y = 2 x + r.
    let chained = |rank: u32| format!("rank {rank}: y = 16 x + {}", (0..4).fold(0, |y, rank| 2 * y + rank));
    let examples: [(_, &dyn Fn(u32) -> String); 4] =
        [(in_c("allgather"), &sent), (in_rust, &sent), (in_c("messages"), &received), (in_c("operator"), &chained)];
    for (program, says) in examples {
        for options in [&["-n", "4"][..], &["-n", "4", "--lab", "2x1gbit"]] {
            let outcome = Job::start_command(options, &[program.to_str().expect("a path of text")]).finish();
            outcome.assert_success();
            (0..4).map(says).for_each(|line| assert!(outcome.says(&line), "{line}: {outcome:?}"));
        }
    }
}

/// GP-5, GP-8, GP-9: an MPI program that records its patterns, started as by its user; it compares every byte with
/// MPI's. Eight ranks put two ranks in each direction of the stencil, so each rank exchanges all six faces with other
/// ranks.
#[test]
fn recorded_groups_of_hosts_with_dpus_move_every_byte() {
    let program = compiled("mpicc.openmpi", "../../examples/recorded.c", &["-loutboard"]);
    for lab in ["2x1gbit", "2x1gbit+dpu"] {
        let command = [program.to_str().expect("a path of text"), "10000", "4"];
        let outcome = Job::start_command(&["-n", "8", "--lab", lab, "--report"], &command).finish();
        outcome.assert_success();
        assert!(outcome.counted("collectives completed") > 0, "the calls were offloaded: {outcome:?}");
        assert_eq!(outcome.counted("failed"), 0, "{outcome:?}");
    }
}

/// SP-4: buffers of malloc are moved in place, on one host and between hosts. A forked child keeps its own contents.
#[test]
fn an_mpi_program_on_the_shared_heap_is_moved_in_shared_memory_alone() {
    let program = compiled("mpicc.openmpi", "tests/programs/buffers.c", &[]);
    let command = [program.to_str().expect("a path of text")];
    let run = |heap: &str, options: &[&str]| {
        let settings = [("OUTBOARD_HEAP", heap), ("OUTBOARD_CHOICE", "offload")];
        let options = [&["-n", "4", "--report"], options].concat();
        let outcome = Job::start_with(&settings, &options, &command).finish();
        outcome.assert_success();
        assert!(outcome.counted("collectives completed") > 0 && outcome.counted("failed") == 0, "{outcome:?}");
        let [shared, cross, descriptor] =
            ["in shared memory", "by cross-memory attach", "by memory descriptor"].map(|way| outcome.megabytes(way));
        (shared, cross + descriptor)
    };
    for options in [&[][..], &["--lab", "2x1gbit"]] {
        let (shared, otherwise) = run("shared", options);
        assert!(
            shared > 10.0 && otherwise < 0.1,
            "{options:?}: {shared} MB in shared memory, {otherwise} MB otherwise"
        );
        let (shared, otherwise) = run("off", options);
        assert!(otherwise > 10.0, "{options:?}: {shared} MB in shared memory, {otherwise} MB otherwise");
    }
}

#[test]
fn a_heap_that_is_neither_on_nor_off_is_refused() {
    let outcome = Job::start_with(&[("OUTBOARD_HEAP", "foo")], &["-n", "1"], &["true"]).finish();
    assert!(
        outcome.complains("OUTBOARD_HEAP is `foo`; set it to off or shared") && !outcome.succeeded(),
        "{outcome:?}"
    );
}

/// The victim's relay is the only outboardd on the victim's host. For the service process, the end of the relay is the
/// end of the rank.
#[test]
fn a_killed_relay_is_its_rank_s_service_process_and_takes_the_rank_with_it() {
    let outcome = Job::start(4, &["--lab", "4x1gbit+dpu"], "victim-service").finish();
    outcome.assert_success();
    assert_others_lose(&outcome, 4, RANK_LOST, "rank 2 of the group died");
    assert_eq!(outcome.end_of(VICTIM).code, SERVICE_LOST, "{outcome:?}");
}

#[test]
fn a_killed_daemon_of_a_dpu_is_named_to_its_own_rank_and_to_the_others() {
    let mut job = Job::start(4, &["--lab", "4x1gbit+dpu"], "forever");
    for _ in 0..4 {
        job.await_line("@going");
    }
    job.kill_daemon("--dock 10.77.1.3:");
    let outcome = job.finish();
    for rank in 0..4 {
        let end = outcome.end_of(rank);
        let (code, named) =
            if rank == VICTIM { (SERVICE_LOST, "10.77.1.3:4791 is lost") } else { (PEER_LOST, "(that of rank 2)") };
        assert_eq!(end.code, code, "rank {rank}: {outcome:?}");
        assert!(end.sentence.contains(named), "rank {rank} is told of {named}: {outcome:?}");
    }
}
