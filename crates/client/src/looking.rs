//! Adaptive polling before sleep: a rank that polls sees an early completion sooner than the kernel could wake it.
//!
//! The last wait decides: if it ended within [`LOOK`], the next one polls first; if it lasted longer, the next one
//! sleeps at once. Between two polls the thread yields the processor. Never polls longer than [`LOOK`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a wait polls: a round trip of small messages between hosts of an Ethernet, a few wake-ups long.
const LOOK: Duration = Duration::from_micros(200);

#[derive(Debug, Default)]
pub(crate) struct Looking {
    worth: AtomicBool,
}

impl Looking {
    /// Polls until `done` holds, unless the last wait was long; returns the last result of `done`.
    pub(crate) fn look(&self, done: &mut impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        while self.worth.load(Ordering::Relaxed) {
            if done() {
                return true;
            }
            self.waited(begun.elapsed());
            std::thread::yield_now();
        }
        done()
    }

    /// Records the duration of a wait.
    pub(crate) fn waited(&self, time: Duration) {
        self.worth.store(time < LOOK, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_look_after_short_ones_and_sleep_after_long_ones() {
        let looking = Looking::default();
        let looks = || {
            let mut looks = 0;
            let seen = looking.look(&mut || {
                looks += 1;
                false
            });
            assert!(!seen);
            looks
        };
        assert_eq!(looks(), 1, "nothing is known yet");
        looking.waited(LOOK / 2);
        assert!(looks() > 1);
        assert_eq!(looks(), 1, "the last one looked in vain");
        looking.waited(LOOK / 2);
        let mut asked = 0;
        assert!(looking.look(&mut || {
            asked += 1;
            asked == 3
        }));
        looking.waited(2 * LOOK);
        assert_eq!(looks(), 1);
    }
}
