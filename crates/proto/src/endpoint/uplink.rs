//! How much of the bulk that was given to the fabric has not left over the host's link yet.
//!
//! Whatever follows bulk into the fabric waits behind it. A request for more is late then, and so are the bytes that
//! answer it: a host whose link sends at full rate would receive at less, and whoever calls late would stay behind. So
//! bulk waits in the machine, behind requests, while the link has enough to send (SP-5).
//!
//! Only an estimate, by the rate that the link is said to have and by what is acknowledged. A link that turns out to be
//! faster, as those of virtual machines are, is taken to be faster from then on. Never does IO, never sees payload.

use std::time::Duration;

use crate::config::Config;
use crate::ids::Instant;
use crate::multicast::pacing::transfer_time;
use crate::transfer::Target;

/// What the link has to send when it is shut to more: enough for a service process that the machine lets wait. With
/// 1 ms, all-to-alls of eight service processes on two cores took a tenth longer.
const QUEUED: Duration = Duration::from_micros(1500);
/// The same when a whole message for one neighbour is all there is, as in a ring: the other neighbour waits for
/// acknowledgements, which are queued behind it. With 1.5 ms a ring of four hosts takes 5 % longer.
const QUEUED_IN_A_RING: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Uplink {
    /// In bit/s.
    rate: u64,
    /// What there is to send when more waits.
    queued: Duration,
    /// When all that was sent has left.
    leaves: Instant,
    /// Since when there was always something to send.
    busy_since: Instant,
    /// By how much all that was sent since then has left before its time.
    early: Duration,
    /// Bulk waits for it.
    pub(super) is_awaited: bool,
}

impl Uplink {
    /// An idle link that is said to carry `rate` bit/s.
    pub(super) fn new(rate: u64) -> Self {
        let (leaves, busy_since) = (Instant(0), Instant(0));
        Uplink { rate, queued: QUEUED, leaves, busy_since, early: Duration::ZERO, is_awaited: false }
    }

    /// Whether bulk for `targets` waits at `now`, while so many bytes are `unacknowledged`.
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

    /// A frame with so many bytes of bulk leaves.
    pub(super) fn sent(&mut self, now: Instant, config: &Config, bytes: u64) {
        if self.leaves <= now {
            (self.leaves, self.busy_since, self.early) = (now, now, Duration::ZERO);
        }
        self.leaves = self.leaves + self.duration(config, bytes);
    }

    /// When bulk that waits is to leave, if nothing is done before: there is something to send left until then.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.is_awaited.then(|| self.leaves - self.queued / 2)
    }

    /// Time that the link takes for so many bytes of payload.
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
    fn sp_5_what_is_acknowledged_has_left() {
        let (config, mut uplink) = link();
        uplink.sent(micros(0), &config, 3000);
        assert!(uplink.is_shut(micros(0), &config, &[], 1501) && !uplink.is_shut(micros(0), &config, &[], 1500));
        uplink.sent(micros(0), &config, 1);
        assert!(uplink.is_shut(micros(0), &config, &[], 1501), "it is as fast as it says");
    }

    #[test]
    fn sp_5_a_link_that_is_faster_than_it_says_is_known_to_be() {
        let (config, mut uplink) = link();
        uplink.sent(micros(0), &config, 3200);
        assert!(!uplink.is_shut(micros(100), &config, &[], 0));
        uplink.sent(micros(100), &config, 3000);
        assert!(!uplink.is_shut(micros(100), &config, &[], 3000), "twice as fast");
        uplink.sent(micros(100), &config, 100);
        assert!(uplink.is_shut(micros(100), &config, &[], 3100), "and no more");
    }
}
