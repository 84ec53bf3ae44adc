//! A stranger on the network captures multicast datagrams of other hosts and replays them. The ranks of the test are
//! attacked in this way.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;

use outboard::Group;
use outboard_fabric::multicast::{DEFAULT_PORT, Interface, MulticastReceiver, MulticastSettings, ReceiveBatch};
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

use super::scenarios::{check, me, pause, post, print_line};

/// Environment variables with the ranks' multicast address, and with the address of the rank whose datagrams the
/// stranger captures.
pub(crate) const CHANNEL: &str = "OUTBOARD_TEST_CHANNEL";
pub(crate) const SENDER: &str = "OUTBOARD_TEST_SENDER";

/// Bytes of a rank's block in the attacked calls, which are multicast.
const BLOCK: usize = 100_000;
/// Number of further calls after which the low 16 bits of the instance repeat.
const CALLS_BETWEEN: usize = 65_535;
const IN_FLIGHT: usize = 255;

/// Captures a call and replays it twice.
pub(super) fn stranger() {
    let address = |name| std::env::var(name).ok().and_then(|text| text.parse::<Ipv4Addr>().ok());
    let (channel, sender) = (address(CHANNEL).expect("set"), address(SENDER).expect("set"));
    let interface = Interface::named("eth0").expect("every host has it");
    let own = interface.address().expect("every host has one");
    let mut receiver = MulticastReceiver::new(&MulticastSettings::new(interface)).expect("a receiver");
    receiver.join(channel).expect("one address fits");
    while !reported(channel) {}
    pause("listens");
    let (mut captured, mut batch) = (Vec::new(), ReceiveBatch::new(32));
    while receiver.receive(&mut batch).expect("receiving works").bursts > 0 {
        let wanted = batch.datagrams().filter(|datagram| datagram.from == sender);
        captured.extend(wanted.map(|datagram| datagram.bytes.to_vec()));
    }
    let send = |socket: &UdpSocket, datagram: &[u8]| {
        let sent = socket.send_to(datagram, (channel, DEFAULT_PORT)).expect("the link is up");
        assert_eq!(sent, datagram.len());
    };
    let honest = socket_from(own, own);
    captured.iter().for_each(|datagram| send(&honest, datagram));
    pause(&captured.len().to_string());
    let liar = socket_from(sender, own);
    for (number, datagram) in captured.iter_mut().enumerate() {
        if number % 2 == 1 {
            datagram.iter_mut().skip(24).for_each(|byte| *byte = !*byte);
        }
        send(&liar, datagram);
    }
    print_line("sent");
}

/// Whether the kernel has reported to the switch that this host receives the address `channel`.
fn reported(channel: Ipv4Addr) -> bool {
    let list = std::fs::read_to_string("/proc/net/igmp").expect("Linux tells");
    let name = format!("{:08X}", u32::from_ne_bytes(channel.octets()));
    list.lines().any(|line| line.contains(&name) && line.trim_end().ends_with('1'))
}

/// A socket that sends multicast with the source address `source`, by the interface with the address `own`.
fn socket_from(source: Ipv4Addr, own: Ipv4Addr) -> UdpSocket {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `on`, which lives during the call.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_TRANSPARENT, (&raw const on).cast(), length)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    sockopt::set_ip_multicast_if(&socket, &own).expect("its own address");
    bind(&socket, &SocketAddrV4::new(source, 0)).expect("any address may be lied about");
    socket.into()
}

/// A captured call, and a call 65,536 calls later. One rank is late for the later call.
pub(super) fn replayed(group: &Group) {
    let (_, ranks) = me(group);
    pause("made");
    check(post(group, 0, BLOCK, false), ranks);
    pause("captured");
    for first in (0..CALLS_BETWEEN).step_by(IN_FLIGHT) {
        let posted: Vec<_> = (first..first + IN_FLIGHT).map(|call| post(group, call, 8, false)).collect();
        posted.into_iter().for_each(|posted| check(posted, ranks));
    }
    pause("ready");
    check(post(group, 1, BLOCK, false), ranks);
    pause("done");
}
