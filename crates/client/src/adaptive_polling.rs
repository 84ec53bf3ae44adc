//! Adaptive polling before sleep: a rank that polls sees an early completion sooner than the kernel could wake it.
//!
//! The last wait decides: if it ended within [`POLL_LIMIT`], the next one polls first; if it lasted longer, the next
//! one sleeps at once. Between two polls the thread yields the processor. Never polls longer than [`POLL_LIMIT`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a wait polls: a round trip of small messages between hosts of an Ethernet, a few wake-ups long.
const POLL_LIMIT: Duration = Duration::from_micros(200);

#[derive(Debug, Default)]
pub(crate) struct AdaptiveWait {
    last_wait_was_short: AtomicBool,
}

impl AdaptiveWait {
    /// Polls until `done` holds, unless the last wait was long; returns the last result of `done`.
    pub(crate) fn poll(&self, done: &mut impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        while self.last_wait_was_short.load(Ordering::Relaxed) {
            if done() {
                return true;
            }
            self.record_wait(begun.elapsed());
            std::thread::yield_now();
        }
        done()
    }

    /// Records the duration of a wait.
    pub(crate) fn record_wait(&self, time: Duration) {
        self.last_wait_was_short.store(time < POLL_LIMIT, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_wait_enables_polling_and_long_wait_disables_it() {
        let wait = AdaptiveWait::default();
        let polls = || {
            let mut polls = 0;
            let seen = wait.poll(&mut || {
                polls += 1;
                false
            });
            assert!(!seen);
            polls
        };
        assert_eq!(polls(), 1, "nothing is known yet");
        wait.record_wait(POLL_LIMIT / 2);
        assert!(polls() > 1);
        assert_eq!(polls(), 1, "the last one looked in vain");
        wait.record_wait(POLL_LIMIT / 2);
        let mut polled = 0;
        assert!(wait.poll(&mut || {
            polled += 1;
            polled == 3
        }));
        wait.record_wait(2 * POLL_LIMIT);
        assert_eq!(polls(), 1);
    }
}
