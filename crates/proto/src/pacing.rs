//! How fast a service process may multicast: so that the receive links of the group stay just full.
//!
//! With `M` active roots and every rank receiving, a root sends at `B / (M - k)` when all service processes are roots, of
//! which `k` share each host and its link (SP-8), else at `B / M` at least; blocks of different sizes share the links so that
//! all end together. The schedule is absolute: time lost is caught
//! up, but never by more than the switch ports can queue.

use std::time::Duration;

use crate::config::Config;
use crate::ids::Instant;

/// When the next datagrams may go out.
#[derive(Debug)]
pub(crate) struct Pacer {
    next: Instant,
    credit: Duration,
}

impl Pacer {
    /// `switch_queue` bytes at `link_rate` bit/s are the most that is caught up.
    pub(crate) fn new(link_rate: u64, switch_queue: u64) -> Self {
        Pacer { next: Instant(0), credit: transfer_time(switch_queue, link_rate) }
    }

    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Accounts for `wire_bytes` that go out at `now` at `rate` bit/s.
    pub(crate) fn sent(&mut self, now: Instant, wire_bytes: u64, rate: u64) {
        self.next = self.next.max(now - self.credit) + transfer_time(wire_bytes, rate);
    }
}

/// Time that `bytes` take at `rate` bit/s.
pub(crate) fn transfer_time(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// How one root multicasts among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Its rate in bit/s on the wire.
    pub(crate) rate: u64,
    /// Datagrams of one batch: the more, the cheaper, as long as the batches of all roots, come together at one port,
    /// fill half of its queue at most.
    pub(crate) batch: u64,
    /// From one batch to the next.
    pub(crate) interval: Duration,
}

/// What part of a receive link one service process may fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// So much ...
    pub(crate) part: u64,
    /// ... of this much, at least `part`.
    pub(crate) of: u64,
}

impl Share {
    /// Where `active` multicast blocks of one size at the same time, and one link takes in what `incoming` send.
    pub(crate) fn even(incoming: u32, active: u32) -> Self {
        Share { part: 1, of: active.min(incoming).max(1).into() }
    }
}

impl Pace {
    /// For a service process with this share of the links.
    pub(crate) fn new(config: &Config, Share { part, of }: Share) -> Self {
        let datagram = u64::from(config.chunk_bytes + config.datagram_overhead);
        let share = |whole: u64| (u128::from(whole) * u128::from(part) / u128::from(of.max(1))) as u64;
        let rate = share(config.link_rate).max(1);
        let batch = (share(config.switch_queue / 2) / datagram).clamp(1, config.batch_chunks.into());
        Pace { rate, batch, interval: transfer_time(batch * datagram, rate) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mc_8_all_roots_share_the_receive_links() {
        let config = Config { link_rate: 1000, ..Config::default() };
        let rate = |incoming, active| Pace::new(&config, Share::even(incoming, active)).rate;
        assert_eq!(rate(4, 5), 250, "all active: a receiver hears all but itself");
        assert_eq!(rate(4, 2), 500, "some receiver hears both");
        assert_eq!(rate(6, 8), 166, "two on each of four hosts: a link takes in those of the three others");
        assert_eq!(rate(0, 1), 1000);
    }

    #[test]
    fn batches_of_all_roots_fill_half_of_a_queue_at_most() {
        let config = Config { switch_queue: 300_000, batch_chunks: 32, ..Config::default() };
        let datagram = u64::from(config.chunk_bytes + config.datagram_overhead);
        for incoming in 1..200 {
            let pace = Pace::new(&config, Share::even(incoming, incoming + 1));
            let others = u64::from(incoming);
            assert!(pace.batch == 1 || pace.batch * others * datagram <= 150_000, "{incoming}: {pace:?}");
            assert!(pace.batch == 32 || (pace.batch + 1) * others * datagram > 150_000, "{incoming}: {pace:?}");
        }
    }

    #[test]
    fn lost_time_is_caught_up_within_the_credit() {
        let mut p = Pacer::new(8_000_000_000, 1_000_000);
        p.sent(Instant(10_000_000), 1000, 8_000_000);
        assert_eq!(p.next(), Instant(10_000_000 - 1_000_000 + 1_000_000));
        p.sent(Instant(10_000_000), 1000, 8_000_000);
        assert_eq!(p.next(), Instant(11_000_000));
    }
}
