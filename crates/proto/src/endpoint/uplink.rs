//! Estimates the bulk that the fabric has accepted but the host's link has not sent yet.
//!
//! Later frames wait behind bulk in the fabric. A request that waits there is late, and so are the bytes that answer
//! the request. A host whose link sends at full rate would receive at a lower rate, and late callers would stay behind.
//! So bulk waits in the machine, behind requests, while the link has enough to send (SP-5).
//!
//! The result is only an estimate, from the configured rate of the link and from acknowledgements. A link that turns
//! out to be faster, like links of virtual machines, counts as faster from then on. Never does IO, never sees payload.

use std::time::Duration;

use crate::config::Config;
use crate::ids::Instant;
use crate::multicast::pacing::transfer_time;
use crate::transfer::Target;

/// The link is shut to more bulk while its queued bytes take longer than this. The limit covers the time for which the
/// machine suspends a service process. With 1 ms, all-to-alls of eight service processes on two cores took a tenth
/// longer.
const QUEUED: Duration = Duration::from_micros(1500);
/// The limit when the only bulk is a whole message for one neighbour, as in a ring. The other neighbour waits for
/// acknowledgements, which are queued behind the message. With 1.5 ms a ring of four hosts takes 5 % longer.
const QUEUED_IN_A_RING: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Uplink {
    /// Estimated rate in bit/s.
    rate: u64,
    /// The limit above which bulk waits.
    queued: Duration,
    /// When all sent bytes have left the link.
    leaves: Instant,
    /// Since when the link has always had something to send.
    busy_since: Instant,
    /// By how much the bytes sent since `busy_since` have left before the estimated time.
    early: Duration,
    /// Bulk waits for the link.
    pub(super) is_awaited: bool,
}

impl Uplink {
    /// An idle link with a configured rate of `rate` bit/s.
    pub(super) fn new(rate: u64) -> Self {
        let (leaves, busy_since) = (Instant(0), Instant(0));
        Uplink { rate, queued: QUEUED, leaves, busy_since, early: Duration::ZERO, is_awaited: false }
    }

    /// Whether bulk for `targets` must wait at `now`, while this many bytes are `unacknowledged`.
    pub(super) fn is_shut(&mut self, now: Instant, config: &Config, targets: &[Target], unacknowledged: u64) -> bool {
        self.queued = match targets {
            [Target { is_whole: true, .. }] => QUEUED_IN_A_RING,
            _ => QUEUED,
        };
        if self.leaves > now + self.queued {
            let early = self.leaves.since(now + self.duration(config, unacknowledged));
            self.leaves = self.leaves - early;
            self.early += early;
            if self.early > self.queued.max(now.since(self.busy_since) / 2) {
                self.rate = self.rate.saturating_mul(2);
                (self.busy_since, self.early) = (now, Duration::ZERO);
            }
        }
        self.leaves > now + self.queued
    }

    /// A frame with this many bytes of bulk leaves.
    pub(super) fn sent(&mut self, now: Instant, config: &Config, bytes: u64) {
        if self.leaves <= now {
            (self.leaves, self.busy_since, self.early) = (now, now, Duration::ZERO);
        }
        self.leaves = self.leaves + self.duration(config, bytes);
    }

    /// When waiting bulk must leave, if nothing happens before: half of the limit is left on the link then.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.is_awaited.then(|| self.leaves - self.queued / 2)
    }

    /// Time that the link takes for this many bytes of payload.
    fn duration(&self, config: &Config, bytes: u64) -> Duration {
        let datagrams = bytes.div_ceil(config.chunk_bytes.into());
        transfer_time(bytes + datagrams * u64::from(config.datagram_overhead), self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SpId;

    /// 1 byte is 1 us on the wire, without headers.
    fn link() -> (Config, Uplink) {
        (Config { datagram_overhead: 0, ..Config::default() }, Uplink::new(8_000_000))
    }

    fn micros(n: u64) -> Instant {
        Instant(n * 1000)
    }

    #[test]
    fn sp_5_bulk_waits_while_the_link_has_enough_to_send() {
        let (config, mut uplink) = link();
        uplink.sent(micros(0), &config, 1500);
        assert!(!uplink.is_shut(micros(0), &config, &[], 1500), "it leaves in time");
        uplink.sent(micros(0), &config, 600);
        assert!(uplink.is_shut(micros(0), &config, &[], 2100));
        assert_eq!(uplink.poll_timeout(), None, "nothing waits");
        uplink.is_awaited = true;
        assert_eq!(uplink.poll_timeout(), Some(micros(2100 - 750)));
        assert!(uplink.is_shut(micros(599), &config, &[], 2100) && !uplink.is_shut(micros(600), &config, &[], 2100));
        uplink.sent(micros(5000), &config, 1501);
        assert!(uplink.is_shut(micros(5000), &config, &[], 1501), "an idle link saves nothing up");
        let ring = [Target { to: SpId(1), bytes: 9000, is_whole: true }];
        let pulled = [Target { is_whole: false, ..ring[0] }];
        assert!(!uplink.is_shut(micros(5001), &config, &pulled, 1501));
        assert!(uplink.is_shut(micros(5500), &config, &ring, 1501));
        assert!(!uplink.is_shut(micros(5501), &config, &ring, 1501));
    }

    #[test]
    fn sp_5_acknowledged_bytes_have_left_the_link() {
        let (config, mut uplink) = link();
        uplink.sent(micros(0), &config, 3000);
        assert!(uplink.is_shut(micros(0), &config, &[], 1501) && !uplink.is_shut(micros(0), &config, &[], 1500));
        uplink.sent(micros(0), &config, 1);
        assert!(uplink.is_shut(micros(0), &config, &[], 1501), "it is as fast as it says");
    }

    #[test]
    fn sp_5_rate_doubles_when_acknowledgements_come_too_early() {
        let (config, mut uplink) = link();
        uplink.sent(micros(0), &config, 3200);
        assert!(!uplink.is_shut(micros(100), &config, &[], 0));
        uplink.sent(micros(100), &config, 3000);
        assert!(!uplink.is_shut(micros(100), &config, &[], 3000), "twice as fast");
        uplink.sent(micros(100), &config, 100);
        assert!(uplink.is_shut(micros(100), &config, &[], 3100), "and no more");
    }
}
