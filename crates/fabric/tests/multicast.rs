//! Multicast datagrams over the loopback device: content, batching, separation of groups, wake-up.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use outboard_fabric::multicast::{
    Interface, MulticastReceiver, MulticastSender, MulticastSettings, Reach, ReceiveBatch, WaitOutcome, channel_address,
};

const HEADER: usize = 24;
/// Time without a datagram after which a test fails.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// Settings on lo with a port of this test and process, because tests and test runs are concurrent.
fn settings(test: u16) -> MulticastSettings {
    let port = 10_000 + (std::process::id() % 5000) as u16 * 8 + test;
    let lo = Interface::named("lo").expect("every host has lo");
    MulticastSettings { port, reach: Reach::Everywhere, ..MulticastSettings::new(lo) }
}

fn receiver(settings: &MulticastSettings, group: Ipv4Addr) -> MulticastReceiver {
    let mut receiver = MulticastReceiver::new(settings).expect("receivers on lo share the port");
    receiver.join(group).expect("lo takes multicast");
    receiver
}

fn sender(settings: &MulticastSettings) -> MulticastSender {
    MulticastSender::new(settings).expect("a sender on lo")
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

fn headers(count: usize) -> Vec<[u8; HEADER]> {
    (0..count as u64)
        .map(|index| {
            let mut header = [0; HEADER];
            header[..8].copy_from_slice(&index.to_le_bytes());
            header
        })
        .collect()
}

/// Receives until `count` datagrams are there; returns each chunk by its index.
fn collect(receiver: &mut MulticastReceiver, count: usize) -> BTreeMap<u64, Vec<u8>> {
    let mut batch = ReceiveBatch::new(32);
    let mut chunks = BTreeMap::new();
    while chunks.len() < count {
        assert_eq!(receiver.wait(PATIENCE).expect("poll works"), WaitOutcome::Readable, "{} of {count}", chunks.len());
        let received = receiver.receive(&mut batch).expect("receiving works");
        assert_eq!(received.overflowed, 0);
        for datagram in batch.datagrams() {
            assert_eq!(datagram.from, Ipv4Addr::LOCALHOST, "the interface's address");
            let (header, chunk) = datagram.bytes.split_first_chunk::<HEADER>().expect("a header");
            let index = u64::from_le_bytes(*header.first_chunk().expect("an index"));
            assert!(chunks.insert(index, chunk.to_vec()).is_none(), "datagram {index} came twice");
        }
    }
    chunks
}

/// MC-1, MC-11: chunks arrive whole, at their place, short last ones included, in few system calls.
#[test]
fn chunks_arrive_in_few_calls() {
    let settings = settings(0);
    let group = channel_address(1);
    let (mut receiver, mut sender) = (receiver(&settings, group), sender(&settings));
    for (length, chunk) in [(0, 1448), (1, 1448), (1448, 1448), (1449, 1448), (300_000, 1448), (200_000, 60_000)] {
        let bytes = payload(length);
        let headers = headers(length.div_ceil(chunk).max(1));
        let before = sender.calls();
        let sent = sender.send(group, chunk, &headers, &bytes).expect("sending on lo works");
        assert_eq!((sent.datagrams, sent.congested), (headers.len(), false));
        let calls = sender.calls() - before;
        assert!(calls <= 2, "{} datagrams took {calls} calls", headers.len());
        let chunks = collect(&mut receiver, headers.len());
        assert_eq!(chunks.into_values().flatten().collect::<Vec<_>>(), bytes, "{length} bytes by {chunk}");
    }
}

/// MC-10: sockets that share a port receive only their own groups, and nothing after leaving.
#[test]
fn groups_do_not_mix() {
    let settings = settings(1);
    let groups = [channel_address(10), channel_address(11)];
    let mut receivers = groups.map(|group| receiver(&settings, group));
    let mut sender = sender(&settings);
    let mut send = |group, mark: u8| {
        let sent = sender.send(group, 100, &headers(2), &[mark; 150]).expect("sending on lo works");
        assert_eq!(sent.datagrams, 2);
    };
    for (mark, group) in [(1, groups[0]), (2, groups[1])] {
        send(group, mark);
    }
    for (mark, receiver) in [1_u8, 2].iter().zip(&mut receivers) {
        let chunks = collect(receiver, 2);
        assert!(chunks.into_values().flatten().all(|byte| byte == *mark), "a datagram of the other group");
    }
    let [left, other] = &mut receivers;
    left.leave(groups[0]).expect("it is joined");
    left.join(groups[1]).expect("a second group");
    send(groups[0], 3);
    send(groups[1], 4);
    for receiver in [left, other] {
        assert!(collect(receiver, 2).into_values().flatten().all(|byte| byte == 4));
    }
}

/// Empty datagrams of a foreign sender hide no datagram behind them from a receiver that reads until nothing waits.
#[test]
fn empty_datagrams_hide_none_behind_them() {
    let settings = settings(6);
    let group = channel_address(1);
    let mut receiver = receiver(&settings, group);
    let foreign = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    rustix::net::sockopt::set_ip_multicast_if(&foreign, &Ipv4Addr::LOCALHOST).expect("the interface's address");
    for _ in 0..40 {
        foreign.send_to(&[], (group, settings.port)).expect("sending on lo works");
    }
    let mut sender = sender(&settings);
    let sent = sender.send(group, 100, &headers(1), &[7; 10]).expect("sending on lo works");
    assert_eq!(sent.datagrams, 1);
    let mut batch = ReceiveBatch::new(4);
    let mut datagrams = 0;
    while receiver.receive(&mut batch).expect("receiving works").bursts > 0 {
        datagrams += batch.datagrams().count();
    }
    assert_eq!(datagrams, 1);
}

/// The kernel lets one socket join 20 groups.
#[test]
fn many_groups_are_received_and_left() {
    let settings = settings(5);
    let groups: Vec<Ipv4Addr> = (100..170).map(channel_address).collect();
    let mut receiver = MulticastReceiver::new(&settings).expect("a receiver on lo");
    for group in &groups {
        receiver.join(*group).expect("more than one socket takes");
    }
    let mut sender = sender(&settings);
    let mut send = |index: usize| {
        let sent = sender.send(groups[index], 8, &headers(index + 1)[index..], b"once").expect("sending on lo works");
        assert_eq!(sent.datagrams, 1);
    };
    (0..groups.len()).for_each(&mut send);
    assert_eq!(collect(&mut receiver, groups.len()).len(), groups.len());
    for group in &groups[1..] {
        receiver.leave(*group).expect("it is joined");
    }
    (0..groups.len()).rev().for_each(&mut send);
    assert_eq!(collect(&mut receiver, 1).into_keys().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_waker_ends_the_wait_of_another_thread() {
    let mut receiver = MulticastReceiver::new(&settings(2)).expect("a receiver on lo");
    let waker = receiver.waker();
    let thread = std::thread::spawn(move || receiver.wait(PATIENCE).map(|wake| (wake, receiver)));
    waker.wake();
    let (wake, mut receiver) = thread.join().expect("no panic").expect("poll works");
    assert_eq!(wake, WaitOutcome::Woken);
    assert_eq!(receiver.wait(Some(Duration::ZERO)).expect("poll works"), WaitOutcome::TimedOut);
}

/// Datagrams that do not fit the socket buffer are counted; the receiver does not wait for them.
#[test]
fn overflow_is_counted() {
    let settings = MulticastSettings { buffer_bytes: 4096, ..settings(3) };
    let group = channel_address(20);
    let (mut receiver, mut sender) = (receiver(&settings, group), sender(&settings));
    let bytes = payload(1448 * 200);
    for _ in 0..4 {
        let sent = sender.send(group, 1448, &headers(200), &bytes).expect("sending on lo works");
        assert_eq!(sent.datagrams, 200);
    }
    let mut batch = ReceiveBatch::new(4);
    while receiver.receive(&mut batch).expect("receiving works").bursts > 0 {}
    // The kernel reports the count with the first datagram that fits after the drops.
    let sent = sender.send(group, 8, &headers(1), b"after").expect("sending on lo works");
    assert_eq!(sent.datagrams, 1);
    assert_eq!(receiver.wait(PATIENCE).expect("poll works"), WaitOutcome::Readable);
    assert!(receiver.receive(&mut batch).expect("receiving works").overflowed > 0);
}

#[test]
fn refusals_say_what_is_wrong() {
    let mut receiver = MulticastReceiver::new(&settings(4)).expect("a receiver on lo");
    let unicast = receiver.join(Ipv4Addr::LOCALHOST).expect_err("not a multicast address");
    assert_eq!(unicast.kind(), std::io::ErrorKind::InvalidInput);
    let absent = receiver.leave(channel_address(30)).expect_err("not joined");
    assert_eq!(absent.kind(), std::io::ErrorKind::AddrNotAvailable);
    receiver.join(channel_address(30)).expect("lo takes multicast");
    let again = receiver.join(channel_address(30)).expect_err("joined already");
    assert_eq!(again.kind(), std::io::ErrorKind::AddrInUse);
}
