//! The emulated network: values of counters, receivers of multicast, rates, loss.

use crate::{output, start, start_spec};
use outboard_lab::{Lab, LabSpec, LossScope, PacketLoss, PortCounters};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("counters_count_wire_bytes", counters_count_wire_bytes),
    ("an_idle_lab_is_silent", an_idle_lab_is_silent),
    ("multicast_reaches_members_alone", multicast_reaches_members_alone),
    ("multicast_loss_is_random_for_each_receiver", multicast_loss_is_random_for_each_receiver),
    ("loss_of_all_takes_unicast", loss_of_all_takes_unicast),
    ("lossy_labs_send_packet_by_packet", lossy_labs_send_packet_by_packet),
    ("links_have_the_mtu_asked_for", links_have_the_mtu_asked_for),
    ("hosts_segment_as_adapters_do", hosts_segment_as_adapters_do),
    ("a_lab_of_sixteen_counts_every_port", a_lab_of_sixteen_counts_every_port),
    ("a_link_is_not_faster_than_its_rate", a_link_is_not_faster_than_its_rate),
];

/// Tests that compare measured times.
pub(crate) const SOAK: &[(&str, fn())] =
    &[("a_link_of_a_quarter_of_the_rate_takes_four_times_as_long", a_quarter_of_the_rate_takes_four_times_as_long)];

const GROUP: &str = "239.77.1.1";
/// Ethernet, IPv4 and UDP headers.
const HEADERS: u64 = 14 + 20 + 8;

pub(crate) struct Receiver {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// The result of a receiver: sequence numbers, and milliseconds between the first and the last datagram.
pub(crate) struct Received {
    pub(crate) sequences: BTreeSet<u32>,
    pub(crate) milliseconds: u64,
}

impl Receiver {
    pub(crate) fn start(lab: &Lab, host: u16, group: &str) -> Self {
        Self::start_on(lab, &format!("h{host}"), group)
    }

    /// Starts a receiver on a host or DPU.
    pub(crate) fn start_on(lab: &Lab, name: &str, group: &str) -> Self {
        let mut command = lab.command(name, std::env::current_exe().unwrap()).unwrap();
        command.args(["traffic-receive", group, &address(lab, name)]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        stdout.read_line(&mut first).unwrap();
        assert_eq!(first, "ready\n");
        Self { child, stdout }
    }

    pub(crate) fn finish(mut self) -> Received {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        let (sequences, milliseconds) = text.trim_end().split_once('\n').unwrap();
        let sequences = sequences.split(',').filter(|s| !s.is_empty()).map(|s| s.parse().unwrap()).collect();
        Received { sequences, milliseconds: milliseconds.parse().unwrap() }
    }
}

fn address(lab: &Lab, name: &str) -> String {
    lab.spec().node(name).expect("one of the lab's").address().to_string()
}

/// Datagrams that h1 sends.
pub(crate) struct Stream {
    pub(crate) count: u32,
    pub(crate) size: u32,
    /// Datagrams per segmented send.
    pub(crate) burst: u32,
}

/// Sends from h1; returns when every host in `sync_with` has read the whole stream.
fn send(lab: &Lab, to: &str, stream: &Stream, sync_with: &[u16]) {
    let names: Vec<String> = sync_with.iter().map(|host| format!("h{host}")).collect();
    send_from(lab, "h1", to, stream, &names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Sends from a host or DPU; returns when every node in `sync_with` has read the whole stream.
pub(crate) fn send_from(lab: &Lab, name: &str, to: &str, stream: &Stream, sync_with: &[&str]) {
    let mut command = lab.command(name, std::env::current_exe().unwrap()).unwrap();
    command.args(["traffic-send", to, &address(lab, name)]);
    command.args([stream.count, stream.size, stream.burst].map(|number| number.to_string()));
    command.args(sync_with.iter().map(|name| address(lab, name)));
    assert!(command.status().unwrap().success());
}

/// Waits until h1's counter includes `packets`, because a packet is counted shortly after its send has returned.
fn after_sending(lab: &Lab, before: &[PortCounters], packets: u64) -> Vec<PortCounters> {
    for _ in 0..10_000 {
        let now = lab.counters().unwrap();
        let passed: Vec<PortCounters> = now.iter().zip(before).map(|(now, before)| now.since(before)).collect();
        if passed[0].tx.packets >= packets {
            return passed;
        }
        std::thread::yield_now();
    }
    panic!("h1 never sent {packets} packets");
}

fn counters_count_wire_bytes() {
    let lab = start("3x100mbit");
    let receiver = Receiver::start(&lab, 2, "-");
    for burst in [1, 10] {
        let before = lab.counters().unwrap();
        // Without a sync, only the stream crosses the wire.
        let stream = Stream { count: 40, size: 1000, burst };
        send(&lab, &lab.address(2).to_string(), &stream, &[]);
        let passed = after_sending(&lab, &before, 40);
        assert_eq!((passed[0].tx.packets, passed[0].tx.bytes), (40, 40 * (1000 + HEADERS)), "bursts of {burst}");
        let sync = Stream { count: 0, size: 4, burst: 1 };
        send(&lab, &lab.address(2).to_string(), &sync, &[2]);
        let passed = after_sending(&lab, &before, 41);
        // The request and the answer of the sync have 8 bytes each.
        assert_eq!(passed[1].rx.bytes, 40 * (1000 + HEADERS) + 8 + HEADERS);
        assert_eq!((passed[1].rx.packets, passed[1].tx.packets, passed[0].rx.packets), (41, 1, 1));
        assert_eq!(passed[2], PortCounters { host: 3, ..PortCounters::default() });
        assert!(passed.iter().all(|port| port.tx.drops + port.rx.drops == 0));
    }
    let received = receiver.finish();
    assert_eq!(received.sequences, (0..40).collect());
}

fn an_idle_lab_is_silent() {
    let lab = start("3x1gbit");
    output(&lab, "h1", "true");
    for port in lab.counters().unwrap() {
        assert_eq!((port.tx.packets, port.tx.bytes), (0, 0), "hosts say nothing unasked");
        // Only the switch's own membership queries may arrive, padded to Ethernet's minimum or not.
        assert!(port.rx.packets <= 4 && port.rx.bytes <= 4 * 64, "{port:?}");
    }
}

fn multicast_reaches_members_alone() {
    let lab = start("4x1gbit");
    let members = [2, 4];
    let receivers = members.map(|host| Receiver::start(&lab, host, GROUP));
    let before = lab.counters().unwrap();
    send(&lab, GROUP, &Stream { count: 640, size: 1000, burst: 8 }, &members);
    let passed = after_sending(&lab, &before, 640);
    for receiver in receivers {
        assert_eq!(receiver.finish().sequences, (0..640).collect());
    }
    let wire = 640 * (1000 + HEADERS);
    // Allowance for bytes besides the stream: membership reports, queries and the syncs.
    let noise = 10_000;
    for port in &passed[1..] {
        let expected = if members.contains(&port.host) { wire } else { 0 };
        assert!((expected..expected + noise).contains(&port.rx.bytes), "{port:?}");
    }
    assert!((wire..wire + noise).contains(&passed[0].tx.bytes), "sent once: {:?}", passed[0]);
}

/// A stream whose duration shows the rate of a link.
pub(crate) const RATED: Stream = Stream { count: 1024, size: 1400, burst: 16 };
/// Half the stream's duration at 10 Mbit/s, in milliseconds. Bursts may pass at once, and the first datagram may be
/// read late.
pub(crate) const LEAST_AT_10_MBIT: u64 = 1024 * 1400 * 8 / 10_000 / 2;

fn rated(shape: &str) -> u64 {
    let lab = start(shape);
    let receiver = Receiver::start(&lab, 2, "-");
    send(&lab, &lab.address(2).to_string(), &RATED, &[2]);
    receiver.finish().milliseconds
}

/// A busy machine makes a stream slower, never faster.
fn a_link_is_not_faster_than_its_rate() {
    let took = rated("2x10mbit");
    assert!(took > LEAST_AT_10_MBIT, "{took} ms");
}

fn a_quarter_of_the_rate_takes_four_times_as_long() {
    let (slow, fast) = (rated("2x10mbit"), rated("2x40mbit"));
    let ratio = slow as f64 / fast as f64;
    assert!((3.0..5.0).contains(&ratio), "{slow} ms and {fast} ms");
}

/// Six standard deviations of a share observed in `count` draws.
fn six_sigma(share: f64, count: u32) -> f64 {
    6.0 * (share * (1.0 - share) / f64::from(count)).sqrt()
}

fn multicast_loss_is_random_for_each_receiver() {
    const COUNT: u32 = 6400;
    const BURST: u32 = 8;
    let share = 0.2;
    let loss = PacketLoss::percent(20, LossScope::Multicast);
    let lab = start_spec(&"3x1gbit".parse::<LabSpec>().unwrap().with_loss(Some(loss)));
    let receivers = [2, 3].map(|host| Receiver::start(&lab, host, GROUP));
    let before = lab.counters().unwrap();
    send(&lab, GROUP, &Stream { count: COUNT, size: 200, burst: BURST }, &[2, 3]);
    let passed: Vec<PortCounters> =
        lab.counters().unwrap().iter().zip(&before).map(|(now, before)| now.since(before)).collect();
    let (answers, delivered) = (passed[1].tx.packets + passed[2].tx.packets, passed[0].rx.packets);
    // All packets except the membership reports are unicast to h1.
    assert!(answers >= u64::from(2 * COUNT / 64) && delivered + 10 >= answers, "unicast is spared");
    let received = receivers.map(|receiver| receiver.finish().sequences);
    let lost = |of: &dyn Fn(u32) -> bool| f64::from((0..COUNT).filter(|n| of(*n)).count() as u32) / f64::from(COUNT);
    for seen in &received {
        let single = lost(&|n| !seen.contains(&n));
        assert!((single - share).abs() < six_sigma(share, COUNT), "{single}");
        // The datagrams of a segmented burst are lost one by one.
        let neighbours = lost(&|n| n % BURST > 0 && !seen.contains(&n) && !seen.contains(&(n - 1)));
        let expected = share * share * f64::from(BURST - 1) / f64::from(BURST);
        assert!((neighbours - expected).abs() < six_sigma(expected, COUNT), "{neighbours}");
    }
    let both = lost(&|n| received.iter().all(|seen| !seen.contains(&n)));
    assert!((both - share * share).abs() < six_sigma(share * share, COUNT), "{both}");
}

fn loss_of_all_takes_unicast() {
    const COUNT: u32 = 3200;
    let share = 0.1;
    let loss = PacketLoss::percent(10, LossScope::All);
    let lab = start_spec(&"2x1gbit".parse::<LabSpec>().unwrap().with_loss(Some(loss)));
    let receiver = Receiver::start(&lab, 2, "-");
    send(&lab, &lab.address(2).to_string(), &Stream { count: COUNT, size: 200, burst: 8 }, &[2]);
    let seen = receiver.finish().sequences.len() as u32;
    let lost = f64::from(COUNT - seen) / f64::from(COUNT);
    assert!((lost - share).abs() < six_sigma(share, COUNT), "{lost}");
}

fn lossy_labs_send_packet_by_packet() {
    let loss = PacketLoss::percent(1, LossScope::All);
    let spec: LabSpec = "2x1gbit".parse().unwrap();
    for (loss, whole_bursts) in [(Some(loss), false), (None, true)] {
        let lab = start_spec(&spec.clone().with_loss(loss));
        let program = std::env::current_exe().unwrap();
        let mut listener = lab.command("h2", &program).unwrap();
        let mut listener = listener.arg("traffic-listen").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(listener.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut sender = lab.command("h1", &program).unwrap();
        assert!(sender.args(["traffic-connect", &lab.address(2).to_string()]).status().unwrap().success());
        assert!(listener.wait().unwrap().success());
        // A device counts bursts, a token bucket the packets that they become on the wire.
        let handed_over: u64 = output(&lab, "h1", "cat /sys/class/net/eth0/statistics/tx_packets").parse().unwrap();
        let on_the_wire = lab.counters().unwrap()[0].tx.packets;
        assert_eq!(handed_over < on_the_wire, whole_bursts, "{handed_over} {on_the_wire}");
    }
}

fn links_have_the_mtu_asked_for() {
    let lab = start_spec(&"2x1gbit".parse::<LabSpec>().unwrap().with_mtu(9000).unwrap());
    assert_eq!(output(&lab, "h2", "cat /sys/class/net/eth0/mtu"), "9000");
    let receiver = Receiver::start(&lab, 2, "-");
    let before = lab.counters().unwrap();
    send(&lab, &lab.address(2).to_string(), &Stream { count: 4, size: 8972, burst: 1 }, &[]);
    assert_eq!(after_sending(&lab, &before, 4)[0].tx.bytes, 4 * (8972 + HEADERS));
    drop(receiver.finish());
}

fn hosts_segment_as_adapters_do() {
    let lab = start("2x1gbit");
    let link = output(&lab, "h1", "ip -details link show eth0");
    assert!(link.contains("gso_max_size 60000"), "bursts of TCP fit the token bucket: {link}");
    let control = output(&lab, "h1", "cat /proc/sys/net/ipv4/tcp_congestion_control");
    assert!(["cubic", "reno"].contains(&control.as_str()), "whatever this machine prefers: {control}");
}

fn a_lab_of_sixteen_counts_every_port() {
    let lab = start("16x500mbit");
    let ports: Vec<u16> = lab.counters().unwrap().iter().map(|port| port.host).collect();
    assert_eq!(ports, (1..=16).collect::<Vec<u16>>());
    let before = lab.counters().unwrap();
    let receiver = Receiver::start(&lab, 16, "-");
    send(&lab, &lab.address(16).to_string(), &Stream { count: 10, size: 100, burst: 1 }, &[16]);
    let passed = after_sending(&lab, &before, 11);
    assert_eq!(passed[15].rx.packets, 11);
    assert_eq!(receiver.finish().sequences.len(), 10);
}
