//! The round trip of a frame, from the clocks that frames echo (RFC 7323 in spirit), and the timeout for an answer (RFC
//! 6298). The time that the other end holds an echo back does not count.

use std::time::Duration;

use crate::ids::Instant;
use crate::wire::FrameHeader;

/// Longer round trips are ignored, in microseconds.
const MAX_ROUND_TRIP_US: u32 = 60_000_000;

#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    /// The clock of the last received frame, and when the frame came.
    last_received: Option<(u32, Instant)>,
    smoothed: Option<Duration>,
    variation: Duration,
    least: Option<Duration>,
}

impl RoundTrip {
    pub(super) fn measure(&mut self, now: Instant, header: &FrameHeader) {
        self.last_received = Some((header.clock, now));
        if header.echo_age == u32::MAX {
            return;
        }
        let elapsed = micros(now).wrapping_sub(header.echo);
        let Some(measured) = elapsed.checked_sub(header.echo_age).filter(|measured| *measured < MAX_ROUND_TRIP_US)
        else {
            return;
        };
        let measured = Duration::from_micros(u64::from(measured));
        self.least = Some(self.least.map_or(measured, |least| least.min(measured)));
        match self.smoothed {
            None => {
                self.smoothed = Some(measured);
                self.variation = measured / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(measured)) / 4;
                self.smoothed = Some((smoothed * 7 + measured) / 8);
            }
        }
    }

    /// The clock of the last received frame and its age in microseconds; without a frame the age is `u32::MAX`.
    pub(super) fn echo(&self, now: Instant) -> (u32, u32) {
        match self.last_received {
            Some((clock, at)) => (clock, u32::try_from(now.since(at).as_micros()).unwrap_or(u32::MAX)),
            None => (0, u32::MAX),
        }
    }

    pub(super) fn has_received(&self) -> bool {
        self.last_received.is_some()
    }

    /// The smoothed average, once a round trip was measured.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The shortest round trip: the delay of the path without queues.
    pub(super) fn least(&self) -> Option<Duration> {
        self.least
    }

    /// The time within which an answer almost certainly comes, at least `floor`.
    pub(super) fn timeout(&self, floor: Duration) -> Duration {
        self.smoothed.map_or(floor, |smoothed| smoothed + self.variation * 4).max(floor)
    }
}

/// The clock that frames carry.
pub(super) fn micros(now: Instant) -> u32 {
    (now.0 / 1000) as u32
}
