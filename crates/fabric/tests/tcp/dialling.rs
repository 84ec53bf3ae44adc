//! Dials that fail, and many simultaneous dials.

use std::os::unix::net::UnixListener;

use outboard_fabric::{Fabric, FabricEvent, SendPayload, Tcp, TcpSettings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::tap::sibling_name;
use crate::{PATIENCE, connect, fabric, is_ready, message, settings, sleep, stranger, until};

/// Progresses all fabrics until they wait for an outside event.
fn until_quiet(fabrics: &mut [&mut Tcp]) {
    let progress = |one: &mut &mut Tcp| one.progress(&mut |event| panic!("{event:?}"));
    while fabrics.iter_mut().map(progress).sum::<usize>() > 0 || is_ready(fabrics, &Timespec::default()) {}
}

/// An end that dials siblings first, an end with a larger id, and a test listener under the sibling name of the latter.
fn behind_a_unix_listener() -> (Tcp, Tcp, UnixListener) {
    loop {
        let (smaller, larger) = (fabric(TcpSettings { siblings: true, ..settings() }), stranger());
        if smaller.id() < larger.id() {
            let door = UnixListener::bind_addr(&sibling_name(&larger)).expect("the name is free");
            return (smaller, larger, door);
        }
    }
}

/// When only the end with the larger id reaches the other end, that connection carries messages both ways.
#[test]
fn a_standby_connection_replaces_a_failed_dial() {
    let (mut smaller, mut larger, door) = behind_a_unix_listener();
    let (to_larger, to_smaller) = (connect(&mut smaller, &larger), connect(&mut larger, &smaller));
    larger.send(to_smaller, b"up", SendPayload::Empty).expect("room");
    let (dialled, _) = door.accept().expect("a dial");
    until_quiet(&mut [&mut smaller, &mut larger]);
    drop(dialled);
    assert_eq!(until(&mut [&mut smaller, &mut larger], "the larger's message", message(to_larger)), b"up");
    smaller.send(to_larger, b"down", SendPayload::Empty).expect("room");
    assert_eq!(until(&mut [&mut larger, &mut smaller], "the smaller's message", message(to_smaller)), b"down");
}

/// A peer without room ends a connection whose hello it has not read; the dialer dials again.
#[test]
fn a_dialer_whose_hello_was_not_read_dials_again() {
    let (mut smaller, mut larger, door) = behind_a_unix_listener();
    let to_larger = connect(&mut smaller, &larger);
    smaller.send(to_larger, b"here", SendPayload::Empty).expect("room");
    let from_smaller = smaller.id();
    for unheard in [true, false, true] {
        let (dialled, _) = door.accept().expect("a dial");
        if unheard {
            until_quiet(&mut [&mut smaller]);
        }
        drop(dialled);
        loop {
            let own = PollFd::from_borrowed_fd(smaller.event_fd(), PollFlags::IN);
            let mut polled = [PollFd::new(&door, PollFlags::IN), own];
            assert!(poll(&mut polled, Some(&PATIENCE)).expect("poll works") > 0, "it is not dialled again");
            if !polled[0].revents().is_empty() {
                break;
            }
            smaller.progress(&mut |event| panic!("{event:?}"));
        }
    }
    drop(door);
    assert_eq!(until(&mut [&mut larger, &mut smaller], "the message", message(from_smaller)), b"here");
}

/// Many service processes dial one process at once. The process has connected them before or not. All reach the
/// process, and the process reaches those that it has connected.
#[test]
fn a_crowd_that_dials_at_once_gets_through() {
    const CROWD: usize = 300;
    for (known, siblings) in [(false, false), (true, false), (false, true), (true, true)] {
        let end = || fabric(TcpSettings { siblings, ..settings() });
        let (mut member, mut crowd): (Tcp, Vec<Tcp>) = (end(), (0..CROWD).map(|_| end()).collect());
        for end in &mut crowd {
            let to = connect(end, &member);
            end.send(to, b"hello", SendPayload::Empty).expect("room");
            if known {
                let to = connect(&mut member, end);
                member.send(to, b"welcome", SendPayload::Empty).expect("room");
            }
        }
        let mut heard = 0;
        while heard < if known { 2 * CROWD } else { CROWD } {
            let mut sink = |event: FabricEvent<'_>| match event {
                FabricEvent::Message { .. } => heard += 1,
                FabricEvent::PeerLost { peer, why } => panic!("{peer} is lost: {why}"),
                FabricEvent::Room => {}
            };
            let mut ends: Vec<&mut Tcp> = crowd.iter_mut().chain([&mut member]).collect();
            let moved: usize = ends.iter_mut().map(|end| end.progress(&mut sink)).sum();
            if moved == 0 {
                sleep(&mut ends, "messages of a crowd");
            }
        }
    }
}
