//! One allgather as the daemon runs it: its time and traffic, and sweeps of large ones.

use std::time::Duration;

use outboard_sim::{AllgatherSweep, Scenario, allgather};

use crate::{crosses_each_link_once, last_end, play};

/// Wire bytes in percent of the payload: headers, control messages, and 5 % of the datagrams again with their requests.
const MOST_WIRE_PERCENT_REPAIRED: u64 = 120;
/// Time relative to the link time of one block. The barrier and the pace of a batch weigh more in a short transfer.
const MOST_TIME_OF_LATE_BLOCK: f64 = 1.3;

#[test]
fn mc_r_multicast_sends_each_block_once_and_keeps_the_receive_links_full() {
    let (ranks, bytes) = (8u64, 1 << 20);
    let scenario = Scenario::allgather(ranks as usize, bytes);
    crosses_each_link_once(&scenario, ranks * bytes + ranks * (ranks - 1) * bytes, (ranks - 1) * bytes);
}

/// SP-7, SP-8: four machines with two service processes each carry each block once over each link, at the pace of the
/// links. Datagrams lost on a link are sent about once more over that link.
#[test]
fn sp_8_siblings_share_the_links() {
    let (sps, ranks, machines, bytes) = (8u64, 16u64, 4u64, 1 << 19);
    let contiguous = Scenario::allgather(ranks as usize, bytes).ranks_per_host(2).siblings(2);
    let mut strided = contiguous.clone();
    // Rank r is on machine r mod 4; its neighbours on the machine are at the other service process.
    strided.host_of = (0..ranks as usize).map(|rank| rank % 4 * 2 + rank / 4 % 2).collect();
    let minimum = ranks * bytes + (machines - 1) * ranks * bytes;
    for scenario in [contiguous, strided] {
        assert_eq!(scenario.hosts() as u64, sps);
        crosses_each_link_once(&scenario, minimum, ranks * bytes * (machines - 1) / machines);
        let mut lossy = scenario;
        lossy.faults.datagram_loss = 0.05;
        let outcome = play(&lossy, 1);
        let repaired = minimum * MOST_WIRE_PERCENT_REPAIRED / 100;
        assert!(outcome.wire_bytes() < repaired, "{} bytes on the wire with loss", outcome.wire_bytes());
    }
}

/// SP-6: the block of a late rank finds the links empty, and crosses each link once. The blocks that the late rank
/// missed are at the late rank's host.
#[test]
fn sp_6_the_block_of_a_late_rank_has_the_links_for_itself() {
    let (bytes, late) = (1u64 << 20, Duration::from_millis(200));
    for per_host in [1, 2] {
        let mut scenario = Scenario::allgather(8, bytes).ranks_per_host(per_host);
        scenario.groups[0].calls[0].late = vec![(7, late)];
        let outcome = play(&scenario, 1);
        let block = Duration::from_secs_f64((bytes * 8) as f64 / scenario.network.rate as f64);
        let ended = last_end(&outcome);
        assert!(ended < late + block.mul_f64(MOST_TIME_OF_LATE_BLOCK), "{per_host} a host: ended after {ended:?}");
    }
}

#[test]
fn mc_6_many_ranks_survive_loss_on_the_provenance_store() {
    for multicast in [true, false] {
        let plan = AllgatherSweep {
            ranks: 32,
            ranks_per_host: 1,
            bytes: 64 << 10,
            loss: 0.05,
            multicast,
            seeds: 0..4,
            threads: 2,
        };
        let summary = allgather(&plan, |_| {});
        assert!(summary.failures.is_empty(), "{}", summary.failures[0]);
        assert_eq!(summary.retransmitted_bytes.min > 0, multicast, "datagrams alone are lost");
    }
}
