//! Programs that the tests run inside hosts: the test program itself, called with a role.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const PORT: u16 = 4711;
/// First four bytes of a datagram that requests an answer.
const SYNC: u32 = u32::MAX;
/// Datagrams in flight between two syncs: few enough for any socket buffer.
const WINDOW: u32 = 64;
const TCP_BYTES: usize = 1024 * 1024;
const SYNC_TRIES: usize = 400;

/// Runs the role that the command line names, if any.
pub(crate) fn run_if_requested() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["traffic-receive", group, own] => receive(group, own),
        ["traffic-send", to, own, count, size, burst, receivers @ ..] => {
            send(to, own, number(count), number(size), number(burst), receivers);
        }
        ["traffic-listen"] => listen(),
        ["traffic-connect", to] => connect(to),
        _ => return,
    }
    std::process::exit(0)
}

fn number(text: &str) -> u32 {
    text.parse().expect("a number")
}

/// Reads one TCP connection to its end.
fn listen() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).expect("listen");
    println!("ready");
    let (mut connection, _) = listener.accept().expect("accept");
    assert_eq!(io::copy(&mut connection, &mut io::sink()).expect("read"), TCP_BYTES as u64);
}

/// Sends over one TCP connection and waits until all bytes were read.
fn connect(to: &str) {
    let to: Ipv4Addr = to.parse().expect("an address");
    let mut connection = TcpStream::connect((to, PORT)).expect("connect");
    connection.write_all(&vec![1; TCP_BYTES]).expect("write");
    connection.shutdown(Shutdown::Write).expect("end");
    assert_eq!(connection.read(&mut [0]).expect("await the other end"), 0);
}

/// Receives until standard input ends. Prints `ready`, then the sequence numbers, then the milliseconds from the first
/// to the last datagram.
fn receive(group: &str, own: &str) {
    let own: Ipv4Addr = own.parse().expect("an address");
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).expect("bind");
    if group != "-" {
        socket.join_multicast_v4(&group.parse().expect("a group"), &own).expect("join");
    }
    println!("ready");
    let stop = socket.try_clone().expect("clone");
    std::thread::spawn(move || {
        io::copy(&mut io::stdin(), &mut io::sink()).expect("read standard input");
        // An empty datagram ends the loop below.
        stop.send_to(&[], (Ipv4Addr::LOCALHOST, PORT)).expect("wake");
    });
    let mut seen = BTreeSet::new();
    let mut times: Option<(Instant, Instant)> = None;
    let mut datagram = [0; 65_536];
    loop {
        let (length, from) = socket.recv_from(&mut datagram).expect("receive");
        let Some(head) = datagram[..length].first_chunk::<4>() else { break };
        match u32::from_be_bytes(*head) {
            SYNC => {
                socket.send_to(&datagram[..length], from).expect("answer");
            }
            sequence => {
                seen.insert(sequence);
                times = Some((times.map_or_else(Instant::now, |(first, _)| first), Instant::now()));
            }
        }
    }
    let numbers: Vec<String> = seen.iter().map(u32::to_string).collect();
    println!("{}", numbers.join(","));
    println!("{}", times.map_or(0, |(first, last)| (last - first).as_millis()));
}

/// Sends `count` datagrams of `size` bytes in bursts of `burst`, each burst as one segmented send. Waits for the
/// receivers after every window.
fn send(to: &str, own: &str, count: u32, size: u32, burst: u32, receivers: &[&str]) {
    let own: Ipv4Addr = own.parse().expect("an address");
    let socket = UdpSocket::bind((own, 0)).expect("bind");
    segment(&socket, size);
    let to = SocketAddrV4::new(to.parse().expect("an address"), PORT);
    if to.ip().is_multicast() {
        receivers.iter().for_each(|receiver| await_membership(*to.ip(), own, receiver));
    }
    for first in (0..count).step_by(burst as usize) {
        let mut bytes = Vec::new();
        for sequence in first..count.min(first + burst) {
            let start = bytes.len();
            bytes.extend_from_slice(&sequence.to_be_bytes());
            bytes.resize(start + size as usize, 0);
        }
        socket.send_to(&bytes, to).expect("send");
        if (first + burst).is_multiple_of(WINDOW) {
            receivers.iter().for_each(|receiver| sync(receiver, first));
        }
    }
    receivers.iter().for_each(|receiver| sync(receiver, count));
}

/// Makes the kernel cut each send into datagrams of `size` bytes.
fn segment(socket: &UdpSocket, size: u32) {
    let size = libc::c_int::try_from(size).expect("a size");
    // SAFETY: the option's value is an int that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const size).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Returns when datagrams to `group` reach `receiver`.
fn await_membership(group: Ipv4Addr, own: Ipv4Addr, receiver: &str) {
    let receiver: Ipv4Addr = receiver.parse().expect("an address");
    let socket = UdpSocket::bind((own, 0)).expect("bind");
    socket.set_read_timeout(Some(Duration::from_millis(5))).expect("set a timeout");
    for _ in 0..SYNC_TRIES {
        socket.send_to(&SYNC.to_be_bytes(), (group, PORT)).expect("ask");
        while let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
            if from.ip() == receiver {
                return;
            }
        }
    }
    panic!("{receiver} is no member of {group}");
}

/// Returns when `receiver` has read all datagrams sent to it before.
fn sync(receiver: &str, round: u32) {
    let receiver = SocketAddrV4::new(receiver.parse().expect("an address"), PORT);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bind");
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("set a timeout");
    let mut question = SYNC.to_be_bytes().to_vec();
    question.extend_from_slice(&round.to_be_bytes());
    for _ in 0..SYNC_TRIES {
        socket.send_to(&question, receiver).expect("ask");
        match socket.recv(&mut [0; 16]) {
            Ok(_) => return,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("{receiver} does not answer");
}
