//! The TCP kind passes the conformance suite, and takes nothing from whoever has not proven who it is.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::{Barrier, Mutex};

use outboard_fabric::{
    Armed, ClusterKey, Fabric, FabricEvent, Identity, Limits, Payload, PeerId, PeerLoss, Tcp, TcpSettings, conformance,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long nothing may happen before a test fails.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

fn fabric(identity: Identity, cluster: ClusterKey) -> Tcp {
    let settings = TcpSettings { at: Ipv4Addr::LOCALHOST, identity, cluster, limits: Limits::default() };
    Tcp::new(settings).expect("the loopback device has this address")
}

fn stranger() -> Tcp {
    fabric(Identity::generate(), ClusterKey::default())
}

fn socket(fabric: &Tcp) -> SocketAddrV4 {
    let address = fabric.local_address();
    let ip: [u8; 4] = address[4..8].try_into().expect("four bytes");
    SocketAddrV4::new(ip.into(), u16::from_be_bytes([address[8], address[9]]))
}

fn connect(from: &mut Tcp, to: &Tcp) -> PeerId {
    from.connect(to.id(), to.local_address()).expect("an address of this fabric");
    to.id()
}

/// Progresses all until `found` accepts an event of the first.
fn until<T>(fabrics: &mut [&mut Tcp], what: &str, mut found: impl FnMut(FabricEvent<'_>) -> Option<T>) -> T {
    loop {
        let mut result = None;
        let mut moved = 0;
        for (at, fabric) in fabrics.iter_mut().enumerate() {
            moved += fabric.progress(&mut |event| {
                if at == 0 {
                    result = result.take().or_else(|| found(event));
                }
            });
        }
        if let Some(result) = result {
            return result;
        }
        if moved == 0 && fabrics.iter_mut().all(|fabric| fabric.arm() == Armed::Armed) {
            let mut polled: Vec<_> =
                fabrics.iter().map(|fabric| PollFd::from_borrowed_fd(fabric.event_fd(), PollFlags::IN)).collect();
            assert!(poll(&mut polled, Some(&PATIENCE)).expect("poll works") > 0, "nothing happens: {what}");
        }
    }
}

fn message(of: PeerId) -> impl FnMut(FabricEvent<'_>) -> Option<Vec<u8>> {
    move |event| match event {
        FabricEvent::Message { from, header, .. } if from == of => Some(header.to_vec()),
        FabricEvent::Message { from, .. } => panic!("a message of {from}"),
        FabricEvent::PeerLost { peer, why } => panic!("{peer} is lost: {why}"),
        FabricEvent::Room => None,
    }
}

fn loss(event: FabricEvent<'_>) -> Option<PeerLoss> {
    match event {
        FabricEvent::PeerLost { why, .. } => Some(why),
        _ => None,
    }
}

#[test]
fn tcp_conforms() {
    let mut identities = HashMap::new();
    conformance::all(&mut |number, limits| {
        let identity = identities.entry(number).or_insert_with(Identity::generate).clone();
        let settings = TcpSettings { at: Ipv4Addr::LOCALHOST, identity, cluster: ClusterKey::default(), limits };
        Box::new(Tcp::new(settings).expect("the loopback device has this address"))
    });
}

/// Both ends dial at once, again and again: one connection stays and every message arrives once.
#[test]
fn whoever_dials_first_the_messages_arrive() {
    for _ in 0..50 {
        let mut ends = [stranger(), stranger()];
        let ids = ends.each_ref().map(Tcp::id);
        let addresses = ends.each_ref().map(|end| end.local_address().to_vec());
        for (at, end) in ends.iter_mut().enumerate() {
            end.connect(ids[1 - at], &addresses[1 - at]).expect("an address of this fabric");
        }
        for round in 0..3_u8 {
            for (at, end) in ends.iter_mut().enumerate() {
                end.send(ids[1 - at], &[round], Payload::Empty).expect("room");
            }
            let mut arrived = [0; 2];
            while arrived != [1; 2] {
                for at in 0..2 {
                    ends[at].progress(&mut |event| match event {
                        FabricEvent::Message { from, header, .. } => {
                            assert_eq!((from, header), (ids[1 - at], &[round][..]));
                            arrived[at] += 1;
                        }
                        other => panic!("{other:?}"),
                    });
                }
            }
        }
    }
}

/// Whoever holds another cluster key, or none, is refused; holders reach each other.
#[test]
fn only_holders_of_the_cluster_key_take_part() {
    let ours = ClusterKey::of(b"ours");
    let (mut a, mut b) = (fabric(Identity::generate(), ours), fabric(Identity::generate(), ours));
    let to_b = connect(&mut a, &b);
    a.send(to_b, b"hello", Payload::Empty).expect("room");
    let from_a = a.id();
    assert_eq!(until(&mut [&mut b, &mut a], "a holder's message", message(from_a)), b"hello");
    for other in [ClusterKey::of(b"theirs"), ClusterKey::default()] {
        let mut outsider = fabric(Identity::generate(), other);
        connect(&mut outsider, &b);
        assert!(matches!(until(&mut [&mut outsider, &mut b], "the refusal", loss), PeerLoss::Protocol(_)));
    }
}

/// Another service process at the address of one that is gone does not get its messages.
#[test]
fn a_successor_at_the_same_port_is_somebody_else() {
    let (mut a, b) = (stranger(), stranger());
    let (gone, mut address, at) = (b.id(), b.local_address().to_vec(), socket(&b));
    drop(b);
    let successor = stranger();
    let port = socket(&successor).port();
    address[8..10].copy_from_slice(&port.to_be_bytes());
    assert_eq!(*at.ip(), Ipv4Addr::LOCALHOST);
    a.connect(gone, &address).expect("well formed");
    a.send(gone, b"secret", Payload::Empty).expect("room");
    let mut successor = successor;
    let mut fabrics = [&mut a, &mut successor];
    assert!(matches!(until(&mut fabrics, "the loss", loss), PeerLoss::Reset | PeerLoss::Protocol(_)));
}

/// Garbage, silence, half a handshake and 10,000 connections that say nothing cost others nothing.
#[test]
fn strangers_are_closed_and_others_go_on() {
    let (mut a, mut b) = (stranger(), stranger());
    let to_b = connect(&mut a, &b);
    let from_a = a.id();
    let at = socket(&b);
    let mut silent = Vec::new();
    for round in 0..10_000 {
        let mut stream = TcpStream::connect(at).expect("it listens");
        match round % 100 {
            0 => stream.write_all(&[round as u8; 4096]).expect("room"),
            1 => stream.write_all(b"half").expect("room"),
            _ => {}
        }
        silent.push(stream);
        if round % 64 == 0 {
            silent.drain(..silent.len().saturating_sub(300));
            b.progress(&mut |_| panic!("nobody has said anything"));
            a.progress(&mut |_| ());
        }
        if round % 2500 == 0 {
            a.send(to_b, &[1], Payload::Empty).expect("room");
            assert_eq!(until(&mut [&mut b, &mut a], "a's message", message(from_a)), [1]);
        }
    }
    // The youngest are closed as well once their time is over.
    let mut last = silent.pop().expect("there are many");
    last.set_nonblocking(true).expect("a socket");
    let closed = loop {
        b.progress(&mut |_| panic!("nobody has said anything"));
        match last.read(&mut [0; 8]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let polled = poll(&mut [PollFd::from_borrowed_fd(b.event_fd(), PollFlags::IN)], Some(&PATIENCE));
                assert!(polled.expect("poll works") > 0, "silence lasts for ever");
            }
            closed => break closed,
        }
    };
    assert!(matches!(closed, Ok(0) | Err(_)));
}

/// Service processes that all dial one another at the same moment, each on a thread of its own: nobody is lost and
/// every message arrives once.
#[test]
fn all_dial_all_at_once() {
    const ENDS: usize = 4;
    for _ in 0..100 {
        let known = Mutex::new(Vec::new());
        let together = Barrier::new(ENDS);
        let end = || {
            let mut end = stranger();
            known.lock().expect("no panic").push((end.id(), end.local_address().to_vec()));
            together.wait();
            let own = end.id();
            for (id, address) in known.lock().expect("no panic").iter().filter(|(id, _)| *id != own) {
                end.connect(*id, address).expect("an address of this fabric");
                end.send(*id, b"first", Payload::Empty).expect("room");
            }
            let mut heard = 0;
            let mut lost = None;
            while heard < ENDS - 1 && lost.is_none() {
                let moved = end.progress(&mut |event| match event {
                    FabricEvent::Message { .. } => heard += 1,
                    FabricEvent::PeerLost { why, .. } => lost = Some(why),
                    FabricEvent::Room => {}
                });
                if moved == 0 && end.arm() == Armed::Armed {
                    let mut polled = [PollFd::from_borrowed_fd(end.event_fd(), PollFlags::IN)];
                    assert!(poll(&mut polled, Some(&PATIENCE)).expect("poll works") > 0, "nothing happens");
                }
            }
            // Whoever ends is lost to the others.
            together.wait();
            assert_eq!((heard, lost), (ENDS - 1, None));
        };
        std::thread::scope(|scope| (0..ENDS).for_each(|_| drop(scope.spawn(end))));
    }
}
