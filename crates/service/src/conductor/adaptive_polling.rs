//! Adaptive polling: the conductor takes another turn instead of sleeping, although the last turn found nothing.
//!
//! The last wait decides, as for ranks (`client`'s adaptive_polling): if an event came within [`POLL_LIMIT`] of the
//! event before it, the conductor polls for up to [`POLL_LIMIT`]. Between two polls the thread yields. Other polling
//! threads yield too, after microseconds. A computing thread keeps the processor for longer than [`POLL_LIMIT`], and an
//! event that arrives meanwhile is handled late: a loss. The kernel reports the loss as time for which this thread was
//! ready and did not run. Losses may exceed wins by [`ALLOWANCE`], and by one part in [`LOSS_DECAY`] of the time. With
//! [`Polling::Auto`]:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | resting | an event soon after the last one, and losses within bounds | spinning |
//! | spinning | an event | spinning, and the limit starts again |
//! | spinning | losses out of bounds, or the kernel reports none | resting |
//! | spinning | no event for [`POLL_LIMIT`] | resting |
//!
//! [`Polling::Always`] polls while ranks are attached, [`Polling::Off`] never. This module reads no clock and no kernel
//! figures itself.

use std::time::{Duration, Instant};

use crate::settings::Polling;
use crate::telemetry::statistics::PollCounters;

/// Polling ends after this long without an event. Ranks poll for as long for the result of a round trip of small
/// messages.
const POLL_LIMIT: Duration = Duration::from_micros(200);
/// Interval at which the kernel's figure is read while polling; a read costs about as much as a poll.
const DELAY_INTERVAL: Duration = Duration::from_micros(20);
/// Gain of an event found by polling: the wake-up of this thread is saved.
const WIN: Duration = Duration::from_micros(25);
/// Limit of losses beyond wins.
const ALLOWANCE: Duration = Duration::from_millis(1);
/// The elapsed time divided by this number is subtracted from the losses.
const LOSS_DECAY: u32 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PollState {
    Resting,
    /// `delay` is the time that this thread had waited for a processor, as the kernel reported it at `read_at`.
    Spinning {
        read_at: Instant,
        delay: Duration,
    },
}

#[derive(Debug)]
pub(crate) struct AdaptivePolling {
    polling: Polling,
    state: PollState,
    found_at: Instant,
    /// Losses of polling in excess of its wins, and the time at which this balance was computed.
    loss_balance: (Duration, Instant),
    pub(crate) looks: PollCounters,
}

impl AdaptivePolling {
    pub(crate) fn new(polling: Polling, now: Instant) -> Self {
        AdaptivePolling {
            polling,
            state: PollState::Resting,
            found_at: now,
            loss_balance: (Duration::ZERO, now),
            looks: PollCounters::default(),
        }
    }

    /// Decides at the end of a turn whether the next turn follows without sleep. `found` says whether the turn found an
    /// event. `delay` reads from the kernel how long this thread has waited for a processor.
    pub(crate) fn continues(
        &mut self,
        now: Instant,
        found: bool,
        attached: bool,
        delay: impl FnOnce() -> Option<Duration>,
    ) -> bool {
        match self.polling {
            Polling::Off => false,
            Polling::Always => {
                self.looks.found += u64::from(found && attached);
                attached
            }
            Polling::Auto => {
                self.state = self.next(now, found, delay);
                matches!(self.state, PollState::Spinning { .. })
            }
        }
    }

    fn next(&mut self, now: Instant, found: bool, delay: impl FnOnce() -> Option<Duration>) -> PollState {
        let waited = now.saturating_duration_since(self.found_at);
        if found {
            self.found_at = now;
        }
        match self.state {
            PollState::Spinning { .. } if found => {
                self.looks.found += 1;
                self.loss_balance.0 = self.loss_balance.0.saturating_sub(WIN);
                self.state
            }
            PollState::Spinning { .. } if waited >= POLL_LIMIT => {
                self.looks.in_vain += 1;
                PollState::Resting
            }
            PollState::Spinning { read_at, .. } if now < read_at + DELAY_INTERVAL => self.state,
            PollState::Spinning { delay: before, .. } => {
                let delay = delay();
                let loss = delay.map_or(Duration::ZERO, |delay| delay.saturating_sub(before));
                if loss > POLL_LIMIT {
                    self.loss_balance.0 += loss;
                }
                self.spin_if_affordable(now, delay)
            }
            PollState::Resting if found && waited < POLL_LIMIT => self.spin_if_affordable(now, delay()),
            PollState::Resting => PollState::Resting,
        }
    }

    /// Starts or continues polling if the losses are within bounds.
    fn spin_if_affordable(&mut self, now: Instant, delay: Option<Duration>) -> PollState {
        let (loss_balance, since) = self.loss_balance;
        self.loss_balance = (loss_balance.saturating_sub(now.saturating_duration_since(since) / LOSS_DECAY), now);
        match delay {
            Some(delay) if self.loss_balance.0 <= ALLOWANCE => PollState::Spinning { read_at: now, delay },
            _ => {
                self.looks.given_up += u64::from(self.state != PollState::Resting);
                PollState::Resting
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(50);

    /// An [`AdaptivePolling`] with simulated time.
    struct Bench {
        adaptive_polling: AdaptivePolling,
        now: Instant,
        /// Time that the thread has waited for a processor.
        delay: Duration,
    }

    impl Bench {
        fn new(polling: Polling) -> Self {
            let now = Instant::now();
            Bench { adaptive_polling: AdaptivePolling::new(polling, now), now, delay: Duration::from_micros(7) }
        }

        /// Ends a turn `after` the previous one.
        fn turn(&mut self, after: Duration, found: bool) -> bool {
            self.now += after;
            self.adaptive_polling.continues(self.now, found, true, || Some(self.delay))
        }

        /// Ends a turn without an event, after the thread has waited `loss` for a processor.
        fn kept_waiting(&mut self, loss: Duration) -> bool {
            self.delay += loss;
            self.turn(DELAY_INTERVAL, false)
        }

        fn counted(&self) -> (u64, u64, u64) {
            let PollCounters { found, in_vain, given_up } = self.adaptive_polling.looks;
            (found, in_vain, given_up)
        }
    }

    #[test]
    fn polling_starts_only_after_events_in_close_succession() {
        let mut bench = Bench::new(Polling::Auto);
        assert!(!bench.turn(POLL_LIMIT, true), "it came late");
        assert!(!bench.turn(SOON, false), "nothing has come");
        assert!(bench.turn(SOON, true));
        assert!(bench.turn(POLL_LIMIT - SOON, false));
        assert!(bench.turn(SOON, true), "found by looking");
        assert!(bench.turn(POLL_LIMIT - SOON, false), "as long from then");
        assert!(!bench.turn(SOON, false), "long enough");
        assert!(!bench.turn(SOON, true), "the last wait was long");
        assert_eq!(bench.counted(), (1, 1, 0));
    }

    #[test]
    fn losses_beyond_the_allowance_stop_polling_until_they_decay() {
        let mut bench = Bench::new(Polling::Auto);
        assert!(bench.turn(SOON, true));
        assert!(bench.kept_waiting(ALLOWANCE));
        assert!(!bench.kept_waiting(POLL_LIMIT * 2));
        assert_eq!(bench.counted(), (0, 0, 1));
        let loss_balance = POLL_LIMIT * 2;
        let mut rested = Duration::ZERO;
        while !bench.turn(SOON, true) {
            rested += SOON;
        }
        let forgiven = loss_balance * LOSS_DECAY;
        assert!(rested.abs_diff(forgiven) <= SOON * 2, "{rested:?}, {forgiven:?}");
        assert_eq!(bench.counted(), (0, 0, 1), "who rests gives nothing up");
    }

    #[test]
    fn events_found_by_polling_offset_losses() {
        let (mut bench, finds) = (Bench::new(Polling::Auto), 2 * POLL_LIMIT.as_micros() / WIN.as_micros());
        assert!(bench.turn(SOON, true));
        assert!(bench.kept_waiting(ALLOWANCE));
        for _ in 0..20 {
            for _ in 0..finds {
                assert!(bench.turn(SOON, true));
            }
            assert!(bench.kept_waiting(POLL_LIMIT * 2));
        }
        for _ in 0..20 {
            assert!(bench.kept_waiting(POLL_LIMIT), "who looks, too, gives way soon");
            assert!(bench.turn(SOON, true));
        }
    }

    #[test]
    fn the_kernel_delay_is_read_at_intervals_and_polling_ends_without_it() {
        let mut bench = Bench::new(Polling::Auto);
        assert!(bench.turn(SOON, true));
        let mut turn = |after, delay: fn() -> Option<Duration>| {
            bench.now += after;
            bench.adaptive_polling.continues(bench.now, false, true, delay)
        };
        assert!(turn(DELAY_INTERVAL / 2, || unreachable!("asked so soon")));
        assert!(!turn(DELAY_INTERVAL, || None));
    }

    #[test]
    fn always_polls_while_ranks_are_attached_and_off_never_polls() {
        for (polling, attached, looks) in
            [(Polling::Always, true, true), (Polling::Always, false, false), (Polling::Off, true, false)]
        {
            let mut bench = Bench::new(polling);
            for found in [true, true, false] {
                let on =
                    bench.adaptive_polling.continues(bench.now, found, attached, || unreachable!("nobody is asked"));
                assert_eq!(on, looks, "{polling:?}");
            }
        }
    }
}
