//! Lower bounds of the time and the wire bytes of a collective on a star of equal links. The switch copies (multicast)
//! and does not compute.
//!
//! With N the bytes of a call, R ranks on each of H hosts, P = RH ranks, B the rate of a link each way:
//!
//! | collective | least time | over all ports, in and out | because |
//! |---|---|---|---|
//! | allgather(v) | NR(H-1)/B | PNH | every block enters every other host once (MC-R, SP-6); N(P-1)/B with R = 1 |
//! | alltoall(v) | NR(P-R)/B | 2NP(P-R) | each of a host's R ranks has a block of every rank elsewhere |
//! | broadcast | N/B | NH | the vector leaves one host and enters the others (MC-R) |
//! | gather(v), scatter(v) | N(P-R)/B | 2N(P-R) | the root's link carries a block of every rank elsewhere |
//! | reduce | N/B | 2N(H-1) | every other host sends one vector, combined from its ranks and from hosts before it |
//! | reduce-scatter | N(H-1)/HB | 2N(H-1) | each element takes H-1 messages, spread evenly over the hosts |
//! | allreduce | 2N(H-1)/HB | N(3H-2) | as reduce-scatter; each sum then reaches the H-1 other hosts |
//! | scan | N/B | 2N(H-1) | at best a chain of hosts, with ranks in contiguous order |
//! | barrier | 0 | 0 | no bytes of the program |
//! | ping-pong | N/B a way | 4N | the message crosses two links there and back, one way at a time |
//!
//! Source of the allreduce's limit: Patarasuk and Yuan, 2009. An aggregator in the switch would carry out a reduce or
//! an allreduce in N/B; the emulated switch has none.

use crate::Collective;
use outboard_lab::LinkLimits;
use std::time::Duration;

/// The compute loop takes this multiple of the raw limit, for every system alike.
pub(crate) const COMPUTE_WORTH: f64 = 1.15;
/// From this size on, a time is judged by its ratio to the limit. Below this size, a time is judged by the limit plus
/// three measured barriers.
pub(crate) const JUDGED_FROM_BYTES: u64 = 1 << 20;
/// Time for a rank to wake up and leave the exchange that sets the start. After this time, token buckets count as full.
const REFILL_MARGIN: Duration = Duration::from_millis(5);

/// One call of a collective, with the facts that determine the traffic on links. The limits hold under any layout of
/// the ranks, because every host has the same number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchCall {
    /// The collective.
    pub collective: Collective,
    /// Hosts, each with a link of its own to the switch.
    pub hosts: u32,
    /// Ranks on each host.
    pub ranks_per_host: u32,
    /// Bytes of a block, or of the whole vector of each rank in a reduction. In an allgather or a gather a block is the
    /// contribution of a rank, in a broadcast that of the root. In an alltoall or a scatter a block is the part for one
    /// rank.
    pub bytes: u64,
    /// Whether one rank sends nothing and receives nothing in an alltoallv.
    pub silent_rank: bool,
}

impl BenchCall {
    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// Bytes of a rank's result to which other ranks contribute. These bytes have to
    /// reach a rank that calls late.
    pub(crate) fn result_of_others_bytes(&self, rank: u32) -> u64 {
        self.traffic(rank).missed
    }

    /// Bytes that the call moves; `rank` is the rank that may be late.
    fn traffic(&self, rank: u32) -> CallTraffic {
        let (n, hosts, per_host) = (self.bytes, u64::from(self.hosts), u64::from(self.ranks_per_host));
        let (ranks, silent) = (hosts * per_host, u64::from(self.silent_rank));
        let (others, other_hosts, elsewhere) = (ranks - 1, hosts - 1, ranks - per_host);
        let (root, not_root) = (u64::from(rank == 0), u64::from(rank != 0));
        // A single rank moves nothing, and a single host uses no link.
        let (to_others, to_hosts) = (n * others.min(1), n * other_hosts.min(1));
        let combined = other_hosts * n;
        let [missed, owed, busiest, out, into] = match self.collective {
            Collective::Allgather | Collective::Allgatherv => {
                [others * n, to_hosts, elsewhere * n, ranks * to_hosts, ranks * other_hosts * n]
            }
            // A rank has one block less if it is on another host than the silent rank.
            Collective::Alltoall | Collective::Alltoallv => {
                let busiest = per_host * elsewhere.saturating_sub(silent) * n;
                let heard = 1 - silent;
                let blocks = ranks.saturating_sub(2 * silent) * elsewhere * n;
                [heard * others * n, heard * elsewhere * n, busiest, blocks, blocks]
            }
            Collective::Broadcast => [not_root * n, root * to_hosts, to_hosts, to_hosts, other_hosts * n],
            Collective::Gather | Collective::Gatherv => {
                [root * others * n, 0, elsewhere * n, elsewhere * n, elsewhere * n]
            }
            Collective::Scatter | Collective::Scatterv => {
                [not_root * n, root * elsewhere * n, elsewhere * n, elsewhere * n, elsewhere * n]
            }
            Collective::Reduce => [root * to_others, 0, to_hosts, combined, combined],
            Collective::Allreduce => {
                [to_others, to_hosts, (2 * combined).div_ceil(hosts), hosts * to_hosts, 2 * combined]
            }
            // A late rank owes every other host that host's part.
            Collective::ReduceScatter => {
                [to_others / ranks, n / hosts * other_hosts, combined.div_ceil(hosts), combined, combined]
            }
            Collective::Scan => [not_root * n, 0, to_hosts, combined, combined],
            Collective::Barrier => [0; 5],
            Collective::PingPong => [root * to_others, root * to_hosts, to_hosts, 2 * to_hosts, 2 * to_hosts],
        };
        CallTraffic { missed, owed, busiest, out, into }
    }
}

/// Bytes that a call moves, by the table of this module, and the bytes that concern a late rank.
struct CallTraffic {
    /// Bytes into the late rank's result, from other ranks.
    missed: u64,
    /// Bytes from the late rank, over the busiest link, for ranks that wait for these bytes. 0 if the layout decides
    /// whether the bytes cross a link.
    owed: u64,
    /// Bytes over the busiest link, one way.
    busiest: u64,
    /// Bytes out of all hosts.
    out: u64,
    /// Bytes into all hosts.
    into: u64,
}

/// Milliseconds that the busiest link needs at its rate, without headers and bursts: the table of this module.
pub fn raw_limit_ms(call: &BenchCall, link: &LinkLimits) -> f64 {
    link.milliseconds(busiest_link_bits(call))
}

/// The time of [`raw_limit_ms`] without the bytes of one full token bucket; 0 where all bytes fit the bucket.
pub fn limit_ms(call: &BenchCall, link: &LinkLimits) -> f64 {
    let beyond_burst = busiest_link_bits(call) - f64::from(link.burst_bytes()) * 8.0;
    link.milliseconds(beyond_burst.max(0.0))
}

/// Milliseconds that the links need, without bursts, for a rank's contribution to ranks of other hosts, each block
/// once. After the rank's call, no rank that waits for the contribution can end earlier than this.
pub(crate) fn contribution_ms(call: &BenchCall, rank: u32, link: &LinkLimits) -> f64 {
    link.milliseconds(call.traffic(rank).owed as f64 * 8.0)
}

/// Payload over all switch ports, in and out, by the table of this module. Every block is sent once, and received once
/// by every other host that needs it. For an alltoallv with a silent rank the payload is 2N(P-2)(P-R).
pub fn multicast_minimum_bytes(call: &BenchCall) -> u64 {
    let CallTraffic { out, into, .. } = call.traffic(0);
    out + into
}

/// Payload that hosts receive over their links if each receives every block once: the part of
/// [`multicast_minimum_bytes`] that enters hosts.
pub(crate) fn received_bytes(call: &BenchCall) -> u64 {
    call.traffic(0).into
}

/// Time in which an idle link's token bucket becomes full, with a margin.
pub(crate) fn refill_time(link: &LinkLimits) -> Duration {
    Duration::from_secs_f64(link.milliseconds(f64::from(link.burst_bytes()) * 8.0) / 1e3) + REFILL_MARGIN
}

/// Payload bits over the busiest link, one way.
pub(crate) fn busiest_link_bits(call: &BenchCall) -> f64 {
    call.traffic(0).busiest as f64 * 8.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use Collective::{
        Allgather, Allgatherv, Allreduce, Alltoall, Alltoallv, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scan,
        Scatter,
    };
    use outboard_lab::LabSpec;

    const MIB: u64 = 1 << 20;

    fn call(collective: Collective, (hosts, ranks_per_host): (u32, u32), bytes: u64) -> BenchCall {
        BenchCall { collective, hosts, ranks_per_host, bytes, silent_rank: false }
    }

    fn link(lab: &str) -> LinkLimits {
        lab.parse::<LabSpec>().unwrap().link()
    }

    #[test]
    fn raw_limit_is_what_the_links_allow() {
        let close = |hosts, collective, lab, expected: f64| {
            let value = raw_limit_ms(&call(collective, hosts, MIB), &link(lab));
            assert!((value - expected).abs() < 0.01, "{value} {expected}");
        };
        close((4, 1), Allgather, "4x1gbit", 25.166);
        close((4, 1), Allgather, "4x250mbit", 100.663);
        close((16, 1), Allgather, "16x500mbit", 251.658);
        close((1, 1), Allgather, "1x1gbit", 0.0);
        close((4, 1), Broadcast, "4x1gbit", 8.389);
        close((1, 1), Broadcast, "1x1gbit", 0.0);
        close((4, 1), Allreduce, "4x250mbit", 50.332);
        close((4, 1), ReduceScatter, "4x250mbit", 25.166);
        for collective in [Reduce, Scan, Broadcast] {
            close((4, 1), collective, "4x250mbit", 33.554);
        }
        close((4, 1), Gather, "4x1gbit", 25.166);
        close((4, 2), Gather, "4x1gbit", 50.332);
        close((4, 1), Barrier, "4x1gbit", 0.0);
    }

    /// SP-6: every block crosses the link of every other host once, however many ranks read it there.
    #[test]
    fn ranks_of_a_host_share_its_link() {
        let ms = |collective, hosts| raw_limit_ms(&call(collective, hosts, MIB), &link("4x1gbit"));
        assert_eq!(ms(Allgather, (4, 2)), 2.0 * ms(Allgather, (4, 1)));
        assert_eq!(ms(Allgather, (1, 8)), 0.0);
        assert_eq!(ms(Broadcast, (4, 2)), ms(Broadcast, (4, 1)));
        assert_eq!(ms(Broadcast, (1, 8)), 0.0);
    }

    /// Counts the blocks of every pair of ranks over every host's link, and compares with the formulas.
    #[test]
    fn alltoall_moves_every_block_between_hosts_once() {
        for (hosts, per_host) in [(1, 4), (2, 1), (2, 3), (4, 1), (4, 2), (5, 4)] {
            for silent in [None, Some(0), Some(hosts * per_host - 1)] {
                let ranks = hosts * per_host;
                let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
                let crossing: Vec<(u32, u32)> = pairs
                    .filter(|(from, to)| from / per_host != to / per_host)
                    .filter(|(from, to)| silent.is_none_or(|rank| rank != *from && rank != *to))
                    .collect();
                let into = |host| crossing.iter().filter(|(_, to)| to / per_host == host).count() as u64;
                let out_of = |host| crossing.iter().filter(|(from, _)| from / per_host == host).count() as u64;
                let busiest = (0..hosts).map(|host| into(host).max(out_of(host))).max().unwrap();
                let call = BenchCall { silent_rank: silent.is_some(), ..call(Alltoallv, (hosts, per_host), MIB) };
                assert_eq!(call.traffic(0).busiest, busiest * MIB, "{call:?}");
                assert_eq!(multicast_minimum_bytes(&call), 2 * crossing.len() as u64 * MIB, "{call:?}");
            }
        }
        let one_each = raw_limit_ms(&call(Alltoall, (4, 1), MIB), &link("4x1gbit"));
        assert_eq!(one_each, raw_limit_ms(&call(Allgather, (4, 1), MIB), &link("4x1gbit")));
    }

    /// Hosts combine their ranks' vectors before anything crosses a link.
    #[test]
    fn reductions_move_a_vector_per_host() {
        for collective in [Reduce, Allreduce, ReduceScatter, Scan] {
            let of = |hosts, per_host| {
                let call = call(collective, (hosts, per_host), MIB);
                (call.traffic(0).busiest, multicast_minimum_bytes(&call))
            };
            assert_eq!(of(4, 8), of(4, 1));
            assert_eq!(of(1, 8), (0, 0));
        }
        // An allreduce can be a reduce-scatter, followed by an allgather of the parts.
        let two = [call(ReduceScatter, (4, 1), MIB), call(Allgatherv, (4, 1), MIB / 4)];
        let whole = call(Allreduce, (4, 1), MIB);
        assert_eq!(two.iter().map(|call| call.traffic(0).busiest).sum::<u64>(), whole.traffic(0).busiest);
        assert_eq!(two.iter().map(multicast_minimum_bytes).sum::<u64>(), multicast_minimum_bytes(&whole));
    }

    #[test]
    fn limit_counts_the_burst_and_never_goes_below_zero() {
        let link = link("4x1gbit");
        let burst_ms = f64::from(link.burst_bytes()) * 8.0 / 1e6;
        let large = call(Allgather, (4, 1), MIB);
        let credit = raw_limit_ms(&large, &link) - limit_ms(&large, &link);
        assert!((credit - burst_ms).abs() < 1e-9);
        assert_eq!(limit_ms(&call(Allgather, (4, 1), 16 * 1024), &link), 0.0);
        assert_eq!(limit_ms(&call(Allgather, (1, 1), MIB), &link), 0.0);
    }

    /// The bytes that a late rank receives and sends, whatever the others do.
    #[test]
    fn a_late_rank_misses_the_blocks_of_others_and_owes_them_its_own() {
        let late = |collective, rank| {
            let call = call(collective, (4, 2), MIB);
            (call.result_of_others_bytes(rank), call.traffic(rank).owed)
        };
        assert_eq!((late(Allgather, 5), late(Alltoall, 5)), ((7 * MIB, MIB), (7 * MIB, 6 * MIB)));
        assert_eq!((late(Broadcast, 5), late(Broadcast, 0)), ((MIB, 0), (0, MIB)));
        assert_eq!((late(Scatter, 5), late(Scatter, 0)), ((MIB, 0), (0, 6 * MIB)));
        assert_eq!((late(Gather, 5), late(Gather, 0)), ((0, 0), (7 * MIB, 0)));
        assert_eq!((late(Allreduce, 5), late(ReduceScatter, 5)), ((MIB, MIB), (MIB / 8, 3 * MIB / 4)));
        assert_eq!(late(Barrier, 5), (0, 0));
        let silent = BenchCall { silent_rank: true, ..call(Alltoallv, (4, 2), MIB) };
        assert_eq!((silent.result_of_others_bytes(5), silent.traffic(5).owed), (0, 0));
        assert_eq!(call(Allgather, (1, 8), MIB).traffic(5).owed, 0);
        let ms = contribution_ms(&call(Allgather, (4, 1), MIB), 1, &link("4x1gbit"));
        assert!((ms - 8.389).abs() < 1e-3, "{ms}");
    }

    #[test]
    fn multicast_sends_once_and_every_host_receives_once() {
        let bytes = |collective, hosts| multicast_minimum_bytes(&call(collective, hosts, 262_144));
        assert_eq!(bytes(Allgather, (4, 1)), 4 * 262_144 + 4 * 3 * 262_144);
        assert_eq!(bytes(Allgather, (4, 2)), 8 * 262_144 + 8 * 3 * 262_144);
        assert_eq!(bytes(Allgather, (1, 1)), 0);
        assert_eq!(bytes(Broadcast, (4, 1)), 262_144 + 3 * 262_144);
        assert_eq!(bytes(Broadcast, (4, 2)), 262_144 + 3 * 262_144);
    }

    #[test]
    fn buckets_refill_within_the_refill_time() {
        let link = link("4x250mbit");
        assert!(refill_time(&link).as_secs_f64() * 250e6 / 8.0 > f64::from(link.burst_bytes()));
    }
}
