//! Labs with DPUs: owner of the switch port; traffic, rate and loss of each link; end of the lab.

use crate::network::{LEAST_AT_10_MBIT, RATED, Receiver, Stream, send_from};
use crate::{output, start, start_spec};
use outboard_lab::{Lab, LabSpec, LossScope, PacketLoss, PortCounters};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("hosts_reach_each_other_through_their_dpus", hosts_reach_each_other_through_their_dpus),
    ("host_and_dpu_talk_beside_the_switch", host_and_dpu_talk_beside_the_switch),
    ("dpus_have_multicast_between_them", dpus_have_multicast_between_them),
    ("the_link_of_host_and_dpu_is_not_faster_than_its_own_rate", the_link_of_host_and_dpu_is_not_faster_than_its_rate),
    ("loss_is_the_switch_s_not_the_link_s_to_the_host", loss_is_the_switch_s_not_the_link_s_to_the_host),
    ("a_dpu_is_a_machine_of_its_own_and_crashes_with_its_host", a_dpu_crashes_with_its_host),
];

fn both(lab: &Lab) -> (Vec<PortCounters>, Vec<PortCounters>) {
    (lab.counters().unwrap(), lab.pcie_counters().unwrap())
}

fn stream(count: u32) -> Stream {
    Stream { count, size: 1000, burst: 8 }
}

/// Fewest bytes on the wire for a stream of `count` datagrams of 1000 bytes.
fn wire(count: u32) -> u64 {
    u64::from(count) * (1000 + 14 + 20 + 8)
}

fn hosts_reach_each_other_through_their_dpus() {
    let lab = start("3x1gbit+dpu");
    let receiver = Receiver::start(&lab, 2, "-");
    send_from(&lab, "h1", "10.77.0.2", &stream(640), &["h2"]);
    assert_eq!(receiver.finish().sequences, (0..640).collect());
    let (switch, pcie) = both(&lab);
    for (link, which) in [(&switch, "switch"), (&pcie, "pcie")] {
        assert!(link[0].tx.bytes >= wire(640) && link[1].rx.bytes >= wire(640), "{which}: {link:?}");
        assert!(link[2].rx.bytes + link[2].tx.bytes < 10_000, "{which}: h3 has no part in it: {link:?}");
    }
    assert_eq!(output(&lab, "h3", "getent hosts h2-dpu"), "10.77.1.2       h2-dpu");
}

fn host_and_dpu_talk_beside_the_switch() {
    let lab = start("2x1gbit+dpu");
    let receiver = Receiver::start_on(&lab, "h1-dpu", "-");
    send_from(&lab, "h1", "10.77.1.1", &stream(640), &["h1-dpu"]);
    assert_eq!(receiver.finish().sequences, (0..640).collect());
    let receiver = Receiver::start(&lab, 1, "-");
    send_from(&lab, "h1-dpu", "10.77.0.1", &stream(640), &["h1"]);
    assert_eq!(receiver.finish().sequences, (0..640).collect());
    let (switch, pcie) = both(&lab);
    assert!(pcie[0].tx.bytes >= wire(640) && pcie[0].rx.bytes >= wire(640), "{pcie:?}");
    assert!(switch.iter().all(|port| port.tx.bytes + port.rx.bytes < 10_000), "{switch:?}");
}

fn dpus_have_multicast_between_them() {
    let lab = start("3x1gbit+dpu");
    let receivers = ["h2-dpu", "h3-dpu"].map(|name| Receiver::start_on(&lab, name, "239.77.1.1"));
    send_from(&lab, "h1-dpu", "239.77.1.1", &stream(640), &["h2-dpu", "h3-dpu"]);
    for receiver in receivers {
        assert_eq!(receiver.finish().sequences, (0..640).collect());
    }
    let (switch, pcie) = both(&lab);
    assert!(switch[0].tx.bytes < 2 * wire(640), "sent once: {switch:?}");
    assert!(pcie.iter().all(|link| link.tx.bytes + link.rx.bytes < 10_000), "{pcie:?}");
}

fn the_link_of_host_and_dpu_is_not_faster_than_its_rate() {
    let spec: LabSpec = "1x1gbit+dpu".parse().unwrap();
    let lab = start_spec(&spec.with_dpus(Some(10_000_000)).unwrap());
    let receiver = Receiver::start(&lab, 1, "-");
    send_from(&lab, "h1-dpu", "10.77.0.1", &RATED, &["h1"]);
    let took = receiver.finish().milliseconds;
    assert!(took > LEAST_AT_10_MBIT, "{took} ms");
}

fn loss_is_the_switch_s_not_the_link_s_to_the_host() {
    const COUNT: u32 = 3200;
    let loss = PacketLoss::percent(10, LossScope::All);
    let lab = start_spec(&"2x1gbit+dpu".parse::<LabSpec>().unwrap().with_loss(Some(loss)));
    let sent = Stream { count: COUNT, size: 200, burst: 8 };
    let receiver = Receiver::start_on(&lab, "h1-dpu", "-");
    send_from(&lab, "h1", "10.77.1.1", &sent, &["h1-dpu"]);
    assert_eq!(receiver.finish().sequences.len(), COUNT as usize);
    let receiver = Receiver::start(&lab, 2, "-");
    send_from(&lab, "h1", "10.77.0.2", &sent, &["h2"]);
    let lost = 1.0 - receiver.finish().sequences.len() as f64 / f64::from(COUNT);
    // The bounds lie far beyond six standard deviations.
    assert!((0.05..0.15).contains(&lost), "{lost}");
}

fn a_dpu_crashes_with_its_host() {
    let lab = start("2x1gbit+dpu");
    assert_eq!(output(&lab, "h2-dpu", "hostname"), "h2-dpu");
    let boots = ["h1", "h1-dpu", "h2"].map(|name| output(&lab, name, "cat /proc/sys/kernel/random/boot_id"));
    assert!(boots[0] != boots[1] && boots[1] != boots[2], "machines of their own: {boots:?}");
    assert_eq!(lab.host_pids().len(), 4);
    lab.crash(2).unwrap();
    assert!(lab.command("h2-dpu", "true").unwrap().output().unwrap().status.code() != Some(0));
    assert_eq!(output(&lab, "h1-dpu", "echo here"), "here");
    assert!(lab.counters().unwrap_err().to_string().contains("h2-dpu is down"));
}
