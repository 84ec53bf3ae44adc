//! Looking instead of sleeping: whether the conductor takes another turn at once where the last one found nothing.
//!
//! Whether that is worth it is what the last wait teaches, as for ranks (`client`'s looking): what came within [`LOOK`]
//! of what came before it makes the conductor look as long for what comes next. A processor that somebody else wants is
//! not looked on: the kernel's [`Figures`] are asked for before a look and every [`ASK`] during it. By
//! [`Polling::Auto`]:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | resting | something found, soon after the last | looking, or giving way if the processor is wanted |
//! | looking | something found | looking, as long from now |
//! | looking | the processor is wanted, or nobody can tell | giving way, longer each time until long ago ([`CALM`]) |
//! | looking | nothing found for [`LOOK`] | resting |
//! | giving way | its time is over | resting |
//!
//! [`Polling::Always`] looks while ranks are attached, [`Polling::Off`] never does. Reads no clock and no figures of
//! its own.

use std::time::{Duration, Instant};

use crate::settings::Polling;
use crate::telemetry::statistics::Looks;

/// How long nothing may be found: as long as ranks look for what a round trip of small messages brings.
const LOOK: Duration = Duration::from_micros(200);
/// How often the kernel is asked meanwhile: asking costs about as much as a look.
const ASK: Duration = Duration::from_micros(20);
/// How long somebody else has the processor before the kernel is asked again, at first and at last.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(256));
/// After how many times as long without it giving way begins anew: looking has to win more than being kept from the
/// processor for some milliseconds loses.
const CALM: u32 = 16;

/// What the kernel says of the processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    /// With this thread and all others that can run no processor is idle.
    pub(crate) crowded: bool,
    /// How long this thread has waited for a processor since its start.
    pub(crate) delay: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Resting,
    /// The kernel was asked then, and this thread had waited so long.
    Looking {
        asked: Instant,
        delay: Duration,
    },
    GivingWay {
        until: Instant,
    },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Looking {
    polling: Polling,
    state: State,
    found_at: Instant,
    /// How long it gave way the last time, and until when.
    gave_way: (Duration, Instant),
    pub(crate) looks: Looks,
}

impl Looking {
    pub(crate) fn new(polling: Polling, now: Instant) -> Self {
        Looking {
            polling,
            state: State::Resting,
            found_at: now,
            gave_way: (Duration::ZERO, now),
            looks: Looks::default(),
        }
    }

    /// A turn has ended, and `found` says whether something had come: whether the next follows without sleep.
    pub(crate) fn goes_on(
        &mut self,
        now: Instant,
        (found, attached): (bool, bool),
        ask: impl FnOnce() -> Option<Figures>,
    ) -> bool {
        match self.polling {
            Polling::Off => false,
            Polling::Always => {
                self.looks.found += u64::from(found && attached);
                attached
            }
            Polling::Auto => {
                self.state = self.next(now, found, ask);
                matches!(self.state, State::Looking { .. })
            }
        }
    }

    fn next(&mut self, now: Instant, found: bool, ask: impl FnOnce() -> Option<Figures>) -> State {
        let waited = now.saturating_duration_since(self.found_at);
        if found {
            self.found_at = now;
        }
        match self.state {
            State::Looking { .. } if found => {
                self.looks.found += 1;
                self.state
            }
            State::Looking { .. } if waited >= LOOK => {
                self.looks.in_vain += 1;
                State::Resting
            }
            State::Looking { asked, .. } if now < asked + ASK => self.state,
            State::Looking { delay, .. } => self.ask(now, ask(), Some(delay)),
            State::GivingWay { until } if now < until => self.state,
            State::Resting | State::GivingWay { .. } if found && waited < LOOK => self.ask(now, ask(), None),
            State::Resting | State::GivingWay { .. } => State::Resting,
        }
    }

    /// Looks on if nobody wants the processor; `delay` is that of the last time, if there was one in this look.
    fn ask(&mut self, now: Instant, figures: Option<Figures>, delay: Option<Duration>) -> State {
        let free = |figures: &Figures| !figures.crowded && delay.is_none_or(|delay| figures.delay == delay);
        match figures.filter(free) {
            Some(Figures { delay, .. }) => State::Looking { asked: now, delay },
            None => {
                self.looks.given_up += 1;
                let (last, since) = self.gave_way;
                let calm = now.saturating_duration_since(since) >= last * CALM;
                let pause = if calm { PAUSE.0 } else { (last * 2).min(PAUSE.1) };
                let until = now + pause;
                self.gave_way = (pause, until);
                State::GivingWay { until }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Figures = Figures { crowded: false, delay: Duration::from_micros(7) };
    const CROWDED: Figures = Figures { crowded: true, ..FREE };
    const SOON: Duration = Duration::from_micros(50);

    /// A machine under injected times.
    struct Bench {
        looking: Looking,
        now: Instant,
    }

    impl Bench {
        fn new(polling: Polling) -> Self {
            let now = Instant::now();
            Bench { looking: Looking::new(polling, now), now }
        }

        /// A turn that ends `after` the last one.
        fn turn(&mut self, after: Duration, found: bool, figures: Option<Figures>) -> bool {
            self.now += after;
            self.looking.goes_on(self.now, (found, true), || figures)
        }

        fn counted(&self) -> (u64, u64, u64) {
            let Looks { found, in_vain, given_up } = self.looking.looks;
            (found, in_vain, given_up)
        }
    }

    #[test]
    fn what_comes_soon_is_looked_for_and_nothing_else() {
        let mut bench = Bench::new(Polling::Auto);
        assert!(!bench.turn(LOOK, true, Some(FREE)), "it came late");
        assert!(!bench.turn(SOON, false, Some(FREE)), "nothing has come");
        assert!(bench.turn(SOON, true, Some(FREE)));
        assert!(bench.turn(LOOK - SOON, false, Some(FREE)));
        assert!(bench.turn(SOON, true, Some(FREE)), "found by looking");
        assert!(bench.turn(LOOK - SOON, false, Some(FREE)), "as long from then");
        assert!(!bench.turn(SOON, false, Some(FREE)), "long enough");
        assert!(!bench.turn(SOON, true, Some(FREE)), "the last wait was long");
        assert_eq!(bench.counted(), (1, 1, 0));
    }

    #[test]
    fn who_wants_the_processor_gets_it_for_longer_each_time() {
        let mut bench = Bench::new(Polling::Auto);
        let mut pause = PAUSE.0;
        for round in 1..=12 {
            assert!(!bench.turn(SOON, true, Some(CROWDED)));
            assert_eq!(bench.counted(), (0, 0, round));
            let kept = bench.now + pause;
            while bench.now + SOON < kept {
                assert!(!bench.turn(SOON, true, None), "nobody is asked");
            }
            pause = (pause * 2).min(PAUSE.1);
        }
        assert_eq!(pause, PAUSE.1);
        let calm = bench.now + SOON + PAUSE.1 * CALM;
        while bench.now < calm {
            assert!(bench.turn(SOON, true, Some(FREE)));
        }
        assert!(!bench.turn(ASK, false, Some(CROWDED)));
        assert_eq!(bench.looking.state, State::GivingWay { until: bench.now + PAUSE.0 }, "long ago is forgiven");
    }

    #[test]
    fn a_look_ends_when_this_thread_had_to_wait_or_nobody_can_tell() {
        for ends in [Some(CROWDED), Some(Figures { delay: FREE.delay * 2, ..FREE }), None] {
            let mut bench = Bench::new(Polling::Auto);
            assert!(bench.turn(SOON, true, Some(FREE)));
            assert!(bench.turn(ASK / 2, false, None), "not asked so soon");
            assert!(bench.turn(ASK, false, Some(FREE)));
            assert!(!bench.turn(ASK, false, ends));
        }
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
