//! Messages that the client library never sends: a rank that misbehaves loses its connection, never the daemon.

use std::fs::File;
use std::os::fd::AsFd;

use outboard::{Context, Contribution, Status};
use outboard_call::{Call, CallKind};
use outboard_shm::attach::{
    AttachChannel, AttachReply, AttachRequest, ChannelError, Hello, OFFER_BYTES, ReceivedMessage, RestagedBuffers,
};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::memory::{MOST_RANGES, Tier};
use outboard_shm::region::{MemfdRegion, seal_bytes};

use crate::support::Daemon;
use crate::support::scenarios::LIMIT;

/// Most ranks of a group.
const MOST_RANKS: u32 = u16::MAX as u32;

/// A rank without the client library.
struct Stranger(AttachChannel);

impl Stranger {
    fn connect(daemon: &Daemon) -> Stranger {
        Stranger(AttachChannel::connect(&daemon.socket()).expect("the daemon listens"))
    }

    fn receive(&self) -> Result<ReceivedMessage<AttachReply>, ChannelError> {
        assert!(self.0.wait(LIMIT).expect("poll"), "no reply");
        self.0.receive().map(|received| received.expect("it waits"))
    }

    fn send_request(&self, request: &AttachRequest, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> AttachReply {
        self.0.send(7, request, descriptors).expect("sent");
        let received = self.receive().expect("a reply");
        assert_eq!(received.token, 7);
        received.message
    }

    fn refused(&self, request: &AttachRequest, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Status {
        match self.send_request(request, descriptors) {
            AttachReply::Error { status, .. } => status,
            other => panic!("{request:?} got {other:?}"),
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.receive(), Err(ChannelError::Closed))
    }

    /// Attaches with a memory descriptor that differs from the announced descriptor.
    fn attach(daemon: &Daemon) -> (Stranger, RankSide) {
        let stranger = Stranger::connect(daemon);
        stranger.0.send(1, &AttachRequest::Hello(hello(LAYOUT_VERSION)), &[]).expect("sent");
        let mut received = stranger.receive().expect("a welcome");
        let AttachReply::Welcome(welcome) = received.message else { panic!("{:?}", received.message) };
        assert_eq!(welcome.tier, Tier::Staging, "a probe that fails is believed to have failed");
        let doorbell = received.descriptors.pop().expect("two descriptors");
        let region = received.descriptors.pop().expect("two descriptors");
        (stranger, RankSide::attach(region, doorbell).expect("a control region"))
    }

    /// Makes a group with this rank as its only member.
    fn group(&self) -> u64 {
        let AttachReply::Offer(offer) = self.send_request(&AttachRequest::Offer, &[]) else { panic!("no offer") };
        let offers = seal_bytes("offers", &offer[..]).expect("memory");
        match self.send_request(&AttachRequest::CreateGroup { ranks: 1, rank: 0 }, &[offers.as_fd()]) {
            AttachReply::GroupReady(ready) => ready.group,
            other => panic!("{other:?}"),
        }
    }
}

fn hello(layout_version: u32) -> Hello {
    Hello { layout_version, pid: 1, probe_address: 8, nonce: [1; 16], descriptor: false }
}

fn entry(group: u64, instance: u64, slot: u32) -> SubmissionEntry {
    let call = Call { bytes: 16, send: 0x5000, receive: 0x6000, ..Call::new(CallKind::Allgather) };
    SubmissionEntry { group, instance, slot, call }
}

fn result(rank: &RankSide, entry: SubmissionEntry) -> Status {
    rank.arm(entry.slot);
    rank.post(&entry).expect("room");
    assert!(rank.wait(Some(entry.slot), Some(LIMIT), || rank.result(entry.slot).is_some()), "no result");
    rank.result(entry.slot).expect("just seen")
}

#[test]
fn those_that_do_not_greet_are_closed() {
    let daemon = Daemon::start(&[]);
    let early = Stranger::connect(&daemon);
    assert_eq!(early.refused(&AttachRequest::Offer, &[]), Status::Protocol);
    assert!(early.is_closed());
    let old = Stranger::connect(&daemon);
    assert_eq!(old.refused(&AttachRequest::Hello(hello(LAYOUT_VERSION + 1)), &[]), Status::Version);
    assert!(old.is_closed());
    let garbage = Stranger::connect(&daemon);
    rustix::net::send(&garbage.0, b"garbage", rustix::net::SendFlags::empty()).expect("sent");
    assert!(matches!(garbage.receive().map(|r| r.message), Ok(AttachReply::Error { status: Status::Version, .. })));
    assert!(garbage.is_closed());
    assert_eq!(daemon.statistics()["ranks"], 0);
}

#[test]
fn requests_are_checked_against_what_the_rank_owns() {
    let daemon = Daemon::start(&[]);
    let (one, _) = Stranger::attach(&daemon);
    let (other, _) = Stranger::attach(&daemon);
    let group = one.group();
    assert_eq!(other.refused(&AttachRequest::DestroyGroup { group: group + 1 }, &[]), Status::Argument);
    let deadline = AttachRequest::SetDeadline { group: group + 1, milliseconds: 1 };
    assert_eq!(other.refused(&deadline, &[]), Status::Argument);
    assert_eq!(other.refused(&AttachRequest::ErrorText { slot: u32::MAX }, &[]), Status::Argument);
    // No group can be made from another rank's offer, from the rank's own offer twice, or from bytes that may still
    // change.
    let AttachReply::Offer(offer) = one.send_request(&AttachRequest::Offer, &[]) else { panic!("no offer") };
    let offers = seal_bytes("offers", &offer[..]).expect("memory");
    let create = AttachRequest::CreateGroup { ranks: 1, rank: 0 };
    assert_eq!(other.refused(&create, &[offers.as_fd()]), Status::Argument);
    assert!(matches!(one.send_request(&create, &[offers.as_fd()]), AttachReply::GroupReady(_)));
    assert_eq!(one.refused(&create, &[offers.as_fd()]), Status::Argument);
    let writable = MemfdRegion::create("offers", OFFER_BYTES).expect("memory");
    assert_eq!(one.refused(&create, &[writable.fd()]), Status::Argument);
    assert_eq!(
        one.refused(&AttachRequest::CreateGroup { ranks: u32::MAX, rank: 0 }, &[writable.fd()]),
        Status::Argument
    );
    let wraps = AttachRequest::RegisterMemory { address: u64::MAX, bytes: OFFER_BYTES as u64 };
    assert_eq!(one.refused(&wraps, &[writable.fd()]), Status::Argument);
    let restaged = RestagedBuffers { group, instance: 1, slot: 0, send: 0x5000, receive: 0x6000 };
    assert_eq!(one.refused(&AttachRequest::Restage(restaged), &[]), Status::Argument);
    assert_eq!(daemon.statistics()["ranks"], 2);
}

#[test]
fn gp_4_registrations_are_bounded() {
    let daemon = Daemon::start(&[]);
    let (stranger, _) = Stranger::attach(&daemon);
    let region = MemfdRegion::create("range", 4096).expect("memory");
    let register = |at: u32| AttachRequest::RegisterMemory { address: 0x10_0000 * (u64::from(at) + 1), bytes: 4096 };
    (0..MOST_RANGES).for_each(|at| assert_eq!(stranger.send_request(&register(at), &[region.fd()]), AttachReply::Done));
    assert_eq!(stranger.refused(&register(MOST_RANGES), &[region.fd()]), Status::Resource);
    assert_eq!(stranger.send_request(&AttachRequest::UnregisterMemory { address: 0x10_0000 }, &[]), AttachReply::Done);
    assert_eq!(stranger.send_request(&register(MOST_RANGES), &[region.fd()]), AttachReply::Done);
    assert_eq!(daemon.statistics()["registered_ranges"], MOST_RANGES);
}

/// A descriptor that could block the daemon, or that refers to other memory, is not accepted as a rank's memory (SP-4).
#[test]
fn descriptors_passed_as_memory_are_checked() {
    let daemon = Daemon::start(&[]);
    let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
    let maps = File::open("/proc/self/maps").expect("ours");
    let file = MemfdRegion::create("memory", 4096).expect("memory");
    let hello = Hello { descriptor: true, ..hello(LAYOUT_VERSION) };
    for descriptor in [pipe.as_fd(), maps.as_fd(), file.fd()] {
        let stranger = Stranger::connect(&daemon);
        match stranger.send_request(&AttachRequest::Hello(hello), &[descriptor]) {
            AttachReply::Error { status: Status::Argument, text } => {
                assert!(text.contains("not a process's memory"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert!(stranger.is_closed());
    }
    let own_memory = File::options().read(true).write(true).open("/proc/self/mem").expect("our memory");
    let stranger = Stranger::connect(&daemon);
    stranger.0.send(1, &AttachRequest::Hello(hello), &[own_memory.as_fd()]).expect("sent");
    let AttachReply::Welcome(welcome) = stranger.receive().expect("a welcome").message else { panic!("no welcome") };
    assert_eq!(welcome.tier, Tier::Staging, "memory without the nonce proves nothing");
}

#[test]
fn submissions_are_checked_against_what_the_rank_owns() {
    let daemon = Daemon::start(&[]);
    let (stranger, rank) = Stranger::attach(&daemon);
    let group = stranger.group();
    assert_eq!(result(&rank, entry(group + 1, 1, 0)), Status::Argument);
    // Each of these errors removes the rank from its group.
    assert_eq!(result(&rank, entry(stranger.group(), 2, 0)), Status::Argument);
    let [mut long, mut far] = [1, 2].map(|slot| entry(stranger.group(), 1, slot));
    (long.call.bytes, far.call.receive) = (u64::MAX, u64::MAX - 3);
    assert_eq!([long, far].map(|entry| result(&rank, entry)), [Status::Argument; 2]);
    let AttachReply::ErrorText { text, .. } = stranger.send_request(&AttachRequest::ErrorText { slot: 2 }, &[]) else {
        panic!("no text")
    };
    assert!(text.contains("address space"), "{text}");
    // If no tier can access the memory, the rank that named the memory is at fault.
    assert_eq!(result(&rank, entry(group, 1, 3)), Status::Memory);
    assert_eq!(daemon.statistics()["datapath"]["refused"], 4);
}

/// Offers for a group of the largest size: copies of this offer, the last one damaged.
fn largest_group(offer: &[u8]) -> Vec<u8> {
    let mut offers = offer.repeat(MOST_RANKS as usize);
    *offers.last_mut().expect("some") ^= 1;
    offers
}

/// Only the last offer is damaged, so each request makes the daemon read all offers. Each request takes a tenth of a
/// second, so all requests in one turn would delay others.
#[test]
fn requests_for_large_groups_hold_up_nobody() {
    const EACH: usize = 16;
    let daemon = Daemon::start(&["--log", "off"]);
    let strangers: Vec<Stranger> = (0..4).map(|_| Stranger::attach(&daemon).0).collect();
    let drawn = strangers.iter().map(|stranger| match stranger.send_request(&AttachRequest::Offer, &[]) {
        AttachReply::Offer(offer) => offer,
        other => panic!("{other:?}"),
    });
    let drawn: Vec<_> = drawn.collect();
    let mut offers = largest_group(&drawn[0][..]);
    for (place, offer) in offers.chunks_mut(OFFER_BYTES).zip(&drawn) {
        place.copy_from_slice(&offer[..]);
    }
    let offers = seal_bytes("offers", &offers).expect("memory");
    for _ in 0..EACH {
        for (rank, stranger) in (0..).zip(&strangers) {
            let create = AttachRequest::CreateGroup { ranks: MOST_RANKS, rank };
            stranger.0.send(7, &create, &[offers.as_fd()]).expect("sent");
        }
    }
    (0..5).for_each(|_| _ = Stranger::attach(&daemon).0.group());
    // The visitors were served before all requests were. The remaining requests are served, too.
    let check = |reply: ReceivedMessage<AttachReply>| match reply.message {
        AttachReply::Error { text, .. } => assert!(text.contains("rank 65534 is damaged"), "{text}"),
        other => panic!("{other:?}"),
    };
    let served = |stranger: &Stranger| {
        std::iter::from_fn(|| stranger.0.receive().expect("a reply")).take(EACH).map(check).count()
    };
    let served: Vec<usize> = strangers.iter().map(served).collect();
    assert!(served.iter().sum::<usize>() < strangers.len() * EACH, "all requests were served first");
    for (stranger, served) in strangers.iter().zip(served) {
        (served..EACH).for_each(|_| check(stranger.receive().expect("a reply")));
    }
}

/// A relay and a dock hold a bounded number of requests of one rank, because the dock's copies use the daemon's memory.
#[test]
fn a_relay_passes_on_so_much_of_a_rank_at_once() {
    let address = format!("127.0.0.1:{}", outboard_lab::free_port().expect("a port"));
    let (_daemon, relay) = (Daemon::start(&["--dock", &address]), Daemon::start(&["--relay", &address]));
    let (stranger, _) = Stranger::attach(&relay);
    let AttachReply::Offer(offer) = stranger.send_request(&AttachRequest::Offer, &[]) else { panic!("no offer") };
    let offers = seal_bytes("offers", &largest_group(&offer[..])).expect("memory");
    let create = AttachRequest::CreateGroup { ranks: MOST_RANKS, rank: 0 };
    [7, 8, 7].into_iter().for_each(|token| stranger.0.send(token, &create, &[offers.as_fd()]).expect("sent"));
    let endless = AttachRequest::Record { group: 1, recording: 1, bytes: u64::MAX };
    stranger.0.send(9, &endless, &[offers.as_fd()]).expect("sent");
    for (token, why) in [(8, "under way"), (7, "in use"), (9, "under way"), (7, "damaged")] {
        let reply = stranger.receive().expect("a reply");
        match reply.message {
            AttachReply::Error { text, .. } => {
                assert!(reply.token == token && text.contains(why), "{}: {text}", reply.token)
            }
            other => panic!("{other:?}"),
        }
    }
    let again = stranger.refused(&create, &[offers.as_fd()]);
    assert_eq!(again, Status::Argument, "there is room again, and the group is as it was");
}

/// The relay refuses a collective whose table is unreadable; the rank that waits at the service process gets the
/// reason.
#[test]
fn a_collective_that_a_relay_refuses_fails_at_the_others() {
    let address = format!("127.0.0.1:{}", outboard_lab::free_port().expect("a port"));
    let (daemon, relay) = (Daemon::start(&["--dock", &address]), Daemon::start(&["--relay", &address]));
    let context = Context::attach(Some(&daemon.socket())).expect("it answers");
    let (stranger, side) = Stranger::attach(&relay);
    let AttachReply::Offer(offer) = stranger.send_request(&AttachRequest::Offer, &[]) else { panic!("no offer") };
    let all = [&context.offer().expect("an offer")[..], &offer[..]].concat();
    let offers = seal_bytes("offers", &all).expect("memory");
    let (group, made) = std::thread::scope(|scope| {
        let making = scope.spawn(|| context.create_group(&all, 2, 0).expect("it is made"));
        let AttachReply::GroupReady(made) =
            stranger.send_request(&AttachRequest::CreateGroup { ranks: 2, rank: 1 }, &[offers.as_fd()])
        else {
            panic!("no group")
        };
        (making.join().expect("no panic"), made)
    });
    let (send, mut receive) = ([7u8; 16], [0u8; 32]);
    // SAFETY: both buffers outlive the wait for the request's end.
    let mut waits =
        unsafe { group.iallgather(Contribution::At(send.as_ptr()), receive.as_mut_ptr(), 16) }.expect("posted");
    let call = Call { table: 0x1000, ..Call::new(CallKind::Alltoallv) };
    assert_eq!(result(&side, SubmissionEntry { group: made.group, instance: 1, slot: 3, call }), Status::Memory);
    let error = waits.wait(Some(LIMIT)).expect("within the limit").expect_err("rank 1 has not called");
    assert!(error.status() == Status::RankLost && error.to_string().contains("rank 1"), "{error}");
}
