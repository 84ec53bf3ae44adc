//! What no library of ours sends: a rank that misbehaves costs itself its connection, never the daemon.

mod support;

use std::os::fd::AsFd;
use std::time::Duration;

use outboard::Status;
use outboard_call::{Call, CallKind};
use outboard_shm::attach::{Channel, ChannelError, Hello, OFFER_BYTES, Received, Reply, Request, Restaged};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};
use outboard_shm::entry::Entry;
use outboard_shm::memory::Tier;
use outboard_shm::region::{Region, seal_bytes};
use support::Daemon;

const LIMIT: Duration = Duration::from_secs(60);

/// A hand-made rank.
struct Stranger(Channel);

impl Stranger {
    fn connect(daemon: &Daemon) -> Stranger {
        Stranger(Channel::connect(&daemon.socket()).expect("the daemon listens"))
    }

    fn receive(&self) -> Result<Received<Reply>, ChannelError> {
        assert!(self.0.wait(LIMIT).expect("poll"), "no reply");
        self.0.receive().map(|received| received.expect("it waits"))
    }

    fn ask(&self, request: &Request, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Reply {
        self.0.send(7, request, descriptors).expect("sent");
        let received = self.receive().expect("a reply");
        assert_eq!(received.token, 7);
        received.message
    }

    fn refused(&self, request: &Request, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Status {
        match self.ask(request, descriptors) {
            Reply::Error { status, .. } => status,
            other => panic!("{request:?} got {other:?}"),
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.receive(), Err(ChannelError::Closed))
    }

    /// Greets with memory that is not what it says.
    fn attach(daemon: &Daemon) -> (Stranger, RankSide) {
        let stranger = Stranger::connect(daemon);
        stranger.0.send(1, &Request::Hello(hello(LAYOUT_VERSION)), &[]).expect("sent");
        let mut received = stranger.receive().expect("a welcome");
        let Reply::Welcome(welcome) = received.message else { panic!("{:?}", received.message) };
        assert_eq!(welcome.tier, Tier::Staging, "a probe that fails is believed to have failed");
        let doorbell = received.descriptors.pop().expect("two descriptors");
        let region = received.descriptors.pop().expect("two descriptors");
        (stranger, RankSide::attach(region, doorbell).expect("a control region"))
    }

    /// A group of this rank alone.
    fn group(&self) -> u64 {
        let Reply::Offer(offer) = self.ask(&Request::Offer, &[]) else { panic!("no offer") };
        let offers = seal_bytes("offers", &offer[..]).expect("memory");
        match self.ask(&Request::CreateGroup { ranks: 1, rank: 0 }, &[offers.as_fd()]) {
            Reply::GroupReady(ready) => ready.group,
            other => panic!("{other:?}"),
        }
    }
}

fn hello(layout_version: u32) -> Hello {
    Hello { abi_version: 1, layout_version, pid: 1, probe_address: 8, nonce: [1; 16], descriptor: false, job: 0 }
}

fn entry(group: u64, instance: u64, slot: u32) -> Entry {
    let call = Call { bytes: 16, send: 0x5000, receive: 0x6000, ..Call::new(CallKind::Allgather) };
    Entry { group, instance, slot, call }
}

fn result(rank: &RankSide, entry: Entry) -> Status {
    rank.arm(entry.slot);
    rank.post(&entry).expect("room");
    assert!(rank.wait(Some(entry.slot), Some(LIMIT), || rank.result(entry.slot).is_some()), "no result");
    rank.result(entry.slot).expect("just seen")
}

#[test]
fn those_that_do_not_greet_are_closed() {
    let daemon = Daemon::start(&[]);
    let early = Stranger::connect(&daemon);
    assert_eq!(early.refused(&Request::Offer, &[]), Status::Protocol);
    assert!(early.is_closed());
    let old = Stranger::connect(&daemon);
    assert_eq!(old.refused(&Request::Hello(hello(LAYOUT_VERSION + 1)), &[]), Status::Version);
    assert!(old.is_closed());
    let garbage = Stranger::connect(&daemon);
    rustix::net::send(&garbage.0, b"garbage", rustix::net::SendFlags::empty()).expect("sent");
    assert!(matches!(garbage.receive().map(|r| r.message), Ok(Reply::Error { status: Status::Version, .. })));
    assert!(garbage.is_closed());
    assert_eq!(daemon.statistics()["ranks"], 0);
}

#[test]
fn requests_are_checked_against_what_the_rank_owns() {
    let daemon = Daemon::start(&[]);
    let (one, _) = Stranger::attach(&daemon);
    let (other, _) = Stranger::attach(&daemon);
    let group = one.group();
    assert_eq!(other.refused(&Request::DestroyGroup { group: group + 1 }, &[]), Status::Argument);
    let deadline = Request::SetDeadline { group: group + 1, milliseconds: 1 };
    assert_eq!(other.refused(&deadline, &[]), Status::Argument);
    assert_eq!(other.refused(&Request::ErrorText { slot: u32::MAX }, &[]), Status::Argument);
    // Another's offer makes no group for us, nor does our own twice, nor bytes that may still change.
    let Reply::Offer(offer) = one.ask(&Request::Offer, &[]) else { panic!("no offer") };
    let offers = seal_bytes("offers", &offer[..]).expect("memory");
    let create = Request::CreateGroup { ranks: 1, rank: 0 };
    assert_eq!(other.refused(&create, &[offers.as_fd()]), Status::Argument);
    assert!(matches!(one.ask(&create, &[offers.as_fd()]), Reply::GroupReady(_)));
    assert_eq!(one.refused(&create, &[offers.as_fd()]), Status::Argument);
    let writable = Region::create("offers", OFFER_BYTES).expect("memory");
    assert_eq!(one.refused(&create, &[writable.fd()]), Status::Argument);
    assert_eq!(one.refused(&Request::CreateGroup { ranks: u32::MAX, rank: 0 }, &[writable.fd()]), Status::Argument);
    let wraps = Request::RegisterMemory { address: u64::MAX, bytes: OFFER_BYTES as u64 };
    assert_eq!(one.refused(&wraps, &[writable.fd()]), Status::Argument);
    let restaged = Restaged { group, instance: 1, slot: 0, send: 0x5000, receive: 0x6000 };
    assert_eq!(one.refused(&Request::Restage(restaged), &[]), Status::Argument);
    assert_eq!(daemon.statistics()["ranks"], 2);
}

/// GP-4: as many ranges as the settings say, whatever the rank wants.
#[test]
fn registrations_are_bounded() {
    let daemon = Daemon::start(&["--memory-ranges", "3"]);
    let (stranger, _) = Stranger::attach(&daemon);
    let region = Region::create("range", 4096).expect("memory");
    let register = |at: u64| Request::RegisterMemory { address: 0x10_0000 * (at + 1), bytes: 4096 };
    (0..3).for_each(|at| assert_eq!(stranger.ask(&register(at), &[region.fd()]), Reply::Done));
    assert_eq!(stranger.refused(&register(3), &[region.fd()]), Status::Resource);
    assert_eq!(stranger.ask(&Request::UnregisterMemory { address: 0x10_0000 }, &[]), Reply::Done);
    assert_eq!(stranger.ask(&register(3), &[region.fd()]), Reply::Done);
    assert_eq!(daemon.statistics()["registered_ranges"], 3);
}

/// A descriptor that could block the daemon, or lead elsewhere, is not taken for a rank's memory (SP-4).
#[test]
fn what_is_handed_over_as_memory_is_checked() {
    let daemon = Daemon::start(&[]);
    let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
    let maps = std::fs::File::open("/proc/self/maps").expect("ours");
    let file = Region::create("memory", 4096).expect("memory");
    let hello = Hello { descriptor: true, ..hello(LAYOUT_VERSION) };
    for descriptor in [pipe.as_fd(), maps.as_fd(), file.fd()] {
        let stranger = Stranger::connect(&daemon);
        match stranger.ask(&Request::Hello(hello), &[descriptor]) {
            Reply::Error { status: Status::Argument, text } => {
                assert!(text.contains("not a process's memory"), "{text}")
            }
            other => panic!("{other:?}"),
        }
        assert!(stranger.is_closed());
    }
    let own_memory = std::fs::File::options().read(true).write(true).open("/proc/self/mem").expect("our memory");
    let stranger = Stranger::connect(&daemon);
    stranger.0.send(1, &Request::Hello(hello), &[own_memory.as_fd()]).expect("sent");
    let Reply::Welcome(welcome) = stranger.receive().expect("a welcome").message else { panic!("no welcome") };
    assert_eq!(welcome.tier, Tier::Staging, "memory without the nonce proves nothing");
}

#[test]
fn submissions_are_checked_against_what_the_rank_owns() {
    let daemon = Daemon::start(&[]);
    let (stranger, rank) = Stranger::attach(&daemon);
    let group = stranger.group();
    assert_eq!(result(&rank, entry(group + 1, 1, 0)), Status::Argument);
    assert_eq!(result(&rank, entry(group, 2, 0)), Status::Argument);
    let (mut long, mut far) = (entry(group, 1, 1), entry(group, 1, 2));
    (long.call.bytes, far.call.receive) = (u64::MAX, u64::MAX - 3);
    assert_eq!([long, far].map(|entry| result(&rank, entry)), [Status::Argument; 2]);
    let Reply::ErrorText { text, .. } = stranger.ask(&Request::ErrorText { slot: 2 }, &[]) else { panic!("no text") };
    assert!(text.contains("address space"), "{text}");
    // Memory that no tier reaches is the fault of the rank that names it.
    assert_eq!(result(&rank, entry(group, 1, 3)), Status::Memory);
    assert_eq!(daemon.statistics()["datapath"]["refused"], 4);
}
