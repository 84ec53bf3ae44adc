//! Behaviour of a service process that does not depend on how ranks reach it: on their own host or through a relay
//! (GP-9).
//!
//! The tests for both ways call these functions. A test that concerns one way only is in the file for that way.

use std::process::Command;
use std::time::{Duration, Instant};

use outboard::{Context, Status};
use serde_json::Value;

use super::recorded::CALLS;
use super::refusable::Calls;
use super::{AGAIN, Daemon, Rank, SCENARIO, expect_line_from_all, kill_the_last, let_go, ranks};

/// Scenarios of collectives: name, number of ranks, and calls of each rank.
const COLLECTIVES: [(&str, usize, u64); 9] = [
    ("allgather", 4, 14),
    ("broadcast", 3, 24),
    ("alltoall", 4, 16),
    ("allgatherv", 4, 18),
    ("rooted", 4, 50),
    ("reductions", 4, 120),
    ("own-operators", 4, 120),
    ("same-bits", 4, 12),
    ("reductions", 1, 120),
];

/// A service process, and the relay if ranks attach through one.
pub(crate) struct Service {
    pub(crate) daemon: Daemon,
    pub(crate) relay: Option<Daemon>,
}

impl From<Daemon> for Service {
    fn from(daemon: Daemon) -> Service {
        Service { daemon, relay: None }
    }
}

impl Service {
    pub(crate) fn door(&mut self) -> &mut Daemon {
        self.relay.as_mut().unwrap_or(&mut self.daemon)
    }

    pub(crate) fn ranks(&self, scenario: &str, count: usize) -> Vec<Rank> {
        ranks(scenario, self.relay.as_ref().unwrap_or(&self.daemon), count)
    }

    /// Runs ranks of a scenario that end without a report.
    pub(crate) fn run(&self, scenario: &str, count: usize) {
        self.ranks(scenario, count).into_iter().for_each(Rank::finish);
    }

    /// Runs ranks of a scenario that report when they are done; returns the counters at that time.
    pub(crate) fn run_and_count(&self, scenario: &str, count: usize) -> Value {
        let failed = self.count("failed");
        let mut ranks = self.ranks(scenario, count);
        expect_line_from_all(&mut ranks, "done");
        let statistics = self.daemon.statistics();
        assert_eq!(statistics["failed"], failed, "{scenario}: {statistics}");
        let_go(ranks);
        statistics
    }

    fn count(&self, name: &str) -> u64 {
        self.daemon.statistics()[name].as_u64().expect("a number")
    }
}

/// TH-2, SP-5, SP-6: every byte is right, and the tier `tier` of memory access moved all bytes.
pub(crate) fn collectives(service: &Service, tier: &str) {
    for (scenario, ranks, calls) in COLLECTIVES {
        let before = service.count("completed");
        let statistics = service.run_and_count(scenario, ranks);
        assert_eq!(statistics["completed"], before + ranks as u64 * calls, "{scenario}: {statistics}");
        assert_eq!(statistics["memory_tiers"][tier], ranks, "{scenario}: {statistics}");
    }
}

/// MC-9: calls can be posted while earlier calls are in flight.
pub(crate) fn many_calls_in_flight(service: &Service) {
    service.run("in-flight", 4);
    service.run("in-flight", 1);
}

/// GP-1, GP-2, GP-6, GP-8.
pub(crate) fn recordings_and_messages(service: &Service) {
    for (scenario, ranks) in [("recorded", 4), ("recorded", 1), ("messages", 3), ("messages", 1), ("recorded-sums", 3)]
    {
        service.run_and_count(scenario, ranks);
    }
    starts_follow_one_another(service);
    for (scenario, ranks) in [("crossed", 2), ("crossed", 4), ("truncated", 3), ("recorded-mismatch", 3)] {
        service.run(scenario, ranks);
    }
}

/// Several starts of one recording are in flight at once.
pub(crate) fn starts_follow_one_another(service: &Service) {
    service.run_and_count("recorded-in-flight", 2);
}

/// GP-5: after its first call a recording takes one message to the service process per call.
pub(crate) fn a_start_is_one_call(service: &Service) {
    let mut ranks = service.ranks("repeated", 4);
    expect_line_from_all(&mut ranks, "ready");
    let before = service.count("submissions");
    ranks.iter_mut().for_each(Rank::go_on);
    expect_line_from_all(&mut ranks, "done");
    assert_eq!(service.count("submissions") - before, (4 * CALLS) as u64);
    let_go(ranks);
}

/// SP-1: the service process reports the socket and core of a rank that is bound. Returns the service process's record
/// of the rank.
pub(crate) fn a_rank_is_placed(service: &mut Service) -> Value {
    let allowed = rustix::thread::sched_getaffinity(None).expect("a few processors");
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("one at least");
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &first.to_string()]).arg(std::env::current_exe().expect("a path")).args(AGAIN);
    let mut rank = Rank::spawn(command.env(SCENARIO, "alone").env("OUTBOARD_SOCKET", service.door().socket()));
    assert_eq!(rank.line(), "ready");
    let seated = service.daemon.statistics()["seated"][0].clone();
    assert!(seated["place"]["socket"].is_number() && seated["place"]["core"].is_number(), "{seated}");
    let_go(vec![rank]);
    seated
}

/// If a rank dies, the others get its number. If calls do not match, the ranks get an error.
pub(crate) fn deaths_and_disagreements(service: &Service) {
    for scenario in ["one-dies", "own-operator-one-dies", "recorded-one-dies", "source-one-dies"] {
        kill_the_last(service.ranks(scenario, 4));
    }
    for scenario in ["mismatch", "exchange-mismatch", "rooted-mismatch", "nothing-for-who-waits"] {
        service.run(scenario, 3);
    }
}

/// SP-4: a buffer at an invalid address is the fault of the rank that passed it, and other ranks continue.
pub(crate) fn faults_are_blamed_on_their_rank(service: &Service) {
    service.run("send-fault", 3);
    service.run("receive-fault", 3);
    service.run("in-flight", 2);
}

/// Whether ranks wait until the test has withdrawn a tier of access to their memory, or work meanwhile.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Moment {
    Awaited,
    UnderWay,
    /// Ranks wait until then with starts of one recording in flight.
    Recorded,
}

/// SP-4, GP-9: ranks work while `refusals` take effect one after the other at the process that accepts orders. Then
/// each rank reports that `tier` reaches its memory. Returns the counters.
pub(crate) fn withdraw(
    service: &mut Service,
    moment: Moment,
    ranks: usize,
    refusals: &[(Calls, i32)],
    tier: &str,
) -> Value {
    let (scenario, waiting) = match moment {
        Moment::Awaited => ("withdrawn", ranks),
        Moment::UnderWay => ("withdrawn-under-way", 1),
        Moment::Recorded => ("recorded-withdrawn", ranks),
    };
    let mut ranks = service.ranks(scenario, ranks);
    expect_line_from_all(&mut ranks, "ready");
    refusals.iter().for_each(|&(calls, errno)| service.door().refuse(calls, errno));
    ranks[..waiting].iter_mut().for_each(Rank::go_on);
    expect_line_from_all(&mut ranks, tier);
    let statistics = service.daemon.statistics();
    assert_eq!(statistics["failed"], 0, "{scenario}: {statistics}");
    let_go(ranks);
    statistics
}

/// Starts two ranks, and orders the service process or relay to end after the first rank has posted a call.
fn told_to_end(scenario: &str, service: &mut Service) -> [Rank; 2] {
    let Ok([mut first, mut second]) = <[Rank; 2]>::try_from(service.ranks(scenario, 2)) else {
        unreachable!("two were started")
    };
    assert_eq!((first.line(), second.line()), ("posted".to_owned(), "ready".to_owned()));
    service.door().request_stop();
    [first, second]
}

/// A service process or relay that is ordered to end admits no new rank. It completes the calls in flight, even if some
/// ranks have yet to call.
pub(crate) fn calls_end_well(mut service: Service) {
    let [first, mut second] = told_to_end("drained", &mut service);
    let deadline = Instant::now() + Duration::from_secs(30);
    let door = service.door();
    let refused = loop {
        // The order may not have been read yet.
        match Context::attach(Some(&door.socket())) {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "ranks may attach to what ends"),
        }
    };
    assert!(refused.status() == Status::NoService && refused.to_string().contains("told to end"), "{refused}");
    second.go_on();
    first.finish();
    second.finish();
    let status = door.wait();
    assert!(status.success() && !door.socket().exists(), "{status}");
}

/// A service process or relay that is ordered to end fails calls that do not complete in time. Returns the error of the
/// rank that has called.
pub(crate) fn calls_are_given_up(mut service: Service) -> String {
    let [mut first, mut second] = told_to_end("given-up", &mut service);
    let why = first.line();
    let status = service.door().wait();
    assert!(status.success(), "{status}");
    second.go_on();
    first.finish();
    second.finish();
    why
}

/// SP-4: if a rank's process runs another program, no bytes for the rank are written to that program's memory, and none
/// are read from it. Other ranks do not wait for the rank's calls, although the process lives and the rank's socket is
/// open.
pub(crate) fn another_program_follows(service: &Service) {
    let called = if service.relay.is_some() { "follow-relayed" } else { "follow" };
    [called, "follow-without-a-call"].into_iter().for_each(|scenario| a_program_follows(service, scenario));
}

/// Runs a scenario whose last rank becomes another program.
pub(crate) fn a_program_follows(service: &Service, scenario: &str) {
    let mut others = service.ranks(scenario, 3);
    let mut follower = others.pop().expect("several");
    assert_eq!(follower.line(), "follows");
    expect_line_from_all(&mut others, "ready");
    let_go(others);
    follower.let_go();
}
