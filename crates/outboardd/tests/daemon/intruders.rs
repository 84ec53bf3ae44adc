//! Another user at a socket that was opened to all users. Every message, request or wait of that user ends in a
//! refusal. Meanwhile a job of the daemon's own user makes its calls on two hosts.
//!
//! Two daemons stand for two hosts. Their ranks are in this process, and a thread acts as the other user.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use outboard::{Context, Group, Status};
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, ChannelError, Hello, RestagedBuffers};
use outboard_shm::control::LAYOUT_VERSION;
use rustix::event::epoll;
use rustix::fs::{FallocateFlags, Gid, MemfdFlags, SealFlags, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::users::open_to_all;
use crate::support::scenarios::{LIMIT, check, post};
use crate::support::{Daemon, make_group};

const OTHER: u32 = 12_345;
/// Least number of calls of the job while the other user intrudes.
const CALLS: u64 = 100;
/// Bytes that a rank of the job contributes to a call.
const BYTES: usize = 100_000;
const FLAGS: [&str; 6] = ["--interface", "lo", "--algorithm", "ring", "--log", "error"];

/// Runs `act` as another user, in a thread that has the user's rights until the thread ends.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    let become_user_and_act = || {
        let (group, user) = (Gid::from_raw(user), Uid::from_raw(user));
        set_thread_groups(&[]).expect("we are root");
        set_thread_res_gid(group, group, group).expect("we are root");
        set_thread_res_uid(user, user, user).expect("we are root");
        act()
    };
    thread::scope(|scope| scope.spawn(become_user_and_act).join().expect("no panic"))
}

/// Waits until the service process has refused this thread's user and closed the connection.
fn turned_away(channel: &AttachChannel) {
    let sentence = format!("user {} may not attach", geteuid().as_raw());
    let mut refusals = 0;
    // If the thread has sent bytes, the kernel first reports that the bytes were not read.
    let ends = (0..3).map(|_| {
        assert!(channel.wait(LIMIT).expect("poll"), "the connection stays open");
        match channel.receive() {
            Ok(Some(received)) => match received.message {
                AttachReply::Error { status: Status::NoService, text } => {
                    refusals += u32::from(text.contains(&sentence))
                }
                other => panic!("{other:?}"),
            },
            Err(ChannelError::Closed) => return true,
            other => panic!("{other:?}"),
        }
        false
    });
    assert_eq!((ends.last(), refusals), (Some(true), 1));
}

/// Sends a request on a new connection; returns the connection once it is refused.
fn ask_in_vain(daemon: &Daemon, request: &AttachRequest, descriptors: &[BorrowedFd<'_>]) -> AttachChannel {
    let channel = AttachChannel::connect(&daemon.socket()).expect("the daemon listens");
    match channel.send(7, request, descriptors) {
        // The refusal may come before the request is sent.
        Ok(()) | Err(ChannelError::Closed) => {}
        Err(error) => panic!("{request:?}: {error}"),
    }
    turned_away(&channel);
    channel
}

fn hello(descriptor: bool) -> AttachRequest {
    AttachRequest::Hello(Hello { layout_version: LAYOUT_VERSION, pid: 1, probe_address: 8, nonce: [1; 16], descriptor })
}

/// Memory with the size `bytes` but without pages.
fn sparse(bytes: u64) -> OwnedFd {
    let memory = rustix::fs::memfd_create("sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let memory = memory.expect("memory");
    rustix::fs::ftruncate(&memory, bytes).expect("no byte is taken");
    memory
}

/// Makes a job call until this guard is dropped.
struct Calling<'a>(&'a AtomicBool);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Calls allgathers and checks every byte. After each allgather a further call distributes rank 0's decision to
/// continue.
fn call_while(calling: &AtomicBool, calls: &AtomicU64, group: &Group) {
    for number in 0.. {
        check(post(group, number, BYTES, false), 2);
        calls.fetch_add(1, Ordering::Relaxed);
        let mut go_on = [0; 2];
        let own = [u8::from(calling.load(Ordering::Relaxed))];
        group.allgather(&own, &mut go_on).expect("nothing is wrong with this job");
        if go_on[0] == 0 {
            return;
        }
    }
}

/// The daemon's counters of ranks, groups and memory.
fn of_ranks(daemon: &Daemon) -> Vec<serde_json::Value> {
    let told = daemon.statistics();
    let names = ["ranks", "memberships", "memory_tiers", "tiers_withdrawn", "registered_ranges", "mapped_ranges"];
    names.iter().map(|name| told[name].clone()).collect()
}

fn refused(daemon: &Daemon) -> u64 {
    daemon.statistics()["datapath"]["refused"].as_u64().expect("a number")
}

/// Runs `intrude` repeatedly at a daemon with these flags, while ranks of this daemon and another one make calls.
/// `intrude` returns the number of refused connections.
fn beside_a_job(flags: &[&str], intrude: impl Fn(&Daemon) -> u64) {
    let [here, there] = [flags, &[]].map(|flags| Daemon::start(&[&FLAGS, flags].concat()));
    open_to_all(&here);
    let contexts = [&here, &there].map(|daemon| Context::attach(Some(&daemon.socket())).expect("room"));
    let groups = make_group(&contexts);
    let (before, refused_before, descriptors) = (of_ranks(&here), refused(&here), here.descriptors());
    let (calling, calls) = (AtomicBool::new(true), AtomicU64::new(0));
    let tried = thread::scope(|scope| {
        let _calling = Calling(&calling);
        let (going, counted) = (&calling, &calls);
        let call = |group| scope.spawn(move || call_while(going, counted, group));
        let callers: Vec<_> = groups.iter().map(call).collect();
        let mut tried = 0;
        while calls.load(Ordering::Relaxed) < 2 * CALLS {
            assert!(callers.iter().all(|caller| !caller.is_finished()), "a call has failed");
            tried += intrude(&here);
        }
        tried
    });
    assert_eq!((of_ranks(&here), refused(&here)), (before, refused_before + tried));
    here.await_descriptors(descriptors);
    groups.into_iter().for_each(|group| group.destroy().expect("no request is in flight"));
}

/// The owner of this memory can make an inspection of it take as long as the owner wants.
#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn memory_with_holes_of_another_user_is_not_looked_into() {
    const MEMORY: u64 = 16 << 20;
    beside_a_job(&[], |daemon| {
        as_user(OTHER, || {
            let punched = |seals: SealFlags| {
                let memory = sparse(MEMORY);
                rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, MEMORY).expect("room");
                rustix::fs::fcntl_add_seals(&memory, seals).expect("it may be sealed");
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&memory, hole, 0, MEMORY).expect("it may be written");
                memory
            };
            let seals = [SealFlags::empty(), SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL];
            let tried = seals.map(|seals| drop(ask_in_vain(daemon, &hello(true), &[punched(seals).as_fd()])));
            tried.len() as u64
        })
    });
}

/// For each send to a socket the kernel wakes every epoll entry that waits for the socket.
#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn a_refusal_that_many_entries_wait_for_holds_up_nobody() {
    /// Number of duplicates of one socket, and of epoll instances with an entry for each duplicate: 100,000 entries in
    /// total.
    const EACH: usize = 317;
    beside_a_job(&[], |daemon| {
        as_user(OTHER, || {
            let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None).expect("a socket");
            let again: Vec<OwnedFd> = (0..EACH).map(|_| socket.try_clone().expect("a descriptor")).collect();
            let waiting: Vec<OwnedFd> =
                (0..EACH).map(|_| epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor")).collect();
            for (epoll, socket) in waiting.iter().flat_map(|epoll| again.iter().map(move |socket| (epoll, socket))) {
                epoll::add(epoll, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("an entry");
            }
            let address = SocketAddrUnix::new(daemon.socket()).expect("short enough");
            rustix::net::connect(&socket, &address).expect("the daemon listens");
            turned_away(&AttachChannel::from(socket));
        });
        1
    });
}

/// Rings, groups, memory ranges and scratch memory need an attachment, which another user never gets.
#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn whatever_another_user_asks_for_is_refused_before_it_is_read() {
    const HUGE: u64 = 1 << 40;
    let memory = sparse(HUGE);
    let restaged = RestagedBuffers { group: 1, instance: 1, slot: 0, send: 0x5000, receive: 0x6000 };
    let requests = [
        (hello(false), &[][..]),
        (AttachRequest::Offer, &[]),
        (AttachRequest::Restage(restaged), &[]),
        (AttachRequest::RegisterMemory { address: 0x10_0000, bytes: HUGE }, &[memory.as_fd()]),
        (AttachRequest::CreateGroup { ranks: 1, rank: 0 }, &[memory.as_fd()]),
        (AttachRequest::Record { group: 1, recording: 1, bytes: HUGE }, &[memory.as_fd()]),
    ];
    beside_a_job(&[], |daemon| {
        let ever = || daemon.statistics()["memory_tiers_ever"].clone();
        let before = ever();
        as_user(OTHER, || requests.iter().for_each(|(request, with)| drop(ask_in_vain(daemon, request, with))));
        assert_eq!(ever(), before, "nobody has attached");
        requests.len() as u64
    });
}

#[test]
#[ignore = "only root may start programs as another user: make test as root"]
fn ten_users_take_no_place_of_the_own_ranks() {
    const USERS: u32 = 10;
    const EACH: usize = 20;
    beside_a_job(&["--max-ranks", "4"], |daemon| {
        let stay = |user| as_user(OTHER + user, || [(); EACH].map(|()| ask_in_vain(daemon, &hello(false), &[])));
        let others: Vec<_> = (0..USERS).map(stay).collect();
        let attach = || Context::attach(Some(&daemon.socket()));
        let own = [(); 3].map(|()| attach().expect("a place beside the rank of the job"));
        assert_eq!(attach().expect_err("four have attached").status(), Status::Resource);
        drop(others);
        own.into_iter().for_each(|context| context.detach().expect("it is in no group"));
        daemon.await_statistics(|told| told["ranks"] == 1);
        u64::from(USERS) * EACH as u64
    });
}
