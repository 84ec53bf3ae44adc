//! The parameters of a cluster, and the terms that an algorithm spends.
//!
//! Time is counted in whole picoseconds by integer arithmetic, so that every machine computes the same number and makes
//! the same choice. The model is LogGP (A. Alexandrov, M. F. Ionescu, K. E. Schauser, C. Scheiman, LogGP: incorporating
//! long messages into the LogP model, SPAA 1995): latency `L`, overhead `o` per message and end, gap per byte `G`. The
//! gap between messages equals the overhead. The model adds the work of a service process: copies and reductions on the
//! one processor that all ranks of a host share.

use outboard_units::{Duration, Rate};
use serde::Deserialize;

use super::tuning::{multicast, quantity};

const SECOND: u128 = 1_000_000_000_000;
const PER_NANOSECOND: u128 = 1_000;

/// The costs of operations on a cluster, as measured by `outboard tune` or set by users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cost {
    /// Latency of a message without bytes from one host to another: `L`.
    #[serde(deserialize_with = "quantity")]
    pub latency: Duration,
    /// Processor time of a service process for one message, on each end: `o`.
    #[serde(deserialize_with = "quantity")]
    pub message: Duration,
    /// One round of the barrier before a collective, or of the handshake behind it (MC-4, MC-7).
    #[serde(deserialize_with = "quantity")]
    pub control: Duration,
    /// Payload rate of messages on a host's link, in each direction: `1/G`.
    #[serde(deserialize_with = "quantity")]
    pub bandwidth: Rate,
    /// Payload rate of multicasts on a host's link; `None` if there is no multicast.
    #[serde(deserialize_with = "multicast")]
    pub multicast: Option<Rate>,
    #[serde(deserialize_with = "quantity")]
    pub copy: Rate,
    #[serde(deserialize_with = "quantity")]
    pub reduce: Rate,
}

/// Whether links or processors limit multicasts. A processor copies a received message once; it copies a received
/// multicast twice and hashes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Links {
    /// The link of some host is the limit, or there is only one host.
    #[default]
    Slow,
    /// The processors are the limit.
    Fast,
}

/// The rate from which links count as fast. Measured on four hosts, whatever the MTU: on links of 2.5 Gbit/s an
/// allgather of 8 MiB by multicast takes 0.8 of the time that messages take; on links of 5 Gbit/s it takes 1.2 of that
/// time.
const FAST: Rate = Rate::bits_per_second(4_000_000_000);

impl Links {
    /// The class of the links among `hosts` hosts; `slowest` is the rate of the slowest link.
    pub fn between(hosts: u32, slowest: Rate) -> Links {
        if hosts > 1 && slowest >= FAST { Links::Fast } else { Links::Slow }
    }
}

impl Default for Cost {
    /// Gigabit Ethernet through TCP, as the lab emulates it.
    fn default() -> Self {
        Cost {
            latency: Duration::nanoseconds(60_000),
            message: Duration::nanoseconds(10_000),
            control: Duration::nanoseconds(90_000),
            bandwidth: Rate::bits_per_second(940_000_000),
            multicast: Some(Rate::bits_per_second(950_000_000)),
            copy: Rate::bits_per_second(40_000_000_000),
            reduce: Rate::bits_per_second(16_000_000_000),
        }
    }
}

impl Cost {
    /// The built-in costs: gigabit Ethernet for slow links, ten times its rate for fast links. Multicasts fill half of
    /// a fast link.
    pub fn on(links: Links) -> Cost {
        match links {
            Links::Slow => Cost::default(),
            Links::Fast => Cost {
                bandwidth: Rate::bits_per_second(9_400_000_000),
                multicast: Some(Rate::bits_per_second(4_750_000_000)),
                ..Cost::default()
            },
        }
    }
}

/// The terms on the longest path of a collective. The time of the collective is the sum of the terms, each multiplied
/// by its parameter in [`Cost`]. So the parameters of a cluster can be found from measured times by least squares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CostTerms {
    /// Messages between hosts, one after another.
    pub latencies: u64,
    /// Ends of messages that one service process handles, one after another.
    pub messages: u64,
    /// Rounds of barrier and handshake.
    pub controls: u64,
    /// Bytes sent as messages through one link, one after another.
    pub sent: u64,
    /// Bytes multicast through one link, one after another.
    pub multicast: u64,
    pub copied: u64,
    pub reduced: u64,
}

impl std::ops::Add for CostTerms {
    type Output = CostTerms;

    fn add(self, other: CostTerms) -> CostTerms {
        self.with(other, u64::saturating_add)
    }
}

impl CostTerms {
    /// The terms of `times` repetitions, one after another.
    pub fn repeated(self, times: u64) -> CostTerms {
        self.with(self, |each, _| each.saturating_mul(times))
    }

    /// Combines each term with the same term of `other`.
    fn with(self, other: CostTerms, both: impl Fn(u64, u64) -> u64) -> CostTerms {
        CostTerms {
            latencies: both(self.latencies, other.latencies),
            messages: both(self.messages, other.messages),
            controls: both(self.controls, other.controls),
            sent: both(self.sent, other.sent),
            multicast: both(self.multicast, other.multicast),
            copied: both(self.copied, other.copied),
            reduced: both(self.reduced, other.reduced),
        }
    }
}

/// A computed time, in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Estimate(pub u128);

impl Estimate {
    /// Rounds down to whole nanoseconds.
    pub fn whole(self) -> Duration {
        Duration::nanoseconds(u64::try_from(self.0 / PER_NANOSECOND).unwrap_or(u64::MAX))
    }
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.whole().fmt(f)
    }
}

/// Picoseconds to transfer `bytes` at `rate`.
pub fn at_rate(bytes: u64, rate: Rate) -> u128 {
    u128::from(bytes) * 8 * SECOND / u128::from(rate.in_bits_per_second().max(1))
}

/// Picoseconds of `count` times `each`.
pub fn each(count: u64, each: Duration) -> u128 {
    u128::from(count) * u128::from(each.in_nanoseconds()) * PER_NANOSECOND
}

impl Cost {
    /// The time of `terms`; `None` if the terms need multicast and there is none.
    pub fn time(&self, terms: &CostTerms) -> Option<Estimate> {
        let multicast = match (terms.multicast, self.multicast) {
            (0, _) => 0,
            (bytes, Some(rate)) => at_rate(bytes, rate),
            (_, None) => return None,
        };
        Some(Estimate(
            each(terms.latencies, self.latency)
                + each(terms.messages, self.message)
                + each(terms.controls, self.control)
                + at_rate(terms.sent, self.bandwidth)
                + multicast
                + at_rate(terms.copied, self.copy)
                + at_rate(terms.reduced, self.reduce),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_the_sum_of_the_terms() {
        let cost = Cost {
            latency: Duration::nanoseconds(1_000),
            message: Duration::nanoseconds(100),
            control: Duration::nanoseconds(10),
            bandwidth: Rate::bits_per_second(8_000_000_000),
            multicast: Some(Rate::bits_per_second(4_000_000_000)),
            copy: Rate::bits_per_second(80_000_000_000),
            reduce: Rate::bits_per_second(16_000_000_000),
        };
        let terms = CostTerms {
            latencies: 1,
            messages: 2,
            controls: 3,
            sent: 1000,
            multicast: 1000,
            copied: 1000,
            reduced: 1000,
        };
        assert_eq!(
            cost.time(&terms),
            Some(Estimate(1_000_000 + 200_000 + 30_000 + 1_000_000 + 2_000_000 + 100_000 + 500_000))
        );
        assert_eq!(cost.time(&terms.repeated(3)).unwrap().0, 3 * cost.time(&terms).unwrap().0);
        assert_eq!(cost.time(&(terms + terms)).unwrap().0, 2 * cost.time(&terms).unwrap().0);
    }

    #[test]
    fn multicast_terms_have_no_time_without_multicast() {
        let cost = Cost { multicast: None, ..Cost::default() };
        assert_eq!(cost.time(&CostTerms { multicast: 1, ..CostTerms::default() }), None);
        assert_eq!(cost.time(&CostTerms::default()), Some(Estimate(0)));
    }

    #[test]
    fn the_largest_terms_do_not_overflow() {
        let most = CostTerms {
            latencies: u64::MAX,
            messages: u64::MAX,
            sent: u64::MAX,
            copied: u64::MAX,
            ..CostTerms::default()
        };
        assert!(Cost::default().time(&(most + most).repeated(u64::MAX)).is_some());
    }
}
