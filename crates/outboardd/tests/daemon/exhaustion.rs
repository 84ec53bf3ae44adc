//! If a resource is exhausted, the error names it with a remedy. Earlier ranks are still served, and nothing is left
//! behind.

use std::fs::File;
use std::process::Command;
use std::time::Instant;

use outboard::{Context, Contribution, Element, Group, Operator, Reduction, ReductionOutcome, Status};

use crate::support::scenarios::LIMIT;
use crate::support::{DAEMON, Daemon, Rank, SCENARIO, again};

const BLOCK: usize = 10_000;

/// Starts a daemon with at most `limit` descriptors.
fn with_descriptors(limit: usize) -> Daemon {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\""), DAEMON]);
    Daemon::start_by(command, &[])
}

fn attach(daemon: &Daemon) -> Result<Context, outboard::Error> {
    Context::attach(Some(&daemon.socket()))
}

fn alone(context: &Context) -> Result<Group, outboard::Error> {
    context.create_group(&context.offer()?[..], 1, 0)
}

fn gather(group: &Group) {
    let (send, mut receive) = (vec![7u8; BLOCK], vec![0u8; BLOCK]);
    let at = Contribution::At(send.as_ptr());
    // SAFETY: both buffers outlive the wait for the request's end.
    let mut request = unsafe { group.iallgather(at, receive.as_mut_ptr(), BLOCK as u64) }.expect("posted");
    request.wait(Some(LIMIT)).expect("it ends").expect("it succeeds");
    assert_eq!(send, receive);
}

/// With each limit another step of attaching fails.
#[test]
fn a_daemon_without_descriptors_says_so_and_serves_on() {
    let base = Daemon::start(&[]).descriptors();
    let mut served_before = false;
    for limit in base + 1..base + 20 {
        let daemon = with_descriptors(limit);
        let first = attach(&daemon).and_then(|context| Ok((alone(&context)?, context)));
        let mut crowd = Vec::new();
        let refused = match &first {
            Err(error) => error.clone(),
            Ok(_) => loop {
                match attach(&daemon) {
                    Ok(context) => crowd.push(context),
                    Err(error) => break error,
                }
                assert!(crowd.len() < 16, "{limit} descriptors are enough for {} ranks", crowd.len());
            },
        };
        let sentence = refused.to_string();
        assert_eq!(refused.status(), Status::Resource, "{limit}: {sentence}");
        assert!(sentence.contains("limit") && sentence.contains("descriptors"), "{limit}: {sentence}");
        if let Ok((group, _)) = &first {
            gather(group);
            served_before = true;
            drop(crowd);
            // There is room again after the daemon has noticed that the other ranks are gone.
            let until = Instant::now() + LIMIT;
            while attach(&daemon).is_err() && daemon_has_room(limit, base) {
                assert!(Instant::now() < until, "nobody can attach any more with {limit} descriptors");
            }
            gather(group);
        }
    }
    assert!(served_before, "some limit leaves room for one rank");
}

/// Whether there is room for two ranks: the first rank, and one more.
fn daemon_has_room(limit: usize, base: usize) -> bool {
    let rank = 8;
    limit >= base + 2 * rank
}

#[test]
fn a_rank_without_descriptors_or_memory_says_so_and_harms_nobody() {
    let daemon = Daemon::start(&[]);
    let context = attach(&daemon).expect("room");
    let group = alone(&context).expect("the group is made");
    for scenario in ["without-descriptors", "without-memory"] {
        let mut rank = Rank::spawn(again().env(SCENARIO, scenario).env("OUTBOARD_SOCKET", daemon.socket()));
        assert_eq!(rank.line(), "true true", "{scenario}: refused at first, attached at last");
        rank.finish();
        gather(&group);
    }
    group.destroy().expect("no request is in flight");
    context.detach().expect("no group is left");
}

/// Starts a daemon that may use `kilobytes` KB of address space.
fn with_memory(kilobytes: u64) -> Daemon {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {kilobytes} && exec \"$0\" \"$@\""), DAEMON]);
    Daemon::start_by(command, &["--scratch-quota", "64G"])
}

/// Address space of a daemon with two ranks, in KB.
fn addressed() -> u64 {
    let daemon = Daemon::start(&[]);
    let ranks = [attach(&daemon), attach(&daemon)];
    assert!(ranks.iter().all(Result::is_ok));
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("Linux tells");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Sums vectors of `bytes` bytes over two ranks; returns the first error.
fn sum(groups: &[Group], bytes: usize) -> Result<(), outboard::Error> {
    let reduction = Reduction::new(Operator::Sum, Element::F32).expect("defined by MPI");
    let mut buffers: Vec<_> = groups.iter().map(|_| (vec![0u8; bytes], vec![0u8; bytes])).collect();
    let requests = groups.iter().zip(&mut buffers).map(|(group, (send, receive))| {
        let at = Contribution::At(send.as_ptr());
        let elements = bytes as u64 / 4;
        let outcome = ReductionOutcome::Scan { count: elements, inclusive: true };
        // SAFETY: both buffers outlive the wait for the request's end.
        unsafe { group.ireduction(outcome, reduction, at, receive.as_mut_ptr()) }.expect("posted")
    });
    let requests: Vec<_> = requests.collect();
    let ends: Vec<_> = requests.into_iter().map(|mut request| request.wait(Some(LIMIT)).expect("it ends")).collect();
    ends.into_iter().collect()
}

/// The quota allows more memory than the machine has: the group that needs it gets the error, and other groups are
/// served.
#[test]
fn a_daemon_without_memory_says_so_and_serves_on() {
    let daemon = with_memory(addressed() + (16 << 10));
    let ranks = [attach(&daemon).expect("room"), attach(&daemon).expect("room")];
    let pair = || {
        let offers: Vec<u8> = ranks.iter().flat_map(|rank| *rank.offer().expect("an offer")).collect();
        std::thread::scope(|scope| {
            let made = [0, 1].map(|at| {
                scope.spawn({
                    let (rank, offers) = (&ranks[at], &offers);
                    move || rank.create_group(offers, 2, at as u32)
                })
            });
            made.map(|made| made.join().expect("no panic").expect("the group is made"))
        })
    };
    let (groups, others) = (pair(), pair());
    // Allocators use more address space than memory, some 64 MiB for one thread, and another amount in each run.
    let error = sum(&groups, 384 << 20).expect_err("more than there is");
    assert_eq!(error.status(), Status::Resource, "{error}");
    assert!(error.to_string().contains("memory"), "{error}");
    sum(&others, 4 << 10).expect("another group has what it needs");
}

#[test]
fn a_log_that_cannot_be_written_stops_nobody() {
    let mut command = Command::new(DAEMON);
    command.stderr(File::options().write(true).open("/dev/full").expect("Linux has it"));
    let mut daemon = Daemon::start_by(command, &["--log", "trace"]);
    let context = attach(&daemon).expect("it lives");
    let group = alone(&context).expect("the group is made");
    gather(&group);
    group.destroy().expect("no request is in flight");
    context.detach().expect("no group is left");
    assert!(daemon.stop().success());
}
