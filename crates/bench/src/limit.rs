//! What no system can beat: the time and the wire bytes of an allgather on a star of equal links.

use outboard_lab::LinkLimits;
use std::time::Duration;

/// The compute loop takes this much of the raw limit, for every system alike.
pub const COMPUTE_WORTH: f64 = 1.15;
/// Ratios to the limit are judged from this size; below, the limit and three measured barriers.
pub const JUDGED_FROM_BYTES: u64 = 1 << 20;
/// Time that a rank may take to wake up and to leave the exchange that sets the start, before buckets count as full.
const REFILL_MARGIN: Duration = Duration::from_millis(5);

/// Milliseconds that each rank needs to receive the other `ranks - 1` contributions at the link's rate, headers and
/// bursts left out: N(P-1)/B.
pub fn raw_limit_ms(ranks: u32, bytes_per_rank: u64, link: &LinkLimits) -> f64 {
    received_bits(ranks, bytes_per_rank) / link.rate_bits_per_s() as f64 * 1e3
}

/// As [`raw_limit_ms`], less what a full token bucket lets through at once; 0 where all of it fits the bucket.
pub fn limit_ms(ranks: u32, bytes_per_rank: u64, link: &LinkLimits) -> f64 {
    let beyond_burst = received_bits(ranks, bytes_per_rank) - f64::from(link.burst_bytes()) * 8.0;
    beyond_burst.max(0.0) / link.rate_bits_per_s() as f64 * 1e3
}

/// Payload that crosses the switch ports, in and out, when every contribution is sent once and received by every other
/// rank: P*N + P*(P-1)*N (MC-R).
pub fn multicast_minimum_bytes(ranks: u32, bytes_per_rank: u64) -> u64 {
    let ranks = u64::from(ranks);
    if ranks < 2 { 0 } else { ranks * ranks * bytes_per_rank }
}

/// How long an idle link needs for a full token bucket, with a margin.
pub(crate) fn refill_time(link: &LinkLimits) -> Duration {
    let fill = f64::from(link.burst_bytes()) * 8.0 / link.rate_bits_per_s() as f64;
    Duration::from_secs_f64(fill) + REFILL_MARGIN
}

fn received_bits(ranks: u32, bytes_per_rank: u64) -> f64 {
    bytes_per_rank as f64 * f64::from(ranks.saturating_sub(1)) * 8.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_lab::LabSpec;

    fn link(lab: &str) -> LinkLimits {
        lab.parse::<LabSpec>().unwrap().link()
    }

    #[test]
    fn raw_limit_is_what_the_links_allow() {
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 0.01, "{value} {expected}");
        close(raw_limit_ms(4, 1 << 20, &link("4x1gbit")), 25.166);
        close(raw_limit_ms(4, 1 << 20, &link("4x250mbit")), 100.663);
        close(raw_limit_ms(16, 1 << 20, &link("16x500mbit")), 251.658);
        assert_eq!(raw_limit_ms(1, 1 << 20, &link("1x1gbit")), 0.0);
    }

    #[test]
    fn limit_counts_the_burst_and_never_goes_below_zero() {
        let link = link("4x1gbit");
        let burst_ms = f64::from(link.burst_bytes()) * 8.0 / 1e6;
        let credit = raw_limit_ms(4, 1 << 20, &link) - limit_ms(4, 1 << 20, &link);
        assert!((credit - burst_ms).abs() < 1e-9);
        assert_eq!(limit_ms(4, 16 * 1024, &link), 0.0);
        assert_eq!(limit_ms(1, 1 << 20, &link), 0.0);
    }

    #[test]
    fn multicast_sends_once_and_receives_everywhere() {
        assert_eq!(multicast_minimum_bytes(4, 262_144), 4 * 262_144 + 4 * 3 * 262_144);
        assert_eq!(multicast_minimum_bytes(1, 262_144), 0);
    }

    #[test]
    fn buckets_refill_within_the_refill_time() {
        let link = link("4x250mbit");
        assert!(refill_time(&link).as_secs_f64() * 250e6 / 8.0 > f64::from(link.burst_bytes()));
    }
}
