//! Adaptive polling: the conductor takes another turn instead of sleeping, although the last turn found nothing.
//!
//! The last wait decides, as for ranks (`client`'s looking): if an event came within [`LOOK`] of the event before it,
//! the conductor polls as long for the next. Between two polls the thread yields. Other polling threads yield too,
//! after microseconds; a computing thread keeps the processor for longer than [`LOOK`]. An event that arrives meanwhile
//! is late: a loss. The kernel reports the loss as time that this thread was ready and did not run. Losses may exceed
//! wins by [`ALLOWANCE`], and by one part in [`SHARE`] of the time. With [`Polling::Auto`]:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | resting | an event soon after the last one, and losses within bounds | looking |
//! | looking | an event | looking, as long from now |
//! | looking | losses out of bounds, or the kernel reports none | resting |
//! | looking | no event for [`LOOK`] | resting |
//!
//! [`Polling::Always`] polls while ranks are attached, [`Polling::Off`] never. This module reads no clock and no kernel
//! figures itself.

use std::time::{Duration, Instant};

use crate::settings::Polling;
use crate::telemetry::statistics::Looks;

/// Polling ends after this long without an event. Ranks poll as long for the result of a round trip of small messages.
const LOOK: Duration = Duration::from_micros(200);
/// Interval at which the kernel's figure is read while polling; a read costs about as much as a poll.
const ASK: Duration = Duration::from_micros(20);
/// Gain of an event found by polling: no wake-up of this thread.
const WIN: Duration = Duration::from_micros(25);
/// Limit of losses beyond wins.
const ALLOWANCE: Duration = Duration::from_millis(1);
/// One part in this many of the time that passes is subtracted from the losses.
const SHARE: u32 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Resting,
    /// Time of the last read of the kernel's figure, and the figure: how long this thread had waited for a processor.
    Looking {
        asked: Instant,
        delay: Duration,
    },
}

#[derive(Debug)]
pub(crate) struct Looking {
    polling: Polling,
    state: State,
    found_at: Instant,
    /// Losses of polling beyond its wins, and the time of this balance.
    lost: (Duration, Instant),
    pub(crate) looks: Looks,
}

impl Looking {
    pub(crate) fn new(polling: Polling, now: Instant) -> Self {
        Looking { polling, state: State::Resting, found_at: now, lost: (Duration::ZERO, now), looks: Looks::default() }
    }

    /// Decides at the end of a turn whether the next turn follows without sleep. `found`: whether the turn found an
    /// event; `delay` reads from the kernel how long this thread has waited for a processor.
    pub(crate) fn goes_on(
        &mut self,
        now: Instant,
        (found, attached): (bool, bool),
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
                matches!(self.state, State::Looking { .. })
            }
        }
    }

    fn next(&mut self, now: Instant, found: bool, delay: impl FnOnce() -> Option<Duration>) -> State {
        let waited = now.saturating_duration_since(self.found_at);
        if found {
            self.found_at = now;
        }
        match self.state {
            State::Looking { .. } if found => {
                self.looks.found += 1;
                self.lost.0 = self.lost.0.saturating_sub(WIN);
                self.state
            }
            State::Looking { .. } if waited >= LOOK => {
                self.looks.in_vain += 1;
                State::Resting
            }
            State::Looking { asked, .. } if now < asked + ASK => self.state,
            State::Looking { delay: before, .. } => {
                let delay = delay();
                let loss = delay.map_or(Duration::ZERO, |delay| delay.saturating_sub(before));
                if loss > LOOK {
                    self.lost.0 += loss;
                }
                self.look(now, delay)
            }
            State::Resting if found && waited < LOOK => self.look(now, delay()),
            State::Resting => State::Resting,
        }
    }

    /// Polls, if the losses are within bounds.
    fn look(&mut self, now: Instant, delay: Option<Duration>) -> State {
        let (lost, since) = self.lost;
        self.lost = (lost.saturating_sub(now.saturating_duration_since(since) / SHARE), now);
        match delay {
            Some(delay) if self.lost.0 <= ALLOWANCE => State::Looking { asked: now, delay },
            _ => {
                self.looks.given_up += u64::from(self.state != State::Resting);
                State::Resting
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(50);

    /// The machine under injected times.
    struct Bench {
        looking: Looking,
        now: Instant,
        /// Time that the thread has waited for a processor.
        delay: Duration,
    }

    impl Bench {
        fn new(polling: Polling) -> Self {
            let now = Instant::now();
            Bench { looking: Looking::new(polling, now), now, delay: Duration::from_micros(7) }
        }

        /// A turn that ends `after` its predecessor.
        fn turn(&mut self, after: Duration, found: bool) -> bool {
            self.now += after;
            self.looking.goes_on(self.now, (found, true), || Some(self.delay))
        }

        /// A turn that finds nothing after the thread has waited `loss` for a processor.
        fn kept_waiting(&mut self, loss: Duration) -> bool {
            self.delay += loss;
            self.turn(ASK, false)
        }

        fn counted(&self) -> (u64, u64, u64) {
            let Looks { found, in_vain, given_up } = self.looking.looks;
            (found, in_vain, given_up)
        }
    }

    #[test]
    fn what_comes_soon_is_looked_for_and_nothing_else() {
        let mut bench = Bench::new(Polling::Auto);
        assert!(!bench.turn(LOOK, true), "it came late");
        assert!(!bench.turn(SOON, false), "nothing has come");
        assert!(bench.turn(SOON, true));
        assert!(bench.turn(LOOK - SOON, false));
        assert!(bench.turn(SOON, true), "found by looking");
        assert!(bench.turn(LOOK - SOON, false), "as long from then");
        assert!(!bench.turn(SOON, false), "long enough");
        assert!(!bench.turn(SOON, true), "the last wait was long");
        assert_eq!(bench.counted(), (1, 1, 0));
    }

    #[test]
    fn who_loses_too_much_rests_until_that_is_forgiven() {
        let mut bench = Bench::new(Polling::Auto);
        assert!(bench.turn(SOON, true));
        assert!(bench.kept_waiting(ALLOWANCE));
        assert!(!bench.kept_waiting(LOOK * 2));
        assert_eq!(bench.counted(), (0, 0, 1));
        let lost = LOOK * 2;
        let mut rested = Duration::ZERO;
        while !bench.turn(SOON, true) {
            rested += SOON;
        }
        let forgiven = lost * SHARE;
        assert!(rested.abs_diff(forgiven) <= SOON * 2, "{rested:?}, {forgiven:?}");
        assert_eq!(bench.counted(), (0, 0, 1), "who rests gives nothing up");
    }

    #[test]
    fn what_looking_finds_pays_for_what_it_loses() {
        let (mut bench, finds) = (Bench::new(Polling::Auto), 2 * LOOK.as_micros() / WIN.as_micros());
        assert!(bench.turn(SOON, true));
        assert!(bench.kept_waiting(ALLOWANCE));
        for _ in 0..20 {
            for _ in 0..finds {
                assert!(bench.turn(SOON, true));
            }
            assert!(bench.kept_waiting(LOOK * 2));
        }
        for _ in 0..20 {
            assert!(bench.kept_waiting(LOOK), "who looks, too, gives way soon");
            assert!(bench.turn(SOON, true));
        }
    }

    #[test]
    fn the_kernel_is_asked_now_and_then_and_a_look_ends_where_it_does_not_tell() {
        let mut bench = Bench::new(Polling::Auto);
        assert!(bench.turn(SOON, true));
        let mut turn = |after, delay: fn() -> Option<Duration>| {
            bench.now += after;
            bench.looking.goes_on(bench.now, (false, true), delay)
        };
        assert!(turn(ASK / 2, || unreachable!("asked so soon")));
        assert!(!turn(ASK, || None));
    }

    #[test]
    fn always_looks_while_ranks_are_attached_and_off_never_does() {
        for (polling, attached, looks) in
            [(Polling::Always, true, true), (Polling::Always, false, false), (Polling::Off, true, false)]
        {
            let mut bench = Bench::new(polling);
            for found in [true, true, false] {
                let on = bench.looking.goes_on(bench.now, (found, attached), || unreachable!("nobody is asked"));
                assert_eq!(on, looks, "{polling:?}");
            }
        }
    }
}
