//! The requirements on every kind of [`Fabric`], as functions that panic when a kind breaks one.
//!
//! A kind's test passes [`all`] a factory of endpoints that can reach each other. One thread drives all endpoints. When
//! all endpoints are idle, the thread arms them and polls their descriptors. So each check also exercises the wake
//! rule. A lost wake-up ends in a panic that names it. Never reads the internals of a kind.

mod placement;

use std::collections::VecDeque;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Armed, ConnectError, Fabric, FabricEvent, FabricLimits, MAX_ADDRESS, MAX_HEADER, MAX_PAYLOAD};
use crate::{PeerId, PeerLoss, SendError, SendPayload};

pub use placement::payloads_are_placed;

/// Makes an endpoint with these limits that can reach all earlier endpoints. Equal numbers give endpoints with equal
/// ids.
pub type Factory<'a> = dyn FnMut(u64, FabricLimits) -> Box<dyn Fabric> + 'a;

/// Time without an event after which a wake-up counts as lost. Generous, because only a failing check waits so long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Rounds of progress after which a check counts as stuck in a livelock.
const ROUNDS: usize = 10_000_000;

/// Runs every check.
///
/// # Panics
/// When a check fails.
pub fn all(make: &mut Factory<'_>) {
    addresses_and_refusals(make);
    sizes_in_order(make);
    flood_both_ways(make);
    payloads_are_placed(make);
    everyone_to_everyone(make);
    wake_up(make);
    pool_is_bounded(make);
    loss_is_reported_once(make);
    disconnected_peer_comes_back(make);
}

#[derive(PartialEq, Eq, Debug)]
enum SeenEvent {
    Message { from: PeerId, header: Vec<u8>, payload: Vec<u8> },
    Lost(PeerId, PeerLoss),
    Room,
}

struct TestFabrics {
    ends: Vec<Box<dyn Fabric>>,
    ids: Vec<PeerId>,
    seen: Vec<VecDeque<SeenEvent>>,
}

impl TestFabrics {
    /// `count` endpoints, each connected to all others.
    fn new(make: &mut Factory<'_>, count: u64, limits: FabricLimits) -> Self {
        let ends: Vec<_> = (0..count).map(|number| make(number, limits)).collect();
        let ids = ends.iter().map(|end| end.id()).collect();
        let seen = ends.iter().map(|_| VecDeque::new()).collect();
        let mut world = Self { ends, ids, seen };
        for from in 0..world.ends.len() {
            for to in (0..world.ends.len()).filter(|&to| to != from) {
                world.connect(from, to).expect("a fresh endpoint connects");
            }
        }
        world
    }

    fn message(&self, from: usize, header: &[u8], payload: &[u8]) -> SeenEvent {
        SeenEvent::Message { from: self.ids[from], header: header.to_vec(), payload: payload.to_vec() }
    }

    fn connect(&mut self, from: usize, to: usize) -> Result<(), ConnectError> {
        let (peer, address) = (self.ids[to], self.ends[to].local_address().to_vec());
        self.ends[from].connect(peer, &address)
    }

    fn send(&mut self, from: usize, to: usize, header: &[u8], payload: &[u8]) -> Result<(), SendError> {
        let peer = self.ids[to];
        self.ends[from].send(peer, header, SendPayload::Bytes(payload))
    }

    fn step(&mut self) -> usize {
        let mut done = 0;
        for (end, seen) in self.ends.iter_mut().zip(&mut self.seen) {
            done += end.progress(&mut |event| {
                seen.push_back(match event {
                    FabricEvent::Message { from, header, payload } => {
                        SeenEvent::Message { from, header: header.to_vec(), payload: payload.to_vec() }
                    }
                    FabricEvent::PeerLost { peer, why } => SeenEvent::Lost(peer, why),
                    FabricEvent::Room => SeenEvent::Room,
                });
            });
        }
        done
    }

    /// Sleeps until an endpoint has something to do.
    fn sleep(&mut self, what: &str) {
        if self.ends.iter_mut().any(|end| end.arm() == Armed::Busy) {
            return;
        }
        assert!(self.readable(PATIENCE), "lost wake-up: nothing happens while waiting for {what}");
    }

    fn readable(&self, patience: Duration) -> bool {
        let descriptors: Vec<_> = self.ends.iter().map(|end| end.event_fd()).collect();
        let mut polled: Vec<_> = descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let patience = Timespec::try_from(patience).expect("a short time");
        poll(&mut polled, Some(&patience)).expect("poll of valid descriptors") > 0
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..ROUNDS {
            let moved = self.step();
            if done(self) {
                return;
            }
            if moved == 0 {
                self.sleep(what);
            }
        }
        panic!("livelock while waiting for {what}");
    }

    /// Waits for an event of `end` other than `Room`.
    fn next(&mut self, end: usize, what: &str) -> SeenEvent {
        let mut found = None;
        self.until(what, |world| {
            found = std::iter::from_fn(|| world.seen[end].pop_front()).find(|seen| *seen != SeenEvent::Room);
            found.is_some()
        });
        found.unwrap_or_else(|| unreachable!("until returns when something is found"))
    }
}

/// Bytes that distinguish message `index` from its neighbours.
fn pattern(index: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ index.wrapping_mul(131) ^ (at >> 8)) as u8).collect()
}

fn addresses_and_refusals(make: &mut Factory<'_>) {
    let mut world = TestFabrics::new(make, 2, FabricLimits { peers: 1, ..FabricLimits::default() });
    let address = world.ends[1].local_address().to_vec();
    assert!(!address.is_empty() && address.len() <= MAX_ADDRESS);
    let other = world.ids[1];
    let end = &mut world.ends[0];
    assert_eq!(end.connect(other, &address), Ok(()), "connecting twice does nothing");
    assert_eq!(end.connect(other, b"elsewhere"), Err(ConnectError::AddressChanged(other)));
    let crowded = ConnectError::TooManyPeers { peer: PeerId(3), limit: 1 };
    assert_eq!(end.connect(PeerId(3), &address), Err(crowded));
    let unknown = PeerId(99);
    assert_eq!(end.send(unknown, b"h", SendPayload::Empty), Err(SendError::Unknown(unknown)));
    assert_eq!(end.ready(unknown, 0), Err(SendError::Unknown(unknown)));
    let long = end.send(other, &[0; MAX_HEADER + 1], SendPayload::Empty);
    assert_eq!(long, Err(SendError::TooLong { header: MAX_HEADER + 1, payload: 0 }));
    assert!(end.payload_buffer(MAX_PAYLOAD + 1).is_none());
    end.disconnect(unknown);
    end.disconnect(other);
    assert_eq!(end.send(other, b"h", SendPayload::Empty), Err(SendError::Unknown(other)));
    for wrong in [&b""[..], b"x", &[0; 64], &address[..address.len() - 1], &[&address[..], &[0]].concat()] {
        let refused = ConnectError::Address { peer: other, length: wrong.len() };
        assert_eq!(end.connect(other, wrong), Err(refused));
    }
}

fn sizes_in_order(make: &mut Factory<'_>) {
    let mut world = TestFabrics::new(make, 2, FabricLimits::default());
    let other = world.ids[1];
    let sizes = [0, 1, 7, 4095, 4096, 4097, 8191, 65_535, 65_536, 65_537, 131_071, 262_143, MAX_PAYLOAD, 3, 0];
    for (index, &size) in sizes.iter().enumerate() {
        let header = pattern(index, [0, 1, 24, 511, MAX_HEADER][index % 5]);
        let mut buffer = world.ends[0].payload_buffer(size).expect("the pool holds one of each");
        buffer.copy_from_slice(&pattern(index, size));
        world.ends[0].send(other, &header, SendPayload::Buffer(buffer)).expect("few messages fit");
    }
    for (index, &size) in sizes.iter().enumerate() {
        let header = pattern(index, [0, 1, 24, 511, MAX_HEADER][index % 5]);
        let seen = world.next(1, "a message of each size");
        assert!(seen == world.message(0, &header, &pattern(index, size)), "message {index} of {size} bytes differs");
    }
}

/// Two ends send as fast as the fabric accepts. Room follows every refusal, and no bound is exceeded.
fn flood_both_ways(make: &mut Factory<'_>) {
    const COUNT: usize = 400;
    let limits = FabricLimits { outstanding_messages: 8, outstanding_bytes: 300_000, ..FabricLimits::default() };
    let mut world = TestFabrics::new(make, 2, limits);
    let size = |index: usize| [100, 50_000, 0, MAX_PAYLOAD, 9000][index % 5];
    let mut sent = [0_usize; 2];
    let mut received = [0_usize; 2];
    let mut refused = 0;
    let mut blocked = [false; 2];
    world.until("a flood to end", |world| {
        for end in 0..2 {
            while let Some(seen) = world.seen[end].pop_front() {
                match seen {
                    SeenEvent::Room => blocked[end] = false,
                    other => {
                        let index = received[end];
                        let due = world.message(1 - end, &index.to_le_bytes(), &pattern(index, size(index)));
                        assert!(other == due, "message {index} of the flood differs");
                        received[end] += 1;
                    }
                }
            }
            while sent[end] < COUNT && !blocked[end] {
                let index = sent[end];
                match world.send(end, 1 - end, &index.to_le_bytes(), &pattern(index, size(index))) {
                    Ok(()) => sent[end] += 1,
                    Err(SendError::Full(peer)) => {
                        assert_eq!(peer, world.ids[1 - end]);
                        (blocked[end], refused) = (true, refused + 1);
                    }
                    Err(other) => panic!("the flood broke: {other}"),
                }
            }
        }
        received == [COUNT; 2]
    });
    assert!(refused > 0, "400 messages never met the bound of 8");
}

fn everyone_to_everyone(make: &mut Factory<'_>) {
    const ENDS: usize = 6;
    const EACH: usize = 20;
    let mut world = TestFabrics::new(make, ENDS as u64, FabricLimits::default());
    for index in 0..EACH {
        for from in 0..ENDS {
            for to in (0..ENDS).filter(|&to| to != from) {
                world.send(from, to, &[index as u8], &pattern(index, 3000)).expect("few messages fit");
            }
        }
    }
    let mut next = vec![[0; ENDS]; ENDS];
    for (end, next) in next.iter_mut().enumerate() {
        for _ in 0..EACH * (ENDS - 1) {
            let SeenEvent::Message { from, header, payload } = world.next(end, "messages of all peers") else {
                panic!("a peer was lost without cause");
            };
            let from = world.ids.iter().position(|&id| id == from).expect("one of them");
            let index = &mut next[from];
            assert_eq!((header, payload), (vec![*index as u8], pattern(*index, 3000)));
            *index += 1;
        }
    }
}

/// A message that arrives before, while or after the receiver arms wakes the receiver.
fn wake_up(make: &mut Factory<'_>) {
    let mut world = TestFabrics::new(make, 2, FabricLimits::default());
    world.send(0, 1, b"first", b"").expect("an idle path has room");
    let seen = world.next(1, "a first message");
    assert_eq!(seen, world.message(0, b"first", b""));
    for round in 0..100_u8 {
        // Whether the receiver arms before the send, or after the message has left.
        let early = round % 2 == 0;
        let mut armed = Armed::Busy;
        while early && armed == Armed::Busy {
            world.step();
            armed = world.ends[1].arm();
        }
        world.send(0, 1, &[round], b"x").expect("an idle path has room");
        world.ends[0].progress(&mut |_| ());
        if world.ends[1].arm() == Armed::Armed {
            let fd = world.ends[1].event_fd();
            let patience = Timespec::try_from(PATIENCE).expect("a short time");
            let polled = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&patience));
            assert_eq!(polled, Ok(1), "a sleeper missed message {round}");
        }
        let seen = world.next(1, "a message that woke");
        assert_eq!(seen, world.message(0, &[round], b"x"));
    }
}

fn pool_is_bounded(make: &mut Factory<'_>) {
    let mut world = TestFabrics::new(make, 2, FabricLimits { pool_bytes: 2 * MAX_PAYLOAD, ..FabricLimits::default() });
    let other = world.ids[1];
    let first = world.ends[0].payload_buffer(MAX_PAYLOAD).expect("two fit");
    let second = world.ends[0].payload_buffer(MAX_PAYLOAD).expect("two fit");
    assert!(world.ends[0].payload_buffer(1).is_none(), "the pool exceeds its bound");
    for buffer in [first, second] {
        world.ends[0].send(other, b"", SendPayload::Buffer(buffer)).expect("the path has room");
    }
    world.until("a buffer to come back", |world| {
        let room = std::iter::from_fn(|| world.seen[0].pop_front()).any(|seen| seen == SeenEvent::Room);
        room && world.ends[0].payload_buffer(MAX_PAYLOAD).is_some()
    });
    for _ in 0..2 {
        assert!(matches!(world.next(1, "both messages"), SeenEvent::Message { .. }));
    }
}

fn loss_is_reported_once(make: &mut Factory<'_>) {
    let mut world = TestFabrics::new(make, 3, FabricLimits::default());
    world.send(0, 2, b"hello", b"").expect("an idle path has room");
    world.send(2, 0, b"hello", b"").expect("an idle path has room");
    let seen = world.next(2, "a message");
    assert_eq!(seen, world.message(0, b"hello", b""));
    let seen = world.next(0, "a message");
    assert_eq!(seen, world.message(2, b"hello", b""));
    let third = world.ids[2];
    drop(world.ends.pop());
    assert!(matches!(world.next(0, "the loss"), SeenEvent::Lost(peer, _) if peer == third));
    let gone = world.ends[0].send(third, b"", SendPayload::Empty);
    assert_eq!(gone, Err(SendError::Unknown(third)));
    world.send(1, 0, b"alive", b"").expect("the others are not concerned");
    let seen = world.next(0, "a message after a loss");
    assert_eq!(seen, world.message(1, b"alive", b""));
    world.ends.push(make(2, FabricLimits::default()));
    world.ids[2] = world.ends[2].id();
    for (from, to) in [(0, 2), (2, 0)] {
        world.connect(from, to).expect("its successor connects");
    }
    world.send(0, 2, b"again", b"").expect("its successor has room");
    world.send(2, 0, b"again", b"").expect("its successor has room");
    let seen = world.next(2, "a message to the successor");
    assert_eq!(seen, world.message(0, b"again", b""));
    let seen = world.next(0, "a message of the successor");
    assert_eq!(seen, world.message(2, b"again", b""));
}

/// Messages accepted before a disconnect still arrive; a new connection starts a new stream.
fn disconnected_peer_comes_back(make: &mut Factory<'_>) {
    let mut world = TestFabrics::new(make, 2, FabricLimits::default());
    for round in 0..5_u8 {
        world.send(0, 1, &[round], &pattern(round.into(), 70_000)).expect("an idle path has room");
        if round > 0 {
            let seen = world.next(1, "a message before the disconnect");
            assert_eq!(seen, world.message(0, &[round], &pattern(round.into(), 70_000)));
        }
        let other = world.ids[1];
        world.ends[0].disconnect(other);
        if round == 0 {
            let seen = world.next(1, "a message accepted before the disconnect");
            assert_eq!(seen, world.message(0, &[0], &pattern(0, 70_000)));
        }
        world.connect(0, 1).expect("a disconnected peer connects again");
        world.seen[1].clear();
    }
}
