//! The TCP kind passes the conformance suite, encrypted and not, and accepts nothing from unproven ends.

mod dialling;
mod hostile;
mod siblings;
mod tap;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Barrier, Mutex};

use outboard_fabric::{
    Armed, Fabric, FabricEvent, FabricLimits, Identity, PeerId, PeerLoss, SendPayload, SharedKey, Tcp, TcpSettings,
    conformance,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time without an event after which a test fails.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

fn settings() -> TcpSettings {
    let (identity, cluster) = (Identity::generate(), SharedKey::default());
    let limits = FabricLimits::default();
    TcpSettings { at: Ipv4Addr::LOCALHOST, identity, cluster, encrypt: false, siblings: false, limits }
}

fn fabric(settings: TcpSettings) -> Tcp {
    Tcp::new(settings).expect("the loopback device has this address")
}

fn stranger() -> Tcp {
    fabric(settings())
}

fn encrypting() -> Tcp {
    fabric(TcpSettings { encrypt: true, ..settings() })
}

fn of_cluster(cluster: SharedKey) -> Tcp {
    fabric(TcpSettings { cluster, ..settings() })
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

/// Progresses all fabrics until `found` accepts an event of the first fabric.
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
        if moved == 0 {
            sleep(fabrics, what);
        }
    }
}

/// Sleeps until a fabric has work.
fn sleep(fabrics: &mut [&mut Tcp], what: &str) {
    if fabrics.iter_mut().all(|fabric| fabric.arm() == Armed::Armed) {
        assert!(is_ready(fabrics, &PATIENCE), "nothing happens: {what}");
    }
}

fn is_ready(fabrics: &[&mut Tcp], patience: &Timespec) -> bool {
    let mut polled: Vec<_> =
        fabrics.iter().map(|fabric| PollFd::from_borrowed_fd(fabric.event_fd(), PollFlags::IN)).collect();
    poll(&mut polled, Some(patience)).expect("poll works") > 0
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
    for (encrypt, siblings) in [(false, false), (true, false), (false, true)] {
        conformance::all(&mut |_, limits| Box::new(fabric(TcpSettings { encrypt, siblings, limits, ..settings() })));
    }
}

/// SP-4: without encryption the kernel reads payloads straight into place.
#[test]
fn plain_payloads_are_placed_directly_and_encrypted_ones_buffered() {
    for encrypt in [false, true] {
        let placed = conformance::payloads_are_placed(&mut |_, limits| {
            Box::new(fabric(TcpSettings { encrypt, limits, ..settings() }))
        });
        assert_eq!(placed > 0, !encrypt, "{placed}");
    }
}

/// SP-3: a message that waits when its peer is disconnected does not precede messages that are sent later.
#[test]
fn messages_from_before_a_disconnect_do_not_reach_the_next_connection() {
    let (mut end, mut other) = (stranger(), stranger());
    let peer = connect(&mut end, &other);
    end.send(peer, b"old", SendPayload::Empty).expect("room");
    end.disconnect(peer);
    connect(&mut end, &other);
    end.send(peer, b"new", SendPayload::Empty).expect("room");
    let own = end.id();
    let said = until(&mut [&mut other, &mut end], "a message", message(own));
    assert_eq!(said, b"new");
}

/// Service processes on separate threads dial one another at the same moment. One connection of each pair stays, no
/// peer is lost, and every message arrives once and in order.
#[test]
fn simultaneous_dials_of_all_pairs_succeed() {
    const ENDS: usize = 4;
    const EACH: u8 = 3;
    for round in 0..100 {
        let known = Mutex::new(Vec::new());
        let together = Barrier::new(ENDS);
        let end = || {
            let mut end = if round % 2 == 0 { stranger() } else { encrypting() };
            known.lock().expect("no panic").push((end.id(), end.local_address().to_vec()));
            together.wait();
            let own = end.id();
            for (id, address) in known.lock().expect("no panic").iter().filter(|(id, _)| *id != own) {
                end.connect(*id, address).expect("an address of this fabric");
                (0..EACH).for_each(|number| end.send(*id, &[number], SendPayload::Empty).expect("room"));
            }
            let (mut heard, mut lost) = (HashMap::new(), None);
            while heard.values().sum::<u8>() < EACH * (ENDS as u8 - 1) && lost.is_none() {
                let moved = end.progress(&mut |event| match event {
                    FabricEvent::Message { from, header, .. } => {
                        let due = heard.entry(from).or_default();
                        assert_eq!(header, [*due]);
                        *due += 1;
                    }
                    FabricEvent::PeerLost { why, .. } => lost = Some(why),
                    FabricEvent::Room => {}
                });
                if moved == 0 {
                    sleep(&mut [&mut end], "messages of all");
                }
            }
            // An end that is dropped is lost to the other ends.
            together.wait();
            assert_eq!(lost, None);
        };
        std::thread::scope(|scope| (0..ENDS).for_each(|_| drop(scope.spawn(end))));
    }
}
