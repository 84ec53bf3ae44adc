//! Service processes of one host connect by a Unix socket, and no other user can intercept these connections.

use std::os::unix::net::UnixListener;

use outboard_fabric::{Fabric, SendPayload, Tcp, TcpSettings};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use crate::tap::sibling_name;
use crate::{connect, fabric, message, settings, socket, until};

fn sibling() -> Tcp {
    fabric(TcpSettings { siblings: true, ..settings() })
}

/// Connections to the port of `of`, as the kernel lists them.
fn connections(of: &Tcp) -> usize {
    let listed = std::fs::read_to_string("/proc/self/net/tcp").expect("this kernel lists connections");
    let port = format!(":{:04X}", socket(of).port());
    // Local and remote address, and the state of an open connection.
    let words = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.filter(|words| words.len() > 3 && words[2].ends_with(&port) && words[3] == "01").count()
}

/// A message of `a` arrives at `b`. Returns whether it came over TCP.
fn comes_by_port(mut a: Tcp, mut b: Tcp) -> bool {
    let to = connect(&mut a, &b);
    a.send(to, b"hello", SendPayload::Empty).expect("room");
    let from = a.id();
    assert_eq!(until(&mut [&mut b, &mut a], "a message", message(from)), b"hello");
    connections(&b) > 0
}

#[test]
fn siblings_use_no_port() {
    assert!(!comes_by_port(sibling(), sibling()));
    assert!(comes_by_port(fabric(settings()), sibling()), "who dials no sibling is heard all the same");
}

/// Another user who listens under the name of a service process gets no connection.
#[test]
fn nobody_else_takes_the_place_of_a_sibling() {
    let stranger = Uid::from_raw(65_534);
    // Only the superuser can take another user id.
    if !geteuid().is_root() {
        return;
    }
    let b = fabric(settings());
    let name = sibling_name(&b);
    let listens = std::thread::spawn(move || {
        set_thread_res_uid(None::<Uid>, stranger, None::<Uid>).expect("root may");
        UnixListener::bind_addr(&name).expect("the name is free")
    });
    let impostor = listens.join().expect("no panic");
    impostor.set_nonblocking(true).expect("a socket");
    assert!(comes_by_port(sibling(), b));
    // The dialer closed this connection when it found another user.
    assert!(impostor.accept().is_ok(), "it was not even tried");
}
