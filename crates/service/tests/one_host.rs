//! One daemon, the ranks of one host, through the real client library.

mod support;

use std::process::Command;

use support::{AGAIN, DAEMON, Daemon, SCENARIO, ranks};

#[test]
fn another_process() {
    support::another_process();
}

#[test]
fn four_ranks_gather_all_sizes_in_place_and_not() {
    let mut daemon = Daemon::start(&[]);
    let mut ranks = ranks("allgather", &daemon, 4);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
    let statistics = daemon.statistics();
    assert_eq!(statistics["completed"], 4 * 14, "{statistics}");
    assert_eq!(statistics["failed"], 0, "{statistics}");
    assert_eq!(statistics["ranks"], 4, "{statistics}");
    assert_eq!(statistics["memory_tiers"]["cross_memory_attach"], 4, "{statistics}");
    ranks.iter_mut().for_each(support::Rank::go_on);
    ranks.into_iter().for_each(support::Rank::finish);
    let (socket, status) = (daemon.socket(), daemon.stop());
    assert!(status.success(), "{status}");
    assert!(!socket.exists(), "the socket is removed");
}

/// SP-1: socket and core of a rank that is bound, as the daemon sees them from outside.
#[test]
fn sockets_and_cores_of_ranks_are_told() {
    let daemon = Daemon::start(&[]);
    let allowed = rustix::thread::sched_getaffinity(None).expect("a few processors");
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("one at least");
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &first.to_string()]).arg(std::env::current_exe().expect("a path"));
    command.args(AGAIN);
    let mut rank = support::Rank::spawn(command.env(SCENARIO, "alone").env("OUTBOARD_SOCKET", daemon.socket()));
    assert_eq!(rank.line(), "ready");
    let statistics = daemon.statistics();
    let place = &statistics["seated"][0]["place"];
    assert!(place["socket"].is_number() && place["core"].is_number(), "{statistics}");
    rank.go_on();
    rank.finish();
}

#[test]
fn every_rank_can_broadcast() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("broadcast", &daemon, 3);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
    let statistics = daemon.statistics();
    assert_eq!((&statistics["completed"], &statistics["failed"]), (&(3 * 24).into(), &0.into()), "{statistics}");
    ranks.iter_mut().for_each(support::Rank::go_on);
    ranks.into_iter().for_each(support::Rank::finish);
}

#[test]
fn ranks_gather_uneven_blocks() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("allgatherv", &daemon, 4);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
    let statistics = daemon.statistics();
    assert_eq!((&statistics["completed"], &statistics["failed"]), (&(4 * 18).into(), &0.into()), "{statistics}");
    ranks.iter_mut().for_each(support::Rank::go_on);
    ranks.into_iter().for_each(support::Rank::finish);
}

/// SP-5 on one host: by copies.
#[test]
fn ranks_exchange_even_and_uneven_blocks() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("alltoall", &daemon, 4);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
    let statistics = daemon.statistics();
    assert_eq!((&statistics["completed"], &statistics["failed"]), (&(4 * 16).into(), &0.into()), "{statistics}");
    ranks.iter_mut().for_each(support::Rank::go_on);
    ranks.into_iter().for_each(support::Rank::finish);
}

/// SP-5 on one host.
#[test]
fn ranks_gather_at_and_scatter_from_a_root() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("rooted", &daemon, 4);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
    let statistics = daemon.statistics();
    assert_eq!((&statistics["completed"], &statistics["failed"]), (&(4 * 50).into(), &0.into()), "{statistics}");
    ranks.iter_mut().for_each(support::Rank::go_on);
    ranks.into_iter().for_each(support::Rank::finish);
}

/// TH-2, SP-6 on one host.
#[test]
fn ranks_reduce_and_pass_barriers() {
    let daemon = Daemon::start(&[]);
    let calls = 5 * 6 * 2 * 2;
    for (scenario, calls) in [("reductions", calls), ("own-operators", calls), ("same-bits", 12)] {
        let before = daemon.statistics()["completed"].as_u64().expect("a number");
        let mut ranks = ranks(scenario, &daemon, 4);
        ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
        let statistics = daemon.statistics();
        let counted = (&statistics["completed"], &statistics["failed"]);
        assert_eq!(counted, (&(before + 4 * calls).into(), &0.into()), "{statistics}");
        ranks.iter_mut().for_each(support::Rank::go_on);
        ranks.into_iter().for_each(support::Rank::finish);
    }
    for scenario in ["reductions", "own-operators"] {
        let mut alone = ranks(scenario, &daemon, 1);
        assert_eq!(alone[0].line(), "done");
        alone[0].go_on();
        alone.into_iter().for_each(support::Rank::finish);
    }
}

/// MC-9: posting does not wait for what was posted before.
#[test]
fn many_calls_in_flight_end_with_the_right_bytes() {
    let daemon = Daemon::start(&[]);
    ranks("in-flight", &daemon, 4).into_iter().for_each(support::Rank::finish);
}

#[test]
fn one_rank_alone_gathers_from_itself() {
    let daemon = Daemon::start(&[]);
    ranks("in-flight", &daemon, 1).into_iter().for_each(support::Rank::finish);
}

#[test]
fn a_killed_rank_is_named_to_the_others() {
    let daemon = Daemon::start(&[]);
    for scenario in ["one-dies", "own-operator-one-dies"] {
        let mut ranks = ranks(scenario, &daemon, 4);
        let mut last = ranks.pop().expect("four");
        assert_eq!(last.line(), "ready");
        ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "posted"));
        last.kill();
        ranks.into_iter().for_each(support::Rank::finish);
    }
}

#[test]
fn ranks_that_disagree_learn_both_calls() {
    let daemon = Daemon::start(&[]);
    ranks("mismatch", &daemon, 3).into_iter().for_each(support::Rank::finish);
    ranks("exchange-mismatch", &daemon, 3).into_iter().for_each(support::Rank::finish);
    ranks("rooted-mismatch", &daemon, 3).into_iter().for_each(support::Rank::finish);
}

#[test]
fn ranks_learn_of_the_daemons_death() {
    let mut daemon = Daemon::start(&[]);
    let mut ranks = ranks("daemon-dies", &daemon, 3);
    assert_eq!(ranks[0].line(), "ready");
    ranks[1..].iter_mut().for_each(|rank| assert_eq!(rank.line(), "posted"));
    daemon.kill();
    ranks[0].go_on();
    ranks.into_iter().for_each(support::Rank::finish);
}

/// SP-4: a buffer that cannot be accessed is the fault of the rank that handed it over, and the daemon goes on.
#[test]
fn a_buffer_that_is_nowhere_is_blamed_on_its_rank() {
    let daemon = Daemon::start(&[]);
    ranks("send-fault", &daemon, 3).into_iter().for_each(support::Rank::finish);
    ranks("receive-fault", &daemon, 3).into_iter().for_each(support::Rank::finish);
    ranks("in-flight", &daemon, 2).into_iter().for_each(support::Rank::finish);
}

/// Ranks that come and go, in good order or not, leave no descriptor behind.
#[test]
fn nothing_is_left_of_ranks_that_are_gone() {
    let daemon = Daemon::start(&[]);
    // Its answer comes after its start is over.
    daemon.statistics();
    let before = daemon.descriptors();
    for round in 0..3 {
        let mut ranks = ranks("attached", &daemon, 2);
        ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "ready"));
        assert!(daemon.descriptors() > before);
        for mut rank in ranks {
            if round == 1 {
                rank.kill();
            } else {
                rank.go_on();
                rank.finish();
            }
        }
        // The kernel tells the daemon of each end; its answer to us comes after it has looked at all of them.
        let gone = (0..1000).any(|_| daemon.statistics()["ranks"] == 0);
        assert!(gone, "ranks are still attached: {}", daemon.statistics());
        assert_eq!(daemon.descriptors(), before);
    }
}

#[test]
fn an_idle_daemon_with_ranks_sleeps() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("attached", &daemon, 4);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "ready"));
    let sleeps = |daemon: &Daemon| daemon.statistics()["datapath"]["sleeps"].as_u64().expect("a number");
    let (before, start, slept) = (daemon.cpu_seconds(), std::time::Instant::now(), sleeps(&daemon));
    // The time over which idleness is measured, nothing is waited for.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let wakes = sleeps(&daemon) - slept;
    let share = (daemon.cpu_seconds() - before) / start.elapsed().as_secs_f64();
    assert!(share < 0.005, "an idle daemon takes {share} of a processor");
    assert!(wakes < 30, "an idle daemon wakes {wakes} times in three seconds");
    for mut rank in ranks {
        rank.go_on();
        rank.finish();
    }
}

#[test]
fn a_second_daemon_at_the_same_socket_is_refused() {
    let daemon = Daemon::start(&[]);
    let second = Command::new(DAEMON).arg("--socket").arg(daemon.socket()).output().expect("it starts");
    assert!(!second.status.success());
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(text.contains("another daemon listens"), "{text}");
    assert!(daemon.socket().exists(), "the first one's socket stays");
}
