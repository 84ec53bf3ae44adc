//! What no system can beat: the time and the wire bytes of a collective on a star of equal links.

use crate::Collective;
use outboard_lab::LinkLimits;
use std::time::Duration;

/// The compute loop takes this much of the raw limit, for every system alike.
pub const COMPUTE_WORTH: f64 = 1.15;
/// Ratios to the limit are judged from this size; below, the limit and three measured barriers.
pub const JUDGED_FROM_BYTES: u64 = 1 << 20;
/// Time that a rank may take to wake up and to leave the exchange that sets the start, before buckets count as full.
const REFILL_MARGIN: Duration = Duration::from_millis(5);

/// One call of a collective, as far as the links are concerned. The limits hold under any layout of the ranks, because
/// every host has as many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is called.
    pub collective: Collective,
    /// Hosts, each with a link of its own to the switch.
    pub hosts: u32,
    /// Ranks on each of them.
    pub ranks_per_host: u32,
    /// What a rank contributes, or the root of a broadcast; of an alltoall what a rank has for each other one.
    pub bytes: u64,
    /// One rank sends nothing and gets nothing in an alltoallv.
    pub silent_rank: bool,
}

impl Call {
    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// Blocks of a rank's result that another rank contributes: what it must be brought when it calls late.
    pub(crate) fn blocks_of_others(&self, rank: u32) -> u32 {
        match self.collective {
            _ if self.silent_rank => 0,
            Collective::Allgather | Collective::Alltoall | Collective::Alltoallv => self.ranks() - 1,
            Collective::Broadcast => u32::from(rank != 0),
        }
    }

    /// Bytes that others wait for until a rank has called, over its host's link.
    fn bytes_to_others(&self, rank: u32) -> u64 {
        let hosts_elsewhere = self.hosts > 1;
        match self.collective {
            _ if self.silent_rank || !hosts_elsewhere => 0,
            Collective::Allgather => self.bytes,
            Collective::Alltoall | Collective::Alltoallv => u64::from(self.ranks() - self.ranks_per_host) * self.bytes,
            Collective::Broadcast => u64::from(rank == 0) * self.bytes,
        }
    }

    /// Payload that must come in over each host's link, every block once: the others' R(H-1) blocks of N of an allgather
    /// with R ranks on each of H hosts (SP-6), one N of a broadcast. Of an alltoall of P ranks, each of R has one of every
    /// rank elsewhere: R(P-R) blocks come in, and as many go out; a silent rank takes one off each at the hosts where it
    /// is not.
    fn received_bytes(&self) -> u64 {
        let (hosts, ranks_per_host) = (u64::from(self.hosts), u64::from(self.ranks_per_host));
        let elsewhere = ranks_per_host * hosts.saturating_sub(1);
        match self.collective {
            Collective::Allgather => elsewhere * self.bytes,
            Collective::Alltoall | Collective::Alltoallv => {
                ranks_per_host * elsewhere.saturating_sub(u64::from(self.silent_rank)) * self.bytes
            }
            Collective::Broadcast => hosts.saturating_sub(1).min(1) * self.bytes,
        }
    }
}

/// Milliseconds that a host needs to receive all that the others contribute at the link's rate, headers and bursts left
/// out: N*R(H-1)/B of an allgather with R ranks on each of H hosts, which is N(P-1)/B with one on each; N/B of a
/// broadcast; N*R(P-R)/B of an alltoall of P ranks, N*R(P-R-1)/B where one of them is silent.
pub fn raw_limit_ms(call: &Call, link: &LinkLimits) -> f64 {
    received_bits(call) / link.rate_bits_per_s() as f64 * 1e3
}

/// As [`raw_limit_ms`], less what a full token bucket lets through at once; 0 where all of it fits the bucket.
pub fn limit_ms(call: &Call, link: &LinkLimits) -> f64 {
    let beyond_burst = received_bits(call) - f64::from(link.burst_bytes()) * 8.0;
    beyond_burst.max(0.0) / link.rate_bits_per_s() as f64 * 1e3
}

/// Milliseconds that the links need, without bursts, for what a rank has for those on other hosts, each block once: nobody
/// who waits for that can end earlier after the rank's call.
pub(crate) fn contribution_ms(call: &Call, rank: u32, link: &LinkLimits) -> f64 {
    call.bytes_to_others(rank) as f64 * 8.0 / link.rate_bits_per_s() as f64 * 1e3
}

/// Payload that crosses the switch ports, in and out, when every contribution is sent once and received once by every
/// other host that wants it: with P ranks, R on each of H hosts, P*N + P*N*(H-1) of an allgather (MC-R), N + (H-1)*N of a
/// broadcast, 2*P(P-R)*N of an alltoall, 2*(P-2)(P-R)*N where one rank is silent.
pub fn multicast_minimum_bytes(call: &Call) -> u64 {
    match call.collective {
        _ if call.hosts < 2 => 0,
        Collective::Allgather => u64::from(call.ranks()) * u64::from(call.hosts) * call.bytes,
        Collective::Broadcast => u64::from(call.hosts) * call.bytes,
        Collective::Alltoall | Collective::Alltoallv => {
            let ranks = u64::from(call.ranks());
            let that_talk = if call.silent_rank { ranks - 2 } else { ranks };
            2 * that_talk * (ranks - u64::from(call.ranks_per_host)) * call.bytes
        }
    }
}

/// How long an idle link needs for a full token bucket, with a margin.
pub(crate) fn refill_time(link: &LinkLimits) -> Duration {
    let fill = f64::from(link.burst_bytes()) * 8.0 / link.rate_bits_per_s() as f64;
    Duration::from_secs_f64(fill) + REFILL_MARGIN
}

fn received_bits(call: &Call) -> f64 {
    call.received_bytes() as f64 * 8.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use Collective::{Allgather, Alltoall, Alltoallv, Broadcast};
    use outboard_lab::LabSpec;

    const MIB: u64 = 1 << 20;

    fn call(collective: Collective, (hosts, ranks_per_host): (u32, u32), bytes: u64) -> Call {
        Call { collective, hosts, ranks_per_host, bytes, silent_rank: false }
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
                let call = Call { silent_rank: silent.is_some(), ..call(Alltoallv, (hosts, per_host), MIB) };
                assert_eq!(call.received_bytes(), busiest * MIB, "{call:?}");
                assert_eq!(multicast_minimum_bytes(&call), 2 * crossing.len() as u64 * MIB, "{call:?}");
            }
        }
        let one_each = raw_limit_ms(&call(Alltoall, (4, 1), MIB), &link("4x1gbit"));
        assert_eq!(one_each, raw_limit_ms(&call(Allgather, (4, 1), MIB), &link("4x1gbit")));
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

    /// What a rank that calls late gets and gives, whatever the others do.
    #[test]
    fn a_late_rank_misses_the_blocks_of_others_and_owes_them_its_own() {
        let late = |collective, rank| {
            let call = call(collective, (4, 2), MIB);
            (call.blocks_of_others(rank), call.bytes_to_others(rank))
        };
        assert_eq!((late(Allgather, 5), late(Alltoall, 5)), ((7, MIB), (7, 6 * MIB)));
        assert_eq!((late(Broadcast, 5), late(Broadcast, 0)), ((1, 0), (0, MIB)));
        let silent = Call { silent_rank: true, ..call(Alltoallv, (4, 2), MIB) };
        assert_eq!((silent.blocks_of_others(5), silent.bytes_to_others(5)), (0, 0));
        assert_eq!(call(Allgather, (1, 8), MIB).bytes_to_others(5), 0);
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
