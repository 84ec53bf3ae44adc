//! The memory and descriptors of a daemon do not grow while it serves for long. Ranks attach and leave in good order or
//! by failure; many groups and many jobs exist at once. Short versions run with all tests, long versions by `make
//! soak`.

use std::time::{Duration, Instant};

use outboard::{Context, Contribution, Group, Request};

use crate::support::scenarios::LIMIT;
use crate::support::{Daemon, Rank, expect_line_from_all, let_go, make_group, ranks};

/// Most growth of a daemon after its warm-up, in bytes. Long-lived objects fragment the heap by chance, and the size of
/// the heap was seen to vary by this much. With 100,000 cycles the test still finds a leak of 21 bytes per cycle.
const TOLERANCE: u64 = 2 << 20;
const BLOCK: usize = 64;

/// Resources of a daemon without attached ranks.
#[derive(Debug)]
struct Footprint {
    resident: u64,
    descriptors: usize,
}

impl Footprint {
    /// Waits until the daemon has noticed the end of the last rank.
    fn of(daemon: &Daemon) -> Footprint {
        daemon.await_statistics(|told| told["ranks"] == 0);
        Footprint { resident: daemon.resident_bytes(), descriptors: daemon.descriptors() }
    }

    fn assert_kept(&self, daemon: &Daemon) {
        let now = Footprint::of(daemon);
        daemon.await_descriptors(self.descriptors);
        assert!(now.resident <= self.resident + TOLERANCE, "memory leaks: {self:?} became {now:?}");
    }
}

fn attach(daemon: &Daemon) -> Context {
    Context::attach(Some(&daemon.socket())).expect("the daemon answers")
}

/// Posts an allgather; the caller must keep the buffer until the request has ended.
fn post(group: &Group, receive: &mut [u8]) -> Request {
    // SAFETY: the callers keep the buffer until the request has ended.
    unsafe { group.iallgather(Contribution::InPlace, receive.as_mut_ptr(), BLOCK as u64) }.expect("posted")
}

/// One rank attaches and leaves. In every 16th cycle two ranks make a group, and one of them hangs up while the other
/// waits for its call.
fn cycle(daemon: &Daemon, number: usize) {
    if !number.is_multiple_of(16) {
        return attach(daemon).detach().expect("no group is left");
    }
    let pair = [attach(daemon), attach(daemon)];
    let mut groups = make_group(&pair);
    let [first, second] = pair;
    let mut receive = [0; 2 * BLOCK];
    let mut request = post(&groups[0], &mut receive);
    drop((groups.pop(), second));
    request.wait(Some(LIMIT)).expect("it ends").expect_err("nobody contributes");
    drop((request, groups, first));
}

fn cycles(count: usize) {
    let daemon = Daemon::start(&["--offload-from", "1"]);
    (0..count / 4).for_each(|number| cycle(&daemon, number));
    let warm = Footprint::of(&daemon);
    (0..count).for_each(|number| cycle(&daemon, number));
    warm.assert_kept(&daemon);
}

#[test]
fn attachments_that_come_and_go_leave_nothing() {
    cycles(500);
}

#[test]
#[ignore = "takes minutes: run by make soak"]
fn soak_100_000_attachments_that_come_and_go_leave_nothing() {
    cycles(100_000);
}

#[test]
#[ignore = "sets measured times against each other: run by make soak"]
fn soak_an_idle_daemon_takes_a_thousandth_of_a_processor() {
    let daemon = Daemon::start(&["--poll", "auto"]);
    let mut ranks = ranks("attached", &daemon, 4);
    expect_line_from_all(&mut ranks, "ready");
    let (before, start) = (daemon.cpu_seconds(), Instant::now());
    // The test measures idleness for this time; it waits for no event.
    std::thread::sleep(Duration::from_secs(3));
    let share = (daemon.cpu_seconds() - before) / start.elapsed().as_secs_f64();
    assert!(share < 0.001, "an idle daemon takes {share} of a processor");
    let_go(ranks);
}

/// Keeps `count` groups at once, each with a call in flight.
fn groups(count: usize, rounds: usize) {
    let daemon = Daemon::start(&["--offload-from", "1"]);
    let round = || {
        let pair = [attach(&daemon), attach(&daemon)];
        let groups: Vec<Group> = (0..count).flat_map(|_| make_group(&pair)).collect();
        assert_eq!(daemon.statistics()["memberships"], 2 * count);
        let mut buffers = vec![[0; 2 * BLOCK]; 2 * count];
        let mut requests = Vec::new();
        for (at, (group, buffer)) in groups.iter().zip(&mut buffers).enumerate() {
            let rank = at % 2;
            buffer[rank * BLOCK..][..BLOCK].fill(7 + rank as u8);
            requests.push(post(group, buffer));
        }
        for mut request in requests {
            request.wait(Some(LIMIT)).expect("it ends").expect("it succeeds");
        }
        for buffer in buffers {
            assert!(buffer[..BLOCK] == [7; BLOCK] && buffer[BLOCK..] == [8; BLOCK]);
        }
        groups.into_iter().for_each(|group| group.destroy().expect("no request is in flight"));
        pair.into_iter().for_each(|context| context.detach().expect("no group is left"));
    };
    round();
    let warm = Footprint::of(&daemon);
    (0..rounds).for_each(|_| round());
    warm.assert_kept(&daemon);
}

#[test]
fn groups_that_existed_at_once_leave_nothing() {
    groups(100, 3);
}

#[test]
#[ignore = "takes minutes: run by make soak"]
fn soak_1_000_groups_that_existed_at_once_leave_nothing() {
    groups(1000, 20);
}

/// Runs `count` jobs of two processes each at once.
fn jobs(count: usize, rounds: usize) {
    let daemon = Daemon::start(&[]);
    let round = || {
        let mut ranks: Vec<Rank> = (0..count).flat_map(|_| ranks("allgather", &daemon, 2)).collect();
        expect_line_from_all(&mut ranks, "done");
        assert_eq!(daemon.statistics()["ranks"], 2 * count);
        let_go(ranks);
    };
    round();
    let warm = Footprint::of(&daemon);
    (0..rounds).for_each(|_| round());
    warm.assert_kept(&daemon);
}

#[test]
fn jobs_at_once_leave_nothing() {
    jobs(8, 1);
}

#[test]
#[ignore = "takes minutes: run by make soak"]
fn soak_8_jobs_at_once_leave_nothing() {
    jobs(8, 50);
}
