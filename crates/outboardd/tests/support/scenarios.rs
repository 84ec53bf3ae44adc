//! Scenarios of the tests; every rank of a test runs the test's scenario.

mod churn;

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use outboard::{Context, Contribution, Error, Group, Request, Status};
use outboard_shm::attach::{AttachChannel, AttachReply};

use super::exchanges::{self, check_exchange, post_uneven};
use super::forger;
use super::rank_copies::{self, Meanwhile};
use super::reductions::{self, check_sums, post_sums};
use super::{life, offloaded, program_memory, recorded, rooted, survivors};

/// Longest wait in a test; only a failing test waits this long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// An address outside of every buffer.
const NOWHERE: *mut u8 = 8 as *mut u8;

pub(super) fn print_line(what: &str) {
    println!("\n@{what}");
    std::io::stdout().flush().expect("the test reads");
}

pub(super) fn wait_for_line() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the test writes");
}

/// Reports `what`, then waits until the test lets this process continue.
pub(super) fn pause(what: &str) {
    print_line(what);
    wait_for_line();
}

/// Waits until the test kills this process.
pub(super) fn wait_for_death() -> ! {
    pause("ready");
    unreachable!("it is killed");
}

/// Makes a group with this rank as its only member, and calls an allgather in the group.
pub(super) fn gather_alone(context: &Context) {
    let group = context.create_group(&context.offer().expect("an offer")[..], 1, 0).expect("the group is made");
    check(post(&group, 0, 10_000, false), 1);
    group.destroy().expect("no request is in flight");
}

/// Scenarios of processes that are not ranks, or of ranks that do not join the others at once.
fn without_world(name: &str) -> Option<fn()> {
    Some(match name {
        "rendezvous" => rendezvous,
        super::refusable::NAME => super::refusable::serve,
        "alone" => alone,
        "refused" => refused,
        "no-world" => || no_world(Status::PeerLost),
        "mismatched-world" => || no_world(Status::Mismatch),
        "stranger" => forger::stranger,
        "full" => full,
        "without-descriptors" => without_descriptors,
        "without-memory" => without_memory,
        "limited-from-the-start" => program_memory::limited_from_the_start,
        "unrecorded" => recorded::unrecorded,
        "posting-threads" => recorded::posting_threads,
        "outlives" => outlives,
        "beyond" => beyond,
        "other-user" => other_user,
        "no-init" => no_init,
        "reattaches" => life::reattaches,
        "follower" => survivors::follower,
        _ => return None,
    })
}

/// Runs the scenario `name` as the rank that the environment describes.
pub(crate) fn run(name: &str) {
    if let Some(scenario) = without_world(name) {
        return scenario();
    }
    let context = Context::attach(None).expect("the daemon answers");
    let group = context.world().expect("the group is made");
    match name {
        "allgather" => allgather(&group),
        "replayed" => forger::replayed(&group),
        "broadcast" => broadcast(&group),
        "late-leaf" => late_leaf(&group),
        "in-flight" => in_flight(&group),
        "one-dies" => one_dies(&group),
        "survived-one-dies" => survivors::dies(&group),
        "follow" => survivors::follow(&group, true, false),
        "follow-relayed" => survivors::follow(&group, true, true),
        "follow-without-a-call" => survivors::follow(&group, false, false),
        "mismatch" => mismatch(&group),
        "never-asks" => never_calls(&context, &group),
        "alltoall" => exchanges::alltoall(&group),
        "offloaded" => offloaded::calls(&group),
        "landing" => exchanges::landing(&context, &group),
        "allgatherv" => exchanges::allgatherv(&group),
        "rooted" => rooted::all_kinds(&group),
        "late-root" => rooted::late_root(&group),
        "rooted-mismatch" => rooted::mismatch(&group),
        "nothing-for-who-waits" => rooted::nothing_for_who_waits(&group),
        "held-up" => rooted::held_up(&group),
        "late-exchange" => exchanges::late(&group),
        "reductions" => reductions::all(&group),
        "own-operators" => reductions::all_by_ranks(&group),
        "own-operator-one-dies" => reductions::one_dies(&group),
        "same-bits" => reductions::same_bits(&group),
        "late-reduction" => reductions::late(&group),
        "late-own-operator" => reductions::late_by_ranks(&group),
        "exchange-mismatch" => exchanges::mismatch(&group),
        "errands" => rank_copies::calls(&group, Meanwhile::Wait),
        "errands-looking" => rank_copies::calls(&group, Meanwhile::Look),
        "errands-stopped" => rank_copies::stopped(&group),
        "errands-one-dies" => rank_copies::one_dies(&group),
        "recorded" => recorded::patterns(&group),
        "recorded-sums" => recorded::sums(&group),
        "repeated" => recorded::repeated(&group),
        "recorded-in-flight" => recorded::accumulated(&group),
        "recorded-withdrawn" => recorded::withdrawn(&context, &group),
        "recorded-service-dies" => recorded::without_service(&group),
        "crossed" => recorded::crossed(&group),
        "messages" => recorded::messages(&group),
        "truncated" => recorded::truncated(&group),
        "recorded-mismatch" => recorded::disagreeing(&group),
        "source-one-dies" => recorded::source_dies(&group),
        "recorded-one-dies" => recorded::one_dies(&group),
        "drained" => return life::drained(&group),
        "given-up" => return life::given_up(&group),
        "busy" => life::busy(&group),
        "halted" => life::halted(&group),
        "a-host-dies" => life::a_host_dies(&group),
        "daemon-dies" => daemon_dies(&group),
        "a-daemon-dies" => a_daemon_dies(&group, 1),
        "a-sibling-dies" => a_daemon_dies(&group, 2),
        "send-fault" => fault(&group, Nowhere::Send),
        "receive-fault" => fault(&group, Nowhere::Receive),
        "unwritable" => program_memory::unwritable(&context, &group, program_memory::Kind::Private),
        "unwritable-shared" => program_memory::unwritable(&context, &group, program_memory::Kind::Shared),
        "out-of-reach" => program_memory::out_of_reach(&group),
        "limited" => program_memory::limited(&context, &group),
        "limited-staging" => program_memory::limited_staging(&group),
        "forked" => program_memory::forked(&context, &group),
        "withdrawn" => withdrawn(&context, &group),
        "withdrawn-under-way" => withdrawn_under_way(&context, &group),
        "churn" => churn::run(&context, &group),
        "attached" => {
            pause("ready");
        }
        other => panic!("no scenario {other}"),
    }
    // Ranks that have lost their daemon cannot detach.
    if !name.ends_with("-dies") || name.ends_with("one-dies") {
        group.destroy().expect("no request is in flight");
        context.detach().expect("no group is left");
    }
}

/// The process is not a rank: it serves the rendezvous for ranks of other hosts. The environment holds the address to
/// listen at and the number of ranks.
fn rendezvous() {
    let variable = |name| std::env::var(name).expect("set by the test");
    let listener = TcpListener::bind(variable("OUTBOARD_RENDEZVOUS")).expect("the address is free");
    print_line("ready");
    super::serve_rendezvous(&listener, variable("OUTBOARD_WORLD_SIZE").parse().expect("a number"));
}

fn refused() {
    print_line(&Context::attach(None).expect_err("no daemon can be started").to_string());
}

/// Reports why the group of all ranks is not made.
fn no_init() {
    print_line(&Context::init().expect_err("a rank has no daemon").to_string());
}

/// Attaches, and when the test continues makes a group with this rank as its only member.
fn alone() {
    let context = Context::attach(None).expect("a daemon answers");
    pause("ready");
    gather_alone(&context);
    context.detach().expect("no group is left");
}

/// Attaches, and reports the error of a request that follows the daemon's end.
fn outlives() {
    let context = Context::attach(None).expect("a daemon answers");
    pause("ready");
    print_line(&context.offer().expect_err("the daemon is gone").to_string());
}

/// Makes a call that needs more memory than the daemon keeps for a rank, and reports how the call ends.
fn beyond() {
    let context = Context::attach(None).expect("a daemon answers");
    let group = context.create_group(&context.offer().expect("an offer")[..], 1, 0).expect("the group is made");
    let mut call = post(&group, 0, 100_000, false);
    let ended = call.request.wait(Some(LIMIT)).expect("within the limit");
    let error = ended.expect_err("there is no room for it");
    assert_eq!(error.status(), Status::ServiceLost, "{error}");
    print_line(&error.to_string());
}

/// Connects without the library, which would refuse the socket, and reports the daemon's refusal.
fn other_user() {
    let socket = std::env::var("OUTBOARD_SOCKET").expect("set by the test");
    let channel = AttachChannel::connect(Path::new(&socket)).expect("it listens");
    assert!(channel.wait(LIMIT).expect("poll"), "no answer");
    match channel.receive::<AttachReply>().expect("a reply").expect("it waits").message {
        AttachReply::Error { text, .. } => print_line(&text),
        other => panic!("{other:?}"),
    }
    assert!(
        channel.wait(LIMIT).expect("poll") && channel.receive::<AttachReply>().is_err(),
        "the connection stays open"
    );
}

/// Attaches although there may be no disk space for a daemon. Reports the outcome and the files that stayed.
fn full() {
    let attached = Context::attach(None);
    let outcome = attached.as_ref().map_or_else(ToString::to_string, |_| "attached".to_owned());
    if let Ok(context) = attached {
        gather_alone(&context);
        context.detach().expect("no group is left");
    }
    let left = std::fs::read_dir(std::env::temp_dir()).expect("there").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    print_line(&outcome);
    print_line(&left.join(" "));
}

/// Returns whether a process that lacks a resource has attached. If not, checks that the error has these words.
fn attached(outcome: Result<Context, Error>, words: &[&str]) -> bool {
    match outcome {
        Ok(context) => {
            context.detach().expect("no group is left");
            true
        }
        Err(error) => {
            let sentence = error.to_string();
            assert_eq!(error.status(), Status::Resource, "{sentence}");
            assert!(words.iter().all(|word| sentence.contains(word)), "{sentence}");
            false
        }
    }
}

/// Reports whether any attempt was refused, and whether any attempt succeeded.
fn print_both(attached: &[bool]) {
    print_line(&format!("{} {}", attached.contains(&false), attached.contains(&true)));
}

/// Attaches repeatedly, each time with more free descriptors than before.
fn without_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = rustix::process::Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("it may be lowered");
    let mut hoard: Vec<std::fs::File> = Vec::new();
    hoard.extend(std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()));
    let outcomes = [(); 8].map(|()| {
        let outcome = attached(Context::attach(None), &["limit", "descriptors"]);
        hoard.pop();
        outcome
    });
    print_both(&outcomes);
}

/// Attaches repeatedly, each time with more free address space than before.
fn without_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let unlimited = getrlimit(Resource::As);
    // Reserves a part of the heap for small allocations.
    drop((0..3).map(|_| vec![1u8; 32 << 10]).collect::<Vec<_>>());
    let outcomes = [32 << 10, 96 << 10, 64 << 20].map(|spare| {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("there");
        let pages: u64 = pages.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number");
        let limit = Rlimit { current: Some(pages * 4096 + spare), ..unlimited };
        setrlimit(Resource::As, limit).expect("it may be lowered");
        let outcome = Context::attach(None);
        setrlimit(Resource::As, unlimited).expect("it may be raised again");
        attached(outcome, &["check limits on memory"])
    });
    print_both(&outcomes);
}

pub(super) fn me(group: &Group) -> (usize, usize) {
    (group.rank().expect("not forked") as usize, group.size().expect("not forked") as usize)
}

/// Contribution of rank `rank` to call `call`.
pub(super) fn block(rank: usize, call: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251 + rank * 101 + call * 17) as u8).collect()
}

pub(crate) struct Posted {
    _send: Vec<u8>,
    receive: Vec<u8>,
    pub(super) request: Request,
    call: usize,
    bytes: usize,
}

pub(crate) fn post(group: &Group, call: usize, bytes: usize, in_place: bool) -> Posted {
    let (rank, ranks) = me(group);
    let send = block(rank, call, bytes);
    let mut receive = vec![0xee; bytes * ranks];
    let contribution = if in_place {
        receive[rank * bytes..][..bytes].copy_from_slice(&send);
        Contribution::InPlace
    } else {
        Contribution::At(send.as_ptr())
    };
    // SAFETY: the buffers live in the result and are read after the request has ended.
    let request = unsafe { group.iallgather(contribution, receive.as_mut_ptr(), bytes as u64) }.expect("posted");
    Posted { _send: send, receive, request, call, bytes }
}

pub(crate) fn check(mut posted: Posted, ranks: usize) {
    posted.request.wait(Some(LIMIT)).expect("within the limit").expect("success");
    for rank in 0..ranks {
        let expected = block(rank, posted.call, posted.bytes);
        let found = &posted.receive[rank * posted.bytes..][..posted.bytes];
        assert!(found == expected, "block of rank {rank} in call {} of {} bytes", posted.call, posted.bytes);
    }
}

/// Checks that the group of all ranks cannot be made.
fn no_world(why: Status) {
    let context = Context::attach(None).expect("the daemon answers");
    let error = context.world().expect_err("service processes do not agree");
    assert_eq!(error.status(), why, "{error}");
    pause(&error.to_string());
}

/// The last rank has exchanged its offer, but never makes the group.
fn never_calls(context: &Context, group: &Group) {
    let (rank, ranks) = me(group);
    let own = context.offer().expect("an offer");
    let mut offers = vec![0; own.len() * ranks];
    group.allgather(&own[..], &mut offers).expect("success");
    if rank + 1 == ranks {
        wait_for_death();
    }
    let error = context.create_group(&offers, ranks as u32, rank as u32).expect_err("one is missing");
    assert!([Status::Deadline, Status::RankLost].contains(&error.status()), "{error}");
    pause(&error.to_string());
}

fn allgather(group: &Group) {
    let (_, ranks) = me(group);
    let sizes = [0, 1, 1447, 1448, 4096, 100_003, 1 << 20];
    for (at, bytes) in sizes.into_iter().enumerate() {
        check(post(group, 2 * at, bytes, false), ranks);
        check(post(group, 2 * at + 1, bytes, true), ranks);
    }
    pause("done");
}

fn post_broadcast(group: &Group, root: usize, call: usize, bytes: usize) -> Posted {
    let (rank, _) = me(group);
    let mut receive = if rank == root { block(root, call, bytes) } else { vec![0xee; bytes] };
    // SAFETY: the buffer lives in the result and is read after the request has ended.
    let request = unsafe { group.ibroadcast(root as u32, receive.as_mut_ptr(), bytes as u64) }.expect("posted");
    Posted { _send: Vec::new(), receive, request, call, bytes }
}

fn check_broadcast(mut posted: Posted, root: usize) {
    posted.request.wait(Some(LIMIT)).expect("within the limit").expect("success");
    let found = posted.receive == block(root, posted.call, posted.bytes);
    assert!(found, "call {} of {} bytes from rank {root}", posted.call, posted.bytes);
}

/// Every rank is the root once for every size. An allgather is in flight behind each broadcast.
fn broadcast(group: &Group) {
    let (_, ranks) = me(group);
    let sizes = [0, 1, 1448, 100_003];
    for (at, bytes) in sizes.into_iter().enumerate() {
        for root in 0..ranks {
            let call = 2 * (at * ranks + root);
            let posted = post_broadcast(group, root, call, bytes);
            check(post(group, call + 1, 3000, false), ranks);
            check_broadcast(posted, root);
        }
    }
    pause("done");
}

/// SP-6: the last rank posts only after all other ranks have ended.
fn late_leaf(group: &Group) {
    let (rank, ranks) = me(group);
    print_line("ready");
    if rank == ranks - 1 {
        wait_for_line();
    }
    check_broadcast(post_broadcast(group, 0, 7, 300_000), 0);
    pause("done");
}

fn in_flight(group: &Group) {
    let (_, ranks) = me(group);
    let posted: Vec<_> = (0..40).map(|call| post(group, call, 1 + call * 2_000, call % 2 == 0)).collect();
    // The calls are checked in another order than they were posted.
    posted.into_iter().rev().for_each(|posted| check(posted, ranks));
}

/// Calls before, during and after the withdrawal of a tier of access to memory; all calls end with the right bytes. The
/// last rank is late for the calls that are in flight during the withdrawal.
fn withdrawn(context: &Context, group: &Group) {
    let (rank, ranks) = me(group);
    let calls = |first: usize| (first..first + 8).map(|call| post(group, call, 1 + call * 9_001, call % 2 == 0));
    let in_flight = || (calls(10).collect::<Vec<_>>(), post_uneven(group, 9), post_sums(group, 8, 50_003));
    calls(0).for_each(|posted| check(posted, ranks));
    check_broadcast(post_broadcast(group, 0, 8, 300_000), 0);
    let late = rank == ranks - 1;
    let early = (!late).then(in_flight);
    pause("ready");
    let (gathers, exchange, sums) = early.unwrap_or_else(in_flight);
    let broadcast = post_broadcast(group, ranks - 1, 9, 300_000);
    gathers.into_iter().rev().for_each(|posted| check(posted, ranks));
    check_broadcast(broadcast, ranks - 1);
    check_exchange(group, exchange);
    check_sums(sums);
    calls(30).for_each(|posted| check(posted, ranks));
    pause(context.memory_tier().name());
}

/// Calls while the test withdraws a tier of access to memory; no rank waits for the withdrawal, so bytes flow
/// meanwhile.
fn withdrawn_under_way(context: &Context, group: &Group) {
    let (rank, ranks) = me(group);
    let round = |round: usize| {
        let call = 5 * round;
        let gathers: Vec<_> = (call..call + 3).map(|call| post(group, call, 100 + call % 7 * 30_001, false)).collect();
        let exchange = post_uneven(group, call + 3);
        let sums = [post_sums(group, call, 2_000), post_sums(group, call + 1, 50_001)];
        let root = round % ranks;
        check_broadcast(post_broadcast(group, root, call + 4, 70_000), root);
        gathers.into_iter().for_each(|posted| check(posted, ranks));
        check_exchange(group, exchange);
        sums.into_iter().for_each(check_sums);
    };
    round(0);
    print_line("ready");
    (1..60).for_each(round);
    // All ranks wait for rank 0, and the test lets rank 0 continue after the withdrawal.
    if rank == 0 {
        wait_for_line();
    }
    round(60);
    pause(context.memory_tier().name());
}

pub(super) fn failed(mut posted: Posted) -> Error {
    posted.request.wait(Some(LIMIT)).expect("within the limit").expect_err("a failure")
}

/// Checks that the error names `rank` as the rank that has died.
pub(super) fn is_lost(error: &Error, rank: usize) {
    assert_eq!(error.status(), Status::RankLost, "{error}");
    assert!(error.to_string().contains(&format!("rank {rank}")), "{error}");
}

fn one_dies(group: &Group) {
    let (rank, ranks) = me(group);
    check(post(group, 0, 10_000, false), ranks);
    if rank == ranks - 1 {
        wait_for_death();
    }
    let posted = post(group, 1, 10_000, false);
    print_line("posted");
    is_lost(&failed(posted), ranks - 1);
}

fn mismatch(group: &Group) {
    let (rank, ranks) = me(group);
    // After this call every rank has made the group.
    check(post(group, 0, 1, false), ranks);
    let error = failed(post(group, 1, if rank == 1 { 5_000 } else { 6_000 }, false));
    assert_eq!(error.status(), Status::Mismatch, "{error}");
    let text = error.to_string();
    assert!(text.contains("5000 bytes") && text.contains("6000 bytes"), "{text}");
}

fn daemon_dies(group: &Group) {
    let (rank, _) = me(group);
    if rank == 0 {
        pause("ready");
        return;
    }
    let posted = post(group, 0, 10_000, false);
    print_line("posted");
    let error = failed(posted);
    assert_eq!(error.status(), Status::ServiceLost, "{error}");
}

/// Four ranks at two daemons; the first daemon serves ranks 0 and `other`. The daemon of the last rank dies before rank
/// 0 calls.
fn a_daemon_dies(group: &Group, other: usize) {
    let (rank, ranks) = me(group);
    check(post(group, 0, 10_000, false), ranks);
    let posted = (rank > 0).then(|| post(group, 1, 10_000, false));
    print_line("posted");
    if let Some(posted) = posted {
        let error = failed(posted);
        let expected = if rank == other { Status::PeerLost } else { Status::ServiceLost };
        assert_eq!(error.status(), expected, "{error}");
        print_line(&error.to_string());
    }
    // Rank 0 stays until the test continues, because its end would be another reason for an error.
    wait_for_line();
}

/// Selects the buffer of rank 1 that has an invalid address.
#[derive(Clone, Copy)]
enum Nowhere {
    Send,
    Receive,
}

fn fault(group: &Group, which: Nowhere) {
    let (rank, ranks) = me(group);
    check(post(group, 0, 1, false), ranks);
    let bytes = 8_192_usize;
    let contribution = block(rank, 1, bytes);
    let mut gathered = vec![0; bytes * ranks];
    let (mut send, mut receive) = (contribution.as_ptr(), gathered.as_mut_ptr());
    match (rank, which) {
        (1, Nowhere::Send) => send = NOWHERE,
        (1, Nowhere::Receive) => receive = NOWHERE,
        (_, Nowhere::Send | Nowhere::Receive) => {}
    }
    // SAFETY: the buffers outlive the request; this process never accesses the invalid address.
    let posted = unsafe { group.iallgather(Contribution::At(send), receive, bytes as u64) };
    let mut request = match (posted, rank, which) {
        // In tiers that ignore page protections the post checks the buffer, and posts nothing.
        (Err(error), 1, Nowhere::Receive) => {
            assert_eq!(error.status(), Status::Memory, "{error}");
            assert!(error.to_string().contains("0x8"), "{error}");
            return check(post(group, 1, bytes, false), ranks);
        }
        (posted, ..) => posted.expect("posted"),
    };
    let ended = request.wait(Some(LIMIT)).expect("within the limit");
    match (ended, which) {
        (Err(error), _) => {
            assert_eq!(error.status(), Status::Memory, "{error}");
            assert!(error.to_string().contains("rank 1"), "{error}");
        }
        // If the receive buffer is invalid, the other ranks may have had all bytes when the failure was found.
        (Ok(()), Nowhere::Receive) if rank != 1 => {
            let expected: Vec<u8> = (0..ranks).flat_map(|rank| block(rank, 1, bytes)).collect();
            assert!(gathered == expected, "success with wrong bytes");
        }
        (Ok(()), Nowhere::Send | Nowhere::Receive) => panic!("success without a buffer to blame rank 1 for"),
    }
}
