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

/// Milliseconds that a rank needs to receive all that others contribute at the link's rate, headers and bursts left out:
/// N(P-1)/B of an allgather, N/B of a broadcast.
pub fn raw_limit_ms(collective: Collective, ranks: u32, bytes: u64, link: &LinkLimits) -> f64 {
    received_bits(collective, ranks, bytes) / link.rate_bits_per_s() as f64 * 1e3
}

/// As [`raw_limit_ms`], less what a full token bucket lets through at once; 0 where all of it fits the bucket.
pub fn limit_ms(collective: Collective, ranks: u32, bytes: u64, link: &LinkLimits) -> f64 {
    let beyond_burst = received_bits(collective, ranks, bytes) - f64::from(link.burst_bytes()) * 8.0;
    beyond_burst.max(0.0) / link.rate_bits_per_s() as f64 * 1e3
}

/// Payload that crosses the switch ports, in and out, when every contribution is sent once and received by every other
/// rank: P*N + P*(P-1)*N of an allgather (MC-R), N + (P-1)*N of a broadcast.
pub fn multicast_minimum_bytes(collective: Collective, ranks: u32, bytes: u64) -> u64 {
    let ranks = u64::from(ranks);
    match collective {
        _ if ranks < 2 => 0,
        Collective::Allgather => ranks * ranks * bytes,
        Collective::Broadcast => ranks * bytes,
    }
}

/// How long an idle link needs for a full token bucket, with a margin.
pub(crate) fn refill_time(link: &LinkLimits) -> Duration {
    let fill = f64::from(link.burst_bytes()) * 8.0 / link.rate_bits_per_s() as f64;
    Duration::from_secs_f64(fill) + REFILL_MARGIN
}

fn received_bits(collective: Collective, ranks: u32, bytes: u64) -> f64 {
    let contributions = match collective {
        Collective::Allgather => ranks.saturating_sub(1),
        Collective::Broadcast => ranks.saturating_sub(1).min(1),
    };
    bytes as f64 * f64::from(contributions) * 8.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use Collective::{Allgather, Broadcast};
    use outboard_lab::LabSpec;

    fn link(lab: &str) -> LinkLimits {
        lab.parse::<LabSpec>().unwrap().link()
    }

    #[test]
    fn raw_limit_is_what_the_links_allow() {
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 0.01, "{value} {expected}");
        close(raw_limit_ms(Allgather, 4, 1 << 20, &link("4x1gbit")), 25.166);
        close(raw_limit_ms(Allgather, 4, 1 << 20, &link("4x250mbit")), 100.663);
        close(raw_limit_ms(Allgather, 16, 1 << 20, &link("16x500mbit")), 251.658);
        assert_eq!(raw_limit_ms(Allgather, 1, 1 << 20, &link("1x1gbit")), 0.0);
        close(raw_limit_ms(Broadcast, 4, 1 << 20, &link("4x1gbit")), 8.389);
        assert_eq!(raw_limit_ms(Broadcast, 1, 1 << 20, &link("1x1gbit")), 0.0);
    }

    #[test]
    fn limit_counts_the_burst_and_never_goes_below_zero() {
        let link = link("4x1gbit");
        let burst_ms = f64::from(link.burst_bytes()) * 8.0 / 1e6;
        let credit = raw_limit_ms(Allgather, 4, 1 << 20, &link) - limit_ms(Allgather, 4, 1 << 20, &link);
        assert!((credit - burst_ms).abs() < 1e-9);
        assert_eq!(limit_ms(Allgather, 4, 16 * 1024, &link), 0.0);
        assert_eq!(limit_ms(Allgather, 1, 1 << 20, &link), 0.0);
    }

    #[test]
    fn multicast_sends_once_and_receives_everywhere() {
        assert_eq!(multicast_minimum_bytes(Allgather, 4, 262_144), 4 * 262_144 + 4 * 3 * 262_144);
        assert_eq!(multicast_minimum_bytes(Allgather, 1, 262_144), 0);
        assert_eq!(multicast_minimum_bytes(Broadcast, 4, 262_144), 262_144 + 3 * 262_144);
    }

    #[test]
    fn buckets_refill_within_the_refill_time() {
        let link = link("4x250mbit");
        assert!(refill_time(&link).as_secs_f64() * 250e6 / 8.0 > f64::from(link.burst_bytes()));
    }
}
