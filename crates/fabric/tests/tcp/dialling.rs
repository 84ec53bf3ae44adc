//! Dials that come to nothing, and dials of many at once.

use std::os::unix::net::UnixListener;

use outboard_fabric::{Fabric, Payload, Tcp, TcpSettings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::tap::sibling_name;
use crate::{connect, fabric, message, settings, stranger, until};

/// Progresses all until they wait for something from outside.
fn until_quiet(fabrics: &mut [&mut Tcp]) {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let moved: usize = fabrics.iter_mut().map(|one| one.progress(&mut |event| panic!("{event:?}"))).sum();
        let mut polled: Vec<_> =
            fabrics.iter().map(|one| PollFd::from_borrowed_fd(one.event_fd(), PollFlags::IN)).collect();
        if moved == 0 && poll(&mut polled, Some(&now)).expect("poll works") == 0 {
            return;
        }
    }
}

/// An end that dials siblings first, another of a larger id, and a door of ours before that of the other.
fn behind_a_door() -> (Tcp, Tcp, UnixListener) {
    loop {
        let (smaller, larger) = (fabric(TcpSettings { siblings: true, ..settings() }), stranger());
        if smaller.id() < larger.id() {
            let door = UnixListener::bind_addr(&sibling_name(&larger)).expect("the name is free");
            return (smaller, larger, door);
        }
    }
}

/// Where only the larger id reaches the smaller one, its connection carries what both have to say.
#[test]
fn a_connection_that_gave_way_takes_the_place_of_a_dial_that_fails() {
    let (mut smaller, mut larger, door) = behind_a_door();
    let (to_larger, to_smaller) = (connect(&mut smaller, &larger), connect(&mut larger, &smaller));
    larger.send(to_smaller, b"up", Payload::Empty).expect("room");
    let (dialled, _) = door.accept().expect("a dial");
    until_quiet(&mut [&mut smaller, &mut larger]);
    drop(dialled);
    assert_eq!(until(&mut [&mut smaller, &mut larger], "the larger's message", message(to_larger)), b"up");
    smaller.send(to_larger, b"down", Payload::Empty).expect("room");
    assert_eq!(until(&mut [&mut larger, &mut smaller], "the smaller's message", message(to_smaller)), b"down");
}
