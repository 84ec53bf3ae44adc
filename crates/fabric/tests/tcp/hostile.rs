//! Strangers, impostors and peers that break the protocol are disconnected and counted, and others go on.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use outboard_fabric::secured::{Handshake, HandshakeStep, HandshakeTerms, Keys};
use outboard_fabric::{
    ConnectError, Fabric, FabricEvent, Identity, MAX_PAYLOAD, PeerId, PeerLoss, SendError, SendPayload, SharedKey, Tcp,
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::tap::Tap;
use crate::{
    PATIENCE, TcpSettings, connect, encrypting, fabric, is_ready, loss, message, of_cluster, settings, sleep, socket,
    stranger, until,
};

/// Ends with another cluster key, or none, are refused; holders of the key reach each other.
#[test]
fn only_holders_of_the_cluster_key_take_part() {
    let ours = SharedKey::of(b"ours");
    let (mut a, mut b) = (of_cluster(ours), of_cluster(ours));
    let to_b = connect(&mut a, &b);
    a.send(to_b, b"hello", SendPayload::Empty).expect("room");
    let from_a = a.id();
    assert_eq!(until(&mut [&mut b, &mut a], "a holder's message", message(from_a)), b"hello");
    for other in [SharedKey::of(b"theirs"), SharedKey::default()] {
        let mut outsider = of_cluster(other);
        connect(&mut outsider, &b);
        assert!(matches!(until(&mut [&mut outsider, &mut b], "the refusal", loss), PeerLoss::Handshake(_)));
    }
}

/// A service process at the address of an ended one does not get messages for its predecessor.
#[test]
fn a_successor_at_the_same_port_gets_no_messages_of_its_predecessor() {
    let (mut a, b) = (fabric(TcpSettings { siblings: true, ..settings() }), stranger());
    let mut successor = stranger();
    let _tap = Tap::between(&b, &successor);
    let gone = connect(&mut a, &b);
    drop(b);
    a.send(gone, b"secret", SendPayload::Empty).expect("room");
    let mut fabrics = [&mut a, &mut successor];
    assert!(matches!(until(&mut fabrics, "the loss", loss), PeerLoss::Reset | PeerLoss::Handshake(_)));
}

/// Garbage, silence, half a handshake and 10,000 silent connections cost others nothing.
#[test]
fn unauthenticated_connections_are_closed_and_peers_go_on() {
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
            a.send(to_b, &[1], SendPayload::Empty).expect("room");
            assert_eq!(until(&mut [&mut b, &mut a], "a's message", message(from_a)), [1]);
        }
    }
    // The youngest connections are closed as well once their time is over.
    let mut last = silent.pop().expect("there are many");
    last.set_nonblocking(true).expect("a socket");
    let closed = loop {
        b.progress(&mut |_| panic!("nobody has said anything"));
        match last.read(&mut [0; 8]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(is_ready(&[&mut b], &PATIENCE), "silence lasts for ever");
            }
            closed => break closed,
        }
    };
    assert!(matches!(closed, Ok(0) | Err(_)));
    assert!(b.refused() > 9000, "{} are counted", b.refused());
}

/// Waits until the first fabric has counted `count` refusals; the first fabric must receive no message meanwhile.
fn until_refused(fabrics: &mut [&mut Tcp], count: u64) {
    while fabrics[0].refused() < count {
        let mut moved =
            fabrics[0].progress(&mut |event| assert!(!matches!(event, FabricEvent::Message { .. }), "{event:?}"));
        for other in &mut fabrics[1..] {
            moved += other.progress(&mut |_| ());
        }
        if moved == 0 {
            sleep(fabrics, "refusals");
        }
    }
}

/// An end that claims another address for a service process is refused. Other ends still reach the real service
/// process.
#[test]
fn a_forged_address_is_refused_and_the_real_peer_is_reached() {
    let [mut a, mut b, other] = [stranger(), stranger(), stranger()];
    let mut address = b.local_address().to_vec();
    address[8..10].copy_from_slice(&socket(&other).port().to_be_bytes());
    assert!(matches!(a.connect(b.id(), &address), Err(ConnectError::Address { .. })));
    let to_b = connect(&mut a, &b);
    a.send(to_b, b"hello", SendPayload::Empty).expect("room");
    let from_a = a.id();
    assert_eq!(until(&mut [&mut b, &mut a], "the message", message(from_a)), b"hello");
}

#[test]
fn encrypted_payloads_are_unreadable_on_the_wire() {
    for (encrypt, readable) in [(false, true), (true, false)] {
        let mut a = fabric(TcpSettings { encrypt, siblings: true, ..settings() });
        let mut b = fabric(TcpSettings { encrypt, ..settings() });
        let tap = Tap::between(&b, &b);
        connect(&mut a, &b);
        let payload: Vec<u8> = (0..MAX_PAYLOAD).map(|at| ((at * 7) >> 3) as u8).collect();
        a.send(b.id(), b"a header that says what follows", SendPayload::Bytes(&payload)).expect("room");
        let from_a = a.id();
        until(&mut [&mut b, &mut a], "the message", message(from_a));
        drop((a, b));
        let seen = tap.seen();
        let reads = |part: &[u8]| seen.windows(part.len()).any(|window| window == part);
        assert_eq!([reads(b"a header"), reads(&payload[5000..5064])], [readable; 2]);
    }
}

/// An encrypting end and a plain end never connect, whichever dials, and both name the reason.
#[test]
fn encrypting_and_plain_ends_refuse_each_other_by_name() {
    for [mut a, mut b] in [[encrypting(), stranger()], [stranger(), encrypting()]] {
        let to_b = connect(&mut a, &b);
        a.send(to_b, b"secret", SendPayload::Empty).expect("room");
        let PeerLoss::Handshake(why) = until(&mut [&mut a, &mut b], "the refusal", loss) else { panic!("no reason") };
        assert!(why.contains(&to_b.to_string()) && why.contains("--encrypt"), "{why}");
        until_refused(&mut [&mut b], 1);
    }
}

/// A scripted peer, which can send anything after its handshake.
struct HandMade {
    stream: TcpStream,
    id: PeerId,
    keys: Keys,
}

impl HandMade {
    fn greet(fabric: &mut Tcp, encrypts: bool) -> HandMade {
        HandMade::greet_amid(fabric, encrypts, |_| ())
    }

    /// Greets as [`Self::greet`] does, and calls `meanwhile` between the two messages.
    fn greet_amid(fabric: &mut Tcp, encrypts: bool, meanwhile: impl Fn(&mut Tcp)) -> HandMade {
        let (own, shared) = (Identity::generate(), SharedKey::default());
        let terms = HandshakeTerms { own: &own, shared: &shared, purpose: b"outboard tcp 3", encrypts };
        let key = fabric.local_address()[10..].try_into().expect("a key");
        let (mut handshake, hello) = Handshake::dial(&terms, key).expect("good keys");
        let mut stream = TcpStream::connect(socket(fabric)).expect("it listens");
        stream.set_nonblocking(true).expect("a socket");
        stream.write_all(&hello).expect("room");
        loop {
            fabric.progress(&mut |event| panic!("{event:?}"));
            let taken = match stream.read(handshake.room()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let fds = &mut [
                        PollFd::from_borrowed_fd(fabric.event_fd(), PollFlags::IN),
                        PollFd::new(&stream, PollFlags::IN),
                    ];
                    assert!(poll(fds, Some(&PATIENCE)).expect("poll works") > 0, "no welcome");
                    continue;
                }
                taken => taken.expect("it stays"),
            };
            handshake = match handshake.advance(taken).expect("a handshake") {
                HandshakeStep::Wait(handshake) => handshake,
                HandshakeStep::Send(handshake, message) => {
                    meanwhile(fabric);
                    stream.write_all(&message).expect("room");
                    handshake
                }
                HandshakeStep::Welcome(keys) => {
                    stream.set_nonblocking(false).expect("a socket");
                    return HandMade { stream, id: own.id(), keys };
                }
                HandshakeStep::Proven { .. } => unreachable!("it has dialled"),
            };
        }
    }

    /// Sends these bytes of the stream of frames, `sealed` in a record of their own.
    fn send_raw(&mut self, bytes: &[u8], sealed: bool) {
        let mut records = Vec::new();
        self.keys.sealer.seal([bytes], &mut Vec::new(), &mut records);
        self.stream.write_all(if sealed { &records } else { bytes }).expect("room");
    }
}

fn frame(header: &[u8], payload: usize) -> Vec<u8> {
    let lengths = [header.len() as u32, payload as u32].map(u32::to_le_bytes);
    [&lengths.concat(), header, &vec![7; payload]].concat()
}

/// After a valid handshake a truncated frame never arrives. A frame that is too long ends the connection before memory
/// is allocated for it. A record that is too short ends the connection, and so do frames without records.
#[test]
fn malformed_frames_after_the_handshake_close_the_connection() {
    for encrypts in [false, true] {
        let mut b = fabric(TcpSettings { encrypt: encrypts, ..settings() });
        let mut cut = HandMade::greet(&mut b, encrypts);
        cut.send_raw(&frame(b"whole", 100), encrypts);
        let from = cut.id;
        assert_eq!(until(&mut [&mut b], "the whole frame", message(from)), b"whole");
        cut.send_raw(&frame(b"cut off", 70_000)[..60_000], encrypts);
        drop(cut);
        let mut long = HandMade::greet(&mut b, encrypts);
        long.send_raw(&u32::MAX.to_le_bytes().repeat(2), encrypts);
        until_refused(&mut [&mut b], 1);
        let mut gibberish = HandMade::greet(&mut b, encrypts);
        gibberish.send_raw(&[0xff; 70_000], !encrypts);
        until_refused(&mut [&mut b], 2);
        if encrypts {
            let mut empty = HandMade::greet(&mut b, true);
            empty.send_raw(&16u16.to_le_bytes(), false);
            until_refused(&mut [&mut b], 3);
        }
    }
}

/// A peer that has begun the handshake completes it, however many silent connections there are.
#[test]
fn a_peer_connects_despite_many_silent_connections() {
    let mut b = stranger();
    let at = socket(&b);
    let crowd = RefCell::new(Vec::new());
    let mut peer = HandMade::greet_amid(&mut b, false, |b| {
        for _ in 0..8 {
            crowd.borrow_mut().extend((0..50).map(|_| TcpStream::connect(at).expect("it listens")));
            b.progress(&mut |event| panic!("{event:?}"));
        }
    });
    while b.progress(&mut |event| panic!("{event:?}")) > 0 {}
    let crowd = crowd.into_inner();
    crowd.iter().for_each(|stream| stream.set_nonblocking(true).expect("a socket"));
    let is_kept = |stream: &&TcpStream| stream.peek(&mut [0]).is_err_and(|why| why.kind() == ErrorKind::WouldBlock);
    assert!(crowd.iter().filter(is_kept).count() <= 129, "strangers beyond the bound are kept");
    peer.send_raw(&frame(b"here", 0), false);
    assert_eq!(until(&mut [&mut b], "a message", message(peer.id)), b"here");
}

/// A crowd of connections with hellos does not keep a peer away: a hello proves no cluster key, and may be a replay.
#[test]
fn a_peer_connects_despite_many_greeted_connections() {
    let mut b = stranger();
    let (own, shared) = (Identity::generate(), SharedKey::default());
    let terms = HandshakeTerms { own: &own, shared: &shared, purpose: b"outboard tcp 3", encrypts: false };
    let key = b.local_address()[10..].try_into().expect("a key");
    let (_, hello) = Handshake::dial(&terms, key).expect("good keys");
    let mut greeted = |_| {
        let mut stream = TcpStream::connect(socket(&b)).expect("it listens");
        stream.write_all(&hello).expect("room");
        b.progress(&mut |event| panic!("{event:?}"));
        stream
    };
    let _crowd: Vec<TcpStream> = (0..200).map(&mut greeted).collect();
    let mut peer = HandMade::greet(&mut b, false);
    peer.send_raw(&frame(b"here", 0), false);
    assert_eq!(until(&mut [&mut b], "a message", message(peer.id)), b"here");
}

/// A peer that reads nothing has a queue within the limits, and others are served.
#[test]
fn a_peer_that_reads_nothing_delays_no_other() {
    for encrypt in [false, true] {
        let end = || fabric(TcpSettings { encrypt, ..settings() });
        let [mut a, mut b, mut mute] = [end(), end(), end()];
        let (to_a, to_mute) = (connect(&mut b, &a), connect(&mut b, &mute));
        b.send(to_mute, b"first", SendPayload::Empty).expect("room");
        let from_b = b.id();
        until(&mut [&mut mute, &mut b], "the first message", message(from_b));
        let mut accepted = 0;
        let refused = loop {
            if let Err(error) = b.send(to_mute, b"more", SendPayload::Bytes(&[7; MAX_PAYLOAD])) {
                break error;
            }
            accepted += MAX_PAYLOAD;
            assert!(accepted < 1 << 30, "no end of what waits for a peer that reads nothing");
        };
        assert_eq!(refused, SendError::Full(to_mute));
        b.send(to_a, b"others go on", SendPayload::Empty).expect("room");
        assert_eq!(until(&mut [&mut a, &mut b], "a's message", message(from_b)), b"others go on");
    }
}

/// One turn handles a bounded number of frames, however many wait in however many sockets, and each peer gets a turn.
#[test]
fn a_turn_handles_a_bounded_number_of_frames() {
    const PEERS: usize = 24;
    const EACH: usize = 8000;
    let small = frame(&[7; 28], 8);
    let frames = small.repeat(100);
    // The last read of a turn may bring this many frames more, and complete a partial frame or record.
    let most = 4096 + (256 << 10) / small.len() + 100;
    for encrypts in [false, true] {
        let mut b = fabric(TcpSettings { encrypt: encrypts, ..settings() });
        let mut peers: Vec<_> = (0..PEERS).map(|_| HandMade::greet(&mut b, encrypts)).collect();
        let ids: Vec<PeerId> = peers.iter().map(|peer| peer.id).collect();
        peers.iter_mut().for_each(|peer| peer.send_raw(&frames, encrypts));
        std::thread::scope(|scope| {
            for peer in &mut peers {
                scope.spawn(|| (1..EACH / 100).for_each(|_| peer.send_raw(&frames, encrypts)));
            }
            let (mut received, mut turns) = ([0; PEERS], 0);
            while received != [EACH; PEERS] {
                let before: usize = received.iter().sum();
                let moved = b.progress(&mut |event| match event {
                    FabricEvent::Message { from, .. } => {
                        received[ids.iter().position(|id| *id == from).expect("a peer")] += 1;
                    }
                    other => panic!("{other:?}"),
                });
                let taken = received.iter().sum::<usize>() - before;
                assert!(taken <= most, "{taken} frames in one turn");
                turns += 1;
                assert!(turns < PEERS || !received.contains(&0), "{received:?} after {turns} turns");
                if moved == 0 {
                    assert!(is_ready(&[&mut b], &PATIENCE), "nothing comes");
                }
            }
        });
    }
}
