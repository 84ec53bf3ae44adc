//! One allgather as the daemon runs it: its time and traffic, and that large sweeps hold.

use std::time::Duration;

use outboard_sim::{AllgatherSweep, Scenario, allgather};

use crate::{last_end, play};

/// Headers of datagrams and the control messages of barrier and ring, beside the payload.
const MOST_WIRE_PERCENT: u64 = 110;
/// The same, and 5 % of the datagrams once more with their requests.
const MOST_WIRE_PERCENT_REPAIRED: u64 = 120;
/// Of what the receive links need for the payload: headers take 5 %, the barrier and the last acknowledgements the
/// rest.
const MOST_TIME: f64 = 1.10;
/// Of what one block needs: the barrier and the pace of a batch are a larger share of a short transfer.
const MOST_TIME_OF_LATE_BLOCK: f64 = 1.3;

#[test]
fn mc_r_multicast_sends_each_block_once_and_keeps_the_receive_links_full() {
    let (ranks, bytes) = (8u64, 1 << 20);
    let scenario = Scenario::allgather(ranks as usize, bytes);
    let outcome = play(&scenario, 1);
    let minimum = ranks * bytes + ranks * (ranks - 1) * bytes;
    assert!(outcome.wire_bytes() < minimum * MOST_WIRE_PERCENT / 100, "{} bytes on the wire", outcome.wire_bytes());
    let limit = ((ranks - 1) * bytes * 8) as f64 / scenario.network.rate as f64;
    let ratio = outcome.in_collectives.as_secs_f64() / limit;
    assert!(ratio < MOST_TIME, "{ratio} of the raw limit");
    assert_eq!(outcome.retransmitted_bytes(), 0, "nothing is lost by its own pace");
}

/// SP-7, SP-8: four machines with two service processes each carry each block once over each link, at the pace of the
/// links, and what is lost over a link is repaired over it about once.
#[test]
fn sp_8_siblings_share_the_links() {
    let (sps, ranks, machines, bytes) = (8u64, 16u64, 4u64, 1 << 19);
    let contiguous = Scenario::allgather(ranks as usize, bytes).ranks_per_host(2).siblings(2);
    let mut strided = contiguous.clone();
    // Rank r on machine r mod 4; its neighbours there at the other service process.
    strided.host_of = (0..ranks as usize).map(|rank| rank % 4 * 2 + rank / 4 % 2).collect();
    let minimum = ranks * bytes + (machines - 1) * ranks * bytes;
    for scenario in [contiguous, strided] {
        assert_eq!(scenario.hosts() as u64, sps);
        let outcome = play(&scenario, 1);
        assert!(outcome.wire_bytes() < minimum * MOST_WIRE_PERCENT / 100, "{} bytes on the wire", outcome.wire_bytes());
        let limit = (ranks * bytes * 8 * (machines - 1) / machines) as f64 / scenario.network.rate as f64;
        let ratio = outcome.in_collectives.as_secs_f64() / limit;
        assert!(ratio < MOST_TIME, "{ratio} of the raw limit");
        assert_eq!(outcome.retransmitted_bytes(), 0, "nothing is lost by its own pace");
        let mut lossy = scenario;
        lossy.faults.datagram_loss = 0.05;
        let outcome = play(&lossy, 1);
        let repaired = minimum * MOST_WIRE_PERCENT_REPAIRED / 100;
        assert!(outcome.wire_bytes() < repaired, "{} bytes on the wire with loss", outcome.wire_bytes());
    }
}

/// SP-6: what a late rank contributes finds the links empty, so it has them for itself: it crosses them once, and what
/// the late rank missed of others is at its host.
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
