//! Completion words: results of requests, which a rank polls without a system call.
//!
//! Each request in flight owns a word. The service process stores its result there (GP-7), then advances the epoch that
//! all words share. It wakes the futex on the epoch only if a sleeper waits for that word or for any. A rank that waits
//! for one word therefore names it: a wake-up for another word costs both sides more than all other work of a
//! completion. The service process stores the word, advances the epoch, fences, loads the waiters. A rank enters itself
//! among the waiters, fences, loads the epoch, then checks its words. One of the two sees the other (loom:
//! `loom_no_completion_is_slept_through`). The service process never reads a word, and a rank that falsifies its
//! waiters misleads only itself.

use crate::status::Status;
use crate::sync::{AtomicU32, Futex, Lines, Ordering, fence};
use std::time::{Duration, Instant};

/// State that all completion words of a rank share.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Epoch {
    value: Lines<Futex>,
    waiters: Lines<Waiters>,
}

/// The sleepers. Each waiter is entered in one of the two fields.
#[derive(Debug, Default)]
#[repr(C)]
struct Waiters {
    /// Number of waiters for any completion.
    of_any: AtomicU32,
    /// The slot of one waiter for one slot, counted from 1; 0 for none.
    of_one: AtomicU32,
}

/// One completion word: 0 while pending, else a [`Status`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(AtomicU32);

/// A view of a rank's completion words, for either side.
#[derive(Debug, Clone, Copy)]
pub struct Board<'a> {
    epoch: &'a Epoch,
    words: &'a [Word],
}

impl<'a> Board<'a> {
    /// A view of the board made of these parts.
    pub fn new(epoch: &'a Epoch, words: &'a [Word]) -> Self {
        Board { epoch, words }
    }

    /// Service process: stores the result of the request that owns `slot` and wakes the rank if it sleeps.
    /// Everything written to the rank's memory before is visible to the rank that sees the result.
    ///
    /// # Panics
    /// If `slot` is out of range: submissions are checked before they get this far.
    pub fn complete(&self, slot: u32, status: Status) {
        self.words[slot as usize].0.store(status.to_word(), Ordering::Release);
        self.wake(Some(slot));
    }

    /// Service process: wakes every sleeping rank thread, which checks for anything stored before.
    pub fn announce(&self) {
        self.wake(None);
    }

    fn wake(&self, slot: Option<u32>) {
        self.epoch.value.0.word().fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.concerns(slot) {
            self.epoch.value.0.wake_all();
        }
    }

    /// Whether a waiter waits for the completion of `slot`, or without a slot, whether there is any waiter.
    fn concerns(&self, slot: Option<u32>) -> bool {
        let Waiters { of_any, of_one } = &self.epoch.waiters.0;
        let alone = of_one.load(Ordering::Relaxed);
        of_any.load(Ordering::Relaxed) != 0 || (alone != 0 && slot.is_none_or(|slot| alone == slot + 1))
    }

    /// Rank: makes the word of `slot` pending, before the request is submitted.
    pub fn arm(&self, slot: u32) {
        self.words[slot as usize].0.store(0, Ordering::Relaxed);
    }

    /// Rank: the result in `slot`, or `None` while pending.
    pub fn result(&self, slot: u32) -> Option<Status> {
        match self.words[slot as usize].0.load(Ordering::Acquire) {
            0 => None,
            word => Some(Status::from_word(word)),
        }
    }

    /// Rank: sleeps until `done` holds or `limit` has passed; returns the last result of `done`. `done` checks words of
    /// this board and is called again after each completion. With `slot` it is called only after that completion, or an
    /// announcement.
    pub fn wait(&self, slot: Option<u32>, limit: Option<Duration>, mut done: impl FnMut() -> bool) -> bool {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let Waiters { of_any, of_one } = &self.epoch.waiters.0;
        let enter = |slot: u32| of_one.compare_exchange(0, slot + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let alone = slot.is_some_and(enter);
        if !alone {
            of_any.fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        let outcome = loop {
            let epoch = self.epoch.value.0.word().load(Ordering::Acquire);
            if done() {
                break true;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break false;
            }
            self.epoch.value.0.wait(epoch, left);
        };
        if alone {
            of_one.store(0, Ordering::Relaxed);
        } else {
            of_any.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(count: usize) -> Vec<Word> {
        (0..count).map(|_| Word::default()).collect()
    }

    #[test]
    fn words_are_four_bytes_and_the_epoch_has_lines_of_its_own() {
        assert_eq!(size_of::<Word>(), 4);
        assert_eq!(size_of::<Epoch>(), 256);
    }

    #[test]
    fn a_result_is_seen_once_stored_and_gone_once_armed() {
        let (epoch, words) = (Epoch::default(), words(2));
        let board = Board::new(&epoch, &words);
        assert_eq!(board.result(1), None);
        board.complete(1, Status::RankLost);
        assert_eq!(board.result(1), Some(Status::RankLost));
        assert_eq!(board.result(0), None);
        board.arm(1);
        assert_eq!(board.result(1), None);
    }

    #[test]
    fn a_wait_ends_at_its_limit() {
        let (epoch, words) = (Epoch::default(), words(1));
        let board = Board::new(&epoch, &words);
        assert!(!board.wait(None, Some(Duration::from_millis(1)), || board.result(0).is_some()));
    }

    #[test]
    fn a_completion_concerns_those_who_wait_for_its_word_or_for_any() {
        let (epoch, words) = (Epoch::default(), words(3));
        let board = Board::new(&epoch, &words);
        let concerned = || [board.concerns(Some(0)), board.concerns(Some(1)), board.concerns(None)];
        let now = Some(Duration::ZERO);
        assert_eq!(concerned(), [false; 3]);
        board.wait(Some(0), now, || {
            assert_eq!(concerned(), [true, false, true]);
            // There is one field for waiters of one word: the second such waiter waits for any.
            board.wait(Some(1), now, || {
                assert_eq!(concerned(), [true; 3]);
                false
            });
            assert_eq!(concerned(), [true, false, true]);
            false
        });
        board.wait(None, now, || {
            assert_eq!(concerned(), [true; 3]);
            false
        });
        assert_eq!(concerned(), [false; 3]);
    }

    #[test]
    fn sleepers_wake_when_their_word_completes() {
        let (epoch, words) = (Epoch::default(), words(3));
        let board = Board::new(&epoch, &words);
        std::thread::scope(|scope| {
            for slot in 0..3 {
                scope.spawn(move || assert!(board.wait(Some(slot), None, || board.result(slot).is_some())));
            }
            for slot in 0..3 {
                board.complete(slot, Status::Ok);
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::ring::{Ring, RingState, Slot, Wake};
    use crate::sync::explore;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    #[derive(Default)]
    struct Shared {
        epoch: Epoch,
        words: [Word; 2],
    }

    fn slept_through(sleepers: u32, of_one: bool) {
        explore(move || {
            let shared = Arc::new(Shared::default());
            let threads: Vec<_> = (0..sleepers)
                .map(|slot| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        let board = Board::new(&shared.epoch, &shared.words);
                        assert!(board.wait(of_one.then_some(slot), None, || board.result(slot).is_some()));
                    })
                })
                .collect();
            for slot in 0..sleepers {
                Board::new(&shared.epoch, &shared.words).complete(slot, Status::Ok);
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_no_completion_is_slept_through() {
        slept_through(1, false);
        slept_through(1, true);
    }

    #[test]
    fn loom_no_completion_is_slept_through_by_two_threads() {
        slept_through(2, false);
        slept_through(2, true);
    }

    /// A whole request, twice by the same word: the rank arms, submits and sleeps. The service process takes, writes
    /// the rank's memory and completes. The rank sees the written bytes, and no result of the round before.
    #[test]
    fn loom_a_word_is_used_again_and_what_was_written_before_it_is_seen() {
        const ROUNDS: u64 = 2;
        #[derive(Default)]
        struct Region {
            board: Shared,
            state: RingState,
            slots: [Slot; 2],
            /// Written only by the service process while a request is in flight.
            memory: UnsafeCell<u64>,
        }
        explore(|| {
            let region = Arc::new(Region::default());
            let serving = region.clone();
            let service = loom::thread::spawn(move || {
                let board = Board::new(&serving.board.epoch, &serving.board.words);
                let mut head = 0;
                while head < ROUNDS {
                    match Ring::new(&serving.state, &serving.slots).take(&mut head) {
                        Some(words) => {
                            // SAFETY: the rank does not read before the request is complete.
                            serving.memory.with_mut(|memory| unsafe { *memory = words[0] });
                            board.complete(0, Status::Ok);
                        }
                        None => loom::thread::yield_now(),
                    }
                }
            });
            let board = Board::new(&region.board.epoch, &region.board.words);
            for round in 1..=ROUNDS {
                board.arm(0);
                let pushed = Ring::new(&region.state, &region.slots).push(&[round]);
                assert_eq!(pushed, Ok(Wake::Awake), "the service process of this test does not sleep");
                assert!(board.wait(Some(0), None, || board.result(0).is_some()));
                // SAFETY: the request is complete, the next not submitted.
                region.memory.with(|memory| assert_eq!(unsafe { *memory }, round));
            }
            service.join().unwrap();
        });
    }
}
